# SPDX-License-Identifier: Apache-2.0
"""Under which identity a producer writes: what the sender asks, and what it tells, whoever hands the identity out.

A broker knows a writer by (producer id, epoch) and numbers its batches per partition (KIP-98). The `Sender` owns the
sequence numbers, the kept bytes and the retries; a `ProducerIdSource` owns the identity and judges the errors that
concern it. Three sources: `IdempotentProducerId` and `WithoutProducerId` of `kcodec.producer.idempotent`, and the
transaction manager of a transactional producer.

How the two work together:

- Before each batch of a partition the sender looks at `refuses()`, then `current`, then `may_send(partition)`. Where
  one says no, the batch stays in the buffer and the sender comes back when `changed` is set.
- A partition takes up a new `current` when none of its batches is unsettled; its sequence numbers then restart at 0,
  and its first batch under that identity goes out alone.
- A numbered batch that failed leaves a gap. If it was certainly not written, the sender renumbers what follows it under
  the same identity; if not, what follows may be answered with 45, which the source then judges. A transaction in which
  a batch failed with `possibly_written` cannot go on under this identity: its manager changes `current` first.
- Every batch that was numbered ends in exactly one `on_success` or `on_failure`.
- On `Verdict.BUMP` the source sees to it that `current` changes (at once, or later with `changed`). The sender waits
  until no request of that partition is outstanding, renumbers its kept batches from 0 under the new identity and sends
  them again.

All of it is called on the loop's thread, between two yields of a flow; no method may block or yield.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from kcodec.cluster.values import ProducerIdAndEpoch
from kcodec.constants import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from kcodec.flow import Signal
from kcodec.offsets import TopicPartition

#: The highest epoch a producer id can have; at it the next bump is a new id from InitProducerId.
HIGHEST_EPOCH = 32767


#: Of batches without one: neither numbered nor checked for duplicates.
NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class Verdict(Enum):
    """What is to become of a batch that a broker refused because of who sent it."""

    #: Send it again as it is: same identity, same sequence, same bytes.
    RETRY = "retry"
    #: It fails, with the broker's error; `on_failure` follows.
    FAIL = "fail"
    #: The identity changes; then it is renumbered and sent again.
    BUMP = "bump"


class ProducerIdSource(Protocol):
    """Who a sender writes as.

    transactional_id: goes into every ProduceRequest; None outside transactions.
    changed:          set whenever an answer of `current`, `may_send` or `refuses` may have changed.
    """

    transactional_id: str | None
    changed: Signal

    @property
    def current(self) -> ProducerIdAndEpoch | None:
        """The identity to write under now; None: not to be had yet, the sender holds its batches back."""
        ...

    def produce_highest_version(self) -> int:
        """The highest version a ProduceRequest may have: 11 in the transaction flow before KIP-890, else 32767."""
        ...

    def may_send(self, partition: TopicPartition) -> bool:
        """Whether `current` may write to the partition now; asked when a batch would go out next.

        The old transaction flow answers False, asks for AddPartitionsToTxn and sets `changed` when it is answered.
        """
        ...

    def refuses(self) -> BaseException | None:
        """An error that every batch still in the buffer fails with (fatal, fenced, abortable); None: go on.

        Batches that are in flight are waited for, not failed.
        """
        ...

    def on_success(self, partition: TopicPartition, records_count: int, last_sequence: int) -> None:
        """A batch was acknowledged (a duplicate of its own retry included). last_sequence: -1 if it is not numbered."""
        ...

    def on_failure(self, partition: TopicPartition, error: BaseException, *, possibly_written: bool) -> None:
        """A batch failed for good; a transaction can then only be aborted.

        possibly_written: a request with it may have been, or may yet be, acted on. Also called, with False, for batches
        that were never numbered or sent (expired in the buffer, aborted), and for records whose topic's metadata did
        not come: their partition is -1 where the record did not name one.
        """
        ...

    def on_unanswered(self, api: str) -> None:
        """A request ("Produce") that may have been sent got no answer: cut off or timed out; its copy may arrive late.

        In the old transaction flow that spends the epoch.
        """
        ...

    def on_error_code(self, partition: TopicPartition, code: int) -> Verdict:
        """A broker answered with 45, 47, 48, 49, 53, 59, 90 or 120, for the earliest unsettled batch of the partition.

        Codes that are about the partition and not about the producer (6, 3, 19, 7 ...) are the sender's own business.
        """
        ...
