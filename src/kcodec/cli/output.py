# SPDX-License-Identifier: Apache-2.0
"""Output of a command: data to stdout in large chunks, messages and the progress bar to stderr, the exit status."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import sys
import time
from enum import IntEnum
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

PIECE_BYTES = 1 << 16
BAR_CHARACTERS = 30
# A bar appears after a second of work, and moves ten times a second.
BAR_AFTER_SECONDS = 1.0
BAR_SECONDS = 0.1


class ExitStatus(IntEnum):
    """The exit status. 0 to 2 are results of a command; the others are the shell's numbers for two signals."""

    OK = 0
    FINDINGS = 1  # something is wrong with the data: corruption, a finding of `check`
    ERROR = 2  # a wrong call, or a file that cannot be read at all
    INTERRUPTED = 130
    BROKEN_PIPE = 141


def text_of(error: Exception) -> str:
    """Return an error and its notes as one line. For an error of the operating system, name the file and the reason."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror.lower()}" if error.filename else error.strerror.lower()
    return "; ".join([text, *(" ".join(note.split()) for note in getattr(error, "__notes__", ()))])


class Output:
    """The output of a command. Tests can pass any two binary streams as stdout and stderr."""

    def __init__(self, stdout: IO[bytes] | None = None, stderr: IO[str] | None = None) -> None:
        self._stdout = stdout
        self._stderr = stderr
        self._waiting = bytearray()
        self._bar_is_shown = False

    @property
    def is_terminal(self) -> bool:
        """Whether stdout is a terminal."""
        return self._stdout is None and sys.stdout is not None and sys.stdout.isatty()

    @property
    def has_colour(self) -> bool:
        """Whether to use colors: only on a terminal that supports them, and not if NO_COLOR is set (no-color.org)."""
        return self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    @property
    def can_show_progress(self) -> bool:
        """Whether stderr is a terminal."""
        return self._stderr is None and sys.stderr is not None and sys.stderr.isatty()

    def write(self, data: Buffer) -> None:
        """Write data to stdout. Small pieces are collected. Raise BrokenPipeError if the reader has closed it."""
        view = memoryview(data)
        if view.nbytes < PIECE_BYTES:
            self._waiting += view
            if len(self._waiting) >= PIECE_BYTES:
                self.flush()
            return
        self.flush()
        self._write_all(view)

    def flush(self) -> None:
        """Write the collected data."""
        waiting, self._waiting = self._waiting, bytearray()
        if waiting:
            self._write_all(memoryview(waiting))

    def _write_all(self, view: memoryview) -> None:
        self.clear_progress()
        if self._stdout is not None:
            self._stdout.write(view)
            return
        if sys.stdout is None:
            raise OSError(errno.EBADF, "stdout is closed, so nothing can be written to it")
        sys.stdout.flush()
        descriptor = sys.stdout.fileno()
        while view.nbytes:
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:  # another program with the same terminal or pipe has set O_NONBLOCK
                select.select([], [descriptor], [])
            except OSError as error:
                raise OSError(error.errno, error.strerror, "stdout") from error

    def check_reader(self) -> None:
        """Raise BrokenPipeError if stdout is a pipe whose reader has ended. A command that has nothing to write would
        not notice this."""
        if self._stdout is not None or sys.stdout is None or not hasattr(select, "poll"):  # Windows has no poll
            return
        try:
            descriptor = sys.stdout.fileno()
            is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
        except (OSError, ValueError):  # stdout has no descriptor, as in a notebook, or is closed
            return
        if not is_pipe:
            return
        poll = select.poll()
        poll.register(descriptor, 0)
        if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE), "stdout")

    def abandon(self) -> None:
        """Drop the collected data, because the reader of stdout has closed it."""
        self._waiting = bytearray()

    def say(self, text: str) -> None:
        """Print a line to stderr. If stderr cannot be written, only the exit status shows the result."""
        self.clear_progress()
        stream = self._stderr or sys.stderr
        if stream is not None:
            with contextlib.suppress(OSError):
                print(text, file=stream, flush=True)

    def clear_progress(self) -> None:
        """Remove the bar."""
        if self._bar_is_shown:
            self._bar_is_shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def show_progress(self, line: str) -> None:
        """Show or update the bar."""
        self._bar_is_shown = True
        sys.stderr.write(f"\r{line}\x1b[K")
        sys.stderr.flush()


class Progress:
    """A progress bar on stderr, only on a terminal: ``progress(bytes done, bytes in all)``.

    has_data: Whether the work continuously writes data to stdout. There is then no bar if stdout is a terminal, too.
    """

    def __init__(self, output: Output, what: str, *, has_data: bool = False) -> None:
        self.is_shown = output.can_show_progress and not (has_data and output.is_terminal)
        self._output = output
        self._what = what
        self._begin = self._shown = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Show the progress."""
        now = time.monotonic()
        if not self.is_shown or now - self._begin < BAR_AFTER_SECONDS:
            return
        if now - self._shown < BAR_SECONDS and done < total:
            return
        self._shown = now
        share = min(done / total, 1.0) if total else 1.0
        filled = int(share * BAR_CHARACTERS)
        bar = "#" * filled + "." * (BAR_CHARACTERS - filled)
        rate = done / 1e6 / (now - self._begin)
        self._output.show_progress(f"{self._what} [{bar}] {share:4.0%} {rate:.0f} MB/s")

    def end(self) -> None:
        """Remove the bar."""
        self._output.clear_progress()
