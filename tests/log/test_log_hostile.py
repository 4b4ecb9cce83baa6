# SPDX-License-Identifier: Apache-2.0
"""Edited files: a log delivers what the oracle reads up to the first damage, then ends or says so; nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
import reference
from batch_writer import fix_crc
from log_files import ABORT, COMMIT, data, marker, plain
from opened_logs import open_log

import kcodec
from kcodec.log import Log

BATCHES = [
    data(7, 0, size=90),
    plain(2, compression="zstd"),
    data(8, 5, size=120),
    marker(ABORT, 7, 7),
    data(8, 8, compression="lz4"),
    plain(10, count=2, size=150),
    marker(COMMIT, 8, 12),
    data(7, 13, size=100, compression="gzip"),
    data(8, 15),
    marker(COMMIT, 7, 17),
    marker(ABORT, 8, 18),
    plain(19, compression="snappy", size=200),
]
WHOLE = b"".join(BATCHES)
STARTS = [sum(map(len, BATCHES[:at])) for at in range(len(BATCHES))]
# Base offsets, which no CRC covers, and last_offset_delta: they move the position, below which records are passed over.
OFFSET_BYTES = {*range(8), *range(23, 27)}
Row = tuple[int, bytes | None, bytes | None]


def rows(records: Iterable[kcodec.Record | reference.Record]) -> list[Row]:
    """Offset, key and value, kept as Java's consumer keeps its position."""
    kept: list[Row] = []
    for record in records:
        if not kept or record.offset > kept[-1][0]:
            kept.append((record.offset, record.key, record.value))
    return kept


def read(log: Log, level: str) -> tuple[list[Row], kcodec.DecodeError | None]:
    """What arrives before the error, if there is one."""
    found: list[kcodec.Record] = []
    try:
        for record in log.records(level):
            found.append(record)
    except kcodec.DecodeError as error:
        assert error.path == log.segments[0].path
        assert error.position is not None
        return rows(found), error
    assert len(rows(found)) == len(found)
    return rows(found), None


def reported(content: bytes, level: str) -> tuple[list[Row], reference.DecodeError | None]:
    result = reference.decode(content, isolation_level=level, on_error="stop")
    return rows(result.records), result.error


def edited(seed: int) -> tuple[bytes, bool]:
    """One or two edits of bytes, or a cut; and whether the CRC of what was edited was made right again."""
    choose = random.Random(seed)
    content = WHOLE
    is_right = choose.random() < 0.5
    for _ in range(choose.choice((1, 1, 2))):
        start = choose.choice(STARTS)
        place = choose.randrange(61 if choose.random() < 0.7 else 75)
        if place in OFFSET_BYTES:
            continue
        at = start + place
        byte = choose.choice((content[at] ^ 1 << choose.randrange(8), choose.randrange(256)))
        content = content[:at] + bytes([byte]) + content[at + 1 :]
        if is_right and at - start >= 21:
            content = fix_crc(content, start)
    if choose.random() < 0.2:
        content = content[: choose.randrange(len(content))]
    return content, is_right


@pytest.mark.parametrize("block", range(10))
def test_edited_files_give_what_the_oracle_reads_up_to_the_corruption(tmp_path: Path, block: int) -> None:
    path = tmp_path / "edited.log"
    for seed in range(block * 60, block * 60 + 60):
        content, _ = edited(seed)
        path.write_bytes(content)
        log = open_log(path)
        found, error = read(log, "read_uncommitted")
        expected, damage = reported(content, "read_uncommitted")
        first = min((row[0] for row in expected), default=0)
        assert log.log_start_offset <= first
        assert found == [row for row in expected if row[0] >= log.log_start_offset], seed
        assert error is None or damage is not None or "corrupt" in str(error), seed


@pytest.mark.parametrize("block", range(10))
def test_edited_files_deliver_nothing_undecided_as_committed(tmp_path: Path, block: int) -> None:
    """With an error what came before it is a beginning of the truth, settled by all markers there are."""
    path = tmp_path / "edited.log"
    for seed in range(1000 + block * 60, 1060 + block * 60):
        content, is_right = edited(seed)
        path.write_bytes(content)
        found, error = read(open_log(path), "read_committed")
        if error is None:
            expected, _ = reported(content, "read_committed")
            assert found == expected, seed
        elif not is_right:
            expected, _ = reported(WHOLE, "read_committed")
            assert found == expected[: len(found)], seed


def test_every_truncation_is_read_up_to_its_last_whole_batch(tmp_path: Path) -> None:
    path = tmp_path / "cut.log"
    for end in range(len(WHOLE) + 1):
        path.write_bytes(WHOLE[:end])
        log = open_log(path)
        for level in ("read_uncommitted", "read_committed"):
            assert read(log, level) == (reported(WHOLE[:end], level)[0], None)
        whole = max(start for start in [*STARTS, len(WHOLE)] if start <= end)
        assert (log.tail is None) == (whole == end)
