# SPDX-License-Identifier: Apache-2.0
"""librdkafka for tools/peer_client_tests.py: its own test program, compiled in a temporary folder.

The checkout must be that of a release. gcc, g++, make and the headers of OpenSSL and zlib are required, and Kafka's
command-line tools (`make jars`), because some tests run kafka-acls.sh. Two kinds of tests are not run: those that need
no broker (flag TEST_F_LOCAL), and those that need a broker without automatic creation of topics (scenario
noautocreate).

Three replicas become one, because there is one broker. In 0081-admin.c, statements that change the configuration of a
broker are left out, because the configuration of the embedded broker is fixed when it starts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer_clients import FAILED, KAFKA_VERSION, MESSAGE_LENGTH, PASSED, ROOT, SKIPPED, Result, Run

from kcodec.testing.java import find_java

TOOLS = ROOT / ".cache" / "kafka-tools"
#: Arguments of configure: no part of librdkafka that needs a further library.
FEATURES = ("--disable-curl", "--disable-gssapi", "--disable-zstd", "--disable-lz4-ext", "--enable-devel")
SHARE_GROUPS, MOCK = "needs share groups", "uses the mock broker of librdkafka"
#: Numbers of tests that are not run -> reason.
NOT_RUN: Mapping[str, str] = {
    "0038": "measures performance",
    "0052": "needs a Java program of the checkout",
    "0077": "needs compaction",
    "0098": "needs a Java program of the checkout",
    "0101": "needs several brokers",
    "0126": "needs an OpenID Connect provider",
    "0139": MOCK,
    "0150": MOCK,
    **{f"{number:04}": SHARE_GROUPS for number in range(170, 191)},
}
#: Tests that replace the functions for sockets. They close file descriptors that a test in another thread may own.
SOCKET_TESTS = ("0049", "0068", "0075", "0076", "0088", "0094")
#: Long tests that may exceed their time limits. This ends the process, so other tests do not run in it.
LONG_TESTS = ("0113",)
#: Number of tests that run at the same time. Most of them wait.
PARALLEL = 5
STATES = {"PASSED": PASSED, "FAILED": FAILED, "SKIPPED": SKIPPED}
_SKIPPING = re.compile(r"\[(\w+) *\/ *[\d.]+s\] WARN: SKIPPING TEST: (.*)")
_FAILING = re.compile(r'### Test "(\w+)[^"]*" failed at [^\n]*###\n([^\n]*)')
_FILTERED = "Filtered due to negative test flags"
#: Ends of the names of tests that need no broker.
_LOCAL = ("_local", "_mock")
_REPLICAS = re.compile(r"(create_topic\w*\([^;]*?), 3(, 5000)?\);")
_BROKER_CONFIGS = (
    (
        re.compile(r"(?<=if )\(test_broker_version >= TEST_BRKVER\(1, 1, 0, 0\)\)(?= \{\s+/\*\s+\* ConfigResource #1)"),
        "(0)",
    ),
    (re.compile(r"test_IncrementalAlterConfigs_simple\(\s*rk, RD_KAFKA_RESOURCE_BROKER,[^;]*;"), ";"),
)


@dataclass(frozen=True)
class LibrdkafkaPeer:
    """librdkafka: its test program takes the address of a broker from a file."""

    package: str = "librdkafka"
    facade: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def run(self, run: Run) -> list[Result]:
        """Compile and run the tests and return how each ended. Raise SystemExit if they could not be compiled."""
        if run.with_facade:
            raise SystemExit("librdkafka is written in C: kcodec cannot take the place of its client")
        if not TOOLS.is_dir():
            raise SystemExit("librdkafka: no command-line tools of Kafka; run make jars")
        with run.output.open("w", encoding="utf-8") as output:
            compiled = self._compile(run, output)
        if not compiled:
            raise SystemExit(f"librdkafka was not compiled:\n{run.output.read_text('utf-8', 'replace')[-3000:]}")
        _write_tools(run.folder / "kafka" / "bin")
        if run.select:
            return self._run_tests(run, f"-p{PARALLEL}", {"TESTS": run.select})
        apart = (*SOCKET_TESTS, *LONG_TESTS)
        results = self._run_tests(run, f"-p{PARALLEL}", {"TESTS_SKIP": ",".join((*NOT_RUN, *apart))})
        results = [one for one in results if one.test[:4] not in apart]
        for numbers in (SOCKET_TESTS, LONG_TESTS):
            results += self._run_tests(run, "-p1", {"TESTS": ",".join(numbers)})
        return results

    def _compile(self, run: Run, output: Any) -> bool:
        source = run.folder / "librdkafka"
        ignored = shutil.ignore_patterns(".git", "*.o", "*.so", "*.so.1", "*.a", "test-runner", "config.cache")
        shutil.copytree(run.checkout, source, symlinks=True, ignore=ignored)
        for path in [*(source / "tests").glob("0*.c"), *(source / "tests").glob("0*.cpp")]:
            text = path.read_text("utf-8")
            changed = _REPLICAS.sub(r"\1, 1\2);", text)
            for pattern, replacement in _BROKER_CONFIGS if path.name == "0081-admin.c" else ():
                changed, count = pattern.subn(replacement, changed)
                if not count:
                    raise SystemExit(f"{path.name} has no {pattern.pattern!r}: give a checkout of another release")
            if changed != text:
                path.write_text(changed, "utf-8")
        jobs = f"-j{os.cpu_count()}"
        commands = (["./configure", *FEATURES], ["make", jobs, "libs"], ["make", jobs, "-C", "tests", "build"])
        return all(
            subprocess.run(command, cwd=source, stdout=output, stderr=subprocess.STDOUT, check=False).returncode == 0
            for command in commands
        )

    def _run_tests(self, run: Run, parallel: str, selection: Mapping[str, str]) -> list[Result]:
        report, config = run.folder / "report.json", run.folder / "test.conf"
        report.unlink(missing_ok=True)
        config.write_text(f"bootstrap.servers={run.address}\nbroker.address.family=v4\ntest.timeout.multiplier=2\n")
        environment = {
            **os.environ,
            "BROKERS": run.address,
            "KAFKA_PATH": str(run.folder / "kafka"),
            "LD_LIBRARY_PATH": "../src:../src-cpp",
            "RDKAFKA_TEST_CONF": str(config),
            "TEST_CONSUMER_GROUP_PROTOCOL": run.group_protocol,
            "TEST_KAFKA_VERSION": KAFKA_VERSION,
            "TEST_REPORT": str(report),
            **selection,
        }
        start = run.output.stat().st_size
        with run.output.open("a", encoding="utf-8") as output:
            subprocess.run(
                ["./test-runner", "-L", parallel],
                cwd=run.folder / "librdkafka" / "tests",
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=run.timeout,
                check=False,
            )
        text = run.output.read_bytes()[start:].decode("utf-8", "replace")
        if not report.exists():
            raise SystemExit(f"no test of librdkafka ran to its end:\n{text[-3000:]}")
        return results_of(json.loads(report.read_text("utf-8"))["tests"].values(), text)


def results_of(tests: Iterable[Mapping[str, Any]], log: str) -> list[Result]:
    """Return how each test ended.

    tests: Of librdkafka's report. This also contains tests that were not selected, as skipped.
    log:   What the test program printed. It contains the reasons.
    """
    skipped = {name: reason for name, reason in _SKIPPING.findall(log) if reason != _FILTERED}
    failed: dict[str, str] = {}
    for name, message in _FAILING.findall(log):
        failed.setdefault(name, message)
    results = []
    for test in tests:
        name, status = test["name"], STATES.get(test["state"], FAILED)
        message = {PASSED: "", FAILED: failed.get(name, test["state"]), SKIPPED: skipped.get(name, "")}[status]
        if name == "<MAIN>" or (status == SKIPPED and not message):
            continue
        if status == SKIPPED:
            message = NOT_RUN.get(name[:4], message)
            if message == SHARE_GROUPS and name.endswith(_LOCAL):
                continue
        results.append(Result(name, status, message[:MESSAGE_LENGTH], test["duration"]))
    return results


def _write_tools(folder: Path) -> None:
    """Write the shell scripts of Kafka that the tests run."""
    folder.mkdir(parents=True)
    for script, name in (("kafka-acls.sh", "AclCommand"), ("kafka-topics.sh", "TopicCommand")):
        path = folder / script
        java = f"exec '{find_java()}' -Xmx96m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp '{TOOLS}/*'"
        path.write_text(f'#!/bin/sh\n{java} org.apache.kafka.tools.{name} "$@"\n', "utf-8")
        path.chmod(0o755)


# Their tests deny operations to User:*, so the user of the tests is no super user. The delay of the first rebalance is
# Kafka's default: tests with two consumers expect that both are in the first generation.
LIBRDKAFKA = LibrdkafkaPeer(
    settings={
        "default_partitions": 4,
        "group_initial_rebalance_delay_ms": 3_000,
        "authorizer": True,
        "allow_everyone_if_no_acl_found": True,
    }
)
