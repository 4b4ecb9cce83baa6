# SPDX-License-Identifier: Apache-2.0
"""Defects that can be put into the embedded broker, one at a time, to see that the comparison with Kafka finds them.

Each is a small change of the kind that happens: a check that is left out, an off-by-one, a state that is not reset.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from kcodec.broker.groups.classic_group import ClassicGroup
from kcodec.broker.groups.offset_store import OffsetStore
from kcodec.broker.partition_log import PartitionLog
from kcodec.broker.produce import Produce
from kcodec.broker.producer_state import ProducerEntry, ProducerStates
from kcodec.broker.transactions.coordinator import ProducerIdentity, TransactionCoordinator
from kcodec.broker.transactions.state import State, TransactionMetadata


class Defect(NamedTuple):
    """A defect: what is wrong, and the attributes of classes or modules that are replaced.

    change: called with the original, and returns what takes its place.
    """

    name: str
    owner: Any
    attribute: str
    change: Callable[[Any], Any]


@contextmanager
def defective(defect: Defect) -> Iterator[None]:
    """Put the defect into the broker, and take it out again."""
    original = defect.owner.__dict__[defect.attribute]
    setattr(defect.owner, defect.attribute, defect.change(original))
    try:
        yield
    finally:
        setattr(defect.owner, defect.attribute, original)


# Partition leaders.


def _smaller_window(original: Any) -> Any:
    def duplicate(self: ProducerStates, batch: Any) -> Any:
        kept = original(self, batch)
        entry = self.get(batch.producer_id)
        return kept if entry is None or kept in list(entry.batches)[-1:] else None

    return duplicate


def _gap_allowed(original: Any) -> Any:
    def check(self: ProducerStates, batch: Any, entry: ProducerEntry | None) -> None:
        if entry is not None and batch.producer_epoch == entry.epoch and batch.base_sequence == entry.last_sequence + 2:
            return
        original(self, batch, entry)

    return check


def _no_epoch_fencing(original: Any) -> Any:
    def check(self: ProducerStates, batch: Any, **options: Any) -> None:
        entry = self.get(batch.producer_id)
        if entry is not None and batch.producer_epoch == entry.epoch - 1:
            return
        original(self, batch, **options)

    return check


def _keeps_batches(original: Any) -> Any:
    def set_epoch(self: ProducerEntry, epoch: int) -> None:
        self.epoch = epoch

    return set_epoch


def _mixed_writes(original: Any) -> Any:
    def check(self: ProducerStates, batch: Any, **options: Any) -> None:
        original(self, batch if batch.is_transactional else batch._replace(is_transactional=True), **options)

    return check


def _latest_open(original: Any) -> Any:
    return lambda self: max(self._open.values(), default=None)


def _stable_after_first_marker(original: Any) -> Any:
    def moved(self: PartitionLog) -> None:
        before = self.last_stable_offset
        original(self)
        batch = next(iter(self.batches_from(self.log_end_offset - 1)), None) if self.log_end_offset else None
        if batch is not None and batch.is_control_batch:
            self.last_stable_offset = max(self.log_end_offset, before)

    return moved


def _no_aborted_list(original: Any) -> Any:
    def read(self: PartitionLog, *arguments: Any, **options: Any) -> Any:
        found = original(self, *arguments, **options)
        return found._replace(aborted=[] if found.aborted else found.aborted)

    return read


def _aborted_list_of_uncommitted(original: Any) -> Any:
    def read(self: PartitionLog, *arguments: Any, **options: Any) -> Any:
        found = original(self, *arguments, **options)
        return found._replace(aborted=[] if found.aborted is None else found.aborted)

    return read


def _commits_are_aborts(original: Any) -> Any:
    def completed(self: PartitionLog, ended: Any) -> None:
        original(self, None if ended is None else ended._replace(is_aborted=True))

    return completed


def _unverified(original: Any) -> Any:
    return lambda self, context, transactional_id, parts: {}


# Transaction coordinator.


def _epoch_not_bumped(original: Any) -> Any:
    def ended(self: TransactionMetadata, **options: Any) -> TransactionMetadata:
        decided: TransactionMetadata = original(self, **options)
        return replace(decided, producer_epoch=self.producer_epoch)

    return ended


def _last_epoch_forgotten(original: Any) -> Any:
    def incremented(self: TransactionMetadata, timeout_ms: int, expected: int | None, now: int) -> Any:
        found = original(self, timeout_ms, expected, now)
        return None if found is None else replace(found, last_producer_epoch=-1)

    return incremented


def _no_fencing_at_end(original: Any) -> Any:
    def end(self: TransactionCoordinator, transactional_id: str, producer: Any, **options: Any) -> Any:
        found = self.get(transactional_id)
        if found is not None and producer.epoch == found.producer_epoch - 1 and found.state is State.ONGOING:
            producer = ProducerIdentity(producer.producer_id, found.producer_epoch)
        return original(self, transactional_id, producer, **options)

    return end


def _any_end_after_completion(original: Any) -> Any:
    def end(
        self: TransactionCoordinator, transactional_id: str, producer: Any, *, is_commit: bool, **options: Any
    ) -> Any:
        found = self.get(transactional_id)
        if found is not None and found.state is State.COMPLETE_ABORT:
            is_commit = False
        return original(self, transactional_id, producer, is_commit=is_commit, **options)

    return end


def _no_rotation(original: Any) -> Any:
    return property(lambda self: False)


def _partitions_kept(original: Any) -> Any:
    def completed(self: TransactionMetadata, now: int) -> TransactionMetadata:
        found: TransactionMetadata = original(self, now)
        return replace(found, partitions=self.partitions)

    return completed


def _fence_without_abort(original: Any) -> Any:
    def init(self: TransactionCoordinator, transactional_id: str | None, timeout_ms: int, expected: Any) -> Any:
        found = self.get(transactional_id or "")
        if found is not None and found.state is State.ONGOING and expected is None:
            self._states[found.transactional_id] = replace(found, state=State.EMPTY, partitions=frozenset())
        return original(self, transactional_id, timeout_ms, expected)

    return init


# Groups, offsets.


def _pending_at_once(original: Any) -> Any:
    def end(self: OffsetStore, producer_id: int, *, is_commit: bool, concerns: Any) -> Any:
        return original(self, producer_id, is_commit=True, concerns=concerns)

    return end


def _stable_ignored(original: Any) -> Any:
    return lambda self, group_id, partition: False


def _no_generation_fencing(original: Any) -> Any:
    def validate(self: ClassicGroup, request: Any, **options: Any) -> None:
        changed = copy.copy(request)
        if request.generation_id_or_member_epoch >= 0:
            changed.generation_id_or_member_epoch = self.generation
        original(self, changed, **options)

    return validate


def _deletes_too_much(original: Any) -> Any:
    def delete(self: PartitionLog, offset: int) -> int:
        return int(original(self, min(offset + 1, self.high_watermark) if offset > 0 else offset))

    return delete


def _other_sequence_of_offsets(original: Any) -> Any:
    def append(self: PartitionLog, records: Any, **options: Any) -> int:
        return int(original(self, records, **{**options, "sequence": -1}))

    return append


DEFECTS = [
    Defect(
        "only the last batch is recognized as repeated, not the last five", ProducerStates, "duplicate", _smaller_window
    ),
    Defect("a gap of one sequence is accepted", ProducerStates, "_check_sequence", _gap_allowed),
    Defect("a leader accepts the epoch before", ProducerStates, "check_batch", _no_epoch_fencing),
    Defect("sequences go on in a new epoch", ProducerEntry, "set_epoch", _keeps_batches),
    Defect("plain batches are accepted in an open transaction", ProducerStates, "check_batch", _mixed_writes),
    Defect(
        "the last stable offset follows the latest open transaction",
        ProducerStates,
        "first_unstable_offset",
        _latest_open,
    ),
    Defect("the last stable offset moves with the first marker", PartitionLog, "_moved", _stable_after_first_marker),
    Defect("the list of aborted transactions is empty", PartitionLog, "read", _no_aborted_list),
    Defect("read_uncommitted has a list of aborted transactions", PartitionLog, "read", _aborted_list_of_uncommitted),
    Defect("committed transactions are listed as aborted", PartitionLog, "_completed", _commits_are_aborts),
    Defect("leaders do not verify transactions", Produce, "_verify", _unverified),
    Defect("EndTxn does not bump the epoch", TransactionMetadata, "ended", _epoch_not_bumped),
    Defect("a repeated InitProducerId is fenced", TransactionMetadata, "incremented", _last_epoch_forgotten),
    Defect("EndTxn of the epoch before is accepted", TransactionCoordinator, "end", _no_fencing_at_end),
    Defect("a commit after an abort is accepted", TransactionCoordinator, "end", _any_end_after_completion),
    Defect(
        "a transactional id keeps its producer id when epochs are used up",
        TransactionMetadata,
        "is_epoch_exhausted",
        _no_rotation,
    ),
    Defect("partitions of the transaction before stay", TransactionMetadata, "completed", _partitions_kept),
    Defect(
        "fencing forgets the open transaction without aborting it",
        TransactionCoordinator,
        "init_producer_id",
        _fence_without_abort,
    ),
    Defect("offsets of aborted transactions are committed", OffsetStore, "end_transaction", _pending_at_once),
    Defect("require_stable is ignored", OffsetStore, "is_pending", _stable_ignored),
    Defect("commits of every generation are accepted", ClassicGroup, "validate_commit", _no_generation_fencing),
    Defect("DeleteRecords deletes one record too many", PartitionLog, "delete_before", _deletes_too_much),
    Defect("batches of committed offsets have no sequence", PartitionLog, "append_records", _other_sequence_of_offsets),
]
