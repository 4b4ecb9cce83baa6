# SPDX-License-Identifier: Apache-2.0
"""What each API checks before its handler runs, as in Kafka's KafkaApis and ControllerApis.

For an API without a check, the table contains the reason in place of the steps. If an API is missing in the table, a
broker with an authorizer does not start.
"""

from __future__ import annotations

from functools import partial

from kcodec.broker.admin.host import AdminHost
from kcodec.broker.api import Api, Handler
from kcodec.broker.authorizer import steps
from kcodec.broker.authorizer.acls import Operation, ResourceType
from kcodec.broker.authorizer.authorizer import Authorizer
from kcodec.broker.authorizer.checked_request import (
    CheckedRequest,
    Step,
    code_only,
    each,
    hide,
    restrict,
    whole,
    without_text,
)

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
READ, WRITE, DELETE, ALTER = Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER
CREATE, DESCRIBE, CLUSTER_ACTION = Operation.CREATE, Operation.DESCRIBE, Operation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS

BEFORE_LOGIN = "clients send it before the login"
IN_HANDLER = "the handler checks READ of each partition, because not every request names all partitions of its session"

_MEMBER = whole(GROUP, READ, field="group_id")
_TRANSACTION = whole(TRANSACTIONAL_ID, WRITE, field="transactional_id")

CHECKS: dict[str, tuple[Step, ...] | str] = {
    "ApiVersions": BEFORE_LOGIN,
    "SaslHandshake": BEFORE_LOGIN,
    "SaslAuthenticate": BEFORE_LOGIN,
    # Records and offsets of partitions
    "Produce": (steps.transactional_records, each("topic_data", TOPIC, WRITE)),
    "Fetch": IN_HANDLER,
    "ListOffsets": (each("topics", TOPIC, DESCRIBE),),
    "OffsetForLeaderEpoch": (each("topics", TOPIC, DESCRIBE, or_cluster=CLUSTER_ACTION),),
    "DeleteRecords": (each("topics", TOPIC, DELETE),),
    # Topics
    "Metadata": (steps.metadata,),
    "DescribeTopicPartitions": (steps.describe_topic_partitions,),
    "CreateTopics": (
        steps.hide_configs,
        each("topics", TOPIC, CREATE, or_cluster=CREATE, text="Authorization failed.", handled=steps.cannot_be_created),
    ),
    "DeleteTopics": (steps.delete_topics,),
    "CreatePartitions": (each("topics", TOPIC, ALTER, handled=steps.is_named_twice),),
    # Transactions
    "InitProducerId": (steps.init_producer_id,),
    "AddPartitionsToTxn": (steps.add_partitions,),
    "AddOffsetsToTxn": (_TRANSACTION, _MEMBER),
    "EndTxn": (_TRANSACTION,),
    "TxnOffsetCommit": (_TRANSACTION, _MEMBER, each("topics", TOPIC, READ)),
    "WriteTxnMarkers": (whole(CLUSTER, ALTER, CLUSTER_ACTION),),
    "DescribeProducers": (each("topics", TOPIC, READ, text="Topic authorization failed."),),
    "DescribeTransactions": (each("transactional_ids", TRANSACTIONAL_ID, DESCRIBE), steps.hide_topics),
    "ListTransactions": (hide("transaction_states", "transactional_id", TRANSACTIONAL_ID, DESCRIBE),),
    # Groups
    "FindCoordinator": (steps.find_coordinator,),
    "JoinGroup": (whole(GROUP, READ, field="group_id", refusal=steps.no_join),),
    "SyncGroup": (_MEMBER,),
    "Heartbeat": (_MEMBER,),
    "LeaveGroup": (whole(GROUP, READ, field="group_id", refusal=code_only),),
    "ConsumerGroupHeartbeat": (whole(GROUP, READ, field="group_id", refusal=code_only), steps.subscription),
    "OffsetCommit": (_MEMBER, each("topics", TOPIC, READ)),
    "OffsetFetch": (steps.offset_fetch,),
    "OffsetDelete": (whole(GROUP, DELETE, field="group_id", refusal=code_only), each("topics", TOPIC, READ)),
    "DescribeGroups": (each("groups", GROUP, DESCRIBE), restrict(GROUP, "groups", "group_id")),
    "ConsumerGroupDescribe": (
        each("group_ids", GROUP, DESCRIBE),
        restrict(GROUP, "groups", "group_id"),
        steps.hide_members,
    ),
    "ListGroups": (hide("groups", "group_id", GROUP, DESCRIBE, or_cluster=DESCRIBE),),
    "DeleteGroups": (each("groups_names", GROUP, DELETE),),
    # Configurations
    "DescribeConfigs": (steps.configs(DESCRIBE_CONFIGS),),
    "AlterConfigs": (steps.configs(ALTER_CONFIGS, handled=steps.is_invalid_change),),
    "IncrementalAlterConfigs": (steps.configs(ALTER_CONFIGS, handled=steps.is_invalid_change),),
    "ListConfigResources": (whole(CLUSTER, DESCRIBE_CONFIGS),),
    # The cluster
    "DescribeCluster": (steps.cluster_operations,),
    "DescribeQuorum": (whole(CLUSTER, DESCRIBE, refusal=code_only),),
    "DescribeLogDirs": (whole(CLUSTER, DESCRIBE, refusal=code_only),),
    "AlterReplicaLogDirs": (whole(CLUSTER, ALTER, refusal=steps.no_replicas),),
    "ElectLeaders": (whole(CLUSTER, ALTER),),
    "AlterPartitionReassignments": (whole(CLUSTER, ALTER),),
    "ListPartitionReassignments": (whole(CLUSTER, DESCRIBE),),
    "DescribeUserScramCredentials": (whole(CLUSTER, DESCRIBE, refusal=without_text),),
    "AlterUserScramCredentials": (whole(CLUSTER, ALTER, refusal=steps.no_users),),
    "DescribeAcls": (whole(CLUSTER, DESCRIBE),),
    "CreateAcls": (whole(CLUSTER, ALTER),),
    "DeleteAcls": (whole(CLUSTER, ALTER),),
}


def with_checks(apis: dict[int, Api], authorizer: Authorizer, host: AdminHost) -> dict[int, Api]:
    """Return the APIs with handlers that run the checks first. Raise KeyError if an API is missing in CHECKS."""
    found = {}
    for key, api in apis.items():
        entry, handle = CHECKS[api.name], api.handle
        for step in () if isinstance(entry, str) else reversed(entry):
            handle = _checked(step, handle, authorizer, host)
        found[key] = api._replace(handle=handle)
    return found


def _checked(step: Step, handle: Handler, authorizer: Authorizer, host: AdminHost) -> Handler:
    return lambda context, request: step(CheckedRequest(context, request, partial(handle, context), authorizer, host))
