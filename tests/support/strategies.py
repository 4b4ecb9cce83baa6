# SPDX-License-Identifier: Apache-2.0
"""Generated batches, logs of interleaved transactions, edits of them and options of decode.

Each builder takes a `random.Random`: a seeded one for plain loops, or hypothesis' own, which the strategies hand it and
which shrinks.

    random_record(random) -> RecordSpec             nulls, empty and longer bytes, odd header names, odd numbers
    random_records(random, most=8) -> list of RecordSpec
    random_batch(random, **header) -> bytes         any codec and flavour; header fields as of batch_writer.build_batch
    random_wrong_batch(random, **header) -> bytes   as above, but its records are wrong under a right CRC, in any codec
    random_log(random, steps=12) -> Log             data, control and empty batches of several producers, offsets
                                                    rising; in one of four messages of magic 0 and 1 among them
    random_options(random, log) -> dict             keyword arguments of reference.decode
    random_damage(random, log) -> (name, bytes)     the log's bytes after one to three edits (edits.py)

    batches(), logs(), damaged_logs() -> strategies         of bytes, of Log, of (Log, name of the damage, bytes)
    decodings() -> strategy                                 of (name, bytes, options): what to ask decoder and oracle

    Log: .data .positions (of its batches) .aborted (list of (producer_id, first_offset, offset of the ABORT marker))
         .open (producer ids with an open transaction) .last_stable_offset .next_offset

Decoders other than the oracle have max_batch_bytes and max_decompressed_bytes elsewhere: take them out of the options.
"""

from __future__ import annotations

import random as random_module
import struct
from dataclasses import dataclass, field
from typing import Any

from batch_writer import (
    BASE_TIMESTAMP,
    FLAVOURS,
    RecordSpec,
    build_batch,
    control_batch,
    empty_batch,
    end_transaction_marker,
)
from edits import batch_positions, is_message, random_edit
from hypothesis import strategies as st
from legacy_strategies import random_messages, random_wrong_wrapper

Random = random_module.Random
INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1
ODD_NAMES = (
    b"",
    b"\xff\xfe",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80",
    b"\xe2\x82",
    b"\x00",
    "schlüssel".encode(),
)


# Records.


def random_bytes(random: Random, longest: int = 24) -> bytes | None:
    """Return null, empty or short bytes, or sometimes bytes that are longer than a step of a fast path."""
    kind = random.randrange(12)
    if kind == 0:
        return None
    if kind == 1:
        return b""
    size = random.randint(60, 700) if kind == 2 else random.randint(1, longest)
    text = bytes(random.randrange(256) for _ in range(min(size, 8)))
    return (text * (size // len(text) + 1))[:size]


def random_headers(random: Random) -> tuple[tuple[bytes, bytes | None], ...]:
    """Mostly none; repeats, nulls and names that are not UTF-8 occur."""
    count = random.choice((0, 0, 0, 1, 1, 2, 3))
    names = (b"trace-id", b"k", b"k", *ODD_NAMES)
    return tuple((random.choice(names), random_bytes(random, 8)) for _ in range(count))


def random_record(random: Random) -> RecordSpec:
    """One record; about one in ten is oddly written."""
    is_odd = random.randrange(10) == 0
    deltas = (0, 1, 26, 100_000, -1, -BASE_TIMESTAMP, INT64_MAX, -INT64_MAX - 1)
    return RecordSpec(
        key=random_bytes(random),
        value=random_bytes(random),
        headers=random_headers(random),
        timestamp_delta=random.choice(deltas) if is_odd else random.randrange(1000),
        attributes=random.choice((0, 1, 0x80, 0xFF)) if is_odd else 0,
        null_length=random.choice((-1, -2, -(1 << 31))) if is_odd else -1,
        padding=random.randrange(6) if is_odd else 0,
    )


def random_records(random: Random, most: int = 8) -> list[RecordSpec]:
    """At least one."""
    return [random_record(random) for _ in range(random.randint(1, most))]


def _with_gaps(random: Random, records: list[RecordSpec]) -> list[RecordSpec]:
    """Offset deltas as the cleaner leaves them."""
    delta, spaced = -1, []
    for spec in records:
        delta += random.choice((1, 1, 2, 5))
        spaced.append(RecordSpec(**{**spec.__dict__, "offset_delta": delta}))
    return spaced


def _deltas(records: list[RecordSpec]) -> int:
    last = records[-1].offset_delta
    return len(records) - 1 if last is None else last


# Batches.


def random_batch(random: Random, **header: Any) -> bytes:
    """Return a valid batch with the fields of `header` and random other fields."""
    records = random_records(random)
    if random.randrange(4) == 0:
        records = _with_gaps(random, records)
    return random_batch_of(random, records, **header)


def random_batch_of(random: Random, records: list[RecordSpec], **header: Any) -> bytes:
    """A batch of these records."""
    compression = header.pop("compression", None) or random.choice(sorted(FLAVOURS))
    fields: dict[str, Any] = {
        "compression": compression,
        "flavour": random.choice(FLAVOURS[compression]),
        "base_offset": random.choice((0, 1, 1000, 1 << 40)),
        "partition_leader_epoch": random.choice((-1, 0, 7)),
        "timestamp_type": int(random.randrange(5) == 0),
        "delete_horizon": random.randrange(8) == 0,
        "unused_attributes": random.choice((0, 0, 0, 0x80, 0x180)),
        "base_timestamp": random.choice((BASE_TIMESTAMP, BASE_TIMESTAMP, 0, -1, INT64_MAX)),
        "last_offset_delta": _deltas(records) + random.choice((0, 0, 0, 1, 9)),
    }
    if random.randrange(3) == 0:
        fields |= {"producer_id": random.randrange(5), "producer_epoch": 0}
        fields["base_sequence"] = random.choice((0, 5, INT32_MAX, INT32_MAX - 2))
    return build_batch(records, **{**fields, **header})


def _scramble(random: Random, records: bytes) -> bytes:
    return random_edit(random, records, repair=False)[1]


def random_wrong_batch(random: Random, **header: Any) -> bytes:
    """Return a batch with a correct CRC that must be rejected in most cases: wrong offset deltas, counts or lengths, or
    edits below the compression."""
    records = random_records(random)
    count = len(records)
    kind = random.randrange(6)
    if kind == 0:
        spec = random.randrange(count)
        wrong = random.choice((-1, 0, count, count + 3, INT32_MAX, -INT32_MAX - 1))
        records[spec] = RecordSpec(**{**records[spec].__dict__, "offset_delta": wrong})
        header |= {"last_offset_delta": max(count - 1, 0)}
    elif kind == 1:
        header |= {"records_count": random.choice((0, count - 1, count + 1, -1, INT32_MAX)), "last_offset_delta": count}
    elif kind == 2:
        header |= {"unused_attributes": random.choice((5, 6, 7))}
    elif kind == 3:
        header |= {"last_offset_delta": random.choice((-1, -INT32_MAX - 1, max(count - 2, 0)))}
    else:
        header |= {"edit_payload": lambda data: _scramble(random, data), "last_offset_delta": count + 3}
    return random_batch_of(random, records, **header)


# Logs.


@dataclass
class Log:
    """The bytes of a partition, with the facts from which they were built."""

    data: bytes = b""
    positions: list[int] = field(default_factory=list)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)
    next_offset: int = 0

    @property
    def last_stable_offset(self) -> int:
        return min(self.open.values(), default=self.next_offset)

    def add(self, batch: bytes) -> None:
        """Appends a batch and takes its last offset as the log's."""
        self.positions.append(len(self.data))
        self.data += batch
        self.next_offset = struct.unpack_from(">q", batch)[0] + struct.unpack_from(">i", batch, 23)[0] + 1

    def add_messages(self, data: bytes, next_offset: int) -> None:
        """Appends messages of magic 0 and 1."""
        for position in batch_positions(data):
            self.positions.append(len(self.data) + position)
        self.data += data
        self.next_offset = next_offset


def _add_data(random: Random, log: Log, producer_id: int, is_transactional: bool) -> None:
    log_offset = log.next_offset
    log.add(
        random_batch(
            random,
            base_offset=log_offset,
            producer_id=producer_id,
            producer_epoch=0 if producer_id > -1 else -1,
            base_sequence=random.choice((0, INT32_MAX)) if producer_id > -1 else -1,
            is_transactional=is_transactional,
        )
    )
    if is_transactional and producer_id > -1:
        log.open.setdefault(producer_id, log_offset)


def _add_marker(random: Random, log: Log, producer_id: int) -> None:
    control_type = random.randrange(2)
    if control_type == 0 and producer_id in log.open:
        log.aborted.append((producer_id, log.open[producer_id], log.next_offset))
    log.open.pop(producer_id, None)
    log.add(
        end_transaction_marker(
            control_type,
            producer_id=producer_id,
            base_offset=log.next_offset,
            producer_epoch=random.randrange(3),
            coordinator_epoch=random.randrange(3),
        )
    )


def _add_other(random: Random, log: Log, producer_id: int) -> None:
    """What is neither data nor marker: other control types, empty batches of both kinds, a gap."""
    kind = random.randrange(4)
    if kind == 0:
        value = random_bytes(random)
        log.add(control_batch(random.choice((2, 3, 4, 5, 6, 99, -1)), value, base_offset=log.next_offset))
    elif kind == 1:
        log.next_offset += random.randint(1, 50)
    else:
        log.add(
            empty_batch(
                base_offset=log.next_offset,
                last_offset_delta=random.randrange(4),
                producer_id=producer_id,
                producer_epoch=0,
                is_transactional=True,
                is_control_batch=kind == 2,
            )
        )


def random_log(random: Random, steps: int = 12) -> Log:
    """Batches of up to four producers in turn; transactions begin, end, are ended twice, or stay open."""
    log = Log(next_offset=random.choice((0, 0, 5, 1 << 33)))
    has_messages = random.randrange(4) == 0
    for _ in range(random.randint(1, steps)):
        if has_messages and random.randrange(2):
            log.add_messages(*random_messages(random, log.next_offset))
            continue
        producer_id = random.randrange(4)
        kind = random.randrange(10)
        if kind < 5:
            _add_data(random, log, producer_id, is_transactional=True)
        elif kind < 8:
            _add_marker(random, log, producer_id)
        elif kind == 8:
            _add_data(random, log, random.choice((-1, producer_id)), is_transactional=random.randrange(4) == 0)
        else:
            _add_other(random, log, producer_id)
    return log


# Options.


def random_aborted(random: Random, log: Log) -> list[tuple[int, ...]] | None:
    """Return None, or the log's aborted transactions in any order, with or without their last offset."""
    if random.randrange(2) == 0:
        return None
    entries: list[tuple[int, ...]] = []
    for entry in log.aborted:
        entries.append(entry if random.randrange(3) == 0 else entry[:2])
    if random.randrange(4) == 0:
        entries.append((random.randrange(4), log.next_offset + random.randrange(10)))
    random.shuffle(entries)
    return entries


def random_options(random: Random, log: Log) -> dict[str, Any]:
    """Options of decode that fit the log; limits are those by default but for one in eight."""

    def offset_or_none() -> int | None:
        return random.choice((None, None, random.randint(max(0, log.next_offset - 60), log.next_offset + 2)))

    options: dict[str, Any] = {
        "isolation_level": random.choice(("read_uncommitted", "read_committed", "read_committed")),
        "aborted_transactions": random_aborted(random, log),
        "last_stable_offset": random.choice((None, None, log.last_stable_offset, offset_or_none())),
        "start_offset": offset_or_none(),
        "end_offset": offset_or_none(),
        "control_records": random.choice(("skip", "include")),
        "on_error": random.choice(("raise", "stop", "skip")),
        "check_crcs": random.randrange(6) > 0,
    }
    if random.randrange(8) == 0:
        options["max_batch_bytes"] = random.choice((100, 1000))
    if random.randrange(8) == 0:
        options["max_decompressed_bytes"] = random.choice((61, 100, 1000))
    return options


def random_damage(random: Random, log: Log) -> tuple[str, bytes]:
    """The log cut, or one of its batches wrong, or edited bytes."""
    kind = random.randrange(6)
    if kind == 0 or not log.positions:
        size = random.randrange(len(log.data) + 1)
        return f"cut to {size} bytes", log.data[:size]
    if kind == 1:
        return _with_a_wrong_batch(random, log)
    return random_edit(random, log.data)


def _with_a_wrong_batch(random: Random, log: Log) -> tuple[str, bytes]:
    """One batch replaced by a wrong one of the same producer at the same offset."""
    index = random.randrange(len(log.positions))
    begin, end = log.positions[index], [*log.positions, len(log.data)][index + 1]
    if is_message(log.data, begin):
        offset = struct.unpack_from(">q", log.data, begin)[0]
        wrong = random_wrong_wrapper(random, log.data[begin + 16], offset)
        return f"message {index} replaced by a wrong one", log.data[:begin] + wrong + log.data[end:]
    attributes = struct.unpack_from(">h", log.data, begin + 21)[0]
    producer_id = struct.unpack_from(">q", log.data, begin + 43)[0]
    wrong = random_wrong_batch(
        random,
        base_offset=struct.unpack_from(">q", log.data, begin)[0],
        producer_id=producer_id,
        is_transactional=bool(attributes & 0x10),
        is_control_batch=bool(attributes & 0x20),
    )
    return f"batch {index} replaced by a wrong one", log.data[:begin] + wrong + log.data[end:]


# Strategies.


def _randoms() -> st.SearchStrategy[Random]:
    return st.randoms(use_true_random=False)


def batches() -> st.SearchStrategy[bytes]:
    """One right batch."""
    return _randoms().map(random_batch)


def logs() -> st.SearchStrategy[Log]:
    """A right log."""
    return _randoms().map(random_log)


@st.composite
def damaged_logs(draw: st.DrawFn) -> tuple[Log, str, bytes]:
    """A log, what was done to it, and what it became."""
    random = draw(_randoms())
    log = random_log(random)
    return (log, *random_damage(random, log))


@st.composite
def decodings(draw: st.DrawFn) -> tuple[str, bytes, dict[str, Any]]:
    """Bytes, right in one case of three, and how to decode them."""
    random = draw(_randoms())
    log = random_log(random)
    name, data = ("unchanged", log.data) if random.randrange(3) == 0 else random_damage(random, log)
    return name, data, random_options(random, log)
