# SPDX-License-Identifier: Apache-2.0
"""Kafka clients: flows carried by a thread here, by asyncio in `kcodec.client.aio` under the same names."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # for type checkers and editors, to which the names below are only text
    from kcodec.client.admin import Admin
    from kcodec.client.admin.security import (
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
    from kcodec.client.admin.values import AlterOperation, ConfigResource, NewTopic
    from kcodec.client.consumer import Consumer
    from kcodec.client.producer import (
        BatchMetadata,
        Delivery,
        DeliveryErrors,
        Producer,
        RecordMetadata,
        TableDelivery,
        TopicDeliveryError,
    )
    from kcodec.client.session import GroupTransactSession, SessionTransaction
    from kcodec.client.shared import (
        TransactionHandle,
        TransactionWriter,
        WriterReceipt,
        abort_transaction,
        commit_transaction,
    )
    from kcodec.client.transaction import Transaction
    from kcodec.txn.settle import AdminError

# Name -> module that has it; imported when first asked for.
_HOMES: dict[str, str] = {
    "AclBinding": "admin.security",
    "AclFilter": "admin.security",
    "AclOperation": "admin.security",
    "AclPermission": "admin.security",
    "Admin": "admin",
    "AdminError": "admin.face",
    "AlterOperation": "admin.values",
    "BatchMetadata": "producer",
    "ConfigResource": "admin.values",
    "Consumer": "consumer",
    "Delivery": "producer",
    "DeliveryErrors": "producer",
    "GroupTransactSession": "session",
    "NewTopic": "admin.values",
    "PatternType": "admin.security",
    "Producer": "producer",
    "RecordMetadata": "producer",
    "ResourceType": "admin.security",
    "ScramCredentialDeletion": "admin.security",
    "ScramCredentialUpsertion": "admin.security",
    "ScramMechanism": "admin.security",
    "SessionTransaction": "session",
    "TableDelivery": "producer",
    "TopicDeliveryError": "producer",
    "Transaction": "transaction",
    "TransactionHandle": "shared",
    "TransactionWriter": "shared",
    "WriterReceipt": "shared",
    "abort_transaction": "shared",
    "commit_transaction": "shared",
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
    "ConfigResource",
    "Consumer",
    "Delivery",
    "DeliveryErrors",
    "GroupTransactSession",
    "NewTopic",
    "PatternType",
    "Producer",
    "RecordMetadata",
    "ResourceType",
    "ScramCredentialDeletion",
    "ScramCredentialUpsertion",
    "ScramMechanism",
    "SessionTransaction",
    "TableDelivery",
    "TopicDeliveryError",
    "Transaction",
    "TransactionHandle",
    "TransactionWriter",
    "WriterReceipt",
    "abort_transaction",
    "commit_transaction",
]


def __dir__() -> list[str]:
    """All public names, those too that are not imported yet."""
    return sorted({*globals(), *_HOMES})


def __getattr__(name: str) -> object:
    """The names of _HOMES are imported when first asked for."""
    import importlib

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kcodec.client' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"kcodec.client.{home}"), name)
    globals()[name] = found
    return found
