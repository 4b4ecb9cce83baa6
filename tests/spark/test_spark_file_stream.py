# SPDX-License-Identifier: Apache-2.0
"""FileStream: a streaming query over partition directories that grow, mostly without Spark."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import threading
import time
from base64 import b64decode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from golden_data import Partition
from log_messages import messages
from pyspark.errors import PySparkException
from spark_truth import consumed, golden

import kcodec
from kcodec.client import Admin, NewTopic, Producer
from kcodec.errors import DecodeError
from kcodec.spark.columns import default_columns
from kcodec.spark.file_stream import FileStream, FileStreamOptions
from kcodec.spark.planner import DataLossError
from kcodec.spark.stream_readers import FileQuery
from kcodec.testing.kafka import ApacheKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEVELS = ["read_uncommitted", "read_committed"]
Rows = dict[tuple[int, int], bytes | None]


class Query:
    """Runs a query as Spark does, batch after batch, and keeps its rows."""

    def __init__(self, path: Path | str, position: Any = None, **options: str) -> None:
        given = {"path": str(path), "startingOffsets": "earliest", **options}
        self._query = FileQuery(FileStreamOptions.of(given, default_columns(True, False)))
        self.driver: FileStream = self._query.driver()
        self.position = self.driver.initial_offset() if position is None else position
        self.rows: Rows = {}
        self.batches: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def run(self) -> Rows:
        """Run the batches that there are; return all rows so far."""
        while (end := self.driver.latest_offset(self.position)) != self.position:
            self.batches.append((self.position, end))
            found = self.read(self.position, end)
            assert not set(found) & set(self.rows)
            self.rows |= found
            self.position = end
        return self.rows

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> Rows:
        """The rows of one batch."""
        rows: Rows = {}
        for task in self.driver.tasks(start, end):
            for batch in self._query.read(task):
                columns = (batch[name].to_pylist() for name in ("partition", "offset", "value"))
                for partition, offset, value in zip(*columns, strict=True):
                    assert (partition, offset) not in rows
                    rows[partition, offset] = value
        return rows


def truth(partition: Partition, level: str) -> Rows:
    """What Kafka's own consumer delivered."""
    values = ((reported["offset"], reported["value"]) for reported in consumed(partition, level))
    return {(partition.partition, offset): None if value is None else b64decode(value) for offset, value in values}


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A partition directory with several segments."""
    return Path(shutil.copytree(golden("txn-mixed-0").path, tmp_path / "txn-mixed-0"))


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


@pytest.mark.parametrize("level", LEVELS)
def test_a_directory_of_a_broker_that_grows(apache_kafka: ApacheKafka, level: str) -> None:
    """Segments roll, a partition is added, a third of the transactions is aborted; the rows are those of read_topic."""
    servers, topic = apache_kafka.bootstrap_servers, f"grow-{level[5:8]}"
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(topic, num_partitions=1, configs={"segment.bytes": "1048576"})])
        path = f"{apache_kafka.log_directory}/{topic}-*"
        wait_for(apache_kafka.log_directory / f"{topic}-0")
        query = Query(path, **{"kafka.isolation.level": level, "maxOffsetsPerTrigger": "900"})
        writing = threading.Thread(target=write, args=(servers, topic, 1, 6))
        writing.start()
        while writing.is_alive():
            query.run()
        writing.join()
        admin.create_partitions({topic: 2})
        wait_for(apache_kafka.log_directory / f"{topic}-1")
        write(servers, topic, 2, 3)
    expected: Rows = {}
    with kcodec.read_topic(topic, bootstrap_servers=servers, isolation_level=level) as records:  # type: ignore[arg-type]
        for record in (record for batch in records for record in batch.records()):
            expected[int(str(record.partition)), record.offset] = record.value
    deadline = time.monotonic() + 20
    while len(query.run()) < len(expected) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert query.rows == expected
    assert len(segments(apache_kafka.log_directory / f"{topic}-0")) > 1
    assert len(query.batches) > 5


def wait_for(directory: Path) -> None:
    deadline = time.monotonic() + 20
    while not list(directory.glob("*.log")) and time.monotonic() < deadline:
        time.sleep(0.02)


def write(servers: str, topic: str, partitions: int, transactions: int) -> None:
    with Producer(bootstrap_servers=servers, transactional_id=f"{topic}-{partitions}") as producer:
        for number in range(transactions):
            with producer.transaction() as transaction:
                sent = [transaction.send(topic, os.urandom(500), partition=n % partitions) for n in range(600)]
                sent[-1].result()
                if number % 3 == 1:
                    transaction.abort()


@pytest.mark.parametrize("level", LEVELS)
def test_files_that_grow_byte_by_byte(tmp_path: Path, level: str) -> None:
    """Wherever an append is cut, nothing is lost, delivered twice or an error."""
    partition, directory, source = golden("txn-mixed-0"), tmp_path / "txn-mixed-0", random.Random(5)
    directory.mkdir()
    query = None
    for segment in partition.segments:
        data = segment.read_bytes()
        places = sorted({0, len(data), *(source.randrange(len(data)) for _ in range(12))})
        for place in places:
            (directory / segment.name).write_bytes(data[:place])
            query = query or Query(directory, **{"kafka.isolation.level": level})
            query.run()
    assert query is not None
    assert query.run() == truth(partition, level)


@pytest.mark.parametrize("level", LEVELS)
def test_limits_and_a_replay(copied: Path, level: str) -> None:
    options = {"kafka.isolation.level": level, "maxOffsetsPerTrigger": "7", "minPartitions": "2"}
    query = Query(copied, **options)
    assert query.run() == truth(golden("txn-mixed-0"), level)
    assert len(query.batches) > 3
    for start, end in query.batches[::3]:
        rows = Query(copied, start, **options).read(start, end)
        low, high = start["txn-mixed"]["0"], end["txn-mixed"]["0"]
        assert rows == {place: value for place, value in query.rows.items() if low <= place[1] < high}
    by_bytes = Query(copied, maxBytesPerTrigger="400")
    assert by_bytes.run() == truth(golden("txn-mixed-0"), LEVELS[0])
    assert len(by_bytes.batches) > 2


def test_a_query_continues_where_it_was(copied: Path) -> None:
    first = Query(copied, maxOffsetsPerTrigger="9")
    first.run()
    start, _ = first.batches[2]
    again = Query(copied, start)
    low = start["txn-mixed"]["0"]
    assert again.run() == {place: value for place, value in first.rows.items() if place[1] >= low}


def test_a_first_batch_is_replayed_after_a_partition_was_added(copied: Path) -> None:
    """The options do not name the new partition. They are for a query without a checkpoint, and this one has one."""
    options = {"startingOffsets": json.dumps({"txn-mixed": {"0": 4}})}
    path = f"{copied.parent}/txn-mixed-*"
    first = Query(path, **options)
    end = json.loads(json.dumps(first.driver.latest_offset(first.position)))
    rows = first.read(first.position, end)
    shutil.copytree(copied, copied.parent / "txn-mixed-1")
    again = Query(path, **options)
    assert rows and again.read(json.loads(json.dumps(again.position)), end) == rows
    new = Query(path, **options)
    for given in (new.position, None):
        with pytest.raises(ValueError, match="option 'startingOffsets' does not name txn-mixed-1"):
            new.driver.latest_offset(given)


def test_available_now_stops_at_the_ends_of_its_start(tmp_path: Path) -> None:
    partition, directory = golden("txn-mixed-0"), tmp_path / "txn-mixed-0"
    directory.mkdir()
    first, *others = partition.segments
    shutil.copy(first, directory)
    query = Query(directory, maxOffsetsPerTrigger="3")
    query.driver.prepare_for_available_now()
    for segment in others:
        shutil.copy(segment, directory)
    assert query.run() == Query(first.parent).read(query.batches[0][0], query.position)
    assert len(query.rows) < len(truth(partition, LEVELS[0]))


def test_deleted_segments_are_lost_data(copied: Path, caplog: pytest.LogCaptureFixture) -> None:
    strict, lenient = Query(copied), Query(copied, failOnDataLoss="false")
    first, second = segments(copied)[:2]
    first.unlink()
    begin = int(second.stem)
    strict.driver._listed_at = lenient.driver._listed_at = None
    with pytest.raises(DataLossError, match=r"txn-mixed-0: offsets? 0.* cannot be read"):
        strict.run()
    with caplog.at_level(logging.WARNING, "kcodec.spark"):
        rows = lenient.run()
    assert rows == {
        place: value for place, value in truth(golden("txn-mixed-0"), LEVELS[0]).items() if place[1] >= begin
    }
    assert "cannot be read" in messages(caplog)


def test_a_truncated_log_is_lost_data(copied: Path, caplog: pytest.LogCaptureFixture) -> None:
    strict, lenient = Query(copied), Query(copied, failOnDataLoss="false")
    assert strict.run() == lenient.run()
    segments(copied)[-1].write_bytes(b"")
    with pytest.raises(DataLossError, match="the log was truncated"):
        strict.run()
    with caplog.at_level(logging.WARNING, "kcodec.spark"):
        lenient.run()
    assert lenient.position["txn-mixed"]["0"] == int(segments(copied)[-1].stem)
    assert "the log ends at" in messages(caplog)


def grow(segment: Path, first: int, last: int, leader_epoch: int, value: bytes = b"") -> None:
    """Append batches of one record with the offsets [first, last)."""
    batches = (
        kcodec.encode([(None, value + b"%d" % at)], base_offset=at, partition_leader_epoch=leader_epoch, timestamp=0)
        for at in range(first, last)
    )
    with segment.open("ab") as file:
        file.writelines(bytes(each) for each in batches)


def truncate(segment: Path, offset: int) -> None:
    """Remove the batches from an offset on."""
    batches = kcodec.batches(segment.read_bytes())
    os.truncate(segment, next(batch.position for batch in batches if batch.base_offset == offset))


@pytest.mark.parametrize("is_rolled", [False, True], ids=["grown", "rolled"])
@pytest.mark.parametrize("epoch", [3, 4], ids=["same-epoch", "next-epoch"])
def test_a_truncated_log_that_grows_past_its_old_end_is_lost_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, epoch: int, is_rolled: bool
) -> None:
    """Between two micro-batches, a replica truncates its log and receives more records than it had before."""
    directory = tmp_path / "orders-0"
    directory.mkdir()
    segment = directory / f"{0:020}.log"
    grow(segment, 0, 10, 3)
    strict, lenient = Query(directory), Query(directory, failOnDataLoss="false")
    assert len(strict.run()) == len(lenient.run()) == 10
    truncate(segment, 7)
    grow(segment, 7, 11, epoch, b"other ")
    grow(directory / f"{11:020}.log" if is_rolled else segment, 11, 14, epoch, b"other ")
    with pytest.raises(DataLossError, match="orders-0: offset 9 cannot be read: the log was truncated after the query"):
        strict.run()
    with caplog.at_level(logging.WARNING, "kcodec.spark"):
        rows = lenient.run()
    assert {offset: value for (_, offset), value in rows.items()} == {
        **{at: b"%d" % at for at in range(10)},
        **{at: b"other %d" % at for at in range(10, 14)},
    }
    assert messages(caplog).count("other records, which the query has not read, were written in its place") == 1
    grow(sorted(directory.glob("*.log"))[-1], 14, 16, epoch)
    assert len(lenient.run()) == 16  # the loss was accepted, and is not one of the next micro-batch


def test_a_log_that_is_truncated_above_the_position_is_no_loss(tmp_path: Path) -> None:
    """Records that no micro-batch has planned are replaced: the query reads the new ones."""
    directory = tmp_path / "orders-0"
    directory.mkdir()
    segment = directory / f"{0:020}.log"
    grow(segment, 0, 10, 3)
    query = Query(directory, maxOffsetsPerTrigger="6")
    end = query.driver.latest_offset(query.position)
    query.rows |= query.read(query.position, end)
    query.position = end
    truncate(segment, 6)
    grow(segment, 6, 14, 4, b"other ")
    assert [value for _, value in sorted(query.run().items())] == [
        *(b"%d" % at for at in range(6)),
        *(b"other %d" % at for at in range(6, 14)),
    ]


def test_a_directory_of_another_topic_with_the_name(copied: Path) -> None:
    metadata = copied / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: MkU3OEVBNTcwNTJENDM2Qg\n")
    query = Query(copied)
    query.run()
    metadata.write_text("version: 0\ntopic_id: AkU3OEVBNTcwNTJENDM2Qg\n")
    query.driver._listed_at = None
    with pytest.raises(DataLossError, match="was deleted and created again"):
        query.run()


def test_corruption_stops_the_query(copied: Path) -> None:
    first = segments(copied)[0]
    data = bytearray(first.read_bytes())
    data[8:12] = b"\xff\xff\xff\xff"
    first.write_bytes(data)
    with pytest.raises(DecodeError):
        Query(copied).run()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "permissive"}, "option 'mode' is 'permissive': a stream over files stops at corruption"),
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"failOnDataLoss": "no"}, "option 'failOnDataLoss' is 'no'"),
        ({"groupIdPrefix": "t"}, "option 'groupIdPrefix' of Spark's Kafka source has no meaning here"),
        ({"maxOffsetPerTrigger": "5"}, "unknown option 'maxOffsetPerTrigger'"),
    ],
)
def test_invalid_options_of_a_stream_of_files(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        FileStreamOptions.of({"path": "x", **options}, default_columns(False, False))


def test_single_segments_cannot_be_streamed(copied: Path) -> None:
    with pytest.raises(ValueError, match="a stream reads partition directories"):
        Query(segments(copied)[0]).run()


@pytest.mark.spark
@pytest.mark.parametrize("level", LEVELS)
def test_spark_streams_a_directory(spark: SparkSession, copied: Path, tmp_path: Path, level: str) -> None:
    options = {"kafka.isolation.level": level, "includeHeaders": "true"}
    loaded = spark.readStream.format("kcodec").options(**options, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    writer = loaded.load(str(copied)).writeStream.format("memory").queryName("grown").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.awaitTermination(120)
    whole = spark.read.format("kcodec").options(**options).load(str(copied)).collect()
    assert sorted(map(repr, spark.table("grown").collect())) == sorted(map(repr, whole))
    sources = [progress["sources"][0] for progress in query.recentProgress]
    assert len(sources) > 1
    assert sources[-1]["latestOffset"] == sources[-1]["endOffset"]


@pytest.mark.spark
def test_spark_shows_what_a_stream_cannot_read(spark: SparkSession, tmp_path: Path) -> None:
    """PySpark reported "cannot access local variable 'reader'" where streamReader raised."""
    loaded = spark.readStream.format("kcodec").load(str(tmp_path / "nothing"))
    query = loaded.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(PySparkException, match=r"found no \.log file and no partition directory") as caught:
        query.awaitTermination(60)
    assert "UnboundLocalError" not in str(caught.value)


def test_the_checkpoint_of_a_query_over_topics_is_named_in_the_error(copied: Path) -> None:
    """The position has the same form, so that it is a valid position of other partitions."""
    position = {"v": 1, "payments": {"id": "MkU3OEVBNTcwNTJENDM2Qg", "0": 23, "1": 5}}
    with pytest.raises(DataLossError, match="that of another query, for example of a query over topics") as caught:
        Query(copied, position).run()
    assert str(caught.value).count("give this query a new checkpoint") == 1
