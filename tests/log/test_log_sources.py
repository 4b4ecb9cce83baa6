# SPDX-License-Identifier: Apache-2.0
"""Logs that do not lie on this machine: filesystem objects and file objects give what local files give, by ranges."""

from __future__ import annotations

import io
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import golden_data
import pyarrow as pa
import pytest
from golden_data import Partition
from log_files import COMMIT, data, marker, offsets, partition, plain
from opened_logs import open_directory, open_log
from pyarrow import fs
from storages import Buckets, ReadAt, SeekOnly, Store, filesystem

import kcodec
from kcodec.log import Log, read_split, remote

PARTITIONS = golden_data.partitions() + golden_data.copies("live") + golden_data.copies("killed")
COLUMNS = ("offset", "timestamp", "timestamp_type", "key", "value", "headers", "topic", "partition", "sequence")


def reported(read: Callable[[], Any]) -> Any:
    """What a call gives, or how it fails; where the file lies is left out."""
    try:
        return read()
    except kcodec.DecodeError as error:
        return type(error), error.reason, error.position
    except pa.ArrowInvalid as error:  # how a DecodeError goes through a stream
        return str(error).partition("batch at byte")[2]


def table(log: Log, level: str, threads: int = 1) -> pa.Table:
    return pa.RecordBatchReader.from_stream(
        log.to_arrow(columns=COLUMNS, isolation_level=level, threads=threads)
    ).read_all()


def everything(log: Log) -> list[Any]:
    """All that a log tells."""
    return [
        reported(lambda: table(log, "read_uncommitted")),
        reported(lambda: table(log, "read_committed")),
        reported(lambda: table(log, "read_committed", threads=2)),
        reported(lambda: log.transactions),
        reported(lambda: (log.log_start_offset, log.log_end_offset, log.last_stable_offset, log.high_watermark)),
        reported(lambda: log.tail),
        reported(lambda: [(batch.base_offset, batch.crc, bytes(batch.data)) for batch in log.batches]),
        reported(lambda: log.offset_for_timestamp(0)),
        (log.topic, log.partition, log.size_in_bytes, [Path(segment.path).name for segment in log.segments]),
    ]


def sources(folder: Path) -> dict[str, Log]:
    """One directory, opened in every way there is."""
    parent, name = folder.parent, folder.name
    return {
        "subtree": open_log(name, filesystem=fs.SubTreeFileSystem(str(parent), fs.LocalFileSystem())),
        "python": open_log(name, filesystem=filesystem(Store(parent))),
        "short reads": open_log(name, filesystem=filesystem(Store(parent, most_bytes=100))),
        "fsspec": open_log(f"buckets://{name}/", filesystem=Buckets(parent)),
        "arrow local": open_log(folder, filesystem=fs.LocalFileSystem()),
        "address": open_log(folder.as_uri()),
    }


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small files have several blocks, the last of them fetched ahead."""
    monkeypatch.setattr(remote, "FIRST_BLOCK_BYTES", 150)
    monkeypatch.setattr(remote, "BLOCK_BYTES", 900)
    monkeypatch.setattr(remote.ArrowStorage, "range_bytes", 900)


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_every_source_gives_what_local_files_give(partition: Partition, small_blocks: None) -> None:
    local = everything(open_log(partition.path))
    for name, log in sources(partition.path).items():
        assert everything(log) == local, name


@pytest.mark.parametrize("partition", [one for one in PARTITIONS if len(one.segments) == 1], ids=str)
def test_a_segment_as_an_object_gives_what_its_file_gives(partition: Partition, tmp_path: Path) -> None:
    (path,) = partition.segments
    copy = tmp_path / partition.name / path.name
    copy.parent.mkdir()
    shutil.copy(path, copy)
    content = path.read_bytes()
    local = everything(open_log(copy))
    named = ReadAt(content, name=str(copy))
    with copy.open("rb") as opened, pa.OSFile(str(copy)) as arrow:
        for log in (open_log(named), open_log(opened)):
            assert everything(log) == local
            assert log.path == str(copy)
        for nameless in (io.BytesIO(content), SeekOnly(content), pa.BufferReader(content), arrow):
            log = open_log(nameless, topic=partition.topic, partition=partition.partition)
            assert log.topic == partition.topic
            assert everything(log)[:4] == local[:4]


@pytest.fixture(scope="module")
def large_batches() -> list[bytes]:
    """Batches of 30 MB together."""
    return [plain(at * 10, count=10, size=30_000) for at in range(100)]


@pytest.fixture
def large(tmp_path: Path, large_batches: list[bytes]) -> Path:
    """A partition of 30 MB."""
    return partition(tmp_path, large_batches)


def test_whole_reads_take_few_large_requests(large: Path) -> None:
    store = Store(large.parent)
    size = open_log(large).size_in_bytes
    log = open_log(large.name, filesystem=filesystem(store))
    assert offsets(log) == list(range(1000))
    assert len(store.requests) <= 3 + size // remote.BLOCK_BYTES
    assert store.bytes_read == size
    assert max(asked for _, _, asked in store.requests) == remote.BLOCK_BYTES
    store.requests.clear()
    assert table(log, "read_uncommitted", threads=2).num_rows == 1000
    assert len(store.requests) <= 2 * (3 + size // remote.BLOCK_BYTES)  # a walk over headers comes first


def test_the_first_records_take_one_request(large: Path) -> None:
    store = Store(large.parent)
    records = open_log(large.name, filesystem=filesystem(store)).records()
    assert [next(records).offset for _ in range(10)] == list(range(10))
    assert store.requests == [(f"{large.name}/{0:020d}.log", 0, remote.FIRST_BLOCK_BYTES)]


def test_object_stores_are_asked_for_ranges_of_an_object_only(large_batches: list[bytes]) -> None:
    log = open_log(found := ReadAt(b"".join(large_batches)))
    assert offsets(log) == list(range(1000))
    assert max(size for _, size in found.requests) <= 2 << 20


def test_what_is_fetched_ahead_ends_with_the_range(large: Path) -> None:
    """A split is read to its end, and not a byte more."""
    store = Store(large.parent)
    log = open_log(large.name, filesystem=filesystem(store))
    splits = log.splits(max_bytes=10 << 20)
    assert len(splits) > 2
    store.requests.clear()
    found = [
        record.offset
        for chunk in read_split(splits[1], log.verdict("read_uncommitted"), columns=("offset", "value"))
        for record in chunk.records()
    ]
    assert found == list(range(splits[1].first_offset, splits[1].next_offset))
    assert store.bytes_read == splits[1].size_in_bytes


def test_logs_verdicts_and_splits_of_a_filesystem_pickle(tmp_path: Path) -> None:
    directory = partition(tmp_path, [data(7, 0), plain(2)], [marker(COMMIT, 7, 5)])
    subtree = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    log = pickle.loads(pickle.dumps(open_log(directory.name, filesystem=subtree)))
    assert offsets(log, "read_committed") == [0, 1, 2, 3, 4]
    assert log.segments == open_log(directory.name, filesystem=subtree).segments
    split = pickle.loads(pickle.dumps(log.splits()[0]))
    chunks = read_split(split, log.verdict(), isolation_level="read_committed")
    assert sum(len(chunk) for chunk in chunks) == 5
    (batch, *_rest) = pickle.loads(pickle.dumps(open_log(ReadAt(data(7, 0))))).batches
    assert bytes(batch.data) == data(7, 0)
    with pytest.raises(TypeError, match="pickle"), directory.joinpath(f"{0:020d}.log").open("rb") as opened:
        pickle.dumps(open_log(opened))


# --------------------------------------------------------------------------------------------------------- what fails


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionResetError("peer is gone"), OSError),
        (PermissionError("no access"), PermissionError),
        (ValueError("what a client library raises"), OSError),
    ],
)
@pytest.mark.parametrize("at", [0, 29_000_000])
def test_a_read_that_fails_names_path_and_bytes(large: Path, at: int, error: Exception, kind: type[Exception]) -> None:
    store, name = Store(large.parent), f"{large.name}/{0:020d}.log"
    store.fail(name, at, error)
    records = open_log(large.name, filesystem=filesystem(store)).records()
    with pytest.raises(kind, match=rf"{name}: reading \d+ bytes from byte \d+ on failed: .*{error}") as caught:
        assert len(list(records)) < 1000
    assert not isinstance(caught.value, kcodec.DecodeError)


def test_an_object_that_shrinks_while_it_is_read_is_a_clear_error(large: Path) -> None:
    path = large / f"{0:020d}.log"
    log = open_log(large.name, filesystem=filesystem(Store(large.parent)))
    records = log.records()
    next(records)
    with path.open("rb+") as file:
        file.truncate(20_000_000)
    with pytest.raises(kcodec.TruncatedError, match="the file ends at byte 20000000: it became shorter") as caught:
        list(records)
    assert caught.value.path == f"{large.name}/{path.name}"


def test_an_object_that_grows_is_read_to_the_size_it_had(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0), plain(3)[:50]])
    path = directory / f"{0:020d}.log"
    records = open_log(directory.name, filesystem=filesystem(Store(tmp_path))).records()
    assert next(records).offset == 0
    path.write_bytes(plain(0) + plain(3) + plain(6))
    assert [record.offset for record in records] == [1, 2]


def test_an_object_that_is_gone_is_a_file_not_found_error(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0)], [plain(3)])
    log = open_log(directory.name, filesystem=filesystem(Store(tmp_path)))
    records = log.records()
    next(records)
    (directory / f"{3:020d}.log").unlink()
    with pytest.raises(FileNotFoundError, match=f"{3:020d}.log"):
        list(records)


class Lying(ReadAt):
    """Gives what `answer` makes of the right bytes."""

    def __init__(self, data: bytes, answer: Callable[[bytes], Any]) -> None:
        super().__init__(data)
        self._answer = answer

    def read_at(self, position: int, size: int) -> Any:
        return self._answer(super().read_at(position, size))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda found: found + b"more", r"the file returned \d+ bytes, expected at most \d+"),
        (lambda found: "text", "expected bytes, got str"),
        (lambda found: None, "expected bytes, got NoneType"),
    ],
)
def test_an_object_that_gives_no_bytes_or_too_many_is_an_error(answer: Callable[[bytes], Any], text: str) -> None:
    with pytest.raises(OSError, match=rf"<Lying>: reading \d+ bytes from byte 0 on failed: {text}"):
        offsets(open_log(Lying(plain(0), answer)))


def test_an_object_of_short_reads_is_read_to_its_end() -> None:
    assert offsets(open_log(Lying(plain(0) + plain(3), lambda found: found[:7]))) == [0, 1, 2, 3, 4, 5]


def test_an_object_whose_size_is_too_large_is_a_truncated_error() -> None:
    found = ReadAt(plain(0))
    found.size += 100
    with pytest.raises(kcodec.TruncatedError, match=f"the file ends at byte {len(plain(0))}"):
        offsets(open_log(found))


@pytest.mark.parametrize("size", [-1, "many", 1.5])
def test_a_size_that_is_none_is_refused(size: Any) -> None:
    found = ReadAt(plain(0))
    found.size = size
    with pytest.raises(TypeError, match="not a number of bytes"):
        kcodec.open(found)


@pytest.mark.parametrize("given", [b"bytes", bytearray(9), 7, object()])
def test_what_is_no_file_is_a_type_error(given: Any) -> None:
    with pytest.raises(TypeError, match=f"{type(given).__name__} is not a file: pass a path"):
        kcodec.open(given)


@pytest.mark.parametrize("given", ["s3", object(), fs.FileSelector("."), {}])
def test_what_is_no_filesystem_is_a_type_error(given: Any) -> None:
    with pytest.raises(TypeError, match=f"filesystem must be one of pyarrow.fs or fsspec, not {type(given).__name__}"):
        kcodec.open("orders-0", filesystem=given)


@pytest.mark.parametrize("make", [lambda root: filesystem(Store(root)), Buckets], ids=["pyarrow", "fsspec"])
def test_a_missing_object_is_reported_as_a_local_file_is(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    partition(tmp_path, [plain(0)])
    (tmp_path / "empty-0").mkdir()
    (tmp_path / "orders-0" / f"{0:020d}.index").write_bytes(b"")
    for path in ("nothing-0", "empty-0"):
        with pytest.raises(FileNotFoundError):
            kcodec.open(path, filesystem=make(tmp_path))
    assert offsets(open_directory("", filesystem=make(tmp_path))["orders-0"]) == [0, 1, 2]
    with pytest.raises(ValueError, match="not a segment"):
        kcodec.open(f"orders-0/{0:020d}.index", filesystem=make(tmp_path))


def test_the_checkpoint_next_to_a_partition_is_read_through_the_filesystem(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0), plain(3)])
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\norders 0 4\n", "utf-8")
    for log in sources(directory).values():
        assert (log.log_start_offset, offsets(log)) == (4, [4, 5])


def test_a_filesystem_without_sizes_is_a_clear_error(tmp_path: Path) -> None:
    class Untold(Buckets):
        def info(self, path: str) -> dict[str, Any]:
            return {**super().info(path), "size": None}

    log = open_log("orders-0", filesystem=Untold(partition(tmp_path, [plain(0)]).parent))
    with pytest.raises(OSError, match=rf"orders-0/{0:020d}\.log: the filesystem does not report the size"):
        offsets(log)


def test_a_filesystem_with_a_cache_is_invalidated(tmp_path: Path) -> None:
    buckets = Buckets(partition(tmp_path, [plain(0)]).parent)
    assert offsets(open_log("orders-0", filesystem=buckets)) == [0, 1, 2]
    assert buckets.forgotten > 0
