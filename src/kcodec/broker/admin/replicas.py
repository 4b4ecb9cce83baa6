# SPDX-License-Identifier: Apache-2.0
"""Replicas, log directories and the quorum of one node: elections, reassignments, DescribeQuorum.

The only node leads every partition, so no election is needed. A reassignment to this node is complete immediately, and
a reassignment to any other node is refused. Codes and messages are those of Kafka's ReplicationControlManager and
ReplicaManager.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from kcodec.broker.admin.host import AdminHost
from kcodec.broker.api import Api, ApiError, RequestContext, by_topic
from kcodec.constants import CLUSTER_METADATA_TOPIC
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

MEMORY_DIRECTORY = "/memory"
#: The epoch of the quorum, which never elects another leader.
QUORUM_EPOCH = 1


class ReplicaApis:
    """The handlers of these APIs."""

    def __init__(self, host: AdminHost) -> None:
        self._host = host

    def apis(self) -> list[Api]:
        """Return the APIs with their handlers."""
        return [
            Api(messages.DescribeLogDirsRequest, (1, 5), self.describe_log_dirs),
            Api(messages.AlterReplicaLogDirsRequest, (1, 2), self.alter_log_dirs),
            Api(messages.ElectLeadersRequest, (0, 2), self.elect_leaders),
            Api(messages.AlterPartitionReassignmentsRequest, (0, 1), self.reassign),
            Api(messages.ListPartitionReassignmentsRequest, (0, 0), _no_reassignments),
            Api(messages.DescribeQuorumRequest, (0, 2), self.describe_quorum),
        ]

    @property
    def _log_dir(self) -> str:
        directory = self._host.topics.directory
        return MEMORY_DIRECTORY if directory is None else str(directory)

    # Log directories

    def describe_log_dirs(
        self, context: RequestContext, request: messages.DescribeLogDirsRequest
    ) -> messages.DescribeLogDirsResponse:
        """Respond to DescribeLogDirs. Partitions that do not exist are left out."""
        named = {(topic.topic, number) for topic in request.topics or () for number in topic.partitions}
        found: dict[str, messages.DescribeLogDirsTopic] = {}
        for topic, one in self._host.topics.partitions():
            if request.topics is None or (topic.name, one.number) in named:
                listed = found.setdefault(topic.name, messages.DescribeLogDirsTopic(name=topic.name))
                size = messages.DescribeLogDirsPartition(
                    partition_index=one.number, partition_size=one.log.size_in_bytes
                )
                listed.partitions.append(size)
        result = messages.DescribeLogDirsResult(log_dir=self._log_dir, topics=list(found.values()))
        if self._host.topics.directory is not None:
            usage = shutil.disk_usage(self._host.topics.directory)
            result.total_bytes, result.usable_bytes = usage.total, usage.free
        return messages.DescribeLogDirsResponse(results=[result])

    def alter_log_dirs(
        self, context: RequestContext, request: messages.AlterReplicaLogDirsRequest
    ) -> messages.AlterReplicaLogDirsResponse:
        """Respond to AlterReplicaLogDirs: every replica is in the only log directory already."""
        results: dict[str, messages.AlterReplicaLogDirTopicResult] = {}
        for directory in request.dirs:
            for one in directory.topics:
                result = results.setdefault(one.name, messages.AlterReplicaLogDirTopicResult(topic_name=one.name))
                for number in one.partitions:
                    code = ErrorCode.NONE
                    if directory.path != self._log_dir:
                        code = ErrorCode.LOG_DIR_NOT_FOUND
                    elif self._host.topics.partition(one.name, number) is None:
                        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    result.partitions.append(
                        messages.AlterReplicaLogDirPartitionResult(partition_index=number, error_code=code)
                    )
        return messages.AlterReplicaLogDirsResponse(results=list(results.values()))

    # Elections and reassignments

    def elect_leaders(
        self, context: RequestContext, request: messages.ElectLeadersRequest
    ) -> messages.ElectLeadersResponse:
        """Respond to ElectLeaders: no partition needs an election."""
        results = []
        for one in request.topic_partitions or ():
            topic = self._host.topics.get(one.topic)
            partitions = []
            for number in one.partitions:
                result = messages.ElectLeadersPartitionResult(
                    partition_id=number,
                    error_code=ErrorCode.ELECTION_NOT_NEEDED,
                    error_message="Leader election not needed for topic partition.",
                )
                if topic is None or topic.partition(number) is None:
                    result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    result.error_message = f"No such partition as {one.topic}-{number}"
                partitions.append(result)
            results.append(messages.ReplicaElectionResult(topic=one.topic, partition_result=partitions))
        return messages.ElectLeadersResponse(replica_election_results=results)

    def reassign(
        self, context: RequestContext, request: messages.AlterPartitionReassignmentsRequest
    ) -> messages.AlterPartitionReassignmentsResponse:
        """Respond to AlterPartitionReassignments. None as `replicas` cancels a reassignment, but none is ever in
        progress."""
        responses = by_topic(messages.ReassignableTopicResponse, request.topics, self._reassigned)
        return messages.AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_message=None,
            responses=responses,
        )

    def _reassigned(self, topic: str, one: messages.ReassignablePartition) -> messages.ReassignablePartitionResponse:
        result = messages.ReassignablePartitionResponse(partition_index=one.partition_index, error_message=None)
        try:
            self._check_reassignment(topic, one.partition_index, one.replicas)
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message or None
        return result

    def _check_reassignment(self, name: str, number: int, replicas: Sequence[int] | None) -> None:
        topic = self._host.topics.get(name)
        if topic is None:
            text = f"Unable to find a topic named {name}."
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        if topic.partition(number) is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{number}.")
        if replicas is None:
            raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        check_replicas(replicas, self._host.settings.node_id)

    # Quorum

    def describe_quorum(
        self, context: RequestContext, request: messages.DescribeQuorumRequest
    ) -> messages.DescribeQuorumResponse:
        """Respond to DescribeQuorum: the only node is the leader and the only voter of ``__cluster_metadata``."""
        named = [(topic.topic_name, [one.partition_index for one in topic.partitions]) for topic in request.topics]
        if named != [(CLUSTER_METADATA_TOPIC, [0])]:
            unknown = partial(
                messages.DescribedQuorumPartition, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error_message=None
            )
            topics = [
                messages.DescribedQuorumTopic(topic_name=name, partitions=[unknown(partition_index=n) for n in numbers])
                for name, numbers in named
            ]
            return messages.DescribeQuorumResponse(error_message=None, topics=topics)
        node, end = self._host.settings.node_id, self._host.topics.metadata_end_offset
        now = self._host.topics.now_ms()
        voter = messages.DescribedQuorumReplica(
            replica_id=node, log_end_offset=end, last_fetch_timestamp=now, last_caught_up_timestamp=now
        )
        partition = messages.DescribedQuorumPartition(
            error_message=None, leader_id=node, leader_epoch=QUORUM_EPOCH, high_watermark=end, current_voters=[voter]
        )
        first = self._host.listeners[0]
        listener = messages.DescribedQuorumListener(name=first.protocol, host=first.host, port=first.port)
        return messages.DescribeQuorumResponse(
            error_message=None,
            topics=[messages.DescribedQuorumTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])],
            nodes=[messages.DescribedQuorumNode(node_id=node, listeners=[listener])]
            if context.api_version >= 2
            else [],
        )


def check_replicas(replicas: Sequence[int], node_id: int) -> None:
    """Raise ApiError (INVALID_REPLICA_ASSIGNMENT) unless the only node is the only replica."""
    text = ""
    if not replicas:
        text = "The manual partition assignment includes an empty replica list."
    elif len(set(replicas)) < len(replicas):
        twice = next(one for one, following in pairwise(sorted(replicas)) if one == following)
        text = f"The manual partition assignment includes the broker {twice} more than once."
    else:
        unknown = next((one for one in replicas if one != node_id), None)
        if unknown is not None:
            text = f"The manual partition assignment includes broker {unknown}, but no such broker is registered."
    if text:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)


def _no_reassignments(
    context: RequestContext, request: messages.ListPartitionReassignmentsRequest
) -> messages.ListPartitionReassignmentsResponse:
    return messages.ListPartitionReassignmentsResponse(error_message=None)
