# SPDX-License-Identifier: Apache-2.0
"""The state table of a transactional producer, pair by pair: what is legal lands, all else raises."""

from __future__ import annotations

import itertools
import pickle

import pytest
from draw_states import draw_diagram, draw_meanings, draw_table

from kcodec.errors import TransactionStateError
from kcodec.transactions.state import (
    CALLS,
    COMMITS,
    RAISES_KEPT_ERROR,
    TRANSITIONS,
    Event,
    State,
    next_state,
)

# Written by hand from Kafka's documentation of KafkaProducer, not from the table: what each call is allowed in. A
# transaction that begins during a commit in the background accepts records; its other calls wait for the commit first.
ALLOWED_IN = {
    Event.INITIALIZE: {State.UNINITIALIZED, State.UNKNOWN_OUTCOME},
    Event.BEGIN: {State.READY, State.COMMITTING_ASYNC},
    Event.SEND: {State.IN_TRANSACTION, State.BUFFERING},
    Event.SEND_OFFSETS: {State.IN_TRANSACTION},
    Event.COMMIT: {State.IN_TRANSACTION, State.UNKNOWN_OUTCOME},
    Event.COMMIT_ASYNC: {State.IN_TRANSACTION},
    Event.ABORT: {State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.DISCARDED},
    Event.RELEASE: {State.IN_TRANSACTION},
}
PAIRS = list(itertools.product(State, Event))


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=[f"{state.name}-{event.name}" for state, event in PAIRS])
def test_every_pair_lands_or_raises(state: State, event: Event) -> None:
    if event in TRANSITIONS[state]:
        assert next_state(state, event) is TRANSITIONS[state][event]
        return
    with pytest.raises(TransactionStateError) as raised:
        next_state(state, event, "transactional_id 'orders'")
    assert (raised.value.state, raised.value.event) == (state.name, event.name)
    assert "'orders'" in str(raised.value)
    assert pickle.loads(pickle.dumps(raised.value)).event == event.name


@pytest.mark.parametrize("event", CALLS)
def test_a_call_is_legal_where_kafka_says_so(event: Event) -> None:
    assert {state for state in State if event in TRANSITIONS[state]} == ALLOWED_IN[event]


def test_a_fatal_error_is_never_left() -> None:
    assert set(TRANSITIONS[State.FATAL_ERROR].values()) == {State.FATAL_ERROR}


def test_a_fatal_error_may_come_at_any_time() -> None:
    assert all(transitions[Event.FATAL] is State.FATAL_ERROR for transitions in TRANSITIONS.values())


def test_only_a_commit_that_was_confirmed_counts_as_committed() -> None:
    """COMMITTED comes from a commit alone; a failed produce (ABORTABLE) has no way there but through an abort."""
    assert {state for state in State if Event.COMMITTED in TRANSITIONS[state]} == COMMITS
    assert not {Event.COMMIT, Event.COMMIT_ASYNC} & set(TRANSITIONS[State.ABORTABLE_ERROR])


def test_a_discarded_transaction_is_not_committed() -> None:
    """Its commit would repeat the EndTxn of the transaction before, and report that as its own."""
    assert set(TRANSITIONS[State.DISCARDED]) == {Event.ABORT, Event.ABORTABLE, Event.FATAL}


def test_an_abort_leaves_every_abortable_error() -> None:
    """After ABORT and its confirmation a transaction may begin, if need be after InitProducerId."""
    aborting = next_state(State.ABORTABLE_ERROR, Event.ABORT)
    assert next_state(aborting, Event.ABORTED) is State.READY
    spent = next_state(aborting, Event.ENDED_EPOCH_SPENT)
    assert next_state(next_state(spent, Event.INITIALIZE), Event.INITIALIZED) is State.READY


def test_every_state_is_reached() -> None:
    reached, todo = {State.UNINITIALIZED}, [State.UNINITIALIZED]
    while todo:
        new = set(TRANSITIONS[todo.pop()].values()) - reached
        reached |= new
        todo += new
    assert reached == set(State)


def test_only_calls_outside_the_table_raise_the_kept_error() -> None:
    for state, events in RAISES_KEPT_ERROR.items():
        assert set(events) <= set(CALLS)
        assert not set(events) & set(TRANSITIONS[state])


def test_the_drawings_show_every_transition() -> None:
    table, diagram, meanings = draw_table(), draw_diagram(), draw_meanings()
    for state, transitions in TRANSITIONS.items():
        assert f"| {state.name} | {state.value} |" in meanings
        for event, following in transitions.items():
            assert f"| {state.name} | {event.name} | {following.name} |" in table
            if event is not Event.FATAL:
                arrow = next(line for line in diagram.splitlines() if f" {state.name} --> {following.name}:" in line)
                assert event.name in arrow
    assert "| ABORTABLE_ERROR | COMMIT | No change. The call raises the error that led to this state. |" in table
