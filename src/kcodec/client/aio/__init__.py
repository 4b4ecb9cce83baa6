# SPDX-License-Identifier: Apache-2.0
"""Kafka clients of the asyncio API, with the names of `kcodec.client`. Clients of both APIs run the same flows."""

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
    from kcodec.client.aio.admin import Admin
    from kcodec.client.aio.consumer import Consumer
    from kcodec.client.aio.producer import (
        BatchMetadata,
        Delivery,
        DeliveryErrors,
        Producer,
        RecordMetadata,
        TableDelivery,
        TopicDeliveryError,
        TransactionCommit,
    )
    from kcodec.client.aio.range_records import read_ranges
    from kcodec.client.aio.session import GroupTransactSession, SessionTransaction
    from kcodec.client.aio.shared import (
        SharedTransactions,
        TransactionHandle,
        TransactionWriter,
        WriterReceipt,
        abort_transaction,
        begin_transaction,
        commit_transaction,
    )
    from kcodec.client.aio.topic_records import read_topic
    from kcodec.client.aio.transaction import Transaction
    from kcodec.client.options import (
        ClientOptions,
        ConsumerOptions,
        ProducerOptions,
        ReadTopicOptions,
        SecurityOptions,
        SessionOptions,
        WriterOptions,
    )
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
    "Admin": "kcodec.client.aio.admin",
    "AdminError": "kcodec.errors",
    "AlterOperation": "kcodec.admin.values",
    "BatchMetadata": "kcodec.client.aio.producer",
    "ClientOptions": "kcodec.client.options",
    "ClientQuotaEntity": "kcodec.admin.quotas",
    "ConfigResource": "kcodec.admin.values",
    "ConfigResourceType": "kcodec.admin.values",
    "Consumer": "kcodec.client.aio.consumer",
    "ConsumerGroupMetadata": "kcodec.offsets",
    "ConsumerOptions": "kcodec.client.options",
    "DelegationToken": "kcodec.admin.delegation_tokens",
    "Delivery": "kcodec.client.aio.producer",
    "DeliveryErrors": "kcodec.client.aio.producer",
    "GroupTransactSession": "kcodec.client.aio.session",
    "KafkaPrincipal": "kcodec.admin.delegation_tokens",
    "LogDirDescription": "kcodec.admin.brokers",
    "LogDirReplica": "kcodec.admin.brokers",
    "Metrics": "kcodec.network.metrics",
    "NewTopic": "kcodec.admin.values",
    "OffsetAndMetadata": "kcodec.offsets",
    "PartitionReassignment": "kcodec.admin.reassignments",
    "PatternType": "kcodec.admin.security",
    "Producer": "kcodec.client.aio.producer",
    "ProducerOptions": "kcodec.client.options",
    "QuorumDescription": "kcodec.admin.brokers",
    "QuorumReplica": "kcodec.admin.brokers",
    "ReadTopicOptions": "kcodec.client.options",
    "RecordMetadata": "kcodec.client.aio.producer",
    "ResourceType": "kcodec.admin.security",
    "ScramCredentialDeletion": "kcodec.admin.security",
    "ScramCredentialUpsertion": "kcodec.admin.security",
    "ScramMechanism": "kcodec.admin.security",
    "Secret": "kcodec.security.secret",
    "Security": "kcodec.security",
    "SecurityOptions": "kcodec.client.options",
    "SessionOptions": "kcodec.client.options",
    "SessionTransaction": "kcodec.client.aio.session",
    "ShareGroupOffset": "kcodec.admin.share_groups",
    "SharedTransactions": "kcodec.client.aio.shared",
    "TableDelivery": "kcodec.client.aio.producer",
    "TopicDeliveryError": "kcodec.client.aio.producer",
    "TopicPartition": "kcodec.offsets",
    "TopicPartitionReplica": "kcodec.admin.brokers",
    "Transaction": "kcodec.client.aio.transaction",
    "TransactionCommit": "kcodec.client.aio.producer",
    "TransactionHandle": "kcodec.client.aio.shared",
    "TransactionWriter": "kcodec.client.aio.shared",
    "WriterOptions": "kcodec.client.options",
    "WriterReceipt": "kcodec.client.aio.shared",
    "abort_transaction": "kcodec.client.aio.shared",
    "begin_transaction": "kcodec.client.aio.shared",
    "commit_transaction": "kcodec.client.aio.shared",
    "read_ranges": "kcodec.client.aio.range_records",
    "read_topic": "kcodec.client.aio.topic_records",
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

__getattr__, __dir__ = lazy_exports("kcodec.client.aio", _EXPORTS)
