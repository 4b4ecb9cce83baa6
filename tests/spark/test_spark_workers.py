# SPDX-License-Identifier: Apache-2.0
"""Workers whose Python lacks kcodec or has another version: errors or docs/spark-operations.md name the remedy."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

import kcodec
from kcodec.client import Producer
from kcodec.spark.batch_readers import TopicReader
from kcodec.spark.stream_readers import TopicQuery, stream_reader
from kcodec.spark.topic_source import TopicSource
from kcodec.spark.workers import LOG_LEVEL, WORKER_VARIABLES, for_workers
from kcodec.spark.writers import batch_writer, stream_writer
from kcodec.testing.kafka import ApacheKafka

ROOT = Path(__file__).resolve().parent.parent.parent
VALUE = StructType([StructField("value", StringType())])


@pytest.fixture(scope="module")
def python_without_kcodec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with every package of this one but kcodec, which is installed by a link that only this one follows."""
    folder = tmp_path_factory.mktemp("python")
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "packages.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    return folder / "bin" / "python"


EXEMPT = """
import gc
from kcodec.spark.workers import prepare_worker
prepare_worker()
first = gc.get_freeze_count()
import wave
kept = [[] for _ in range(5000)]
prepare_worker()
second = gc.get_freeze_count()
more = [[] for _ in range(5000)]
prepare_worker()
print(first, second - first >= 5000, gc.get_freeze_count() - second < 5000)
"""


@pytest.mark.parametrize("variable", ["SPARK_PYTHON_RUNTIME", "PYTHON_WORKER_FACTORY_SECRET", None])
def test_workers_exempt_modules_from_gc(variable: str | None) -> None:
    """Only in processes that Spark has started, and again only after a module was loaded."""
    environment = {name: value for name, value in os.environ.items() if name not in WORKER_VARIABLES}
    command = [sys.executable, "-c", EXEMPT]
    ran = subprocess.run(
        command,
        env=environment | ({variable: "PYTHON_WORKER"} if variable else {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first, has_frozen_again, is_frozen_no_more = ran.stdout.split()
    assert (int(first) > 1000) == (variable is not None)
    assert (has_frozen_again, is_frozen_no_more) == (str(variable is not None), "True")


@pytest.fixture(scope="module")
def errors(
    java_home: Path, apache_kafka: ApacheKafka, python_without_kcodec: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """What calls raise where the workers have no kcodec."""
    topic = apache_kafka.create_topic()
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as producer:
        producer.send(topic, b"value")
    folder = tmp_path_factory.mktemp("spark")
    program = ROOT / "tests" / "support" / "spark_without_kcodec.py"
    command = [sys.executable, program, python_without_kcodec, apache_kafka.bootstrap_servers, topic, folder]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [str(part) for part in command],
        env=environment | {"JAVA_HOME": str(java_home), "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    found: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.mark.spark
@pytest.mark.parametrize("call", ["decode_in_arrow", "map_batches", "exactly_once"])
def test_a_worker_without_kcodec_names_its_python(
    call: str, errors: dict[str, str], python_without_kcodec: Path
) -> None:
    text = errors[call]
    assert f"kcodec cannot be imported by {python_without_kcodec}, the Python of Spark's workers" in text
    assert f"The driver runs {sys.executable}" in text
    assert "set PYSPARK_PYTHON to a Python that has it before the session starts" in text


@pytest.mark.spark
def test_the_docs_have_the_error_of_a_missing_source(errors: dict[str, str]) -> None:
    """It is Spark's own, and Spark does not call anything of kcodec's before it."""
    (text,) = re.findall(r"\[DATA_SOURCE_NOT_FOUND\] Failed to find the data source: kcodec\.", errors["load"])
    assert text in (ROOT / "docs" / "spark-operations.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    assert "PYSPARK_PYTHON" in page.partition("```python")[2].partition("```")[0]


def lengths(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch([[batch.num_rows]], names=["rows"])


def test_a_worker_with_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = for_workers(lengths)
    batch = pa.record_batch([[1, 2]], names=["value"])
    assert [each.to_pylist() for each in shipped(iter([batch]))] == [[{"rows": 2}]]
    driver_version = kcodec.__version__
    monkeypatch.setattr(kcodec, "__version__", "0.0.1")
    with pytest.raises(
        RuntimeError, match=f"have kcodec 0.0.1 of .*, but the driver has kcodec {re.escape(driver_version)} of "
    ):
        shipped(iter([batch]))


READERS_AND_WRITERS = [
    lambda: TopicReader(TopicSource.of({"kafka.bootstrap.servers": "localhost:1", "subscribe": "orders"})),
    lambda: stream_reader(TopicQuery(TopicSource.of({"bootstrap_servers": "localhost:1", "subscribe": "orders"}))),
    lambda: batch_writer({"kafka.bootstrap.servers": "localhost:1", "topic": "orders"}, VALUE, overwrite=False),
    lambda: stream_writer({"kafka.bootstrap.servers": "localhost:1", "topic": "orders"}, VALUE),
]


@pytest.mark.parametrize("make", READERS_AND_WRITERS, ids=["reader", "stream reader", "writer", "stream writer"])
def test_tasks_of_the_data_source_refuse_another_version(
    make: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The classes and options of another version may be different, which tasks must not ignore."""
    sent = make()
    pickled = pickle.dumps(sent)
    assert type(pickle.loads(pickled)) is type(sent)
    driver_version = kcodec.__version__
    monkeypatch.setattr(kcodec, "__version__", "0.0.1")
    with pytest.raises(
        RuntimeError, match=f"have kcodec 0.0.1 of .*, but the driver has kcodec {re.escape(driver_version)} of "
    ):
        pickle.loads(pickled)


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"SPARK_PYTHON_RUNTIME": "x", "KCODEC_LOG_LEVEL": "info"}, "INFO kcodec.spark: a line\n"),
        ({"SPARK_PYTHON_RUNTIME": "x", "KCODEC_LOG_LEVEL": "WARNING"}, ""),
        ({"SPARK_PYTHON_RUNTIME": "x"}, ""),
        ({"KCODEC_LOG_LEVEL": "INFO"}, ""),  # the program of a user, which configures its logging
    ],
)
def test_the_log_level_of_workers(variables: dict[str, str], text: str) -> None:
    ran = run_prepared(variables)
    assert ran.returncode == 0
    assert ran.stderr.endswith(text)
    assert ran.stderr.count("a line") == bool(text)


def test_an_unknown_log_level_is_an_error() -> None:
    ran = run_prepared({"SPARK_PYTHON_RUNTIME": "x", "KCODEC_LOG_LEVEL": "loud"})
    assert "KCODEC_LOG_LEVEL is 'loud': expected one of DEBUG, INFO" in ran.stderr


def run_prepared(variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a process that logs a line after it has been prepared twice, as a reused worker is."""
    program = (
        "import logging\nfrom kcodec.spark.workers import prepare_worker\n"
        "prepare_worker()\nprepare_worker()\nlogging.getLogger('kcodec.spark').info('a line')"
    )
    environment = {name: value for name, value in os.environ.items() if name not in {LOG_LEVEL, *WORKER_VARIABLES}}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment | variables, capture_output=True, text=True, check=False
    )


def test_what_is_sent_is_unpickled_without_kcodec() -> None:
    from pyspark import cloudpickle

    pickled = cloudpickle.dumps(for_workers(lengths))  # type: ignore[no-untyped-call]
    program = (
        "import sys, pickle; sys.modules['kcodec'] = None; function = pickle.loads(bytes.fromhex(sys.stdin.read()))\n"
        "try: function(iter(()))\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", program], input=pickled.hex(), capture_output=True, text=True)
    assert "kcodec cannot be imported by" in ran.stdout, ran.stderr
