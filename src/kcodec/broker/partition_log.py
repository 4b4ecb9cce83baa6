# SPDX-License-Identifier: Apache-2.0
"""The log of one partition: appends, reads, offsets, and its recovery from the files (UnifiedLog, LocalLog, LogLoader).

There is one replica, so the high watermark is the end of the log. The last stable offset is the first offset of the
earliest open transaction. Without an open transaction, it is the high watermark.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

from kcodec._fast import RecordBatch, batches, crc32c, decode, encode_batch, encode_end_transaction_marker
from kcodec.broker import recovery
from kcodec.broker.api import ApiError
from kcodec.broker.clock import Clock
from kcodec.broker.derived_file import try_write_small, write_checkpoint
from kcodec.broker.producer_state import BatchHeader, CompletedTransaction, ProducerStates
from kcodec.broker.segment import Segment
from kcodec.constants import Compression, ControlType, TimestampType
from kcodec.errors import DecodeError
from kcodec.log import TransactionIndexEntry, pack_snapshot, read_leader_epochs, read_snapshot
from kcodec.protocol.error_codes import ErrorCode
from kcodec.record.rewrite import set_base_offset, set_max_timestamp, set_partition_leader_epoch
from kcodec.record.validation import validate

_log = logging.getLogger(__name__)
LARGEST_RELATIVE_OFFSET = (1 << 31) - 1
READ_COMMITTED = 1
_LOG_NAME = re.compile(r"(\d{20})\.log")
_SNAPSHOT_NAME = re.compile(r"(\d{20})\.snapshot")

# The fields of a batch that `append_records` changes.
_CRC, _SEQUENCE = slice(17, 21), slice(53, 57)


class Appended(NamedTuple):
    """The position of a batch in the log. `log_append_time` is -1 if the records keep the timestamps of the
    producer."""

    base_offset: int
    log_append_time: int


class FetchedData(NamedTuple):
    """What a fetch finds in one partition.

    aborted: Aborted transactions as (producer id, first offset). None with read_uncommitted.
    """

    records: bytes
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]] | None


class LogSettings(NamedTuple):
    """The settings of a topic that its logs use, as numbers."""

    cleanup_policy: str
    compression_type: str
    message_timestamp_type: str
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    max_message_bytes: int
    segment_bytes: int
    segment_ms: int
    retention_bytes: int
    retention_ms: int

    @classmethod
    def of(cls, config: Callable[[str], str]) -> LogSettings:
        """Return the settings. `config` returns the value of a setting by its name."""
        values = {name: config(name.replace("_", ".")) for name in cls._fields}
        values["segment_bytes"] = config("internal.segment.bytes") or values["segment_bytes"]
        cleanup_policy, compression_type, message_timestamp_type, *numbers = values.values()
        return cls(cleanup_policy, compression_type, message_timestamp_type, *map(int, numbers))


class PartitionLog:
    """The log of one partition.

    directory: Directory of its files. None keeps everything in memory.
    settings:  Function that returns the settings. It is called before each append.
    """

    def __init__(self, directory: Path | None, clock: Clock, settings: Callable[[], LogSettings]) -> None:
        self._directory = directory
        self._clock = clock
        self._settings = settings
        self._segments: list[Segment] = []
        #: Segments before the start of the log whose files are not deleted yet.
        self._removed: list[Segment] = []
        self.producers = ProducerStates()
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.last_stable_offset = 0
        #: (leader epoch, its first offset), ascending.
        self.epochs: list[tuple[int, int]] = []
        self._are_epochs_kept = True
        #: Called after the end or the last stable offset has moved.
        self.watchers: set[Callable[[], None]] = set()
        if directory is not None and not directory.exists():
            try:
                directory.mkdir(parents=True)
                (directory / f"{0:020}.log").touch()  # a log without batches also has a segment, for tools that read it
            except OSError as error:  # the topic is already in the metadata log
                _log.warning("%s: %s; the log is created with its first batch", directory, error.strerror)

    @property
    def high_watermark(self) -> int:
        """The end of the log, because no other replica exists."""
        return self.log_end_offset

    @property
    def size_in_bytes(self) -> int:
        """The size of all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def latest_timestamp(self) -> int:
        """The largest timestamp of its batches; -1 without one."""
        return max((segment.max_timestamp for segment in self._segments), default=-1)

    @property
    def leader_epoch(self) -> int:
        """The newest leader epoch."""
        return self.epochs[-1][0] if self.epochs else 0

    def begin_epoch(self, epoch: int) -> None:
        """Begin a leader epoch at the end of the log."""
        if self.epochs and self.epochs[-1][0] >= epoch:
            return
        while self.epochs and self.epochs[-1][1] >= self.log_end_offset:
            self.epochs.pop()
        self.epochs.append((epoch, self.log_end_offset))
        self._are_epochs_kept = False

    def _keep_epochs(self) -> None:
        """Write leader-epoch-checkpoint, before the first batch of an epoch."""
        if self._directory is not None:
            lines = [f"{epoch} {start}" for epoch, start in self.epochs]
            write_checkpoint(self._directory / "leader-epoch-checkpoint", lines)
        self._are_epochs_kept = True

    # Appending

    def append_client(
        self, data: bytes | bytearray | memoryview, *, api_version: int, has_transactional_id: bool
    ) -> Appended:
        """Check and append the only batch of a Produce request. Raise RecordValidationError or ApiError."""
        settings, now = self._settings(), self._clock.now_ms()
        validate(
            data,
            cleanup_policy=settings.cleanup_policy,
            message_timestamp_type=settings.message_timestamp_type,  # type: ignore[arg-type]
            message_timestamp_before_max_ms=settings.message_timestamp_before_max_ms,
            message_timestamp_after_max_ms=settings.message_timestamp_after_max_ms,
            max_message_bytes=settings.max_message_bytes,
            segment_bytes=settings.segment_bytes,
            compression_type=settings.compression_type,
            now=now,
            api_version=api_version,
            has_transactional_id=has_transactional_id,
        )
        batch = batches(data)[0]
        buffer, append_time = self._stored(batch, settings, now)
        # Kafka rolls before it checks the producer's state, so a refused batch may also begin a segment
        self._roll_if_needed(len(buffer), self.log_end_offset + batch.last_offset_delta, _max_timestamp(buffer))
        header = None
        if batch.producer_id >= 0:
            # the state keeps the timestamp that is in the log
            header = _header(batch, self.log_end_offset, now if append_time >= 0 else _max_timestamp(buffer))
            kept = self.producers.duplicate(header)
            if kept is not None:
                return Appended(kept.first_offset, kept.timestamp)
            self.producers.check_batch(header, is_client=True)
        return Appended(self._append(buffer, batch.last_offset_delta, header), append_time)

    def _stored(self, batch: RecordBatch, settings: LogSettings, now: int) -> tuple[bytearray, int]:
        """Return the batch as the leader stores it, and its LogAppendTime, or -1 if it has none (LogValidator)."""
        target = settings.compression_type
        codec = batch.compression if target == "producer" else "none" if target == "uncompressed" else target
        if codec != batch.compression:
            data = encode_batch(batch.records(), like=batch, compression=Compression(codec), base_offset=0)
            buffer = bytearray(data)
        else:
            buffer = bytearray(batch.data)
        if settings.message_timestamp_type == TimestampType.LOG_APPEND_TIME:
            set_max_timestamp(buffer, now, TimestampType.LOG_APPEND_TIME)
            return buffer, now
        # clear the LogAppendTime bit of a producer, which would hide the timestamps of the records
        set_max_timestamp(buffer, max(batch.max_timestamp, -1), TimestampType.CREATE_TIME)
        times = decode(buffer, columns=("timestamp",), check_crcs=False).column("timestamp")
        # LogValidator begins with NO_TIMESTAMP, so the maximum of timestamps below -1 is -1
        set_max_timestamp(buffer, max(-1, max(times)), TimestampType.CREATE_TIME)
        return buffer, -1

    def append_records(
        self,
        records: list[tuple[bytes | None, bytes | None]],
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        sequence: int = -1,
    ) -> int:
        """Append one batch that the broker writes itself, and return its first offset. Raise ApiError if it is fenced.

        With a producer id, it is a transactional batch, as for offsets of a transaction.

        sequence: Base sequence: -1, or 0 as the group coordinator of Kafka 4.4 and later writes it.
        """
        now = self._clock.now_ms()
        buffer = bytearray(
            encode_batch(
                [(key, value, (), now) for key, value in records],
                base_offset=0,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=-1 if producer_id < 0 else 0,
                is_transactional=producer_id >= 0,
            )
        )
        if (producer_id < 0) != (sequence < 0):
            # Only coordinators write such batches, so encode_batch refuses them.
            buffer[_SEQUENCE] = sequence.to_bytes(4, "big", signed=True)
            buffer[_CRC] = crc32c(memoryview(buffer)[_CRC.stop :]).to_bytes(4, "big")
        self._roll_if_needed(len(buffer), self.log_end_offset + len(records) - 1, now)
        header = None
        if producer_id >= 0:
            header = _header(batches(buffer)[0], self.log_end_offset, now)
            self.producers.check_batch(header, is_client=False)
        return self._append(buffer, len(records) - 1, header)

    def append_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, *, is_commit: bool, transaction_version: int
    ) -> None:
        """Append a marker. Raise ApiError if it is fenced."""
        now = self._clock.now_ms()
        marker = encode_end_transaction_marker(
            ControlType.COMMIT if is_commit else ControlType.ABORT,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=now,
        )
        self._roll_if_needed(len(marker), self.log_end_offset, now)
        self.producers.check_marker(producer_id, epoch, coordinator_epoch, transaction_version)
        offset = self._write(bytearray(marker), 0, now)
        ended = self.producers.add_marker(producer_id, epoch, coordinator_epoch, offset, now, is_aborted=not is_commit)
        self._completed(ended)
        self._segments[-1].write_derived()
        self._moved()

    def _completed(self, ended: CompletedTransaction | None) -> None:
        """Store an aborted transaction, with the last stable offset after its marker (ProducerStateManager)."""
        if ended is None or not ended.is_aborted:
            return
        unstable = self.producers.first_unstable_offset()
        stable = ended.last_offset + 1 if unstable is None else unstable
        entry = TransactionIndexEntry(0, ended.producer_id, ended.first_offset, ended.last_offset, stable)
        self._segments[-1].add_aborted(entry)

    def _append(self, buffer: bytearray, last_offset_delta: int, header: BatchHeader | None) -> int:
        """Write a batch that has been checked, update the state of its producer, and return its first offset."""
        base = self._write(buffer, last_offset_delta, _max_timestamp(buffer))
        if header is not None:
            self.producers.add_batch(header)
        self._moved()
        return base

    def _write(self, buffer: bytearray, last_offset_delta: int, max_timestamp: int) -> int:
        """Write a batch with the next offsets."""
        if not self._are_epochs_kept:
            self._keep_epochs()
        base = self.log_end_offset
        set_base_offset(buffer, base)
        set_partition_leader_epoch(buffer, self.leader_epoch)
        segment = self._roll_if_needed(len(buffer), base + last_offset_delta, max_timestamp)
        segment.append(bytes(buffer), base, base + last_offset_delta, max_timestamp)
        self.log_end_offset = base + last_offset_delta + 1
        return base

    def _roll_if_needed(self, size: int, last_offset: int, max_timestamp: int) -> Segment:
        """Return the active segment. If the batch does not fit into it (shouldRoll), begin a new segment."""
        if not self._segments:
            self._segments.append(Segment(self.log_end_offset, self._directory, self._clock.now_ms()))
        active, settings = self._segments[-1], self._settings()
        first = active.first_timestamp
        waited = self._clock.now_ms() - active.created_ms
        if first is not None and first >= 0:
            waited = max_timestamp - first
        is_full = active.size > settings.segment_bytes - size
        is_old = active.size > 0 and waited > settings.segment_ms
        if not (is_full or is_old or last_offset - active.base_offset > LARGEST_RELATIVE_OFFSET) or not len(active):
            return active
        return self.roll()

    def roll(self) -> Segment:
        """Begin a new segment, with a snapshot of the producers at its first offset. Raise OSError."""
        self._segments[-1].cut_torn()
        self._segments[-1].end()
        self._segments[-1].close()
        segment = Segment(self.log_end_offset, self._directory, self._clock.now_ms())
        segment.keep_snapshot(pack_snapshot(self.producers.stored()))
        self._segments.append(segment)
        self._write_derived()
        return segment

    def _write_derived(self) -> None:
        for segment in self._segments:
            segment.write_derived()

    def _moved(self) -> None:
        """Compute the last stable offset, and call the watchers."""
        unstable = self.producers.first_unstable_offset()
        self.last_stable_offset = self.log_end_offset if unstable is None else self._unstable_batch(unstable)
        for watcher in list(self.watchers):
            try:
                watcher()
            except Exception:  # noqa: BLE001  the write is done: what fails here belongs to the client that waits
                _log.exception("a fetch that waits for offset %d or later", self.log_end_offset)

    def _unstable_batch(self, first_offset: int) -> int:
        """Return the first unstable offset. If the log starts after it, return the base offset of the batch at the
        start of the log."""
        if first_offset >= self.log_start_offset:
            return first_offset
        segment = self._segments[self._number_of(self.log_start_offset)]
        number = segment.batch_at_or_after(self.log_start_offset)
        return self.log_start_offset if number is None else segment.batch(number).base_offset

    # Reading

    def _number_of(self, offset: int) -> int:
        """Return the number of the segment with the greatest base offset that is not above `offset`."""
        number = len(self._segments) - 1
        while number > 0 and self._segments[number].base_offset > offset:
            number -= 1
        return number

    def check_offset(self, offset: int) -> None:
        """Raise ApiError if no fetch can begin at this offset."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            text = f"offset {offset} is outside {self.log_start_offset} to {self.log_end_offset}"
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, text)

    def readable_bytes(self, offset: int, isolation_level: int) -> int:
        """Return the number of bytes from `offset` to the end of what may be read, over all segments."""
        end = self.last_stable_offset if isolation_level == READ_COMMITTED else self.log_end_offset
        if offset >= end or not self._segments:
            return 0
        first, last = self._number_of(offset), self._number_of(end)
        size = sum(segment.size for segment in self._segments[first:last])
        return size + self._segments[last].position_of(end) - self._segments[first].position_of(offset)

    def read(self, offset: int, max_bytes: int, isolation_level: int, *, min_one_message: bool) -> FetchedData:
        """Return bytes of one segment, from the batch that contains `offset`. They may end inside a batch.

        min_one_message: Return the whole first batch, even if it is larger than `max_bytes`.

        Raise ApiError if the offset is out of range.
        """
        self.check_offset(offset)
        is_committed = isolation_level == READ_COMMITTED
        end = self.last_stable_offset if is_committed else self.log_end_offset
        records = b""
        aborted: list[tuple[int, int]] | None = []
        if offset < end:
            records, aborted = self._read(offset, end, max_bytes, min_one_message=min_one_message)
        offsets = (self.high_watermark, self.last_stable_offset, self.log_start_offset)
        return FetchedData(records, *offsets, aborted if is_committed else None)

    def _read(
        self, offset: int, end: int, max_bytes: int, *, min_one_message: bool
    ) -> tuple[bytes, list[tuple[int, int]] | None]:
        for number in range(self._number_of(offset), len(self._segments)):
            segment = self._segments[number]
            found = segment.batch_at_or_after(offset)
            if found is None:
                continue
            first = segment.batch(found)
            available = segment.position_of(end) - first.position
            wanted = max(max_bytes, first.size) if min_one_message else max_bytes
            if 0 < wanted < first.size:
                return b"", None  # Kafka returns no bytes instead of a part of a first batch (ReplicaManager)
            if wanted < first.size or available <= 0:
                return b"", self._aborted(number, offset, first.position)
            data = segment.read(first.position, min(available, wanted))
            return data, self._aborted(number, offset, first.position + len(data))
        return b"", []

    def _aborted(self, number: int, offset: int, end_position: int) -> list[tuple[int, int]]:
        """Return the aborted transactions that may contain records of the bytes that were read
        (LocalLog.addAbortedTransactions)."""
        upper = self._segments[number].upper_bound_offset(end_position)
        if upper is None:
            is_last = number + 1 == len(self._segments)
            upper = self.log_end_offset if is_last else self._segments[number + 1].base_offset
        found = []
        for segment in self._segments[number:]:
            for entry in segment.aborted:
                if entry.last_offset >= offset and entry.first_offset < upper:
                    found.append((entry.producer_id, entry.first_offset))
                if entry.last_stable_offset >= upper:
                    return found
        return found

    def aborted_transactions(self) -> list[tuple[int, int]]:
        """Return the aborted transactions of the whole log."""
        return [(entry.producer_id, entry.first_offset) for segment in self._segments for entry in segment.aborted]

    def batches_from(self, offset: int) -> Iterator[RecordBatch]:
        """Return the stored batches, from the batch that contains `offset`."""
        for segment in self._segments[max(self._number_of(offset), 0) :]:
            first = segment.batch_at_or_after(offset)
            if first is not None:
                position = segment.batch(first).position
                yield from batches(segment.read(position, segment.size - position))

    # Offsets

    def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        """Return the first offset with this timestamp or a later one, and its timestamp. Return None if no record has
        one."""
        segment = next((one for one in self._segments if one.max_timestamp >= timestamp), None)
        number = None if segment is None else segment.batch_from_time(timestamp, self.log_start_offset)
        # Kafka searches only the first such segment, even if the log starts after the record that it finds there
        if segment is None or number is None:
            return None
        return self._record_from_time(segment, number, timestamp, self.log_start_offset)

    def _record_from_time(
        self, segment: Segment, number: int, timestamp: int, least_offset: int
    ) -> tuple[int, int] | None:
        for where in map(segment.batch, range(number, len(segment))):
            for record in batches(segment.read(where.position, where.size))[0].records():
                if record.timestamp >= timestamp and record.offset >= least_offset:
                    return record.offset, record.timestamp
        return None

    def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """Return the first offset with the largest timestamp, and this timestamp. Return None if the log is empty.

        Like Kafka, do not check whether DeleteRecords has moved the log start offset past this offset.
        """
        filled = [segment for segment in self._segments if segment.max_timestamp >= 0]
        if not filled:
            return None
        latest = max(filled, key=lambda segment: segment.max_timestamp)
        number = latest.batch_from_time(latest.max_timestamp, latest.base_offset)
        return None if number is None else self._record_from_time(latest, number, latest.max_timestamp, 0)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest leader epoch up to `epoch` and its end offset; (-1, -1) if unknown."""
        if not self.epochs or epoch > self.epochs[-1][0]:
            return -1, -1
        if epoch == self.epochs[-1][0]:
            return epoch, self.log_end_offset
        later = [start for known, start in self.epochs if known > epoch]
        earlier = [known for known, _ in self.epochs if known <= epoch]
        return (earlier[-1] if earlier else epoch), later[0]

    def epoch_of(self, offset: int) -> int:
        """Return the leader epoch of an offset, or -1 if it is unknown."""
        return next((epoch for epoch, start in reversed(self.epochs) if start <= offset), -1)

    # Deletion and retention

    def delete_before(self, offset: int) -> int:
        """Move the start of the log to `offset`, or to the high watermark if it is -1. Return the new start. Raise
        ApiError."""
        offset = self.high_watermark if offset == -1 else offset
        if not 0 <= offset <= self.high_watermark:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is above the high watermark")
        if offset > self.log_start_offset:
            self._start_at(offset)
        return self.log_start_offset

    def _start_at(self, offset: int) -> None:
        """Move the start of the log. The retention deletes the segments before it."""
        self.log_start_offset = offset
        self._moved()

    def _delete_segments(self) -> None:
        """Delete the segments before the start of the log. If a file cannot be deleted, the next call tries again.

        They are deleted in order, so that the next start finds a log without gaps, whose first segment has a snapshot.
        """
        while len(self._segments) > 1 and self._segments[1].base_offset <= self.log_start_offset:
            self._removed.append(self._segments.pop(0))
        try:
            while self._removed:
                self._removed[0].delete()
                del self._removed[0]
        except OSError as error:
            _log.error("a segment before the log start offset cannot be deleted: %s; trying again later", error)

    def apply_retention(self) -> None:
        """Delete segments that are too old, or that exceed the size limit of the log (UnifiedLog.deleteOldSegments)."""
        settings, now = self._settings(), self._clock.now_ms()
        self._delete_segments()
        if "delete" not in settings.cleanup_policy:
            return
        keep_from = 0
        excess = self.size_in_bytes - settings.retention_bytes
        for number, segment in enumerate(self._segments):
            if not len(segment):
                break
            latest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
            is_expired = settings.retention_ms >= 0 and now - latest > settings.retention_ms
            is_excess = settings.retention_bytes >= 0 and excess >= segment.size
            if not (is_expired or is_excess):
                break
            excess -= segment.size
            keep_from = number + 1
        if keep_from == 0:
            return
        if keep_from == len(self._segments):
            self.roll()
        self._start_at(max(self._segments[keep_from].base_offset, self.log_start_offset))
        self._delete_segments()

    # The files

    def load(self, log_start_offset: int) -> None:
        """Read the files, rebuild indexes and producer states, and cut off an incomplete batch at the end
        (LogLoader)."""
        assert self._directory is not None
        self.log_start_offset = log_start_offset
        names = [path.name for path in self._directory.iterdir()]
        bases = sorted(int(match[1]) for name in names if (match := _LOG_NAME.fullmatch(name)))
        self._load_snapshot(bases, {int(match[1]) for name in names if (match := _SNAPSHOT_NAME.fullmatch(name))})
        for number, base in enumerate(bases):
            if number:
                self._segments[-1].close()
            segment = Segment(base, self._directory, self._clock.now_ms())
            self._segments.append(segment)
            self.log_end_offset = max(self.log_end_offset, base)
            if number:
                segment.keep_snapshot(pack_snapshot(self.producers.stored()))
            if not self._load_segment(segment):
                for later in bases[number + 1 :]:
                    recovery.set_aside_segment(self._directory / f"{later:020}.log")
                recovery.cut(segment.path("log"), segment.size)
                break
        self.log_start_offset = max(self.log_start_offset, self._segments[0].base_offset if self._segments else 0)
        self.log_end_offset = max(self.log_end_offset, self.log_start_offset)
        epochs = self._directory / "leader-epoch-checkpoint"
        if epochs.exists():
            self.epochs = [one[:] for one in read_leader_epochs(epochs) if one.start_offset <= self.log_end_offset]
        self._moved()

    def _load_snapshot(self, bases: list[int], snapshots: set[int]) -> None:
        """Load the snapshot at the start of the log. It has the producers of the segments that the retention has
        deleted.

        The batches then determine all later states, so that a state never differs from the log.
        """
        assert self._directory is not None
        for offset in snapshots:
            path = self._directory / f"{offset:020}.snapshot"
            if offset not in bases:
                path.unlink()
            elif offset == bases[0]:
                try:
                    self.producers.load(read_snapshot(path).producers)
                except DecodeError as error:
                    _log.warning("%s; the log begins without the producers of the segments before it", error)

    def _load_segment(self, segment: Segment) -> bool:
        """Index the batches in the file. Return whether the whole file consists of intact batches."""
        data = segment.read(0, segment.path("log").stat().st_size)
        try:
            for batch in batches(data):
                if batch.base_offset < self.log_end_offset or not batch.is_valid():
                    break
                segment.add(batch.base_offset, batch.last_offset, batch.max_timestamp, batch.size_in_bytes)
                self.log_end_offset = batch.last_offset + 1
                if batch.producer_id >= 0:
                    self._replay(batch)
        except DecodeError:
            pass  # bytes that are not a batch end the log, as a batch with a wrong CRC does
        segment.write_derived()
        return segment.size == len(data)

    def _replay(self, batch: RecordBatch) -> None:
        if not batch.is_control_batch:
            self.producers.add_batch(_header(batch, batch.base_offset, batch.max_timestamp))
            return
        for record in batch.records():
            epochs = (batch.producer_epoch, record.coordinator_epoch or 0)
            is_aborted = record.control_type == ControlType.ABORT
            ended = self.producers.add_marker(
                batch.producer_id, *epochs, record.offset, record.timestamp, is_aborted=is_aborted
            )
            self._completed(ended)

    def close(self, *, is_clean: bool) -> None:
        """Close the files. If `is_clean`, first write a snapshot of the producers, as at an ordinary stop."""
        if is_clean and self._segments:
            self._segments[-1].end()
            self._write_derived()
            self._take_snapshot()
        for segment in self._segments:
            segment.close()

    def _take_snapshot(self) -> None:
        """Write the snapshot at the end of the log. Only Apache Kafka needs it, because `load` replays the log."""
        if self._directory is not None:
            # An empty segment already has this snapshot. If the log begins there, only this file has the producers.
            path = self._directory / f"{self.log_end_offset:020}.snapshot"
            try_write_small(path, pack_snapshot(self.producers.stored()))

    def delete(self) -> None:
        """Remove the files of a deleted topic, and call the watchers."""
        for segment in self._segments:
            segment.close()
        self._segments.clear()
        if self._directory is not None:
            rmtree(self._directory, ignore_errors=True)  # the next start removes the remaining files
        for watcher in list(self.watchers):
            watcher()


def _header(batch: RecordBatch, base_offset: int, timestamp: int) -> BatchHeader:
    sequences = (batch.base_sequence, batch.last_sequence)
    offsets = (base_offset, base_offset + batch.last_offset_delta)
    producer = (batch.producer_id, batch.producer_epoch)
    return BatchHeader(*producer, *sequences, *offsets, timestamp, batch.is_transactional)


def _max_timestamp(buffer: Any) -> int:
    return int.from_bytes(buffer[35:43], "big", signed=True)
