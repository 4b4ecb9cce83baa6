# SPDX-License-Identifier: Apache-2.0
"""What people often say of Kafka's transactions and is not so, asked of a real broker (docs/myths.md).

Everything goes over one plain connection, so what is shown is the broker's doing and not that of a client.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from raw_broker import Producer, RawBroker, values

import kcodec
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.pytest_plugin import KafkaFactory

READ_UNCOMMITTED, READ_COMMITTED = 0, 1


@pytest.fixture
def broker(apache_kafka: ApacheKafka) -> Iterator[RawBroker]:
    with RawBroker(apache_kafka.bootstrap_servers) as connection:
        yield connection


@pytest.fixture
def topic(apache_kafka: ApacheKafka) -> str:
    return apache_kafka.create_topic(partitions=1)


@pytest.fixture
def transactional_id() -> str:
    return f"claims-{uuid.uuid4().hex[:8]}"


def test_a_duplicate_is_a_success_with_the_old_offset(broker: RawBroker, topic: str) -> None:
    producer = broker.init_producer_id(None)
    first = broker.produce(topic, producer, [b"a", b"b"], 0)
    again = broker.produce(topic, producer, [b"a", b"b"], 0)
    assert (first.error_code, first.base_offset) == (again.error_code, again.base_offset) == (0, 0)
    assert broker.fetch(topic, isolation_level=READ_UNCOMMITTED).high_watermark == 2


def test_a_duplicate_is_found_by_its_numbers_and_not_its_bytes(broker: RawBroker, topic: str) -> None:
    producer = broker.init_producer_id(None)
    broker.produce(topic, producer, [b"a"], 0)
    other = broker.produce(topic, producer, [b"something else"], 0)
    assert (other.error_code, other.base_offset) == (0, 0)
    assert values(broker.fetch(topic, isolation_level=READ_UNCOMMITTED)) == [b"a"]


def test_idempotence_ignores_an_application_that_sends_again(broker: RawBroker, topic: str) -> None:
    for _ in range(2):
        producer = broker.init_producer_id(None)  # a restart: another producer id
        assert broker.produce(topic, producer, [b"order 17"], 0).error_code == ErrorCode.NONE
    assert values(broker.fetch(topic, isolation_level=READ_UNCOMMITTED)) == [b"order 17", b"order 17"]


def test_after_a_restart_a_broker_remembers_one_batch_of_five(apache_kafka_factory: KafkaFactory) -> None:
    kafka = apache_kafka_factory(broker_session_timeout_ms=1000)
    topic = kafka.create_topic(partitions=1)
    with RawBroker(kafka.bootstrap_servers) as broker:
        producer = broker.init_producer_id(None)
        for sequence in range(5):
            assert broker.produce(topic, producer, [b"%d" % sequence], sequence).base_offset == sequence
        assert broker.produce(topic, producer, [b"0"], 0).base_offset == 0
    kafka.node(1).restart()
    with RawBroker(kafka.bootstrap_servers) as broker:
        assert broker.produce(topic, producer, [b"4"], 4).base_offset == 4
        assert (
            broker.produce(topic, producer, [b"3"], 3).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        )  # OUT_OF_ORDER_SEQUENCE_NUMBER, and it is there
        assert broker.fetch(topic, isolation_level=READ_UNCOMMITTED).high_watermark == 5


def test_the_consumer_omits_aborted_records_not_the_broker(
    broker: RawBroker, topic: str, transactional_id: str
) -> None:
    producer = broker.init_producer_id(transactional_id)
    broker.produce(topic, producer, [b"aborted"], 0, transactional_id)
    broker.end_transaction(transactional_id, producer, commit=False)
    fetched = broker.fetched_up_to(topic, 2)
    assert values(fetched) == [b"aborted"]
    (aborted,) = fetched.aborted_transactions
    assert (aborted.producer_id, aborted.first_offset) == (producer.producer_id, 0)
    pairs = [(aborted.producer_id, aborted.first_offset)]
    assert values(fetched, isolation_level="read_committed", aborted_transactions=pairs) == []


def test_an_aborted_record_is_visible_to_read_uncommitted(broker: RawBroker, topic: str, transactional_id: str) -> None:
    producer = broker.init_producer_id(transactional_id)
    broker.produce(topic, producer, [b"aborted"], 0, transactional_id)
    broker.end_transaction(transactional_id, producer, commit=False)
    broker.fetched_up_to(topic, 2)
    assert values(broker.fetch(topic, isolation_level=READ_UNCOMMITTED)) == [b"aborted"]


def test_without_transactions_last_stable_is_high_watermark(
    broker: RawBroker, topic: str, transactional_id: str
) -> None:
    assert broker.produce(topic, None, [b"plain"]).error_code == ErrorCode.NONE
    fetched = broker.fetch(topic, isolation_level=READ_COMMITTED)
    assert fetched.last_stable_offset == fetched.high_watermark == 1
    producer = broker.init_producer_id(transactional_id)
    broker.produce(topic, producer, [b"open", b"open"], 0, transactional_id)
    fetched = broker.fetch(topic, isolation_level=READ_COMMITTED)
    assert (fetched.last_stable_offset, fetched.high_watermark) == (1, 3)
    broker.end_transaction(transactional_id, producer, commit=True)
    fetched = broker.fetched_up_to(topic, 4)
    assert fetched.last_stable_offset == fetched.high_watermark == 4  # the marker has an offset, too


def test_an_open_transaction_holds_back_the_records_of_others(
    broker: RawBroker, topic: str, transactional_id: str
) -> None:
    producer = broker.init_producer_id(transactional_id)
    broker.produce(topic, producer, [b"open"], 0, transactional_id)
    assert broker.produce(topic, None, [b"no transaction"]).base_offset == 1
    assert values(broker.fetch(topic, isolation_level=READ_COMMITTED)) == []
    broker.end_transaction(transactional_id, producer, commit=False)
    fetched = broker.fetched_up_to(topic, 3)
    pairs = [(one.producer_id, one.first_offset) for one in fetched.aborted_transactions]
    assert values(fetched, isolation_level="read_committed", aborted_transactions=pairs) == [b"no transaction"]


def test_a_new_instance_aborts_what_the_old_one_left_open(broker: RawBroker, topic: str, transactional_id: str) -> None:
    old = broker.init_producer_id(transactional_id)
    broker.produce(topic, old, [b"left open"], 0, transactional_id)
    new = broker.init_producer_id(transactional_id)
    assert new.producer_id == old.producer_id and new.producer_epoch > old.producer_epoch
    assert broker.fetched_up_to(topic, 2).aborted_transactions[0].first_offset == 0
    assert broker.end_transaction(transactional_id, old, commit=True).error_code == ErrorCode.PRODUCER_FENCED
    assert broker.produce(topic, old, [b"late"], 1, transactional_id).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_the_same_end_asked_for_again_is_a_success(broker: RawBroker, topic: str, transactional_id: str) -> None:
    producer = broker.init_producer_id(transactional_id)
    broker.produce(topic, producer, [b"a"], 0, transactional_id)
    first = broker.end_transaction(transactional_id, producer, commit=True)
    again = broker.end_transaction(transactional_id, producer, commit=True)
    assert first.error_code == again.error_code == ErrorCode.NONE
    assert Producer(first.producer_id, first.producer_epoch) == Producer(again.producer_id, again.producer_epoch)
    assert broker.end_transaction(transactional_id, producer, commit=False).error_code == ErrorCode.INVALID_TXN_STATE


def test_an_empty_commit_is_refused_and_an_empty_abort_is_not(broker: RawBroker, transactional_id: str) -> None:
    producer = broker.init_producer_id(transactional_id)
    assert broker.end_transaction(transactional_id, producer, commit=True).error_code == ErrorCode.INVALID_TXN_STATE
    answer = broker.end_transaction(transactional_id, producer, commit=False)
    assert (answer.error_code, answer.producer_epoch) == (0, producer.producer_epoch + 1)


def test_offsets_of_a_transaction_have_gaps(broker: RawBroker, topic: str, transactional_id: str) -> None:
    producer = broker.init_producer_id(transactional_id)
    for end in (2, 4):
        broker.produce(topic, producer, [b"one"], 0, transactional_id)
        answer = broker.end_transaction(transactional_id, producer, commit=True)
        producer = Producer(answer.producer_id, answer.producer_epoch)
        fetched = broker.fetched_up_to(topic, end)
    assert [record.offset for record in kcodec.decode(fetched.records).records()] == [0, 2]


# Below transaction version 2 the epoch stays the same from one transaction to the next, so nothing tells a late copy of
# a request from a new one.


@pytest.fixture(scope="module")
def old_kafka() -> Iterator[ApacheKafka]:
    # Without the look at the coordinator that Kafka 3.6 brought (KIP-890, part 1): as brokers before it, or set so.
    with ApacheKafka(transaction_version=0, transaction_partition_verification_enable=False) as kafka:
        yield kafka


@pytest.fixture
def old_broker(old_kafka: ApacheKafka) -> Iterator[RawBroker]:
    with RawBroker(old_kafka.bootstrap_servers) as connection:
        yield connection


@pytest.fixture
def old_topic(old_kafka: ApacheKafka) -> str:
    return old_kafka.create_topic(partitions=1)


def test_a_late_copy_of_a_request_ends_the_next_transaction(
    old_broker: RawBroker, old_topic: str, transactional_id: str
) -> None:
    producer = old_broker.init_producer_id(transactional_id)
    for sequence, value in enumerate((b"first", b"second")):
        assert old_broker.add_partition(transactional_id, producer, old_topic) == 0
        answer = old_broker.produce(old_topic, producer, [value], sequence, transactional_id, version=11)
        assert answer.error_code == ErrorCode.NONE
        # Twice: the abort of the first transaction, and a copy of it that arrives when the second is open.
        assert (
            old_broker.end_transaction(transactional_id, producer, commit=False, version=4).error_code == ErrorCode.NONE
        )
    assert len(old_broker.fetched_up_to(old_topic, 4).aborted_transactions) == 2
    commit = old_broker.end_transaction(transactional_id, producer, commit=True, version=4)
    assert commit.error_code == ErrorCode.INVALID_TXN_STATE  # it was aborted, by the copy


def test_a_late_record_joins_the_next_transaction(old_broker: RawBroker, old_topic: str, transactional_id: str) -> None:
    producer = old_broker.init_producer_id(transactional_id)
    assert old_broker.add_partition(transactional_id, producer, old_topic) == 0
    assert old_broker.end_transaction(transactional_id, producer, commit=False, version=4).error_code == ErrorCode.NONE
    assert old_broker.add_partition(transactional_id, producer, old_topic) == 0
    late = old_broker.produce(old_topic, producer, [b"of the first"], 0, transactional_id, version=11)
    assert late.error_code == ErrorCode.NONE
    assert old_broker.end_transaction(transactional_id, producer, commit=True, version=4).error_code == ErrorCode.NONE
    fetched = old_broker.fetched_up_to(old_topic, 2)
    assert values(fetched, isolation_level="read_committed", aborted_transactions=[]) == [b"of the first"]


def test_a_version_that_is_offered_need_not_work(old_broker: RawBroker, old_topic: str, transactional_id: str) -> None:
    offered = old_broker.ask(messages.ApiVersionsRequest(), 2)
    assert {one.api_key: one.max_version for one in offered.api_keys}[messages.EndTxnRequest.api_key] == 5
    producer = old_broker.init_producer_id(transactional_id)
    assert old_broker.add_partition(transactional_id, producer, old_topic) == 0
    request = messages.EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=True,
    )
    assert old_broker.ask(request, 5).error_code == ErrorCode.UNSUPPORTED_VERSION
    # The coordinator keeps what it had begun to do: from now on everything is CONCURRENT_TRANSACTIONS.
    assert {old_broker.ask(request, version).error_code for version in (5, 4, 4, 4)} == {51}
    init = messages.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    assert {old_broker.ask(init, 4).error_code for _ in range(20)} == {51}


@pytest.mark.parametrize("are_named", [False, True])
def test_a_fenced_writer_reaches_a_partition_it_never_added(
    old_kafka: ApacheKafka, old_broker: RawBroker, old_topic: str, transactional_id: str, are_named: bool
) -> None:
    """Unless all partitions are named at the beginning: the abort that fences it then raises the epoch in each."""
    other_topic = old_kafka.create_topic(partitions=1)
    old = old_broker.init_producer_id(transactional_id)
    named = (old_topic, other_topic) if are_named else (old_topic,)
    for topic in named:
        assert old_broker.add_partition(transactional_id, old, topic) == 0
    new = old_broker.init_producer_id(transactional_id)
    for topic in named:
        old_broker.fetched_up_to(topic, 1)
    late = old_broker.produce(other_topic, old, [b"fenced"], 0, transactional_id, version=11)
    if are_named:
        assert late.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        return
    assert late.error_code == ErrorCode.NONE
    assert old_broker.add_partition(transactional_id, new, other_topic) == 0
    old_broker.produce(other_topic, new, [b"new"], 0, transactional_id, version=11)
    assert old_broker.end_transaction(transactional_id, new, commit=True, version=4).error_code == ErrorCode.NONE
    fetched = old_broker.fetched_up_to(other_topic, 3)
    pairs = [(one.producer_id, one.first_offset) for one in fetched.aborted_transactions or ()]
    seen = values(fetched, isolation_level="read_committed", aborted_transactions=pairs)
    assert seen == [b"fenced", b"new"]
