# SPDX-License-Identifier: Apache-2.0
"""A log with very many corrupt batches: the work grows with the number of batches, and not with its square."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Literal

import pytest
from opened_logs import open_log

import kcodec
from kcodec.log import salvage

#: In each group of four batches, the third is corrupt.
PERIOD, CORRUPT = 4, 2


def write_segment(folder: Path, batches: int, damage: str, indexed: str) -> Path:
    """Write a segment whose index contains the last batch, or the corrupt ones."""
    folder.mkdir()
    segment, data, index = folder / f"{0:020}.log", bytearray(), bytearray()
    for offset in range(batches):
        batch = bytearray(bytes(kcodec.encode([(None, b"v" * 20)], base_offset=offset, timestamp=0)))
        if offset % PERIOD == CORRUPT:
            if damage == "crc":
                batch[-1] ^= 1
            else:
                batch[:8] = struct.pack(">q", 1 << 40)
        if offset == batches - 1 if indexed == "last" else offset % PERIOD == CORRUPT:
            index += struct.pack(">ii", offset, len(data))
        data += batch
    segment.write_bytes(data)
    segment.with_suffix(".index").write_bytes(index)
    return segment


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("damage", ["crc", "base offset"])
@pytest.mark.parametrize("indexed", ["last", "corrupt"])
def test_the_work_is_linear_in_the_number_of_batches(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    indexed: str,
    damage: str,
    isolation_level: Literal["read_uncommitted", "read_committed"],
) -> None:
    counted = dict.fromkeys(("header_at", "batch_at", "computed_crc"), 0)

    def counting(name: str) -> Any:
        function = getattr(salvage, name)

        def call(*arguments: Any) -> Any:
            counted[name] += 1
            return function(*arguments)

        return call

    for name in counted:
        monkeypatch.setattr(salvage, name, counting(name))

    def calls(batches: int) -> int:
        counted.update(dict.fromkeys(counted, 0))
        log = open_log(write_segment(tmp_path / str(batches), batches, damage, indexed))
        found = [record.offset for record in log.records(isolation_level, on_error="skip")]
        assert found == [offset for offset in range(batches) if offset % PERIOD != CORRUPT]
        return sum(counted.values())

    monkeypatch.setattr(salvage, "MOST_IN_WINDOW", 16)
    assert calls(1200) < 2.5 * calls(600)
