# SPDX-License-Identifier: Apache-2.0
"""What real brokers answer, row by row: to a zombie, to a late Produce, to sequences, races, time-outs and repeats; and
which exception an answer becomes. Everything the rules of shared transactions rest on. Raw messages only: what is shown
is the broker's doing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from raw_broker import Producer, RawBroker
from raw_transaction import RawTransaction
from transaction_cluster import TransactionCluster

from kcodec.errors import (
    AbortableTransactionError,
    AuthorizationError,
    BrokerError,
    FatalTransactionError,
    ProducerFencedError,
)
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.testing.kafka import KAFKA_VERSION
from kcodec.transactions.errors import TransactionDisposition, disposition_of, failure


@pytest.fixture
def raw(transaction_cluster: TransactionCluster) -> Iterator[RawTransaction]:
    with RawBroker(transaction_cluster.kafka.bootstrap_servers) as broker:
        yield RawTransaction(transaction_cluster, broker)


@pytest.fixture
def topic(transaction_cluster: TransactionCluster) -> str:
    return transaction_cluster.kafka.create_topic(partitions=2)


def took_over(raw: RawTransaction, topic: str) -> Producer:
    """A zombie: its transaction was open when a new instance asked for the id."""
    zombie = raw.begin(topic)
    assert raw.produce_code(topic, zombie, 0) == ErrorCode.NONE
    assert set(raw.init()) == {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE}
    assert raw.producer == (zombie.producer_id, zombie.producer_epoch + 2), "one to fence, one for the new owner"
    return zombie


# ---------------------------------------------------------------------------------------- a zombie, and what is wrong

ZombieRequest = Callable[[RawTransaction, Producer, str], int]
ZOMBIE: dict[str, tuple[ZombieRequest, int, str]] = {
    "Produce v11": (
        lambda raw, zombie, topic: raw.produce_code(topic, zombie, 1, version=11),
        ErrorCode.INVALID_PRODUCER_EPOCH,
        "Produce",
    ),
    "Produce v9": (
        lambda raw, zombie, topic: raw.produce_code(topic, zombie, 1, version=9),
        ErrorCode.INVALID_PRODUCER_EPOCH,
        "Produce",
    ),
    "Produce v3": (
        lambda raw, zombie, topic: raw.produce_code(topic, zombie, 1, version=3),
        ErrorCode.INVALID_PRODUCER_EPOCH,
        "Produce",
    ),
    "Produce of the flow": (
        lambda raw, zombie, topic: raw.produce_code(topic, zombie, 1),
        ErrorCode.INVALID_PRODUCER_EPOCH,
        "Produce",
    ),
    "Produce elsewhere": (
        lambda raw, zombie, topic: raw.produce_code(topic, zombie, 0, partition=1),
        ErrorCode.INVALID_PRODUCER_EPOCH,
        "Produce",
    ),
    "AddPartitionsToTxn v3": (
        lambda raw, zombie, topic: raw.add_code(zombie, topic),
        ErrorCode.PRODUCER_FENCED,
        "AddPartitionsToTxn",
    ),
    "AddPartitionsToTxn v1": (
        lambda raw, zombie, topic: raw.add_code(zombie, topic, version=1),
        ErrorCode.INVALID_PRODUCER_EPOCH,
        "AddPartitionsToTxn",
    ),
    "AddOffsetsToTxn v3": (
        lambda raw, zombie, topic: raw.add_offsets_code(zombie, "g"),
        ErrorCode.PRODUCER_FENCED,
        "AddOffsetsToTxn",
    ),
    "AddOffsetsToTxn v1": (
        lambda raw, zombie, topic: raw.add_offsets_code(zombie, "g", 1),
        ErrorCode.INVALID_PRODUCER_EPOCH,
        "AddOffsetsToTxn",
    ),
    "TxnOffsetCommit of the flow": (
        lambda raw, zombie, topic: raw.offsets_code(zombie, "g", topic),
        ErrorCode.INVALID_PRODUCER_EPOCH,
        "TxnOffsetCommit",
    ),
    "TxnOffsetCommit v3": (
        lambda raw, zombie, topic: raw.offsets_code(zombie, "g", topic, 3),
        ErrorCode.INVALID_PRODUCER_EPOCH,
        "TxnOffsetCommit",
    ),
    "EndTxn of the flow": (
        lambda raw, zombie, topic: raw.end_code(zombie, is_commit=True),
        ErrorCode.PRODUCER_FENCED,
        "EndTxn",
    ),
    "EndTxn v4": (
        lambda raw, zombie, topic: raw.end_code(zombie, is_commit=True, version=4),
        ErrorCode.PRODUCER_FENCED,
        "EndTxn",
    ),
    "EndTxn v1": (
        lambda raw, zombie, topic: raw.end_code(zombie, is_commit=False, version=1),
        ErrorCode.INVALID_PRODUCER_EPOCH,
        "EndTxn",
    ),
    "InitProducerId v5": (lambda raw, zombie, topic: raw.init(zombie)[-1], ErrorCode.PRODUCER_FENCED, "InitProducerId"),
    "InitProducerId v3": (
        lambda raw, zombie, topic: raw.init(zombie, version=3)[-1],
        ErrorCode.INVALID_PRODUCER_EPOCH,
        "InitProducerId",
    ),
}


def test_each_request_of_a_zombie_is_refused(raw: RawTransaction, topic: str) -> None:
    zombie = took_over(raw, topic)
    answers = {name: request(raw, zombie, topic) for name, (request, _, _) in ZOMBIE.items()}
    assert answers == {name: code for name, (_, code, _) in ZOMBIE.items()}
    for _, code, api in ZOMBIE.values():
        assert disposition_of(api, code) is TransactionDisposition.INVESTIGATE
        assert isinstance(failure(api, code, api, resource=raw.name).error, ProducerFencedError)


def test_what_was_not_given_out_is_refused(raw: RawTransaction, topic: str) -> None:
    producer = raw.begin(topic)
    assert raw.produce_code(topic, producer, 0) == ErrorCode.NONE
    high = producer._replace(producer_epoch=producer.producer_epoch + 3)
    foreign = producer._replace(producer_id=producer.producer_id + 100_000)
    # Where the transaction has been already, 3.9.1 takes the higher epoch (KAFKA-19690): elsewhere it asks.
    assert (raw.end_code(high, is_commit=True), raw.produce_code(topic, high, 0, partition=1)) == (
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    )
    assert (raw.end_code(foreign, is_commit=True), raw.produce_code(topic, foreign, 0, partition=1)) == (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    )
    unknown = RawTransaction(raw.cluster, raw.broker)
    unknown.find()
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert unknown.end_code(producer, is_commit=True) == mapping
    assert unknown.produce_code(topic, producer, 0, partition=1) == mapping
    assert raw.produce_code(topic, producer, 1, name=None) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, (
        "without an authorizer, too"
    )
    assert raw.produce_code(topic, producer, 1, is_transactional=False) == ErrorCode.INVALID_TXN_STATE
    assert raw.init(timeout_ms=900_001) == raw.init(timeout_ms=0) == [ErrorCode.INVALID_TRANSACTION_TIMEOUT]


@pytest.mark.parametrize(
    ("api", "code", "kind", "disposition"),
    [
        ("EndTxn", ErrorCode.INVALID_PRODUCER_ID_MAPPING, AbortableTransactionError, TransactionDisposition.ABORT),
        ("Produce", ErrorCode.INVALID_PRODUCER_ID_MAPPING, AbortableTransactionError, TransactionDisposition.ABORT),
        ("Produce", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, AuthorizationError, TransactionDisposition.FATAL),
        ("Produce", ErrorCode.INVALID_TXN_STATE, AbortableTransactionError, TransactionDisposition.ABORT),
        ("Produce", ErrorCode.TRANSACTION_ABORTABLE, AbortableTransactionError, TransactionDisposition.ABORT),
        ("Produce", ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, AbortableTransactionError, TransactionDisposition.ABORT),
        ("EndTxn", ErrorCode.INVALID_TXN_STATE, FatalTransactionError, TransactionDisposition.FATAL),
        (
            "TxnOffsetCommit",
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            AbortableTransactionError,
            TransactionDisposition.ABORT,
        ),
        ("TxnOffsetCommit", ErrorCode.UNKNOWN_MEMBER_ID, AbortableTransactionError, TransactionDisposition.ABORT),
        ("TxnOffsetCommit", ErrorCode.TRANSACTION_ABORTABLE, AbortableTransactionError, TransactionDisposition.ABORT),
        ("AddPartitionsToTxn", ErrorCode.TOPIC_AUTHORIZATION_FAILED, AuthorizationError, TransactionDisposition.ABORT),
        ("AddOffsetsToTxn", ErrorCode.GROUP_AUTHORIZATION_FAILED, AuthorizationError, TransactionDisposition.ABORT),
        (
            "InitProducerId",
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            AuthorizationError,
            TransactionDisposition.FATAL,
        ),
    ],
)
def test_an_answer_becomes_the_right_exception(
    api: str, code: int, kind: type[BrokerError], disposition: TransactionDisposition
) -> None:
    failed = failure(api, code, api, resource="what it is about")
    assert (type(failed.error), failed.disposition) == (kind, disposition)
    assert isinstance(failed.error, BrokerError)
    assert (failed.error.code, failed.error.resource) == (code, "what it is about")


# ------------------------------------------------------------------------------------------------------- late Produce


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_produce_after_the_end_of_its_transaction(raw: RawTransaction, topic: str, is_commit: bool) -> None:
    producer = raw.begin(topic)
    assert raw.produce_code(topic, producer, 0) == ErrorCode.NONE
    assert raw.end_code(producer, is_commit=is_commit) == ErrorCode.NONE
    raw.cluster.logs(topic)
    late = {
        "new batch": raw.produce_code(topic, producer, 1),
        "another partition": raw.produce_code(topic, producer, 0, partition=1),
        "repeat of what was accepted": raw.produce_code(topic, producer, 0),
    }
    assert late == dict.fromkeys(
        late, ErrorCode.INVALID_PRODUCER_EPOCH if raw.is_new_flow else ErrorCode.TRANSACTION_ABORTABLE
    )
    if not raw.is_new_flow:
        assert raw.produce_code(topic, producer, 1, version=10) == ErrorCode.INVALID_TXN_STATE


def test_old_flow_a_late_produce_joins_the_next_transaction(raw: RawTransaction, topic: str) -> None:
    """Why a request that went unanswered spends the epoch."""
    producer = raw.begin(topic)
    assert raw.produce_code(topic, producer, 0) == ErrorCode.NONE
    following = raw.end(producer, is_commit=True)
    if raw.is_new_flow:
        assert Producer(following.producer_id, following.producer_epoch) != producer
        return
    raw.add(topic)
    assert raw.produce_code(topic, producer, 1, text="late") == ErrorCode.NONE
    assert raw.end_code(producer, is_commit=True) == ErrorCode.NONE
    assert raw.cluster.committed(topic) == [[b"v-0", b"late-1"], []]


def test_a_fenced_epoch_is_refused_where_it_had_added_nothing(raw: RawTransaction, topic: str) -> None:
    zombie = took_over(raw, topic)
    raw.add(topic, (0, 1))
    assert raw.produce_code(topic, raw.producer, 0, partition=1) == ErrorCode.NONE
    assert raw.produce_code(topic, zombie, 0, partition=1, text="ZOMBIE") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert raw.end_code(raw.producer, is_commit=True) == ErrorCode.NONE
    assert raw.cluster.committed(topic) == [[], [b"v-0"]]


@pytest.fixture(scope="module")
def unverified() -> Iterator[TransactionCluster]:
    """As all brokers before 3.6: a leader does not ask the coordinator whether a transaction is open."""
    with TransactionCluster(KAFKA_VERSION, 0, transaction_partition_verification_enable="false") as cluster:
        yield cluster


def test_without_verification_only_added_partitions_are_safe(unverified: TransactionCluster) -> None:
    """Why the handle of a shared transaction waits, in the old flow, until all its partitions are added."""
    with RawBroker(unverified.kafka.bootstrap_servers) as broker:
        for added, code, visible in (
            ((0,), ErrorCode.NONE, [b"ZOMBIE-0", b"v-0"]),
            ((0, 1), ErrorCode.INVALID_PRODUCER_EPOCH, [b"v-0"]),
        ):
            topic = unverified.kafka.create_topic(partitions=2)
            raw = RawTransaction(unverified, broker)
            zombie = raw.begin(topic, added)
            assert raw.produce_code(topic, zombie, 0) == ErrorCode.NONE
            raw.init()
            raw.cluster.logs(topic)
            assert raw.produce_code(topic, zombie, 0, partition=1, text="ZOMBIE") == code
            raw.add(topic, (1,))
            assert raw.produce_code(topic, raw.producer, 0, partition=1) == ErrorCode.NONE
            assert raw.end_code(raw.producer, is_commit=True) == ErrorCode.NONE
            assert unverified.committed(topic)[1] == visible


def test_without_verification_a_late_produce_hangs(
    unverified: TransactionCluster,
) -> None:
    topic = unverified.kafka.create_topic(partitions=1)
    with RawBroker(unverified.kafka.bootstrap_servers) as broker:
        raw = RawTransaction(unverified, broker)
        producer = raw.begin(topic)
        assert raw.produce_code(topic, producer, 0) == ErrorCode.NONE
        assert raw.end_code(producer, is_commit=True) == ErrorCode.NONE
        unverified.logs(topic)
        assert raw.produce_code(topic, producer, 1, text="late") == ErrorCode.NONE
        assert broker.transaction_state(raw.name).transaction_state == "CompleteCommit"
        fetched = broker.fetch(topic, isolation_level=1)
        assert fetched.last_stable_offset < fetched.high_watermark
        raw.init()
        assert broker.fetch(topic, isolation_level=1).last_stable_offset == fetched.last_stable_offset
        raw.add(topic)
        assert raw.end_code(raw.producer, is_commit=False) == ErrorCode.NONE
        assert unverified.committed(topic) == [[b"v-0"]]


# ---------------------------------------------------------------------------------------------------------- sequences


def test_repeats_and_gaps(raw: RawTransaction, topic: str) -> None:
    producer = raw.begin(topic)
    for number in range(7):
        assert raw.produce(topic, producer, 10 * number, 10).base_offset == 10 * number
    for number in range(2, 7):
        again = raw.produce(topic, producer, 10 * number, 10, text="other bytes")
        assert (again.error_code, again.base_offset) == (0, 10 * number), "within the last five, whatever it holds"
    wrong = {
        "six back": (10, 10),
        "shorter": (60, 5),
        "longer": (60, 20),
        "overlapping": (65, 10),
        "gap": (80, 10),
    }
    answers = {name: raw.produce_code(topic, producer, *cut) for name, cut in wrong.items()}
    assert answers == dict.fromkeys(wrong, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert raw.end_code(producer, is_commit=True) == ErrorCode.NONE
    assert len(raw.cluster.committed(topic)[0]) == 70


def test_a_first_batch_that_does_not_begin_at_zero(raw: RawTransaction, topic: str) -> None:
    """Why nothing is sent to a partition before its first batch is acknowledged: the old flow would take the second."""
    producer = raw.begin(topic)
    assert raw.produce_code(topic, producer, 5) == (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if raw.is_new_flow else ErrorCode.NONE
    )
    assert raw.end_code(producer, is_commit=False) == ErrorCode.NONE


@pytest.mark.parametrize("text", ["v", "other"])
def test_two_writers_with_the_same_cuts_are_taken_for_one(raw: RawTransaction, topic: str, text: str) -> None:
    """Why a partition has one writer: the broker compares numbers, and keeps a mixture."""
    producer = raw.begin(topic)
    with RawBroker(raw.cluster.kafka.bootstrap_servers) as broker:
        other = RawTransaction(raw.cluster, broker, raw.name)
        first = [raw.produce_code(topic, producer, 0, 5), other.produce_code(topic, producer, 0, 5, text=text)]
        second = [other.produce_code(topic, producer, 5, 5, text=text), raw.produce_code(topic, producer, 5, 5)]
        different = other.produce_code(topic, producer, 7, 5, text=text)
    assert first == second == [0, 0]
    assert different == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "other cuts: one of them stops"
    assert raw.end_code(producer, is_commit=True) == ErrorCode.NONE
    expected = [b"v-%d" % number for number in range(5)] + [
        b"%s-%d" % (text.encode(), number) for number in range(5, 10)
    ]
    assert raw.cluster.committed(topic)[0] == expected


# ---------------------------------------------------------------------------------------- ends, time-outs and offsets


def test_the_same_end_again_and_the_other_one(raw: RawTransaction, topic: str) -> None:
    producer = raw.begin(topic)
    assert raw.produce_code(topic, producer, 0) == ErrorCode.NONE
    first, again = raw.end(producer, is_commit=True), raw.end(producer, is_commit=True)
    assert first.error_code == again.error_code == ErrorCode.NONE
    if raw.is_new_flow:
        assert first.producer_epoch == again.producer_epoch == producer.producer_epoch + 1
    assert raw.end_code(producer, is_commit=False) == 48


def test_the_end_of_nothing(raw: RawTransaction) -> None:
    assert raw.init()[-1] == 0
    assert raw.end_code(raw.producer, is_commit=True) == 48
    answer = raw.end(raw.producer, is_commit=False)
    if raw.is_new_flow:
        assert (answer.error_code, answer.producer_epoch) == (0, raw.producer.producer_epoch + 1)
    else:
        assert answer.error_code == ErrorCode.INVALID_TXN_STATE


def test_after_an_end_the_next_transaction_begins_or_waits(raw: RawTransaction, topic: str) -> None:
    producer = raw.begin(topic, (0, 1))
    for partition in range(2):
        assert raw.produce_code(topic, producer, 0, partition=partition) == ErrorCode.NONE
    answer = raw.end(producer, is_commit=True)
    if raw.is_new_flow:
        following = Producer(answer.producer_id, answer.producer_epoch)
        assert raw.produce_code(topic, following, 0) == 0, "the broker waits by itself"
        assert raw.end_code(following, is_commit=True) == ErrorCode.NONE
    else:
        codes = [raw.add_code(producer, topic)]
        while codes[-1] == 51:
            codes.append(raw.add_code(producer, topic))
        assert codes[-1] == 0
        assert raw.end_code(producer, is_commit=False) == ErrorCode.NONE
    assert set(raw.init()) <= {51, 0}
    assert len(raw.cluster.committed(topic)[1]) == 1


def test_offsets_alone_are_a_transaction(raw: RawTransaction, topic: str) -> None:
    group = raw.cluster.new_id()
    assert raw.init()[-1] == 0
    if not raw.is_new_flow:
        assert raw.add_offsets_code(raw.producer, group) == ErrorCode.NONE
    assert raw.offsets_code(raw.producer, group, topic) == ErrorCode.NONE
    assert raw.end_code(raw.producer, is_commit=True) == ErrorCode.NONE


def test_offsets_that_are_refused(raw: RawTransaction, topic: str) -> None:
    group = raw.cluster.new_id()
    assert raw.init()[-1] == 0
    if not raw.is_new_flow:
        assert raw.offsets_code(raw.producer, group, topic, 4) == 120, "AddOffsetsToTxn was not sent"
        assert raw.offsets_code(raw.producer, group, topic, 3) == 48
        assert raw.add_offsets_code(raw.producer, group) == ErrorCode.NONE
    refused = {
        "long text": raw.offsets_code(raw.producer, group, topic, metadata="x" * 4097),
        "no topic": raw.offsets_code(raw.producer, group, "there-is-no-such-topic"),
        "generation without member": raw.offsets_code(raw.producer, group, topic, generation_id_or_member_epoch=5),
    }
    assert refused == {"long text": 12, "no topic": 3, "generation without member": 25}
    assert raw.offsets_code(raw.producer, group, topic, metadata="x" * 4096) == ErrorCode.NONE
    assert raw.end_code(raw.producer, is_commit=True) == ErrorCode.NONE


def test_an_unknown_group_has_no_offset_and_no_error(raw: RawTransaction, topic: str) -> None:
    group = raw.cluster.new_id()
    raw.find(0, group)
    asked = messages.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
    request = messages.OffsetFetchRequest(group_id=group, topics=[asked], require_stable=True)
    found = raw.broker.ask_until(request, 7, lambda answer: answer.error_code).topics[0].partitions[0]
    assert (found.error_code, found.committed_offset) == (0, -1)


def test_after_the_time_out(raw: RawTransaction, topic: str) -> None:
    producer = raw.begin(topic, timeout_ms=300)
    assert raw.produce_code(topic, producer, 0) == ErrorCode.NONE
    while raw.broker.transaction_state(raw.name).transaction_state != "CompleteAbort":
        time.sleep(0.05)
    state = raw.broker.transaction_state(raw.name)
    assert (state.producer_id, state.producer_epoch) == (producer.producer_id, producer.producer_epoch + 1)
    answers = {
        "Produce": raw.produce_code(topic, producer, 1),
        "TxnOffsetCommit": raw.offsets_code(producer, "g", topic),
        "AddPartitionsToTxn": raw.add_code(producer, topic),
        "commit": raw.end_code(producer, is_commit=True),
        "abort": raw.end_code(producer, is_commit=False),
    }
    ends = {"commit": 48, "abort": 0} if raw.is_new_flow else {"commit": 90, "abort": 90}
    assert answers == {"Produce": 47, "TxnOffsetCommit": 47, "AddPartitionsToTxn": 90, **ends}
    # The new flow remembers the epoch it took away, the old one does not: there the one it left is to be named.
    assert raw.init(producer)[-1] == (0 if raw.is_new_flow else 90)
    named = producer._replace(producer_epoch=producer.producer_epoch + 1)
    assert raw.init(named)[-1] == 0
