# SPDX-License-Identifier: Apache-2.0
"""Kafka clients, run by an I/O thread. `kcodec.client.aio` has the same names for asyncio."""

from __future__ import annotations

from kcodec._lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:  # for type checkers and editors, to which the names below are only text
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
    from kcodec.admin.values import AlterOperation, ConfigResource, NewTopic
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
        Transaction,
        TransactionCommit,
    )
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
    from kcodec.errors import AdminError
    from kcodec.network.metrics import Metrics
    from kcodec.security import Security
    from kcodec.security.secret import Secret

_EXPORTS = {
    "AclBinding": "kcodec.admin.security",
    "AclFilter": "kcodec.admin.security",
    "AclOperation": "kcodec.admin.security",
    "AclPermission": "kcodec.admin.security",
    "Admin": "kcodec.client.admin",
    "AdminError": "kcodec.errors",
    "AlterOperation": "kcodec.admin.values",
    "BatchMetadata": "kcodec.client.producer",
    "ClientOptions": "kcodec.client.options",
    "ConfigResource": "kcodec.admin.values",
    "Consumer": "kcodec.client.consumer",
    "ConsumerOptions": "kcodec.client.options",
    "Delivery": "kcodec.client.producer",
    "DeliveryErrors": "kcodec.client.producer",
    "GroupTransactSession": "kcodec.client.session",
    "Metrics": "kcodec.network.metrics",
    "NewTopic": "kcodec.admin.values",
    "PatternType": "kcodec.admin.security",
    "Producer": "kcodec.client.producer",
    "ProducerOptions": "kcodec.client.options",
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
    "SharedTransactions": "kcodec.client.shared",
    "TableDelivery": "kcodec.client.producer",
    "TopicDeliveryError": "kcodec.client.producer",
    "Transaction": "kcodec.client.producer",
    "TransactionCommit": "kcodec.client.producer",
    "TransactionHandle": "kcodec.client.shared",
    "TransactionWriter": "kcodec.client.shared",
    "WriterOptions": "kcodec.client.options",
    "WriterReceipt": "kcodec.client.shared",
    "abort_transaction": "kcodec.client.shared",
    "begin_transaction": "kcodec.client.shared",
    "commit_transaction": "kcodec.client.shared",
}

__all__ = [
    "AclBinding",
    "AclFilter",
    "AclOperation",
    "AclPermission",
    "Admin",
    "AdminError",
    "AlterOperation",
    "BatchMetadata",
    "ClientOptions",
    "ConfigResource",
    "Consumer",
    "ConsumerOptions",
    "Delivery",
    "DeliveryErrors",
    "GroupTransactSession",
    "Metrics",
    "NewTopic",
    "PatternType",
    "Producer",
    "ProducerOptions",
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
    "SharedTransactions",
    "TableDelivery",
    "TopicDeliveryError",
    "Transaction",
    "TransactionCommit",
    "TransactionHandle",
    "TransactionWriter",
    "WriterOptions",
    "WriterReceipt",
    "abort_transaction",
    "begin_transaction",
    "commit_transaction",
]

__getattr__, __dir__ = lazy_exports("kcodec.client", _EXPORTS)
