# SPDX-License-Identifier: Apache-2.0
"""What all tests share: how long hypothesis searches, which Python and Java Spark takes, one Spark for the run."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from hypothesis.database import DirectoryBasedExampleDatabase
from spark_classes import ensure_archive, use_options

from kcodec.testing.jars import KAFKA_VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from transaction_cluster import TransactionCluster

ROOT = Path(__file__).resolve().parent.parent
pytest_plugins = [
    "kcodec.testing.pytest_plugin",
    "adapter_fixtures",
    "client_runners",
    "embedded_kafka",
    "guarded_kafka",
    "parallel_tests",
    "pickled_functions",
    "postgres_server",
    "producer_apis",
    "quick_tests",
    "pytester",
]
# Programs and files for other tools live below these; pytest must not import them in search of doctests.
collect_ignore = ["fuzz", "java", "lint", "typing", "golden", "support/spark_daemon"]

SHARED = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
EXAMPLES = DirectoryBasedExampleDatabase(ROOT / ".cache" / "hypothesis")
hypothesis.settings.register_profile("short", SHARED, max_examples=100, derandomize=True, database=None)
hypothesis.settings.register_profile("long", SHARED, max_examples=5000, print_blob=True, database=EXAMPLES)
hypothesis.settings.load_profile(os.environ.get("KCODEC_PROFILE", "short"))

# A shell starts a background command with SIGINT ignored, and the programs of tests would inherit this from pytest.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Spark's workers would otherwise be the first python3 on PATH, which lacks everything.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
use_options()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Create the archive of Spark's classes before the first test that starts a Spark."""
    if item.get_closest_marker("spark") or "spark" in getattr(item, "fixturenames", ()):
        find_java_home()
        ensure_archive()
        use_options()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt the collected tests and all modules from garbage collection.

    They are 700,000 objects, which live until the end. With them, each `gc.collect()` of a test takes 0.4 s.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With another Kafka than the newest, keep the tests that run on the shared broker, or start one."""
    if config.getoption("--kafka-version") == KAFKA_VERSION:
        return
    brokers = {"apache_kafka", "apache_kafka_factory"}
    kept = [item for item in items if brokers & set(getattr(item, "fixturenames", ()))]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


@pytest.fixture(scope="session")
def java_home() -> Path:
    """The JAVA_HOME that `make java` brings about, made here if pytest was started by hand; else $KCODEC_JAVA_HOME."""
    return find_java_home()


@cache
def find_java_home() -> Path:
    """Return what the fixture java_home returns, and set JAVA_HOME."""
    if "KCODEC_JAVA_HOME" in os.environ:
        os.environ["JAVA_HOME"] = os.environ["KCODEC_JAVA_HOME"]
        return Path(os.environ["JAVA_HOME"])
    target = ROOT / ".cache" / "java"
    script, requirements = ROOT / "tools" / "java_home.py", ROOT / "requirements" / "java.txt"
    subprocess.run([sys.executable, script, target, "--pip", requirements], check=True)
    os.environ["JAVA_HOME"] = str(target)
    return target


@pytest.fixture(scope="session")
def spark(java_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark on local[2], bound to the loopback interface, its files in the temporary folder of the run."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("kcodec tests")
    for name, value in options.items():
        builder = builder.config(name, value)
    with pytest.MonkeyPatch.context() as patch:
        # Behind Spark's own jars: see spark_classes.
        patch.setenv("SPARK_DIST_CLASSPATH", str(ROOT / ".cache" / "spark-kafka" / "*"))
        # Its Python workers begin with the imports that all of them need.
        patch.setenv("PYTHONPATH", str(ROOT / "tests" / "support" / "spark_daemon"), prepend=os.pathsep)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


# Kafka and the level of transaction.version. Level 1 is spoken to as level 0 is: it is asked in the long form, and
# where a test names it.
TRANSACTION_CLUSTERS = [(KAFKA_VERSION, 2), ("3.9.1", 0)]
if os.environ.get("KCODEC_PROFILE", "short") == "long":
    TRANSACTION_CLUSTERS += [(KAFKA_VERSION, 0), (KAFKA_VERSION, 1), ("4.3.1", 2)]


@pytest.fixture(scope="session", params=TRANSACTION_CLUSTERS, ids=lambda kind: f"{kind[0]}-version{kind[1]}")
def transaction_cluster(request: pytest.FixtureRequest) -> Iterator[TransactionCluster]:
    """A broker of each kind that speaks transactions otherwise, and a proxy before it; one after the other."""
    from transaction_cluster import TransactionCluster

    version, transaction_version = request.param
    with TransactionCluster(version, transaction_version) as cluster:
        yield cluster
