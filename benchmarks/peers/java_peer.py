# SPDX-License-Identifier: Apache-2.0
"""Java as a peer: FetchWorker.java compiled against Kafka's jars.

Kafka's jars and the Eclipse compiler come from tools/fetch_kafka_jars.py (`make jars`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from peers.worker import Worker

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = Path(__file__).resolve().parent / "java"
LIBS = ROOT / ".cache" / "kafka-libs"
CLASSES = ROOT / ".cache" / "bench" / "java"
MAIN = "org.apache.kafka.clients.consumer.internals.FetchWorker"
# A heap that never has to grow and the collector with the least cost on one thread.
FLAGS = ("-Xms2g", "-Xmx2g", "-XX:+UseSerialGC")


def java() -> Path:
    """The Java that tests use as well."""
    sys.path.insert(0, str(ROOT / "tools"))
    import fetch_kafka_jars

    return fetch_kafka_jars.find_java()


def fetch_jars() -> None:
    """Kafka's jars into the cache, unless they are there."""
    subprocess.run([sys.executable, str(ROOT / "tools" / "fetch_kafka_jars.py")], check=True)


def compile_worker() -> None:
    """The worker's classes, compiled again when the source is newer."""
    fetch_jars()
    sources = sorted(SOURCES.rglob("*.java"))
    built = CLASSES.joinpath(*MAIN.split(".")).with_suffix(".class")
    if built.is_file() and built.stat().st_mtime >= max(source.stat().st_mtime for source in sources):
        return
    (compiler,) = LIBS.glob("ecj-*.jar")
    command = [
        str(java()),
        "-jar",
        str(compiler),
        "-17",
        "-nowarn",
        "-cp",
        f"{LIBS}/*",
        "-d",
        str(CLASSES),
        *map(str, sources),
    ]
    command[command.index("-cp") + 1] = os.pathsep.join(str(jar) for jar in sorted(LIBS.glob("*.jar")))
    subprocess.run(command, check=True)


def version() -> dict[str, str]:
    """The versions of Java and of Kafka's clients."""
    version_text = subprocess.run([str(java()), "-version"], capture_output=True, text=True, check=True).stderr
    (jar,) = LIBS.glob("kafka-clients-*.jar")
    return {"java": version_text.splitlines()[0], "kafka-clients": jar.stem.removeprefix("kafka-clients-")}


def worker() -> Worker:
    """A JVM that answers."""
    compile_worker()
    return Worker("Java CompletedFetch", [str(java()), *FLAGS, "-cp", f"{CLASSES}{os.pathsep}{LIBS}/*", MAIN])


def make_batches(plain: bytes, codec: str, target: Path) -> None:
    """The batches of `plain` built again by MemoryRecordsBuilder in a codec, into the file `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    builder = worker()
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        source, fresh = Path(scratch, "plain"), Path(scratch, "built")
        source.write_bytes(plain)
        builder.ask("build", codec, str(source), str(fresh))
        fresh.replace(target)
    builder.close()
