# SPDX-License-Identifier: Apache-2.0
"""Each permission that a transaction needs, taken away on a real broker: the right exception names the resource, and
where an abort is enough the producer goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kcodec import ConsumerGroupMetadata, TopicPartition
from kcodec.client import Producer, Transaction, TransactionWriter, abort_transaction, commit_transaction
from kcodec.errors import AuthorizationError
from kcodec.testing.kafka import ApacheKafka

ID, GROUP = "the-id", "the-group"


@pytest.fixture(scope="module", params=[2, 0], ids=["version2", "version0"])
def guarded(request: pytest.FixtureRequest) -> Iterator[ApacheKafka]:
    """A broker on which nobody may do anything, and a topic; alice is given each permission by the tests."""
    with ApacheKafka(transaction_version=request.param, authorizer=True, sasl="PLAIN") as kafka:
        kafka.create_topic("the-topic", partitions=1)
        kafka.create_topic("the-other", partitions=1)
        yield kafka


NEEDED: dict[str, dict[str, Any]] = {
    "transactional id": {"operation": "Write", "transactional_id": ID},
    "topic": {"operation": "Write", "topic": "the-topic"},
    "group": {"operation": "Read", "group": GROUP},
    "topic of the offset": {"operation": "Read", "topic": "the-topic"},
}
RESOURCES = {"transactional id": ID, "topic": "the-topic", "group": GROUP, "topic of the offset": "the-topic"}


@pytest.fixture
def allowed(guarded: ApacheKafka) -> Iterator[Callable[..., None]]:
    """A function that gives alice all permissions but one."""
    given: list[dict[str, Any]] = []

    def allow(missing: str | None = None) -> None:
        for name, permission in NEEDED.items():
            if name != missing and permission not in given:
                guarded.allow("alice", **permission)
                given.append(permission)

    yield allow
    for permission in given:
        guarded.revoke("alice", **permission)


def options(kafka: ApacheKafka) -> dict[str, Any]:
    return {"bootstrap_servers": kafka.bootstrap_servers, **kafka.client_options("alice")}


def work(txn: Transaction) -> None:
    txn.send("the-topic", b"value").result(20)
    txn.send_offsets({TopicPartition("the-topic", 0): 1}, ConsumerGroupMetadata(GROUP))


def test_with_all_permissions_it_works(guarded: ApacheKafka, allowed: Callable[..., None]) -> None:
    allowed()
    with Producer(**options(guarded), transactional_id=ID) as producer:
        with producer.transaction() as txn:
            work(txn)
        assert txn.committed is True


@pytest.mark.parametrize("missing", ["topic", "group", "topic of the offset"])
def test_a_missing_permission_is_named_and_the_producer_continues(
    guarded: ApacheKafka, allowed: Callable[..., None], missing: str
) -> None:
    allowed(missing)
    with Producer(**options(guarded), transactional_id=ID, max_block_ms=5_000) as producer:
        with pytest.raises(AuthorizationError) as raised, producer.transaction() as txn:
            work(txn)
        assert (raised.value.resource, raised.value.remedy) == (RESOURCES[missing], "stop")
        assert txn.committed is False
        allowed()
        with producer.transaction() as txn:
            work(txn)
        assert txn.committed is True


def test_without_the_transactional_id_nothing_begins(guarded: ApacheKafka, allowed: Callable[..., None]) -> None:
    allowed("transactional id")
    with Producer(**options(guarded), transactional_id=ID) as producer:
        for call in (producer.init_transactions, producer.begin_transaction, producer.abort_transaction):
            with pytest.raises(AuthorizationError) as raised:
                call()
            assert raised.value.resource == ID


def test_a_handle_is_of_no_use_without_permissions(guarded: ApacheKafka, allowed: Callable[..., None]) -> None:
    """It is no secret that lets anybody in: bob has it and may not use it."""
    allowed()
    stranger = {"bootstrap_servers": guarded.bootstrap_servers, **guarded.client_options("bob")}
    partitions = [TopicPartition("the-topic", 0)]
    with (
        Producer(**options(guarded), transactional_id=ID) as producer,
        producer.transaction(partitions=partitions) as txn,
    ):
        handle = txn.handle
        for end in (commit_transaction, abort_transaction):
            with pytest.raises(AuthorizationError) as raised:
                end(handle, timeout=10, **stranger)
            assert raised.value.resource == ID
        with (
            pytest.raises(AuthorizationError),
            TransactionWriter(handle, partitions, max_block_ms=5_000, **stranger) as writer,
        ):
            writer.send("the-topic", b"of a stranger")
        with TransactionWriter(handle, partitions, **options(guarded)) as friend:
            friend.send("the-topic", b"of a friend")
    assert txn.committed is True
