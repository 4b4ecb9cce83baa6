# SPDX-License-Identifier: Apache-2.0
"""The flows of Admin against a scripted cluster in virtual time: who is asked, what is asked again, when it ends."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from admin_script import AdminScript

from kcodec import TopicPartition
from kcodec.admin import flows, open_transactions
from kcodec.admin.security import AclOperation
from kcodec.admin.values import ConfigResource, ConfigResourceType
from kcodec.errors import (
    AdminError,
    AuthenticationError,
    BrokerError,
    KcodecError,
    RequestTimedOutError,
    TransportError,
    UnsupportedError,
)
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

A, B, C = (TopicPartition("orders", number) for number in range(3))
HOUR_MS = 3_600_000


def created(code: int) -> Callable[[int, Any], Any]:
    def answer(node: int, request: Any) -> Any:
        results = [messages.CreatableTopicResult(name=topic.name, error_code=code) for topic in request.topics]
        return messages.CreateTopicsResponse(topics=results)

    return answer


def offsets(code_of: Callable[[int, TopicPartition], int]) -> Callable[[int, Any], Any]:
    """Every offset is 7, unless there is an error code for a node and partition."""

    def answer(node: int, request: Any) -> Any:
        return messages.ListOffsetsResponse(
            topics=[
                messages.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        messages.ListOffsetsPartitionResponse(
                            partition_index=one.partition_index,
                            error_code=code_of(node, TopicPartition(topic.name, one.partition_index)),
                            offset=7,
                        )
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    return answer


def groups(code_of: Callable[[int], int]) -> Callable[[int, Any], Any]:
    return lambda node, request: messages.DeleteGroupsResponse(
        results=[
            messages.DeletableGroupResult(group_id=name, error_code=code_of(node)) for name in request.groups_names
        ]
    )


# ------------------------------------------------------------------------------------------------------------- routing


def test_the_controller_is_asked_again_where_it_has_moved() -> None:
    script = AdminScript()
    script.topics["new"] = {0: 1}

    def answer(node: int, request: Any) -> Any:
        script.controller = 2
        return created(0 if node == 2 else ErrorCode.NOT_CONTROLLER)(node, request)

    script.answers["CreateTopics"] = answer
    assert list(script.run(flows.create_topics(script.context, ["new"]))) == ["new"]
    assert script.asked == [("CreateTopics", 1), ("CreateTopics", 2)]


def test_create_topics_refuses_a_mapping_with_a_remedy() -> None:
    script = AdminScript()
    with pytest.raises(TypeError, match=r"not a mapping.*pass \[NewTopic\(name, num_partitions=count\)"):
        script.run(flows.create_topics(script.context, {"new": 3}))
    assert script.asked == []


def test_create_topics_comes_back_when_leaders_are_known() -> None:
    script = AdminScript()
    script.answers["CreateTopics"] = created(0)
    script.topics["new"] = {0: -1}
    script.scheduler.call_at(3.0, lambda: script.topics["new"].update({0: 1}))
    script.run(flows.create_topics(script.context, ["new"]))
    assert 3.0 <= script.now < 4.5


def test_only_the_partitions_of_a_moved_leader_are_asked_again() -> None:
    script = AdminScript()
    script.topics["orders"] = {0: 1, 1: 2, 2: 2}

    def code_of(node: int, partition: TopicPartition) -> int:
        if partition == B and node == 2:
            script.topics["orders"][1] = 3
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return 0

    script.answers["ListOffsets"] = offsets(code_of)
    found = script.run(flows.list_offsets(script.context, dict.fromkeys([A, B, C], "latest")))
    assert [at.offset for at in found.values()] == [7, 7, 7]
    assert list(found) == [A, B, C]
    assert sorted(script.asked) == [("ListOffsets", 1), ("ListOffsets", 2), ("ListOffsets", 3)]
    (last,) = script.requests[-1].topics
    assert [one.partition_index for one in last.partitions] == [1]


def test_a_broker_that_is_down_is_left_when_its_partitions_have_moved() -> None:
    script = AdminScript()
    script.topics["orders"] = {0: 3}
    script.down = {3}
    script.scheduler.call_at(2.0, lambda: script.topics["orders"].update({0: 1}))
    script.answers["ListOffsets"] = offsets(lambda node, partition: 0)
    assert script.run(flows.list_offsets(script.context, {A: "latest"}))[A].offset == 7
    assert script.now < 5.0


def test_a_coordinator_that_moved_is_found_again() -> None:
    script = AdminScript()
    script.coordinators = {"g": 1, "h": 3}

    def code_of(node: int) -> int:
        script.coordinators["g"] = 2
        return ErrorCode.NOT_COORDINATOR if node == 1 else 0

    script.answers["DeleteGroups"] = groups(code_of)
    assert list(script.run(flows.delete_groups(script.context, ["g", "h"]))) == ["g", "h"]
    assert sorted(script.asked) == [("DeleteGroups", 1), ("DeleteGroups", 2), ("DeleteGroups", 3)]


@pytest.mark.parametrize("version", [3, 6])
def test_groups_without_a_coordinator_do_not_use_the_time_of_others(version: int) -> None:
    """Their partitions of __consumer_offsets are offline. From FindCoordinator 4 on all groups are in one request."""
    script = AdminScript()
    script.highest["FindCoordinator"] = version
    script.coordinators = {"good": 2, "fine": 3}
    script.coordinator_errors = {"bad": ErrorCode.COORDINATOR_NOT_AVAILABLE, "worse": ErrorCode.UNKNOWN_SERVER_ERROR}
    responded: list[float] = []

    def code_of(node: int) -> int:
        responded.append(script.now)
        return 0

    script.answers["DeleteGroups"] = groups(code_of)
    with pytest.raises(AdminError) as failed:
        script.run(flows.delete_groups(script.context, ["bad", "worse", "good", "fine"], timeout=20.0))
    assert sorted(failed.value.results) == ["fine", "good"] and sorted(failed.value.errors) == ["bad", "worse"]
    assert max(responded) < 1.0 and len(responded) == 2
    assert script.now == pytest.approx(20.0, abs=1.0)
    assert "COORDINATOR_NOT_AVAILABLE" in str(failed.value.errors["bad"])
    finds = sum(api == "FindCoordinator" for api, _ in script.versions)
    assert finds <= (1 if version == 6 else 4) * 40


def test_many_groups_are_found_with_one_request() -> None:
    script = AdminScript()
    script.answers["DeleteGroups"] = groups(lambda node: 0)
    names = [f"group-{number}" for number in range(200)]
    assert list(script.run(flows.delete_groups(script.context, names))) == names
    assert [api for api, _ in script.versions if api != "Metadata"] == ["FindCoordinator", "DeleteGroups"]


def test_a_silent_look_up_does_not_delay_items_whose_broker_is_known() -> None:
    """The first call has found the coordinator of `good`; no broker responds to the look-up of `other`."""
    script = AdminScript()
    script.answers["DeleteGroups"] = groups(lambda node: 0)
    script.run(flows.delete_groups(script.context, ["good"]))
    began = script.now
    times: list[float] = []

    def code_of(node: int) -> int:
        times.append(script.now - began)
        return 0

    script.answers["DeleteGroups"] = groups(code_of)
    script.silent.add("FindCoordinator")
    with pytest.raises(AdminError) as failed:
        script.run(flows.delete_groups(script.context, ["other", "good"], timeout=40.0))
    assert list(failed.value.results) == ["good"] and times == [0.0]


def test_partitions_of_a_deleted_topic_do_not_use_the_time_of_others() -> None:
    """The metadata of all topics is awaited together, for a second at most, whatever the number of partitions."""
    script = AdminScript()
    script.topics["orders"] = {0: 1}
    times: list[float] = []

    def code_of(node: int, partition: TopicPartition) -> int:
        times.append(script.now)
        return 0

    script.answers["ListOffsets"] = offsets(code_of)
    script.run(script.cluster.ensure_topic("orders", 5.0))
    began = script.now
    gone = [TopicPartition("gone", number) for number in range(60)]
    with pytest.raises(AdminError) as failed:
        script.run(flows.list_offsets(script.context, dict.fromkeys([*gone, A], "latest"), timeout=30.0))
    assert list(failed.value.results) == [A] and len(failed.value.errors) == 60
    assert times == [began]
    assert script.now - began < 5.0


def test_a_missing_leader_names_the_cause_of_missing_metadata() -> None:
    script = AdminScript()
    script.topics["orders"] = {0: 1}
    script.run(script.cluster.ensure_topic("orders", 5.0))
    script.answers["Metadata"] = lambda node, request: TransportError("connection refused")
    script.cluster.forget_leader("orders", 0)
    with pytest.raises(
        RequestTimedOutError,
        match=r"no known leader at the moment; the last .*connection refused",
    ):
        script.run(flows.list_offsets(script.context, {A: "latest"}, timeout=3.0))


def test_a_missing_controller_is_named_in_the_error() -> None:
    """A cluster with ZooKeeper reports none during the election of a controller."""
    script = AdminScript()
    script.controller = -1
    settings = {ConfigResource(ConfigResourceType.TOPIC, "orders"): {"retention.ms": "1000"}}
    for flow in (
        flows.delete_topics(script.context, ["orders"], timeout=3.0),
        flows.alter_configs(script.context, settings, timeout=3.0),
    ):
        with pytest.raises(RequestTimedOutError, match="no broker is the controller at the moment"):
            script.run(flow)


def test_a_broker_is_asked_for_its_own_settings() -> None:
    script = AdminScript()

    def answer(node: int, request: Any) -> Any:
        results = [
            messages.DescribeConfigsResult(
                resource_type=one.resource_type,
                resource_name=one.resource_name,
                configs=[messages.DescribeConfigsResourceResult(name="asked", value=str(node), config_source=4)],
            )
            for one in request.resources
        ]
        return messages.DescribeConfigsResponse(results=results)

    script.answers["DescribeConfigs"] = answer
    script.latency = 1.0
    resources = [ConfigResource.broker(3), ConfigResource.topic("orders"), ConfigResource.broker(None)]
    began = script.now
    found = script.run(flows.describe_configs(script.context, resources))
    assert found[ConfigResource.broker(3)]["asked"].value == "3"
    assert {node for _, node in script.asked} == {1, 3}
    assert list(found) == resources
    assert script.now - began < 2.0  # both brokers at the same time


def test_errors_of_settings_keep_what_was_found() -> None:
    script = AdminScript()

    def answer(node: int, request: Any) -> Any:
        results = [
            messages.DescribeConfigsResult(
                resource_type=one.resource_type,
                resource_name=one.resource_name,
                error_code=ErrorCode.UNKNOWN_SERVER_ERROR if node == 3 else ErrorCode.NONE,
            )
            for one in request.resources
        ]
        return messages.DescribeConfigsResponse(results=results)

    script.answers["DescribeConfigs"] = answer
    resources = [ConfigResource.topic("orders"), ConfigResource.broker(3)]
    with pytest.raises(AdminError, match="describe configs: 1 of 2 failed") as caught:
        script.run(flows.describe_configs(script.context, resources))
    assert caught.value.results == {resources[0]: {}}
    assert list(caught.value.errors) == [resources[1]]


# ---------------------------------------------------------------------------------------------------- many, and errors


def test_brokers_are_asked_side_by_side() -> None:
    script = AdminScript(nodes=20)
    script.latency = 1.0
    script.topics["orders"] = {number: number + 1 for number in range(20)}
    script.answers["ListOffsets"] = offsets(lambda node, partition: 0)
    wanted = {TopicPartition("orders", number): "latest" for number in range(20)}
    assert len(script.run(flows.list_offsets(script.context, wanted))) == 20
    assert script.now < 6.0  # metadata twice, then all leaders in the time of one


def test_requests_are_cut_where_they_would_grow_too_large() -> None:
    script = AdminScript(nodes=1)
    script.topics = {f"t{number}": dict.fromkeys(range(5), 1) for number in range(500)}
    script.answers["ListOffsets"] = offsets(lambda node, partition: 0)
    wanted = {TopicPartition(topic, number): "latest" for topic in script.topics for number in range(5)}
    assert len(script.run(flows.list_offsets(script.context, wanted))) == 2500
    assert len(script.asked) == 3


def test_a_retriable_error_is_raised_at_the_deadline() -> None:
    script = AdminScript()
    script.answers["DeleteGroups"] = groups(lambda node: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    with pytest.raises(
        RequestTimedOutError, match=r"delete group 'g': not finished within 5 s; last error: .*LOAD"
    ) as caught:
        script.run(flows.delete_groups(script.context, ["g"], timeout=5.0))
    assert script.now == pytest.approx(5.0, abs=0.1)
    assert isinstance(caught.value.__cause__, BrokerError)
    assert len(script.asked) < 20  # the pause grows


def test_a_broker_that_never_answers_ends_with_the_deadline() -> None:
    script = AdminScript()
    script.answers["DeleteGroups"] = lambda node, request: None
    with pytest.raises(RequestTimedOutError, match="no answer to DeleteGroups"):
        script.run(flows.delete_groups(script.context, ["g"]))
    assert script.now == pytest.approx(60.0, abs=0.1)
    assert len(script.asked) == 2  # request_timeout_ms is half of default_api_timeout_ms


@pytest.mark.parametrize("error", [AuthenticationError("wrong password"), UnsupportedError("too old")])
def test_what_asking_again_cannot_help_is_raised_at_once(error: KcodecError) -> None:
    script = AdminScript()
    script.answers["DeleteGroups"] = lambda node, request: error
    with pytest.raises(type(error)) as caught:
        script.run(flows.delete_groups(script.context, ["g"]))
    assert caught.value is error
    assert len(script.asked) == 1


def test_a_version_that_the_broker_lacks_is_said_before_anything_is_sent() -> None:
    script = AdminScript()
    script.highest["ListTransactions"] = 0
    with pytest.raises((UnsupportedError, AdminError)):
        script.run(flows.list_transactions(script.context, transactional_id_pattern="a.*"))
    assert script.asked == []


def test_an_answer_that_leaves_an_item_out_is_an_error_of_that_item() -> None:
    script = AdminScript()
    script.answers["DeleteGroups"] = lambda node, request: messages.DeleteGroupsResponse(
        results=[messages.DeletableGroupResult(group_id="h")]
    )
    with pytest.raises(AdminError) as caught:
        script.run(flows.delete_groups(script.context, ["g", "h"]))
    assert "delete group 'g': the response of broker" in str(caught.value.errors["g"])
    assert caught.value.results == {"h": None}


def test_what_was_not_asked_for_is_not_believed() -> None:
    script = AdminScript()
    script.answers["DeleteGroups"] = lambda node, request: messages.DeleteGroupsResponse(
        results=[messages.DeletableGroupResult(group_id=name) for name in ("other", "g", "g")]
    )
    assert script.run(flows.delete_groups(script.context, ["g"])) == {"g": None}
    script.answers["DescribeConfigs"] = lambda node, request: messages.DescribeConfigsResponse(
        results=[
            messages.DescribeConfigsResult(resource_type=99, resource_name="orders"),
            messages.DescribeConfigsResult(resource_type=2, resource_name="orders"),
        ]
    )
    topic = ConfigResource.topic("orders")
    assert script.run(flows.describe_configs(script.context, [topic])) == {topic: {}}


def test_permissions_of_a_newer_kafka_are_unknown_not_an_error() -> None:
    script = AdminScript()
    acl = messages.AclDescription(principal="User:a", host="*", operation=99, permission_type=3)
    resource = messages.DescribeAclsResource(resource_type=77, resource_name="x", pattern_type=66, acls=[acl])
    script.answers["DescribeAcls"] = lambda node, request: messages.DescribeAclsResponse(resources=[resource])
    (found,) = script.run(flows.describe_acls(script.context))
    assert (found.resource_type, found.pattern_type, found.operation) == (0, 0, AclOperation.UNKNOWN)
    assert str(found) == "allow User:a unknown on unknown unknown 'x' from *"


def test_all_topics_are_described_by_one_request() -> None:
    """A topic that is deleted after it was listed could only be requested by name."""
    script = AdminScript()
    script.topics |= {"orders": {0: 1, 1: 2}, "deleted": {0: 1}}
    requests: list[Any] = []

    def respond(node: int, request: Any) -> Any:
        requests.append(request.topics)
        found = script._metadata(request)
        if request.topics is None:
            script.topics.pop("deleted", None)
        return found

    script.answers["Metadata"] = respond
    described = script.run(flows.describe_topics(script.context))
    assert {name: [one.leader for one in topic.partitions] for name, topic in described.items()} == {
        "deleted": [1],
        "orders": [1, 2],
    }
    assert requests.count(None) == 1
    assert not any(requests)  # none of them names a topic


def test_an_unknown_topic_is_asked_for_a_while_only() -> None:
    script = AdminScript()
    with pytest.raises(
        BrokerError, match="list offset of orders-0: the topic or partition does not exist; check its name"
    ) as caught:
        script.run(flows.list_offsets(script.context, {A: "latest"}))
    assert 2.0 <= script.now < 5.0
    assert (caught.value.remedy, caught.value.resource) == ("stop", A)
    late = AdminScript()
    late.answers["ListOffsets"] = offsets(lambda node, partition: 0)
    late.scheduler.call_at(1.2, lambda: late.topics.update({"orders": {0: 1}}))
    assert late.run(flows.list_offsets(late.context, {A: "latest"}))[A].offset == 7


# -------------------------------------------------------------------------------------------------- hanging and stray


class Transactions:
    """Three leaders, three coordinators: what is open in which partition, and which id has which producer id."""

    def __init__(self) -> None:
        self.script = AdminScript()
        self.script.topics["orders"] = {0: 1, 1: 2, 2: 3}
        self.open: dict[TopicPartition, list[tuple[int, int, int]]] = {}  # producer id, epoch, last timestamp
        self.ids: dict[str, tuple[int, int, str, list[TopicPartition]]] = {}
        self.expired: set[str] = set()
        self.ended_after_first_look: set[TopicPartition] = set()
        self.script.answers = {
            "DescribeProducers": self._producers,
            "ListTransactions": self._list,
            "DescribeTransactions": self._describe,
        }
        self.looks = 0

    def find(self, **options: Any) -> Any:
        options = {"max_transaction_timeout_ms": 900_000, "now": HOUR_MS, **options}
        return self.script.run(flows.find_hanging_transactions(self.script.context, **options))

    def _producers(self, node: int, request: Any) -> Any:
        topics = []
        for topic in request.topics:
            partitions = []
            for number in topic.partition_indexes:
                partition = TopicPartition(topic.name, number)
                states = [
                    messages.ProducerState(
                        producer_id=producer_id,
                        producer_epoch=epoch,
                        last_timestamp=timestamp,
                        coordinator_epoch=0,
                        current_txn_start_offset=5,
                    )
                    for producer_id, epoch, timestamp in self.open.get(partition, ())
                ]
                if partition in self.ended_after_first_look:
                    self.open.pop(partition, None)
                partitions.append(
                    messages.DescribeProducersPartitionResponse(partition_index=number, active_producers=states)
                )
            topics.append(messages.DescribeProducersTopicResponse(name=topic.name, partitions=partitions))
        return messages.DescribeProducersResponse(topics=topics)

    def _list(self, node: int, request: Any) -> Any:
        found = [
            messages.ListedTransactionState(transactional_id=name, producer_id=one[0], transaction_state=one[2])
            for name, one in self.ids.items()
            if self.script.coordinators.get(name, 1) == node
            and (one[0] in request.producer_id_filters or not request.producer_id_filters)
            and (one[2] in request.state_filters or not request.state_filters)
        ]
        return messages.ListTransactionsResponse(transaction_states=found)

    def _describe(self, node: int, request: Any) -> Any:
        states = []
        for name in request.transactional_ids:
            producer_id, epoch, state, partitions = self.ids[name]
            states.append(
                messages.DescribedTransactionState(
                    transactional_id=name,
                    error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if name in self.expired else ErrorCode.NONE,
                    transaction_state=state,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    transaction_timeout_ms=900_000,
                    transaction_start_time_ms=HOUR_MS - 100_000,
                    topics=[
                        messages.DescribedTransactionTopic(topic=topic, partitions=[number])
                        for topic, number in partitions
                    ],
                )
            )
        return messages.DescribeTransactionsResponse(transaction_states=states)


def test_a_search_on_a_broker_that_does_not_exist_is_refused() -> None:
    """Otherwise, the result would be that no transaction hangs."""
    world = Transactions()
    with pytest.raises(ValueError, match="broker_id: no live broker has the id 9; the brokers are 1, 2, 3"):
        world.find(broker_id=9)
    with pytest.raises(ValueError, match="broker_id: no live broker has the id 9"):
        world.find(broker_id=9, partitions=[TopicPartition("orders", 0)])
    world.script.topics["orders"] = {0: 1}
    world.script.down.add(3)
    assert (world.find(broker_id=1).partitions_searched, world.find(broker_id=3).partitions_searched) == (1, 0)


def test_a_search_on_a_broker_that_is_down_is_refused() -> None:
    """It still has replicas of the topic."""
    world = Transactions()
    world.script.nodes.discard(3)
    for places in ({}, {"partitions": [C]}):
        with pytest.raises(ValueError, match="broker_id: no live broker has the id 3; the brokers are 1, 2"):
            world.find(broker_id=3, **places)


def test_a_search_without_visible_topics_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A broker leaves out the topics for which the user has no permission, and reports no error."""
    world = Transactions()
    assert world.find().partitions_searched == 3
    assert not caplog.records
    world.script.topics.clear()
    assert world.find().partitions_searched == 0
    assert "has found no topics to search: either the cluster has none, or the user has no DESCRIBE" in caplog.text


def test_a_search_without_visible_transactional_ids_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    world = Transactions()
    world.ids = {"done": (3, 0, "CompleteCommit", [])}

    def find() -> Any:
        return world.script.run(flows.find_abandoned_transactions(world.script.context, now=HOUR_MS))

    assert find().transactions == ()
    assert not caplog.records
    world.ids.clear()
    assert find().transactions == ()
    assert "has found no transactional ids: either the cluster has none, or the user has no DESCRIBE" in caplog.text


def test_the_log_names_the_request_without_a_response(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    script = AdminScript()
    script.topics["orders"] = {0: 1}
    script.silent.add("ListOffsets")
    with pytest.raises(RequestTimedOutError):
        script.run(flows.list_offsets(script.context, {A: "latest"}, timeout=5.0))
    assert "metadata is requested: list offset of orders-0: the request got no response" in caplog.text


def test_a_partition_that_could_not_be_searched_is_not_counted() -> None:
    world, missing = Transactions(), TopicPartition("t", 77)
    found = world.find(partitions=[A, missing])
    assert (found.partitions_searched, list(found.errors)) == (1, [missing])


def test_each_way_to_hang_is_named() -> None:
    at = Transactions()
    at.open = {A: [(1, 0, 0), (2, 0, 0)], B: [(3, 0, 0), (4, 5, 0)], C: [(5, 0, 0), (6, 0, 0)]}
    at.ids = {
        "ended": (2, 0, "CompleteCommit", []),
        "elsewhere": (3, 0, "Ongoing", [A]),
        "older": (4, 4, "Ongoing", [B]),
        "expired": (5, 0, "Ongoing", [C]),
        "alive": (6, 0, "Ongoing", [C]),
    }
    at.expired = {"expired"}
    at.script.coordinators = {"ended": 2, "older": 3}
    found = at.find()
    assert {one.producer_id: one.why for one in found.transactions} == {
        1: "no transactional id has this producer id",
        2: "'ended' is CompleteCommit without this partition",
        3: "'elsewhere' is Ongoing without this partition",
        4: "'older' is at epoch 4",
        5: "transactional id 'expired' has expired",
    }
    assert found.errors == {}
    assert found.partitions_searched == 3
    assert {(one.partition, one.age_ms) for one in found.transactions} == {(A, HOUR_MS), (B, HOUR_MS), (C, HOUR_MS)}


def test_what_ends_between_two_looks_does_not_hang() -> None:
    at = Transactions()
    at.open = {A: [(1, 0, 0)], B: [(1, 0, 0)]}
    at.ended_after_first_look = {A}
    assert [one.partition for one in at.find().transactions] == [B]


def test_young_ones_are_passed_over_and_nothing_else_is_asked() -> None:
    at = Transactions()
    at.open = {A: [(1, 0, HOUR_MS - 900_000)]}
    assert at.find().transactions == ()
    assert {api for api, _ in at.script.asked} == {"DescribeProducers"}
    assert len(at.find(max_transaction_timeout_ms=899_999).transactions) == 1


def test_where_a_coordinator_is_silent_nothing_is_called_hanging_for_its_sake() -> None:
    """The producer id may be that of an id which only the silent one knows."""
    at = Transactions()
    at.open = {A: [(1, 0, 0), (2, 0, 0)]}
    at.ids = {"ended": (2, 0, "CompleteCommit", []), "far": (1, 0, "Ongoing", [A])}
    at.script.coordinators = {"far": 3}
    at.script.topics["orders"][2] = 1
    at.script.down = {3}
    found = at.find(timeout=5.0)
    assert [one.producer_id for one in found.transactions] == [2]
    assert list(found.errors) == [3]
    assert "list transactions of broker 3: not finished within 1.66 s" in str(found.errors[3])


def test_a_leader_that_is_down_leaves_the_others_searched() -> None:
    at = Transactions()
    at.open = {A: [(1, 0, 0)], B: [(1, 0, 0)]}
    at.script.topics["orders"][2] = 1
    at.script.down = {2}
    found = at.find(timeout=5.0)
    assert set(found.errors) == {B, 2}
    assert found.transactions == ()  # broker 2 may know the id


def test_abandoned_are_those_without_writes() -> None:
    at = Transactions()
    at.ids = {
        "silent": (1, 0, "Ongoing", [A]),
        "busy": (2, 0, "Ongoing", [A, B]),
        "done": (3, 0, "CompleteCommit", []),
        "unseen": (4, 0, "Ongoing", [C]),
    }
    at.open = {A: [(1, 0, HOUR_MS - 80_000), (2, 0, HOUR_MS - 90_000)], B: [(2, 0, HOUR_MS - 10_000)]}
    at.script.down = {3}
    found = at.script.run(flows.find_abandoned_transactions(at.script.context, now=HOUR_MS, timeout=5.0))
    (one,) = found.transactions
    assert (one.transactional_id, one.idle_ms, one.age_ms, one.partitions) == ("silent", 80_000, 100_000, (A,))
    assert set(found.errors) == {3, C}
    for find in (flows.find_abandoned_transactions, flows.find_stray_transactions):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            only = find(at.script.context, transactional_ids=["busy"], idle_ms=0, now=HOUR_MS)
        assert [one.idle_ms for one in at.script.run(only).transactions] == [10_000]
    assert [str(one.message) for one in warned] == [
        "find_stray_transactions is deprecated: use find_abandoned_transactions"
    ]
    with pytest.warns(DeprecationWarning, match="StrayTransactions is deprecated: use AbandonedTransactions"):
        assert open_transactions.StrayTransactions is open_transactions.AbandonedTransactions
