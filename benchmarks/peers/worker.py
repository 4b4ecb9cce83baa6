# SPDX-License-Identifier: Apache-2.0
"""A peer in another language: one process that lives as long as the comparison, asked line by line.

A command is one line of words separated by tabs, its answer one line:

    load NAME FILE          keeps the bytes of a file                         -> ok
    time NAME MILLISECONDS  decodes again and again for that time              -> nanoseconds a call, records
    digest NAME             hashes the columns as contestants.digest does     -> SHA-256, records

Those that encode take two more: the records of NAME, decoded once, are made into batches of as many records again.

    encode NAME CODEC MILLISECONDS  encodes again and again for that time      -> nanoseconds a call, records
    made NAME CODEC FILE            writes what it makes                      -> ok
"""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

from measure import Timer


class Worker:
    """A running peer."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        self.name = name
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
        )

    def ask(self, *words: str) -> str:
        """Send a command; RuntimeError if the worker died of it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise RuntimeError(f"{self.name} ended at: {' '.join(words)}")
        return answer

    def load(self, name: str, path: Path) -> None:
        """Keep the bytes of a file under a name."""
        self.ask("load", name, str(path))

    def time(self, name: str, seconds: float) -> float:
        """Mean seconds a call, over calls that take `seconds` together."""
        return float(self.ask("time", name, str(max(1, round(seconds * 1000)))).split()[0]) / 1e9

    def timer(self, name: str) -> Timer:
        """`time` for measure.interleaved_timers."""
        return functools.partial(self.time, name)

    def digest(self, name: str) -> str:
        """The hash of the columns."""
        return self.ask("digest", name).split()[0]

    def encode(self, name: str, codec: str, seconds: float) -> float:
        """Mean seconds to encode the records of a blob, over calls that take `seconds` together."""
        return float(self.ask("encode", name, codec, str(max(1, round(seconds * 1000)))).split()[0]) / 1e9

    def made(self, name: str, codec: str, path: Path) -> bytes:
        """What it encodes."""
        self.ask("made", name, codec, str(path))
        return path.read_bytes()

    def close(self) -> None:
        """Let the process end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
