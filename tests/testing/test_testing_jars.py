# SPDX-License-Identifier: Apache-2.0
"""kcodec.testing.jars: where jars are kept, what a folder of them must hold, and what is said when none can be had."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from kcodec.testing import jar_checksums, jars, java

ROOT = Path(__file__).resolve().parent.parent.parent
ONE = (("org.example", "one", "1.0"),)
TWO = (*ONE, ("org.example", "two", "2.0"))

# A java that does what Ivy is asked for: it puts a jar of each dependency where the pattern says.
FAKE_JAVA = """#!/bin/sh
[ "$1" = -version ] && { echo 'openjdk version "17.0.1"' >&2; exit 0; }
echo "$@" >> {calls}
[ -e {fails} ] && { rm {fails}; echo "java.net.UnknownHostException: nowhere"; exit 1; }
while [ $# -gt 0 ]; do
  [ "$1" = -ivy ] && module=$2
  [ "$1" = -retrieve ] && pattern=$2
  shift
done
sed -n 's/.*name="\\(.*\\)" rev="\\([^"]*\\)".*/\\1-\\2.jar/p' "$module" | while read name; do
  touch "$(dirname "$pattern")/$name"
done
"""


@pytest.fixture
def ivy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the file calls, and with the file fails if the next call is to fail."""
    script = tmp_path / "java"
    text = FAKE_JAVA.replace("{calls}", str(tmp_path / "calls")).replace("{fails}", str(tmp_path / "fails"))
    script.write_text(text)
    script.chmod(0o755)
    monkeypatch.setattr(java, "java_candidates", lambda: iter([script]))
    monkeypatch.setattr(jars, "find_ivy", lambda: Path("ivy.jar"))
    monkeypatch.setattr(jars, "PAUSE_SECONDS", 0.0)
    empty = hashlib.sha256(b"").hexdigest()  # which the fake jars are
    names = ("kafka_2.13-3.9.1.jar", "slf4j-simple-1.7.36.jar", "ecj-1.jar")
    monkeypatch.setattr(jar_checksums, "SHA256", dict.fromkeys(names, empty))
    monkeypatch.setenv("KCODEC_CACHE", str(tmp_path / "cache"))
    return tmp_path


def calls(ivy: Path) -> int:
    path = ivy / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_folder_is_filled_once_and_again_when_more_is_wanted(ivy: Path) -> None:
    libs = ivy / "cache" / "libs"
    jars.fetch(libs, ONE)
    jars.fetch(libs, ONE)
    assert sorted(path.name for path in libs.iterdir()) == ["complete.txt", "one-1.0.jar"]
    assert calls(ivy) == 1
    jars.fetch(libs, TWO)
    assert {"one-1.0.jar", "two-2.0.jar"} < {path.name for path in libs.iterdir()}
    assert jars.is_complete(libs, ONE)
    assert not jars.is_complete(libs, (("org.example", "one", "1.1"),))


def test_a_failure_is_tried_again_with_the_certificates_of_the_machine(ivy: Path) -> None:
    (ivy / "fails").touch()
    jars.fetch(ivy / "cache" / "libs", ONE)
    first, second = (ivy / "calls").read_text().splitlines()
    assert "trustStore" not in first
    assert ("trustStore" in second) == bool(jars.machine_certificates())


def test_the_last_failure_says_what_and_why(ivy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (ivy / "fails").touch()
    monkeypatch.setattr(jars, "ATTEMPTS", 1)
    with pytest.raises(java.MissingTool, match=r"org\.example:one:1\.0 could not be fetched.*UnknownHostException"):
        jars.fetch(ivy / "cache" / "libs", ONE)
    assert not (ivy / "cache" / "libs").exists()


def test_a_broker_is_its_jars_and_its_logging_without_a_compiler(ivy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (ivy / "cache").mkdir()
    found = jars.broker_jars("3.9.1")
    assert [path.name for path in found] == ["kafka_2.13-3.9.1.jar", "slf4j-simple-1.7.36.jar"]
    assert "fetching org.apache.kafka:kafka_2.13:3.9.1" in capsys.readouterr().err
    (jars.broker_libs("3.9.1") / "ecj-1.jar").touch()
    assert jars.broker_jars("3.9.1") == found
    assert calls(ivy) == 2


def test_without_pyspark_it_is_said_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    with pytest.raises(java.MissingTool, match=r"install the package pyspark"):
        jars.find_ivy()


def test_the_cache_is_the_checkouts_or_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KCODEC_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert java.cache_directory() == ROOT / ".cache"
    monkeypatch.setattr(java, "__file__", str(tmp_path / "site-packages" / "kcodec" / "testing" / "java.py"))
    assert java.cache_directory() == tmp_path / ".cache" / "kcodec"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert java.cache_directory() == tmp_path / "xdg" / "kcodec"
    monkeypatch.setenv("KCODEC_CACHE", str(tmp_path / "mine"))
    assert java.cache_directory() == tmp_path / "mine"


def test_a_jar_with_another_checksum_is_refused(ivy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server's own checksum file cannot show: both come from the same server."""
    monkeypatch.setitem(jar_checksums.SHA256, "kafka_2.13-3.9.1.jar", "0" * 64)
    with pytest.raises(jars.ChecksumMismatch, match=r"3\.9\.1\.jar: expected SHA-256 0{64}, found e3b0c442"):
        jars.broker_jars("3.9.1")
    assert not jars.broker_libs("3.9.1").exists()


def test_a_cached_jar_with_another_checksum_is_refused(ivy: Path) -> None:
    (ivy / "cache").mkdir()
    jars.fetch(jars.broker_libs("3.9.1"), jars.broker_artifacts("3.9.1"))
    (jars.broker_libs("3.9.1") / "kafka_2.13-3.9.1.jar").write_bytes(b"other")
    with pytest.raises(jars.ChecksumMismatch, match="expected SHA-256 e3b0c442"):
        jars.broker_jars("3.9.1")


def test_a_jar_without_a_checksum_is_refused_in_a_supported_version(ivy: Path) -> None:
    (ivy / "cache").mkdir()
    jars.fetch(jars.broker_libs("3.9.1"), jars.broker_artifacts("3.9.1"))
    (jars.broker_libs("3.9.1") / "stranger-1.jar").touch()
    with pytest.raises(jars.ChecksumMismatch, match=r"stranger-1\.jar: no checksum of this jar is recorded"):
        jars.broker_jars("3.9.1")


def test_other_versions_say_that_their_jars_have_no_checksums(ivy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jars.fetch(ivy / "cache" / "libs", ONE)
    reported = capsys.readouterr().err
    assert "1 jars of org.example:one:1.0 are checked against the checksums of their server only" in reported


def test_every_supported_version_has_checksums() -> None:
    """Of the brokers that tests start, their logging and Kafka's tools: 64 hexadecimal digits for each jar."""
    for version in jars.TESTED_VERSIONS:
        assert {":".join(one) for one in (*jars.broker_artifacts(version), *jars.LOGGING)} <= jar_checksums.ARTIFACTS
        assert f"kafka-clients-{version}.jar" in jar_checksums.SHA256
    assert len(jar_checksums.SHA256) > 100
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in jar_checksums.SHA256.values())
