# SPDX-License-Identifier: Apache-2.0
"""A log that is read while the log cleaner replaces or merges its segments."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli_runner import program
from follow_story import cleaning, file_of
from log_files import ABORT, COMMIT, data, marker, offsets, partition, plain
from opened_logs import open_log

import kcodec
from kcodec.client import Admin, ConfigResource, Producer
from kcodec.log import Log, swaps, timeline
from kcodec.log.storage import FileVersion, LocalFile
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.pytest_plugin import KafkaFactory

MERGES = [
    (0, (), [0, 2]),
    (6, (), range(6, 12)),
    (0, (6,), [1, 4, 7, 10]),
    (6, (12, 18), [6, 9, *range(12, 18), 20]),
    (0, (6, 12, 18), [0, 1, 5, 6, 11, 12, 17, 18, 22]),
]
READS: list[dict[str, Any]] = [
    {},
    {"isolation_level": "read_committed"},
    {"threads": 2},
    {"isolation_level": "read_committed", "threads": 2},
    {"on_error": "skip"},
    {"on_error": "stop", "isolation_level": "read_committed"},
    {"on_error": "skip", "start_offset": 4},
    {"start_offset": 7, "end_offset": 20},
]


def written(folder: Path) -> Path:
    """Write five segments of two batches each. The transaction at offset 3 is aborted, the one at 9 committed."""
    segments = [[plain(at), plain(at + 3)] for at in range(0, 30, 6)]
    segments[0][1], segments[1][1] = data(7, 3, count=3), data(8, 9, count=3)
    segments[2] = [plain(12), marker(ABORT, 7, 15), marker(COMMIT, 8, 16), plain(17, 1)]
    return partition(folder, *segments)


def stepwise(stream: Any, step: Callable[[], object], after: int) -> Iterator[int]:
    """Yield the offsets of a read, and execute a step after this number of chunks."""
    for number, decoded in enumerate(stream, 1):
        yield from decoded.column("offset")
        if number == after:
            step()


@pytest.mark.parametrize("options", READS, ids=lambda options: ",".join(map(str, options.values())))
@pytest.mark.parametrize(("first", "others", "removed"), MERGES)
def test_a_read_continues_in_segments_that_replaced_others(
    tmp_path: Path, first: int, others: tuple[int, ...], removed: Collection[int], options: dict[str, Any]
) -> None:
    """The read returns every record that the log still contains, once and in order."""
    for after in range(1, 9):
        directory = written(tmp_path / str(after))
        stream = open_log(directory).to_arrow(max_rows=3, **options)
        before = [offset for decoded in stream for offset in decoded.column("offset")]
        chunked = iter(stream)
        found = list(stepwise(chunked, cleaning(directory, first, *others, removed=removed), after))
        assert found == sorted(set(found))
        assert set(before) - set(removed) <= set(found) <= set(before)
        assert (chunked.losses, chunked.error, chunked.counts.records) == ((), None, len(found))


def test_segments_may_be_replaced_again_and_again(tmp_path: Path) -> None:
    directory = written(tmp_path)
    steps = iter([
        cleaning(directory, 6, 12, removed=[8]),
        cleaning(directory, 18, removed=[18]),
        cleaning(directory, 0, 6, removed=[13]),
        cleaning(directory, 0, 18, removed=[20]),
    ])  # fmt: skip
    log = open_log(directory)
    found: list[int] = []
    for decoded in log.to_arrow(max_rows=3):
        found += decoded.column("offset")
        next(steps, lambda: None)()
    assert set(range(30)) - {8, 13, 15, 16, 18, 20} <= set(found) and found == sorted(set(found))
    assert [segment.base_offset for segment in log.segments] == [0, 24]


@pytest.mark.parametrize("is_walked", [True, False], ids=["walked", "unused"])
def test_a_log_that_was_opened_before_is_read(tmp_path: Path, is_walked: bool) -> None:
    """Also by the methods that need all headers. A walk begins again if a segment has been merged into another one."""
    directory = written(tmp_path)
    log = open_log(directory)
    if is_walked:
        assert log.log_end_offset == 30
    cleaning(directory, 0, 6, 12, removed=[0, 7])()
    expected = offsets(open_log(directory), "read_committed")
    assert offsets(log, "read_committed") == expected
    cleaning(directory, 0, 18, removed=[1])()
    assert log.size_in_bytes == open_log(directory).size_in_bytes
    cleaning(directory, 0, 24, removed=[])()
    assert log.offset_for_timestamp(0) is not None
    assert [one.state for one in log.transactions] == ["aborted", "committed"]
    assert sum(split.size_in_bytes for split in log.splits()) == log.size_in_bytes


def test_a_walk_begins_again_if_a_segment_is_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = written(tmp_path)
    log, walk = open_log(directory), timeline.walk_segments
    steps = iter([cleaning(directory, 6, 12, removed=[7])])

    def walk_late(segments: Any, *arguments: Any) -> Any:
        next(steps, lambda: None)()
        return walk(segments, *arguments)

    monkeypatch.setattr("kcodec.log.partition.walk_segments", walk_late)
    assert offsets(log, "read_committed") == offsets(open_log(directory), "read_committed")


def test_a_replacement_in_progress_is_waited_for(tmp_path: Path) -> None:
    """The old segments are renamed, and the new ones still have the suffix .swap."""
    directory = written(tmp_path)
    swap = file_of(directory, 6).with_suffix(".log.swap")

    def begin() -> None:
        content = b"".join(file_of(directory, base).read_bytes() for base in (6, 12))
        swap.write_bytes(kcodec.filter_to(content, lambda batch, record: record.offset != 7))
        for base in (6, 12):
            file_of(directory, base).rename(file_of(directory, base).with_suffix(".log.deleted"))
        threading.Timer(0.3, lambda: swap.rename(file_of(directory, 6))).start()

    log = open_log(directory)
    found = list(stepwise(log.to_arrow(max_rows=3), begin, 1))
    assert found == [offset for offset in range(30) if offset not in (7, 15, 16)]
    assert all(segment.path.endswith(".log") for segment in log.segments)


def test_a_replacement_of_a_failed_broker_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swaps, "STABILITY_LOOKS", 3)
    directory = written(tmp_path)

    def fail() -> None:
        file_of(directory, 6).rename(file_of(directory, 6).with_suffix(".log.swap"))

    assert list(stepwise(open_log(directory).to_arrow(max_rows=3), fail, 1)) == [
        offset for offset in range(30) if offset not in (15, 16)
    ]


@pytest.mark.parametrize("is_open", [False, True], ids=["at the opening", "during a read"])
def test_a_swap_file_that_is_renamed_after_its_listing_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    """The end of a replacement, between a listing and the read of the headers of its .swap file."""
    monkeypatch.setattr(swaps, "STABILITY_LOOKS", 3)
    directory = written(tmp_path)
    log = open_log(directory) if is_open else None
    swap = file_of(directory, 6).with_suffix(".log.swap")
    file_of(directory, 6).rename(swap)
    read_headers = swaps._next_offset

    def renamed_before(*arguments: Any) -> int:
        if swap.exists():
            swap.rename(file_of(directory, 6))
        return read_headers(*arguments)

    monkeypatch.setattr(swaps, "_next_offset", renamed_before)
    assert offsets(log or open_log(directory)) == [offset for offset in range(30) if offset not in (15, 16)]


@pytest.mark.parametrize("deleted", [(6,), (0, 6), (0, 6, 12, 18), (12,)])
def test_a_segment_that_is_deleted_is_an_error(tmp_path: Path, deleted: tuple[int, ...]) -> None:
    """Retention deletes the first segments, and a program any segment. The records of the others are returned before
    that."""
    directory = written(tmp_path)

    def delete() -> None:
        for base in deleted:
            file_of(directory, base).unlink()

    found: list[int] = []
    with pytest.raises(FileNotFoundError, match=r"the segment was deleted while the log was read.* open the log again"):
        found.extend(stepwise(open_log(directory).to_arrow(max_rows=3), delete, 1))
    assert found == list(range(12 if deleted == (12,) else 6))


def test_segments_merged_between_two_listings_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version of each file is that of the file that was listed."""
    directory = written(tmp_path)
    expected = list(stepwise(open_log(directory).to_arrow(), lambda: None, 0))
    names, steps = swaps.segments_at_start, [cleaning(directory, 0, 6, removed=())]

    def listed(*arguments: Any) -> Any:
        found = names(*arguments)
        if steps:
            steps.pop()()
        return found

    monkeypatch.setattr(swaps, "segments_at_start", listed)
    assert list(stepwise(open_log(directory).to_arrow(), lambda: None, 0)) == expected


def test_a_truncated_segment_is_still_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same file, so it was not replaced by the log cleaner."""
    directory = written(tmp_path)
    path = file_of(directory, 12)
    for keep in (0, 1, len(plain(12)), path.stat().st_size - 1):
        content = path.read_bytes()
        found: list[int] = []
        truncate = partial(os.truncate, path, keep)
        with pytest.raises(kcodec.TruncatedError, match="it became shorter while it was read"):
            found.extend(stepwise(open_log(directory).to_arrow(max_rows=3), truncate, 1))
        assert found == list(range(12)) or (keep >= len(plain(12)) and found == list(range(15)))
        path.write_bytes(content)


def test_a_storage_whose_identities_change_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems in user space number a file again whenever it is opened."""
    numbers = itertools.count(1)
    monkeypatch.setattr(LocalFile, "version", lambda self: FileVersion(1, next(numbers), 0, 0, 0))
    monkeypatch.setattr(swaps, "STABILITY_SECONDS", 0.0)
    directory = written(tmp_path)
    assert len(offsets(open_log(directory))) == 28


def test_a_single_segment_may_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = written(tmp_path)
    log = kcodec.open(file_of(directory, 6))
    assert isinstance(log, Log)
    stream = iter(log.to_arrow(max_rows=3))
    cleaning(directory, 6, removed=[7])()
    assert [offset for decoded in stream for offset in decoded.column("offset")] == [6, 8, 9, 10, 11]
    file_of(directory, 6).unlink()
    with pytest.raises(FileNotFoundError):
        offsets(log)


# Apache Kafka

VALUE = b"v" * 400
KEYS, ROUNDS = 50, 40


@pytest.fixture(scope="module")
def compacting(apache_kafka_factory: KafkaFactory) -> ApacheKafka:
    return apache_kafka_factory(log_cleaner_backoff_ms=50, log_retention_check_interval_ms=500)


def compacted_topic(kafka: ApacheKafka) -> str:
    """Write a topic of several segments, which the cleaner leaves alone until `compact`."""
    topic = kafka.create_topic(
        partitions=1, cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=1.0, file_delete_delay_ms=0
    )
    with Producer(bootstrap_servers=kafka.bootstrap_servers, batch_size=2000) as producer:
        for number in range(ROUNDS):
            for key in range(KEYS):
                producer.send(topic, b"%d " % number + VALUE, b"%d" % key)
            producer.flush()
            if number % 8 == 7:
                time.sleep(0.15)
    assert len(list((kafka.log_directory / f"{topic}-0").glob("*.log"))) > 3
    return topic


def segments(directory: Path) -> set[tuple[str, int]]:
    """Return name and inode of each segment."""
    with os.scandir(directory) as entries:
        return {(entry.name, entry.inode()) for entry in entries if entry.name.endswith(".log")}


def compact(kafka: ApacheKafka, topic: str) -> None:
    """Let the cleaner replace segments, and wait until all old ones except for the active one are gone."""
    directory = kafka.log_directory / f"{topic}-0"
    *before, _ = sorted(segments(directory))
    with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        admin.alter_configs({ConfigResource.topic(topic): {"min.cleanable.dirty.ratio": "0.001"}})
    deadline = time.monotonic() + 60
    while left := segments(directory) & {*before}:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.mark.parametrize("options", [{}, {"isolation_level": "read_committed"}, {"threads": 2}], ids=str)
def test_kafka_compacts_a_log_while_it_is_read(compacting: ApacheKafka, options: dict[str, Any]) -> None:
    topic = compacted_topic(compacting)
    log = open_log(compacting.log_directory / f"{topic}-0")
    found: list[int] = []
    for number, decoded in enumerate(log.to_arrow(max_rows=20, **options)):
        found += decoded.column("offset")
        if number == 1:
            compact(compacting, topic)
    assert found == sorted(set(found)) and found[:40] == list(range(40))
    left = offsets(open_log(log.path))
    assert set(left) <= set(found) and len(left) < len(found) < KEYS * ROUNDS
    assert set(range(KEYS * (ROUNDS - 1), KEYS * ROUNDS)) <= set(found)  # the latest record of each key


def test_the_command_line_reads_a_log_that_kafka_compacts(compacting: ApacheKafka) -> None:
    """The command waits for the reader of its output while the cleaner works."""
    topic = compacted_topic(compacting)
    directory = compacting.log_directory / f"{topic}-0"
    with program("cat", directory, "-f", "%o %s\n", bufsize=0) as running:
        assert running.stdout is not None and running.stderr is not None
        first = running.stdout.readline()
        compact(compacting, topic)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (0, b"")
    found = [int(line.split()[0]) for line in (first + out).splitlines()]
    assert found == sorted(set(found)) and set(offsets(open_log(directory))) <= set(found)


def truncating(directory: Path, base: int, size: int) -> Callable[[], None]:
    """Return a function that truncates a log as a replica does: a segment to `size` bytes, and without later ones."""

    def truncate() -> None:
        for path in directory.glob("*.log"):
            if int(path.stem) > base:
                path.unlink()
        os.truncate(file_of(directory, base), size)

    return truncate


@pytest.mark.parametrize("options", READS, ids=lambda options: ",".join(map(str, options.values())))
def test_a_log_that_a_replica_truncates_under_a_read_is_an_error(tmp_path: Path, options: dict[str, Any]) -> None:
    """The read would otherwise end where the log ends now, as if it had read the whole log."""
    for after, base in itertools.product(range(1, 6), (0, 6, 12, 18, 24)):
        directory = written(tmp_path / f"{after}-{base}")
        stream = open_log(directory).to_arrow(max_rows=3, **options)
        whole = [offset for decoded in stream for offset in decoded.column("offset")]
        found: list[int] = []
        try:
            found.extend(stepwise(stream, truncating(directory, base, len(plain(base))), after))
        except (kcodec.TruncatedError, FileNotFoundError):
            continue
        assert found == whole, f"{base}: the read ended after {after} chunks without an error"
