# SPDX-License-Identifier: Apache-2.0
"""One broker at a time in a data directory: the file ``.lock``, which Apache Kafka locks in the same way (FileLock)."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

# The lock of a file belongs to the process, so brokers of the same process are distinguished here.
_LOCKED: set[Path] = set()


class DirectoryLock:
    """The lock of a data directory, which is created if it does not exist.

    Raise OSError if another broker uses the directory, or if it cannot be written. Raise ValueError if the directory
    belongs to Apache Kafka.
    """

    def __init__(self, directory: Path) -> None:
        if (directory / "meta.properties").exists():
            raise ValueError(f"{directory} has meta.properties: it belongs to an Apache Kafka; name another data_dir")
        directory.mkdir(parents=True, exist_ok=True)
        self._key = directory.resolve()
        if self._key in _LOCKED:
            raise _busy(directory)
        self._file = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(self._file)
        except OSError as error:
            os.close(self._file)
            raise _busy(directory) from error
        _LOCKED.add(self._key)

    def release(self) -> None:
        """Let other brokers use the directory. A second call does nothing."""
        if self._key in _LOCKED and self._file >= 0:
            _LOCKED.discard(self._key)
            os.close(self._file)
            self._file = -1


def _lock(file: int) -> None:
    with contextlib.suppress(ImportError):  # without file locks, only brokers of the same process are detected
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _busy(directory: Path) -> OSError:
    return OSError(errno.EBUSY, "another broker uses this data directory; stop it, or name another one", str(directory))
