# SPDX-License-Identifier: Apache-2.0
"""The broker's transaction coordinator, state by state, with a clock that the tests move."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from broker_core import NOTHING, CoreClient, Identity

from kcodec.broker.transactions.state import LAST_CLIENT_EPOCH, State
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

NONE, BUSY, FENCED = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.PRODUCER_FENCED
BAD_STATE, BAD_EPOCH = ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH

#: The states that may come before each state. DEAD and PREPARE_EPOCH_FENCE are never in the log.
PREDECESSORS: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset((State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)),
    State.ONGOING: frozenset((State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)),
    State.PREPARE_COMMIT: frozenset((State.ONGOING,)),
    # from the last three without any partition: an abort of nothing, with transaction version 2
    State.PREPARE_ABORT: frozenset((State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)),
    State.COMPLETE_COMMIT: frozenset((State.PREPARE_COMMIT,)),
    State.COMPLETE_ABORT: frozenset((State.PREPARE_ABORT,)),
    State.DEAD: frozenset((State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)),
    State.PREPARE_EPOCH_FENCE: frozenset((State.ONGOING,)),
}


@pytest.fixture
def client() -> CoreClient:
    client = CoreClient()
    client.prepare()
    return client


def started(client: CoreClient, name: str | None = "a", timeout_ms: int = 60_000) -> Identity:
    code, producer = client.init(name, timeout_ms=timeout_ms)
    assert code is NONE
    return producer


def test_commit_makes_records_visible_with_their_marker(client: CoreClient) -> None:
    producer = started(client)
    assert client.produce(producer, transactional_id="a") == (NONE, 0)
    assert (client.committed(), client.last_stable_offset(), client.state("a")) == ([], 0, "Ongoing")
    code, following = client.end("a", producer)
    assert (code, following) == (NONE, Identity(producer.producer_id, producer.epoch + 1))
    assert (client.committed(), client.last_stable_offset(), client.state("a")) == ([b"v"], 2, "CompleteCommit")


def test_abort_hides_records_and_lists_them_as_aborted(client: CoreClient) -> None:
    producer = started(client)
    client.produce(producer, transactional_id="a")
    client.end("a", producer, commit=False)
    assert (client.committed(), client.last_stable_offset(), client.state("a")) == ([], 2, "CompleteAbort")
    found = client.ask(client.fetch_request(), 12).responses[0].partitions[0]
    assert [(one.producer_id, one.first_offset) for one in found.aborted_transactions] == [(producer.producer_id, 0)]


def test_everything_is_busy_until_delayed_markers_are_written(client: CoreClient) -> None:
    client.core.transactions.marker_delay_ms = 500
    producer = started(client)
    client.produce(producer, transactional_id="a", version=11)
    assert client.add("a", producer) is NONE
    client.produce(producer, transactional_id="a", version=11)
    assert client.end("a", producer, version=4)[0] is NONE
    assert client.state("a") == "PrepareCommit"
    assert client.end("a", producer, version=4)[0] is BUSY
    assert client.end("a", producer, commit=False, version=4)[0] is BUSY
    assert client.add("a", producer) is BUSY
    assert client.init("a")[0] is BUSY
    assert client.committed() == []
    client.clock.advance(500)
    assert client.state("a") == "CompleteCommit"
    assert client.committed() == [b"v"]
    assert client.end("a", producer, version=4)[0] is NONE
    assert client.end("a", producer, commit=False, version=4)[0] is BAD_STATE


def test_produce_waits_for_markers_then_gives_up(client: CoreClient) -> None:
    """Produce 12 is tried again inside the broker for 100 ms, then the client is asked to."""
    client.core.transactions.marker_delay_ms = 50
    producer = started(client)
    client.produce(producer, transactional_id="a")
    following = client.end("a", producer)[1]
    client.produce(following, transactional_id="a")
    short = client.produced
    assert short.response is NOTHING
    client.clock.advance(60)
    assert client.result_of(short) == (NONE, 2)
    client.core.transactions.marker_delay_ms = 5000
    last = client.end("a", following)[1]
    client.produce(last, transactional_id="a")
    client.clock.advance(200)
    assert client.result_of(client.produced)[0] is BUSY


def test_a_second_producer_fences_the_first_and_aborts(client: CoreClient) -> None:
    zombie = started(client)
    client.produce(zombie, transactional_id="a")
    assert client.init("a")[0] is BUSY
    code, owner = client.init("a")
    assert (code, owner) == (NONE, Identity(zombie.producer_id, zombie.epoch + 2))
    assert client.produce(zombie, 1, transactional_id="a")[0] is BAD_EPOCH
    assert client.end("a", zombie)[0] is FENCED
    assert client.end("a", zombie, version=1)[0] is BAD_EPOCH
    assert client.add("a", zombie) is FENCED
    assert client.init("a", zombie)[0] is FENCED
    assert client.committed() == []


def test_a_transaction_times_out_at_the_next_scan(client: CoreClient) -> None:
    producer = started(client, timeout_ms=2000)
    client.produce(producer, transactional_id="a")
    client.clock.advance(9_999)
    assert client.state("a") == "Ongoing"
    client.clock.advance(2)
    assert client.state("a") == "CompleteAbort"
    assert client.produce(producer, 1, transactional_id="a")[0] is BAD_EPOCH
    assert client.end("a", producer)[0] is BAD_STATE
    assert client.end("a", producer, commit=False)[0] is NONE
    assert client.last_stable_offset() == 2


def test_a_repeated_end_gets_the_same_response(client: CoreClient) -> None:
    producer = started(client)
    client.produce(producer, transactional_id="a")
    first = client.end("a", producer)
    assert client.end("a", producer) == first
    assert client.end("a", producer, commit=False)[0] is BAD_STATE
    end = client.core.topics.partition("t", 0)
    assert end is not None
    assert end.log.log_end_offset == 2


def test_an_empty_transaction_can_only_be_aborted(client: CoreClient) -> None:
    producer = started(client)
    assert client.end("a", producer)[0] is BAD_STATE
    assert client.end("a", producer, commit=False, version=4)[0] is BAD_STATE
    code, following = client.end("a", producer, commit=False)
    assert (code, following.epoch, client.state("a")) == (NONE, producer.epoch + 1, "CompleteAbort")


def test_used_up_epochs_give_a_new_producer_id(client: CoreClient) -> None:
    producer = started(client)
    known = client.core.transactions.get("a")
    assert known is not None
    client.core.transactions._states["a"] = replace(known, producer_epoch=LAST_CLIENT_EPOCH)
    last = Identity(producer.producer_id, LAST_CLIENT_EPOCH)
    assert client.produce(last, transactional_id="a")[0] is NONE
    code, following = client.end("a", last)
    assert code is NONE
    assert (following.producer_id != producer.producer_id, following.epoch) == (True, 0)
    assert client.end("a", last) == (NONE, following)
    assert client.produce(following, transactional_id="a") == (NONE, 2)
    assert client.committed() == [b"v"]


def test_idle_transactional_ids_expire(client: CoreClient) -> None:
    producer = started(client)
    client.clock.advance(8 * 86_400_000)
    assert client.end("a", producer)[0] is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    request = messages.DescribeTransactionsRequest(transactional_ids=["a"])
    found = client.ask(request, 0).transaction_states[0]
    assert found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("version", "code"),
    [(11, ErrorCode.TRANSACTION_ABORTABLE), (10, BAD_STATE), (12, NONE)],
)
def test_unverified_partitions_are_refused(client: CoreClient, version: int, code: ErrorCode) -> None:
    """Up to Produce 11 the partition must have been added (KIP-890); 12 adds it."""
    producer = started(client)
    assert client.produce(producer, transactional_id="a", version=version)[0] is code


def test_late_data_after_the_marker_is_refused(client: CoreClient) -> None:
    """KAFKA-12671: it would begin a transaction that nobody ends."""
    producer = started(client)
    client.add("a", producer)
    client.produce(producer, transactional_id="a", version=11)
    client.end("a", producer, version=4)
    assert client.produce(producer, 1, transactional_id="a", version=11)[0] is ErrorCode.TRANSACTION_ABORTABLE
    assert client.last_stable_offset() == 2


def test_the_window_has_five_batches(client: CoreClient) -> None:
    producer = started(client, None)
    offsets = [client.produce(producer, sequence)[1] for sequence in range(6)]
    assert offsets == list(range(6))
    assert [client.produce(producer, sequence)[1] for sequence in range(1, 6)] == offsets[1:]
    assert client.produce(producer, 0)[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert client.produce(producer, 7)[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequence_numbers_wrap_to_zero(client: CoreClient) -> None:
    producer = started(client, None)
    assert client.produce(producer, 2**31 - 2, values=(b"a", b"b"))[0] is NONE
    assert client.produce(producer, 0)[0] is NONE


def test_a_tool_can_end_a_hanging_transaction(client: CoreClient) -> None:
    producer = started(client)
    client.produce(producer, transactional_id="a")
    marker = messages.WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transaction_result=False,
        coordinator_epoch=0,
        topics=[messages.WritableTxnMarkerTopic(name="t", partition_indexes=[0, 9])],
    )
    found = client.ask(messages.WriteTxnMarkersRequest(markers=[marker]), 1).markers[0].topics[0].partitions
    assert [one.error_code for one in found] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert client.last_stable_offset() == 2


def test_a_lower_coordinator_epoch_is_fenced(client: CoreClient) -> None:
    partition = client.core.topics.partition("t", 0)
    assert partition is not None
    partition.log.append_marker(5, 0, 3, is_commit=True, transaction_version=0)
    marker = messages.WritableTxnMarker(
        producer_id=5,
        producer_epoch=0,
        coordinator_epoch=2,
        topics=[messages.WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
    )
    found = client.ask(messages.WriteTxnMarkersRequest(markers=[marker]), 1).markers[0].topics[0].partitions[0]
    assert found.error_code == ErrorCode.TRANSACTION_COORDINATOR_FENCED


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_transition_in_the_log_is_a_legal_one(version: int) -> None:
    client = CoreClient(transaction_version=version)
    client.prepare()
    producer = started(client)
    for commit in (True, False, True):
        client.add("a", producer)
        client.produce(producer, transactional_id="a", version=11)
        client.end("a", producer, commit=commit, version=4)
        client.produce(producer, transactional_id="a", version=11)
        producer = started(client)
    topic = client.core.topics.get("__transaction_state")
    assert topic is not None
    states = []
    for partition in topic.partitions:
        for batch in partition.log.batches_from(0):
            for record in batch.records():
                assert record.value is not None
                assert int.from_bytes(record.value[:2], "big") == min(version, 1)
                value = messages.TransactionLogValue.decode(record.value, min(version, 1), 2)
                states.append(State(value.transaction_status))
    assert set(states) >= {State.EMPTY, State.ONGOING, State.PREPARE_COMMIT, State.COMPLETE_ABORT}
    for before, after in pairwise(states):
        assert before in PREDECESSORS[after]


def test_coordinators_restart_with_the_state_in_their_logs(client: CoreClient) -> None:
    client.core.transactions.marker_delay_ms = 1000
    producer = started(client)
    client.produce(producer, transactional_id="a")
    other = started(client, "b")
    client.produce(other, transactional_id="b")
    following = client.end("a", producer)[1]
    client.core.restart_coordinators()
    assert (client.state("a"), client.state("b")) == ("PrepareCommit", "Ongoing")
    client.clock.advance(1000)
    assert client.state("a") == "CompleteCommit"
    assert client.produce(following, transactional_id="a")[0] is NONE
    assert client.end("b", other, commit=False)[0] is NONE
