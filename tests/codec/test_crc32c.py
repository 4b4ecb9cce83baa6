# SPDX-License-Identifier: Apache-2.0
"""CRC-32C: every path of this processor against the crc32c package, at all lengths where a path changes step."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import crc32c as package
import pytest
from guarded_memory import at_the_end_of_memory

from kcodec import _fast

PATHS = _fast.crc32c_path_names()
NOISE = random.Random(32).randbytes(1 << 20)
# around the widths of registers, of three streams side by side and of a fold, and beyond
LARGER = (1024, 3 * 1024, 4096, 12_288, 65_536, 1 << 19)
SIZES = [*range(700), *[size + more for size in LARGER for more in (-1, 0, 1, 7)]]


def test_there_is_always_a_portable_path() -> None:
    assert "portable" in PATHS
    assert len(set(PATHS)) == len(PATHS)


@pytest.mark.parametrize("path", PATHS)
def test_known_answers(path: str) -> None:
    """RFC 3720 B.4, and the check value of the catalogues."""
    assert _fast.crc32c_by(path, b"123456789") == 0xE3069283
    assert _fast.crc32c_by(path, bytes(32)) == 0x8A9136AA
    assert _fast.crc32c_by(path, b"\xff" * 32) == 0x62A8AB43
    assert _fast.crc32c_by(path, bytes(range(32))) == 0x46DD794E
    assert _fast.crc32c_by(path, b"") == 0


@pytest.mark.parametrize("path", PATHS)
def test_all_lengths_at_all_alignments(path: str) -> None:
    view = memoryview(NOISE)
    for size in SIZES:
        for start in (0, 1, 3, 8, 15, 31, 63):
            data = view[start : start + size]
            assert _fast.crc32c_by(path, data) == package.crc32c(data), (size, start)


@pytest.mark.parametrize("path", PATHS)
def test_a_checksum_goes_on_where_another_ended(path: str) -> None:
    whole = package.crc32c(NOISE[:5000])
    for cut in (0, 1, 7, 8, 255, 256, 257, 4096, 4999, 5000):
        begun = _fast.crc32c_by(path, NOISE[:cut])
        assert _fast.crc32c_by(path, NOISE[cut:5000], begun) == whole


@pytest.mark.parametrize("path", PATHS)
def test_no_path_reads_behind_the_end(path: str) -> None:
    for size in [*range(1, 600), 4095, 4096, 4097, 20_000]:
        memory, view = at_the_end_of_memory(NOISE[:size])
        assert _fast.crc32c_by(path, view) == package.crc32c(NOISE[:size])
        view.release()
        del memory


def test_the_chosen_path_is_the_first() -> None:
    assert _fast.crc32c(NOISE) == _fast.crc32c_by(PATHS[0], NOISE) == package.crc32c(NOISE)


def test_an_unknown_path_is_named() -> None:
    with pytest.raises(ValueError, match="'portabel'; did you mean 'portable'"):
        _fast.crc32c_by("portabel", b"")
    done = subprocess.run(
        [sys.executable, "-c", "import kcodec"],
        env={**os.environ, "KCODEC_CRC32C": "nonsense"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "unknown KCODEC_CRC32C 'nonsense'" in done.stderr
