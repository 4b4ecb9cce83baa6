# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C on the driver ends the Spark job of exactly_once and of land, and leaves other jobs and their groups alone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sink_queries import wait_until

from kcodec.broker import Broker
from kcodec.client import Producer
from kcodec.spark import collect, exactly_once, land

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("functions_by_value")]
SECONDS = 60.0
GROUP = "spark.jobGroup.id"
NOT_CANCELLED = "the Spark job of an interrupted call could not be cancelled"


@pytest.fixture(params=["of Python", "of PySpark"])
def handler(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """A handler of SIGINT: Python's own one, or one like that of PySpark, which cancels all jobs."""

    def cancel_all(number: int, frame: Any) -> None:
        try:
            spark.sparkContext.cancelAllJobs()
        finally:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, signal.default_int_handler if request.param == "of Python" else cancel_all)
    yield request.param
    signal.signal(signal.SIGINT, before)


def slow(started: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function of tasks that creates a file and takes a minute."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            started.touch()
            time.sleep(SECONDS)
            yield batch

    return wait


def interrupted(call: Callable[[], object], started: Path) -> None:
    """Call a function, and interrupt it when the file is there."""

    def interrupt() -> None:
        wait_until(started.exists, "the job to start")
        os.kill(os.getpid(), signal.SIGINT)

    killer = threading.Thread(target=interrupt)
    killer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
    finally:
        killer.join()


def active_jobs(spark: SparkSession) -> list[int]:
    return list(spark.sparkContext.statusTracker().getActiveJobsIds())


def test_ctrl_c_cancels_the_job_of_exactly_once(
    spark: SparkSession, kcodec_broker: Broker, tmp_path: Path, handler: str
) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    options: dict[str, Any] = {"topic": topic, "application": f"of {topic}"}
    options["bootstrap_servers"] = kcodec_broker.bootstrap_servers
    rows = spark.range(0, 10, 1, 1).selectExpr("cast(id as string) as value")
    started = tmp_path / "started"
    spark.sparkContext.setJobGroup("users", "a group of the user")
    try:
        interrupted(
            lambda: exactly_once(rows.mapInArrow(slow(started), rows.schema), version=1, **options),
            started,
        )
        wait_until(lambda: not active_jobs(spark), "the end of the job", 5.0)
        assert spark.sparkContext.getLocalProperty(GROUP) == "users"
        assert kcodec_broker.committed(topic) == []
        # The calls of this thread get their own responses.
        assert [row.id for row in spark.range(3).collect()] == [0, 1, 2]
        assert exactly_once(rows, version=1, **options).rows == 10
    finally:
        spark.sparkContext._jsc.clearJobGroup()
    assert len(kcodec_broker.committed(topic)) == 10


@pytest.mark.parametrize("handler", ["of Python"], indirect=True)
def test_ctrl_c_cancels_no_other_job(spark: SparkSession, kcodec_broker: Broker, tmp_path: Path, handler: str) -> None:
    from pyspark import InheritableThread

    topic = kcodec_broker.create_topic(partitions=1)
    rows = spark.range(0, 10, 1, 1).selectExpr("cast(id as string) as value")
    started, released, counts = tmp_path / "started", tmp_path / "released", []

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        deadline = time.monotonic() + SECONDS
        while not released.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield from batches

    other = InheritableThread(target=lambda: counts.append(rows.mapInArrow(pass_on, rows.schema).count()))
    spark.sparkContext.setJobGroup("users", "a group of the user")
    try:
        other.start()
        wait_until(lambda: len(active_jobs(spark)) == 1, "the other job")
        interrupted(
            lambda: exactly_once(
                rows.mapInArrow(slow(started), rows.schema),
                topic=topic,
                application=f"of {topic}",
                version=1,
                bootstrap_servers=kcodec_broker.bootstrap_servers,
            ),
            started,
        )
        assert len(active_jobs(spark)) == 1
    finally:
        released.touch()
        other.join()
        spark.sparkContext._jsc.clearJobGroup()
    assert counts == [10]


@pytest.mark.parametrize("handler", ["of Python"], indirect=True)
def test_ctrl_c_cancels_the_job_of_land(
    spark: SparkSession, kcodec_broker: Broker, tmp_path: Path, handler: str
) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    servers, started = kcodec_broker.bootstrap_servers, tmp_path / "started"
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(topic, b"record").result()
    interrupted(
        lambda: land(spark, topic, tmp_path / "landed", function=slow(started), bootstrap_servers=servers),
        started,
    )
    assert active_jobs(spark) == []
    assert land(spark, topic, tmp_path / "landed", bootstrap_servers=servers).rows == 1


def test_ctrl_c_before_the_thread_runs_starts_no_job(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Thread.start can raise KeyboardInterrupt before the operating system has started the thread, or after that and
    before its first statement. There is no job to cancel, and none begins later."""
    import pyspark

    threads: list[Any] = []

    class Thread(pyspark.InheritableThread):
        def start(self) -> None:
            threads.append(self)
            raise KeyboardInterrupt

    frame = spark.range(1)
    collected: list[int] = []
    monkeypatch.setattr(type(frame), "collect", lambda frame: collected.append(1))
    monkeypatch.setattr(pyspark, "InheritableThread", Thread)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        collect.collect_rows(frame)
    assert time.monotonic() - began < collect.CANCEL_SECONDS / 2
    assert "did not end" not in "\n".join(caplog.messages)
    super(Thread, threads[0]).start()
    threads[0].join(SECONDS)
    assert not threads[0].is_alive()
    assert collected == []


def test_an_error_before_the_job_is_raised_in_the_calling_thread(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """InheritableThread sets the local properties before it calls its target, and this can fail."""
    import pyspark

    class Thread(pyspark.InheritableThread):
        def __init__(self, target: Callable[[], object], **options: Any) -> None:
            def fail() -> None:
                raise AssertionError("no active context")

            super().__init__(fail, **options)

    monkeypatch.setattr(pyspark, "InheritableThread", Thread)
    frame = spark.range(1)
    errors: list[AssertionError] = []

    def call() -> None:
        try:
            collect._collected_in_thread(frame)
        except AssertionError as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(collect.CANCEL_SECONDS)
    assert [str(error) for error in errors] == ["no active context"]


def test_an_error_of_the_cancellation_does_not_replace_the_interruption(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For example, the JVM is lost. Otherwise, exactly_once would see an ordinary error, and might try again."""
    is_cancelled = threading.Event()

    def rows(_: object) -> list[Any]:
        os.kill(os.getpid(), signal.SIGINT)
        assert is_cancelled.wait(SECONDS)
        return []

    def cancel(_: object, tag: str) -> None:
        is_cancelled.set()
        raise ConnectionError("the JVM\nis lost")

    frame = spark.range(1)
    monkeypatch.setattr(type(frame), "collect", rows)
    monkeypatch.setattr(type(spark.sparkContext), "cancelJobsWithTag", cancel)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            collect.collect_rows(frame)
    finally:
        signal.signal(signal.SIGINT, before)
    assert f"{NOT_CANCELLED}: ConnectionError: the JVM\\nis lost" in "\n".join(caplog.messages)


def test_an_error_of_the_job_is_raised_in_the_calling_thread(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="raised by the query"):
        collect.collect_rows(spark.sql("select raise_error('raised by the query')"))
    assert [row.id for row in collect.collect_rows(spark.range(2))] == [0, 1]


class RemoteFrame:
    """A DataFrame of Spark Connect, as far as `collected` uses it, and its session."""

    __module__ = "pyspark.sql.connect.dataframe"

    def __init__(self, error: BaseException | None) -> None:
        self.calls: list[str] = []
        self.sparkSession = self
        self._error = error
        self.interrupt_error: Exception | None = None

    def addTag(self, tag: str) -> None:
        self.calls.append("addTag")

    def removeTag(self, tag: str) -> None:
        self.calls.append("removeTag")

    def interruptTag(self, tag: str) -> None:
        self.calls.append("interruptTag")
        if self.interrupt_error is not None:
            raise self.interrupt_error

    def collect(self) -> list[Any]:
        if self._error is not None:
            raise self._error
        return ["row"]


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (None, ["addTag", "removeTag"]),
        (ValueError("of the job"), ["addTag", "removeTag"]),
        (KeyboardInterrupt(), ["addTag", "interruptTag", "removeTag"]),
    ],
)
def test_a_job_of_spark_connect_is_interrupted_by_its_tag(error: BaseException | None, calls: list[str]) -> None:
    frame: Any = RemoteFrame(error)
    if error is None:
        rows: list[Any] = collect.collect_rows(frame)
        assert rows == ["row"]
    else:
        with pytest.raises(type(error)):
            collect.collect_rows(frame)
    assert frame.calls == calls


def test_an_error_of_spark_connect_does_not_replace_the_interruption(caplog: pytest.LogCaptureFixture) -> None:
    frame: Any = RemoteFrame(KeyboardInterrupt())
    frame.interrupt_error = ConnectionError("the server is lost")
    with pytest.raises(KeyboardInterrupt):
        collect.collect_rows(frame)
    assert frame.calls == ["addTag", "interruptTag", "removeTag"]
    assert f"{NOT_CANCELLED}: ConnectionError: the server is lost" in "\n".join(caplog.messages)
