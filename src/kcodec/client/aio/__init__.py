# SPDX-License-Identifier: Apache-2.0
"""The clients of `kcodec.client` for asyncio: the same names, the same flows, awaited."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # for type checkers and editors, to which the names below are only text
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
    )
    from kcodec.client.aio.session import GroupTransactSession, SessionTransaction
    from kcodec.client.aio.shared import (
        TransactionHandle,
        TransactionWriter,
        WriterReceipt,
        abort_transaction,
        commit_transaction,
    )
    from kcodec.client.aio.topic_records import read_topic
    from kcodec.client.aio.transaction import Transaction

# Name -> module that has it; imported when first asked for.
_HOMES: dict[str, str] = {
    "Admin": "admin",
    "BatchMetadata": "producer",
    "Consumer": "consumer",
    "Delivery": "producer",
    "DeliveryErrors": "producer",
    "GroupTransactSession": "session",
    "Producer": "producer",
    "RecordMetadata": "producer",
    "SessionTransaction": "session",
    "TableDelivery": "producer",
    "TopicDeliveryError": "producer",
    "Transaction": "transaction",
    "TransactionHandle": "shared",
    "TransactionWriter": "shared",
    "WriterReceipt": "shared",
    "abort_transaction": "shared",
    "commit_transaction": "shared",
    "read_topic": "topic_records",
}

__all__ = [
    "Admin",
    "BatchMetadata",
    "Consumer",
    "Delivery",
    "DeliveryErrors",
    "GroupTransactSession",
    "Producer",
    "RecordMetadata",
    "SessionTransaction",
    "TableDelivery",
    "TopicDeliveryError",
    "Transaction",
    "TransactionHandle",
    "TransactionWriter",
    "WriterReceipt",
    "abort_transaction",
    "commit_transaction",
    "read_topic",
]


def __dir__() -> list[str]:
    """All public names, those too that are not imported yet."""
    return sorted({*globals(), *_HOMES})


def __getattr__(name: str) -> object:
    """The names of _HOMES are imported when first asked for."""
    import importlib

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kcodec.client.aio' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"kcodec.client.aio.{home}"), name)
    globals()[name] = found
    return found
