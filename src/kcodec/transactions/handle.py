# SPDX-License-Identifier: Apache-2.0
"""One transaction of many processes: the handle that its owner gives to the writers, and the receipts they return."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields

from kcodec.offsets import TopicPartition

_LIMITS = {"producer_id": (1 << 63) - 1, "producer_epoch": (1 << 15) - 1, "transaction_version": (1 << 15) - 1}
#: Sequence numbers go from 0 to this, and begin again.
HIGHEST_SEQUENCE = (1 << 31) - 1


@dataclass(frozen=True)
class TransactionHandle:
    """The identity of an open transaction. It is enough to write to it, to commit it and to abort it, from any process
    and after any restart. It is not a secret, but a process that has it and can reach the brokers can do all three.

    transactional_id: the transactional id of the transaction.
    producer_id, producer_epoch: the identity of the producer with which all writers write.
    transaction_version: the finalized feature level at its begin, which selects the transaction flow.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_version: int

    def __post_init__(self) -> None:
        if not isinstance(self.transactional_id, str) or not self.transactional_id:
            raise ValueError(f"transactional_id must be a non-empty string, not {self.transactional_id!r}")
        for name, highest in _LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= highest:
                raise ValueError(f"{name} must be an int from 0 to {highest}, not {value!r}")

    def to_json(self) -> str:
        """Return the handle as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> TransactionHandle:
        """Return the handle that `to_json` wrote as `text`. Raise ValueError for anything else."""
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ValueError(f"invalid transaction handle: {error}") from None
        names = {field.name for field in fields(cls)}
        if not isinstance(found, dict) or set(found) != names:
            raise ValueError(
                f"invalid transaction handle: expected a JSON object with the names {', '.join(sorted(names))}"
            )
        return cls(**found)


def check_handle(handle: object) -> None:
    """Raise TypeError unless the value is a TransactionHandle."""
    if isinstance(handle, TransactionHandle):
        return
    hint = ": read the JSON text with TransactionHandle.from_json" if isinstance(handle, str | bytes) else ""
    raise TypeError(f"handle must be a TransactionHandle, not {type(handle).__name__}{hint}")


class WriterReceipt(Mapping[TopicPartition, tuple[int, int]]):
    """The records that a TransactionWriter has written: for each partition, their number and the last sequence number,
    (0, -1) if none.

    Every record was acknowledged: a writer with an unacknowledged record returns no receipt. Receipts are frozen,
    comparable and picklable.

    partitions: the content of the receipt. Raise ValueError if the number of records of a partition does not match its
        last sequence, as after another writer wrote there.
    """

    __slots__ = ("_partitions",)

    def __init__(self, partitions: Mapping[TopicPartition, tuple[int, int]]) -> None:
        checked = {}
        for (topic, partition), (records, last_sequence) in partitions.items():
            if records < 0 or last_sequence != (records - 1 & HIGHEST_SEQUENCE if records else -1):
                raise ValueError(
                    f"receipt of {topic}-{partition}: {records} records do not end at sequence {last_sequence}: "
                    "another writer wrote to the partition, or records are missing"
                )
            checked[TopicPartition(topic, partition)] = records, last_sequence
        self._partitions = checked

    def __getitem__(self, partition: TopicPartition) -> tuple[int, int]:
        return self._partitions[partition]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._partitions)

    def __len__(self) -> int:
        return len(self._partitions)

    def __eq__(self, other: object) -> bool:
        return self._partitions == other._partitions if isinstance(other, WriterReceipt) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self._partitions.items()))

    def __repr__(self) -> str:
        inside = ", ".join(f"{partition}: {records}" for partition, (records, _) in self._partitions.items())
        return f"<WriterReceipt {inside or 'of nothing'}>"

    def __reduce__(self) -> tuple[type[WriterReceipt], tuple[dict[TopicPartition, tuple[int, int]]]]:
        return WriterReceipt, (self._partitions,)

    @property
    def records_count(self) -> int:
        """The number of records in all partitions."""
        return sum(records for records, _ in self._partitions.values())


def check_receipts(receipts: Iterable[WriterReceipt] | WriterReceipt) -> dict[TopicPartition, int]:
    """Return the number of records in each partition, from all receipts. Raise ValueError if two writers wrote to one
    partition. Their records are then interleaved, and only an abort is safe."""
    found: dict[TopicPartition, int] = {}
    for receipt in [receipts] if isinstance(receipts, WriterReceipt) else receipts:
        if not isinstance(receipt, WriterReceipt):
            raise TypeError(f"receipts: expected WriterReceipt, got {receipt!r}")
        for partition, (records, _) in receipt.items():
            if records and found.get(partition):
                raise ValueError(
                    f"two writers wrote to {partition} with one handle: abort the transaction "
                    "(abort_transaction), and write it again with one writer for each partition"
                )
            found[partition] = found.get(partition, 0) + records
    return found
