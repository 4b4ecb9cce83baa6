# SPDX-License-Identifier: Apache-2.0
"""Messages about the cluster: reassignments, leader elections, log directories, features, SCRAM credentials."""

from __future__ import annotations

from kcodec.protocol.schema import Request, Response, Struct, array, boolean, data, int8, int16, int32, int64, string


class ReassignablePartition(Struct):
    """The target replicas of a partition. replicas None: cancel its reassignment."""

    partition_index: int = int32("0+")
    replicas: list[int] | None = array(int32, "0+", nullable="0+", default=None)


class ReassignableTopic(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    partitions: list[ReassignablePartition] = array(ReassignablePartition, "0+")


class AlterPartitionReassignmentsRequest(Request, key=45, versions="0-1", flexible="0+"):
    """Reassign partitions to other replicas."""

    timeout_ms: int = int32("0+", default=60000)
    allow_replication_factor_change: bool = boolean("1+", default=True)
    topics: list[ReassignableTopic] = array(ReassignableTopic, "0+")


class ReassignablePartitionResponse(Struct):
    """Whether the reassignment of one partition has begun."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class ReassignableTopicResponse(Struct):
    """The results for the partitions of a topic."""

    name: str = string("0+")
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse, "0+")


class AlterPartitionReassignmentsResponse(Response, key=45, versions="0-1", flexible="0+"):
    """The results for all partitions."""

    throttle_time_ms: int = int32("0+")
    allow_replication_factor_change: bool = boolean("1+", default=True, ignorable=True)
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse, "0+")


class ListPartitionReassignmentsTopics(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    partition_indexes: list[int] = array(int32, "0+")


class ListPartitionReassignmentsRequest(Request, key=46, versions="0", flexible="0+"):
    """List the ongoing reassignments. None: those of all topics."""

    timeout_ms: int = int32("0+", default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics, "0+", nullable="0+", default=None
    )


class OngoingPartitionReassignment(Struct):
    """A partition that is being reassigned: all its replicas, the added and the removed ones."""

    partition_index: int = int32("0+")
    replicas: list[int] = array(int32, "0+")
    adding_replicas: list[int] = array(int32, "0+")
    removing_replicas: list[int] = array(int32, "0+")


class OngoingTopicReassignment(Struct):
    """Partitions of a topic that are being reassigned."""

    name: str = string("0+")
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment, "0+")


class ListPartitionReassignmentsResponse(Response, key=46, versions="0", flexible="0+"):
    """The ongoing reassignments."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment, "0+")


class ElectLeadersTopicPartitions(Struct):
    """Partitions of a topic."""

    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class ElectLeadersRequest(Request, key=43, versions="0-2", flexible="2+"):
    """Elect leaders; None: of all partitions. election_type 0: preferred leaders, 1: unclean, may lose records."""

    election_type: int = int8("1+")
    topic_partitions: list[ElectLeadersTopicPartitions] | None = array(ElectLeadersTopicPartitions, "0+", nullable="0+")
    timeout_ms: int = int32("0+", default=60000)


class ElectLeadersPartitionResult(Struct):
    """Whether a new leader was elected for one partition."""

    partition_id: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class ReplicaElectionResult(Struct):
    """The results for the partitions of a topic."""

    topic: str = string("0+")
    partition_result: list[ElectLeadersPartitionResult] = array(ElectLeadersPartitionResult, "0+")


class ElectLeadersResponse(Response, key=43, versions="0-2", flexible="2+"):
    """The results for all partitions."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("1+")
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult, "0+")


class DescribableLogDirTopic(Struct):
    """Partitions of a topic."""

    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class DescribeLogDirsRequest(Request, key=35, versions="0-5", flexible="2+"):
    """Request the sizes of partitions in the log directories of this broker. None: of all partitions."""

    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, "0+", nullable="0+")


class DescribeLogDirsPartition(Struct):
    """One replica: its size in bytes, its offset lag, and whether it is the future replica of a move."""

    partition_index: int = int32("0+")
    partition_size: int = int64("0+")
    offset_lag: int = int64("0+")
    is_future_key: bool = boolean("0+")


class DescribeLogDirsTopic(Struct):
    """Replicas of a topic."""

    name: str = string("0+")
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition, "0+")


class DescribeLogDirsResult(Struct):
    """A log directory and its replicas. Bytes of its volume: -1 if unknown."""

    error_code: int = int16("0+")
    log_dir: str = string("0+")
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic, "0+")
    total_bytes: int = int64("4+", default=-1, ignorable=True)
    usable_bytes: int = int64("4+", default=-1, ignorable=True)
    is_cordoned: bool = boolean("5+", ignorable=True)


class DescribeLogDirsResponse(Response, key=35, versions="0-5", flexible="2+"):
    """The log directories of a broker."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("3+", ignorable=True)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult, "0+")


class FeatureUpdateKey(Struct):
    """A feature and its new level (0 removes it). upgrade_type 1: upgrade, 2: safe downgrade, 3: unsafe downgrade."""

    feature: str = string("0+")
    max_version_level: int = int16("0+")
    allow_downgrade: bool = boolean("0")
    upgrade_type: int = int8("1+", default=1)


class UpdateFeaturesRequest(Request, key=57, versions="0-2", flexible="0+"):
    """Change the levels of features."""

    timeout_ms: int = int32("0+", default=60000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey, "0+")
    validate_only: bool = boolean("1+")


class UpdatableFeatureResult(Struct):
    """Whether one feature was changed."""

    feature: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class UpdateFeaturesResponse(Response, key=57, versions="0-2", flexible="0+"):
    """Whether the features were changed; from version 2 on all of them or none."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, "0-1", ignorable=True)


class ScramCredentialDeletion(Struct):
    """A credential of a user to delete. mechanism 1: SCRAM-SHA-256, 2: SCRAM-SHA-512."""

    name: str = string("0+")
    mechanism: int = int8("0+")


class ScramCredentialUpsertion(Struct):
    """A user's new credential, without the password itself. mechanism 1: SCRAM-SHA-256, 2: SCRAM-SHA-512."""

    name: str = string("0+")
    mechanism: int = int8("0+")
    iterations: int = int32("0+")
    salt: bytes = data("0+")
    salted_password: bytes = data("0+", secret=True)


class AlterUserScramCredentialsRequest(Request, key=51, versions="0", flexible="0+"):
    """Create, replace and delete SCRAM credentials (KIP-554)."""

    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion, "0+")
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion, "0+")


class AlterUserScramCredentialsResult(Struct):
    """Whether one user's credentials were changed."""

    user: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class AlterUserScramCredentialsResponse(Response, key=51, versions="0", flexible="0+"):
    """The results for all users."""

    throttle_time_ms: int = int32("0+")
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult, "0+")


class ScramUserName(Struct):
    """A user."""

    name: str = string("0+")


class DescribeUserScramCredentialsRequest(Request, key=50, versions="0", flexible="0+"):
    """List SCRAM credentials. None: those of all users."""

    users: list[ScramUserName] | None = array(ScramUserName, "0+", nullable="0+")


class ScramCredentialInfo(Struct):
    """A mechanism that a user has a credential for."""

    mechanism: int = int8("0+")
    iterations: int = int32("0+")


class DescribeUserScramCredentialsResult(Struct):
    """The credentials of one user, without secrets."""

    user: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    credential_infos: list[ScramCredentialInfo] = array(ScramCredentialInfo, "0+")


class DescribeUserScramCredentialsResponse(Response, key=50, versions="0", flexible="0+"):
    """The credentials."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = array(DescribeUserScramCredentialsResult, "0+")
