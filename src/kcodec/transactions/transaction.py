# SPDX-License-Identifier: Apache-2.0
"""One transaction of a producer: its sent and acknowledged requests, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass, field

from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.offsets import TopicPartition

#: The last version of Produce that does not add its partitions to the transaction (KIP-890).
OLD_FLOW_PRODUCE_VERSION = 11
#: The level of the feature transaction.version from which on the new flow is spoken.
NEW_FLOW_LEVEL = 2
#: The share of transaction_timeout_ms after which an open transaction is worth a warning.
WARNING_SHARE = 0.8


@dataclass(eq=False, slots=True)
class ProducerTransaction:
    """One transaction from its begin. The caller may keep the object after the end.

    producer:    The (id, epoch) with which it is written.
    is_new_flow: Whether it uses the flow of transaction version 2, which is selected at the begin.
    added:       Partitions that the coordinator knows (old flow).
    to_add:      Partitions that are not added yet, and for which the sender waits.
    groups:      Consumer groups that were added to the transaction.
    is_sent:     Whether a request of it may have reached a broker, so that it needs an EndTxn.
    is_shared:   Whether its handle was read, so that other processes may write to it and end it.
    is_end_begun: Whether a commit or an abort has begun to send EndTxn, and has not failed.
    is_abort_unconfirmed: Whether its abort was sent and got no response. It may then still be open, but it is certainly
                 not committed.
    requests:    Number of requests in flight that add partitions or offsets. EndTxn waits for them.
    batches:     Number of acknowledged batches.
    sent_at:     Time of the first request. The coordinator's time limit starts after it.
    receipt:     Number of acknowledged records and last sequence number of each partition.
    is_abandoned: Whether its block has ended, so that the next begin aborts it if it is still open.
    to_investigate: Request and error code that reported that the epoch is too old, until the reason is known.
    committed:   True, False, or None if it is open or the outcome is unknown.
    """

    producer: ProducerIdAndEpoch
    is_new_flow: bool
    added: set[TopicPartition] = field(default_factory=set)
    to_add: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    is_sent: bool = False
    is_shared: bool = False
    is_commit_unconfirmed: bool = False
    is_end_unconfirmed: bool = False
    is_abort_unconfirmed: bool = False
    is_end_begun: bool = False
    is_warned: bool = False
    is_abandoned: bool = False
    requests: int = 0
    batches: int = 0
    sent_at: float | None = None
    receipt: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    to_investigate: tuple[str, int] | None = None
    committed: bool | None = None

    @property
    def is_known(self) -> bool:
        """Whether partitions, records or offsets of it were acknowledged, so that the coordinator knows it."""
        return bool(self.added or self.groups or self.receipt)

    def note_abort_unconfirmed(self) -> None:
        """Note that the abort was sent and got no response. This does not count if an earlier commit, or a process with
        the handle, may have committed the transaction."""
        self.is_abort_unconfirmed = not (self.is_commit_unconfirmed or self.is_shared)

    def note_batch(self, partition: TopicPartition, records_count: int, last_sequence: int) -> None:
        """Count an acknowledged batch."""
        self.batches += 1
        records = self.receipt.get(partition, (0, -1))[0]
        self.receipt[partition] = records + records_count, last_sequence

    def seconds_open(self, now: float) -> float:
        """Return the seconds since its first request; 0 before it."""
        return 0.0 if self.sent_at is None else now - self.sent_at

    def seconds_to_warning(self, now: float, timeout_ms: int) -> float | None:
        """Return the seconds until the warning about the transaction timeout is due; None if no warning is needed."""
        if self.sent_at is None or self.is_warned:
            return None
        return max(self.sent_at + WARNING_SHARE * timeout_ms / 1000 - now, 0.0)
