# SPDX-License-Identifier: Apache-2.0
"""Kafka's error codes, one row each, and the exception for a response with such a code.

A row: code, name, remedy, text. Codes, names and which errors are retriable are those of Kafka 4.3.1
(org.apache.kafka.common.protocol.Errors), compared by a test; the texts are our own. ``retry`` stands for all that
Kafka calls retriable, and for nothing else. The other remedies are what Kafka's transactional producer does
(TransactionManager, KIP-1050), seen from the application: ``abort`` the transaction and go on, ``recreate`` the
producer, ``stop`` until something was changed. A caller that knows more than the code says gives its own remedy.
"""

from __future__ import annotations

from typing import NamedTuple

from kcodec.errors import (
    AbortableTransactionError,
    AuthorizationError,
    BrokerError,
    FatalTransactionError,
    ProducerFencedError,
    one_line,
)

#: The broker met an error that it has no code for; the request may have been carried out.
UNKNOWN_SERVER_ERROR = -1

_TABLE = """\
 -1 UNKNOWN_SERVER_ERROR                  stop     the broker failed in a way that it has no code for
  0 NONE                                  stop     no error
  1 OFFSET_OUT_OF_RANGE                   stop     the log does not reach to this offset, or no longer
  2 CORRUPT_MESSAGE                       retry    the records are corrupt: CRC, length or magic is invalid
  3 UNKNOWN_TOPIC_OR_PARTITION            retry    this broker knows no such topic or partition (yet)
  4 INVALID_FETCH_SIZE                    stop     the size asked for makes no sense
  5 LEADER_NOT_AVAILABLE                  retry    the partition has no leader at the moment
  6 NOT_LEADER_OR_FOLLOWER                retry    this broker does not lead the partition (any more, or yet)
  7 REQUEST_TIMED_OUT                     retry    the broker could not finish within the time given
  8 BROKER_NOT_AVAILABLE                  stop     the broker is not available
  9 REPLICA_NOT_AVAILABLE                 retry    this broker holds no replica of the partition
 10 MESSAGE_TOO_LARGE                     stop     a batch is larger than the topic's max.message.bytes
 11 STALE_CONTROLLER_EPOCH                stop     the controller moved to another node
 12 OFFSET_METADATA_TOO_LARGE             stop     the metadata of an offset is longer than the broker allows
 13 NETWORK_EXCEPTION                     retry    the connection broke before the response
 14 COORDINATOR_LOAD_IN_PROGRESS          retry    the coordinator is still reading its log
 15 COORDINATOR_NOT_AVAILABLE             retry    there is no coordinator for this id at the moment
 16 NOT_COORDINATOR                       retry    this broker is not the coordinator of this id
 17 INVALID_TOPIC_EXCEPTION               stop     no topic may have this name, or clients may not write to it
 18 RECORD_LIST_TOO_LARGE                 stop     the records are larger than a segment of the log
 19 NOT_ENOUGH_REPLICAS                   retry    too few replicas are in sync, or the transaction is being looked up
 20 NOT_ENOUGH_REPLICAS_AFTER_APPEND      retry    written, but then too few replicas were in sync
 21 INVALID_REQUIRED_ACKS                 stop     acks may be 0, 1 or -1
 22 ILLEGAL_GENERATION                    abort    the group has a newer generation than this member
 23 INCONSISTENT_GROUP_PROTOCOL           stop     the group's members agree on no assignor, or differ in protocol type
 24 INVALID_GROUP_ID                      stop     no group may have this id
 25 UNKNOWN_MEMBER_ID                     abort    the group does not know this member (any more)
 26 INVALID_SESSION_TIMEOUT               stop     the session time-out is outside what the broker allows
 27 REBALANCE_IN_PROGRESS                 abort    the group is rebalancing; the member has to join again
 28 INVALID_COMMIT_OFFSET_SIZE            stop     the offsets to commit do not fit into one record
 29 TOPIC_AUTHORIZATION_FAILED            stop     a permission on the topic is missing
 30 GROUP_AUTHORIZATION_FAILED            stop     a permission on the group is missing
 31 CLUSTER_AUTHORIZATION_FAILED          stop     a permission on the cluster is missing
 32 INVALID_TIMESTAMP                     stop     a timestamp is outside what the topic allows
 33 UNSUPPORTED_SASL_MECHANISM            stop     the broker does not offer this SASL mechanism
 34 ILLEGAL_SASL_STATE                    stop     this request does not belong here in the SASL exchange
 35 UNSUPPORTED_VERSION                   stop     the broker does not support this version, or this feature
 36 TOPIC_ALREADY_EXISTS                  stop     there is a topic of this name
 37 INVALID_PARTITIONS                    stop     the number of partitions is not possible
 38 INVALID_REPLICATION_FACTOR            stop     not possible: below 1, or more than there are brokers
 39 INVALID_REPLICA_ASSIGNMENT            stop     the assignment of replicas is not possible
 40 INVALID_CONFIG                        stop     a configuration is not valid
 41 NOT_CONTROLLER                        retry    this node is not the controller
 42 INVALID_REQUEST                       stop     the broker finds the request contradictory, or malformed
 43 UNSUPPORTED_FOR_MESSAGE_FORMAT        stop     the format of the topic's records does not allow this
 44 POLICY_VIOLATION                      stop     a policy of the cluster forbids this
 45 OUT_OF_ORDER_SEQUENCE_NUMBER          abort    the sequence number does not follow the last one in the partition
 46 DUPLICATE_SEQUENCE_NUMBER             stop     the partition has these sequence numbers already
 47 INVALID_PRODUCER_EPOCH                abort    the partition has seen a newer epoch of this producer
 48 INVALID_TXN_STATE                     recreate the transaction is in no state that allows this
 49 INVALID_PRODUCER_ID_MAPPING           abort    the transactional id does not belong to this producer id (any more)
 50 INVALID_TRANSACTION_TIMEOUT           stop     not positive, or above the broker's transaction.max.timeout.ms
 51 CONCURRENT_TRANSACTIONS               retry    the transaction before this one is still being ended
 52 TRANSACTION_COORDINATOR_FENCED        stop     another coordinator took over this transactional id
 53 TRANSACTIONAL_ID_AUTHORIZATION_FAILED stop     a permission on the transactional id is missing, or no id was given
 54 SECURITY_DISABLED                     stop     the cluster has no authorizer
 55 OPERATION_NOT_ATTEMPTED               stop     not tried, as another part of the request failed
 56 KAFKA_STORAGE_ERROR                   retry    the broker's disk failed
 57 LOG_DIR_NOT_FOUND                     stop     the broker has no such log directory
 58 SASL_AUTHENTICATION_FAILED            stop     the credentials were refused
 59 UNKNOWN_PRODUCER_ID                   abort    the partition knows nothing of this producer id (any more)
 60 REASSIGNMENT_IN_PROGRESS              stop     the partition is being moved
 61 DELEGATION_TOKEN_AUTH_DISABLED        stop     delegation tokens are switched off
 62 DELEGATION_TOKEN_NOT_FOUND            stop     there is no such delegation token
 63 DELEGATION_TOKEN_OWNER_MISMATCH       stop     the delegation token belongs to another principal
 64 DELEGATION_TOKEN_REQUEST_NOT_ALLOWED  stop     delegation tokens need a connection that is authenticated otherwise
 65 DELEGATION_TOKEN_AUTHORIZATION_FAILED stop     a permission on the delegation token is missing
 66 DELEGATION_TOKEN_EXPIRED              stop     the delegation token is too old
 67 INVALID_PRINCIPAL_TYPE                stop     there is no such type of principal
 68 NON_EMPTY_GROUP                       stop     the group has members
 69 GROUP_ID_NOT_FOUND                    stop     there is no such group
 70 FETCH_SESSION_ID_NOT_FOUND            retry    the broker has forgotten the fetch session
 71 INVALID_FETCH_SESSION_EPOCH           retry    the fetch session is at another epoch
 72 LISTENER_NOT_FOUND                    retry    the leader has no listener of the name this one has
 73 TOPIC_DELETION_DISABLED               stop     the cluster does not allow topics to be deleted
 74 FENCED_LEADER_EPOCH                   retry    the broker knows a newer leader epoch
 75 UNKNOWN_LEADER_EPOCH                  retry    the broker does not know this leader epoch (yet)
 76 UNSUPPORTED_COMPRESSION_TYPE          stop     the version asked for cannot carry this compression
 77 STALE_BROKER_EPOCH                    stop     the broker has registered again since
 78 OFFSET_NOT_AVAILABLE                  retry    a new leader does not know its high watermark yet
 79 MEMBER_ID_REQUIRED                    stop     join again, with the member id of this response
 80 PREFERRED_LEADER_NOT_AVAILABLE        retry    the preferred leader is not available
 81 GROUP_MAX_SIZE_REACHED                stop     the group is full
 82 FENCED_INSTANCE_ID                    abort    another member with the same group instance id took over
 83 ELIGIBLE_LEADERS_NOT_AVAILABLE        retry    no replica that may lead is available
 84 ELECTION_NOT_NEEDED                   retry    the partition has the leader it should have
 85 NO_REASSIGNMENT_IN_PROGRESS           stop     the partition is not being moved
 86 GROUP_SUBSCRIBED_TO_TOPIC             stop     the group still reads this topic
 87 INVALID_RECORD                        stop     a record is not valid: say, no key in a compacted topic
 88 UNSTABLE_OFFSET_COMMIT                retry    the offset is part of a transaction that is not ended yet
 89 THROTTLING_QUOTA_EXCEEDED             retry    too many changes for the quota; later
 90 PRODUCER_FENCED                       stop     another producer took over this transactional id
 91 RESOURCE_NOT_FOUND                    stop     there is no such resource
 92 DUPLICATE_RESOURCE                    stop     the resource is named twice
 93 UNACCEPTABLE_CREDENTIAL               stop     the credential is not acceptable
 94 INCONSISTENT_VOTER_SET                stop     the voters given are not those of the cluster
 95 INVALID_UPDATE_VERSION                stop     the version of what is to be updated is not the current one
 96 FEATURE_UPDATE_FAILED                 stop     the features could not be changed
 97 PRINCIPAL_DESERIALIZATION_FAILURE     stop     the forwarded principal cannot be read
 98 SNAPSHOT_NOT_FOUND                    stop     there is no such snapshot
 99 POSITION_OUT_OF_RANGE                 stop     the position is outside the snapshot
100 UNKNOWN_TOPIC_ID                      retry    this broker knows no topic of this id (yet)
101 DUPLICATE_BROKER_REGISTRATION         stop     a broker of this id is registered
102 BROKER_ID_NOT_REGISTERED              stop     no broker of this id is registered
103 INCONSISTENT_TOPIC_ID                 retry    the topic has another id: it was deleted and made again
104 INCONSISTENT_CLUSTER_ID               stop     this is another cluster
105 TRANSACTIONAL_ID_NOT_FOUND            stop     there is no such transactional id
106 FETCH_SESSION_TOPIC_ID_ERROR          retry    the fetch session mixes topic ids and names
107 INELIGIBLE_REPLICA                    stop     the replica may not join those in sync
108 NEW_LEADER_ELECTED                    stop     the partition has a new leader through this very change
109 OFFSET_MOVED_TO_TIERED_STORAGE        stop     the offset lies in tiered storage
110 FENCED_MEMBER_EPOCH                   abort    the group fenced this member; it has to join again
111 UNRELEASED_INSTANCE_ID                stop     another member still uses this group instance id
112 UNSUPPORTED_ASSIGNOR                  stop     the broker has no such assignor
113 STALE_MEMBER_EPOCH                    abort    the member is at a newer epoch than it said
114 MISMATCHED_ENDPOINT_TYPE              stop     a controller was asked as if it were a broker, or the reverse
115 UNSUPPORTED_ENDPOINT_TYPE             stop     this node does not support that type of endpoint
116 UNKNOWN_CONTROLLER_ID                 stop     there is no controller of this id
117 UNKNOWN_SUBSCRIPTION_ID               stop     the telemetry subscription is another one by now
118 TELEMETRY_TOO_LARGE                   stop     the telemetry is larger than the broker allows
119 INVALID_REGISTRATION                  stop     the controller refuses this registration
120 TRANSACTION_ABORTABLE                 abort    the transaction cannot go on; it can be aborted
121 INVALID_RECORD_STATE                  stop     the shared record is in no state that allows this
122 SHARE_SESSION_NOT_FOUND               retry    the broker has forgotten the share session
123 INVALID_SHARE_SESSION_EPOCH           retry    the share session is at another epoch
124 FENCED_STATE_EPOCH                    stop     the share coordinator knows a newer state epoch
125 INVALID_VOTER_KEY                     stop     the voter's key is not that of the node
126 DUPLICATE_VOTER                       stop     the node is a voter
127 VOTER_NOT_FOUND                       stop     the node is no voter
128 INVALID_REGULAR_EXPRESSION            stop     the regular expression is not valid
129 REBOOTSTRAP_REQUIRED                  stop     the client has to begin with the bootstrap servers again
130 STREAMS_INVALID_TOPOLOGY              stop     the Streams topology is not valid
131 STREAMS_INVALID_TOPOLOGY_EPOCH        stop     the Streams topology epoch is not valid
132 STREAMS_TOPOLOGY_FENCED               stop     the Streams topology epoch is out of date
133 SHARE_SESSION_LIMIT_REACHED           retry    the broker has as many share sessions as it may
"""

# What a broker adds in words is shown up to here.
MAX_MESSAGE = 1000
_UNKNOWN_TEXT = "an error that this version of kcodec does not know"

_KINDS: dict[int, type[BrokerError]] = {
    **dict.fromkeys((29, 30, 31, 53, 65), AuthorizationError),
    48: FatalTransactionError,
    90: ProducerFencedError,
    120: AbortableTransactionError,
}


class ErrorCode(NamedTuple):
    """A row. retriable: Kafka calls it so; remedy: the default advice for an application."""

    code: int
    name: str
    retriable: bool
    text: str
    remedy: str


def _rows() -> dict[int, ErrorCode]:
    rows = {}
    for line in _TABLE.splitlines():
        code, name, remedy, text = line.split(maxsplit=3)
        rows[int(code)] = ErrorCode(int(code), name, remedy == "retry", text, remedy)
    return rows


#: Every code Kafka has, by number.
ERRORS: dict[int, ErrorCode] = _rows()


def error_code(code: int) -> ErrorCode:
    """The row of a code; of one that is not in the table, a row named "UNKNOWN"."""
    return ERRORS.get(code) or ErrorCode(code, "UNKNOWN", False, _UNKNOWN_TEXT, "stop")


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

    doing:    what was asked of whom ("EndTxn of 'orders' at node 3"); the text begins with it.
    resource: the topic, partition, group or transactional id that is meant.
    message:  what the broker adds in words; shown in part if it is long.
    remedy:   in place of the table's ("retry", "abort", "recreate", "stop").
    kind:     in place of the class that follows from the code.
    text:     in place of the table's, where more is known than that a broker responded with this code.
    """
    row = error_code(code)
    if code == 0:
        raise ValueError(f"{doing}: code 0 is no error")
    reason = f"{doing}: {row.text if text is None else text}"
    if resource is not None:
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

    An abort, or another producer, does not change what a consumer or its group met: the remedy becomes "stop".
    """
    if isinstance(error, BrokerError) and not error.retriable:
        error.remedy = "stop"
