# SPDX-License-Identifier: Apache-2.0
"""Kafka clients of the sync API. Each client has an I/O thread. `kcodec.client.aio` has the same names for asyncio."""

from __future__ import annotations

from kcodec._lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:  # for type checkers and editors, which cannot resolve the names in the texts below
    from kcodec.admin.brokers import (
        LogDirDescription,
        LogDirReplica,
        QuorumDescription,
        QuorumReplica,
        TopicPartitionReplica,
    )
    from kcodec.admin.delegation_tokens import DelegationToken, KafkaPrincipal
    from kcodec.admin.quotas import ANY_NAME, ClientQuotaEntity
    from kcodec.admin.reassignments import PartitionReassignment
    from kcodec.admin.security import (
        AclBinding,
        AclFilter,
        AclOperation,
        AclPermission,
        PatternType,
        ResourceType,
        ScramCredentialDeletion,
        ScramCredentialUpsertion,
        ScramMechanism,
    )
    from kcodec.admin.share_groups import ShareGroupOffset
    from kcodec.admin.values import AlterOperation, ConfigResource, ConfigResourceType, NewTopic
    from kcodec.client.admin import Admin
    from kcodec.client.consumer import Consumer
    from kcodec.client.options import (
        ClientOptions,
        ConsumerOptions,
        ProducerOptions,
        ReadTopicOptions,
        SecurityOptions,
        SessionOptions,
        WriterOptions,
    )
    from kcodec.client.producer import (
        BatchMetadata,
        Delivery,
        DeliveryErrors,
        Producer,
        RecordMetadata,
        TableDelivery,
        TopicDeliveryError,
        TransactionCommit,
    )
    from kcodec.client.range_records import read_ranges
    from kcodec.client.session import GroupTransactSession, SessionTransaction
    from kcodec.client.shared import (
        SharedTransactions,
        TransactionHandle,
        TransactionWriter,
        WriterReceipt,
        abort_transaction,
        begin_transaction,
        commit_transaction,
    )
    from kcodec.client.topic_records import read_topic
    from kcodec.client.transaction import Transaction
    from kcodec.errors import AdminError
    from kcodec.network.metrics import Metrics
    from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
    from kcodec.security import Security
    from kcodec.security.secret import Secret

_EXPORTS = {
    "ANY_NAME": "kcodec.admin.quotas",
    "AclBinding": "kcodec.admin.security",
    "AclFilter": "kcodec.admin.security",
    "AclOperation": "kcodec.admin.security",
    "AclPermission": "kcodec.admin.security",
    "Admin": "kcodec.client.admin",
    "AdminError": "kcodec.errors",
    "AlterOperation": "kcodec.admin.values",
    "BatchMetadata": "kcodec.client.producer",
    "ClientOptions": "kcodec.client.options",
    "ClientQuotaEntity": "kcodec.admin.quotas",
    "ConfigResource": "kcodec.admin.values",
    "ConfigResourceType": "kcodec.admin.values",
    "Consumer": "kcodec.client.consumer",
    "ConsumerGroupMetadata": "kcodec.offsets",
    "ConsumerOptions": "kcodec.client.options",
    "DelegationToken": "kcodec.admin.delegation_tokens",
    "Delivery": "kcodec.client.producer",
    "DeliveryErrors": "kcodec.client.producer",
    "GroupTransactSession": "kcodec.client.session",
    "KafkaPrincipal": "kcodec.admin.delegation_tokens",
    "LogDirDescription": "kcodec.admin.brokers",
    "LogDirReplica": "kcodec.admin.brokers",
    "Metrics": "kcodec.network.metrics",
    "NewTopic": "kcodec.admin.values",
    "OffsetAndMetadata": "kcodec.offsets",
    "PartitionReassignment": "kcodec.admin.reassignments",
    "PatternType": "kcodec.admin.security",
    "Producer": "kcodec.client.producer",
    "ProducerOptions": "kcodec.client.options",
    "QuorumDescription": "kcodec.admin.brokers",
    "QuorumReplica": "kcodec.admin.brokers",
    "ReadTopicOptions": "kcodec.client.options",
    "RecordMetadata": "kcodec.client.producer",
    "ResourceType": "kcodec.admin.security",
    "ScramCredentialDeletion": "kcodec.admin.security",
    "ScramCredentialUpsertion": "kcodec.admin.security",
    "ScramMechanism": "kcodec.admin.security",
    "Secret": "kcodec.security.secret",
    "Security": "kcodec.security",
    "SecurityOptions": "kcodec.client.options",
    "SessionOptions": "kcodec.client.options",
    "SessionTransaction": "kcodec.client.session",
    "ShareGroupOffset": "kcodec.admin.share_groups",
    "SharedTransactions": "kcodec.client.shared",
    "TableDelivery": "kcodec.client.producer",
    "TopicDeliveryError": "kcodec.client.producer",
    "TopicPartition": "kcodec.offsets",
    "TopicPartitionReplica": "kcodec.admin.brokers",
    "Transaction": "kcodec.client.transaction",
    "TransactionCommit": "kcodec.client.producer",
    "TransactionHandle": "kcodec.client.shared",
    "TransactionWriter": "kcodec.client.shared",
    "WriterOptions": "kcodec.client.options",
    "WriterReceipt": "kcodec.client.shared",
    "abort_transaction": "kcodec.client.shared",
    "begin_transaction": "kcodec.client.shared",
    "commit_transaction": "kcodec.client.shared",
    "read_ranges": "kcodec.client.range_records",
    "read_topic": "kcodec.client.topic_records",
}

__all__ = [
    "ANY_NAME",
    "AclBinding",
    "AclFilter",
    "AclOperation",
    "AclPermission",
    "Admin",
    "AdminError",
    "AlterOperation",
    "BatchMetadata",
    "ClientOptions",
    "ClientQuotaEntity",
    "ConfigResource",
    "ConfigResourceType",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerOptions",
    "DelegationToken",
    "Delivery",
    "DeliveryErrors",
    "GroupTransactSession",
    "KafkaPrincipal",
    "LogDirDescription",
    "LogDirReplica",
    "Metrics",
    "NewTopic",
    "OffsetAndMetadata",
    "PartitionReassignment",
    "PatternType",
    "Producer",
    "ProducerOptions",
    "QuorumDescription",
    "QuorumReplica",
    "ReadTopicOptions",
    "RecordMetadata",
    "ResourceType",
    "ScramCredentialDeletion",
    "ScramCredentialUpsertion",
    "ScramMechanism",
    "Secret",
    "Security",
    "SecurityOptions",
    "SessionOptions",
    "SessionTransaction",
    "ShareGroupOffset",
    "SharedTransactions",
    "TableDelivery",
    "TopicDeliveryError",
    "TopicPartition",
    "TopicPartitionReplica",
    "Transaction",
    "TransactionCommit",
    "TransactionHandle",
    "TransactionWriter",
    "WriterOptions",
    "WriterReceipt",
    "abort_transaction",
    "begin_transaction",
    "commit_transaction",
    "read_ranges",
    "read_topic",
]

__getattr__, __dir__ = lazy_exports("kcodec.client", _EXPORTS)
