# SPDX-License-Identifier: Apache-2.0
"""Requests of users with different ACLs to a broker with an authorizer, and what is compared of the responses.

Each profile is a user with some ACLs. Every user sends the same requests. They name resources for which the user has
the ACLs of its profile ("open"), resources for which it has none ("closed") and resources that do not exist ("absent").
Requests that change something use resources of their user. All brokers therefore get the same sequence of changes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from broker_masks import HIDDEN
from raw_broker import RawBroker

import kcodec
from kcodec.broker.authorizer.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.frame import encode_request
from kcodec.protocol.schema import Request, Struct, fields

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
ALL = Operation.ALL
#: Settings of the embedded broker, and the same ones of Apache Kafka.
SETTINGS: dict[str, Any] = {
    "group_consumer_session_timeout_ms": 600_000,
    "offsets_topic_partitions": 2,
    "transaction_topic_partitions": 2,
}
KAFKA_SETTINGS: dict[str, Any] = {
    "auto_create_topics_enable": True,
    "group_consumer_max_session_timeout_ms": 600_000,
    "group_consumer_session_timeout_ms": 600_000,
    "group_consumer_assignment_interval_ms": 0,
    "group_initial_rebalance_delay_ms": 0,
    "num_partitions": 1,
    "offsets_topic_num_partitions": 2,
    "transaction_state_log_num_partitions": 2,
}
UNKNOWN_ID = UUID("11111111-2222-4333-8444-555555555555")
_SECONDS = 20.0
#: The first case for which the broker must have the ACLs of the cases before. Apache Kafka applies them a little later.
FIRST_DESCRIPTION = "DescribeAcls of everything of a principal, version 1"
SECONDS_OF_METADATA = 0.5
#: What belongs to a broker and not to its authorizer.
_HIDDEN = HIDDEN | {
    *("brokers", "cluster_id", "controller_id", "nodes", "current_voters", "observers", "log_dir", "total_bytes"),
    *("usable_bytes", "partition_size", "is_cordoned", "leader_epoch", "log_end_offset", "heartbeat_interval_ms"),
    *("session_lifetime_ms", "client_id", "client_host", "metadata_hash", "server_keys", "assignor_name", "value"),
    # Apache Kafka begins another epoch if a new topic becomes known to the coordinator after a member has joined.
    *("group_epoch", "assignment_epoch", "member_epoch"),
    *("synonyms", "config_source", "is_sensitive", "read_only", "config_type", "documentation", "is_default"),
}
#: Texts of Apache Kafka that contain the whole request.
_REFUSALS = ("Request Request(", "Cluster authorization failed.")

Acl = tuple[ResourceType, str, PatternType, Operation, Permission, str]
Case = tuple[Request, int]

_OPERATIONS = {
    TOPIC: ("READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    GROUP: ("READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    CLUSTER: (
        *("CREATE", "DELETE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
        "IDEMPOTENT_WRITE",
    ),
    TRANSACTIONAL_ID: ("WRITE", "DESCRIBE"),
}


def own_names(user: str) -> list[str]:
    """The names of topics, groups and transactional ids for which a user has the ACLs of its profile."""
    return ["open", f"new-{user}", f"made-{user}", f"gone-{user}", f"idgone-{user}"]


def on(kind: ResourceType, user: str, operation: Operation, permission: Permission = ALLOW) -> list[Acl]:
    """ACLs for the resources of a user."""
    names = [CLUSTER_NAME] if kind is CLUSTER else own_names(user)
    return [(kind, name, LITERAL, operation, permission, "*") for name in names]


def everything(user: str, **changes: Any) -> list[Acl]:
    """ACLs that allow everything. changes: other values of the fields."""
    values = {"pattern": LITERAL, "host": "*", "name": "*", **changes}
    return [
        (kind, CLUSTER_NAME if kind is CLUSTER else values["name"], values["pattern"], ALL, ALLOW, values["host"])
        for kind in _OPERATIONS
    ]


def profiles() -> dict[str, list[Acl]]:
    """User -> ACLs."""
    found: dict[str, list[Acl]] = {"none": [], "all": everything("all")}
    found["all-open"] = [acl for kind in _OPERATIONS for acl in on(kind, "all-open", ALL)]
    for kind, names in _OPERATIONS.items():
        for name in names:
            user = f"{kind.name.lower()}-{name.lower()}".replace("_", "-")
            found[user] = on(kind, user, Operation[name])
            user = f"no-{user}"
            denied = on(kind, user, Operation[name], DENY)
            found[user] = [*everything(user), *denied]
    found["reader"] = [
        *on(TOPIC, "reader", Operation.READ),
        *on(GROUP, "reader", Operation.READ),
    ]
    found["writer"] = [
        *on(TOPIC, "writer", Operation.WRITE),
        *on(TRANSACTIONAL_ID, "writer", Operation.WRITE),
        *on(GROUP, "writer", Operation.READ),
    ]
    found["here"] = everything("here", host="127.0.0.1")
    found["elsewhere"] = everything("elsewhere", host="10.0.0.1")
    found["network"] = everything("network", host="127.0.0.0/8")
    found["other-network"] = everything("other-network", host="10.0.0.0/8")
    found["prefix"] = everything("prefix", pattern=PREFIXED, name="o")
    found["star-prefix"] = everything("star-prefix", pattern=PREFIXED, name="*")
    found["no-prefix"] = [
        *everything("no-prefix"),
        (TOPIC, "clo", PREFIXED, Operation.DESCRIBE, DENY, "*"),
        (TOPIC, "op", PREFIXED, Operation.WRITE, DENY, "*"),
        (GROUP, "c", PREFIXED, ALL, DENY, "127.0.0.1"),
    ]
    found["no-writes"] = [
        (TOPIC, "open", LITERAL, Operation.WRITE, ALLOW, "*"),
        (TOPIC, "o", PREFIXED, Operation.WRITE, DENY, "*"),
    ]
    return found


#: The profiles of the short form: at least one of each kind.
SHORT = ("none", "all-open", "reader", "writer", "no-topic-describe", "cluster-alter", "no-prefix", "network")


class AclClient(RawBroker):
    """A connection of a user that has logged in with PLAIN."""

    def __init__(self, address: str, user: str) -> None:
        super().__init__(address)
        self.ask(messages.SaslHandshakeRequest(mechanism="PLAIN"), 1)
        token = f"\0{user}\0{user}-secret".encode()
        assert not self.ask(messages.SaslAuthenticateRequest(auth_bytes=token), 2).error_code

    def exchange(self, request: Request, version: int) -> Any:
        """The response, or "closed" if the broker closes the connection or does not respond."""
        try:
            if getattr(request, "acks", None) == 0:
                self._asked += 1
                self._socket.sendall(encode_request(request, version, self._asked, "raw"))
                self.ask(messages.ApiVersionsRequest(), 0)
                return "open"
            return self.ask(request, version)
        except (AssertionError, ConnectionError, TimeoutError) as error:
            return "closed" if not isinstance(error, TimeoutError) else "no response"


def creation(user: str, acl: Acl) -> messages.AclCreation:
    kind, name, pattern, operation, permission, host = acl
    return messages.AclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=pattern,
        principal=f"User:{user}",
        host=host,
        operation=operation,
        permission_type=permission,
    )


class Subject:
    """A broker with the topics, groups and ACLs of some profiles. `ids`: topic -> id."""

    def __init__(self, address: str, users: Iterable[str]) -> None:
        self.address = address
        self.users = list(users)
        self.ids: dict[str, UUID] = {}
        self._admin = AclClient(address, "admin")
        self._prepare()

    def _prepare(self) -> None:
        admin = self._admin
        for key_type in (0, 1):
            found = messages.FindCoordinatorRequest(key="x", key_type=key_type)
            admin.ask_until(found, 3, lambda answer: answer.error_code)
        names = ["open", "closed", *(f"{kind}-{user}" for user in self.users for kind in ("gone", "idgone"))]
        topics = [messages.CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in names]
        assert all(not one.error_code for one in admin.ask(messages.CreateTopicsRequest(topics=topics), 7).topics)
        request = messages.MetadataRequest(topics=[messages.MetadataRequestTopic(name=name) for name in names])
        self._wait(lambda: all(not one.error_code for one in admin.ask(request, 12).topics))
        self.ids = {one.name: one.topic_id for one in admin.ask(request, 12).topics}
        for name in ("open", "closed"):
            assert not admin.produce(name, None, [b"value"]).error_code
        for group_id in ("open", "closed", *(f"gone-{user}" for user in self.users)):
            admin.ask_until(commit(group_id, ["open", "closed"]), 8, lambda answer: _first_code(answer.topics))
        for name in ("open", "closed"):
            admin.init_producer_id(name)
            self.join(admin, f"modern-{name}", names=[name])
        all_profiles = profiles()
        creations = [creation(user, acl) for user in self.users for acl in all_profiles[user]]
        creations.append(creation("*", (TOPIC, "public", LITERAL, Operation.READ, ALLOW, "*")))
        assert all(not one.error_code for one in admin.ask(messages.CreateAclsRequest(creations=creations), 3).results)
        self._wait(lambda: self.acl_count() == len(creations))

    def acl_count(self) -> int:
        """The number of ACLs."""
        everything = messages.DescribeAclsRequest(
            resource_type_filter=1,
            pattern_type_filter=1,
            operation=1,
            permission_type=1,
            resource_name_filter=None,
            principal_filter=None,
            host_filter=None,
        )
        return sum(len(one.acls) for one in self._admin.ask(everything, 3).resources)

    def _wait(self, is_done: Any) -> None:
        deadline = time.monotonic() + _SECONDS
        while not is_done():
            assert time.monotonic() < deadline, "the broker does not show what was created"
            time.sleep(0.02)

    def join(
        self, client: AclClient, group_id: str, *, names: list[str] | None = None, pattern: str | None = None
    ) -> list[str]:
        """Join a group of the consumer protocol, and return the topics that the member is assigned."""
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id=group_id,
            member_id=f"member-of-{group_id}",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=names,
            subscribed_topic_regex=pattern,
            topic_partitions=[],
        )
        deadline = time.monotonic() + _SECONDS
        while True:
            answer = client.ask(request, 1)
            if answer.assignment is not None and answer.assignment.topic_partitions:
                by_id = {topic_id: name for name, topic_id in self.ids.items()}
                return sorted(by_id.get(one.topic_id, "?") for one in answer.assignment.topic_partitions)
            assert time.monotonic() < deadline, answer
            if answer.error_code == 0:
                request = messages.ConsumerGroupHeartbeatRequest(
                    group_id=group_id,
                    member_id=request.member_id,
                    member_epoch=answer.member_epoch,
                    subscribed_topic_names=None,
                    topic_partitions=None,
                    rebalance_timeout_ms=-1,
                )
            time.sleep(0.1)

    def observe(self, user: str) -> Iterator[tuple[str, Any]]:
        """Yield the name of each case, and what is compared of the response. The administrator sends other cases."""
        client = AclClient(self.address, user)
        names = {topic_id: name for name, topic_id in self.ids.items()}
        chosen = acl_cases() if user == "admin" else cases(user, self.ids)
        for name, (request, version) in chosen.items():
            if name == FIRST_DESCRIPTION:
                time.sleep(SECONDS_OF_METADATA)
            answer = client.exchange(request, version)
            deadline = time.monotonic() + _SECONDS
            while name == "Metadata that creates" and _is_new(answer) and time.monotonic() < deadline:
                time.sleep(0.05)
                answer = client.exchange(request, version)
            yield name, shown("", answer, names)
            if isinstance(answer, str):
                client = AclClient(self.address, user)


def _is_new(answer: Any) -> bool:
    codes = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE}
    return any(one.error_code in codes for one in answer.topics)


def _first_code(topics: Any) -> int:
    return int(topics[0].partitions[0].error_code)


def shown(name: str, value: Any, names: dict[UUID, str]) -> Any:
    """What is compared of a response: without what differs between any two brokers, lists in one order."""
    if isinstance(value, messages.CreatableTopicResult) and not value.topic_config_error_code:
        value.configs = []  # Apache Kafka returns all of them, and the embedded broker those of the request
    if isinstance(value, Struct):
        found = []
        code = ErrorCode(getattr(value, "error_code", 0))
        for key in fields(type(value)):
            one = getattr(value, key)
            is_refused = code.name.endswith("AUTHORIZATION_FAILED") or "Acl" in type(value).__name__
            if key == "error_message" and is_refused:
                found.append([key, "<refused>" if one is not None and one.startswith(_REFUSALS) else one])
            elif key not in _HIDDEN or (key == "host" and "principal" in fields(type(value))):
                found.append([key, shown(key, one, names)])
        return found
    if isinstance(value, list):
        return sorted((shown(name, one, names) for one in value), key=repr)
    if name.endswith("error_code"):
        return ErrorCode(value).name
    if name == "records":
        return len(value or b"")
    if name in ("producer_id", "session_id", "log_append_time_ms", "transaction_start_time_ms", "last_timestamp"):
        return (value > 0) - (value < 0)
    if name == "member_id":
        return bool(value)
    if isinstance(value, UUID):
        return names.get(value, "none" if not value.int else "new")
    return bytes(value).hex() if isinstance(value, (bytes, bytearray, memoryview)) else value


def compare(kafka: str, embedded: str, users: Iterable[str]) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield user, case, and what is compared of the responses of two brokers with these addresses.

    The administrator comes last.
    """
    chosen = list(users)
    theirs, ours = Subject(kafka, chosen), Subject(embedded, chosen)
    for user in (*chosen, "admin"):
        found = dict(ours.observe(user))
        for name, expected in theirs.observe(user):
            yield user, name, expected, found[name]
        time.sleep(SECONDS_OF_METADATA)  # the topics that were created and deleted are known to Apache Kafka
    for group_id, user in (("open", "all-open"), ("all", "all"), ("none", "no-topic-describe")):
        if user in chosen:
            their_topics, our_topics = (
                one.join(AclClient(one.address, user), group_id, pattern="open|closed") for one in (theirs, ours)
            )
            yield user, "ConsumerGroupHeartbeat with a regular expression", their_topics, our_topics


# The requests.


def commit(group_id: str, topics: list[str], ids: dict[str, UUID] | None = None) -> messages.OffsetCommitRequest:
    partitions = [messages.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="m")]
    named = [
        messages.OffsetCommitRequestTopic(
            name="" if ids else name, topic_id=ids.get(name, UNKNOWN_ID) if ids else UUID(int=0), partitions=partitions
        )
        for name in topics
    ]
    return messages.OffsetCommitRequest(group_id=group_id, topics=named)


def produce(
    topics: list[str], ids: dict[str, UUID] | None = None, *, transactional_id: str | None = None, acks: int = -1
) -> messages.ProduceRequest:
    batch = kcodec.encode_batch(
        [(None, b"value")],
        timestamp=1_700_000_000_000,
        producer_id=987_654 if transactional_id else -1,
        producer_epoch=0 if transactional_id else -1,
        base_sequence=0 if transactional_id else -1,
        is_transactional=transactional_id is not None,
    )
    data = [messages.PartitionProduceData(index=0, records=batch)]
    named = [
        messages.TopicProduceData(
            name="" if ids else name, topic_id=ids.get(name, UNKNOWN_ID) if ids else UUID(int=0), partition_data=data
        )
        for name in topics
    ]
    return messages.ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=5000, topic_data=named)


def fetch(topics: list[str], ids: dict[str, UUID] | None = None, **more: Any) -> messages.FetchRequest:
    partitions = [messages.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
    named = [
        messages.FetchTopic(
            topic="" if ids else name, topic_id=ids.get(name, UNKNOWN_ID) if ids else UUID(int=0), partitions=partitions
        )
        for name in topics
    ]
    return messages.FetchRequest(max_wait_ms=0, min_bytes=1, topics=named, **more)


def add_partitions(transactional_id: str, topics: list[str]) -> messages.AddPartitionsToTxnRequest:
    named = [messages.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in topics]
    return messages.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=987_654,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=named,
    )


def txn_commit(transactional_id: str, group_id: str, topics: list[str]) -> messages.TxnOffsetCommitRequest:
    partitions = [messages.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    named = [messages.TxnOffsetCommitRequestTopic(name=name, partitions=partitions) for name in topics]
    return messages.TxnOffsetCommitRequest(
        transactional_id=transactional_id, group_id=group_id, producer_id=987_654, producer_epoch=0, topics=named
    )


def offset_groups(ids: dict[str, UUID] | None = None) -> messages.OffsetFetchRequest:
    topics = [
        messages.OffsetFetchRequestTopics(
            name="" if ids else name,
            topic_id=ids.get(name, UNKNOWN_ID) if ids else UUID(int=0),
            partition_indexes=[0],
        )
        for name in ("open", "closed", "absent")
    ]
    return messages.OffsetFetchRequest(
        groups=[
            messages.OffsetFetchRequestGroup(group_id="open", topics=topics),
            messages.OffsetFetchRequestGroup(group_id="closed", topics=topics),
            messages.OffsetFetchRequestGroup(group_id="absent", topics=None),
        ]
    )


def alter(kind: Any, resource: Any, config: Any) -> Any:
    """A request that changes configurations of topics and a group. It is only validated."""
    topic = [config(name="retention.ms", value="1000")]
    group = [config(name="consumer.session.timeout.ms", value="50000")]
    resources = [
        *(resource(resource_type=2, resource_name=name, configs=topic) for name in ("open", "closed", "absent")),
        *(resource(resource_type=32, resource_name=name, configs=group) for name in ("open", "closed")),
    ]
    if kind is messages.IncrementalAlterConfigsRequest:  # Apache Kafka does not respond to AlterConfigs with these
        resources.append(resource(resource_type=2, resource_name="nulls", configs=[config(name="a", value=None)]))
        resources.append(resource(resource_type=2, resource_name="keys", configs=[*topic, *topic]))
        resources += [resource(resource_type=2, resource_name="twice", configs=topic) for _ in range(2)]
    return kind(validate_only=True, resources=resources)


def acl_filter(kind: Any, **changes: Any) -> Any:
    values = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    names: dict[str, Any] = dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter"))
    return kind(**{**values, **names, **changes})


def cases(user: str, ids: dict[str, UUID]) -> dict[str, Case]:
    """Name -> request and version. The name begins with that of the API."""
    m = messages
    three = ["open", "closed", "absent"]
    deleted = m.DeleteTopicState
    own = creation(f"x-{user}", (TOPIC, "x", LITERAL, Operation.READ, ALLOW, "*"))
    listed = [m.ListOffsetsPartition(partition_index=0, timestamp=-1)]
    epochs = [m.OffsetForLeaderPartition(partition=0, leader_epoch=0)]
    deletions = [m.DeleteRecordsPartition(partition_index=0, offset=0)]
    upsertion = m.ScramCredentialUpsertion(name="a", mechanism=1, iterations=1, salt=b"s", salted_password=b"p")
    named = [m.MetadataRequestTopic(name=name) for name in three]

    def coordinators(key_type: int) -> Any:
        return m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=three)

    return {
        "Metadata of all topics": (m.MetadataRequest(topics=None, include_topic_authorized_operations=True), 12),
        "Metadata of all topics in version 0": (m.MetadataRequest(topics=[]), 0),
        "Metadata by name": (
            m.MetadataRequest(
                topics=[*named, m.MetadataRequestTopic(name="public")],
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=True,
                include_cluster_authorized_operations=True,
            ),
            10,
        ),
        "Metadata in version 0": (m.MetadataRequest(topics=[named[1]], allow_auto_topic_creation=True), 0),
        "Metadata by id": (
            m.MetadataRequest(
                topics=[m.MetadataRequestTopic(name=None, topic_id=ids.get(name, UNKNOWN_ID)) for name in three],
                allow_auto_topic_creation=False,
            ),
            13,
        ),
        "Metadata that creates": (m.MetadataRequest(topics=[m.MetadataRequestTopic(name=f"made-{user}")]), 9),
        "DescribeTopicPartitions": (
            m.DescribeTopicPartitionsRequest(
                topics=[m.DescribeTopicPartitionsTopic(name=name) for name in three],
                response_partition_limit=100,
                cursor=None,
            ),
            0,
        ),
        "DescribeTopicPartitions of all topics": (
            m.DescribeTopicPartitionsRequest(topics=[], response_partition_limit=2000, cursor=None),
            0,
        ),
        "FindCoordinator of groups": (coordinators(0), 4),
        "FindCoordinator of transactions": (coordinators(1), 4),
        **{
            f"FindCoordinator of {key_type} {name}": (m.FindCoordinatorRequest(key=name, key_type=key_type), 3)
            for name in ("open", "closed")
            for key_type in (0, 1)
        },
        "FindCoordinator in version 0": (m.FindCoordinatorRequest(key="closed"), 0),
        "Produce": (produce(three), 9),
        "Produce by id": (produce(three, ids), 13),
        "Produce without acks": (produce(["closed"], acks=0), 9),
        "Produce in a transaction": (produce(["open", "closed"], transactional_id="open"), 11),
        "Produce in a closed transaction": (produce(["open"], transactional_id="closed"), 12),
        "Fetch": (fetch(three), 12),
        "Fetch by id": (fetch(three, ids), 17),
        "Fetch with a session": (fetch(three, ids, session_epoch=0), 16),
        "Fetch of a follower": (fetch(["absent"], replica_id=5), 12),
        "ListOffsets": (
            m.ListOffsetsRequest(
                replica_id=-1, topics=[m.ListOffsetsTopic(name=name, partitions=listed) for name in three]
            ),
            7,
        ),
        "OffsetForLeaderEpoch": (
            m.OffsetForLeaderEpochRequest(
                replica_id=-1, topics=[m.OffsetForLeaderTopic(topic=name, partitions=epochs) for name in three]
            ),
            4,
        ),
        "DeleteRecords": (
            m.DeleteRecordsRequest(
                topics=[m.DeleteRecordsTopic(name=name, partitions=deletions) for name in three], timeout_ms=5000
            ),
            2,
        ),
        "CreateTopics": (
            m.CreateTopicsRequest(
                topics=[
                    m.CreatableTopic(name=name, num_partitions=2, replication_factor=1)
                    for name in (f"new-{user}", f"other-{user}", "open", "twice", "twice", "__cluster_metadata", "no/")
                ],
                timeout_ms=5000,
            ),
            7,
        ),
        "CreatePartitions": (
            m.CreatePartitionsRequest(
                topics=[m.CreatePartitionsTopic(name=name, count=9, assignments=None) for name in three],
                timeout_ms=5000,
                validate_only=True,
            ),
            3,
        ),
        "DeleteTopics": (m.DeleteTopicsRequest(topic_names=[f"gone-{user}", "absent"], timeout_ms=5000), 5),
        "DeleteTopics by id": (
            m.DeleteTopicsRequest(
                topics=[deleted(name=None, topic_id=ids.get(f"idgone-{user}", UNKNOWN_ID)), deleted(name="absent")],
                timeout_ms=5000,
            ),
            6,
        ),
        "DeleteTopics by an unknown id": (
            m.DeleteTopicsRequest(topics=[deleted(name=None, topic_id=UNKNOWN_ID)], timeout_ms=5000),
            6,
        ),
        "InitProducerId": (m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4),
        **{
            f"InitProducerId of {name}": (
                m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000),
                4,
            )
            for name in ("open", "closed")
        },
        "AddPartitionsToTxn": (add_partitions("open", ["open"]), 3),
        "AddPartitionsToTxn with closed topics": (add_partitions("open", [*three, "__consumer_offsets"]), 3),
        "AddPartitionsToTxn of another id": (add_partitions("closed", ["open"]), 3),
        "AddPartitionsToTxn of a broker": (
            m.AddPartitionsToTxnRequest(
                transactions=[
                    m.AddPartitionsToTxnTransaction(
                        transactional_id="open",
                        producer_id=987_654,
                        verify_only=True,
                        topics=[m.AddPartitionsToTxnTopic(name="open", partitions=[0])],
                    )
                ]
            ),
            4,
        ),
        **{
            f"AddOffsetsToTxn {pair}": (
                m.AddOffsetsToTxnRequest(transactional_id=pair[0], producer_id=987_654, group_id=pair[1]),
                3,
            )
            for pair in (("open", "open"), ("open", "closed"), ("closed", "open"))
        },
        **{
            f"EndTxn of {name}": (m.EndTxnRequest(transactional_id=name, producer_id=987_654, committed=True), 3)
            for name in ("open", "closed")
        },
        **{
            f"TxnOffsetCommit {pair}": (txn_commit(*pair, three), 3)
            for pair in (("open", "open"), ("open", "closed"), ("closed", "open"))
        },
        "TxnOffsetCommit of a closed topic": (txn_commit("open", "open", ["closed"]), 3),
        "WriteTxnMarkers": (
            m.WriteTxnMarkersRequest(
                markers=[
                    m.WritableTxnMarker(
                        producer_id=5, topics=[m.WritableTxnMarkerTopic(name="absent", partition_indexes=[0])]
                    )
                ]
            ),
            1,
        ),
        "DescribeProducers": (
            m.DescribeProducersRequest(
                topics=[m.DescribeProducersTopic(name=name, partition_indexes=[1]) for name in three]
            ),
            0,
        ),
        "DescribeTransactions": (m.DescribeTransactionsRequest(transactional_ids=three), 0),
        "ListTransactions": (m.ListTransactionsRequest(), 1),
        **{
            f"JoinGroup of {name}, version {version}": (
                m.JoinGroupRequest(
                    group_id=name,
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=10_000,
                    protocol_type="consumer",
                    protocols=[m.JoinGroupRequestProtocol(name="range", metadata=b"")],
                ),
                version,
            )
            for name in ("open", "closed")
            for version in (5, 9)
        },
        **{
            f"SyncGroup of {name}": (
                m.SyncGroupRequest(
                    group_id=name, member_id="m", protocol_type="consumer", protocol_name="range", generation_id=1
                ),
                5,
            )
            for name in ("open", "closed")
        },
        **{
            f"Heartbeat of {name}": (m.HeartbeatRequest(group_id=name, member_id="m", generation_id=1), 4)
            for name in ("open", "closed")
        },
        **{
            f"LeaveGroup of {name}": (m.LeaveGroupRequest(group_id=name, members=[m.LeavingMember(member_id="m")]), 5)
            for name in ("open", "closed")
        },
        **{
            f"ConsumerGroupHeartbeat of {name} for {topic}": (
                m.ConsumerGroupHeartbeatRequest(
                    group_id=name,
                    member_id="m",
                    member_epoch=5,
                    subscribed_topic_names=None if topic == "no topic" else [topic],
                ),
                1,
            )
            for name, topic in (("open", "no topic"), ("open", "open"), ("open", "closed"), ("closed", "open"))
        },
        "ConsumerGroupDescribe": (
            m.ConsumerGroupDescribeRequest(
                group_ids=["modern-open", "modern-closed", *three], include_authorized_operations=True
            ),
            0,
        ),
        "OffsetCommit of open": (commit("open", three), 8),
        "OffsetCommit of closed": (commit("closed", three), 8),
        "OffsetCommit by id": (commit("open", three, ids), 10),
        "OffsetFetch": (offset_groups(), 8),
        "OffsetFetch by id": (offset_groups(ids), 10),
        **{
            f"OffsetFetch of {name} in version {version}": (
                m.OffsetFetchRequest(
                    group_id=name,
                    topics=[m.OffsetFetchRequestTopic(name=topic, partition_indexes=[0]) for topic in three],
                ),
                version,
            )
            for name in ("open", "closed")
            for version in (1, 7)
        },
        "OffsetFetch of all topics": (m.OffsetFetchRequest(group_id="open", topics=None), 7),
        "OffsetFetch of all topics of groups": (
            m.OffsetFetchRequest(
                groups=[m.OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("open", "closed")]
            ),
            9,
        ),
        **{
            f"OffsetDelete of {name}": (
                m.OffsetDeleteRequest(
                    group_id=name,
                    topics=[
                        m.OffsetDeleteRequestTopic(
                            name=topic, partitions=[m.OffsetDeleteRequestPartition(partition_index=1)]
                        )
                        for topic in three
                    ],
                ),
                0,
            )
            for name in three
        },
        "DescribeGroups": (m.DescribeGroupsRequest(groups=three, include_authorized_operations=True), 6),
        "ListGroups": (m.ListGroupsRequest(), 4),
        "DeleteGroups": (m.DeleteGroupsRequest(groups_names=[f"gone-{user}", "absent"]), 2),
        "DescribeConfigs": (
            m.DescribeConfigsRequest(
                resources=[
                    m.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=[key])
                    for kind, name, key in (
                        *((2, name, "retention.ms") for name in three),
                        *((32, name, "consumer.session.timeout.ms") for name in three),
                        (4, "1", "fetch.max.bytes"),
                    )
                ]
            ),
            4,
        ),
        "AlterConfigs": (alter(m.AlterConfigsRequest, m.AlterConfigsResource, m.AlterableConfig), 2),
        "IncrementalAlterConfigs": (
            alter(m.IncrementalAlterConfigsRequest, m.IncrementalAlterConfigsResource, m.IncrementalAlterableConfig),
            1,
        ),
        "IncrementalAlterConfigs of the broker": (
            m.IncrementalAlterConfigsRequest(
                validate_only=True,
                resources=[
                    m.IncrementalAlterConfigsResource(
                        resource_type=4,
                        resource_name="1",
                        configs=[
                            m.IncrementalAlterableConfig(
                                name="follower.replication.throttled.rate", config_operation=1, value=None
                            )
                        ],
                    )
                ],
            ),
            1,
        ),
        "ListConfigResources": (m.ListConfigResourcesRequest(resource_types=[32]), 1),
        "DescribeCluster": (m.DescribeClusterRequest(include_cluster_authorized_operations=True), 1),
        "DescribeCluster without operations": (m.DescribeClusterRequest(), 1),
        "DescribeQuorum": (
            m.DescribeQuorumRequest(
                topics=[
                    m.DescribeQuorumRequestTopic(
                        topic_name="absent", partitions=[m.DescribeQuorumRequestPartition(partition_index=0)]
                    )
                ]
            ),
            1,
        ),
        "DescribeLogDirs": (
            m.DescribeLogDirsRequest(topics=[m.DescribableLogDirTopic(topic="open", partitions=[0])]),
            4,
        ),
        "AlterReplicaLogDirs": (
            m.AlterReplicaLogDirsRequest(
                dirs=[
                    m.AlterReplicaLogDir(
                        path="/nowhere", topics=[m.AlterReplicaLogDirTopic(name="open", partitions=[0, 1])]
                    )
                ]
            ),
            2,
        ),
        "ElectLeaders": (
            m.ElectLeadersRequest(
                topic_partitions=[m.ElectLeadersTopicPartitions(topic="open", partitions=[0])], timeout_ms=5000
            ),
            2,
        ),
        "AlterPartitionReassignments": (
            m.AlterPartitionReassignmentsRequest(
                topics=[
                    m.ReassignableTopic(
                        name="absent", partitions=[m.ReassignablePartition(partition_index=0, replicas=[1])]
                    )
                ]
            ),
            0,
        ),
        "ListPartitionReassignments": (m.ListPartitionReassignmentsRequest(topics=None), 0),
        "DescribeUserScramCredentials": (
            m.DescribeUserScramCredentialsRequest(users=[m.ScramUserName(name="nobody")]),
            0,
        ),
        "AlterUserScramCredentials": (
            m.AlterUserScramCredentialsRequest(
                deletions=[m.ScramCredentialDeletion(name="nobody", mechanism=1)], upsertions=[upsertion]
            ),
            0,
        ),
        "CreateAcls": (m.CreateAclsRequest(creations=[own, own]), 3),
        "DescribeAcls": (acl_filter(m.DescribeAclsRequest, principal_filter=f"User:{user}"), 3),
        "DeleteAcls": (
            m.DeleteAclsRequest(filters=[acl_filter(m.DeleteAclsFilter, principal_filter=f"User:x-{user}")]),
            3,
        ),
    }


def acl_cases() -> dict[str, Case]:
    """Requests of the administrator about ACLs: invalid ones, duplicates, and filters."""
    m = messages
    good: Acl = (TOPIC, "acl-topic", LITERAL, Operation.READ, ALLOW, "*")
    invalid: dict[str, dict[str, Any]] = {
        "an unknown resource type": {"resource_type": 99},
        "any resource type": {"resource_type": 1},
        "resource type 0": {"resource_type": 0},
        "an unknown pattern type": {"resource_pattern_type": 99},
        "pattern type 0": {"resource_pattern_type": 0},
        "any pattern type": {"resource_pattern_type": 1},
        "pattern type MATCH": {"resource_pattern_type": 2},
        "an unknown operation": {"operation": 99},
        "any operation": {"operation": 1},
        "operation 0": {"operation": 0},
        "a negative operation": {"operation": -3},
        "an operation of another type": {"operation": Operation.CLUSTER_ACTION},
        "an unknown permission": {"permission_type": 99},
        "any permission": {"permission_type": 1},
        "permission 0": {"permission_type": 0},
        "a cluster of another name": {"resource_type": CLUSTER},
        "a prefixed cluster": {"resource_type": CLUSTER, "resource_name": "kafka-cluster", "resource_pattern_type": 4},
        "no name": {"resource_name": ""},
        "a name that no topic has": {"resource_name": "a/b"},
        "a principal without a colon": {"principal": "alice"},
        "an empty principal": {"principal": ""},
        "a principal of another type": {"principal": "Group:a"},
        "a principal without a name": {"principal": "User:"},
        "no host": {"host": ""},
        "a host that is no address": {"host": "example"},
        "a network": {"host": "10.0.0.0/8"},
        "a network with the bits of a host": {"host": "10.1.2.3/8"},
        "a network that is too small": {"host": "10.0.0.0/33"},
        "a network with a mask": {"host": "10.0.0.0/255.0.0.0"},
        "a network with a long size": {"host": "10.0.0.0/333"},
        "a network that is not an address": {"host": "example/8"},
        "a network with a short address": {"host": "10.0.0/8"},
        "a network of all": {"host": "0.0.0.0/0"},
        "a network of IPv6 without a size": {"host": "fe80::/"},
        "a network of IPv6 with a sign": {"host": "fe80::/-1"},
        "a network of IPv6 that is not an address": {"host": "fe80:::1/16"},
        "a network without a size": {"host": "10.0.0.0/"},
        "a network of IPv6": {"host": "fe80::/16"},
        "a wrong network of IPv6": {"host": "fe80::/300"},
        "a user resource": {"resource_type": ResourceType.USER, "operation": Operation.CREATE_TOKENS},
    }
    found: dict[str, Case] = {}
    for name, changes in invalid.items():
        one = creation("carol", good)
        for field, value in changes.items():
            setattr(one, field, value)
        found[f"CreateAcls with {name}"] = (m.CreateAclsRequest(creations=[one, creation("carol", good)]), 3)
    found["CreateAcls of duplicates"] = (m.CreateAclsRequest(creations=[creation("dan", good)] * 3), 2)
    found["CreateAcls of one that exists"] = (m.CreateAclsRequest(creations=[creation("dan", good)]), 1)
    found["CreateAcls of none"] = (m.CreateAclsRequest(creations=[]), 3)
    more: list[Acl] = [
        (TOPIC, "acl", PREFIXED, Operation.ALL, DENY, "127.0.0.1"),
        (TOPIC, "*", LITERAL, Operation.WRITE, ALLOW, "*"),
        (TOPIC, "*", PREFIXED, Operation.WRITE, ALLOW, "*"),
        (GROUP, "acl-topic", LITERAL, Operation.READ, ALLOW, "10.0.0.1"),
        (CLUSTER, CLUSTER_NAME, LITERAL, Operation.ALTER, ALLOW, "*"),
    ]
    found["CreateAcls of several"] = (m.CreateAclsRequest(creations=[creation("dan", acl) for acl in more]), 3)
    filters: dict[str, dict[str, Any]] = {
        "everything of a principal": {},
        "a resource type": {"resource_type_filter": GROUP},
        "a name": {"resource_name_filter": "acl-topic"},
        "a literal name": {"resource_name_filter": "acl-topic", "pattern_type_filter": LITERAL},
        "a prefix": {"resource_name_filter": "acl", "pattern_type_filter": PREFIXED},
        "all prefixes": {"pattern_type_filter": PREFIXED},
        "what matches a name": {"resource_name_filter": "acl-topic", "pattern_type_filter": 2},
        "what matches any name": {"pattern_type_filter": 2},
        "what matches the wildcard": {"resource_name_filter": "*", "pattern_type_filter": 2},
        "the wildcard": {"resource_name_filter": "*"},
        "an operation": {"operation": Operation.READ},
        "all operations": {"operation": ALL},
        "a permission": {"permission_type": DENY},
        "a host": {"host_filter": "10.0.0.1"},
        "any host": {"host_filter": "*"},
        "another principal": {"principal_filter": "User:*"},
        "no principal": {"principal_filter": ""},
        "an unknown resource type": {"resource_type_filter": 99},
        "resource type 0": {"resource_type_filter": 0},
        "an unknown pattern type": {"pattern_type_filter": 99},
        "pattern type 0": {"pattern_type_filter": 0},
        "an unknown operation": {"operation": 99},
        "operation 0": {"operation": 0},
        "an unknown permission": {"permission_type": 99},
    }
    for name, changes in filters.items():
        for version in (1, 3):
            values = {"principal_filter": "User:dan", **changes}
            found[f"DescribeAcls of {name}, version {version}"] = (acl_filter(m.DescribeAclsRequest, **values), version)
    for name, changes in reversed(filters.items()):
        values = {"principal_filter": "User:dan", **changes}
        one = acl_filter(m.DeleteAclsFilter, **values)
        found[f"CreateAcls before DeleteAcls of {name}"] = found["CreateAcls of several"]
        found[f"DeleteAcls of {name}"] = (m.DeleteAclsRequest(filters=[one, one]), 3)
    found["DeleteAcls of nothing"] = (m.DeleteAclsRequest(filters=[]), 3)
    for name in ("carol", "dan"):
        rest = acl_filter(m.DeleteAclsFilter, principal_filter=f"User:{name}")
        found[f"DeleteAcls of {name}"] = (m.DeleteAclsRequest(filters=[rest]), 2)
    return found
