# SPDX-License-Identifier: Apache-2.0
"""The producer's flows against scripted brokers, in virtual time: order, repeats, splits, memory."""

from __future__ import annotations

import tracemalloc
from contextlib import nullcontext

import pytest
from scripted_broker import Fault, Rig, ScriptedCluster, faults_for, send_apart, started, values

from kcodec import RecordBatchBuilder, partition_for
from kcodec.errors import BrokerError, EncodeError, TransportError
from kcodec.producer.batch import ProducerBatch
from kcodec.producer.options import take_options
from kcodec.protocol.error_codes import ErrorCode


def test_records_arrive_in_order_and_deliveries_say_where() -> None:
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = Rig(world)
    sent = [rig.send("orders", value) for value in values(1000)]
    assert not sent[0].done() and sent[0].partition is None
    rig.flush()
    assert log.values == values(1000)
    assert [delivery.offset for delivery in sent] == list(range(1000))
    assert sent[5].outcome() == ("orders", 0, 5, sent[5].timestamp)
    assert not rig.core.has_unfinished
    assert rig.core.accumulator.memory.free == rig.settings.buffer_memory


def test_the_metadata_of_each_topic_is_requested_once() -> None:
    """A round of the sender looks at new topics only, whatever the number of topics of the producer."""
    world = ScriptedCluster()
    for number in range(3):
        world.create_topic(f"orders-{number}")
    rig = Rig(world)
    for number in range(3):
        rig.send(f"orders-{number}", b"x")
    assert [buffer.topic for buffer in rig.core.accumulator.new_topics] == ["orders-0", "orders-1", "orders-2"]
    rig.flush()
    rig.send("orders-1", b"y")
    assert rig.core.accumulator.new_topics == []
    rig.flush()
    assert world.topics["orders-1"][1][0].values == [b"x", b"y"]


def test_the_first_record_after_an_idle_time_goes_to_the_present_leader() -> None:
    """The metadata is forgotten meanwhile; the sequence numbers are not."""
    world = ScriptedCluster(nodes=2)
    (log,) = world.create_topic("orders")
    rig = started(world, linger=0.0)
    world.run(700.0)
    world.move_leader(log, 2 if log.leader == 1 else 1)
    before = len(world.requests)
    rig.send("orders", b"late")
    rig.flush()
    assert log.values[-1] == b"late" and len(world.requests) == before + 1


def test_a_batch_lingers_and_a_full_one_does_not() -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = started(world, linger=1.0, batch_size=1000)
    rig.send("orders", b"x")
    world.run(0.9)
    assert len(world.requests) == 1
    world.run(0.2)
    assert len(world.requests) == 2
    for _ in range(2):
        rig.send("orders", b"x" * 500)
    world.run(0.1)
    assert len(world.requests) == 3  # one batch, which was full


def partitions_of(world: ScriptedCluster, first: int) -> list[list[int]]:
    """The partitions of each Produce request after the first ones."""
    requests = [request for _, _, request in world.requests[first:]]
    return [[part.index for topic in request.topic_data for part in topic.partition_data] for request in requests]


def test_a_batch_that_has_lingered_takes_the_others_of_its_broker_along() -> None:
    """Otherwise each partition would need a request of its own after each linger_ms."""
    world = ScriptedCluster(nodes=2)
    logs = world.create_topic("orders", 4)
    rig = started(world, linger=1.0)
    same = [number for number, log in enumerate(logs) if log.leader == logs[0].leader]
    other = next(number for number, log in enumerate(logs) if log.leader != logs[0].leader)
    for partition in (same[0], other, same[1]):
        rig.send("orders", b"x", partition=partition)
        world.run(0.4 if partition != same[1] else 0.1)
    assert len(world.requests) == 1
    world.run(0.2)
    assert partitions_of(world, 1) == [same]
    world.run(0.4)
    assert partitions_of(world, 1) == [same, [other]]
    world.run(5.0)
    assert len(world.requests) == 3


def test_a_full_batch_takes_no_other_along() -> None:
    world = ScriptedCluster()
    world.create_topic("orders", 2)
    rig = started(world, linger=1.0, batch_size=1000)
    rig.send("orders", b"x", partition=1)
    for _ in range(2):
        rig.send("orders", b"x" * 600, partition=0)
    world.run(0.5)
    assert partitions_of(world, 1) == [[0]]
    world.run(0.6)
    assert partitions_of(world, 2)[0][0] == 1


def test_the_first_batch_goes_alone_then_five_are_in_flight() -> None:
    world = ScriptedCluster(latency=1.0)
    (log,) = world.create_topic("orders")
    rig = Rig(world, linger=0.0, request_timeout=100.0)
    world.run_flow(rig.core.learn_topic("orders", 10.0))
    world.run(5.0)
    send_apart(rig, "orders", values(20))
    world.run(1.5)
    assert len(world.requests) == 1
    world.run(1.0)
    assert len(world.requests) == 1 + 5
    rig.flush()
    assert log.values == values(20)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(is_lost=True),
        Fault(is_lost=True, cuts=True),
        Fault(is_answer_lost=True),
        Fault(is_answer_lost=True, cuts=True),
        Fault(code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        Fault(code=ErrorCode.REQUEST_TIMED_OUT),
        Fault(code=ErrorCode.NOT_ENOUGH_REPLICAS),
        Fault(code=ErrorCode.UNKNOWN_SERVER_ERROR),
        Fault(delay=40.0),
        Fault(answer_delay=40.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_fault_in_the_middle_costs_neither_order_nor_a_record(fault: Fault, at: int) -> None:
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = started(world, linger=0.0)
    world.faults = faults_for(*[Fault()] * at, fault)
    sent = send_apart(rig, "orders", values(8))
    rig.flush()
    if fault.code == ErrorCode.UNKNOWN_SERVER_ERROR:
        # Not retriable: one batch fails, the rest continues without a gap in the sequences.
        assert [delivery.error is not None for delivery in sent].count(True) == 1
        assert log.values[1:] == [value for value, one in zip(values(8), sent, strict=True) if one.error is None]
    else:
        assert [delivery.error for delivery in sent] == [None] * 8
        assert log.values == [b"first", *values(8)]
        assert [delivery.offset for delivery in sent] == list(range(1, 9))
    assert not rig.task.done


def test_a_repeat_has_the_bytes_and_the_sequence_it_had() -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = started(world, linger=0.0, compression_type="gzip")
    world.faults = faults_for(Fault(is_answer_lost=True, cuts=True), Fault(code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    rig.send("orders", b"x" * 1000)
    rig.flush()
    sent = [one.topic_data[0].partition_data[0].records for _, _, one in world.requests[1:]]
    first, second, third = (bytes(data) for data in sent if data is not None)
    assert first == second == third


def test_46_is_success() -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = started(world, linger=0.0)
    world.faults = faults_for(Fault(code=ErrorCode.DUPLICATE_SEQUENCE_NUMBER))
    sent = rig.send("orders", b"x")
    rig.flush()
    assert sent.error is None and sent.offset == -1 and sent.outcome().offset == -1


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("code_from", ["broker", "RECORD_LIST_TOO_LARGE"])
def test_a_batch_that_is_too_large_is_split_until_it_fits(idempotent: bool, code_from: str) -> None:
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = started(world, linger=1.0, batch_size=10_000, idempotent=idempotent)
    records = [b"%04d" % number + b"x" * 196 for number in range(120)]
    if code_from == "RECORD_LIST_TOO_LARGE":
        world.faults = faults_for(
            Fault(code=ErrorCode.RECORD_LIST_TOO_LARGE), Fault(code=ErrorCode.RECORD_LIST_TOO_LARGE)
        )
    else:
        log.most_bytes = 700
    sent = [rig.send("orders", value) for value in records]
    rig.flush()
    assert [delivery.error for delivery in sent] == [None] * 120
    assert sorted(log.values) == sorted([b"first", *records])
    assert not idempotent or log.values == [b"first", *records]
    assert [log.values[delivery.offset or 0] for delivery in sent] == records


def test_a_record_that_is_too_large_for_the_topic_fails_alone() -> None:
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = started(world, linger=1.0)
    log.most_bytes = 300
    sent = [rig.send("orders", value) for value in (b"a", b"x" * 500, b"b")]
    rig.flush()
    assert [delivery.error is None for delivery in sent] == [True, False, True]
    assert isinstance(sent[1].error, BrokerError) and sent[1].error.code == ErrorCode.MESSAGE_TOO_LARGE
    assert "the batch with this record has 570 bytes, more than max.message.bytes of the topic" in str(sent[1].error)
    assert log.values == [b"first", b"a", b"b"]
    assert {epoch for _, _, epoch, _ in log.records} == {0}  # certainly not written: no new epoch is needed


def test_the_error_of_a_record_larger_than_a_segment_names_segment_bytes() -> None:
    """It named max.message.bytes, which allows the record."""
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = started(world, linger=0.0)
    world.faults = faults_for(Fault(code=ErrorCode.RECORD_LIST_TOO_LARGE))
    sent = rig.send("orders", b"x" * 500)
    rig.flush()
    assert isinstance(sent.error, BrokerError) and sent.error.code == ErrorCode.RECORD_LIST_TOO_LARGE
    text = (
        "the batch with this record has 570 bytes, more than segment.bytes of the topic allows; send a smaller record"
    )
    assert f"{text}, or increase segment.bytes" in str(sent.error)
    assert "max.message.bytes" not in str(sent.error)


@pytest.mark.parametrize("compression_type", ["none", "gzip"])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_record_with_too_large_headers_fails_alone(compression_type: str, is_first: bool) -> None:
    """Its key and value are small: its headers make the batch too large. A batch is split in two pieces at least, as
    one would be sent again and again."""
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = started(world, linger=1.0, batch_size=1_000_000, compression_type=compression_type)
    log.most_bytes = 100_000
    headers = [("trace", world.random.randbytes(200_000))]
    records = [(b"small", ()), (b"", headers)]
    sent = [rig.core.append("orders", None, value, extra, 0, 0) for value, extra in records[:: -1 if is_first else 1]]
    rig.flush(5.0)
    small, large = sent[:: -1 if is_first else 1]
    assert small is not None and small.error is None
    assert large is not None and isinstance(large.error, BrokerError)
    assert large.error.code == ErrorCode.MESSAGE_TOO_LARGE
    assert log.values == [b"first", b"small"]
    assert len(world.requests) < 8


def test_a_split_batch_has_two_pieces_at_least() -> None:
    """Even if its records would fit into one, which a broker would reject like the batch."""
    builder = RecordBatchBuilder()
    for value in (b"a", b"b", b"c"):
        builder.append(None, value, timestamp=0)
    batch = ProducerBatch("orders", 0, nullcontext(), builder=builder)
    batch.close()
    pieces = batch.split(RecordBatchBuilder, 1_000_000)
    assert [piece.records_count for piece in pieces] == [2, 1]


def test_a_leader_that_moves_is_followed() -> None:
    world = ScriptedCluster(nodes=3)
    logs = world.create_topic("orders", 3)
    rig = Rig(world, linger=0.0)
    sent = []
    for number in range(300):
        sent.append(rig.send("orders", b"%d" % number, partition=number % 3))
        if number % 50 == 49:
            world.run(0.5)
            world.move_leader(logs[number % 3], world.random.randrange(3) + 1)
    rig.flush()
    assert [delivery.error for delivery in sent] == [None] * 300
    for partition, log in enumerate(logs):
        assert log.values == [b"%d" % number for number in range(300) if number % 3 == partition]


@pytest.mark.parametrize("has_topic_ids", [True, False])
def test_a_topic_made_again_is_written_to(has_topic_ids: bool) -> None:
    world = ScriptedCluster(has_topic_ids=has_topic_ids)
    world.create_topic("orders")
    rig = started(world, linger=0.0)
    (log,) = world.create_topic("orders")
    sent = send_apart(rig, "orders", values(20))
    rig.flush()
    assert [delivery.error for delivery in sent] == [None] * 20
    assert log.values == values(20)


def test_full_memory_is_reported_and_given_back() -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = started(world, linger=10.0, buffer_memory=40_000, batch_size=16_384)
    append = rig.core.append
    taken = 0
    while append("orders", None, b"x" * 1000, (), 0, 0) is not None:
        taken += 1
    assert taken >= 30
    rig.core.accumulator.memory.waiters += 1  # as a client that waits does: nothing lingers then
    rig.core.sender.wake()
    world.run(1.0)
    assert rig.room_calls and append("orders", None, b"x" * 1000, (), 0, 0) is not None


def test_a_caller_waits_no_longer_when_an_open_batch_is_sent() -> None:
    """The rest of its `batch_size` is free then: until the response, a caller waited although there was memory."""
    world = ScriptedCluster(latency=1.0)
    world.create_topic("orders", 3)
    rig = Rig(world, linger=0.5, buffer_memory=40_000, batch_size=16_384)
    world.run_flow(rig.core.learn_topic("orders", 60.0))
    world.run(5.0)
    accumulator = rig.core.accumulator
    for partition in (0, 1):
        rig.send("orders", b"x", partition=partition)
    assert rig.core.append("orders", None, b"x", (), 2, 0) is None
    accumulator.memory.waiters += 1
    world.run(0.6)
    assert accumulator.memory.free > 16_384
    assert rig.room_calls and rig.core.append("orders", None, b"x", (), 2, 0) is not None


def test_a_caller_waits_no_longer_when_waiting_records_get_a_batch() -> None:
    world = ScriptedCluster()
    rig = Rig(world, buffer_memory=40_000, batch_size=16_384)
    for _ in range(2):
        rig.send("orders", bytes(8000), partition=0)
    accumulator = rig.core.accumulator
    accumulator.memory.waiters += 1
    before = accumulator.memory.free
    accumulator.update_topic(accumulator.topics["orders"], [True])
    assert (accumulator.memory.free, rig.room_calls > 0) == (40_000 - 16_384, True)
    assert before < accumulator.memory.free + 16_384


def test_a_caller_waits_no_longer_when_a_batch_is_split() -> None:
    """The pieces can take less memory than the batch, which had reserved `batch_size`."""
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = started(world, buffer_memory=40_000, batch_size=16_384)
    for value in (b"a", b"b"):
        rig.send("orders", value, partition=0)
    accumulator = rig.core.accumulator
    (batch,) = accumulator.unfinished
    (queue,) = accumulator.active
    queue.open = None
    accumulator.take(queue, batch)
    batch.close()
    accumulator.memory.waiters += 1
    accumulator.replace(queue, batch, batch.split(RecordBatchBuilder, 1))
    assert accumulator.memory.free > 39_000
    assert rig.room_calls


def test_records_that_wait_for_metadata_stay_within_buffer_memory() -> None:
    """Each of them takes much more memory than its fields while it has no batch."""
    rig = Rig(ScriptedCluster(), buffer_memory=2_000_000)
    deliveries = []
    tracemalloc.start()
    try:
        while (delivery := rig.core.append("orders", None, b"x", (), None, 0)) is not None:
            deliveries.append(delivery)
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(deliveries) > 1000
    assert used < 2_000_000


def test_a_record_of_the_size_of_buffer_memory_waits_for_metadata() -> None:
    rig = Rig(ScriptedCluster(), buffer_memory=40_000)
    assert rig.send("orders", bytes(39_800)) is not None
    assert rig.core.accumulator.memory.free == 0


def test_a_record_above_buffer_memory_names_the_remedy() -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = started(world, buffer_memory=40_000)
    with pytest.raises(EncodeError, match=r"above buffer_memory 40000; increase buffer_memory, or decrease") as raised:
        rig.core.append("orders", None, b"x" * 50_000, (), 0, 0)
    assert raised.value.field == "buffer_memory"


def test_values_that_make_no_record_are_refused_at_once() -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    for rig in (Rig(world, max_request_size=10_000), started(world, max_request_size=10_000)):
        with pytest.raises(EncodeError, match=r"above max_request_size 10000"):
            rig.send("orders", b"x" * 10_001)
        with pytest.raises(EncodeError, match="value must be bytes"):
            rig.send("orders", "text")  # type: ignore[arg-type]
    with pytest.raises(EncodeError, match=r"partition must be between 0 and 0, not 1; omit it"):
        rig.send("orders", b"x", partition=1)


def test_close_sends_what_there_is_and_refuses_more() -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = started(world, linger=100.0)
    sent = rig.send("orders", b"x")
    world.run_flow(rig.core.close(None))
    world.run(0.1)
    assert sent.offset == 1 and rig.task.done
    with pytest.raises(TransportError, match="closed"):
        rig.send("orders", b"y")


def test_acks_0_ends_when_it_is_sent() -> None:
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = Rig(world, idempotent=False, acks=0)
    sent = rig.send("orders", b"x")
    rig.flush()
    assert sent.error is None and sent.offset == -1 and log.values == [b"x"]


def test_a_topic_made_again_with_fewer_partitions() -> None:
    """Keys go by the new number, records without one to what there is; what was meant for the others ends in time."""
    world = ScriptedCluster()
    world.create_topic("orders", 5)
    rig = started(world, delivery_timeout=20.0)
    lost = []
    for number in range(5):
        lost.append(rig.send("orders", b"for %d" % number, partition=number))
    logs = world.create_topic("orders", 2)
    rig.flush()
    assert [delivery.error is None for delivery in lost] == [True, True, False, False, False]
    sent = [rig.send("orders", b"%d" % number, key=b"key %d" % number) for number in range(50)]
    sent += [rig.send("orders", b"x" * 5000) for _ in range(50)]
    rig.flush()
    assert [delivery.error for delivery in sent] == [None] * 100
    assert [delivery.partition for delivery in sent[:50]] == list(partition_for([b"key %d" % n for n in range(50)], 2))
    assert len(logs[0].values) + len(logs[1].values) == 2 + 100
    with pytest.raises(EncodeError, match="partition must be between 0 and 1"):
        rig.send("orders", b"x", partition=2)


@pytest.mark.parametrize("has_topic_ids", [True, False])
def test_a_broker_that_does_not_know_an_added_partition_yet_loses_no_record(has_topic_ids: bool) -> None:
    """If sequence numbers began at 0 again, the leader would take the next batch for a repeat and not write it."""
    world = ScriptedCluster(has_topic_ids=has_topic_ids)
    topic_logs = world.create_topic("orders", 3)
    topic_id, _ = world.topics["orders"]
    rig = started(world, linger=0.0)
    sent = []
    for number, known in enumerate([3, 2, 3, 1, 3, 0, 3]):
        world.topics["orders"] = topic_id, topic_logs[:known]
        world.cluster.request_update("test")
        world.run(1.0)
        world.topics["orders"] = topic_id, topic_logs
        if known == 3:
            sent.append(rig.send("orders", b"%d" % number, partition=2))
            rig.flush()
    assert [delivery.offset for delivery in sent] == [0, 1, 2, 3]
    assert topic_logs[2].values == [b"0", b"2", b"4", b"6"]
    assert [record[2:] for record in topic_logs[2].records] == [(0, number) for number in range(4)], "epoch, sequence"


def test_partitions_that_are_added_are_used() -> None:
    world = ScriptedCluster()
    world.create_topic("orders", 1)
    rig = started(world)
    topic_id, logs = world.topics["orders"]
    world.topics["orders"] = topic_id, [*logs, *[type(logs[0])(1) for _ in range(3)]]
    world.cluster.request_update("test")
    world.run(1.0)
    sent = [rig.send("orders", b"x" * 9000) for _ in range(200)]
    rig.flush()
    assert {delivery.partition for delivery in sent} == {0, 1, 2, 3}


def test_partitions_without_a_leader_are_avoided() -> None:
    world = ScriptedCluster()
    logs = world.create_topic("orders", 3)
    logs[1].leader = -1
    rig = started(world)
    sent = [rig.send("orders", b"x" * 9000) for _ in range(60)]
    rig.flush()
    assert {delivery.partition for delivery in sent} == {0, 2}


def test_a_slow_partition_gets_less() -> None:
    """Adaptive partitioning (KIP-794): what waits in a partition's queue makes it less likely.
    The slow one's leader is slow to take anything."""
    shares = {}
    for adaptive in (True, False):
        world = ScriptedCluster(nodes=3)
        world.create_topic("orders", 3)
        rig = started(world, linger=0.0, adaptive_partitioning=adaptive, request_timeout=100.0)
        world.faults = lambda node, request: Fault(delay=5.0 if node == 2 else 0.0)
        sent = []
        for _ in range(3000):
            sent.append(rig.send("orders", b"x" * 9000))
            world.run(0.001)
        shares[adaptive] = [delivery.partition for delivery in sent].count(1) / 3000
        rig.flush()
    assert shares[True] < 0.05 and shares[False] > 0.15, shares


class Counter:
    """Metrics as a user gives them."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.latencies: list[tuple[str, float]] = []

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        self.counts[name] = self.counts.get(name, 0) + value

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        self.latencies.append((name, seconds))


def test_metrics_hear_of_records_repeats_and_failures() -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    heard = Counter()
    rig = started(world, metrics=heard, linger=0.0)
    world.faults = faults_for(
        Fault(code=ErrorCode.NOT_LEADER_OR_FOLLOWER), Fault(), Fault(code=ErrorCode.INVALID_RECORD)
    )
    for value in values(3):
        rig.send("orders", value)
    rig.flush()
    rig.send("orders", b"refused")
    rig.flush()
    sent = [data.records for _, _, request in world.requests for data in request.topic_data[0].partition_data]
    first, _, repeated, _ = (len(data or b"") for data in sent)
    assert heard.counts == {
        "producer.records": 4,
        "producer.batches": 2,
        "producer.batch_bytes": first + repeated,
        "producer.retries": 1,
        "producer.failures": 1,
    }
    assert [name for name, _ in heard.latencies] == ["producer.delivery"] * 2
    assert heard.latencies[1][1] > 0.1


@pytest.mark.parametrize(("linger_ms", "seconds"), [(5, 0.004_75), (1000, 0.999_75), (1, 0.000_95), (0, 0.0)])
def test_the_sender_begins_before_linger_ms_is_over(linger_ms: float, seconds: float) -> None:
    """`linger_ms` is the longest delay (Kafka: linger.ms), and encoding and sending a batch take some of it."""
    options = {"bootstrap_servers": "localhost:9092", "linger_ms": linger_ms}
    own, client = take_options(options)
    assert own.settings(client).linger == pytest.approx(seconds)
