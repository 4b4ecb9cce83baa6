# SPDX-License-Identifier: Apache-2.0
"""Every public call that takes `timeout`, ready to be called: what test_call_timeouts.py runs in virtual time and
prove_call_timeouts.py against a proxy.

`CALLS` maps "Class.method", or "Class.method[variant]", to a function that prepares the call on a `Stage` and returns
it. `public_calls` finds the calls in the public classes themselves, so that a new one cannot be forgotten.
"""

from __future__ import annotations

import inspect
import threading
import time
import uuid
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import kcodec.client
from kcodec import TopicPartition
from kcodec.testing.kafka import ApacheKafka

#: Timeout of preparations, which is never the one that is tested.
SECONDS = 30.0
#: asyncio programs await these objects: `exception` and `result` do not wait there.
NOT_ASYNC = {
    f"{name}.{call}" for name in ("Delivery", "TableDelivery", "TransactionCommit") for call in ("exception", "result")
}
TOPICS: dict[tuple[str, str], str] = {}
TOPICS_LOCK = threading.Lock()
Prepared = Callable[[], Any]


class Stage:
    """Topics, a group and clients of one run of one call.

    module: `kcodec.client`, or a stand-in with blocking forms of `kcodec.client.aio`. timeout: seconds of the call.
    """

    def __init__(self, kafka: ApacheKafka, module: Any, servers: str, timeout: float, group_protocol: str) -> None:
        self.kafka, self.module, self.servers, self.timeout = kafka, module, servers, timeout
        self.group_protocol = group_protocol
        self.name = f"timed-{uuid.uuid4().hex[:10]}"
        self.clients: list[Any] = []

    @property
    def topic(self) -> str:
        """A topic with one partition and three records, which all stages share: nothing more is written to it."""
        return self._shared_topic("read", 3)

    @property
    def target(self) -> str:
        """A topic to write to, which all stages share. Transactions may be open in it."""
        return self._shared_topic("written", 1)

    def _shared_topic(self, use: str, count: int) -> str:
        with TOPICS_LOCK:
            key = self.kafka.bootstrap_servers, use
            if key not in TOPICS:
                TOPICS[key] = self.kafka.create_topic(partitions=1)
                with kcodec.client.Producer(bootstrap_servers=self.kafka.bootstrap_servers, linger_ms=0) as producer:
                    for number in range(count):
                        producer.send(TOPICS[key], b"%d" % number, partition=0).result(SECONDS)
            return TOPICS[key]

    def new_topic(self) -> str:
        """A topic that only this stage has."""
        return self.kafka.create_topic(partitions=1)

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)

    @property
    def goal(self) -> TopicPartition:
        return TopicPartition(self.target, 0)

    def make(self, kind: str, **options: Any) -> Any:
        """A client of a public class."""
        found = getattr(self.module, kind)(bootstrap_servers=self.servers, **options)
        self.clients.append(found)
        return found

    def close(self) -> None:
        """End the clients without waiting for anything."""
        for client in reversed(self.clients):
            try:
                client.close(timeout=0.0)
            except Exception as error:  # noqa: BLE001  the run has ended, and brokers do not respond
                assert not isinstance(error, AssertionError)

    # Clients in the state in which the call is made

    def producer(self, **options: Any) -> Any:
        return self.make("Producer", transactional_id=self.name, max_block_ms=60_000, **options)

    def in_transaction(self, *, is_written: bool = True) -> Any:
        producer = self.producer(linger_ms=0)
        producer.begin_transaction(SECONDS)
        if is_written:
            producer.send(self.target, b"value", partition=0).result(SECONDS)
        return producer

    def block(self, **options: Any) -> tuple[Any, Any]:
        """A producer, and its transaction block that is open and has a record."""
        producer = self.producer(linger_ms=0)
        producer.init_transactions(SECONDS)
        block = producer.transaction(timeout=self.timeout, **options)
        block.__enter__()
        block.send(self.target, b"value", partition=0).result(SECONDS)
        return producer, block

    def consumer(self, *, is_assigned: bool = True, **options: Any) -> Any:
        options = {"group_id": self.name, "auto_offset_reset": "earliest", "fetch_max_wait_ms": 20, **options}
        consumer = self.make("Consumer", group_protocol=self.group_protocol, **options)
        if is_assigned:
            consumer.assign([self.partition])
        return consumer

    def member(self, **options: Any) -> Any:
        """A consumer that is a member of a group and has polled records that are not committed."""
        topic = self.topic
        consumer = self.consumer(is_assigned=False, **options)
        consumer.subscribe([topic])
        until_true(lambda: consumer.poll(0.5))
        return consumer

    def session(self) -> Any:
        """A group transact session that has its partition."""
        session = self.make(
            "GroupTransactSession",
            group_id=self.name,
            transactional_id=self.name,
            topics=[self.topic],
            group_protocol=self.group_protocol,
            fetch_max_wait_ms=20,
            linger_ms=0,
        )

        def has_read() -> bool:
            with session.transaction(SECONDS) as txn:
                found = bool(txn.poll(0.5))
                txn.abort()
            return found

        until_true(has_read)
        return session

    def session_block(self) -> tuple[Any, Any]:
        """A session, and its open transaction that has read and written."""
        session = self.session()
        block = session.transaction(self.timeout)
        block.__enter__()
        until_true(lambda: block.poll(0.5))
        block.send(self.target, b"value", partition=0).result(SECONDS)
        return session, block

    def handle(self) -> Any:
        """The handle of an open transaction, to whose topic its writer is to write."""
        producer = self.producer(linger_ms=0)
        producer.init_transactions(SECONDS)
        block = producer.transaction(partitions=[self.goal], timeout=SECONDS)
        block.__enter__()
        return block.handle

    def writer(self) -> Any:
        return self.module.TransactionWriter(self.handle(), [self.goal], bootstrap_servers=self.servers)


def seed_topics(kafka: ApacheKafka) -> None:
    """Make the topics that all stages share."""
    stage = Stage(kafka, kcodec.client, kafka.bootstrap_servers, SECONDS, "classic")
    assert stage.topic and stage.target


def until_true(condition: Callable[[], Any]) -> None:
    for _ in range(200):
        if condition():
            return
    raise AssertionError("not so after 200 attempts")


def leave(block: Any, error: BaseException | None = None) -> Any:
    """The end of a block."""
    return block.__exit__(type(error) if error is not None else None, error, None)


# The calls.

CALLS: dict[str, Callable[[Stage], Prepared]] = {}


def call(name: str) -> Callable[[Callable[[Stage], Prepared]], Callable[[Stage], Prepared]]:
    def note(prepare: Callable[[Stage], Prepared]) -> Callable[[Stage], Prepared]:
        CALLS[name] = prepare
        return prepare

    return note


@call("Producer.flush")
def _flush(stage: Stage) -> Prepared:
    producer = stage.make("Producer", linger_ms=5000)
    producer.send(stage.target, b"value", partition=0)
    return lambda: producer.flush(stage.timeout)


@call("Producer.flush[new topic]")
def _flush_new(stage: Stage) -> Prepared:
    topic = stage.kafka.create_topic(partitions=1)
    producer = stage.make("Producer", linger_ms=5000)

    def run() -> None:
        producer.send(topic, b"value", partition=0)
        producer.flush(stage.timeout)

    return run


@call("Producer.close")
def _close(stage: Stage) -> Prepared:
    producer = stage.make("Producer", linger_ms=5000)
    producer.send(stage.target, b"value", partition=0)
    return lambda: producer.close(stage.timeout)


@call("Producer.close[transaction]")
def _close_open(stage: Stage) -> Prepared:
    producer = stage.in_transaction()
    return lambda: producer.close(stage.timeout)


@call("Producer.init_transactions")
def _init(stage: Stage) -> Prepared:
    producer = stage.producer()
    return lambda: producer.init_transactions(stage.timeout)


@call("Producer.begin_transaction")
def _begin(stage: Stage) -> Prepared:
    producer = stage.producer()
    return lambda: producer.begin_transaction(stage.timeout)


@call("Producer.commit_transaction")
def _commit(stage: Stage) -> Prepared:
    producer = stage.in_transaction()
    return lambda: producer.commit_transaction(stage.timeout)


@call("Producer.commit_transaction_async")
def _commit_async(stage: Stage) -> Prepared:
    producer = stage.in_transaction()
    return lambda: producer.commit_transaction_async(stage.timeout).result()


@call("TransactionCommit.result")
def _commit_async_result(stage: Stage) -> Prepared:
    producer = stage.in_transaction()
    return lambda: producer.commit_transaction_async().result(stage.timeout)


@call("TransactionCommit.exception")
def _commit_async_exception(stage: Stage) -> Prepared:
    producer = stage.in_transaction()
    return lambda: producer.commit_transaction_async().exception(stage.timeout)


@call("Producer.commit_transaction[records]")
def _commit_records(stage: Stage) -> Prepared:
    topic = stage.target
    producer = stage.in_transaction(is_written=False)

    def run() -> None:
        producer.send(topic, b"value", partition=0)
        producer.commit_transaction(stage.timeout)

    return run


@call("Producer.abort_transaction")
def _abort(stage: Stage) -> Prepared:
    producer = stage.in_transaction()
    return lambda: producer.abort_transaction(stage.timeout)


def offsets(stage: Stage, send: Callable[..., Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # only the group id is passed, and no member must be fenced
        return send({stage.partition: 1}, stage.name, stage.timeout)


@call("Producer.send_offsets_to_transaction")
def _send_offsets(stage: Stage) -> Prepared:
    producer = stage.in_transaction()
    return lambda: offsets(stage, producer.send_offsets_to_transaction)


@call("Producer.transaction[begin]")
def _block_begin(stage: Stage) -> Prepared:
    producer = stage.producer()
    return lambda: producer.transaction(timeout=stage.timeout).__enter__()


@call("Producer.transaction[begin with partitions]")
def _block_begin_partitions(stage: Stage) -> Prepared:
    producer, partition = stage.producer(), stage.goal
    return lambda: producer.transaction(partitions=[partition], timeout=stage.timeout).__enter__()


@call("Producer.transaction[commit]")
def _block_commit(stage: Stage) -> Prepared:
    _, block = stage.block()
    return lambda: leave(block)


@call("Producer.transaction[commit of records]")
def _block_commit_records(stage: Stage) -> Prepared:
    _, block = stage.block()

    def run() -> None:
        block.send(stage.target, b"more", partition=0)
        leave(block)

    return run


@call("Producer.transaction[exception]")
def _block_exception(stage: Stage) -> Prepared:
    _, block = stage.block()
    return lambda: leave(block, RuntimeError("of the block"))


@call("Producer.transaction[abort]")
def _block_abort(stage: Stage) -> Prepared:
    _, block = stage.block()
    return lambda: block.abort()


@call("Transaction.send_offsets")
def _block_offsets(stage: Stage) -> Prepared:
    _, block = stage.block()
    return lambda: offsets(stage, block.send_offsets)


@call("Delivery.result")
def _delivery(stage: Stage) -> Prepared:
    producer = stage.make("Producer", linger_ms=0)
    topic = stage.target
    producer.partitions_for(topic)
    return lambda: producer.send(topic, b"value", partition=0).result(stage.timeout)


@call("Delivery.exception")
def _delivery_exception(stage: Stage) -> Prepared:
    producer = stage.make("Producer", linger_ms=0)
    topic = stage.target
    producer.partitions_for(topic)
    return lambda: producer.send(topic, b"value", partition=0).exception(stage.timeout)


@call("TableDelivery.exception")
def _table_exception(stage: Stage) -> Prepared:
    import pyarrow

    producer = stage.make("Producer", linger_ms=0)
    topic, table = stage.target, pyarrow.table({"value": [b"value"]})
    producer.partitions_for(topic)
    return lambda: producer.send_arrow(topic, table).exception(stage.timeout)


@call("TableDelivery.result")
def _table(stage: Stage) -> Prepared:
    import pyarrow

    producer = stage.make("Producer", linger_ms=0)
    topic, table = stage.target, pyarrow.table({"value": [b"value"]})
    producer.partitions_for(topic)
    return lambda: producer.send_arrow(topic, table).result(stage.timeout)


@call("TransactionWriter.flush")
def _writer_flush(stage: Stage) -> Prepared:
    writer = stage.writer()
    stage.clients.append(writer)

    def run() -> None:
        writer.send(stage.target, b"value")
        writer.flush(stage.timeout)

    return run


@call("TransactionWriter.close")
def _writer_close(stage: Stage) -> Prepared:
    writer = stage.writer()

    def run() -> None:
        writer.send(stage.target, b"value")
        writer.close(stage.timeout)

    return run


@call("commit_transaction")
def _commit_shared(stage: Stage) -> Prepared:
    handle, commit = stage.handle(), stage.module.commit_transaction
    return lambda: commit(handle, timeout=stage.timeout, bootstrap_servers=stage.servers)


@call("commit_transaction[offsets]")
def _commit_shared_offsets(stage: Stage) -> Prepared:
    from kcodec import ConsumerGroupMetadata

    handle, commit = stage.handle(), stage.module.commit_transaction
    more: dict[str, Any] = {
        "offsets": {stage.partition: 1},
        "group_metadata": ConsumerGroupMetadata(stage.name),
        "bootstrap_servers": stage.servers,
    }
    return lambda: commit(handle, timeout=stage.timeout, **more)


@call("begin_transaction")
def _begin_shared(stage: Stage) -> Prepared:
    begin, goal = stage.module.begin_transaction, stage.goal
    return lambda: begin(stage.name, partitions=[goal], timeout=stage.timeout, bootstrap_servers=stage.servers)


@call("Producer.release")
def _release(stage: Stage) -> Prepared:
    producer = stage.in_transaction()
    topic = stage.target

    def run() -> None:
        producer.send(topic, b"value", partition=0)
        producer.release(stage.timeout)

    return run


def _shared(stage: Stage) -> Any:
    """SharedTransactions without a connection."""
    found = stage.module.SharedTransactions(stage.name, stage.name, bootstrap_servers=stage.servers)
    stage.clients.append(found)
    return found


@call("SharedTransactions.begin")
def _shared_begin(stage: Stage) -> Prepared:
    shared, goal = _shared(stage), stage.goal
    return lambda: shared.begin([goal], stage.timeout)


@call("SharedTransactions.commit")
def _shared_commit(stage: Stage) -> Prepared:
    from kcodec.client import WriterReceipt

    shared = _shared(stage)
    handle, _ = shared.begin([stage.goal], SECONDS)
    receipts = [WriterReceipt({stage.goal: (0, -1)})]
    return lambda: shared.commit(handle, receipts, 1, stage.timeout)


@call("SharedTransactions.abort")
def _shared_abort(stage: Stage) -> Prepared:
    shared = _shared(stage)
    handle, _ = shared.begin([stage.goal], SECONDS)
    return lambda: shared.abort(handle, stage.timeout)


@call("SharedTransactions.close")
def _shared_close(stage: Stage) -> Prepared:
    shared = _shared(stage)
    shared.begin([stage.goal], SECONDS)
    return lambda: shared.close(stage.timeout)


@call("abort_transaction")
def _abort_shared(stage: Stage) -> Prepared:
    handle, abort = stage.handle(), stage.module.abort_transaction
    return lambda: abort(handle, timeout=stage.timeout, bootstrap_servers=stage.servers)


# Consumer


def of_consumer(
    name: str, run: Callable[[Stage, Any], Any], variant: str = "", *, has_polled: bool = False, **options: Any
) -> None:
    def prepare(stage: Stage) -> Prepared:
        consumer = stage.consumer(**options)
        if has_polled:
            until_true(lambda: consumer.poll(0.5))
        return lambda: run(stage, consumer)

    CALLS[f"Consumer.{name}{variant}"] = prepare


def of_member(name: str, run: Callable[[Stage, Any], Any], variant: str = "") -> None:
    def prepare(stage: Stage) -> Prepared:
        member = stage.member()
        return lambda: run(stage, member)

    CALLS[f"Consumer.{name}{variant}"] = prepare


of_consumer("beginning_offsets", lambda stage, it: it.beginning_offsets([stage.partition], timeout=stage.timeout))
of_consumer("end_offsets", lambda stage, it: it.end_offsets([stage.partition], timeout=stage.timeout))
of_consumer("offsets_for_times", lambda stage, it: it.offsets_for_times({stage.partition: 1}, timeout=stage.timeout))
of_consumer(
    "partitions_for", lambda stage, it: it.partitions_for(stage.topic, timeout=stage.timeout), is_assigned=False
)
of_consumer("position", lambda stage, it: it.position(stage.partition, timeout=stage.timeout))
of_consumer("positions", lambda stage, it: it.positions([stage.partition], timeout=stage.timeout))
of_consumer("lag", lambda stage, it: it.lag(timeout=stage.timeout))
of_consumer("committed", lambda stage, it: it.committed([stage.partition], timeout=stage.timeout))
of_consumer("commit", lambda stage, it: it.commit({stage.partition: 1}, timeout=stage.timeout))
of_consumer("poll", lambda stage, it: it.poll(stage.timeout))
of_consumer("poll_one", lambda stage, it: it.poll_one(stage.timeout))
of_consumer("poll_arrow", lambda stage, it: it.poll_arrow(stage.timeout))
of_consumer("close", lambda stage, it: it.close(stage.timeout), "[assigned]", has_polled=True)
of_consumer("unsubscribe", lambda stage, it: it.unsubscribe(stage.timeout), "[assigned]", has_polled=True)
of_member("close", lambda stage, it: it.close(stage.timeout))
of_member("unsubscribe", lambda stage, it: it.unsubscribe(stage.timeout))
of_member("poll", lambda stage, it: it.poll(stage.timeout), "[member]")
of_member("commit", lambda stage, it: it.commit(timeout=stage.timeout), "[member]")


@call("Consumer.poll[joining]")
def _poll_joining(stage: Stage) -> Prepared:
    topic = stage.topic
    consumer = stage.consumer(is_assigned=False)
    consumer.subscribe([topic])
    return lambda: consumer.poll(stage.timeout)


# Session


@call("GroupTransactSession.transaction[begin]")
def _session_begin(stage: Stage) -> Prepared:
    options = {"group_id": stage.name, "transactional_id": stage.name, "topics": [stage.topic]}
    session = stage.make("GroupTransactSession", group_protocol=stage.group_protocol, **options)
    return lambda: session.transaction(stage.timeout).__enter__()


@call("GroupTransactSession.transaction[commit]")
def _session_commit(stage: Stage) -> Prepared:
    _, block = stage.session_block()
    return lambda: leave(block)


@call("GroupTransactSession.transaction[commit of records]")
def _session_commit_records(stage: Stage) -> Prepared:
    _, block = stage.session_block()

    def run() -> None:
        block.send(stage.target, b"more", partition=0)
        leave(block)

    return run


@call("GroupTransactSession.transaction[exception]")
def _session_exception(stage: Stage) -> Prepared:
    _, block = stage.session_block()
    return lambda: leave(block, RuntimeError("of the block"))


@call("GroupTransactSession.transaction[abort]")
def _session_abort(stage: Stage) -> Prepared:
    _, block = stage.session_block()
    return lambda: block.abort()


@call("GroupTransactSession.close")
def _session_close(stage: Stage) -> Prepared:
    session = stage.session()
    return lambda: session.close(stage.timeout)


@call("GroupTransactSession.close[transaction]")
def _session_close_open(stage: Stage) -> Prepared:
    session, _ = stage.session_block()
    return lambda: session.close(stage.timeout)


@call("SessionTransaction.poll")
def _session_poll(stage: Stage) -> Prepared:
    _, block = stage.session_block()
    return lambda: block.poll(stage.timeout)


@call("SessionTransaction.poll_arrow")
def _session_poll_arrow(stage: Stage) -> Prepared:
    _, block = stage.session_block()
    return lambda: block.poll_arrow(stage.timeout)


# Admin


def of_admin(name: str, run: Callable[[Stage, Any], Any], variant: str = "") -> None:
    def prepare(stage: Stage) -> Prepared:
        admin = stage.make("Admin")
        if name != "create_topics":
            assert stage.topic and stage.target
        return lambda: run(stage, admin)

    CALLS[f"Admin.{name}{variant}"] = prepare


def with_timeout(run: Callable[[Stage, Any, float], Any]) -> Callable[[Stage, Any], Any]:
    return lambda stage, admin: run(stage, admin, stage.timeout)


def _admin_calls() -> None:
    from kcodec.admin.brokers import TopicPartitionReplica
    from kcodec.admin.quotas import ClientQuotaEntity
    from kcodec.client import (
        AclBinding,
        AclOperation,
        ConfigResource,
        NewTopic,
        ResourceType,
        ScramCredentialUpsertion,
    )

    def acl(stage: Stage) -> AclBinding:
        return AclBinding(ResourceType.TOPIC, stage.topic, "User:alice", AclOperation.READ)

    of_admin("close", lambda stage, it: it.close(stage.timeout))
    for name, run in {
        "abort_transaction": lambda s, it, t: it.abort_transaction(s.partition, 12345, 0, timeout=t),
        "alter_client_quotas": lambda s, it, t: it.alter_client_quotas(
            {ClientQuotaEntity(user=s.name): {"producer_byte_rate": 1e9}}, validate_only=True, timeout=t
        ),
        "alter_partition_reassignments": lambda s, it, t: it.alter_partition_reassignments(
            {s.partition: [1]}, timeout=t
        ),
        "alter_replica_log_dirs": lambda s, it, t: it.alter_replica_log_dirs(
            {TopicPartitionReplica(s.partition, 1): "/nowhere"}, timeout=t
        ),
        "alter_configs": lambda s, it, t: it.alter_configs(
            {ConfigResource.topic(s.topic): {"retention.ms": "100000"}}, timeout=t
        ),
        "alter_group_offsets": lambda s, it, t: it.alter_group_offsets(s.name, {s.partition: 1}, timeout=t),
        "alter_user_scram_credentials": lambda s, it, t: it.alter_user_scram_credentials(
            [ScramCredentialUpsertion(s.name, "secret", iterations=4096)], timeout=t
        ),
        "create_acls": lambda s, it, t: it.create_acls([acl(s)], timeout=t),
        "create_delegation_token": lambda s, it, t: it.create_delegation_token(timeout=t),
        "create_partitions": lambda s, it, t: it.create_partitions({s.new_topic(): 3}, timeout=t),
        "create_topics": lambda s, it, t: it.create_topics([NewTopic(s.name, num_partitions=1)], timeout=t),
        "delete_acls": lambda s, it, t: it.delete_acls([], timeout=t) or it.describe_acls(timeout=t),
        "delete_group_offsets": lambda s, it, t: it.delete_group_offsets(s.name, [s.partition], timeout=t),
        "delete_groups": lambda s, it, t: it.delete_groups([s.name], timeout=t),
        "delete_records": lambda s, it, t: it.delete_records({s.goal: 0}, timeout=t),
        "delete_topics": lambda s, it, t: it.delete_topics([s.new_topic()], timeout=t),
        "describe_acls": lambda s, it, t: it.describe_acls(timeout=t),
        "describe_client_quotas": lambda s, it, t: it.describe_client_quotas(timeout=t),
        "describe_delegation_tokens": lambda s, it, t: it.describe_delegation_tokens(timeout=t),
        "describe_log_dirs": lambda s, it, t: it.describe_log_dirs(timeout=t),
        "describe_quorum": lambda s, it, t: it.describe_quorum(timeout=t),
        "describe_cluster": lambda s, it, t: it.describe_cluster(timeout=t),
        "describe_configs": lambda s, it, t: it.describe_configs(
            [ConfigResource.topic(s.topic), ConfigResource.broker(1)], timeout=t
        ),
        "describe_features": lambda s, it, t: it.describe_features(timeout=t),
        "describe_group_lag": lambda s, it, t: it.describe_group_lag(s.name, [s.partition], timeout=t),
        "describe_groups": lambda s, it, t: it.describe_groups([s.name, f"{s.name}-2"], timeout=t),
        "describe_producers": lambda s, it, t: it.describe_producers([s.partition], timeout=t),
        "describe_topics": lambda s, it, t: it.describe_topics([s.topic], timeout=t),
        "describe_transactions": lambda s, it, t: it.describe_transactions([s.name], timeout=t),
        "describe_user_scram_credentials": lambda s, it, t: it.describe_user_scram_credentials(timeout=t),
        "elect_leaders": lambda s, it, t: it.elect_leaders([s.partition], timeout=t),
        "expire_delegation_token": lambda s, it, t: it.expire_delegation_token(b"none", timeout=t),
        "fence_producers": lambda s, it, t: it.fence_producers([s.name], timeout=t),
        "find_hanging_transactions": lambda s, it, t: it.find_hanging_transactions(topics=[s.topic], timeout=t),
        "find_abandoned_transactions": lambda s, it, t: it.find_abandoned_transactions(timeout=t),
        "find_stray_transactions": lambda s, it, t: it.find_stray_transactions(timeout=t),
        "list_config_resources": lambda s, it, t: it.list_config_resources(timeout=t),
        "list_partition_reassignments": lambda s, it, t: it.list_partition_reassignments(timeout=t),
        "list_share_group_offsets": lambda s, it, t: it.list_share_group_offsets(s.name, timeout=t),
        "list_group_offsets": lambda s, it, t: it.list_group_offsets(s.name, timeout=t),
        "list_groups": lambda s, it, t: it.list_groups(timeout=t),
        "list_offsets": lambda s, it, t: it.list_offsets({s.partition: "latest"}, timeout=t),
        "list_topics": lambda s, it, t: it.list_topics(timeout=t),
        "list_transactions": lambda s, it, t: it.list_transactions(timeout=t),
        "renew_delegation_token": lambda s, it, t: it.renew_delegation_token(b"none", timeout=t),
        "unregister_broker": lambda s, it, t: it.unregister_broker(99, timeout=t),
        "update_features": lambda s, it, t: it.update_features({"group.version": 1}, validate_only=True, timeout=t),
    }.items():
        of_admin(name, with_timeout(run))

    def with_open_transaction(name: str, run: Callable[[Any, float], Any]) -> None:
        def prepare(stage: Stage) -> Prepared:
            stage.in_transaction()
            time.sleep(0.01)  # older than max_transaction_timeout_ms below
            admin = stage.make("Admin")
            return lambda: run((stage, admin), stage.timeout)

        CALLS[f"Admin.{name}[open transaction]"] = prepare

    with_open_transaction(
        "find_hanging_transactions",
        lambda at, t: at[1].find_hanging_transactions(topics=[at[0].target], max_transaction_timeout_ms=0, timeout=t),
    )
    with_open_transaction(
        "find_abandoned_transactions", lambda at, t: at[1].find_abandoned_transactions(idle_ms=0, timeout=t)
    )


_admin_calls()


# The public classes.


def public_calls(module: ModuleType) -> set[str]:
    """The functions and methods of a public module that have a parameter `timeout`."""
    found = set()
    for name in module.__all__:
        value = getattr(module, name)
        if value is kcodec.client.Security:  # a value made of options, not a client
            continue
        members = inspect.getmembers(value, callable) if inspect.isclass(value) else [("", value)]
        for member, function in members:
            if member.startswith("_") or not callable(function):
                continue
            try:
                parameters = inspect.signature(function).parameters
            except (TypeError, ValueError):  # a class of C without a signature
                continue
            if "timeout" in parameters:
                found.add(f"{name}.{member}" if member else name)
    return found


def covered_calls() -> set[str]:
    """The same names, of CALLS."""
    return {name.partition("[")[0] for name in CALLS}
