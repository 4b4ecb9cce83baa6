# SPDX-License-Identifier: Apache-2.0
"""Admin repeats a request whose response was lost: the state that the first request has caused is a success, and what
must not happen twice is not repeated."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from admin_script import AdminScript

from kcodec import TopicPartition
from kcodec.admin import flows
from kcodec.admin.delegation_tokens import DelegationToken
from kcodec.admin.security import ScramCredentialDeletion, ScramCredentialUpsertion, ScramMechanism
from kcodec.broker import Broker
from kcodec.client import Admin, NewTopic, Producer
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


def producer_states(start_offset: int, code: int = 0) -> Any:
    states = [
        messages.ProducerState(producer_id=one, producer_epoch=3, current_txn_start_offset=offset)
        for one, offset in ((7, start_offset), (8, 5))
    ]
    one = messages.DescribeProducersPartitionResponse(partition_index=0, error_code=code, active_producers=states)
    topic = messages.DescribeProducersTopicResponse(name="orders", partitions=[one])
    return messages.DescribeProducersResponse(topics=[topic])


def markers(code: int) -> Any:
    one = messages.WritableTxnMarkerPartitionResult(partition_index=0, error_code=code)
    topic = messages.WritableTxnMarkerTopicResult(name="orders", partitions=[one])
    return messages.WriteTxnMarkersResponse(markers=[messages.WritableTxnMarkerResult(producer_id=7, topics=[topic])])


@pytest.mark.parametrize(
    "code",
    [
        None,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
@pytest.mark.parametrize(
    ("states", "text"),
    [
        (producer_states(-1), None),
        (producer_states(40), r"outcome is unknown.*not repeated.* open transaction from offset 40: if this is"),
        (producer_states(-1, ErrorCode.TOPIC_AUTHORIZATION_FAILED), r"outcome is unknown"),
    ],
    ids=["aborted", "open", "not known"],
)
def test_a_marker_is_written_at_most_once(states: Any, text: str | None, code: int | None) -> None:
    """Kafka also writes the second marker, which would abort the next transaction of the same producer epoch. A leader
    can return these codes after it has written the marker."""
    script = script_of("WriteTxnMarkers", LOST if code is None else markers(code))
    script.answers["DescribeProducers"] = lambda node, request: states
    abort = flows.abort_transaction(script.context, A, 7, 3)
    if text is None:
        assert script.run(abort) is None
    else:
        with pytest.raises(UnknownOutcomeError, match=text) as caught:
            script.run(abort)
        assert caught.value.possibly_sent and caught.value.__cause__ is not None
    assert script.asked == [("WriteTxnMarkers", 1), ("DescribeProducers", 1)]


def test_a_marker_is_requested_again_if_nothing_was_sent() -> None:
    script = script_of("WriteTxnMarkers", NOT_SENT, markers(ErrorCode.NOT_ENOUGH_REPLICAS), markers(0))
    script.run(flows.abort_transaction(script.context, A, 7, 3))
    assert script.asked == [("WriteTxnMarkers", 1)] * 3


@pytest.mark.parametrize("is_written", [True, False], ids=["response lost", "request lost"])
def test_an_abort_without_a_response_reports_the_state(kcodec_broker: Broker, is_written: bool) -> None:
    partition = TopicPartition(kcodec_broker.create_topic(), 0)
    servers = kcodec_broker.bootstrap_servers
    with Producer(bootstrap_servers=servers, transactional_id=partition.topic) as producer:
        producer.begin_transaction()
        producer.send_and_wait(partition.topic, b"v", partition=0)
        with Admin(bootstrap_servers=servers) as admin:
            (state,) = admin.describe_producers([partition])[partition]
            kcodec_broker.faults.add("WriteTxnMarkers", close="after" if is_written else "before", count=1)
            identity = state.producer_id, state.producer_epoch
            if is_written:
                admin.abort_transaction(partition, *identity)
            else:
                with pytest.raises(UnknownOutcomeError, match="open transaction from offset 0"):
                    admin.abort_transaction(partition, *identity)
            (state,) = admin.describe_producers([partition])[partition]
            assert (state.current_transaction_start_offset is None) is is_written
        assert len(kcodec_broker.wire_log.requests("WriteTxnMarkers")) == 1
        producer.abort_transaction()


def features(level: int) -> Any:
    finalized = [
        messages.FinalizedFeatureKey(name=name, max_version_level=value, min_version_level=value)
        for name, value in (("transaction.version", level), ("group.version", 1))
    ]
    return messages.ApiVersionsResponse(finalized_features=finalized)


def updated(code: int) -> Any:
    return messages.UpdateFeaturesResponse(error_code=code)


@pytest.mark.parametrize("level", [1, 0])
def test_features_that_were_changed_by_a_lost_request_are_a_success(level: int) -> None:
    """A broker with ZooKeeper refuses a change to the same level, and the deletion of a feature without a level."""
    script = script_of("UpdateFeatures", LOST, updated(ErrorCode.INVALID_REQUEST))
    left = [features(2), messages.ApiVersionsResponse() if level == 0 else features(level)]  # the first broker lags
    script.answers["ApiVersions"] = lambda node, request: left.pop(0)
    levels = {"transaction.version": level}
    changed = flows.update_features(script.context, levels, upgrade_type="safe_downgrade")
    assert script.run(changed) == {"transaction.version": None}


@pytest.mark.parametrize("is_validated_only", [False, True])
@pytest.mark.parametrize("is_lost", [False, True])
def test_another_level_of_a_feature_is_an_error_of_a_repeat(is_lost: bool, is_validated_only: bool) -> None:
    script = script_of("UpdateFeatures", *[LOST] * is_lost, updated(ErrorCode.INVALID_UPDATE_VERSION))
    level = 2 if is_validated_only or not is_lost else 1
    script.answers["ApiVersions"] = lambda node, request: features(level)
    with pytest.raises(BrokerError) as caught:
        script.run(flows.update_features(script.context, {"transaction.version": 2}, validate_only=is_validated_only))
    assert caught.value.code == ErrorCode.INVALID_UPDATE_VERSION


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


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin: admin.list_topics(),
        lambda admin: admin.describe_cluster(),
        lambda admin: admin.list_groups(),
        lambda admin: admin.list_offsets({A: 0}),
    ],
    ids=["list_topics", "describe_cluster", "list_groups", "list_offsets"],
)
def test_a_call_finds_a_broker_that_has_another_address(tmp_path: Path, ask: Callable[[Admin], Any]) -> None:
    """An Admin may send no other request for minutes, so the call itself has to start again from bootstrap_servers."""
    with Broker() as other:
        later = other.bootstrap_servers
    with Broker(data_dir=tmp_path) as broker:
        broker.seed(A.topic, [b"1"])
        admin = Admin(bootstrap_servers=f"{broker.bootstrap_servers},{later}", default_api_timeout_ms=15_000)
        assert ask(admin) is not None
    with admin, Broker(data_dir=tmp_path, port=int(later.rpartition(":")[2])):
        assert ask(admin) is not None
