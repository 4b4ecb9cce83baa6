# SPDX-License-Identifier: Apache-2.0
"""Members of classic groups on a real broker, compared with Kafka's own consumer, librdkafka's and aiokafka's."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest
from group_member import GroupMember, partitions_of, wait_until, wait_until_stable
from java_members import JavaMember
from other_members import HEARTBEAT_MS, SESSION_MS, AiokafkaMember, ConfluentMember

from kcodec.client import Consumer
from kcodec.consumer.assignors import GroupMember as GroupedMember
from kcodec.consumer.assignors import Shares, Topics
from kcodec.consumer.group.rebalance import Heartbeat
from kcodec.errors import BrokerError
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode
from kcodec.testing.kafka import ApacheKafka

_numbers = count()
PARTITIONS = 8
JAVA_STRATEGIES = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}
# Who knows which assignor, in addition to ours and Java's.
OTHERS: dict[str, list[Callable[..., Any]]] = {
    "range": [ConfluentMember, AiokafkaMember],
    "roundrobin": [ConfluentMember, AiokafkaMember],
    "sticky": [AiokafkaMember],
    "cooperative-sticky": [ConfluentMember],
}
Start = Callable[..., GroupMember]


@pytest.fixture
def group() -> str:
    return f"classic-{next(_numbers)}"


@pytest.fixture
def start(apache_kafka: ApacheKafka, group: str) -> Iterator[Start]:
    members: list[GroupMember] = []

    def start(*topics: str, **settings: Any) -> GroupMember:
        members.append(GroupMember(apache_kafka.bootstrap_servers, group, topics, **settings))
        return members[-1]

    yield start
    for member in members:
        member.close()


def java_member(kafka: ApacheKafka, group: str, topic: str, strategy: str) -> JavaMember:
    properties = {
        "group.protocol": "classic",
        "partition.assignment.strategy": JAVA_STRATEGIES[strategy],
        "heartbeat.interval.ms": str(HEARTBEAT_MS),
        "session.timeout.ms": str(SESSION_MS),
    }
    return JavaMember(kafka.bootstrap_servers, group, [topic], **properties)


@pytest.mark.parametrize("strategy", JAVA_STRATEGIES)
def test_a_group_with_members_of_other_clients_shares_all_and_nothing_twice(
    apache_kafka: ApacheKafka, group: str, start: Start, strategy: str
) -> None:
    """Ours leads at first; when it goes, another client's member leads us."""
    topic = apache_kafka.create_topic(partitions=PARTITIONS)
    wanted = partitions_of(**{topic: PARTITIONS})
    ours = [start(topic, partition_assignment_strategy=(strategy,), session_timeout=6.0)]
    wait_until_stable(ours, wanted)
    with ExitStack() as stack:
        others = [stack.enter_context(java_member(apache_kafka, group, topic, strategy))]
        others += [
            stack.enter_context(kind(apache_kafka.bootstrap_servers, group, [topic], strategy))
            for kind in OTHERS[strategy]
        ]
        ours.append(start(topic, partition_assignment_strategy=(strategy,), session_timeout=6.0))

        def is_shared() -> bool:
            shares = [member.owned for member in ours] + [member.owned() for member in others]
            return all(shares) and sorted(one for share in shares for one in share) == wanted

        wait_until(is_shared, "all members, ours leading, own a part and together everything")
        ours.pop(0).close()
        wait_until(is_shared, "the same when ours has left")


def test_two_eager_members_and_a_forced_heartbeat(apache_kafka: ApacheKafka, start: Start) -> None:
    topic = apache_kafka.create_topic(partitions=4)
    wanted = partitions_of(**{topic: 4})
    one = start(topic)
    wait_until_stable([one], wanted)
    assert one.run(one.membership.force_heartbeat(5.0)) is Heartbeat.OK
    one.is_polling = False
    two = start(topic)
    wait_until(
        lambda: one.run(one.membership.force_heartbeat(5.0)) is Heartbeat.REBALANCE_IN_PROGRESS, "the rebalance begins"
    )
    old = one.membership.group_metadata
    assert one.owned == set(wanted)
    one.is_polling = True
    wait_until_stable([one, two], wanted)
    assert len(one.owned) == len(two.owned) == 2
    assert one.membership.group_metadata.generation_id == old.generation_id + 1
    assert one.reported("revoke") == [frozenset(wanted)]
    assert not one.membership.group_lock.is_held


def test_a_cooperative_hand_over_never_has_two_owners(apache_kafka: ApacheKafka, start: Start) -> None:
    topic = apache_kafka.create_topic(partitions=6)
    wanted = partitions_of(**{topic: 6})
    strategy = ("cooperative-sticky",)
    one = start(topic, partition_assignment_strategy=strategy)
    wait_until_stable([one], wanted)
    one.revoke_seconds = 0.3
    two = start(topic, partition_assignment_strategy=strategy)
    # Before the first owner has noticed the second generation, it owns everything, and the group looks stable.
    wait_until(lambda: bool(two.owned), "the new member owns partitions")
    wait_until_stable([one, two], wanted)
    (given_up,) = one.reported("revoke")
    assert given_up == two.owned
    assert len(given_up) == 3
    revoked_at = next(seconds for seconds, what, _, _ in one.events if what == "revoke")
    assigned_at = next(seconds for seconds, what, parts, _ in two.events if what == "assign" and parts)
    assert assigned_at > revoked_at


def test_a_static_member_comes_back_without_a_rebalance_and_fences_its_double(
    apache_kafka: ApacheKafka, start: Start
) -> None:
    topic = apache_kafka.create_topic(partitions=4)
    wanted = partitions_of(**{topic: 4})
    one = start(topic, group_instance_id="one")
    two = start(topic, group_instance_id="two")
    wait_until_stable([one, two], wanted)
    before = two.membership.group_metadata
    had = one.owned
    one.close()
    again = start(topic, group_instance_id="one")
    wait_until_stable([again, two], wanted)
    assert again.owned == had
    assert two.membership.group_metadata == before
    double = start(topic, group_instance_id="one")
    wait_until(lambda: again.membership.error is not None, "the older of two is fenced")
    assert isinstance(again.membership.error, BrokerError)
    assert again.membership.error.code == ErrorCode.FENCED_INSTANCE_ID
    assert again.reported("lose") == [had]
    wait_until_stable([double, two], wanted)


def test_a_pattern_follows_new_topics_and_partitions(apache_kafka: ApacheKafka, start: Start) -> None:
    prefix = f"pattern-{time.time_ns()}"
    apache_kafka.create_topic(f"{prefix}-a", partitions=1)
    one = start(pattern=f"{prefix}-.", client={"metadata_max_age_ms": 300})
    wait_until_stable([one], partitions_of(**{f"{prefix}-a": 1}))
    apache_kafka.create_topic(f"{prefix}-b", partitions=2)
    apache_kafka.create_topic(f"{prefix}-bb", partitions=2)
    wait_until_stable([one], partitions_of(**{f"{prefix}-a": 1, f"{prefix}-b": 2}))


def test_a_member_that_is_stuck_leaves_with_its_reason_and_comes_back(apache_kafka: ApacheKafka, start: Start) -> None:
    topic = apache_kafka.create_topic(partitions=2)
    wanted = partitions_of(**{topic: 2})
    one = start(topic, max_poll_interval=0.8)
    wait_until_stable([one], wanted)
    one.is_polling = False
    wait_until(lambda: bool(one.reported("lose")), "partitions are lost")
    two = start(topic)
    wait_until_stable([two], wanted)
    one.is_polling = True
    wait_until(lambda: len(one.owned) == len(two.owned) == 1, "both have one")


def test_a_group_that_was_joined_by_another_protocol_type_is_refused(apache_kafka: ApacheKafka, start: Start) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    one = start(topic, partition_assignment_strategy=("range",))
    wait_until_stable([one], [TopicPartition(topic, 0)])
    two = start(topic, partition_assignment_strategy=("roundrobin",))
    wait_until(lambda: two.membership.error is not None, "no assignor in common")
    assert isinstance(two.membership.error, BrokerError)
    assert two.membership.error.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class FirstTakesAll:
    """An assignor of one's own: everything to the member with the smallest id."""

    name, is_cooperative = "first-takes-all", False

    def user_data(self, topics: Collection[str]) -> bytes | None:
        return None

    def on_assignment(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        self.reported = list(partitions)

    def assign(self, topics: Topics, members: Sequence[GroupedMember]) -> Shares:
        first = min(member.member_id for member in members)
        shares: Shares = {member.member_id: [] for member in members}
        shares[first] = [TopicPartition(topic, number) for topic, parts in topics.items() for number in parts]
        return shares


def test_a_consumer_takes_an_assignor_of_ones_own(apache_kafka: ApacheKafka, group: str) -> None:
    topic = apache_kafka.create_topic(partitions=3)
    assignor = FirstTakesAll()
    with Consumer(
        bootstrap_servers=apache_kafka.bootstrap_servers, group_id=group, partition_assignment_strategy=[assignor]
    ) as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 10
        while not consumer.assignment() and time.monotonic() < deadline:
            consumer.poll(0.1)
        assert sorted(consumer.assignment()) == partitions_of(**{topic: 3}) == sorted(assignor.reported)
