# SPDX-License-Identifier: Apache-2.0
"""Run a reader on the topics of the kit, within a timeout, and compare its rows with the expected rows.

A reader is a function, or a command, which is a list of arguments. A function runs in a daemon thread; a function that
does not end in time keeps that thread. A command runs in a process group, which is killed if it does not end in time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from kcodec.testing.bounded_reads.rows import ISOLATION_LEVELS, Reached, Row, parsed
from kcodec.testing.bounded_reads.topics import BoundedTopic

__all__ = ["TIMEOUT_SECONDS", "Command", "Reader", "Result", "check", "check_one"]

TIMEOUT_SECONDS = 15.0

#: (bootstrap_servers, topic, isolation_level) -> rows, as tuples (partition, offset, key, value), and perhaps Reached.
Reader = Callable[[str, str, str], Iterable[Any]]
#: Arguments of a program, with the placeholders {bootstrap_servers}, {topic} and {isolation_level}.
Command = Sequence[str]


@dataclass(frozen=True)
class Result:
    """What a reader did on one topic with one isolation level.

    reader, case, isolation_level: What was checked.
    expected: Number of expected rows.
    missing: Expected rows that the reader did not return.
    extra: Rows that the reader returned and that were not expected, such as duplicates.
    is_unordered: True if the offsets of a partition were not in ascending order.
    is_hanging: True if the reader did not end within the timeout.
    wrong_positions: Positions that the reader reported and that are not the end: partition -> position.
    lags: Lags that the reader reported and that are not 0: partition -> lag.
    error: The error that the reader raised, or with which its process ended; "" for none.
    seconds: How long the reader ran.
    """

    reader: str
    case: str
    isolation_level: str
    expected: int
    missing: tuple[Row, ...] = ()
    extra: tuple[Row, ...] = ()
    is_unordered: bool = False
    is_hanging: bool = False
    wrong_positions: Mapping[int, int] = field(default_factory=dict)
    lags: Mapping[int, int] = field(default_factory=dict)
    error: str = ""
    seconds: float = 0.0

    @property
    def outcome(self) -> str:
        """The result as a short text; "ok" if the reader returned the expected rows and ended."""
        found = ["hangs"] if self.is_hanging else []
        found += ["error"] if self.error else []
        found += [f"{len(self.missing)} missing"] if self.missing else []
        found += [f"{len(self.extra)} extra"] if self.extra else []
        found += ["out of order"] if self.is_unordered else []
        found += ["position " + _sum(self.wrong_positions)] if self.wrong_positions else []
        found += ["lag " + _sum(self.lags)] if self.lags else []
        return ", ".join(found) or "ok"

    @property
    def is_ok(self) -> bool:
        """True if `outcome` is "ok"."""
        return self.outcome == "ok"


def check(
    readers: Mapping[str, Reader | Command],
    bootstrap_servers: str,
    topics: Iterable[BoundedTopic],
    *,
    isolation_levels: Iterable[str] = ISOLATION_LEVELS,
    timeout: float = TIMEOUT_SECONDS,
    jobs: int = 1,
) -> list[Result]:
    """Check readers on topics, and return a result for each reader, topic and isolation level.

    readers: Name -> function or command.
    bootstrap_servers: The cluster of the topics, as host:port; each reader gets it.
    topics: From `bounded_topics`.
    isolation_levels: "read_committed", "read_uncommitted" or both.
    timeout: Seconds after which a reader that has not ended counts as hanging.
    jobs: Number of checks that run at the same time.

    Raise ValueError for an invalid argument. Errors of readers are in the results.
    """
    if not timeout > 0 or jobs < 1:
        raise ValueError(f"timeout must be above 0 s and jobs at least 1, got {timeout} and {jobs}")
    levels = tuple(isolation_levels)
    given = list(topics)
    with ThreadPoolExecutor(jobs) as pool:
        started = [
            pool.submit(check_one, name, reader, bootstrap_servers, topic, level, timeout)
            for name, reader in readers.items()
            for topic in given
            for level in levels
        ]
        try:
            return [one.result() for one in started]
        except BaseException:  # Ctrl-C: the running checks end within their timeout, the others do not begin
            pool.shutdown(cancel_futures=True)
            raise


def check_one(
    name: str,
    reader: Reader | Command,
    bootstrap_servers: str,
    topic: BoundedTopic,
    isolation_level: str,
    timeout: float = TIMEOUT_SECONDS,
) -> Result:
    """Run one reader on one topic, and return its result.

    name: Name of the reader in the result.
    reader: Function or command.
    bootstrap_servers: The cluster of the topic, as host:port.
    topic: From `bounded_topics`.
    isolation_level: "read_committed" or "read_uncommitted".
    timeout: Seconds after which a reader that has not ended counts as hanging.

    Raise ValueError for an unknown isolation level.
    """
    if isolation_level not in ISOLATION_LEVELS:
        raise ValueError(f"isolation_level must be one of {', '.join(ISOLATION_LEVELS)}, got {isolation_level!r}")
    run = _FunctionRun(reader) if callable(reader) else _CommandRun(reader)
    begun = time.monotonic()
    is_hanging = not run.ended_within(timeout, bootstrap_servers, topic.topic, isolation_level)
    seconds = time.monotonic() - begun
    items = list(run.items)
    rows = [item for item in items if isinstance(item, Row)]
    expected, found = Counter(topic.rows[isolation_level]), Counter(rows)
    order = [(row.partition, row.offset) for row in rows]
    by_partition = [[offset for number, offset in order if number == each] for each in {number for number, _ in order}]
    ends = topic.ends[isolation_level]
    reached = [item for item in items if isinstance(item, Reached)]
    return Result(
        reader=name,
        case=topic.case,
        isolation_level=isolation_level,
        expected=expected.total(),
        missing=tuple(sorted((expected - found).elements())),
        extra=tuple((found - expected).elements()),
        is_unordered=any(offsets != sorted(offsets) for offsets in by_partition),
        is_hanging=is_hanging,
        wrong_positions={
            item.partition: item.position
            for item in reached
            if item.position is not None and item.position != ends.get(item.partition)
        },
        lags={item.partition: item.lag for item in reached if item.lag},
        error=run.error,
        seconds=seconds,
    )


class _FunctionRun:
    """A function that runs in a daemon thread."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.items: list[Row | Reached] = []
        self.error = ""

    def ended_within(self, timeout: float, *arguments: str) -> bool:
        """Run it. Return whether it ended in time."""
        thread = threading.Thread(target=self._run, args=arguments, daemon=True, name="bounded-read")
        thread.start()
        thread.join(timeout)
        return not thread.is_alive()

    def _run(self, *arguments: str) -> None:
        try:
            for item in self._reader(*arguments):
                self.items.append(item if isinstance(item, Reached) else Row(*item))
        except BaseException as error:  # noqa: BLE001  the reader may raise anything, and the result names it
            self.error = f"{type(error).__name__}: {error}"


class _CommandRun:
    """A command that runs in a process group and prints lines of JSON."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self.items: list[Row | Reached] = []
        self.error = ""

    def ended_within(self, timeout: float, bootstrap_servers: str, topic: str, isolation_level: str) -> bool:
        """Run it. Return whether it ended in time."""
        places = {
            "{bootstrap_servers}": bootstrap_servers,
            "{topic}": topic,
            "{isolation_level}": isolation_level,
        }
        arguments = list(self._command)
        for place, value in places.items():
            arguments = [argument.replace(place, value) for argument in arguments]
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            try:
                process = subprocess.Popen(
                    arguments, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
                )
            except OSError as error:
                self.error = f"{type(error).__name__}: {error}"
                return True
            reading = threading.Thread(target=self._read, args=(process,), daemon=True)
            reading.start()
            has_ended = True
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                has_ended = False
            finally:
                # Also after the end of the process: it may have left processes that hold its output open.
                _kill_group(process)
            reading.join()
            if has_ended and process.returncode and not self.error:
                errors.seek(0)
                last = [line.strip() for line in errors if line.strip()][-1:]
                self.error = ": ".join([f"exit status {process.returncode}", *last])
        return has_ended

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                try:
                    self.items.append(parsed(line))
                except ValueError as error:
                    self.error = self.error or str(error)


def _kill_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):  # all of its processes have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _sum(values: Mapping[int, int]) -> str:
    """Return one value, or the values by partition."""
    if len(values) == 1:
        return str(*values.values())
    return " ".join(f"{number}:{value}" for number, value in sorted(values.items()))
