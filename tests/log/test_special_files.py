# SPDX-License-Identifier: Apache-2.0
"""FIFOs, sockets and devices in a log directory: nothing waits for them, and each is reported by its path."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_runner import run
from opened_logs import open_log

import kcodec
from kcodec.log import check_file, read_offset_index

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX files")
SECONDS = 10
FIRST = "0" * 20
BESIDE = [
    *(FIRST + suffix for suffix in (".index", ".timeindex", ".txnindex")),
    "00000000000000000005.snapshot",
    "leader-epoch-checkpoint",
    "partition.metadata",
]
CHECKPOINTS = [
    "log-start-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "meta.properties",
]


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """An open that blocks is interrupted after SECONDS, and raises."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError("the call waits for a special file")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log directory with the partition t-0, offsets 0 to 19."""
    partition = tmp_path / "logs" / "t-0"
    partition.mkdir(parents=True)
    (partition / f"{FIRST}.log").write_bytes(bytes(kcodec.encode([(None, b"v")] * 20, base_offset=0, timestamp=5)))
    return partition.parent


def fifo(path: Path) -> str:
    os.mkfifo(path)
    return "a FIFO"


def device(path: Path) -> str:
    path.symlink_to("/dev/zero")
    return "a device"


def bound_socket(path: Path) -> str:
    os.chdir(path.parent)  # the whole path may be longer than an address
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    return "No such device or address"


KINDS = pytest.mark.parametrize("make", [fifo, device, bound_socket], ids=["FIFO", "device", "socket"])


@KINDS
@pytest.mark.parametrize("name", BESIDE)
def test_check_reports_a_special_file_next_to_a_log(directory: Path, name: str, make: Callable[[Path], str]) -> None:
    path = directory / "t-0" / name
    kind = make(path)
    found = [one for one in open_log(directory / "t-0").check() if one.path == str(path)]
    assert [one.code.partition("-")[2] for one in found] == ["unreadable"]
    assert kind in found[0].text
    done = run("check", directory / "t-0")
    assert done.status == 1
    assert f"{name}" in done.out


@KINDS
def test_reading_a_special_segment_is_an_error(directory: Path, make: Callable[[Path], str]) -> None:
    path = directory / "t-0" / "00000000000000000020.log"
    kind = make(path)
    with pytest.raises(OSError, match=kind) as caught:
        list(open_log(directory / "t-0").records())
    assert caught.value.filename == str(path)
    for command in ("cat", "check"):
        done = run(command, directory / "t-0")
        assert done.status != 0
        assert kind.lower() in (done.out + done.err).lower()


@KINDS
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_log_directories_do_not_wait_for_special_files(directory: Path, name: str, make: Callable[[Path], str]) -> None:
    make(directory / name)
    for command in ("check", "dump"):
        run(command, directory)
    if name == "log-start-offset-checkpoint":
        with pytest.raises(OSError, match=name):
            open_log(directory / "t-0").log_start_offset  # noqa: B018


@KINDS
def test_a_single_special_file_is_refused(tmp_path: Path, make: Callable[[Path], str]) -> None:
    path = tmp_path / f"{FIRST}.index"
    kind = make(path)
    with pytest.raises(OSError, match=kind):
        read_offset_index(path)
    with pytest.raises(OSError, match=r"no such file|" + kind):
        check_file(path)
    with pytest.raises(OSError, match=r"no such file|" + kind):
        list(open_log(path.rename(path.with_suffix(".log"))).records())


def test_a_directory_in_place_of_a_file_is_reported_as_one(tmp_path: Path) -> None:
    path = tmp_path / f"{FIRST}.index"
    path.mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        read_offset_index(path)
    assert caught.value.filename == str(path)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    fifo(path := tmp_path / f"{FIRST}.index")
    lowest = os.dup(0)  # the system gives the lowest number that is free
    os.close(lowest)
    for _ in range(5):
        with pytest.raises(OSError, match="a FIFO"):
            read_offset_index(path)
    again = os.dup(0)
    os.close(again)
    assert again == lowest
