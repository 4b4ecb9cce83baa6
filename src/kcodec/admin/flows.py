# SPDX-License-Identifier: Apache-2.0
"""The flows of Admin in one module. The sync and the async API share them.

Each flow is a function `name(context, ...) -> Flow[result]`. Its `timeout` is in seconds.
"""

from kcodec._lazy import lazy_exports
from kcodec.protocol.messages import load_exchanged

# This runs on the caller's thread. See `kcodec.network.preload`.
load_exchanged()

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kcodec.admin.brokers import alter_replica_log_dirs, describe_log_dirs, describe_quorum, unregister_broker
    from kcodec.admin.cluster import describe_cluster, describe_features, update_features
    from kcodec.admin.configs import alter_configs, describe_configs, list_config_resources
    from kcodec.admin.delegation_tokens import (
        create_delegation_token,
        describe_delegation_tokens,
        expire_delegation_token,
        renew_delegation_token,
    )
    from kcodec.admin.elections import elect_leaders
    from kcodec.admin.groups import (
        alter_group_offsets,
        delete_group_offsets,
        delete_groups,
        describe_group_lag,
        describe_groups,
        list_group_offsets,
        list_groups,
    )
    from kcodec.admin.open_transactions import (
        find_abandoned_transactions,
        find_hanging_transactions,
        find_stray_transactions,
    )
    from kcodec.admin.quotas import alter_client_quotas, describe_client_quotas
    from kcodec.admin.reassignments import alter_partition_reassignments, list_partition_reassignments
    from kcodec.admin.records import delete_records, list_offsets
    from kcodec.admin.security import (
        alter_user_scram_credentials,
        create_acls,
        delete_acls,
        describe_acls,
        describe_user_scram_credentials,
    )
    from kcodec.admin.share_groups import list_share_group_offsets
    from kcodec.admin.topics import create_partitions, create_topics, delete_topics, describe_topics, list_topics
    from kcodec.admin.transactions import (
        abort_transaction,
        describe_producers,
        describe_transactions,
        fence_producers,
        list_transactions,
    )

# Each module is imported when one of its flows is first used.
_EXPORTS = {
    "abort_transaction": "kcodec.admin.transactions",
    "alter_client_quotas": "kcodec.admin.quotas",
    "alter_configs": "kcodec.admin.configs",
    "alter_group_offsets": "kcodec.admin.groups",
    "alter_partition_reassignments": "kcodec.admin.reassignments",
    "alter_replica_log_dirs": "kcodec.admin.brokers",
    "alter_user_scram_credentials": "kcodec.admin.security",
    "create_acls": "kcodec.admin.security",
    "create_delegation_token": "kcodec.admin.delegation_tokens",
    "create_partitions": "kcodec.admin.topics",
    "create_topics": "kcodec.admin.topics",
    "delete_acls": "kcodec.admin.security",
    "delete_group_offsets": "kcodec.admin.groups",
    "delete_groups": "kcodec.admin.groups",
    "delete_records": "kcodec.admin.records",
    "delete_topics": "kcodec.admin.topics",
    "describe_acls": "kcodec.admin.security",
    "describe_client_quotas": "kcodec.admin.quotas",
    "describe_cluster": "kcodec.admin.cluster",
    "describe_configs": "kcodec.admin.configs",
    "describe_delegation_tokens": "kcodec.admin.delegation_tokens",
    "describe_features": "kcodec.admin.cluster",
    "describe_group_lag": "kcodec.admin.groups",
    "describe_groups": "kcodec.admin.groups",
    "describe_log_dirs": "kcodec.admin.brokers",
    "describe_producers": "kcodec.admin.transactions",
    "describe_quorum": "kcodec.admin.brokers",
    "describe_topics": "kcodec.admin.topics",
    "describe_transactions": "kcodec.admin.transactions",
    "describe_user_scram_credentials": "kcodec.admin.security",
    "elect_leaders": "kcodec.admin.elections",
    "expire_delegation_token": "kcodec.admin.delegation_tokens",
    "fence_producers": "kcodec.admin.transactions",
    "find_abandoned_transactions": "kcodec.admin.open_transactions",
    "find_hanging_transactions": "kcodec.admin.open_transactions",
    "find_stray_transactions": "kcodec.admin.open_transactions",
    "list_config_resources": "kcodec.admin.configs",
    "list_group_offsets": "kcodec.admin.groups",
    "list_groups": "kcodec.admin.groups",
    "list_offsets": "kcodec.admin.records",
    "list_partition_reassignments": "kcodec.admin.reassignments",
    "list_share_group_offsets": "kcodec.admin.share_groups",
    "list_topics": "kcodec.admin.topics",
    "list_transactions": "kcodec.admin.transactions",
    "renew_delegation_token": "kcodec.admin.delegation_tokens",
    "unregister_broker": "kcodec.admin.brokers",
    "update_features": "kcodec.admin.cluster",
}

__all__ = [
    "abort_transaction",
    "alter_client_quotas",
    "alter_configs",
    "alter_group_offsets",
    "alter_partition_reassignments",
    "alter_replica_log_dirs",
    "alter_user_scram_credentials",
    "create_acls",
    "create_delegation_token",
    "create_partitions",
    "create_topics",
    "delete_acls",
    "delete_group_offsets",
    "delete_groups",
    "delete_records",
    "delete_topics",
    "describe_acls",
    "describe_client_quotas",
    "describe_cluster",
    "describe_configs",
    "describe_delegation_tokens",
    "describe_features",
    "describe_group_lag",
    "describe_groups",
    "describe_log_dirs",
    "describe_producers",
    "describe_quorum",
    "describe_topics",
    "describe_transactions",
    "describe_user_scram_credentials",
    "elect_leaders",
    "expire_delegation_token",
    "fence_producers",
    "find_abandoned_transactions",
    "find_hanging_transactions",
    "find_stray_transactions",
    "list_config_resources",
    "list_group_offsets",
    "list_groups",
    "list_offsets",
    "list_partition_reassignments",
    "list_share_group_offsets",
    "list_topics",
    "list_transactions",
    "renew_delegation_token",
    "unregister_broker",
    "update_features",
]

__getattr__, __dir__ = lazy_exports("kcodec.admin.flows", _EXPORTS)
