# SPDX-License-Identifier: Apache-2.0
"""A file next to a log that is computed from the log: an index, or a snapshot of the producers."""

from __future__ import annotations

import logging
import os
from pathlib import Path

_log = logging.getLogger(__name__)


class DerivedFile:
    """A derived file. Its former contents are replaced.

    The batch of an entry is already in the log, so a failed write must not fail the append. The bytes are kept, and the
    next `write` tries again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self._unwritten = bytearray()
        self._is_begun = self._has_failed = False

    def add(self, data: bytes) -> None:
        """Keep bytes in memory, which the next `write` appends to the file."""
        self._unwritten += data

    def write(self) -> bool:
        """Write the added bytes. If some of them cannot be written, log a message and return False."""
        if self._is_begun and not self._unwritten:
            return True
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | (0 if self._is_begun else os.O_TRUNC), 0o644)
            try:
                self._is_begun = True
                while self._unwritten:
                    written = os.pwrite(file, self._unwritten, self._size)
                    self._size += written
                    del self._unwritten[:written]
            finally:
                os.close(file)
        except OSError as error:
            if not self._has_failed:
                _log.warning("%s: %s; no record is lost, and the file is completed later", self._path, error.strerror)
            self._has_failed = True
            return False
        self._has_failed = False
        return True


def write_small(path: Path, data: bytes) -> None:
    """Write a small file atomically: it is complete or missing, even if the process is killed."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    temporary.replace(path)


def write_checkpoint(path: Path, lines: list[str]) -> None:
    """Write a checkpoint file of Kafka: its version, the number of lines, and the lines."""
    write_small(path, ("\n".join(["0", str(len(lines)), *lines]) + "\n").encode())


def try_write_small(path: Path, data: bytes) -> None:
    """Call `write_small`, and log an OSError. This is for a file that is computed from others, so that the next start
    replaces it."""
    try:
        write_small(path, data)
    except OSError as error:
        _log.warning("%s: %s; no record is lost, and a later start writes the file", path, error.strerror)
