# SPDX-License-Identifier: Apache-2.0
"""The calls that a transactional producer allows in each state: one table of states and events.

Rule 1: the table is complete. `next_state` looks a pair up; a missing pair is a `TransactionStateError` with a remedy,
and nothing changes.
Rule 2: an error that made a transaction impossible is kept, and the calls in `RAISES_KEPT_ERROR` raise it, because it
is more specific than "illegal state".
Rule 3: this module neither sends nor waits. `kcodec.transactions.context` changes the state, and the flows of the other
modules do the work.

States and their names are those of Kafka's own producer (TransactionManager.State), and six more: UNKNOWN_OUTCOME, a
commit that was sent and got no response; RELEASING and RELEASED, a transaction that is left open for other processes to
end; and COMMITTING_ASYNC, BUFFERING and DISCARDED, for a commit in the background and the transaction that begins
before it has ended (`kcodec.transactions.background`). UNINITIALIZED means that InitProducerId is needed before the
next transaction: at first, and whenever an epoch must not be used again (a request of the old flow got no response, and
a late copy of it could join the next transaction of the same epoch).
"""

from __future__ import annotations

from enum import Enum

from kcodec.errors import TransactionStateError


class State(Enum):
    """The state of a transactional producer."""

    UNINITIALIZED = "the next begin must first request a producer id and epoch with InitProducerId"
    INITIALIZING = "InitProducerId was sent, and the response has not arrived"
    READY = "a transaction may begin"
    IN_TRANSACTION = "a transaction is open and accepts records and offsets"
    COMMITTING = "the producer sends the buffered records, and then requests the commit with EndTxn"
    COMMITTING_ASYNC = "a commit is under way in the background, and the next transaction may begin"
    BUFFERING = "a transaction is open and buffers its records until the commit of the one before it has succeeded"
    DISCARDED = "the commit before this transaction got no response, so this transaction can only be aborted"
    ABORTING = "the producer discards the buffered records, and then requests the abort with EndTxn"
    ABORTABLE_ERROR = "the transaction can only be aborted"
    RELEASING = "the producer sends the buffered records, and then leaves the transaction open for other processes"
    RELEASED = "the transaction is open, and this producer neither writes to it nor ends it"
    UNKNOWN_OUTCOME = "the commit was requested with EndTxn and got no response, so its outcome is unknown"
    FATAL_ERROR = "this producer is no longer usable"

    # Enum's own is a Python function, and each transaction looks states and events up some fifty times.
    __hash__ = object.__hash__


class Event(Enum):
    """The events of a transactional producer: calls of the application first, then their results."""

    INITIALIZE = "init_transactions, or a begin_transaction that first needs an epoch"
    BEGIN = "begin_transaction"
    SEND = "send"
    SEND_OFFSETS = "send_offsets_to_transaction"
    COMMIT = "commit_transaction"
    COMMIT_ASYNC = "commit_transaction_async"
    ABORT = "abort_transaction"
    RELEASE = "release"

    INITIALIZED = "InitProducerId returned a producer id and epoch"
    NOT_INITIALIZED = (
        "InitProducerId got no response in time, or the producer found that its next transaction needs another epoch"
    )
    COMMITTED = "EndTxn confirmed the commit, or there was nothing to commit"
    ABORTED = "EndTxn confirmed the abort, or there was nothing to abort"
    FLUSHED = "all records of a released transaction were acknowledged"
    ENDED_EPOCH_SPENT = "the transaction has ended, and the producer must request an epoch before the next transaction"
    INTERRUPTED = "the call ended before EndTxn was sent"
    UNCONFIRMED = "EndTxn was sent and got no response by the deadline"
    ABORTABLE = "an error occurred after which the transaction must be aborted"
    FATAL = "an error occurred after which the producer must be closed"

    __hash__ = object.__hash__


#: The calls of an application; the rest is what happens.
CALLS = (
    Event.INITIALIZE, Event.BEGIN, Event.SEND, Event.SEND_OFFSETS, Event.COMMIT, Event.COMMIT_ASYNC, Event.ABORT,
    Event.RELEASE,
)  # fmt: skip

TRANSITIONS: dict[State, dict[Event, State]] = {
    State.UNINITIALIZED: {
        Event.INITIALIZE: State.INITIALIZING,
        Event.NOT_INITIALIZED: State.UNINITIALIZED,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.INITIALIZING: {
        Event.INITIALIZED: State.READY,
        Event.NOT_INITIALIZED: State.UNINITIALIZED,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.READY: {
        Event.BEGIN: State.IN_TRANSACTION,
        Event.NOT_INITIALIZED: State.UNINITIALIZED,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.IN_TRANSACTION: {
        Event.SEND: State.IN_TRANSACTION,
        Event.SEND_OFFSETS: State.IN_TRANSACTION,
        Event.COMMIT: State.COMMITTING,
        Event.COMMIT_ASYNC: State.COMMITTING_ASYNC,
        Event.ABORT: State.ABORTING,
        Event.RELEASE: State.RELEASING,
        Event.ABORTABLE: State.ABORTABLE_ERROR,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.COMMITTING: {
        Event.COMMITTED: State.READY,
        Event.ENDED_EPOCH_SPENT: State.UNINITIALIZED,
        Event.UNCONFIRMED: State.UNKNOWN_OUTCOME,
        Event.INTERRUPTED: State.ABORTABLE_ERROR,
        Event.ABORTABLE: State.ABORTABLE_ERROR,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.COMMITTING_ASYNC: {
        Event.BEGIN: State.BUFFERING,
        Event.COMMITTED: State.READY,
        Event.ENDED_EPOCH_SPENT: State.UNINITIALIZED,
        Event.UNCONFIRMED: State.UNKNOWN_OUTCOME,
        Event.INTERRUPTED: State.ABORTABLE_ERROR,
        Event.ABORTABLE: State.ABORTABLE_ERROR,
        Event.FATAL: State.FATAL_ERROR,
    },
    # Calls that need the outcome of the commit (offsets, commit, abort, release) wait for it before they are looked up
    # here.
    State.BUFFERING: {
        Event.SEND: State.BUFFERING,
        Event.COMMITTED: State.IN_TRANSACTION,
        Event.UNCONFIRMED: State.DISCARDED,
        Event.INTERRUPTED: State.ABORTABLE_ERROR,
        Event.ABORTABLE: State.ABORTABLE_ERROR,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.DISCARDED: {
        # The transaction was never sent; the commit before it is still without an outcome.
        Event.ABORT: State.UNKNOWN_OUTCOME,
        Event.ABORTABLE: State.DISCARDED,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.ABORTING: {
        Event.ABORTED: State.READY,
        Event.ENDED_EPOCH_SPENT: State.UNINITIALIZED,
        # Never committed: InitProducerId ends what may still be open.
        Event.UNCONFIRMED: State.UNINITIALIZED,
        Event.INTERRUPTED: State.ABORTABLE_ERROR,
        # Records that fail because they are dropped.
        Event.ABORTABLE: State.ABORTING,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.ABORTABLE_ERROR: {
        Event.ABORT: State.ABORTING,
        Event.ABORTABLE: State.ABORTABLE_ERROR,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.RELEASING: {
        Event.FLUSHED: State.RELEASED,
        Event.INTERRUPTED: State.ABORTABLE_ERROR,
        Event.ABORTABLE: State.ABORTABLE_ERROR,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.RELEASED: {Event.FATAL: State.FATAL_ERROR},
    State.UNKNOWN_OUTCOME: {
        # The same EndTxn is sent again, to get a response.
        Event.COMMIT: State.COMMITTING,
        Event.INITIALIZE: State.INITIALIZING,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.FATAL_ERROR: {
        Event.ABORTABLE: State.FATAL_ERROR,
        Event.FATAL: State.FATAL_ERROR,
    },
}

#: States in which something is open that only an abort ends.
TO_ABORT = frozenset({State.IN_TRANSACTION, State.BUFFERING, State.DISCARDED, State.ABORTABLE_ERROR})
#: States in which the commit of a transaction is under way.
COMMITS = frozenset({State.COMMITTING, State.COMMITTING_ASYNC, State.BUFFERING})
#: States in which records are written.
WRITING = frozenset({State.IN_TRANSACTION, *COMMITS, State.RELEASING})
_NOT_ABORT = (Event.SEND, Event.SEND_OFFSETS, Event.COMMIT, Event.COMMIT_ASYNC, Event.RELEASE)
#: Calls that raise the error which led into the state.
RAISES_KEPT_ERROR: dict[State, tuple[Event, ...]] = {
    State.ABORTABLE_ERROR: _NOT_ABORT,
    State.DISCARDED: _NOT_ABORT,
    State.FATAL_ERROR: CALLS,
}

_REMEDIES: dict[State, str] = {
    State.UNINITIALIZED: "begin a transaction first",
    State.INITIALIZING: "wait until the initialization has returned",
    State.READY: "begin a transaction first",
    State.IN_TRANSACTION: "commit or abort the open transaction first",
    State.COMMITTING: "wait until the commit has returned, then begin the next transaction",
    State.COMMITTING_ASYNC: "wait for the result of the commit, or begin the next transaction",
    State.BUFFERING: "wait for the result of the commit that is under way",
    State.DISCARDED: "abort the transaction first",
    State.ABORTING: "wait until the abort has returned, then begin the next transaction",
    State.ABORTABLE_ERROR: "abort the transaction first",
    State.RELEASING: "wait until release has returned; commit_transaction(handle) or abort_transaction(handle) ends it",
    State.RELEASED: "commit_transaction(handle) or abort_transaction(handle) ends it; create another producer to write",
    State.UNKNOWN_OUTCOME: (
        "the commit was sent and got no response: commit_transaction sends it again, "
        "begin_transaction continues without knowing its outcome"
    ),
    State.FATAL_ERROR: "close this producer",
}
# Remedies for pairs where that of the state does not fit.
_OTHER_REMEDIES: dict[tuple[State, Event], str] = {
    (State.READY, Event.INITIALIZE): "the producer is initialized: continue with begin_transaction",
    (State.BUFFERING, Event.BEGIN): "commit or abort the open transaction first",
}


def remedy(state: State, event: Event) -> str:
    """Return the remedy for an illegal call."""
    return _OTHER_REMEDIES.get((state, event), _REMEDIES[state])


def illegal(state: State, event: Event, name: str = "this producer") -> TransactionStateError:
    """Return the error for a pair that is not in the table, without raising it."""
    return TransactionStateError(
        f"{event.value} is not possible, as {name} is in state {state.name} ({state.value}): {remedy(state, event)}",
        state=state.name,
        event=event.name,
    )


def next_state(state: State, event: Event, name: str = "this producer") -> State:
    """Return the state to which `event` leads from `state`. Raise TransactionStateError for a pair that is not in the
    table.

    name: Name of the producer, for the error.
    """
    following = TRANSITIONS[state].get(event)
    if following is None:
        raise illegal(state, event, name)
    return following
