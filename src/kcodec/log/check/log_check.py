# SPDX-License-Identifier: Apache-2.0
"""The check of a partition: every byte of its directory, with constant memory.

``log.check()`` and ``check_file(path)`` return Findings. The CRC of every batch is computed, and its records are read.
Producers, transactions, indexes, snapshots and leader epochs are compared with the batches. The results of log cleaning
(gaps, empty batches, markers without data, a missing .txnindex) and of a running or killed broker (indexes that end
with zeros, an open transaction) are no corruption.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from kcodec.constants import ControlType
from kcodec.errors import DecodeError
from kcodec.limits import DEFAULT_LIMITS, DecodeLimits
from kcodec.log import checkpoints
from kcodec.log.check.batches import CheckedBatch, SegmentWalk
from kcodec.log.check.findings import Finding, Flood, finding, unreadable, without_floods
from kcodec.log.check.indexes import AbortedHere, SegmentIndexes, shape_of
from kcodec.log.check.producers import ProducerChecks
from kcodec.log.indexes import (
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
    named_offset,
    read_offset_index,
    read_time_index,
    read_transaction_index,
)
from kcodec.log.producers import end_marker, snapshot_paths
from kcodec.log.segment import LOWEST_OFFSET, SEGMENT_NAME, Segment, is_last_segment
from kcodec.log.snapshots import snapshot_states

Progress = Callable[[int, int], None]
LEFTOVERS = (".cleaned", ".swap", ".deleted")
COMPANION = re.compile(r"\d{20}\.(index|timeindex|txnindex|snapshot)")


class LogCheck:
    """A check of the segments of one partition, in order.

    is_directory: Whether these are all segments of a directory. Its other files are then checked, too.
    limits:       DecodeLimits for reading.
    progress:     Called with the number of bytes done and in total.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        limits: DecodeLimits,
        progress: Progress | None = None,
        *,
        is_directory: bool = False,
    ) -> None:
        self._is_directory = is_directory
        self._segments = tuple(segments)
        self._limits = limits
        self._progress = progress
        self._storage = segments[0].storage
        self._directory = self._storage.parent(segments[0].path)
        is_internal = self._storage.name(self._directory).startswith("__")
        self._producers = ProducerChecks(segments[0].base_offset or 0, has_sequences=not is_internal)
        self._names = self._listed()
        self._snapshots: list[tuple[int, str]] = []
        self._epochs: tuple[checkpoints.LeaderEpoch, ...] = ()
        self._epoch_at = 0
        self._epochs_path = self._storage.join(self._directory, checkpoints.LEADER_EPOCHS)
        self._done = 0
        self._size = sum(segment.size_in_bytes for segment in segments)

    def _listed(self) -> list[str]:
        try:
            return sorted(entry.name for entry in self._storage.list(self._directory) if not entry.is_directory)
        except OSError:  # a file object has no other files next to it
            return []

    def findings(self) -> Iterator[Finding]:
        """Yield the findings in the order of the check."""
        return without_floods(self.each())

    def each(self) -> Iterator[Finding]:
        """Yield all findings, even if one file has many of the same kind."""
        if self._is_directory:
            yield from self._other_files()
        is_alone = not any(COMPANION.fullmatch(name) for name in self._names)
        above, is_whole = LOWEST_OFFSET, True
        for number, segment in enumerate(self._segments):
            following = self._segments[number + 1].base_offset if number + 1 < len(self._segments) else None
            walk = SegmentWalk(segment, above, following, self._limits)
            yield from self._segment(walk, SegmentIndexes(segment, is_alone=is_alone))
            above, is_whole = walk.above, is_whole and walk.is_whole
        end = above + 1 if above != LOWEST_OFFSET else self._segments[-1].base_offset or 0
        end = max(end, self._segments[-1].base_offset or 0)
        yield from self._pass_snapshots(end)
        for offset, path in self._snapshots if is_whole else ():
            text = f"the offset of the snapshot is {offset}, but the log ends at {end}"
            yield finding("snapshot-beyond-log", path, text, offset=offset)
        last = self._segments[-1]
        is_last = last.is_active and last.base_offset is not None  # otherwise a marker may be in a later segment
        yield from self._producers.end(is_last=is_last)

    def _other_files(self) -> Iterator[Finding]:
        """Yield the findings of the files that are not segments."""
        for name in self._names:
            if name.endswith(LEFTOVERS):
                yield finding("leftover", self._storage.join(self._directory, name), "the file is not part of the log")
        self._snapshots = snapshot_paths(self._segments)
        yield from self._read_epochs()
        path = self._storage.join(self._directory, checkpoints.PARTITION_METADATA)
        try:
            checkpoints.read_partition_metadata(path, self._storage)
        except FileNotFoundError:
            return  # brokers before 2.8 have none
        except (DecodeError, OSError) as error:
            yield unreadable("checkpoint-unreadable", path, error)

    def _read_epochs(self) -> Iterator[Finding]:
        try:
            self._epochs = checkpoints.read_leader_epochs(self._epochs_path, self._storage)
        except FileNotFoundError:
            return  # a copy without it
        except (DecodeError, OSError) as error:
            yield unreadable("checkpoint-unreadable", self._epochs_path, error)
        yield from order_of_epochs(self._epochs_path, self._epochs)

    # Segments

    def _segment(self, walk: SegmentWalk, indexes: SegmentIndexes) -> Iterator[Finding]:
        yield from indexes.opening()
        aborted: list[AbortedHere] = []
        for checked in walk.batches():
            if isinstance(checked, Finding):
                self._producers.is_lost = self._producers.is_lost or walk.is_lost
                yield checked
                continue
            if self._snapshots and self._snapshots[0][0] <= (offset := checked.header.base_offset):
                yield from self._pass_snapshots(offset)
            if self._epochs:
                yield from self._leader_epoch(checked, walk.segment.path)
            yield from self._producer(checked, walk.segment.path, aborted)
            if not walk.is_lost:
                yield from indexes.batch(checked.header, checked.position)
            if self._progress is not None and checked.is_last_of_window:
                self._progress(min(self._done + checked.position, self._size), self._size)
        self._done += walk.size
        if self._progress is not None:
            self._progress(min(self._done, self._size), self._size)
        known_from = self._segments[0].base_offset or 0
        is_cleaned = self._producers.is_cleaned or self._producers.is_lost
        is_whole = walk.is_whole and not walk.has_tail and not walk.is_lost
        yield from indexes.end(aborted, known_from, is_cleaned=is_cleaned, is_whole=is_whole)

    def _producer(self, checked: CheckedBatch, path: str, aborted: list[AbortedHere]) -> Iterable[Finding]:
        """Compare a batch with the state of its producer. Note an ABORT that has ended a transaction with data."""
        batch = checked.header
        if batch.producer_id < 0 or not batch.is_control_batch or not checked.is_sound:
            return self._producers.take(checked, path, None)
        return self._marker(checked, path, aborted)

    def _marker(self, checked: CheckedBatch, path: str, aborted: list[AbortedHere]) -> Iterator[Finding]:
        batch, known = checked.header, self._producers
        try:
            marker = end_marker(batch)
        except DecodeError as error:
            yield finding("bad-record", path, error.reason, position=checked.position, offset=batch.base_offset)
            return
        opened = known.opened_by(batch.producer_id)
        yield from known.take(checked, path, marker)
        if marker is not None and marker[0] == ControlType.ABORT and opened is not None:
            stable = known.first_open_offset()
            stable = batch.base_offset + 1 if stable is None else stable
            aborted.append(AbortedHere(batch.producer_id, opened, batch.base_offset, stable))

    def _leader_epoch(self, checked: CheckedBatch, path: str) -> Iterator[Finding]:
        batch = checked.header
        if batch.partition_leader_epoch < 0:
            return
        epochs, at = self._epochs, self._epoch_at
        while at + 1 < len(epochs) and epochs[at + 1].start_offset <= batch.base_offset:
            at += 1
        self._epoch_at = at
        if batch.base_offset < epochs[at].start_offset:
            return
        if batch.partition_leader_epoch != epochs[at].epoch:
            text = f"it says epoch {epochs[at].epoch} from offset {epochs[at].start_offset} on, but the batch "
            text += f"at byte {checked.position} of {self._storage.name(path)} has {batch.partition_leader_epoch}"
            yield finding("leader-epoch", self._epochs_path, text, offset=batch.base_offset)

    def _pass_snapshots(self, offset: int) -> Iterator[Finding]:
        """Compare the snapshots up to this offset with the producers of the log."""
        while self._snapshots and self._snapshots[0][0] <= offset:
            _, path = self._snapshots.pop(0)
            try:
                _, _, producers = snapshot_states(path, self._storage)
            except (DecodeError, OSError) as error:
                yield unreadable("snapshot-unreadable", path, error)
            else:
                yield from self._producers.compare(path, producers)


# Single files


def check_file(
    path: str | os.PathLike[str], *, limits: DecodeLimits = DEFAULT_LIMITS, progress: Progress | None = None
) -> list[Finding]:
    """Check one file of a log directory: ``.log``, an index, a snapshot, or a checkpoint. Return its findings.

    path:     The file.
    limits:   DecodeLimits for reading.
    progress: Called with the number of bytes done and in total.

    An index is also compared with its segment. Raise ValueError for a file of another kind, and FileNotFoundError.
    """
    return list(file_findings(path, limits=limits, progress=progress))


def file_findings(
    path: str | os.PathLike[str], *, limits: DecodeLimits = DEFAULT_LIMITS, progress: Progress | None = None
) -> Iterator[Finding]:
    """Yield the findings of check_file() as they are found, with the same arguments: path, limits, progress."""
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file")
    return without_floods(_file_findings(file, limits, progress))


def _file_findings(file: Path, limits: DecodeLimits, progress: Progress | None) -> Iterator[Finding]:
    if file.suffix in (".log", ".checkpoint"):
        return LogCheck([_segment_at(file)], limits, progress).each()
    if file.suffix in INDEXES:
        return _index_findings(file, limits, progress)
    if file.suffix in LEFTOVERS:
        return iter([finding("leftover", file, "the file is not part of the log")])
    if file.suffix != ".snapshot" and file.name not in TEXT_FILES:
        raise ValueError(
            f"{file}: the name is not that of a file in a log directory; expected "
            f"{', '.join(['.log', *INDEXES, '.snapshot', *TEXT_FILES])}"
        )
    return _text_findings(file)


def _walk_offsets(path: str) -> None:
    """Read a checkpoint of offsets, without storing its entries."""
    for _ in checkpoints.offset_entries(path):
        pass


INDEXES: dict[str, Callable[[str], OffsetIndex | TimeIndex | TransactionIndex]] = {
    ".index": read_offset_index,
    ".timeindex": read_time_index,
    ".txnindex": read_transaction_index,
}
TEXT_FILES: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(checkpoints.OFFSET_CHECKPOINTS, _walk_offsets),
    checkpoints.LEADER_EPOCHS: checkpoints.read_leader_epochs,
    checkpoints.PARTITION_METADATA: checkpoints.read_partition_metadata,
    checkpoints.META_PROPERTIES: checkpoints.read_meta_properties,
}


def _segment_at(file: Path) -> Segment:
    """Return the segment at a path. The last segment of its directory is active."""
    base = named_offset(file) if SEGMENT_NAME.fullmatch(file.name) else None
    return Segment(str(file), base, file.suffix == ".log" and is_last_segment(str(file)))


def _index_findings(file: Path, limits: DecodeLimits, progress: Progress | None) -> Iterator[Finding]:
    segment = file.with_suffix(".log")
    if segment.is_file():
        found = LogCheck([_segment_at(segment)], limits, progress).each()
        yield from (one for one in found if one.path == str(file))
        return
    try:
        yield from shape_of(INDEXES[file.suffix](str(file)), is_active=True)
    except (DecodeError, OSError) as error:
        yield unreadable("index-unreadable", file, error)


def _text_findings(file: Path) -> Iterator[Finding]:
    try:
        if file.suffix == ".snapshot":
            snapshot_states(file)
            return
        found = TEXT_FILES[file.name](str(file))
        if file.name == checkpoints.LEADER_EPOCHS:
            assert isinstance(found, tuple)
            yield from order_of_epochs(str(file), found)
    except (DecodeError, OSError) as error:
        yield unreadable(f"{'snapshot' if file.suffix == '.snapshot' else 'checkpoint'}-unreadable", file, error)


def order_of_epochs(path: str, epochs: Sequence[checkpoints.LeaderEpoch]) -> Iterator[Finding]:
    """Yield a finding if leader epochs or their offsets do not increase from line to line."""
    flood = Flood("leader-epoch", path)
    for number, (before, now) in enumerate(pairwise(epochs), 4):
        if (now.epoch <= before.epoch or now.start_offset <= before.start_offset) and not flood.is_full():
            text = f"line {number}: epoch {now.epoch} from offset {now.start_offset} on does not follow "
            text += f"epoch {before.epoch} from {before.start_offset} on"
            yield finding("leader-epoch", path, text, offset=now.start_offset)
    yield from flood.rest()
