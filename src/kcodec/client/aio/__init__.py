# SPDX-License-Identifier: Apache-2.0
"""Kafka clients of the asyncio API. They have the same names and run the same flows as those of `kcodec.client`."""

from __future__ import annotations

from kcodec._lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:  # for type checkers and editors, which cannot resolve the names in the texts below
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

_EXPORTS = {
    "Admin": "kcodec.client.aio.admin",
    "BatchMetadata": "kcodec.client.aio.producer",
    "Consumer": "kcodec.client.aio.consumer",
    "Delivery": "kcodec.client.aio.producer",
    "DeliveryErrors": "kcodec.client.aio.producer",
    "GroupTransactSession": "kcodec.client.aio.session",
    "Producer": "kcodec.client.aio.producer",
    "RecordMetadata": "kcodec.client.aio.producer",
    "SessionTransaction": "kcodec.client.aio.session",
    "SharedTransactions": "kcodec.client.aio.shared",
    "TableDelivery": "kcodec.client.aio.producer",
    "TopicDeliveryError": "kcodec.client.aio.producer",
    "Transaction": "kcodec.client.aio.transaction",
    "TransactionCommit": "kcodec.client.aio.producer",
    "TransactionHandle": "kcodec.client.aio.shared",
    "TransactionWriter": "kcodec.client.aio.shared",
    "WriterReceipt": "kcodec.client.aio.shared",
    "abort_transaction": "kcodec.client.aio.shared",
    "begin_transaction": "kcodec.client.aio.shared",
    "commit_transaction": "kcodec.client.aio.shared",
    "read_ranges": "kcodec.client.aio.range_records",
    "read_topic": "kcodec.client.aio.topic_records",
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
    "SharedTransactions",
    "TableDelivery",
    "TopicDeliveryError",
    "Transaction",
    "TransactionCommit",
    "TransactionHandle",
    "TransactionWriter",
    "WriterReceipt",
    "abort_transaction",
    "begin_transaction",
    "commit_transaction",
    "read_ranges",
    "read_topic",
]

__getattr__, __dir__ = lazy_exports("kcodec.client.aio", _EXPORTS)
