# SPDX-License-Identifier: Apache-2.0
"""A file next to a log that is computed from the log: an index, or a snapshot of the producers."""

from __future__ import annotations

import logging
import os
from pathlib import Path

_log = logging.getLogger(__name__)


class DerivedFile:
    """One such file. What was in it before is replaced.

    The batch that an entry belongs to is in the log already, so a write that fails must not fail the append. The bytes
    are kept, and `write` tries again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self._unwritten = bytearray()
        self._is_begun = self._has_failed = False

    def add(self, data: bytes) -> None:
        """Keep bytes for the end of the file, until the next `write`."""
        self._unwritten += data

    def write(self) -> bool:
        """Write what was added. Return False, after a log message, if a part of it could not be written."""
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
    """Write a small file that is there whole or not at all, also after the process is killed."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    temporary.replace(path)


def write_checkpoint(path: Path, lines: list[str]) -> None:
    """Write a checkpoint file of Kafka: its version, the number of lines, and the lines."""
    write_small(path, ("\n".join(["0", str(len(lines)), *lines]) + "\n").encode())


def try_write_small(path: Path, data: bytes) -> None:
    """Do as `write_small`, but log an OSError: for a file that follows from others, and that a later start replaces."""
    try:
        write_small(path, data)
    except OSError as error:
        _log.warning("%s: %s; no record is lost, and a later start writes the file", path, error.strerror)
