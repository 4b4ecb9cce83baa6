# SPDX-License-Identifier: Apache-2.0
"""follow=True: a log that grows and rolls while it is read; when reading ends; other places than this machine."""

from __future__ import annotations

import io
import itertools
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import golden_data
import pyarrow as pa
import pytest
from follow_story import BATCHES, QUICK, Script, appending, file_of, follow, pieces
from golden_data import Partition
from log_files import ABORT, COMMIT, data, marker, partition, plain
from opened_logs import open_log
from storages import Store, filesystem

import kcodec
from kcodec.log import growth

LEVELS = ("read_uncommitted", "read_committed")


# -------------------------------------------------------------------------------------------------------- what is there


def is_small(one: Partition) -> bool:
    return len(one.log) < 200_000


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("one", [one for one in golden_data.partitions() if is_small(one)], ids=str)
def test_a_log_that_grows_in_odd_pieces_gives_what_it_gives_at_its_end(
    one: Partition, level: str, tmp_path: Path
) -> None:
    directory = tmp_path / one.name
    directory.mkdir()
    steps: list[Callable[[], None]] = []
    for path in one.segments:
        content, target = path.read_bytes(), directory / path.name
        steps.append(appending(target, b""))
        steps += [appending(target, piece) for piece in pieces(content, max(61, len(content) // 7))]
    steps.pop(0)()
    log = open_log(directory)
    columns = ("offset", "timestamp", "key", "value", "headers", "topic", "partition")
    stream = log.to_arrow(columns, level, follow=True, poll_interval=QUICK, stop=Script(*steps))
    followed = pa.RecordBatchReader.from_stream(stream).read_all()
    read = pa.RecordBatchReader.from_stream(open_log(directory).to_arrow(columns, level)).read_all()
    assert followed.combine_chunks() == read.combine_chunks()


@pytest.mark.parametrize("preallocated", [False, True])
def test_each_record_comes_once_and_only_when_its_batch_is_there(tmp_path: Path, preallocated: bool) -> None:
    """Byte by byte, into a file that grows and into one that was zeros, where a batch may end in zeros of its own."""
    path = file_of(partition(tmp_path, [b""]))
    content = b"".join(BATCHES[:3])
    ends = list(itertools.accumulate(len(batch) for batch in BATCHES[:3]))
    if preallocated:
        ends = [len(content[:end].rstrip(b"\0")) for end in ends]
    path.write_bytes(b"\0" * 1500 if preallocated else b"")
    written = 0

    def write() -> None:
        nonlocal written
        with path.open("rb+") as file:
            file.seek(written)
            file.write(content[written : written + 1])
        written += 1

    found = []
    script = Script(*[write] * len(content))
    for record in open_log(path.parent).records(follow=True, poll_interval=QUICK, stop=script):
        assert written >= ends[record.offset // 3]
        found.append(record.offset)
    assert found == list(range(9))


def test_a_batch_whose_value_holds_batches_is_waited_for(tmp_path: Path) -> None:
    """Of a file at rest a valid batch behind a cut one is damage; of one that grows it may be what a record carries."""
    from batch_writer import RecordSpec, build_batch

    outer = build_batch([RecordSpec(b"key", BATCHES[1] + BATCHES[2])], base_offset=3)
    directory = partition(tmp_path, [BATCHES[0]])
    steps = [appending(file_of(directory), piece) for piece in pieces(outer, 40)]
    assert follow(directory, Script(*steps)) == [0, 1, 2, 3]


def test_it_goes_over_to_new_segments(tmp_path: Path) -> None:
    directory = partition(tmp_path, [BATCHES[0]])
    steps = []
    for at, batch in enumerate(BATCHES[1:], 1):
        name = file_of(directory, at * 3 if at % 2 else (at - 1) * 3)
        steps += [appending(name, batch[:30]), appending(name, batch[30:])]
    assert follow(directory, Script(*steps)) == list(range(36))
    assert len(list(directory.iterdir())) == 7


def test_an_empty_log_and_an_empty_new_segment_are_waited_for(tmp_path: Path) -> None:
    directory = partition(tmp_path, [b""])
    steps = [appending(file_of(directory), BATCHES[0]), appending(file_of(directory, 3), b"")]
    steps += [appending(file_of(directory, 3), BATCHES[1])]
    assert follow(directory, Script(*steps)) == [0, 1, 2, 3, 4, 5]


def test_offsets_bound_what_is_followed(tmp_path: Path) -> None:
    directory = partition(tmp_path, BATCHES[:2])
    steps = [appending(file_of(directory), batch) for batch in BATCHES[2:]]
    assert follow(directory, Script(*steps, looks=1000), start_offset=10, end_offset=20) == list(range(10, 20))


def test_uncommitted_following_from_an_offset_leaves_earlier_segments_alone(tmp_path: Path) -> None:
    directory = partition(tmp_path, [b"no batch" * 20], [BATCHES[4]])
    (file_of(directory, int.from_bytes(b"no batch", "big"))).rename(file_of(directory))
    assert follow(directory, Script(), start_offset=13) == [13, 14]


@pytest.mark.parametrize("level", LEVELS)
def test_small_steps_change_nothing(tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "STEP_BYTES", 100)
    batches = [data(7, 0), plain(2), data(8, 5), marker(ABORT, 8, 7), data(7, 8), marker(COMMIT, 7, 10), plain(11)]
    directory = partition(tmp_path, batches[:4], batches[4:])
    read = [record.offset for record in open_log(directory).records(level)]
    assert follow(directory, Script(looks=1000), level, timeout=0) == read
    assert len(read) == (10 if level == "read_committed" else 12)


# --------------------------------------------------------------------------------------------------------- transactions


def test_open_transactions_hold_back_and_aborted_ones_never_come(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0)])
    found: list[int] = []
    seen: list[list[int]] = []
    path, second = file_of(directory), file_of(directory, 11)
    story = [
        (path, data(7, 3)),
        (path, plain(5)),
        (path, data(8, 8)),
        (path, marker(ABORT, 7, 10)),  # 8 is open from offset 8 on
        (second, plain(11)),
        (second, data(7, 14)),
        (second, marker(COMMIT, 8, 16)),  # 7 is open again from offset 14 on
        (second, plain(17)),
        (second, marker(COMMIT, 7, 20)),
    ]

    def step(at: int) -> Callable[[], None]:
        def write() -> None:
            seen.append(found.copy())
            appending(*story[at])()

        return write

    def idle() -> None:
        pass

    steps = [each for at in range(len(story)) for each in (idle, idle, step(at))]
    for record in open_log(directory).records("read_committed", follow=True, poll_interval=QUICK, stop=Script(*steps)):
        found.append(record.offset)
    before, after_abort = [0, 1, 2], [0, 1, 2, 5, 6, 7]
    assert seen == [before] * 4 + [after_abort] * 3 + [[*after_abort, 8, 9, 11, 12, 13]] * 2
    assert found == [*after_abort, 8, 9, 11, 12, 13, 14, 15, 17, 18, 19]


def test_counts_hold_each_record_once(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0), data(7, 3), data(8, 5)])
    path = file_of(directory)
    steps = [appending(path, marker(ABORT, 8, 7)), appending(path, plain(8)), appending(path, marker(COMMIT, 7, 11))]
    stream = open_log(directory).to_arrow(
        isolation_level="read_committed", follow=True, poll_interval=QUICK, stop=Script(*steps)
    )
    chunks = iter(stream)
    assert sum(len(chunk) for chunk in chunks) == 8
    assert chunks.counts == kcodec.Counts(batches=6, records=8, aborted=2, control=2)


def test_what_is_known_of_transactions_is_forgotten_when_it_was_used(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0)])
    path = file_of(directory)
    rounds = [(data(7, 3 + 3 * at), marker(ABORT, 7, 5 + 3 * at)) for at in range(50)]
    steps = [appending(path, b"".join(each)) for each in rounds]
    stream = open_log(directory).to_arrow(
        isolation_level="read_committed", follow=True, poll_interval=QUICK, stop=Script(*steps)
    )
    chunks = iter(stream)
    reading: Any = chunks._reading
    assert [len(chunk) for chunk in chunks] == [3]
    assert (reading._log.scanner.finished, reading._log.walked, reading._aborted) == ([], [], [])
    assert chunks.counts.aborted == 100


# --------------------------------------------------------------------------------------------------- when it ends


def test_quiet_ends_it_and_costs_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = partition(tmp_path, [BATCHES[0], BATCHES[1][:40]])
    looks = 0
    step = growth.GrowingLog.step

    def counted(log: growth.GrowingLog) -> bool:
        nonlocal looks
        looks += 1
        return step(log)

    monkeypatch.setattr(growth.GrowingLog, "step", counted)
    begin, work = time.monotonic(), time.thread_time()
    found = [record.offset for record in open_log(directory).records(follow=True, poll_interval=0.1, timeout=0.55)]
    assert found == [0, 1, 2]
    assert time.monotonic() - begin >= 0.55
    assert time.thread_time() - work < 0.3
    assert looks <= 8


def test_timeout_zero_reads_what_is_there(tmp_path: Path) -> None:
    directory = partition(tmp_path, BATCHES[:5], BATCHES[5:])
    records = open_log(directory).records(follow=True, timeout=0, poll_interval=100)
    assert [record.offset for record in records] == list(range(36))


def test_an_event_wakes_it(tmp_path: Path) -> None:
    directory = partition(tmp_path, BATCHES[:1])
    event = threading.Event()
    records = open_log(directory).records(follow=True, poll_interval=3600, stop=event)
    assert [next(records).offset for _ in range(3)] == [0, 1, 2]
    timer = threading.Timer(0.05, event.set)
    timer.start()
    assert list(records) == []
    timer.join()


def test_an_event_of_processes_stops_it(tmp_path: Path) -> None:
    event = multiprocessing.get_context("spawn").Event()
    event.set()
    assert list(open_log(partition(tmp_path, BATCHES[:1])).records(follow=True, stop=event)) == []


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"poll_interval": 0}, ValueError, "poll_interval must be .* above 0"),
        ({"poll_interval": float("nan")}, ValueError, "poll_interval"),
        ({"timeout": -1}, ValueError, "timeout must be"),
        ({"timeout": float("nan")}, ValueError, "timeout must be"),
        ({"stop": 7}, TypeError, "stop must be callable or an Event, not int"),
        ({"on_error": "skip"}, ValueError, "follow=True needs threads=1, on_error='raise'"),
        ({"follow": False, "timeout": 1}, ValueError, "timeout and stop need follow=True"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        open_log(partition(tmp_path, BATCHES)).records(**{"follow": True, **options})


def test_a_high_watermark_and_threads_are_refused(tmp_path: Path) -> None:
    directory = partition(tmp_path, BATCHES)
    with pytest.raises(ValueError, match="without high_watermark"):
        open_log(directory, high_watermark=5).records(follow=True)
    with pytest.raises(ValueError, match="threads=1"):
        open_log(directory).to_arrow(follow=True, threads=2)


# ------------------------------------------------------------------------------------------------------ other places


def test_a_filesystem_object_is_followed(tmp_path: Path) -> None:
    directory = partition(tmp_path, BATCHES[:2])
    steps = [appending(file_of(directory), BATCHES[2][:80]), appending(file_of(directory), BATCHES[2][80:])]
    steps += [appending(file_of(directory, 9), batch) for batch in BATCHES[3:]]
    log = open_log("orders-0", filesystem=filesystem(Store(tmp_path)))
    records = log.records("read_committed", follow=True, poll_interval=QUICK, stop=Script(*steps))
    assert [record.offset for record in records] == list(range(36))


def test_a_file_object_that_grows_is_followed() -> None:
    content = io.BytesIO(BATCHES[0])

    def grow(batch: bytes) -> Callable[[], None]:
        def write() -> None:
            content.seek(0, io.SEEK_END)
            content.write(batch)

        return write

    steps = [grow(piece) for batch in BATCHES[1:] for piece in pieces(batch, 90)]
    records = open_log(content).records(follow=True, poll_interval=QUICK, stop=Script(*steps))
    assert [record.offset for record in records] == list(range(36))


@pytest.mark.parametrize("name", [f"{0:020d}.log", "copy.log"])
def test_a_segment_followed_alone_ends_where_it_was_rolled(tmp_path: Path, name: str) -> None:
    directory = partition(tmp_path, BATCHES[:1])
    path = directory / name
    file_of(directory).rename(path)
    steps = [appending(path, BATCHES[1]), appending(file_of(directory, 6), BATCHES[2]), lambda: None]
    script = Script(*steps, looks=1000 if name[0] == "0" else 4)
    assert follow(path, script) == [0, 1, 2, 3, 4, 5]


# ------------------------------------------------------------------------------------------------------------ for real

WRITER = """
import sys, time
from pathlib import Path
directory, source, first = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes(), int(sys.argv[3])
path, at, sizes = directory / f"{0:020d}.log", first, [1, 13, 61, 200, 977]
with path.open("ab", buffering=0) as file:
    while at < len(source):
        size = sizes[at % len(sizes)]
        file.write(source[at : at + size])
        at += size
        time.sleep(0.0005)
"""


def test_a_writer_that_is_killed_and_comes_back_is_followed(tmp_path: Path) -> None:
    """It appends in odd pieces, dies by SIGKILL, comes back, cuts the torn tail off as a broker does, and goes on."""
    batches = [plain(at * 3, count=3, size=40 + at % 50) for at in range(300)]
    ends = list(itertools.accumulate(len(batch) for batch in batches))
    source = tmp_path / "source"
    source.write_bytes(b"".join(batches))
    directory = partition(tmp_path, [b""])
    path = file_of(directory)

    def start(first: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", WRITER, str(directory), str(source), str(first)])

    writers = [start(0)]
    found = []
    kills = [200, 500]
    for record in open_log(directory).records(follow=True, poll_interval=0.01, timeout=10, end_offset=900):
        found.append(record.offset)
        if kills and record.offset >= kills[0]:
            kills.pop(0)
            writers[-1].send_signal(signal.SIGKILL)
            assert writers[-1].wait() == -signal.SIGKILL
            size = path.stat().st_size
            whole = max((end for end in ends if end <= size), default=0)
            with path.open("rb+") as file:
                file.truncate(whole)
            writers.append(start(whole))
    assert found == list(range(900))
    assert writers[-1].wait() == 0


def test_threads_write_transactions_while_arrow_reads(tmp_path: Path) -> None:
    batches: list[bytes] = []
    wanted: list[int] = []
    for at in range(0, 900, 9):
        control = COMMIT if at % 2 else ABORT
        batches += [data(7, at), plain(at + 2), data(8, at + 5), marker(control, 7, at + 7), marker(COMMIT, 8, at + 8)]
        wanted += [at, at + 1] * control + [at + 2, at + 3, at + 4, at + 5, at + 6]
    directory = partition(tmp_path, [b""])

    def write() -> None:
        base = 0
        for at, batch in enumerate(batches):
            if at % 60 == 59:
                base = int.from_bytes(batch[:8], "big")
            for piece in pieces(batch, 97):
                appending(file_of(directory, base), piece)()

    writer = threading.Thread(target=write)
    writer.start()
    stream = open_log(directory).to_arrow(
        ("offset",), "read_committed", follow=True, poll_interval=0.002, timeout=5, end_offset=899
    )
    table = pa.RecordBatchReader.from_stream(stream).read_all()
    writer.join()
    assert table.column("offset").to_pylist() == wanted
