# SPDX-License-Identifier: Apache-2.0
"""Admin repeats a request whose response was lost: the state that the first request has caused is a success, and what
must not happen twice is not repeated."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from admin_script import AdminScript

from kcodec import TopicPartition
from kcodec.admin import flows
from kcodec.admin.delegation_tokens import DelegationToken
from kcodec.admin.security import ScramCredentialDeletion, ScramCredentialUpsertion, ScramMechanism
from kcodec.broker import Broker
from kcodec.client import Admin, NewTopic
from kcodec.errors import BrokerError, RequestTimedOutError, TransportError, UnknownOutcomeError
from kcodec.flow import Flow
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

A = TopicPartition("orders", 0)
LOST = TransportError("the connection was closed", possibly_sent=True)
NOT_SENT = TransportError("no connection")


def topics(code: int) -> Any:
    return messages.CreateTopicsResponse(topics=[messages.CreatableTopicResult(name="orders", error_code=code)])


def partitions(code: int) -> Any:
    return messages.CreatePartitionsResponse(
        results=[messages.CreatePartitionsTopicResult(name="orders", error_code=code)]
    )


def deleted_topics(code: int) -> Any:
    return messages.DeleteTopicsResponse(responses=[messages.DeletableTopicResult(name="orders", error_code=code)])


def deleted_groups(code: int) -> Any:
    return messages.DeleteGroupsResponse(results=[messages.DeletableGroupResult(group_id="g", error_code=code)])


def deleted_offsets(code: int) -> Any:
    return messages.OffsetDeleteResponse(error_code=code)


def reassigned(code: int) -> Any:
    one = messages.ReassignablePartitionResponse(partition_index=0, error_code=code)
    topic = messages.ReassignableTopicResponse(name="orders", partitions=[one])
    return messages.AlterPartitionReassignmentsResponse(responses=[topic])


def unregistered(code: int) -> Any:
    return messages.UnregisterBrokerResponse(error_code=code)


def expired(code: int) -> Any:
    return messages.ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=-1 if code else 7)


def passwords(code: int) -> Any:
    result = messages.AlterUserScramCredentialsResult(user="alice", error_code=code)
    return messages.AlterUserScramCredentialsResponse(results=[result])


def created_token(code: int) -> Any:
    return messages.CreateDelegationTokenResponse(error_code=code, token_id="t", hmac=b"h")


def deleted_records(code: int) -> Any:
    one = messages.DeleteRecordsPartitionResult(partition_index=0, low_watermark=7, error_code=code)
    topic = messages.DeleteRecordsTopicResult(name="orders", partitions=[one])
    return messages.DeleteRecordsResponse(topics=[topic])


DELETION = ScramCredentialDeletion("alice", ScramMechanism.SCRAM_SHA_256)
#: For each call: its request, how to call it, its response with an error code, and the code that means that it is done.
REACHED: dict[str, tuple[str, Callable[[AdminScript], Flow[Any]], Callable[[int], Any], ErrorCode]] = {
    "create_topics": (
        "CreateTopics",
        lambda it: flows.create_topics(it.context, [NewTopic("orders", 2, 1)]),
        topics,
        ErrorCode.TOPIC_ALREADY_EXISTS,
    ),
    "create_partitions": (
        "CreatePartitions",
        lambda it: flows.create_partitions(it.context, {"orders": 2}),
        partitions,
        ErrorCode.INVALID_PARTITIONS,
    ),
    "delete_topics": (
        "DeleteTopics",
        lambda it: flows.delete_topics(it.context, ["orders"]),
        deleted_topics,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    "delete_groups": (
        "DeleteGroups",
        lambda it: flows.delete_groups(it.context, ["g"]),
        deleted_groups,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ),
    "delete_group_offsets": (
        "OffsetDelete",
        lambda it: flows.delete_group_offsets(it.context, "g", [A]),
        deleted_offsets,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ),
    "alter_partition_reassignments": (
        "AlterPartitionReassignments",
        lambda it: flows.alter_partition_reassignments(it.context, {A: None}),
        reassigned,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    ),
    "unregister_broker": (
        "UnregisterBroker",
        lambda it: flows.unregister_broker(it.context, 3),
        unregistered,
        ErrorCode.BROKER_ID_NOT_REGISTERED,
    ),
    "expire_delegation_token": (
        "ExpireDelegationToken",
        lambda it: flows.expire_delegation_token(it.context, b"hmac"),
        expired,
        ErrorCode.DELEGATION_TOKEN_NOT_FOUND,
    ),
    "alter_user_scram_credentials": (
        "AlterUserScramCredentials",
        lambda it: flows.alter_user_scram_credentials(it.context, [DELETION]),
        passwords,
        ErrorCode.RESOURCE_NOT_FOUND,
    ),
}


def script_of(api: str, *responses: Any) -> AdminScript:
    """Return a cluster that returns these responses to an API, one after the other."""
    script = AdminScript()
    script.topics["orders"] = {0: 1, 1: 2}
    left = list(responses)
    script.answers[api] = lambda node, request: left.pop(0)
    return script


@pytest.mark.parametrize("name", REACHED)
@pytest.mark.parametrize("is_code", [False, True], ids=["lost", "REQUEST_TIMED_OUT"])
def test_the_reached_state_is_a_success_of_a_repeat(name: str, is_code: bool) -> None:
    api, call, response, code = REACHED[name]
    script = script_of(api, response(ErrorCode.REQUEST_TIMED_OUT) if is_code else LOST, response(code))
    script.run(call(script))
    assert len(script.asked) == 2


@pytest.mark.parametrize("name", REACHED)
@pytest.mark.parametrize("first", [None, NOT_SENT], ids=["first", "not sent"])
def test_the_same_error_without_a_lost_response_is_raised(name: str, first: BaseException | None) -> None:
    api, call, response, code = REACHED[name]
    script = script_of(api, *([] if first is None else [first]), response(code))
    with pytest.raises(BrokerError) as caught:
        script.run(call(script))
    assert caught.value.code == code


def test_a_created_topic_is_described_after_a_repeat() -> None:
    api, call, response, code = REACHED["create_topics"]
    script = script_of(api, LOST, response(code))
    (topic,) = script.run(call(script)).values()
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("orders", 2, 1)


@pytest.mark.parametrize(
    ("api", "call", "response", "code"),
    [
        (
            "CreateTopics",
            lambda it: flows.create_topics(it.context, [NewTopic("orders", 5, 1)]),
            topics,
            ErrorCode.TOPIC_ALREADY_EXISTS,
        ),
        (
            "CreateTopics",
            lambda it: flows.create_topics(it.context, [NewTopic("orders", 2, 1)], validate_only=True),
            topics,
            ErrorCode.TOPIC_ALREADY_EXISTS,
        ),
        (
            "CreatePartitions",
            lambda it: flows.create_partitions(it.context, {"orders": 1}),
            partitions,
            ErrorCode.INVALID_PARTITIONS,
        ),
        (
            "AlterPartitionReassignments",
            lambda it: flows.alter_partition_reassignments(it.context, {A: [1]}),
            reassigned,
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ),
    ],
)
def test_another_state_is_an_error_of_a_repeat(
    api: str, call: Callable[[AdminScript], Flow[Any]], response: Callable[[int], Any], code: int
) -> None:
    script = script_of(api, LOST, response(code))
    with pytest.raises(BrokerError) as caught:
        script.run(call(script))
    assert caught.value.code == code


def test_a_password_is_set_although_the_other_one_is_gone() -> None:
    """The broker changes no credential of a user if it does not find one to delete, so that the repeated request could
    have set no password."""
    script = script_of("AlterUserScramCredentials", LOST, passwords(ErrorCode.RESOURCE_NOT_FOUND), passwords(0))
    upsertion = ScramCredentialUpsertion("alice", "secret")
    assert script.run(flows.alter_user_scram_credentials(script.context, [upsertion, DELETION])) == {"alice": None}
    assert [(len(one.upsertions), len(one.deletions)) for one in script.requests] == [(1, 1), (1, 1), (1, 0)]


@pytest.mark.parametrize("is_code", [False, True], ids=["lost", "REQUEST_TIMED_OUT"])
@pytest.mark.parametrize(
    ("api", "call", "response", "text"),
    [
        (
            "CreateDelegationToken",
            lambda it: flows.create_delegation_token(it.context),
            created_token,
            "create a delegation token: the outcome is unknown, as the request may have taken effect",
        ),
        (
            "DeleteRecords",
            lambda it: flows.delete_records(it.context, {A: -1}),
            deleted_records,
            "delete records of orders-0: the outcome is unknown, as the request may have taken effect",
        ),
    ],
)
def test_what_must_not_happen_twice_is_not_repeated(
    api: str, call: Callable[[AdminScript], Flow[Any]], response: Callable[[int], Any], text: str, is_code: bool
) -> None:
    script = script_of(api, response(ErrorCode.REQUEST_TIMED_OUT) if is_code else LOST)
    with pytest.raises(UnknownOutcomeError, match=text) as caught:
        script.run(call(script))
    assert caught.value.possibly_sent and caught.value.__cause__ is not None
    assert len(script.asked) == 1


def test_a_token_is_requested_again_if_nothing_was_sent() -> None:
    script = script_of("CreateDelegationToken", NOT_SENT, created_token(0))
    assert isinstance(script.run(flows.create_delegation_token(script.context)), DelegationToken)


def test_records_before_an_offset_are_deleted_again() -> None:
    script = script_of("DeleteRecords", LOST, deleted_records(0))
    assert script.run(flows.delete_records(script.context, {A: 7})) == {A: 7}


def test_a_late_call_says_that_it_may_have_been_sent() -> None:
    script = AdminScript()
    script.answers["DeleteGroups"] = lambda node, request: None
    with pytest.raises(RequestTimedOutError) as caught:
        script.run(flows.delete_groups(script.context, ["g"]))
    assert caught.value.possibly_sent


def test_calls_succeed_although_responses_are_lost(kcodec_broker: Broker) -> None:
    with Admin(bootstrap_servers=kcodec_broker.bootstrap_servers) as admin:
        for api in ("CreateTopics", "CreatePartitions", "DeleteTopics"):
            kcodec_broker.faults.add(api, close="after", count=1)
        assert admin.create_topics([NewTopic("lost", 2)])["lost"].num_partitions == 2
        admin.create_partitions({"lost": 5})
        assert admin.list_topics()["lost"].num_partitions == 5
        admin.delete_topics(["lost"])
        assert "lost" not in admin.list_topics()


def test_a_short_timeout_leaves_the_calls_of_others_alone(kcodec_broker: Broker) -> None:
    """Calls of several threads share a connection. Its other calls are not sent again if one call is too late."""
    with Admin(bootstrap_servers=kcodec_broker.bootstrap_servers) as admin:
        admin.list_topics()
        kcodec_broker.faults.add("CreateTopics", delay_ms=1000, count=1)
        ended: list[Any] = []
        thread = threading.Thread(target=lambda: ended.append(admin.create_topics(["slow"])))
        thread.start()
        while not kcodec_broker.wire_log.requests("CreateTopics"):
            time.sleep(0.01)
        with pytest.raises(RequestTimedOutError):
            admin.describe_topics(["slow"], timeout=0.2)
        thread.join()
        assert list(ended[0]) == ["slow"]
        assert len(kcodec_broker.wire_log.requests("CreateTopics")) == 1
