# SPDX-License-Identifier: Apache-2.0
"""The state of each producer, computed from the batches of a log (ProducerStateManager, ProducerAppendInfo).

A data batch sets epoch, last sequence, last offset and timestamp, and begins a transaction if it is transactional and
none is open. An end-transaction marker ends the transaction; a marker of another epoch removes the batches of the
previous epoch. A control batch without records, as the log cleaner leaves it, changes nothing. An empty transactional
batch begins no transaction, as in timeline.py. Producers do not expire here (producer.id.expiration.ms limits the
memory of a broker).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter

from kcodec._fast import RecordBatch
from kcodec.constants import ControlType
from kcodec.errors import DecodeError
from kcodec.limits import DecodeLimits
from kcodec.log.batches import Batches
from kcodec.log.seek import position_of_offset
from kcodec.log.segment import Segment, batch_at, least_offset, stored_offset
from kcodec.log.snapshots import ProducerSnapshot, ProducerState, read_snapshot, snapshot_states

END_MARKERS = (ControlType.ABORT, ControlType.COMMIT)
SUFFIX = ".snapshot"
# The number of producers of a snapshot, those with the latest batches, that are looked up in the log to verify it.
MOST_VERIFIED = 64


@dataclass(slots=True)
class KnownProducer:
    """The changing state of one producer while a log is walked. It has the fields of ProducerState in the same
    order."""

    producer_id: int
    epoch: int
    last_sequence: int = -1
    last_offset: int = -1
    delta: int = 0
    timestamp: int = -1
    coordinator_epoch: int = -1
    opened: int | None = None

    def turn_to(self, epoch: int) -> None:
        """Change to another epoch, and forget the batches of the previous one."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.last_sequence = self.last_offset = -1
            self.delta = 0


STATE_FIELDS = attrgetter(*(field.name for field in fields(ProducerState)))
KNOWN_FIELDS = attrgetter(*(field.name for field in fields(KnownProducer)))


class KnownProducers:
    """The producers of a log so far. `known` has them by producer id. Call ``take`` for each batch in order."""

    def __init__(self, states: Iterable[ProducerState] = ()) -> None:
        self.known = {state.producer_id: KnownProducer(*STATE_FIELDS(state)) for state in states}

    def take(self, batch: RecordBatch) -> None:
        """Take the next batch. Raise DecodeError if it is an end-transaction marker that cannot be read."""
        if batch.producer_id < 0:
            return
        if not batch.is_control_batch:
            self.take_data(batch)
        elif (marker := end_marker(batch)) is not None:
            self.take_marker(batch, marker)

    def take_data(self, batch: RecordBatch) -> None:
        """Take the next batch, which has records of a producer."""
        one = self._producer_of(batch)
        one.last_sequence, one.last_offset = batch.last_sequence, batch.last_offset
        one.delta, one.timestamp = batch.last_offset_delta, batch.max_timestamp
        if one.opened is None and batch.is_transactional and (batch.records_count or 0) > 0:
            one.opened = batch.base_offset

    def take_marker(self, batch: RecordBatch, marker: tuple[int, int, int]) -> None:
        """Take the next batch, an end-transaction marker, with the result of ``end_marker``."""
        _control_type, coordinator_epoch, timestamp = marker
        one = self._producer_of(batch)
        one.coordinator_epoch, one.timestamp, one.opened = coordinator_epoch, timestamp, None

    def states(self) -> tuple[ProducerState, ...]:
        """Return the states by producer id."""
        return tuple(ProducerState(*KNOWN_FIELDS(one)) for _, one in sorted(self.known.items()))

    def _producer_of(self, batch: RecordBatch) -> KnownProducer:
        """Return the producer of a batch, in the batch's epoch."""
        one = self.known.get(batch.producer_id)
        if one is None:
            one = self.known[batch.producer_id] = KnownProducer(batch.producer_id, batch.producer_epoch)
        one.turn_to(batch.producer_epoch)
        return one


def end_marker(batch: RecordBatch) -> tuple[int, int, int] | None:
    """Return (control type, coordinator epoch, timestamp) of an end-transaction marker; None for another control
    batch."""
    if (batch.records_count or 0) <= 0:
        return None
    record = next(iter(batch.records()), None)
    if record is None or record.control_type is None or record.coordinator_epoch is None:
        return None
    if record.control_type not in END_MARKERS:
        return None
    return int(record.control_type), record.coordinator_epoch, record.timestamp


def producer_states(
    segments: Sequence[Segment], log_end_offset: int, limits: DecodeLimits, *, use_snapshots: bool = True
) -> tuple[ProducerState, ...]:
    """Return the producers at the end of a log, from the newest snapshot that agrees with the log, and the batches
    after it.

    Without such a snapshot, or without use_snapshots, they are computed from all batches, and producers whose batches
    were deleted are missing.
    """
    snapshot = newest_usable(segments, log_end_offset, limits) if use_snapshots else None
    if snapshot is None or snapshot.offset is None:
        return _replayed(KnownProducers(), Batches(segments, limits))
    at = _segment_of(segments, snapshot.offset)
    place = position_of_offset(segments[at], snapshot.offset, limits)
    known = KnownProducers(snapshot.producers)
    return _replayed(known, Batches(segments[at:], limits, start=place), snapshot.offset)


def _replayed(known: KnownProducers, batches: Batches, offset: int = 0) -> tuple[ProducerState, ...]:
    for batch in batches:
        if stored_offset(batch) >= offset:
            known.take(batch)
    return known.states()


def snapshot_paths(segments: Sequence[Segment]) -> list[tuple[int, str]]:
    """(offset, path) of the snapshots next to the segments, in order."""
    storage = segments[0].storage
    directory = storage.parent(segments[0].path)
    named = []
    try:
        entries = storage.list(directory)
    except OSError:  # a file object has no other files next to it
        entries = []
    for entry in entries:
        stem = entry.name.removesuffix(SUFFIX)
        if entry.name.endswith(SUFFIX) and len(stem) == 20 and stem.isdecimal() and not entry.is_directory:
            named.append((int(stem), storage.join(directory, entry.name)))
    return sorted(named)


def newest_usable(segments: Sequence[Segment], end: int, limits: DecodeLimits) -> ProducerSnapshot | None:
    """Return the newest snapshot up to the log's end that agrees with the log: the last batches of its producers are in
    the log, unless they may have been deleted."""
    first = segments[0].base_offset
    if first is None:
        return None
    for offset, path in reversed(snapshot_paths(segments)):
        if not first <= offset <= end:
            continue
        try:
            _, _, producers = snapshot_states(path, segments[0].storage)
            latest = heapq.nlargest(MOST_VERIFIED, producers, key=lambda state: state.last_offset)
        except (DecodeError, OSError):
            continue
        if all(_bears_out(segments, state, offset, limits) for state in latest):
            return read_snapshot(path, segments[0].storage)
    return None


def _bears_out(segments: Sequence[Segment], state: ProducerState, before: int, limits: DecodeLimits) -> bool:
    """Return whether the log agrees with a state: its last batch is in the log, unless it has been deleted."""
    opened = state.current_transaction_first_offset
    if state.last_offset >= before or (opened is not None and opened >= before):
        return False
    if state.last_offset >= (segments[0].base_offset or 0):
        said = (state.producer_id, state.producer_epoch, state.last_offset, state.last_sequence)
        for batch in _batch_at(segments, state.last_offset, limits):
            if (batch.producer_id, batch.producer_epoch, batch.last_offset, batch.last_sequence) != said:
                return False
    if opened is not None and opened >= (segments[0].base_offset or 0):
        for batch in _batch_at(segments, opened, limits):
            if batch.producer_id != state.producer_id or not batch.is_transactional:
                return False
    return True


def _batch_at(segments: Sequence[Segment], offset: int, limits: DecodeLimits) -> list[RecordBatch]:
    """Return the batch that contains an offset. Return None in a gap that compaction has left, or if a header cannot be
    read."""
    segment = segments[_segment_of(segments, offset)]
    place = position_of_offset(segment, offset, limits)
    with segment.open() as file:
        try:
            batch = batch_at(file, place.position, file.size(), limits)
        except DecodeError:
            return []
    return [batch] if batch is not None and least_offset(batch) <= offset <= batch.last_offset else []


def _segment_of(segments: Sequence[Segment], offset: int) -> int:
    """Return the number of the segment to which an offset belongs."""
    numbers = [at for at, segment in enumerate(segments) if (segment.base_offset or 0) <= offset]
    return numbers[-1] if numbers else 0
