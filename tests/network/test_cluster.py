# SPDX-License-Identifier: Apache-2.0
"""What a client believes of a cluster: leaders by epoch, topics that cannot be had, coordinators, in virtual time."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

import pytest

from kcodec.cluster.metadata import TOPIC_IDLE_SECONDS, Cluster
from kcodec.cluster.values import Broker, ClusterTimes
from kcodec.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    DeliveryTimeoutError,
    EncodeError,
    TransportError,
)
from kcodec.flow import ByVersion, Call, Done, Flow, Reply, sleep, wait
from kcodec.network.scheduler import Scheduler
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.metadata import (
    Coordinator,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TIMES = ClusterTimes(request=5.0, metadata_max_age=300.0, rebootstrap_trigger=60.0, backoff=lambda attempt, _: 0.1)
ID = UUID(int=7)


def metadata(*topics: MetadataResponseTopic, nodes: tuple[int, ...] = (1, 2), **fields: Any) -> MetadataResponse:
    brokers = [MetadataResponseBroker(node_id=node, host="host", port=9000 + node) for node in nodes]
    return MetadataResponse(brokers=brokers, controller_id=1, topics=list(topics), **fields)


def topic(
    name: str, leaders: dict[int, tuple[int, int]] | None = None, error: int = 0, topic_id: UUID = ID
) -> MetadataResponseTopic:
    partitions = [
        MetadataResponsePartition(partition_index=number, leader_id=leader, leader_epoch=epoch)
        for number, (leader, epoch) in (leaders or {}).items()
    ]
    return MetadataResponseTopic(error_code=error, name=name, topic_id=topic_id, partitions=partitions)


class World:
    """Answers calls from a function of the request, at once; time moves from timer to timer."""

    def __init__(self, *answers: Any) -> None:
        self.now = 0.0
        self.answers = list(answers)
        self.asked: list[Any] = []
        self.scheduler = Scheduler(lambda: self.now, self)
        self.cluster = Cluster(lambda: self.now, Random(1), TIMES)
        self.scheduler.spawn(self.cluster.keep_fresh(), "metadata")

    def start_call(self, call: Call, done: Done) -> Any:
        request = call.request.build(6) if type(call.request) is ByVersion else call.request
        self.asked.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            self.scheduler.call_soon(lambda: done(None, answer))
        else:
            self.scheduler.call_soon(lambda: done(Reply(answer, 12, 1), None))
        return lambda: None

    def run(self, flow: Flow[Any], until: float = 100.0) -> Any:
        task = self.scheduler.spawn(flow, "flow")
        task.when_done(lambda _: None)
        self.scheduler.run_ready()
        while not task.done and (when := self.scheduler.next_wakeup()) is not None and when <= until:
            self.now = max(when, self.now)
            self.scheduler.run_ready()
        assert task.done, "the flow did not end in time"
        if task.error:
            raise task.error
        return task.result


def test_leaders_and_partitions_are_known_after_the_first_answer() -> None:
    world = World(metadata(topic("a", {0: (1, 5), 1: (-1, 3)})))
    found = world.run(world.cluster.ensure_topic("a", 5.0))
    assert found.topic_id == ID and world.cluster.partitions("a") == 2
    assert (world.cluster.leader("a", 0), world.cluster.leader("a", 1)) == (1, None)
    assert [one.name for one in world.asked[0].topics] == ["a"]


@pytest.mark.parametrize(
    ("replicas", "offline", "text"),
    [
        ([1], [1], "; its replica is on broker 1 (offline); start an offline broker"),
        ([1, 2], [1], "; its replicas are on brokers 1 (offline) and 2; start an offline broker"),
        ([3, 2, 1], [3, 1], "; its replicas are on brokers 3 (offline), 2 and 1 (offline); start an offline broker"),
        ([1, 2], [], ""),
    ],
)
def test_the_error_of_a_missing_leader_names_the_offline_brokers(
    replicas: list[int], offline: list[int], text: str
) -> None:
    response = metadata(topic("a", {0: (-1, 3)}))
    response.topics[0].partitions[0].replica_nodes = replicas
    response.topics[0].partitions[0].offline_replicas = offline
    world = World(response)
    world.run(world.cluster.ensure_topic("a", 5.0))
    assert str(world.cluster.no_leader_error("a", 0)) == f"the partition has no known leader at the moment{text}"


def test_a_topic_requested_during_a_request_follows_at_once() -> None:
    """It is not missing: it was not in the request. Every short-lived producer begins like this."""

    class Busy(World):
        def start_call(self, call: Call, done: Done) -> Any:
            if not self.asked:
                self.cluster.add_topics(["a"])
            return super().start_call(call, done)

    world = Busy(
        metadata(), metadata(topic("a", error=ErrorCode.LEADER_NOT_AVAILABLE)), metadata(topic("a", {0: (1, 5)}))
    )
    world.cluster.request_update("the client starts")
    world.scheduler.run_ready()
    assert world.now == 0.0
    assert [[one.name for one in request.topics] for request in world.asked] == [[], ["a"]]
    world.run(world.cluster.ensure_topic("a", 5.0))
    assert world.now == pytest.approx(0.1), "what was requested and is missing is requested again after a pause"
    assert len(world.asked) == 3


def test_an_older_leader_epoch_is_not_believed_unless_the_topic_was_made_again() -> None:
    world = World(metadata(topic("a", {0: (1, 5)})))
    world.run(world.cluster.ensure_topic("a", 5.0))
    world.cluster.apply(Reply(metadata(topic("a", {0: (2, 4)})), 12, 1))
    assert world.cluster.leader("a", 0) == 1
    world.cluster.apply(Reply(metadata(topic("a", {0: (2, 6)})), 12, 1))
    assert world.cluster.leader("a", 0) == 2
    world.cluster.apply(Reply(metadata(topic("a", {0: (1, 0)}, topic_id=UUID(int=8))), 12, 1))
    assert world.cluster.leader("a", 0) == 1


def test_a_partition_that_a_response_leaves_out_stays_unless_the_topic_was_made_again() -> None:
    """Partitions are never removed from a topic, so the broker does not know an added one yet."""
    both = {0: (1, 5), 1: (2, 5)}
    world = World(metadata(topic("a", both)))
    world.run(world.cluster.ensure_topic("a", 5.0))
    world.cluster.apply(Reply(metadata(topic("a", {0: (3, 6)})), 12, 1))
    assert (world.cluster.leader("a", 0), world.cluster.leader("a", 1)) == (3, 2)
    world.cluster.apply(Reply(metadata(topic("a", {0: (1, 0)}, topic_id=UUID(int=8))), 12, 1))
    assert world.cluster.partitions("a") == 1
    world.cluster.apply(Reply(metadata(topic("a", error=3, topic_id=UUID(int=8))), 12, 1))
    assert world.cluster.partitions("a") is None
    no_id = UUID(int=0)
    world.cluster.apply(Reply(metadata(topic("a", both, topic_id=no_id)), 12, 1))
    world.cluster.apply(Reply(metadata(topic("a", {0: (1, 5)}, topic_id=no_id)), 12, 1))
    assert world.cluster.partitions("a") == 1, "without an id, the topic may be another one"


def test_a_topic_that_is_not_in_use_is_forgotten() -> None:
    """Its leaders are not updated any more, so the first request after an idle time would go to a former leader."""
    world = World(metadata(topic("a", {0: (1, 5)})), metadata(), metadata(topic("a", {0: (2, 6)})))
    world.run(world.cluster.ensure_topic("a", 5.0))
    world.run(sleep(TOPIC_IDLE_SECONDS + 1.0), 1000.0)
    assert world.cluster.topics == {} and world.cluster.leader("a", 0) is None
    world.run(world.cluster.ensure_topic("a", 5.0), 1000.0)
    assert world.cluster.leader("a", 0) == 2


def test_a_topic_in_use_stays_although_a_response_does_not_name_it() -> None:
    world = World(metadata(topic("a", {0: (1, 5)})))
    world.run(world.cluster.ensure_topic("a", 5.0))
    world.cluster.apply(Reply(metadata(), 12, 1))
    assert world.cluster.leader("a", 0) == 1
    world.cluster.apply(Reply(metadata(), 12, 1), are_all=True)
    assert world.cluster.leader("a", 0) is None


def test_a_leader_in_a_response_counts_if_its_epoch_is_newer() -> None:
    world = World(metadata(topic("a", {0: (1, 5)})))
    world.run(world.cluster.ensure_topic("a", 5.0))
    world.cluster.learn_leader("a", 0, 2, 5)
    assert world.cluster.leader("a", 0) == 1
    world.cluster.learn_leader("a", 0, 9, 6)
    assert world.cluster.leader("a", 0) == 1, "a broker nobody has heard of"
    world.cluster.learn_leader("a", 0, 2, 6)
    assert world.cluster.leader("a", 0) == 2


def test_a_topic_that_does_not_exist_is_waited_for_until_the_deadline() -> None:
    world = World(metadata(topic("a", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)))
    with pytest.raises(DeliveryTimeoutError, match=r"topic 'a' is not in the metadata after 2 s: UNKNOWN_TOPIC"):
        world.run(world.cluster.ensure_topic("a", 2.0))
    assert 10 <= len(world.asked) <= 25


@pytest.mark.parametrize(
    ("error", "kind"),
    [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, AuthorizationError), (ErrorCode.INVALID_TOPIC_EXCEPTION, BrokerError)],
)
def test_a_topic_that_cannot_be_had_says_why_at_once_and_is_asked_for_again(
    error: int, kind: type[BrokerError]
) -> None:
    world = World(metadata(topic("a", error=error)), metadata(topic("a", {0: (1, 0)})))
    with pytest.raises(kind) as caught:
        world.run(world.cluster.ensure_topic("a", 60.0))
    assert caught.value.resource == "a" and world.now < 1.0
    assert world.run(world.cluster.ensure_topic("a", 60.0)).partitions[0].leader == 1


#: What no request can hold: a surrogate, and more bytes than the length field can count.
IMPOSSIBLE_NAMES = ["bad\udcff", "\N{EURO SIGN}" * 11_000]


@pytest.mark.parametrize("name", IMPOSSIBLE_NAMES, ids=["surrogate", "too long"])
def test_a_name_that_no_request_can_hold_is_refused_and_metadata_goes_on(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a name ended the flow that requests metadata, so that no topic was found any more."""
    world = World(metadata(topic("orders", {0: (1, 0)})))
    with pytest.raises(ValueError, match=r"^topic: the name of a topic must .*, got .*; "):
        world.run(world.cluster.ensure_topic(name, 3.0))
    world.cluster.add_topics([name])  # without the check of a call
    assert world.run(world.cluster.ensure_topic("orders", 3.0)).name == "orders"
    before = world.cluster.updates
    world.run(world.cluster.refresh(3.0))
    assert world.cluster.updates > before
    assert all([one.name for one in request.topics] in ([], ["orders"]) for request in world.asked)
    assert [one.message for one in caplog.records if "cannot be requested" in one.message] != []


def test_a_name_that_is_not_text_is_refused() -> None:
    world = World(metadata())
    with pytest.raises(TypeError, match=r"topic: expected the name of a topic, got 5 of type int"):
        world.run(world.cluster.ensure_topic(5, 3.0))  # type: ignore[arg-type]


def test_a_name_that_only_brokers_refuse_is_requested() -> None:
    world = World(metadata(topic("a b!", error=ErrorCode.INVALID_TOPIC_EXCEPTION)))
    with pytest.raises(BrokerError) as caught:
        world.run(world.cluster.ensure_topic("a b!", 3.0))
    assert caught.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_metadata_is_requested_again_after_any_error_of_a_request() -> None:
    """Also after one that is not an error of the network, such as a value that the request cannot hold."""
    world = World(EncodeError("a field is invalid"), metadata(topic("orders", {0: (1, 0)})))
    assert world.run(world.cluster.ensure_topic("orders", 3.0)).name == "orders"


def test_a_broker_that_knows_no_brokers_is_not_believed() -> None:
    world = World(metadata(nodes=()), metadata(topic("a", {0: (1, 0)})))
    world.run(world.cluster.ensure_topic("a", 5.0))
    assert len(world.asked) == 2


def test_metadata_is_asked_for_again_when_it_is_old() -> None:
    world = World(metadata(topic("a", {0: (1, 0)})))
    world.run(world.cluster.ensure_topic("a", 5.0))
    before = len(world.asked)
    while world.now < 700.0 and (when := world.scheduler.next_wakeup()) is not None:
        world.now = when
        world.scheduler.run_ready()
    assert len(world.asked) - before in (2, 3)
    assert all(isinstance(request, MetadataRequest) for request in world.asked)


def test_without_any_broker_the_bootstrap_servers_are_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    good = metadata(topic("a", {0: (1, 0)}))
    world = World(good, *[TransportError("gone")] * 3, good)
    world.run(world.cluster.ensure_topic("a", 5.0))
    world.run(world.cluster.refresh(5.0))
    assert caplog.text.count("starting again from bootstrap_servers") == 1


def coordinator(node: int = 2, error: int = 0, **fields: Any) -> FindCoordinatorResponse:
    found = Coordinator(key="id", node_id=node, host="host", port=9000 + node, error_code=error, **fields)
    return FindCoordinatorResponse(coordinators=[found])


class Coordinators(World):
    """Metadata of two brokers to everybody, the script to FindCoordinator."""

    def start_call(self, call: Call, done: Done) -> Any:
        if isinstance(call.request, MetadataRequest):
            self.scheduler.call_soon(lambda: done(Reply(metadata(), 12, 1), None))
            return lambda: None
        return super().start_call(call, done)


def test_a_refused_login_is_raised_at_once_and_repeated_only_on_request() -> None:
    world = World(AuthenticationError("wrong password"))
    for calls in range(1, 4):
        with pytest.raises(AuthenticationError, match="wrong password"):
            world.run(world.cluster.ensure_topic("a", 60.0))
        assert world.now < 1.0 and len(world.asked) == calls
        world.run(sleep(0.2))
    with pytest.raises(AuthenticationError):
        world.run(world.cluster.refresh(60.0))
    asked = len(world.asked)
    world.run(sleep(60.0))
    assert len(world.asked) == asked, "nobody asked"


def test_a_coordinator_is_found_and_remembered_until_forgotten() -> None:
    world = Coordinators(coordinator())
    for _ in range(3):
        assert world.run(world.cluster.coordinators.find("transaction", "id", 5.0)) == 2
    assert len(world.asked) == 1 and world.asked[0].coordinator_keys == ["id"] and world.asked[0].key_type == 1
    world.cluster.coordinators.forget("transaction", "id")
    world.run(world.cluster.coordinators.find("transaction", "id", 5.0))
    assert len(world.asked) == 2


def test_the_address_of_a_coordinator_replaces_an_older_one() -> None:
    """The metadata of a client may be older than the response that names the coordinator."""
    world = Coordinators(coordinator())
    world.cluster.brokers[2] = Broker(2, "old.example", 9092, "rack-1")
    world.run(world.cluster.coordinators.find("transaction", "id", 5.0))
    found = world.cluster.brokers[2]
    assert (found.host, found.rack) == (coordinator().coordinators[0].host, "rack-1") != ("old.example", "rack-1")


def test_errors_that_pass_are_waited_out() -> None:
    world = Coordinators(
        coordinator(error=ErrorCode.COORDINATOR_NOT_AVAILABLE),
        coordinator(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        TransportError("cut"),
        coordinator(),
    )
    assert world.run(world.cluster.coordinators.find("group", "id", 5.0)) == 2
    assert len(world.asked) == 4


def test_a_coordinator_that_does_not_come_ends_by_the_deadline_with_the_last_reason() -> None:
    world = Coordinators(coordinator(error=ErrorCode.COORDINATOR_NOT_AVAILABLE))
    with pytest.raises(DeliveryTimeoutError, match="COORDINATOR_NOT_AVAILABLE"):
        world.run(world.cluster.coordinators.find("group", "id", 3.0))
    assert 2.9 < world.now < 4.0


def test_a_missing_permission_names_the_transactional_id() -> None:
    world = Coordinators(coordinator(error=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    with pytest.raises(AuthorizationError) as caught:
        world.run(world.cluster.coordinators.find("transaction", "id", 60.0))
    assert caught.value.resource == "id" and world.now < 1.0


def test_updates_that_do_not_help_are_requested_with_pauses() -> None:
    """A topic was created again with fewer partitions. A batch of its former partition waits for a leader."""
    world = World(metadata(topic("a", {0: (1, 5)})))

    def wait_for_leader() -> Flow[None]:
        while world.now < 10.0 and len(world.asked) < 1000:
            world.cluster.add_topics(["a"])
            world.cluster.request_update("a-1 has no leader", "a")
            yield from wait(world.cluster.changed)

    world.run(wait_for_leader())
    assert len(world.asked) < 110


def test_a_new_topic_does_not_wait_for_such_a_pause() -> None:
    world = World(metadata(topic("a", {0: (1, 5)})))

    def repeat() -> Flow[None]:
        while len(world.asked) < 5:
            world.cluster.request_update("a-1 has no leader", "a")
            yield from wait(world.cluster.changed)
        world.cluster.request_update("a-1 has no leader", "a")
        yield from sleep(0.01)
        world.cluster.add_topics(["b"])
        before = world.now
        yield from wait(world.cluster.changed)
        assert world.now == before

    world.run(repeat())


def test_an_awaited_topic_is_also_requested_by_name() -> None:
    """For a pattern, all topics are requested. Such a response does not contain the error of a missing topic, and the
    broker does not create the topic."""
    unknown = metadata(topic("out", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    world = World(metadata(topic("in", {0: (1, 5)})), unknown, metadata(topic("out", {0: (1, 0)})))
    world.cluster.needs_all_topics = True
    assert world.run(world.cluster.ensure_topic("out", 5.0)).partitions
    assert [one.topics and [each.name for each in one.topics] for one in world.asked] == [None, ["out"], None]
    assert world.asked[1].allow_auto_topic_creation


def test_a_missing_topic_is_reported_next_to_all_topics() -> None:
    both = [
        metadata(topic("in", {0: (1, 5)})) if number % 2 == 0 else metadata(topic("out", error=3))
        for number in range(200)
    ]
    world = World(*both)
    world.cluster.needs_all_topics = True
    with pytest.raises(BrokerError, match="topic 'out' does not exist"):
        world.run(world.cluster.ensure_topic("out", 30.0))
    assert world.now < 6.0 and len(world.asked) < 120
    assert set(world.cluster.topics) == {"in", "out"}
