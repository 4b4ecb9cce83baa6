# SPDX-License-Identifier: Apache-2.0
"""Files of this machine, also as they are read where there is no pread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kcodec.log import storage
from kcodec.log.storage import LocalFile

WAYS = [storage._read_at, storage._seek_and_read]
CONTENT = bytes(range(256)) * 40


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_ranges_by_either_way(
    way: Callable[[int, memoryview, int], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, at the end, behind it, of nothing; and by threads that share the file, whose place is one."""
    monkeypatch.setattr(storage, "_read_at", way)
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    file = LocalFile(str(path))

    def at(position: int, size: int) -> bytes:
        window = bytearray(size)
        return bytes(window[: file.read_into(memoryview(window), position)])

    for position, size in ((0, len(CONTENT)), (300, 10), (len(CONTENT) - 5, 50), (len(CONTENT) + 1, 8), (7, 0)):
        assert at(position, size) == CONTENT[position : position + size]
    with ThreadPoolExecutor(4) as pool:
        places = [(number * 37) % 10_000 for number in range(400)]
        assert list(pool.map(lambda place: at(place, 64), places)) == [CONTENT[place : place + 64] for place in places]
    file.close()
