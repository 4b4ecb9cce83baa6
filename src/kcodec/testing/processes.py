# SPDX-License-Identifier: Apache-2.0
"""Processes that end with the process that started them, and processes of an earlier run, identified by their ids.

A broker must not outlive a test run that was killed. The kernel could ensure this (PR_SET_PDEATHSIG), but only on
Linux, and only for the thread that started the process. A small child process therefore reads from a pipe of this
process. The pipe ends whenever this process ends. The child process then kills the remaining processes and removes
their folders.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

__all__ = ["WATCHDOG", "Process", "Watchdog"]

POLL_SECONDS = 0.02

# The child: each line is "+pid", "-pid", "+/folder" or "-/folder".
GUARD = """
import os, shutil, signal, sys
kept = {}
for line in sys.stdin:
    what = line[1:].rstrip("\\n")
    if line[0] == "+":
        kept[what] = True
    else:
        kept.pop(what, None)
for what in kept:
    if what.isdigit():
        try:
            os.kill(int(what), signal.SIGKILL)
        except OSError:
            pass
for what in kept:
    if not what.isdigit():
        shutil.rmtree(what, ignore_errors=True)
"""


class Watchdog:
    """Kills the registered processes and removes the registered folders if this process ends without doing so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guard: subprocess.Popen[str] | None = None
        self._owner = 0

    def watch(self, what: int | Path) -> None:
        """Register a process id or a folder, to be removed with this process."""
        self._send(f"+{what}\n")

    def forget(self, what: int | Path) -> None:
        """Remove a registration."""
        self._send(f"-{what}\n")

    def _send(self, line: str) -> None:
        with self._lock:
            if self._guard is None or self._owner != os.getpid():
                # Its own session: a Ctrl-C at the terminal must not end it before us.
                self._guard = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", GUARD],
                    stdin=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
                self._owner = os.getpid()
            assert self._guard.stdin is not None
            self._guard.stdin.write(line)
            self._guard.stdin.flush()


WATCHDOG = Watchdog()


class Process:
    """A running program: a child of this process, or one that an earlier process left running.

    Of the latter, only the id is known, and ids are reused. It counts as the same program only while `mark`, a unique
    path, is in its command line.
    """

    def __init__(self, pid: int, mark: str, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self._mark = mark
        self._child = child

    def is_running(self) -> bool:
        """Return whether it has not ended. A stopped process (SIGSTOP) is running."""
        if self._child is not None:
            return self._child.poll() is None
        return self._mark in command_line_of(self.pid)

    @property
    def exit_status(self) -> int | None:
        """The exit status of a child that has ended, negative for a signal; None if it is running or unknown."""
        return None if self._child is None else self._child.poll()

    def send(self, number: int) -> None:
        """Send a signal, which has no effect if the process has ended."""
        if self._child is not None:
            self._child.send_signal(number)
        elif self.is_running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout: float) -> bool:
        """Wait at most this number of seconds. Return whether it has ended."""
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout)
                return True
            return False
        deadline = time.monotonic() + timeout
        while self.is_running():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def wait_paused(self, timeout: float = 2.0) -> None:
        """After SIGSTOP, wait until every thread is stopped, if /proc shows that; a signal takes some time."""
        tasks = Path("/proc", str(self.pid), "task")
        deadline = time.monotonic() + timeout
        while tasks.is_dir() and time.monotonic() < deadline:
            states = [_state_of(task) for task in tasks.iterdir()]
            if all(state in {"T", "t", "Z", "X", ""} for state in states):
                return
            time.sleep(0.001)

    def kill(self, timeout: float = 10.0) -> None:
        """Send SIGKILL, and wait until it has ended."""
        self.send(signal.SIGKILL)
        if not self.wait(timeout):
            raise TimeoutError(f"process {self.pid} did not end within {timeout} s of SIGKILL")


def _state_of(task: Path) -> str:
    """Return the letter of a thread's state from its folder in /proc; empty if the thread has ended."""
    try:
        return (task / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def command_line_of(pid: int) -> str:
    """Return the command line of any process; empty if none exists, or it is a zombie."""
    place = Path("/proc", str(pid), "cmdline")
    if place.parent.parent.joinpath("self").exists():
        with contextlib.suppress(OSError):
            return place.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        return ""
    if shutil.which("ps") is None:
        raise OSError("neither /proc nor the program ps exists: processes of an earlier run cannot be identified")
    done = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip()
