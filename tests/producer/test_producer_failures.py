# SPDX-License-Identifier: Apache-2.0
"""What the producer's flows make of failure, in virtual time: deadlines, epochs, refusals, ends."""

from __future__ import annotations

import pickle
from typing import Any
from unittest.mock import Mock

import pytest
from scripted_broker import Fault, Rig, ScriptedCluster, faults_for, send_apart, started, values

from kcodec.broker import Broker
from kcodec.client import Producer
from kcodec.client.flows import run_in_background
from kcodec.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    DeliveryErrors,
    DeliveryTimeoutError,
    TopicDeliveryError,
    TransportError,
)
from kcodec.flow import Call, Done, Flow, sleep
from kcodec.offsets import TopicPartition
from kcodec.producer.delivery import Delivery
from kcodec.producer.identity import IdempotentProducerId
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.produce import BatchIndexAndErrorMessage, ProduceRequest
from kcodec.protocol.messages.transactions import InitProducerIdRequest


def test_what_is_not_acknowledged_in_time_fails_by_its_deadline() -> None:
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = started(world, linger=0.0, delivery_timeout=10.0, request_timeout=3.0)
    world.faults = lambda node, request: Fault(is_lost=True)
    sent = send_apart(rig, "orders", values(3))
    world.run(9.9)
    assert not any(delivery.done() for delivery in sent)
    world.run(0.2)
    for delivery in sent:
        assert isinstance(delivery.error, DeliveryTimeoutError)
        assert "orders-0: not acknowledged within delivery_timeout_ms (10 s)" in str(delivery.error)
    assert sent[0].error is not None and sent[0].error.possibly_sent  # type: ignore[attr-defined]
    world.faults = faults_for()
    later = rig.send("orders", b"later")
    rig.flush()
    assert later.offset == 1 and log.values == [b"first", b"later"]


def test_after_a_gap_the_epoch_is_raised_and_the_rest_renumbered() -> None:
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = started(world, linger=0.0, delivery_timeout=10.0, request_timeout=3.0)
    world.faults = lambda node, request: Fault(is_lost=True)
    expired = rig.send("orders", b"expired")
    world.run(9.0)
    kept = rig.send("orders", b"kept")
    world.run(1.5)
    assert expired.done() and not kept.done()
    world.faults = faults_for()
    rig.flush()
    assert kept.error is None and log.values == [b"first", b"kept"]
    epochs = [epoch for _, _, epoch, _ in log.records]
    assert epochs == [0, 1] and log.records[1][3] == 0


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_a_batch_at_a_deposed_leader_keeps_its_numbers(code: int) -> None:
    """They are answered after the append, too (Kafka: DelayedProduce). Given to the next batch, its records would pass
    for a repeat of these: acknowledged, and nowhere."""
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = started(world, linger=0.0, delivery_timeout=10.0, request_timeout=3.0, retry_backoff=lambda *_: 100.0)
    world.faults = faults_for(Fault(code=code, is_written=True))
    expired = rig.send("orders", b"expired")
    world.run(10.5)
    assert expired.error is not None
    later = rig.send("orders", b"later")
    rig.flush()
    assert log.values == [b"first", b"expired", b"later"]
    assert later.offset == 2
    assert code == ErrorCode.UNKNOWN_SERVER_ERROR or expired.error.possibly_sent  # type: ignore[attr-defined]


def test_a_late_copy_of_an_expired_batch_is_refused_by_its_epoch() -> None:
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = started(world, linger=0.0, delivery_timeout=10.0, request_timeout=3.0)
    world.faults = faults_for(Fault(delay=20.0), *[Fault(is_lost=True)] * 9)
    expired = rig.send("orders", b"expired")
    world.run(10.5)
    assert expired.error is not None
    world.faults = faults_for()
    rig.send("orders", b"kept")
    rig.flush()
    world.run(30.0)
    assert log.values == [b"first", b"kept"]


def test_epochs_end_at_32767_and_a_new_id_follows() -> None:
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = started(world, linger=0.0)
    identity = rig.source.current
    assert identity is not None
    rig.source._current = identity._replace(producer_epoch=32767)  # type: ignore[attr-defined]
    rig.send("orders", b"last epoch")
    rig.flush()
    world.faults = faults_for(Fault(code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    rig.send("orders", b"new id")
    rig.flush()
    assert [(pid - identity.producer_id, epoch) for _, pid, epoch, _ in log.records] == [(0, 0), (0, 32767), (1, 0)]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ],
)
def test_a_broker_that_forgot_us_gets_a_new_identity(code: int) -> None:
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = started(world, linger=0.0)
    world.faults = faults_for(Fault(code=code))
    sent = send_apart(rig, "orders", values(8))
    rig.flush()
    assert [delivery.error for delivery in sent] == [None] * 8
    assert log.values == [b"first", *values(8)]
    assert log.records[0][1:3] != log.records[1][1:3]


def test_an_error_names_the_partition_and_the_records() -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = started(world)
    world.faults = faults_for(Fault(code=ErrorCode.INVALID_RECORD))
    world.record_errors = [BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="no key")]
    sent = rig.send("orders", b"x")
    rig.flush()
    assert isinstance(sent.error, BrokerError)
    assert sent.error.name == "INVALID_RECORD" and sent.error.resource == ("orders", 0)
    assert "record 1: no key" in str(sent.error) and "orders-0" in str(sent.error)


def test_records_of_an_unknown_topic_fail_after_max_block() -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = Rig(world, max_block=5.0)
    missing, present = rig.send("nowhere", b"x"), rig.send("orders", b"x")
    world.run(4.5)
    assert present.done() and not missing.done()
    again = rig.send("nowhere", b"y")
    world.run(1.0)
    assert isinstance(missing.error, DeliveryTimeoutError) and not again.done()
    assert "topic 'nowhere': no metadata within max_block_ms (5 s)" in str(missing.error)
    world.create_topic("nowhere")
    world.run(2.0)
    assert again.error is None and again.offset == 0


def test_a_forbidden_topic_fails_at_once_with_the_brokers_error() -> None:
    world = ScriptedCluster()
    world.metadata_error["secret"] = 29
    rig = Rig(world)
    sent = rig.send("secret", b"x")
    world.run(1.0)
    assert (
        isinstance(sent.error, BrokerError)
        and sent.error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        and sent.error.resource == "secret"
    )


def test_close_with_a_deadline_fails_what_is_left() -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = started(world, linger=0.0)
    world.faults = lambda node, request: Fault(is_lost=True)
    sent = [*send_apart(rig, "orders", values(9)), rig.send("nowhere", b"x")]
    world.run_flow(rig.core.close(2.0), 2.2)
    for delivery in sent:
        assert isinstance(delivery.error, DeliveryTimeoutError) and "closed" in str(delivery.error)


@pytest.mark.parametrize("failing", ["on_response", "_succeeded"])
def test_a_response_that_cannot_be_handled_ends_the_producer(
    failing: str, kcodec_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batches would never end: flush() and close() would wait without end, and the memory stay in use."""
    topic = kcodec_broker.create_topic(partitions=1)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        producer.send(topic, b"first").result()
        with monkeypatch.context() as patch:
            patch.setattr(producer._core.sender.responses, failing, refuse_memory)
            delivery = producer.send(topic, b"second")
            with pytest.raises(DeliveryErrors, match="the I/O loop of this producer failed"):
                producer.flush(10.0)
        error = delivery.exception(1.0)
        assert isinstance(error, TransportError) and error.possibly_sent
        assert isinstance(error.__cause__, MemoryError)
        accumulator = producer._core.accumulator
        assert accumulator.memory.free == accumulator.settings.buffer_memory
        with pytest.raises(TransportError, match="create another producer"):
            producer.send(topic, b"third")


def late_copy(rig: Rig) -> list[Delivery]:
    """Send C, let the late copy of an earlier request arrive, and send D."""
    third = rig.send("orders", b"C")
    rig.flush()
    rig.world.run(60.0)
    fourth = rig.send("orders", b"D")
    rig.flush()
    return [third, fourth]


def test_no_sequence_number_of_a_batch_under_way_is_used_again() -> None:
    """B expires while its request is under way, and A before it is rejected. If the records after them took over the
    sequence numbers, a late copy of B could get the number of D, which would count as a duplicate: D would be lost."""
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = started(world, linger=0.0, delivery_timeout=5.0, request_timeout=8.0)
    world.faults = faults_for(Fault(code=ErrorCode.INVALID_TIMESTAMP), Fault(delay=30.0))
    first, second = send_apart(rig, "orders", [b"A", b"B"])
    world.run(6.0)
    assert isinstance(first.error, BrokerError) and isinstance(second.error, DeliveryTimeoutError)
    assert [one.error for one in late_copy(rig)] == [None, None]
    assert [value for value in log.values if value != b"B"] == [b"first", b"C", b"D"]


def test_no_sequence_number_of_a_purged_batch_is_used_again() -> None:
    """As before, but B, which may arrive late, is purged first, and A is rejected after that."""
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = started(world, linger=0.0)
    faults = [
        Fault(code=ErrorCode.NOT_ENOUGH_REPLICAS),
        Fault(delay=30.0),
        Fault(code=ErrorCode.INVALID_TIMESTAMP, delay=1.0),
    ]
    world.faults = faults_for(*faults)
    first, second = send_apart(rig, "orders", [b"A", b"B"])
    world.run(1.0)
    world.cut(1)
    world.run(1.0)
    rig.core.abort_buffered(TransportError("purged"))
    assert not first.done() and second.done()
    assert [one.error for one in late_copy(rig)] == [None, None]
    assert isinstance(first.error, BrokerError)
    assert [value for value in log.values if value != b"B"] == [b"first", b"C", b"D"]


def refuse_memory(*unused: object) -> None:
    raise MemoryError


def test_a_crash_of_the_loop_ends_every_delivery() -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = started(world, linger=0.0)
    world.faults = lambda node, request: Fault(is_lost=True)
    sent = [*send_apart(rig, "orders", values(9)), rig.send("nowhere", b"x")]
    reported: list[Delivery] = []
    for delivery in sent:
        delivery.add_done_callback(reported.append)
    world.run(0.01)
    rig.core.crash(TransportError("the loop failed"))
    assert all("the loop failed" in str(delivery.error) for delivery in sent)
    assert sorted(map(id, reported)) == sorted(map(id, sent))


@pytest.mark.parametrize("error", [AuthenticationError("the login was rejected"), KeyError("a mistake")])
def test_after_a_crash_a_record_that_was_sent_may_be_stored(error: Exception) -> None:
    """A program that sends it again may write it twice. One that was not sent can be sent again."""
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = started(world, linger=0.0)
    world.faults = lambda node, request: Fault(is_answer_lost=True)
    sent = rig.send("orders", b"x")
    world.run(0.01)
    not_sent = rig.send("nowhere", b"y")
    rig.core.crash(error)
    assert log.values == [b"first", b"x"]
    for delivery in (sent, not_sent):
        found = delivery.error
        assert found is error or (isinstance(found, TransportError) and found.__cause__ is error)
        assert str(error) in str(found)
        assert getattr(found, "possibly_sent", False) is (delivery is sent)


def test_a_mistake_in_a_background_flow_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def flow() -> Flow[None]:
        yield from sleep(0.1)
        raise KeyError("a mistake")

    world, core = ScriptedCluster(), Mock()
    run_in_background(Mock(scheduler=world.scheduler), core, {"producer": flow()})
    world.run(0.2)
    (record,) = [one for one in caplog.records if one.name == "kcodec.client"]
    assert record.levelname == "CRITICAL" and record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)
    core.crash.assert_called_once_with(record.exc_info[1])


def test_retries_are_counted() -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = started(world, linger=0.0, retries=2)
    world.faults = lambda node, request: Fault(code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    sent = rig.send("orders", b"x")
    rig.flush()
    assert isinstance(sent.error, BrokerError) and sent.error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert len(world.requests) == 1 + 3


def test_refused_producer_ids_fail_records_at_once() -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    world.init_answers = [15, 31]
    rig = Rig(world)
    sent = rig.send("orders", b"x")
    world.run(2.0)
    assert isinstance(sent.error, BrokerError) and sent.error.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class Recorder(IdempotentProducerId):
    """Notes what the sender tells it."""

    def __init__(self, world: ScriptedCluster) -> None:
        super().__init__(request_timeout=5.0, backoff=lambda attempt, random: 0.1, random=world.random.random)
        self.failed: list[tuple[TopicPartition, BaseException, bool]] = []
        self.written: list[tuple[TopicPartition, int, int]] = []

    def on_success(self, partition: TopicPartition, records_count: int, last_sequence: int) -> None:
        self.written.append((partition, records_count, last_sequence))

    def on_failure(self, partition: TopicPartition, error: BaseException, *, possibly_written: bool) -> None:
        self.failed.append((partition, error, possibly_written))


def test_the_owner_of_the_identity_is_notified_of_every_end() -> None:
    """A transaction is committed only if nothing of it failed: no failure may pass its manager by."""
    world = ScriptedCluster()
    world.create_topic("orders")
    world.metadata_error["secret"] = 29
    source = Recorder(world)
    rig = Rig(world, source=source, max_block=5.0, delivery_timeout=10.0, request_timeout=2.0)
    sent = [
        rig.send("orders", b"good"),
        rig.send("orders", b"no such partition", partition=7),
        rig.send("nowhere", b"no metadata"),
        rig.send("secret", b"refused"),
    ]
    world.run(6.0)
    world.faults = faults_for(Fault(code=ErrorCode.INVALID_RECORD))
    sent.append(rig.send("orders", b"invalid"))
    world.run(1.0)
    world.faults = lambda node, request: Fault(is_lost=True)
    sent.append(rig.send("orders", b"lost"))
    world.run(0.1)
    sent.append(rig.send("orders", b"never sent"))
    rig.flush()
    sent.append(rig.send("orders", b"given up"))
    rig.core.abort_buffered(TransportError("aborted"))
    assert source.written == [(TopicPartition("orders", 0), 1, 0)]
    assert [delivery.error for delivery in sent if delivery.error is None] == [None]
    reported = {id(error): (str(partition), written) for partition, error, written in source.failed}
    assert [reported.get(id(delivery.error)) for delivery in sent] == [
        None,
        ("orders--1", False),
        ("nowhere--1", False),
        ("secret--1", False),
        ("orders-0", False),
        ("orders-0", True),
        ("orders-0", False),
        ("orders-0", False),
    ]


@pytest.mark.parametrize("written", range(6))
@pytest.mark.parametrize("sent", [1, 3, 5])
def test_a_broker_that_remembers_one_batch_gets_nothing_twice(written: int, sent: int) -> None:
    """Of five batches in flight some are written and none is answered; the restart leaves the last one's number."""
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = started(world, linger=0.0, request_timeout=3.0)
    faults = [Fault(is_answer_lost=True)] * min(written, sent) + [Fault(is_lost=True)] * 5
    world.faults = faults_for(*faults[:sent])
    deliveries = send_apart(rig, "orders", values(sent))
    world.run(0.5)
    world.restart()
    rig.flush()
    assert [delivery.error for delivery in deliveries] == [None] * sent
    assert log.values == [b"first", *values(sent)]
    assert {epoch for _, _, epoch, _ in log.records} == {0}
    for number, delivery in enumerate(deliveries):
        assert delivery.offset in (-1, number + 1)


def test_what_a_restarted_broker_lost_gets_a_new_epoch() -> None:
    """All are refused: the log lost its end, as with too few replicas in sync. Then they are written, in order."""
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = started(world, linger=0.0, request_timeout=3.0)
    rig.send("orders", b"second")
    rig.flush()
    world.faults = faults_for(*[Fault(is_answer_lost=True)] * 5)
    deliveries = send_apart(rig, "orders", values(5))
    world.run(0.5)
    del log.records[1:]
    for producer_id, (epoch, cached) in log.producers.items():
        log.producers[producer_id] = epoch, type(cached)([(0, 0, 0)], maxlen=5)
    world.restart()
    rig.flush()
    assert [delivery.error for delivery in deliveries] == [None] * 5
    assert log.values == [b"first", *values(5)]
    assert [epoch for _, _, epoch, _ in log.records] == [0] + [1] * 5


class RefusingCluster(ScriptedCluster):
    """A cluster that refuses the logins for InitProducerId while `is_refusing`, or for repeated Produce requests."""

    is_refusing = True
    refuses_produce = False
    refused = 0

    def start_call(self, call: Call, done: Done) -> Any:
        is_repeat = isinstance(call.request, ProduceRequest) and len(self.requests) > 1
        is_refused = is_repeat if self.refuses_produce else isinstance(call.request, InitProducerIdRequest)
        if self.is_refusing and is_refused:
            self.refused += 1
            error = AuthenticationError("wrong password")
            self.scheduler.call_soon(lambda: done(None, error))
            return lambda: None
        return super().start_call(call, done)


def test_a_refused_login_fails_only_the_waiting_records() -> None:
    """The producer stays usable. The login is repeated only for a new record."""
    world = RefusingCluster()
    (log,) = world.create_topic("orders")
    rig = Rig(world)
    for count in range(1, 4):
        failed = rig.send("orders", b"x", partition=0)
        world.run(5.0)
        assert isinstance(failed.error, AuthenticationError)
        assert count <= world.refused <= count + 1
    attempts = world.refused
    world.run(60.0)
    assert world.refused == attempts
    world.is_refusing = False
    kept = [rig.send("orders", b"%d" % number, partition=0) for number in range(3)]
    rig.flush()
    assert [one.error for one in kept] == [None] * 3
    assert log.values == [b"0", b"1", b"2"]
    assert log.records[0][2:] == (0, 0), "the first record has the first number"


@pytest.mark.parametrize("is_reset", [True, False], ids=["producer id", "batch"])
def test_after_a_refused_login_a_sent_record_is_possibly_sent(is_reset: bool) -> None:
    """A program that sends the record again may write it twice. The login is refused for the request of a new producer
    id, or for the batch itself. A record that was not sent fails with AuthenticationError."""
    world = RefusingCluster()
    world.is_refusing = False
    (log,) = world.create_topic("orders")
    rig = started(world, linger=0.0)
    world.is_refusing, world.refuses_produce = True, not is_reset
    code = ErrorCode.INVALID_PRODUCER_EPOCH if is_reset else None
    world.faults = faults_for(Fault(is_answer_lost=True, cuts=True), Fault(code=code))
    written = rig.send("orders", b"written")
    world.run(0.01)
    (waiting,) = send_apart(rig, "orders", [b"waiting"])
    world.run(20.0)
    assert log.values == [b"first", b"written"]
    assert isinstance(waiting.error, AuthenticationError) and not waiting.error.possibly_sent
    error = written.error
    assert isinstance(error, TransportError) and not isinstance(error, AuthenticationError)
    assert error.possibly_sent and isinstance(error.__cause__, AuthenticationError)
    assert "may have written the record" in str(error) and "wrong password" in str(error)


@pytest.mark.parametrize("is_sent_before", [True, False], ids=["retry", "first attempt"])
def test_a_refused_retry_of_a_sent_record_is_possibly_sent(is_sent_before: bool) -> None:
    """The first request got no response, and the permission was revoked before the retry. A program that sends the
    record again may write it twice. A record whose first request is refused is certainly not written."""
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = started(world, linger=0.0, delivery_timeout=30.0, request_timeout=3.0)
    lost = [Fault(is_answer_lost=True, cuts=True)] * is_sent_before
    world.faults = faults_for(*lost, Fault(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    sent = rig.send("orders", b"sent")
    world.run(10.0)
    assert log.values == [b"first", b"sent"][: 1 + is_sent_before]
    error = sent.error
    assert isinstance(error, AuthorizationError) and error.resource == "orders"
    assert error.possibly_sent is is_sent_before
    assert ("may have stored the record" in str(error)) is is_sent_before
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.possibly_sent, str(copied)) == (is_sent_before, str(error))


def test_flush_reports_refused_records_that_may_be_stored() -> None:
    with Broker() as broker, Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send_and_wait("orders", b"first")
        broker.faults.add("Produce", count=1, close="after")
        broker.faults.add("Produce", count=1, error="TOPIC_AUTHORIZATION_FAILED")
        producer.send("orders", b"second")
        with pytest.raises(DeliveryErrors, match="brokers may have stored it") as caught:
            producer.flush()
        (member,) = caught.value.exceptions
        assert isinstance(member, TopicDeliveryError) and member.possibly_sent and caught.value.possibly_sent
        assert member.kind == "TOPIC_AUTHORIZATION_FAILED"
