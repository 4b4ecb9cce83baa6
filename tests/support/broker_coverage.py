# SPDX-License-Identifier: Apache-2.0
"""The error codes of each API and the transitions of transactional ids that random sequences must reach.

EXPECTED lists the error codes that one node can return. Each must occur LEAST times in ALL sequences. IMPOSSIBLE lists
those that one node cannot return, or not to these requests, with the reason.
"""

from __future__ import annotations

from collections import Counter

LEAST, ALL = 20, 2000

_EXPECTED = """
AddOffsetsToTxn: NONE CONCURRENT_TRANSACTIONS INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING INVALID_REQUEST
    PRODUCER_FENCED
AddPartitionsToTxn: NONE CONCURRENT_TRANSACTIONS INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING INVALID_REQUEST
    OPERATION_NOT_ATTEMPTED PRODUCER_FENCED TOPIC_AUTHORIZATION_FAILED TRANSACTION_ABORTABLE UNKNOWN_TOPIC_OR_PARTITION
ConsumerGroupHeartbeat: NONE FENCED_MEMBER_EPOCH GROUP_ID_NOT_FOUND INVALID_REQUEST UNKNOWN_MEMBER_ID
DeleteGroups: NONE GROUP_ID_NOT_FOUND NON_EMPTY_GROUP
DeleteRecords: NONE INVALID_TOPIC_EXCEPTION OFFSET_OUT_OF_RANGE POLICY_VIOLATION UNKNOWN_TOPIC_OR_PARTITION
DescribeProducers: NONE UNKNOWN_TOPIC_OR_PARTITION
DescribeTransactions: NONE INVALID_REQUEST TRANSACTIONAL_ID_NOT_FOUND
EndTxn: NONE CONCURRENT_TRANSACTIONS INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING INVALID_REQUEST
    INVALID_TXN_STATE PRODUCER_FENCED
Fetch: NONE FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH OFFSET_OUT_OF_RANGE UNKNOWN_LEADER_EPOCH
    UNKNOWN_TOPIC_ID UNKNOWN_TOPIC_OR_PARTITION
FindCoordinator: NONE INVALID_REQUEST
Heartbeat: NONE FENCED_INSTANCE_ID ILLEGAL_GENERATION UNKNOWN_MEMBER_ID
InitProducerId: NONE CONCURRENT_TRANSACTIONS INVALID_PRODUCER_EPOCH INVALID_REQUEST INVALID_TRANSACTION_TIMEOUT
    PRODUCER_FENCED UNKNOWN_SERVER_ERROR
JoinGroup: NONE INVALID_GROUP_ID MEMBER_ID_REQUIRED UNKNOWN_MEMBER_ID
LeaveGroup: NONE FENCED_INSTANCE_ID UNKNOWN_MEMBER_ID
ListOffsets: NONE UNKNOWN_LEADER_EPOCH UNKNOWN_TOPIC_OR_PARTITION UNSUPPORTED_VERSION
ListTransactions: NONE INVALID_REGULAR_EXPRESSION
OffsetCommit: NONE FENCED_INSTANCE_ID GROUP_ID_NOT_FOUND ILLEGAL_GENERATION OFFSET_METADATA_TOO_LARGE
    REBALANCE_IN_PROGRESS STALE_MEMBER_EPOCH UNKNOWN_MEMBER_ID UNKNOWN_TOPIC_ID UNKNOWN_TOPIC_OR_PARTITION
OffsetDelete: NONE GROUP_ID_NOT_FOUND GROUP_SUBSCRIBED_TO_TOPIC INVALID_GROUP_ID UNKNOWN_TOPIC_OR_PARTITION
OffsetFetch: NONE STALE_MEMBER_EPOCH UNKNOWN_MEMBER_ID UNKNOWN_TOPIC_ID UNSTABLE_OFFSET_COMMIT
OffsetForLeaderEpoch: NONE UNKNOWN_LEADER_EPOCH UNKNOWN_TOPIC_OR_PARTITION
Produce: NONE CONCURRENT_TRANSACTIONS CORRUPT_MESSAGE INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING INVALID_RECORD
    INVALID_REQUIRED_ACKS INVALID_TIMESTAMP INVALID_TOPIC_EXCEPTION INVALID_TXN_STATE MESSAGE_TOO_LARGE
    NOT_ENOUGH_REPLICAS OUT_OF_ORDER_SEQUENCE_NUMBER TRANSACTIONAL_ID_AUTHORIZATION_FAILED TRANSACTION_ABORTABLE
    UNKNOWN_TOPIC_ID UNKNOWN_TOPIC_OR_PARTITION UNSUPPORTED_COMPRESSION_TYPE
SyncGroup: NONE FENCED_INSTANCE_ID ILLEGAL_GENERATION INCONSISTENT_GROUP_PROTOCOL UNKNOWN_MEMBER_ID
TxnOffsetCommit: NONE CONCURRENT_TRANSACTIONS FENCED_INSTANCE_ID GROUP_ID_NOT_FOUND ILLEGAL_GENERATION INVALID_GROUP_ID
    INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING INVALID_REQUEST INVALID_TXN_STATE OFFSET_METADATA_TOO_LARGE
    STALE_MEMBER_EPOCH TRANSACTION_ABORTABLE UNKNOWN_MEMBER_ID UNKNOWN_TOPIC_ID UNKNOWN_TOPIC_OR_PARTITION
WriteTxnMarkers: NONE INVALID_PRODUCER_EPOCH TRANSACTION_COORDINATOR_FENCED UNKNOWN_TOPIC_OR_PARTITION
"""

#: Transitions of a transactional id in the log; "none" is a name that the log does not have, or not any more.
TRANSITIONS = {
    ("none", "Empty"),
    *((before, "Empty") for before in ("Empty", "CompleteCommit", "CompleteAbort")),
    *((before, "Ongoing") for before in ("Empty", "Ongoing", "CompleteCommit", "CompleteAbort")),
    *((before, "PrepareAbort") for before in ("Empty", "Ongoing", "CompleteCommit", "CompleteAbort")),
    ("Ongoing", "PrepareCommit"),
    ("PrepareCommit", "CompleteCommit"),
    ("PrepareAbort", "CompleteAbort"),
    *((before, "none") for before in ("Empty", "CompleteCommit", "CompleteAbort")),
}

#: What differs between the brokers and is masked, or kept out of the sequences.
LISTED_DIFFERENCES = [
    "The order of partitions and topics within a list of a response, and within a record of a coordinator's log, "
    "follows hash tables on Kafka. Lists are sorted before they are compared; the sizes of records are equal.",
    "Kafka does not respond to a Produce request whose records are null; the embedded broker refuses them. Sequences "
    "do not have them.",
    "Kafka writes the markers of transactions that time out in the same look in the order of a hash table. The two "
    "producers of a sequence have different time-outs.",
    "Verifications of several clients may share one request on Kafka, and all get the error codes of the first "
    "client's version. Parallel sequences use Produce 11 and TxnOffsetCommit 4 and above.",
    "The group coordinator of Kafka may write requests of several connections as one batch "
    "(group.coordinator.append.linger.ms). Sequences run one by one, or with 0.",
]

IMPOSSIBLE = {
    "NOT_LEADER_OR_FOLLOWER, REPLICA_NOT_AVAILABLE, NOT_ENOUGH_REPLICAS_AFTER_APPEND, FENCED_LEADER_EPOCH, "
    "OFFSET_NOT_AVAILABLE, INCONSISTENT_TOPIC_ID": "need leaders that move, so a second node",
    "NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS": (
        "pass while one node starts, and are waited for; afterwards they need a second node"
    ),
    "*_AUTHORIZATION_FAILED": "need an authorizer, except the two that Kafka gives for invalid requests",
    "KAFKA_STORAGE_ERROR": "needs a disk that fails",
    "DUPLICATE_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID": "Kafka 4 does not respond with them",
    "INVALID_COMMIT_OFFSET_SIZE, RECORD_LIST_TOO_LARGE": "need a batch above segment.bytes",
    "THROTTLING_QUOTA_EXCEEDED": "needs a quota",
    "INVALID_SESSION_TIMEOUT, GROUP_MAX_SIZE_REACHED, UNRELEASED_INSTANCE_ID, and JoinGroup with "
    "INCONSISTENT_GROUP_PROTOCOL": "are part of the walks of prove_group_coordinator.py",
    "PrepareEpochFence": "a state in memory for the time of one request; no log has it",
    "Dead": "is written as a tombstone, counted as a transition to none",
}


def expected() -> set[tuple[str, str]]:
    """Return the pairs of an API and an error code that have to occur."""
    found = set()
    for line in _EXPECTED.replace("\n    ", " ").strip().splitlines():
        api, codes = line.split(":")
        found |= {(api, code) for code in codes.split()}
    return found


def too_rare(codes: Counter[tuple[str, str]], transitions: Counter[tuple[str, str]], least: float) -> list[str]:
    """Return the pairs and transitions that have to occur and occurred less often than this, with their numbers."""
    wanted = ((codes, expected()), (transitions, TRANSITIONS))
    return [f"{' '.join(one)}: {counts[one]}" for counts, all_ in wanted for one in sorted(all_) if counts[one] < least]


def not_listed(codes: Counter[tuple[str, str]], transitions: Counter[tuple[str, str]]) -> list[str]:
    """Return the pairs and transitions that occurred and are not among those that have to, with their numbers."""
    wanted = ((codes, expected()), (transitions, TRANSITIONS))
    return [f"{' '.join(one)}: {counts[one]}" for counts, all_ in wanted for one in sorted(set(counts) - all_)]
