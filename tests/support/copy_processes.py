# SPDX-License-Identifier: Apache-2.0
"""The processes of a copy: workers that may be killed at any time and are restarted, and readers."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from java_judge import JVM_OPTIONS, class_path, compile_judge, java_and_jars

HERE = Path(__file__).resolve().parent.parent
WORKER = HERE / "support" / "copy_worker.py"
TOOLS = HERE.parent / ".cache" / "kafka-tools"
END_SECONDS = 40.0
LINES_KEPT = 30

Found = dict[int, list[tuple[int, str]]]  # partition -> (offset, value) in the order they came


class Worker:
    """A copier and its output. `command` is called at each start with the number of the start."""

    def __init__(self, name: str, command: Callable[[int], Sequence[str]], log: Path) -> None:
        self.name = name
        self.lives = 0
        self.said: Counter[str] = Counter()
        self.records: Counter[str] = Counter()
        self.errors: list[str] = []
        self._command = command
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        """Start the process again."""
        self.lives += 1
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command(self.lives), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped by SIGSTOP."""
        if self._process is None:
            return False
        state = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        return state == "T"

    @property
    def has_failed(self) -> bool:
        """Return whether the process failed. Kafka's tool may end, for example if it is fenced, and is started
        again."""
        code = None if self._process is None else self._process.poll()
        return self._takes_end and code not in (None, 0, -signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send it a signal; SIGKILL is waited for."""
        assert self._process is not None
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()

    def end(self) -> None:
        """Close its input, then send SIGTERM, which ends Kafka's tool, then SIGKILL, and read its output."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS if self._takes_end else 0.1)
                break
            if self._takes_end:
                self.errors.append(f"{self.name} did not end within {END_SECONDS:g} s of the end of its input")
            process.send_signal(number)
        process.wait(END_SECONDS)
        assert self._reader is not None
        self._reader.join(5)

    @property
    def _takes_end(self) -> bool:
        """Return whether the process ends at the end of its input."""
        return str(self._command(self.lives)[0]) == sys.executable

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                word, _, rest = line.strip().partition(" ")
                if word == "error":
                    self.errors = [*self.errors[-LINES_KEPT:], rest]
                    word = f"error {rest.partition(' ')[0]}"
                elif rest.isdigit():
                    self.records[word] += int(rest)
                if not word.startswith("{"):  # as every line of Kafka's tool does
                    self.said[word] += 1


class Reader:
    """A read_committed reader during the copy: `found` grows as it reads; `values` are those it has seen."""

    def __init__(self, name: str, command: Sequence[str], partitions: int, log: Path) -> None:
        self.name = name
        self.found: Found = {partition: [] for partition in range(partitions)}
        self.values: set[str] = set()
        self.is_done = False
        with log.open("a") as errors:
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let the reader read up to the current last stable offset. `is_done` becomes true when it is reached."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._thread.join(END_SECONDS)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._thread.join(5)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                if line == "done\n":
                    self.is_done = True
                else:
                    partition, offset, value = line.rstrip("\n").split("\t")
                    self.found[int(partition)].append((int(offset), value))
                    self.values.add(value)


def kcodec_reader(servers: str, topic: str, partitions: int, log: Path) -> Reader:
    """Start kcodec's Consumer in a separate process."""
    command = [sys.executable, str(HERE / "support" / "copy_reader.py"), servers, topic, str(partitions)]
    return Reader("kcodec", command, partitions, log)


def java_reader(servers: str, topic: str, partitions: int, log: Path) -> Reader:
    """Start Kafka's KafkaConsumer in a separate process."""
    java, libs = java_and_jars()
    command = [str(java), *JVM_OPTIONS, "-cp", f"{compile_judge()}:{class_path(libs)}", "kcodec.clients.TopicReader"]
    return Reader("Java", [*command, servers, topic, str(partitions)], partitions, log)


def session_command(options: Mapping[str, object]) -> list[str]:
    """tests/support/copy_worker.py with these options."""
    return [sys.executable, str(WORKER), *(str(part) for pair in options.items() for part in pair)]


def java_copier_command(
    servers: str, source: str, target: str, group: str, transactional_id: str, size: int, *, aborts: bool
) -> list[str]:
    """Kafka's TransactionalMessageCopier as a member of the group, with the generation in its commits (KIP-447)."""
    java, _ = java_and_jars()
    if not (TOOLS / "complete.txt").is_file():
        raise FileNotFoundError(f"Kafka's tools are not in {TOOLS}: run `make jars`")
    command = [str(java), *JVM_OPTIONS, "-cp", str(TOOLS / "*"), "org.apache.kafka.tools.TransactionalMessageCopier"]
    command += ["--broker-list", servers, "--input-topic", source, "--input-partition", "-1", "--output-topic", target]
    command += ["--consumer-group", group, "--transactional-id", transactional_id, "--transaction-size", str(size)]
    command += ["--transaction-timeout", "20000", "--group-mode", "--use-group-metadata"]
    return command + ["--enable-random-aborts"] * aborts


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition is true. Return False if it is not true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
