# SPDX-License-Identifier: Apache-2.0
"""exactly_once on a local Spark and a real broker: what is written, and each row of the table of failures.

Driver and executors are killed for real in tests/prove/prove_spark_sink.py. Here a dead driver is what it leaves: an
open transaction, or a checkpoint without the commit of its last batch.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sink_queries
from log_messages import messages
from pickled_functions import pickled_by_value
from pyspark.errors import AnalysisException
from pyspark.sql import functions
from sink_queries import SinkQuery, failing, once, wait_until
from transaction_cluster import TransactionCluster

from kcodec import TopicPartition, partition_for
from kcodec.client import Admin, Producer, TransactionHandle, TransactionWriter, begin_transaction
from kcodec.errors import BrokerError, ProducerFencedError
from kcodec.spark import SinkResult, exactly_once
from kcodec.spark.sink_protocol import SinkProgress
from kcodec.spark.sink_tasks import TaskWriter
from kcodec.spark.sink_transactions import SinkTransactions
from kcodec.testing.kafka import KAFKA_VERSION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", autouse=True)
def _functions_by_value() -> Iterator[None]:
    """Workers cannot import modules of tests."""
    with pickled_by_value(sys.modules[__name__], sink_queries):
        yield


@pytest.fixture(scope="module")
def cluster() -> Iterator[TransactionCluster]:
    with TransactionCluster(KAFKA_VERSION, 2) as one:
        yield one


@pytest.fixture
def job(spark: SparkSession, cluster: TransactionCluster, tmp_path: Path) -> Iterator[SinkQuery]:
    """A query to a topic of two partitions, without files so far."""
    cluster.quiet_proxy()
    yield SinkQuery(
        spark,
        tmp_path,
        topic=cluster.kafka.create_topic(partitions=2),
        application=cluster.new_id(),
        bootstrap_servers=cluster.proxy.bootstrap_servers,
    )
    cluster.quiet_proxy()


def committed(cluster: TransactionCluster, job: SinkQuery) -> list[bytes]:
    """What a read_committed consumer gets, sorted."""
    return sorted(value or b"" for values in cluster.committed(job.options["topic"]) for value in values)


def progress(job: SinkQuery) -> SinkProgress | None:
    """What the group of the application has committed."""
    partition = TopicPartition(job.options["topic"], 0)
    with Admin(bootstrap_servers=job.options["bootstrap_servers"]) as admin:
        found = admin.list_group_offsets(job.options["application"], [partition])[partition]
    return None if found is None else SinkProgress.from_json(found.metadata)


# ---------------------------------------------------------------------------------------------------- what is written


def test_each_batch_is_written_once(cluster: TransactionCluster, job: SinkQuery) -> None:
    rows = job.add(files=3)
    job.run()
    assert committed(cluster, job) == sorted(rows)
    for number, values in enumerate(cluster.committed(job.options["topic"])):
        assert list(partition_for(values, 2)) == [number] * len(values)
    found = progress(job)
    assert found is not None
    assert (found.batch, found.rows) == (2, 20)
    assert abs(time.time() * 1000 - found.time) < 600_000
    rows += job.add()
    job.run()
    assert committed(cluster, job) == sorted(rows)
    assert cluster.count("EndTxn") == 4


def test_the_example_of_the_documentation_runs(cluster: TransactionCluster, job: SinkQuery) -> None:
    page = (Path(__file__).resolve().parent.parent.parent / "docs" / "spark-writing.md").read_text(encoding="utf-8")
    (example,) = (text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "exactly_once(df" in text)
    topic = cluster.kafka.create_topic(partitions=2)
    for name, ours in (
        ("localhost:9092", job.options["bootstrap_servers"]),
        ("/checkpoints/copy-orders", str(job.checkpoint)),
        ("orders-out", topic),
    ):
        assert name in example
        example = example.replace(name, ours)
    rows = job.add()
    names: dict[str, Any] = {"df": job.frame()}
    exec(example, names)
    wait_until(lambda: bool(names["query"].recentProgress), "the first batch")
    names["query"].stop()
    assert sorted(value or b"" for values in cluster.committed(topic) for value in values) == sorted(rows)


def test_connections_end_with_their_query(job: SinkQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark does not say when a query has ended."""
    monkeypatch.setattr("kcodec.spark.sink_query.END_CHECK_SECONDS", 0.2)

    def clients() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "kcodec-client"}

    before = clients()
    job.add()
    job.run()
    wait_until(lambda: not clients() - before, "the threads of the clients to end")


def test_connections_end_with_their_run_of_a_query(job: SinkQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that is started again has the same id, another run id and a new callback."""
    monkeypatch.setattr("kcodec.spark.sink_query.END_CHECK_SECONDS", 5.0)
    closed: list[SinkTransactions] = []
    close = SinkTransactions.close

    def noted(self: SinkTransactions) -> None:
        closed.append(self)
        close(self)

    monkeypatch.setattr(SinkTransactions, "close", noted)
    job.add()
    job.run()
    writer = exactly_once(job.frame(), **job.options).option("checkpointLocation", str(job.checkpoint))
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        wait_until(lambda: bool(closed), "the connections of the first run to end")
        assert query.isActive
    finally:
        query.stop()


def test_columns_are_those_of_sparks_sink(spark: SparkSession, cluster: TransactionCluster, job: SinkQuery) -> None:
    """Also on old Sparks, whose routing is by salts, and without any key."""
    options = {**job.options, "partitioner": "key"}
    rows = spark.sql(
        "SELECT CAST(id AS STRING) AS key, 7 AS other, "
        "CASE WHEN id % 2 = 0 THEN ENCODE(CAST(id AS STRING), 'UTF-8') END AS value, "
        "array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))) AS headers, "
        "CASE WHEN id < 4 THEN CAST(1 AS INT) END AS partition FROM range(10)"
    )
    exactly_once(rows, **options, version=0)
    log = cluster.logs(job.options["topic"])
    found = [[(record.key, record.value, list(record.headers)) for record in each.records()] for each in log]
    ones = {b"0", b"1", b"2", b"3"} | {key for key in (b"%d" % n for n in range(4, 10)) if partition_for([key], 2)[0]}
    assert {key for key, *_ in found[1]} == ones
    assert len(found[0]) + len(found[1]) == 10
    assert {headers[0] for part in found for *_, headers in part} == {("h", b"x")}
    assert {key for part in found for key, value, _ in part if value is None} == {b"1", b"3", b"5", b"7", b"9"}
    without_keys = {**options, "application": cluster.new_id(), "topic": cluster.kafka.create_topic(partitions=2)}
    exactly_once(spark.range(10).selectExpr("CAST(id AS STRING) AS value"), **without_keys, version=0)
    assert all(3 <= len(values) <= 7 for values in cluster.committed(without_keys["topic"]))


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_sparks_connector_reads_the_same_rows(
    spark: SparkSession, cluster: TransactionCluster, job: SinkQuery, compression: str
) -> None:
    """Rows are encoded before the shuffle, in batches of which a cell is only a piece. One record takes more than a
    batch usually does."""
    rows = spark.sql(
        "SELECT CAST(id AS STRING) AS key, 7 AS other, CASE WHEN id % 11 > 0 THEN "
        "CAST(concat(sha2(CAST(id AS STRING), 512), repeat('paid ', IF(id = 5, 60000, 20))) AS BINARY) END AS value, "
        "CASE WHEN id % 3 > 0 THEN array(named_struct('key', 'h', 'value', CAST(CAST(id AS STRING) AS BINARY))) END "
        "AS headers FROM range(0, 8000, 1, 3)"
    )
    began = time.time() * 1000
    result = exactly_once(rows, **job.options, compression_type=compression, version=0)
    assert result.rows == 8000
    options = {
        "kafka.bootstrap.servers": cluster.kafka.bootstrap_servers,
        "subscribe": job.options["topic"],
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
    }
    read = spark.read.format("kafka").options(**options).load()
    names = ["key", "value", "headers"]
    assert read.select(*names).exceptAll(rows.selectExpr("CAST(key AS BINARY)", "value", "headers")).count() == 0
    times = read.selectExpr("count(*)", "min(timestamp)", "max(timestamp)").collect()[0]
    assert times[0] == 8000
    assert began - 1 <= times[1].timestamp() * 1000 <= times[2].timestamp() * 1000 <= time.time() * 1000
    for log in cluster.logs(job.options["topic"]):
        batches = [batch for batch in log.batches if not batch.is_control_batch]
        assert all(batch.is_valid and batch.compression.name.lower() == compression for batch in batches)
        assert len(batches) < 20
        sequences = [batch.base_sequence for batch in batches]
        assert sequences == [sum(batch.records_count for batch in batches[:at]) for at in range(len(batches))]


def test_a_record_above_max_request_size_ends_the_query(cluster: TransactionCluster, job: SinkQuery) -> None:
    """It is not written again, as it would fail again; nothing of its batch is visible."""
    job.add()
    with pytest.raises(Exception, match=r"the record takes 20.. bytes, above max_request_size 2000; send smaller"):
        job.run(lambda df: df.selectExpr("key", "rpad(value, 2000, ' ') AS value"), max_request_size=2000)
    assert cluster.count("InitProducerId") == 1
    assert committed(cluster, job) == []


def test_a_version_of_a_batch_job_is_written_once(
    spark: SparkSession, cluster: TransactionCluster, job: SinkQuery
) -> None:
    rows = spark.range(5).selectExpr("CAST(id AS STRING) AS value")
    application = job.options["application"]
    assert exactly_once(rows, **job.options, version=20) == SinkResult(application, 20, 5, is_skipped=False)
    assert exactly_once(rows, **job.options, version=20) == SinkResult(application, 20, 5, is_skipped=True)
    assert exactly_once(rows, **job.options, version=19) == SinkResult(application, 19, 0, is_skipped=True)
    assert exactly_once(rows.limit(0), **job.options, version=21) == SinkResult(application, 21, 0, is_skipped=False)
    assert committed(cluster, job) == [b"0", b"1", b"2", b"3", b"4"]
    job.add()
    with pytest.raises(Exception, match=r"CheckpointMismatchError: .*last commit in Kafka is batch 21 of batch jobs"):
        job.run()


def test_an_empty_batch_advances_the_progress(cluster: TransactionCluster, job: SinkQuery) -> None:
    job.add()
    job.run(lambda df: df.where("value = 'none'"))
    assert progress(job) is not None
    rows = job.add()
    job.run()
    assert committed(cluster, job) == sorted(rows)


def test_a_partitioner_may_be_an_expression(cluster: TransactionCluster, job: SinkQuery) -> None:
    job.add()
    topic = job.options["topic"]
    job.run(partitioner=lambda partitions: functions.pmod(functions.length("value"), functions.lit(partitions)))
    for number, values in enumerate(cluster.committed(topic)):
        assert {len(value or b"") % 2 for value in values} == {number}
    job.add()
    with pytest.raises(Exception, match=r"partition must be between 0 and 1, got 7 in column 'partition'"):
        job.run(partitioner="7")
    with pytest.raises(Exception, match=r"column 'partition' is NULL in \d+ rows"):
        job.run(lambda df: df.selectExpr("*", "CAST(NULL AS INT) AS partition"), partitioner="column")
    assert len(committed(cluster, job)) == 20


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"compresion_type": "lz4"}, r"no option 'compresion_type' \(did you mean 'compression_type'\?\)"),
        ({"compression_type": "lz5"}, "compression_type must be one of none, gzip, snappy, lz4, zstd, not 'lz5'"),
        ({"kafka.compression.type": "lz5"}, "lz5"),
        ({"acks": 1}, "no option 'acks'"),
        ({"transaction_timeout_ms": 0}, "transaction_timeout_ms must be a number of at least 1, not 0"),
        ({"application": ""}, "application must be a string that is not empty"),
        ({"partitions_per_task": "2"}, "partitions_per_task must be an int of at least 1, or None, got '2'"),
        ({"partitioner": "column"}, r"needs a column partition \(int\); the data has none"),
        ({"partitioner": "colum"}, "colum"),
        ({"partitioner": lambda partitions: 7}, "partitioner must return a Column or SQL text, got int"),
        ({"version": 1}, "version= is for a DataFrame that is not streaming"),
    ],
)
def test_invalid_arguments_are_refused_before_the_start(
    spark: SparkSession, options: dict[str, Any], text: str
) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    with pytest.raises((ValueError, TypeError, AnalysisException), match=text):
        exactly_once(rows, **{"topic": "t", "application": "a", "bootstrap_servers": "b:9092", **options})


def test_data_that_cannot_be_written_is_refused(spark: SparkSession) -> None:
    options: dict[str, Any] = {"topic": "t", "application": "a", "bootstrap_servers": "b:9092"}
    with pytest.raises(ValueError, match="column 'value' is missing; the data has id"):
        exactly_once(spark.range(1), **options, version=1)
    with pytest.raises(ValueError, match="pass version=, the number of this run"):
        exactly_once(spark.range(1).selectExpr("CAST(id AS STRING) AS value"), **options)
    with pytest.raises(ValueError, match="version must be an int from 0"):
        exactly_once(spark.range(1).selectExpr("CAST(id AS STRING) AS value"), **options, version=-1)
    rows: Any = [1]
    with pytest.raises(TypeError, match="df must be a DataFrame or a DataStreamWriter, got list"):
        exactly_once(rows, **options)


# ------------------------------------------------------------------------------------------- workers, tasks and slots


def test_a_killed_worker_means_the_batch_again(cluster: TransactionCluster, job: SinkQuery, tmp_path: Path) -> None:
    rows = job.add(files=2, rows=2000)
    flag = tmp_path / "flag"
    flag.touch()
    job.run(failing(flag, once(flag, lambda: os.kill(os.getpid(), signal.SIGKILL))))
    assert not flag.exists()
    assert committed(cluster, job) == sorted(rows)


def test_a_query_ends_after_its_attempts(
    cluster: TransactionCluster, job: SinkQuery, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And a restart goes on."""
    rows = job.add()
    flag = tmp_path / "flag"
    flag.touch()

    def fail() -> None:
        raise KeyError("of the user")

    with (
        caplog.at_level(logging.WARNING, "kcodec.spark"),
        pytest.raises(Exception, match=r"KeyError: 'of the user'[\s\S]*attempt 2 of 2; nothing of it is visible"),
    ):
        job.run(failing(flag, fail), attempts=2)
    assert messages(caplog).count("attempt 1 of batch 0 failed and is repeated") == 1
    assert committed(cluster, job) == []
    job.run()
    assert committed(cluster, job) == sorted(rows)


def test_an_error_of_a_task_that_cannot_pass_ends_the_query_at_once(
    cluster: TransactionCluster, job: SinkQuery, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For example, the source has no permission to read its topic."""
    job.add()
    flag = tmp_path / "flag"
    flag.touch()

    def fail() -> None:
        raise BrokerError("Fetch of orders-0", code=29, name="TOPIC_AUTHORIZATION_FAILED", remedy="stop")

    with caplog.at_level(logging.WARNING, "kcodec.spark"), pytest.raises(Exception, match="TOPIC_AUTHORIZATION_FAILED"):
        job.run(failing(flag, fail))
    assert "is repeated" not in messages(caplog)
    assert committed(cluster, job) == []


def test_only_the_first_attempt_of_a_task_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    class SecondAttempt:
        attemptNumber = staticmethod(lambda: 1)  # noqa: N815

    monkeypatch.setattr("pyspark.TaskContext.get", SecondAttempt)
    writer = TaskWriter(TransactionHandle("a", 1, 0, 2), "t", 1, 1, {})
    with pytest.raises(RuntimeError, match=r"attempt 1 of a task .* only the first attempt may write"):
        next(writer(iter(())))


def test_more_partitions_than_slots(cluster: TransactionCluster, job: SinkQuery) -> None:
    """By default a task writes several partitions; a number that cannot run at once is refused by name."""
    topic = cluster.kafka.create_topic(partitions=5)
    rows = job.add()
    with pytest.raises(
        Exception, match=r"need 5 tasks at once, and the cluster has 2 slots: set partitions_per_task to 3"
    ):
        job.run(topic=topic, partitions_per_task=1)
    job.run(topic=topic)
    assert sorted(value or b"" for values in cluster.committed(topic) for value in values) == sorted(rows)
    for number, values in enumerate(cluster.committed(topic)):
        assert list(partition_for(values, 5)) == [number] * len(values)


def test_a_topic_may_gain_partitions(cluster: TransactionCluster, job: SinkQuery) -> None:
    topic = job.options["topic"]

    def add_partitions() -> None:
        with Admin(bootstrap_servers=cluster.kafka.bootstrap_servers) as admin:
            admin.create_partitions({topic: 4})

    first = job.add()
    job.run()
    add_partitions()
    second = job.add(files=2)
    job.run()
    assert committed(cluster, job) == sorted(first + second)
    assert all(values for values in cluster.committed(topic)[2:])


# -------------------------------------------------------------------------------------------------- drivers that die


def test_what_a_dead_driver_left_open_is_aborted(cluster: TransactionCluster, job: SinkQuery) -> None:
    """It died before EndTxn; its tasks live on for a while and are fenced."""
    topic, servers = job.options["topic"], job.options["bootstrap_servers"]
    handle = begin_transaction(job.options["application"], bootstrap_servers=servers)
    writer = TransactionWriter(handle, [TopicPartition(topic, 0)], bootstrap_servers=servers, linger_ms=0)
    writer.send(topic, b"of the dead").result()
    rows = job.add()
    job.run()
    writer.send(topic, b"late")
    with pytest.raises(ProducerFencedError):
        writer.close()
    assert committed(cluster, job) == sorted(rows)
    assert b"of the dead" in {value for values in cluster.written(topic) for value in values}


def test_a_batch_behind_sparks_commit_log_is_skipped(cluster: TransactionCluster, job: SinkQuery) -> None:
    """The driver died behind EndTxn. Without the number of the batch in Kafka the rows would be there twice."""
    rows = job.add(files=2)
    job.run()
    job.forget_commit(1)
    cluster.quiet_proxy()
    job.run()
    assert cluster.count("Produce") == 0
    rows += job.add()
    job.run()
    assert committed(cluster, job) == sorted(rows)


def test_a_skipped_batch_of_a_query_with_state_stores_its_state(cluster: TransactionCluster, job: SinkQuery) -> None:
    """Spark fails a batch without it, at each start. The first batch of the second run is skipped, the next one not."""
    rows = set(job.add())

    def distinct(df: DataFrame) -> DataFrame:
        return df.dropDuplicates(["value"])

    job.run(distinct)
    job.forget_commit(0)
    job.run(distinct)
    rows |= set(job.add(rows=5))
    job.run(distinct)
    assert committed(cluster, job) == sorted(rows)


def test_a_skipped_version_of_a_query_with_state_stores_its_state(cluster: TransactionCluster, job: SinkQuery) -> None:
    """A function of foreachBatch that writes versions is called again after the death of a driver."""
    rows = set(job.add())
    skipped = []

    def write(df: DataFrame, number: int) -> None:
        skipped.append(exactly_once(df, **job.options, version=number).is_skipped)

    def run() -> None:
        writer = job.frame().dropDuplicates(["value"]).writeStream.foreachBatch(write)
        query = writer.option("checkpointLocation", str(job.checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    run()
    job.forget_commit(0)
    run()
    rows |= set(job.add(rows=5))
    run()
    assert True in skipped
    assert committed(cluster, job) == sorted(rows)


def test_a_skipped_version_without_state_runs_no_job(job: SinkQuery) -> None:
    ran = []

    def jobs(df: DataFrame) -> int:
        context = df.sparkSession.sparkContext
        return len(context.statusTracker().getJobIdsForGroup(context.getLocalProperty("spark.jobGroup.id")))

    def write(df: DataFrame, number: int) -> None:
        before = jobs(df)
        exactly_once(df, **job.options, version=0)
        ran.append(jobs(df) > before)

    job.add(files=2)
    query = job.frame().writeStream.foreachBatch(write).option("checkpointLocation", str(job.checkpoint))
    assert query.trigger(availableNow=True).start().awaitTermination(120)
    assert ran == [True, False]


@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not done"])
def test_an_unanswered_commit_is_resolved(cluster: TransactionCluster, job: SinkQuery, is_done: bool) -> None:
    rows = job.add(files=2)
    rule = cluster.proxy.on_request("EndTxn", count=1)
    rule.deliver_and_cut() if is_done else rule.cut()
    job.run(request_timeout_ms=2000, default_api_timeout_ms=4000)
    assert committed(cluster, job) == sorted(rows)


def test_a_commit_that_is_never_answered_ends_in_a_skip(cluster: TransactionCluster, job: SinkQuery) -> None:
    """All copies of EndTxn are carried out and unanswered: UnknownOutcomeError, and begin reads what was done."""
    rows = job.add()
    rule = cluster.proxy.on_request("EndTxn", count=None)
    rule.deliver_and_cut()
    job.run(request_timeout_ms=1000, default_api_timeout_ms=2000)
    cluster.quiet_proxy()
    assert committed(cluster, job) == sorted(rows)


def test_a_batch_over_its_time_stops_the_query(cluster: TransactionCluster, job: SinkQuery) -> None:
    job.add()
    rule = cluster.proxy.on_response("Produce", count=None).hold(0.9)
    with pytest.raises(Exception, match=r"TransactionTimedOutError: .*transaction_timeout_ms=500 2 times in a row"):
        job.run(transaction_timeout_ms=500)
    rule.release()
    cluster.quiet_proxy()
    job.run()
    assert len(committed(cluster, job)) == 20


# --------------------------------------------------------------------------------------- checkpoints and the progress


def test_a_new_checkpoint_is_refused_or_adopted(cluster: TransactionCluster, job: SinkQuery) -> None:
    rows = job.add()
    job.run()
    job.delete_checkpoint()
    with pytest.raises(
        Exception, match=r"CheckpointMismatchError: .*the last commit in Kafka is batch 0 of query .*adopt"
    ):
        job.run()
    assert committed(cluster, job) == sorted(rows)
    job.run(on_new_checkpoint="adopt")
    assert committed(cluster, job) == sorted(rows * 2)  # as its user wanted
    job.run()


def test_a_checkpoint_that_was_rolled_back_is_refused(cluster: TransactionCluster, job: SinkQuery) -> None:
    rows = job.add(files=3)
    job.run()
    job.roll_back(0)
    with pytest.raises(Exception, match=r"rolled back or copied: expected batch 2 or 3. Restore the latest checkpoint"):
        job.run()
    assert committed(cluster, job) == sorted(rows)


def test_a_checkpoint_one_batch_back_is_refused(cluster: TransactionCluster, job: SinkQuery) -> None:
    """Its last batch is planned again, with other offsets of Kafka's source: skipping it would lose the rest."""
    source, servers = cluster.kafka.create_topic(partitions=1), cluster.kafka.bootstrap_servers
    options = {"kafka.bootstrap.servers": servers, "subscribe": source, "startingOffsets": "earliest"}

    def from_kafka(rows: int) -> None:
        with Producer(bootstrap_servers=servers) as producer:
            for number in range(rows):
                producer.send(source, b"%d" % number)
        job.run(lambda df: job.spark.readStream.format("kafka").options(**options).load().select("key", "value"))

    from_kafka(10)
    from_kafka(5)
    job.forget_commit(1)
    from_kafka(0)  # repeated with the same offsets: skipped
    assert len(committed(cluster, job)) == 15
    job.roll_back(1)
    with pytest.raises(Exception, match=r"CheckpointMismatchError: .*planned with other source offsets"):
        from_kafka(3)


def test_a_second_query_does_not_stop_the_first(job: SinkQuery, cluster: TransactionCluster) -> None:
    """It is refused before it takes the application over."""
    rows = job.add()
    job.run()
    cluster.quiet_proxy()
    other = SinkQuery(job.spark, job.folder / "other", **job.options)
    other.add()
    with pytest.raises(Exception, match="two queries use one application"):
        other.run()
    assert cluster.count("InitProducerId") == 0
    assert committed(cluster, job) == sorted(rows)


def test_a_driver_that_was_replaced_stops(job: SinkQuery, cluster: TransactionCluster) -> None:
    """Another driver begins while the first one writes: the first one is fenced, and names the reason."""
    job.add()
    rule = cluster.proxy.on_response("Produce", count=None).hold()
    query = job.start()
    wait_until(lambda: cluster.count("Produce") > 0, "the first rows")
    begin_transaction(job.options["application"], bootstrap_servers=job.options["bootstrap_servers"])
    with pytest.raises(Exception, match="another process has taken over this application"):
        rule.release()
        query.awaitTermination(60)
    assert committed(cluster, job) == []


@pytest.mark.parametrize("kept", ["group", "topic"])
def test_expired_progress(job: SinkQuery, cluster: TransactionCluster, kept: str) -> None:
    rows = job.add()
    job.run(progress=kept)
    with Admin(bootstrap_servers=cluster.kafka.bootstrap_servers) as admin:
        admin.delete_groups([job.options["application"]])
    rows += job.add()
    if kept == "group":
        with pytest.raises(Exception, match=r"found none.*offsets.retention.minutes.*on_new_checkpoint=\"adopt\""):
            job.run(progress=kept)
        job.run(progress=kept, on_new_checkpoint="adopt")
    else:
        job.run(progress=kept)
    rows += job.add()
    job.run(progress=kept)
    job.forget_commit(2)
    job.run(progress=kept)
    assert committed(cluster, job) == sorted(rows)


def test_offsets_of_another_program_are_refused(job: SinkQuery) -> None:
    job.add()
    with Admin(bootstrap_servers=job.options["bootstrap_servers"]) as admin:
        admin.alter_group_offsets(job.options["application"], {TopicPartition(job.options["topic"], 0): 7})
    with pytest.raises(Exception, match="another program commits offsets of that group"):
        job.run()


# ------------------------------------------------------------------------------------------------- interrupts, stops


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_the_callback_ends_the_query(job: SinkQuery, kind: type[BaseException]) -> None:
    job.add()
    asked: list[int] = []

    def interrupted(partitions: int) -> Any:
        asked.append(partitions)
        if len(asked) > 1:
            raise kind
        return functions.lit(0)

    with pytest.raises(Exception, match=f"ExactlyOnceError: .*batch 0: was interrupted by {kind.__name__}"):
        job.run(partitioner=interrupted)


def test_a_stopped_query_ends_soon_and_goes_on(job: SinkQuery, cluster: TransactionCluster, tmp_path: Path) -> None:
    rows = job.add()
    flag = tmp_path / "flag"
    flag.touch()
    query = job.start(failing(flag, lambda: time.sleep(8)))
    wait_until(lambda: cluster.count("InitProducerId") > 0, "the batch to begin")
    began = time.monotonic()
    query.stop()
    assert time.monotonic() - began < 6
    assert query.exception() is None
    flag.unlink()
    job.run()
    assert committed(cluster, job) == sorted(rows)
