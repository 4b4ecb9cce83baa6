# SPDX-License-Identifier: Apache-2.0
"""Members of KIP-848 groups on a real broker, compared with Kafka's own consumer and librdkafka's.

Each group has settings of its own: heartbeats close together, and short sessions where a test waits for their end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest
from client_runners import Threaded
from java_members import JavaMember

from kcodec.client import Admin, ConfigResource
from kcodec.consumer.group.classic.membership import ClassicMembership
from kcodec.consumer.group.modern.membership import ConsumerMembership
from kcodec.consumer.group.rebalance import Heartbeat, Membership
from kcodec.consumer.options import ConsumerSettings
from kcodec.flow import Flow, Task
from kcodec.offsets import ConsumerGroupMetadata, TopicPartition
from kcodec.session.group_session_timeout import group_session_timeout
from kcodec.testing.kafka import ApacheKafka

PATIENCE = 15.0
CONSUMER = {"group.protocol": "consumer"}
# As Kafka names them for a group. A broker of these tests allows less than others would.
QUICK = {"consumer.heartbeat.interval.ms": "150", "consumer.assignment.interval.ms": "0"}
MEMBERSHIPS: dict[str, Any] = {"consumer": ConsumerMembership, "classic": ClassicMembership}


class Reader:
    """In place of a consumer: does at once what the membership says, and remembers when."""

    def __init__(self) -> None:
        self.owned: frozenset[TopicPartition] = frozenset()
        self.reported: list[tuple[str, frozenset[TopicPartition]]] = []

    def until_polled(self) -> Flow[None]:
        yield from ()

    def revoke(self, partitions: Iterable[TopicPartition]) -> Flow[None]:
        yield from self._tell("revoked", frozenset(partitions))
        self.owned -= self.reported[-1][1]

    def lose(self, partitions: Iterable[TopicPartition]) -> Flow[None]:
        yield from self._tell("lost", frozenset(partitions))
        self.owned -= self.reported[-1][1]

    def assign(self, added: Iterable[TopicPartition], owned: Iterable[TopicPartition]) -> Flow[None]:
        yield from self._tell("assigned", frozenset(added))
        self.owned = frozenset(owned)

    def _tell(self, kind: str, partitions: frozenset[TopicPartition]) -> Flow[None]:
        self.reported.append((kind, partitions))
        yield from ()


class Member:
    """One of ours, on a thread of its own."""

    def __init__(
        self, kafka: ApacheKafka, group: str, topics: Iterable[str], pattern: str | None = None, **settings: Any
    ) -> None:
        self.runner = Threaded(kafka.bootstrap_servers, request_timeout_ms=5000)
        self.reader = Reader()
        client = self.runner.client
        kind = MEMBERSHIPS[settings.setdefault("group_protocol", "consumer")]
        self.membership: Membership = kind(
            client.cluster,
            ConsumerSettings(group_id=group, retry_backoff=client.options.retry_backoff, **settings),
            self.reader,
        )
        self.task: Task[None] | None = None
        self.runner.io_loop.post(self._start)
        self.runner.io_loop.post(lambda: self.membership.subscribe(topics, pattern))

    def _start(self) -> None:
        self.task = self.runner.client.scheduler.spawn(self.membership.run(), "membership")

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return self.reader.owned

    def close(self, *, leave: bool = True) -> None:
        if leave and not self.runner.io_loop.is_closed:
            self.runner.run(self.membership.leave(5.0, "close"))
        self.runner.close()


@pytest.fixture(scope="module")
def kafka(apache_kafka: ApacheKafka) -> ApacheKafka:
    return apache_kafka


@pytest.fixture
def admin(kafka: ApacheKafka) -> Iterator[Admin]:
    with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def topic(kafka: ApacheKafka, admin: Admin) -> str:
    """A topic of four partitions, and the settings of the group of the same name."""
    name = kafka.create_topic(partitions=4)  # it waits for leaders: a pattern is matched again after 10 s only
    configure(admin, name)
    return name


def configure(admin: Admin, group: str, **settings: str) -> None:
    changes = QUICK | {name.replace("_", "."): value for name, value in settings.items()}
    admin.alter_configs({ConfigResource.group(group): changes})


@pytest.fixture
def enter(kafka: ApacheKafka) -> Iterator[Callable[..., Member]]:
    members: list[Member] = []

    def enter(group: str, topics: Iterable[str] = (), pattern: str | None = None, **settings: Any) -> Member:
        members.append(Member(kafka, group, topics, pattern, **settings))
        return members[-1]

    yield enter
    for member in members:
        member.close()


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition of another thread."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def partitions(topic: str, count: int = 4) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for number in range(count))


def test_a_second_member_gets_its_share_and_the_first_goes_on_with_the_rest(topic: str, enter: Any) -> None:
    first = enter(topic, [topic])
    until(lambda: first.owned == partitions(topic), "the first has all")
    second = enter(topic, [topic])
    until(lambda: len(second.owned) == 2, "the second has its share")
    until(lambda: first.membership.is_stable and second.membership.is_stable, "both are stable")
    assert first.owned | second.owned == partitions(topic)
    assert not first.owned & second.owned
    assert [(kind, len(what)) for kind, what in first.reader.reported if what] == [("assigned", 4), ("revoked", 2)]
    assert first.membership.group_metadata.generation_id == second.membership.group_metadata.generation_id
    second.close()
    until(lambda: first.owned == partitions(topic), "the first has all again")
    assert [kind for kind, what in first.reader.reported if what] == ["assigned", "revoked", "assigned"]


def test_ours_javas_and_librdkafkas_share_a_group(kafka: ApacheKafka, admin: Admin, topic: str, enter: Any) -> None:
    from confluent_kafka import Consumer

    theirs = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": topic,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        theirs.subscribe([topic])
        ours = enter(topic, [topic])
        with JavaMember(kafka.bootstrap_servers, topic, [topic], **CONSUMER) as java:

            def owned() -> list[frozenset[TopicPartition]]:
                theirs.poll(0.02)
                found = frozenset(TopicPartition(one.topic, one.partition) for one in theirs.assignment())
                return [ours.owned, found, java.owned()]

            def is_shared() -> bool:
                shares = owned()
                return sorted(map(len, shares)) == [1, 1, 2] and frozenset().union(*shares) == partitions(topic)

            until(is_shared, "three members have a share each")
            (group,) = admin.describe_groups([topic]).values()
            assert len(group.members) == 3
            ours.close()
            until(lambda: sum(map(len, owned()[1:])) == 4, "the others have what was ours")
    finally:
        theirs.close()


def test_a_pattern_is_matched_by_the_broker(admin: Admin, topic: str, enter: Any) -> None:
    member = enter(topic, pattern=f"{topic}(-more)?")
    until(lambda: member.owned == partitions(topic), "the topic that matches is read")
    assert member.runner.client.cluster.leader(topic, 0) is not None
    wrong = enter(topic, pattern="(")
    until(lambda: wrong.membership.error is not None, "an invalid pattern is refused")
    assert "INVALID_REGULAR_EXPRESSION" in str(wrong.membership.error)


def test_a_topic_created_after_the_join_is_picked_up(kafka: ApacheKafka, topic: str, enter: Any) -> None:
    """The broker matches the pattern, and again after a topic was created; at most every 10 s, so this test waits."""
    member = enter(topic, pattern=f"{topic}(-more)?")
    until(lambda: member.owned == partitions(topic), "the topic that matches is read")
    more, other = f"{topic}-more", f"{topic}-none"
    kafka.create_topic(more, partitions=2)
    kafka.create_topic(other, partitions=1)
    both = partitions(topic) | {TopicPartition(more, number) for number in range(2)}
    until(lambda: member.owned == both, "the topic that was created later is read, too")


def test_a_static_member_that_comes_again_has_what_it_had(topic: str, enter: Any) -> None:
    other = enter(topic, [topic], group_instance_id="other")
    first = enter(topic, [topic], group_instance_id="one")
    until(lambda: (len(other.owned), len(first.owned)) == (2, 2), "both have their share")
    had, reported = first.owned, len(other.reader.reported)
    usurper = enter(topic, [topic], group_instance_id="one")
    until(lambda: usurper.membership.error is not None, "the id is in use")
    assert "UNRELEASED_INSTANCE_ID" in str(usurper.membership.error)
    first.close()
    again = enter(topic, [topic], group_instance_id="one")
    until(lambda: again.owned == had, "it has what it had")
    assert len(other.reader.reported) == reported
    assert again.membership.member_id != first.membership.member_id


def test_one_whose_session_ended_loses_all_and_comes_again(admin: Admin, topic: str, enter: Any) -> None:
    configure(admin, topic, consumer_session_timeout_ms="1500")
    member = enter(topic, [topic])
    until(lambda: member.owned == partitions(topic), "it has all")
    before = member.membership.group_metadata
    member.runner.io_loop.post(lambda: time.sleep(2.5))  # as SIGSTOP would
    until(lambda: len([kind for kind, what in member.reader.reported if what]) >= 3, "it came again")
    assert [kind for kind, what in member.reader.reported if what][:3] == ["assigned", "lost", "assigned"]
    after = member.membership.group_metadata
    assert after.member_id == before.member_id
    assert after.generation_id > before.generation_id
    assert member.runner.run(member.membership.force_heartbeat(5.0)) is Heartbeat.OK


def test_the_session_time_out_is_the_groups_or_the_brokers(admin: Admin, topic: str, enter: Any) -> None:
    configure(admin, topic, consumer_session_timeout_ms="7000")
    runner = enter("nobody").runner
    own = runner.run(group_session_timeout(runner.client.cluster, topic, 5.0))
    assert (own.session_timeout, own.heartbeat_interval, own.source) == (7.0, 0.15, "group")
    default = runner.run(group_session_timeout(runner.client.cluster, "never-configured", 5.0))
    assert (default.session_timeout, default.heartbeat_interval) == (45.0, 5.0)


def test_a_group_moves_from_the_classic_protocol_without_a_stop(kafka: ApacheKafka, topic: str, enter: Any) -> None:
    classic = {"group.protocol": "classic", "heartbeat.interval.ms": "200"}
    with JavaMember(kafka.bootstrap_servers, topic, [topic], **classic) as java:
        until(lambda: java.owned() == partitions(topic), "the classic member has all")
        ours = enter(topic, [topic])
        until(lambda: (len(java.owned()), len(ours.owned)) == (2, 2), "both protocols in one group")
        assert java.owned() | ours.owned == partitions(topic)
        assert ours.membership.group_metadata.generation_id > 0
    until(lambda: ours.owned == partitions(topic), "the classic member is gone")


def _has_all(member: Any, topic: str) -> bool:
    return bool(member.owned == partitions(topic))


def _have_two_each(one: Any, other: Any) -> bool:
    return (len(one.owned), len(other.owned)) == (2, 2)


def test_our_own_members_of_both_protocols_share_a_group(admin: Admin, topic: str, enter: Any) -> None:
    settings = {"group_protocol": "classic", "heartbeat_interval": 0.2}
    for strategy in (("range",), ("cooperative-sticky",)):
        group = f"{topic}-{strategy[0]}"
        configure(admin, group)
        old = enter(group, [topic], partition_assignment_strategy=strategy, **settings)
        until(partial(_has_all, old, topic), "the classic member has all")
        new = enter(group, [topic])
        until(partial(_have_two_each, old, new), f"both have a share: {strategy}")
        assert old.owned | new.owned == partitions(topic)
        old.close()
        until(partial(_has_all, new, topic), "the classic member is gone")
        new.close()


def test_offsets_in_a_transaction_are_fenced_by_the_member_epoch(kafka: ApacheKafka, topic: str, enter: Any) -> None:
    from dataclasses import replace

    from kcodec.client import Producer
    from kcodec.errors import BrokerError

    member = enter(topic, [topic])
    until(lambda: member.owned == partitions(topic), "it has all")
    metadata = member.membership.group_metadata
    with Producer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=topic) as producer:
        with producer.transaction() as transaction:
            transaction.send_offsets({TopicPartition(topic, 0): 5}, metadata)
        assert transaction.committed
        for wrong in (replace(metadata, generation_id=metadata.generation_id + 1), replace(metadata, member_id="x")):
            with pytest.raises(BrokerError), producer.transaction() as transaction:
                transaction.send_offsets({TopicPartition(topic, 0): 9}, wrong)
            assert transaction.committed is False
        # Nobody is let in: so one that lost its membership must go on naming who it was.
        with producer.transaction() as transaction:
            transaction.send_offsets({TopicPartition(topic, 0): 7}, ConsumerGroupMetadata(topic))
        assert transaction.committed
