# SPDX-License-Identifier: Apache-2.0
"""What a hostile file next to a log costs to check: time and memory grow with its bytes, and are bounded (SECURITY.md).

Each kind is checked at n, 2n and 4n bytes in a process of its own, which reports the seconds of the check and the
memory that it touched.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from opened_logs import open_log

import kcodec
from kcodec._fast import crc32c
from kcodec.log import check_file, small_files
from kcodec.log.check.findings import MOST_ALIKE

FIRST = "0" * 20
MIB = 1 << 20
#: In addition to the bytes of the file: what a check of any file touches.
CONSTANT_BYTES = 32 * MIB
SPARSE_SECONDS = 5
MEASURE = """
import json, sys, time
import kcodec
from kcodec.log import check_file
path, directory, clean = sys.argv[1:]
kcodec.open(clean).check()


def touched():
    # Of this process: ru_maxrss is inherited from the one that started it.
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


before = touched()
begin = time.process_time()
check_file(path)
if path.startswith(directory):
    kcodec.open(directory).check()
seconds = time.process_time() - begin
print(json.dumps([seconds, touched() - before]))
"""


def snapshot(size: int) -> bytes:
    count = size // 46
    body = struct.pack(">i", count) + b"".join(
        struct.pack(">qhiqiqiq", at, 0, 0, 3, 0, 0, 0, -1) for at in range(count)
    )
    return struct.pack(">hI", 1, crc32c(body)) + body


def counted(line: Callable[[int], bytes], size: int) -> bytes:
    count = size // len(line(0))
    return f"0\n{count}\n".encode() + b"".join(map(line, range(count)))


#: what -> (name of the file, its bytes, None for a sparse file), and the bytes at 4n, at most the limit of the kind.
HOSTILE: dict[str, tuple[str, Callable[[int], bytes] | None, int]] = {
    "sparse .txnindex": (f"{FIRST}.txnindex", None, 64 * MIB),
    "sparse .timeindex": (f"{FIRST}.timeindex", None, 64 * MIB),
    "sparse .index": (f"{FIRST}.index", None, 64 * MIB),
    ".txnindex": (f"{FIRST}.txnindex", lambda size: struct.pack(">hqqqq", 0, 7, 5, 6, 7) * (size // 34), 16 * MIB),
    ".timeindex": (f"{FIRST}.timeindex", lambda size: struct.pack(">qi", 7, 3) * (size // 12), 8 * MIB),
    ".index": (f"{FIRST}.index", lambda size: struct.pack(">ii", 7, 3) * (size // 8), 8 * MIB),
    ".snapshot": ("00000000000000000005.snapshot", snapshot, 16 * MIB),
    "epochs": ("leader-epoch-checkpoint", lambda size: counted(lambda at: b"0 0\n", size - 20), 1 * MIB),
    "newlines": ("leader-epoch-checkpoint", lambda size: b"0\n0\n" + b"\n" * (size - 4), 1 * MIB),
    "offsets": (
        "../recovery-point-offset-checkpoint",
        lambda size: counted(lambda at: b"t%07d 0 0\n" % at, size - 20),
        4 * MIB,
    ),
    "blank lines": ("../replication-offset-checkpoint", lambda size: b"0\n0\n" + b" \n" * (size // 2 - 2), 4 * MIB),
    "one line": ("../cleaner-offset-checkpoint", lambda size: b"0\n1\n" + b"a " * (size // 2 - 2), 16 * MIB),
    "properties": ("../meta.properties", lambda size: b"a\\\n" * (size // 3), 60 << 10),
}


def partition(folder: Path) -> Path:
    made = folder / "logs" / "t-0"
    made.mkdir(parents=True)
    (made / f"{FIRST}.log").write_bytes(bytes(kcodec.encode([(None, b"v")] * 20, base_offset=0, timestamp=5)))
    return made


def write(path: Path, make: Callable[[int], bytes] | None, size: int) -> None:
    if make is not None:
        path.write_bytes(make(size))
        return
    with path.open("wb") as file:
        file.truncate(size)


def cost(path: Path, directory: Path, clean: Path) -> tuple[float, int]:
    """(seconds of CPU, bytes of memory) of checking a file, and the partition if it is in there. clean: one without
    such a file, for what the first check of a process costs."""
    command = [sys.executable, "-c", MEASURE, str(path), str(directory), str(clean)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    seconds, used = json.loads(done.stdout)
    return seconds, used


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak memory of a process is read from /proc")
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_check_grows_with_the_bytes_of_a_file(kind: str, tmp_path: Path) -> None:
    name, make, largest = HOSTILE[kind]
    directory, clean = partition(tmp_path), partition(tmp_path / "clean")
    path = Path(os.path.normpath(directory / name))
    costs = []
    for size in (largest // 4, largest // 2, largest):
        write(path, make, size)
        costs.append((size, *cost(path, directory, clean)))
    for size, _, used in costs:
        assert used <= 4 * size + CONSTANT_BYTES, costs
    (_, first, _), (_, second, _), (_, third, _) = costs
    # Four times the bytes in quadratic time would be 16 times as long; below a tenth of a second all is noise.
    assert third <= 8 * max(first, 0.1), costs
    assert second <= 4 * max(first, 0.1), costs
    # A sparse file takes no space on a disk.
    assert third < (SPARSE_SECONDS if make is None else 30), costs


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        (f"{FIRST}.index", "MAX_INDEX_BYTES"),
        (f"{FIRST}.timeindex", "MAX_INDEX_BYTES"),
        (f"{FIRST}.txnindex", "MAX_INDEX_BYTES"),
        ("00000000000000000005.snapshot", "MAX_SNAPSHOT_BYTES"),
        ("leader-epoch-checkpoint", "MAX_LEADER_EPOCHS_BYTES"),
        ("partition.metadata", "MAX_PROPERTIES_BYTES"),
        ("meta.properties", "MAX_PROPERTIES_BYTES"),
        ("log-start-offset-checkpoint", "MAX_CHECKPOINT_BYTES"),
    ],
)
def test_a_file_larger_than_its_kind_can_be_is_not_read(name: str, limit: str, tmp_path: Path) -> None:
    size = small_files.LIMITS[limit] + 1
    write(tmp_path / name, None, size)
    (found,) = check_file(tmp_path / name)
    assert found.text == f"the file has {size} bytes, expected at most {size - 1} ({limit})"


def test_many_wrong_entries_are_counted(tmp_path: Path) -> None:
    directory = partition(tmp_path)
    path = directory / f"{FIRST}.timeindex"
    path.write_bytes(struct.pack(">qi", 7, 3) * 1000)
    for found in (check_file(path), open_log(directory).check()):
        wrong = [one for one in found if one.code == "index-entry"]
        assert len(wrong) == MOST_ALIKE + 1
        assert wrong[-1].text == f"{1000 - MOST_ALIKE} more like these"


def test_zeros_at_the_end_of_a_transaction_index_are_one_finding(tmp_path: Path) -> None:
    path = tmp_path / f"{FIRST}.txnindex"
    path.write_bytes(struct.pack(">hqqqq", 0, 7, 5, 6, 7) + bytes(34 * 1000))
    (found,) = check_file(path)
    assert (found.code, found.position) == ("index-order", 34)
    assert found.text.startswith("1000 entries of zeros follow the last one")
