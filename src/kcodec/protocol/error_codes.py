# SPDX-License-Identifier: Apache-2.0
"""Kafka's error codes, and the exception for a response with such a code.

Codes, names and the set of retriable errors are those of Kafka 4.4.0 (org.apache.kafka.common.protocol.Errors), and a
test compares them. The texts are kcodec's. ``retry`` is the remedy of all errors that Kafka calls retriable, and of no
others. The other remedies follow Kafka's transactional producer (TransactionManager, KIP-1050), from the point of view
of the application: ``abort`` the transaction and continue, ``recreate`` the producer, ``stop`` until something has been
changed. A caller that knows more than the code says passes its own remedy to `broker_error`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self

from kcodec.errors import (
    AbortableTransactionError,
    AuthorizationError,
    BrokerError,
    FatalTransactionError,
    ProducerFencedError,
    one_line,
)

# What a broker adds in words is shown up to here.
MAX_MESSAGE = 1000
_UNKNOWN_TEXT = "an error that this version of kcodec does not know"


class ErrorCode(IntEnum):
    """An error code, equal to its number, with the default advice for an application.

    A number that this version of kcodec does not know, as a newer broker may send, is a member named "UNKNOWN".
    """

    _value_: int
    remedy: str
    text: str

    def __new__(cls, code: int, remedy: str = "stop", text: str = _UNKNOWN_TEXT) -> Self:
        """Return a member; called once for each line below."""
        member = int.__new__(cls, code)
        member._value_, member.remedy, member.text = code, remedy, text
        return member

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, int):
            return None
        member = int.__new__(cls, value)
        member._name_, member._value_ = "UNKNOWN", value
        member.remedy, member.text = "stop", _UNKNOWN_TEXT
        return member

    @property
    def code(self) -> int:
        """The number of the error code."""
        return int(self)

    @property
    def retriable(self) -> bool:
        """Whether Kafka calls the error retriable."""
        return self.remedy == "retry"

    UNKNOWN_SERVER_ERROR = -1, "stop", "the broker failed with an error that has no code of its own"
    NONE = 0, "stop", "no error"
    OFFSET_OUT_OF_RANGE = 1, "stop", "the offset is outside the range of offsets that the log holds"
    CORRUPT_MESSAGE = 2, "retry", "the records are corrupt: their CRC, length or magic is invalid"
    UNKNOWN_TOPIC_OR_PARTITION = 3, "retry", "this broker does not know the topic or the partition"
    INVALID_FETCH_SIZE = 4, "stop", "the requested fetch size is invalid"
    LEADER_NOT_AVAILABLE = 5, "retry", "the partition has no leader at the moment"
    NOT_LEADER_OR_FOLLOWER = 6, "retry", "this broker is not the leader of the partition"
    REQUEST_TIMED_OUT = 7, "retry", "the broker did not finish the request within its timeout"
    BROKER_NOT_AVAILABLE = 8, "stop", "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, "retry", "this broker has no replica of the partition"
    MESSAGE_TOO_LARGE = 10, "stop", "a batch is larger than the topic's max.message.bytes"
    STALE_CONTROLLER_EPOCH = 11, "stop", "the controller moved to another node"
    OFFSET_METADATA_TOO_LARGE = 12, "stop", "the metadata of an offset is longer than the broker allows"
    NETWORK_EXCEPTION = 13, "retry", "the connection was lost before the response arrived"
    COORDINATOR_LOAD_IN_PROGRESS = 14, "retry", "the coordinator is still loading its state"
    COORDINATOR_NOT_AVAILABLE = 15, "retry", "no coordinator is available for this id at the moment"
    NOT_COORDINATOR = 16, "retry", "this broker is not the coordinator of this id"
    INVALID_TOPIC_EXCEPTION = 17, "stop", "the topic name is invalid, or clients may not write to this topic"
    RECORD_LIST_TOO_LARGE = 18, "stop", "the records are larger than a log segment"
    NOT_ENOUGH_REPLICAS = 19, "retry", "too few replicas are in sync, or the broker is still verifying the transaction"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, "retry", "the records were written, but too few replicas were in sync"
    INVALID_REQUIRED_ACKS = 21, "stop", "acks must be 0, 1 or -1"
    ILLEGAL_GENERATION = 22, "abort", "the group has a newer generation than this member"
    INCONSISTENT_GROUP_PROTOCOL = 23, "stop", "the members have no common assignor, or differ in protocol type"
    INVALID_GROUP_ID = 24, "stop", "the group id is invalid"
    UNKNOWN_MEMBER_ID = 25, "abort", "the group does not know this member id"
    INVALID_SESSION_TIMEOUT = 26, "stop", "the session timeout is outside the range that the broker allows"
    REBALANCE_IN_PROGRESS = 27, "abort", "the group is rebalancing; the member must join again"
    INVALID_COMMIT_OFFSET_SIZE = 28, "stop", "the offsets to commit do not fit into one record"
    TOPIC_AUTHORIZATION_FAILED = 29, "stop", "a permission on the topic is missing"
    GROUP_AUTHORIZATION_FAILED = 30, "stop", "a permission on the group is missing"
    CLUSTER_AUTHORIZATION_FAILED = 31, "stop", "a permission on the cluster is missing"
    INVALID_TIMESTAMP = 32, "stop", "a timestamp is outside the range that the topic allows"
    UNSUPPORTED_SASL_MECHANISM = 33, "stop", "the broker does not offer this SASL mechanism"
    ILLEGAL_SASL_STATE = 34, "stop", "the request is not allowed at this point of the SASL exchange"
    UNSUPPORTED_VERSION = 35, "stop", "the broker does not support this version or this feature"
    TOPIC_ALREADY_EXISTS = 36, "stop", "a topic with this name already exists"
    INVALID_PARTITIONS = 37, "stop", "the number of partitions is invalid"
    INVALID_REPLICATION_FACTOR = 38, "stop", "the replication factor is below 1 or above the number of brokers"
    INVALID_REPLICA_ASSIGNMENT = 39, "stop", "the assignment of replicas is invalid"
    INVALID_CONFIG = 40, "stop", "a configuration is invalid"
    NOT_CONTROLLER = 41, "retry", "this node is not the controller"
    INVALID_REQUEST = 42, "stop", "the request is malformed or contradicts itself"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "stop", "the message format of the topic does not support this"
    POLICY_VIOLATION = 44, "stop", "a policy of the cluster forbids this"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "abort", "the sequence number does not follow the last one in the partition"
    DUPLICATE_SEQUENCE_NUMBER = 46, "stop", "the partition already has records with these sequence numbers"
    INVALID_PRODUCER_EPOCH = 47, "abort", "the partition has seen a newer epoch of this producer"
    INVALID_TXN_STATE = 48, "recreate", "the transaction is in a state that does not allow this"
    INVALID_PRODUCER_ID_MAPPING = 49, "abort", "the transactional id is not assigned to this producer id"
    INVALID_TRANSACTION_TIMEOUT = 50, "stop", "not positive, or above the broker's transaction.max.timeout.ms"
    CONCURRENT_TRANSACTIONS = 51, "retry", "the previous transaction of this transactional id is still being completed"
    TRANSACTION_COORDINATOR_FENCED = 52, "stop", "another coordinator has taken over this transactional id"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = (
        53,
        "stop",
        "a permission on the transactional id is missing, or no id was given",
    )
    SECURITY_DISABLED = 54, "stop", "the cluster has no authorizer"
    OPERATION_NOT_ATTEMPTED = 55, "stop", "the operation was not attempted because another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, "retry", "the broker's disk failed"
    LOG_DIR_NOT_FOUND = 57, "stop", "the broker has no such log directory"
    SASL_AUTHENTICATION_FAILED = 58, "stop", "the broker rejected the credentials"
    UNKNOWN_PRODUCER_ID = 59, "abort", "the partition has no state for this producer id"
    REASSIGNMENT_IN_PROGRESS = 60, "stop", "the partition is being moved"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "stop", "delegation tokens are disabled"
    DELEGATION_TOKEN_NOT_FOUND = 62, "stop", "the delegation token does not exist"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "stop", "the delegation token belongs to another principal"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        "stop",
        "delegation tokens cannot be managed over PLAINTEXT, over TLS without client authentication, or over a "
        "connection that was authenticated by a delegation token",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "stop", "a permission on the delegation token is missing"
    DELEGATION_TOKEN_EXPIRED = 66, "stop", "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, "stop", "the type of the principal is invalid"
    NON_EMPTY_GROUP = 68, "stop", "the group has members"
    GROUP_ID_NOT_FOUND = 69, "stop", "the group does not exist"
    FETCH_SESSION_ID_NOT_FOUND = 70, "retry", "the broker has forgotten the fetch session"
    INVALID_FETCH_SESSION_EPOCH = 71, "retry", "the fetch session is at another epoch"
    LISTENER_NOT_FOUND = 72, "retry", "the leader has no listener with the name of the listener in use"
    TOPIC_DELETION_DISABLED = 73, "stop", "the cluster does not allow topics to be deleted"
    FENCED_LEADER_EPOCH = 74, "retry", "the broker knows a newer leader epoch"
    UNKNOWN_LEADER_EPOCH = 75, "retry", "the broker does not know this leader epoch yet"
    UNSUPPORTED_COMPRESSION_TYPE = 76, "stop", "the requested version does not support this compression type"
    STALE_BROKER_EPOCH = 77, "stop", "the broker epoch is out of date"
    OFFSET_NOT_AVAILABLE = 78, "retry", "a new leader does not know its high watermark yet"
    MEMBER_ID_REQUIRED = 79, "stop", "the member must join again with the member id of this response"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "retry", "the preferred leader is not available"
    GROUP_MAX_SIZE_REACHED = 81, "stop", "the group has its maximum number of members"
    FENCED_INSTANCE_ID = 82, "abort", "another member with the same group instance id has taken over"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "retry", "no replica that may become leader is available"
    ELECTION_NOT_NEEDED = 84, "retry", "the partition already has the requested leader"
    NO_REASSIGNMENT_IN_PROGRESS = 85, "stop", "the partition is not being moved"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "stop", "the group still reads this topic"
    INVALID_RECORD = 87, "stop", "a record is invalid, for example it has no key in a compacted topic"
    UNSTABLE_OFFSET_COMMIT = 88, "retry", "the offset belongs to a transaction that has not ended yet"
    THROTTLING_QUOTA_EXCEEDED = 89, "retry", "the quota for changes is exceeded; repeat the request later"
    PRODUCER_FENCED = 90, "stop", "another producer has taken over this transactional id"
    RESOURCE_NOT_FOUND = 91, "stop", "the resource does not exist"
    DUPLICATE_RESOURCE = 92, "stop", "the request names the resource twice"
    UNACCEPTABLE_CREDENTIAL = 93, "stop", "the credential is not acceptable"
    INCONSISTENT_VOTER_SET = 94, "stop", "the voters given are not those of the cluster"
    INVALID_UPDATE_VERSION = 95, "stop", "the version of the updated item is not the current one"
    FEATURE_UPDATE_FAILED = 96, "stop", "the features could not be changed"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "stop", "the forwarded principal cannot be read"
    SNAPSHOT_NOT_FOUND = 98, "stop", "the snapshot does not exist"
    POSITION_OUT_OF_RANGE = 99, "stop", "the position is outside the snapshot"
    UNKNOWN_TOPIC_ID = 100, "retry", "this broker does not know the topic id"
    DUPLICATE_BROKER_REGISTRATION = 101, "stop", "a broker with this id is already registered"
    BROKER_ID_NOT_REGISTERED = 102, "stop", "no broker with this id is registered"
    INCONSISTENT_TOPIC_ID = 103, "retry", "the topic has another id: it was deleted and created again"
    INCONSISTENT_CLUSTER_ID = 104, "stop", "the broker belongs to another cluster"
    TRANSACTIONAL_ID_NOT_FOUND = 105, "stop", "the transactional id does not exist"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, "retry", "the fetch session mixes topic ids and names"
    INELIGIBLE_REPLICA = 107, "stop", "the replica may not join the in-sync replicas"
    NEW_LEADER_ELECTED = 108, "stop", "this change led to the election of a new leader for the partition"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "stop", "the offset is in tiered storage"
    FENCED_MEMBER_EPOCH = 110, "abort", "the group has fenced this member epoch; the member must join again"
    UNRELEASED_INSTANCE_ID = 111, "stop", "another member still uses this group instance id"
    UNSUPPORTED_ASSIGNOR = 112, "stop", "the broker does not support this assignor"
    STALE_MEMBER_EPOCH = 113, "abort", "the request has an older epoch than the member"
    MISMATCHED_ENDPOINT_TYPE = 114, "stop", "a request for brokers reached a controller, or the reverse"
    UNSUPPORTED_ENDPOINT_TYPE = 115, "stop", "this node does not support that type of endpoint"
    UNKNOWN_CONTROLLER_ID = 116, "stop", "no controller with this id is known"
    UNKNOWN_SUBSCRIPTION_ID = 117, "stop", "the telemetry subscription id is out of date"
    TELEMETRY_TOO_LARGE = 118, "stop", "the telemetry is larger than the broker allows"
    INVALID_REGISTRATION = 119, "stop", "the controller refuses this registration"
    TRANSACTION_ABORTABLE = 120, "abort", "the transaction failed and must be aborted"
    INVALID_RECORD_STATE = 121, "stop", "the state of the shared record does not allow this"
    SHARE_SESSION_NOT_FOUND = 122, "retry", "the broker has forgotten the share session"
    INVALID_SHARE_SESSION_EPOCH = 123, "retry", "the share session is at another epoch"
    FENCED_STATE_EPOCH = 124, "stop", "the share coordinator knows a newer state epoch"
    INVALID_VOTER_KEY = 125, "stop", "the voter's key does not match the node"
    DUPLICATE_VOTER = 126, "stop", "the node is already a voter"
    VOTER_NOT_FOUND = 127, "stop", "the node is not a voter"
    INVALID_REGULAR_EXPRESSION = 128, "stop", "the regular expression is invalid"
    REBOOTSTRAP_REQUIRED = 129, "stop", "the client must start again from the bootstrap servers"
    STREAMS_INVALID_TOPOLOGY = 130, "stop", "the Streams topology is invalid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "stop", "the Streams topology epoch is invalid"
    STREAMS_TOPOLOGY_FENCED = 132, "stop", "the Streams topology epoch is out of date"
    SHARE_SESSION_LIMIT_REACHED = 133, "retry", "the broker has its maximum number of share sessions"
    GROUP_DELETION_FAILED = 134, "stop", "the group could not be deleted"
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = (
        135,
        "stop",
        "the broker could not take the description of the topology",
    )
    CONTROLLER_ID_NOT_REGISTERED = 136, "stop", "no controller with this id is registered"


#: Every code that Kafka has, by number.
ERRORS: dict[int, ErrorCode] = {int(code): code for code in ErrorCode}

_KINDS: dict[int, type[BrokerError]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: AuthorizationError,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: AuthorizationError,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: AuthorizationError,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: AuthorizationError,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: AuthorizationError,
    ErrorCode.INVALID_TXN_STATE: FatalTransactionError,
    ErrorCode.PRODUCER_FENCED: ProducerFencedError,
    ErrorCode.TRANSACTION_ABORTABLE: AbortableTransactionError,
}


def error_code(code: int) -> ErrorCode:
    """Return the member for a code. A number that Kafka does not use gives a member named "UNKNOWN"."""
    return ERRORS.get(code) or ErrorCode(code)


def broker_error(
    code: int,
    doing: str,
    *,
    resource: object = None,
    message: str | None = None,
    remedy: str | None = None,
    kind: type[BrokerError] | None = None,
    text: str | None = None,
) -> BrokerError:
    """Return the exception for a response with this code; it is not raised.

    doing:    the request and its broker ("EndTxn of 'orders' at node 3"), with which the text begins.
    resource: the topic, partition, group or transactional id concerned. It is added to the text unless `doing` names it
              in quotation marks.
    message:  the broker's own message; shortened if it is long.
    remedy:   replaces that of the table ("retry", "abort", "recreate", "stop").
    kind:     replaces the exception class that follows from the code.
    text:     replaces that of the table, if more is known about the cause.
    """
    row = error_code(code)
    if code == ErrorCode.NONE:
        raise ValueError(f"{doing}: code 0 (NONE) does not mean an error")
    reason = f"{doing}: {row.text if text is None else text}"
    if resource is not None and repr(str(resource)) not in doing:
        reason += f" ({resource})"
    if message:
        reason += f'; the broker says "{one_line(message, MAX_MESSAGE)}"'
    return (kind or _KINDS.get(code, BrokerError))(
        reason,
        code=code,
        name=row.name,
        retriable=row.retriable,
        remedy=row.remedy if remedy is None else remedy,
        resource=resource,
    )


def note_final(error: BaseException) -> None:
    """Set the remedy of an error that is raised again until the application changes something.

    An abort or another producer does not remove the cause of an error of a consumer or its group, so the remedy becomes
    "stop".
    """
    if isinstance(error, BrokerError) and not error.retriable:
        error.remedy = "stop"
