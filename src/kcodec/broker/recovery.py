# SPDX-License-Identifier: Apache-2.0
"""Files with the bytes that a recovery removes from a log. Kafka's LogLoader deletes these bytes.

The files are consistent even if the process is killed. The segments after a corrupt batch are renamed first, one after
the other, and the corrupt segment is cut last. Until then, the next recovery finds the same corrupt batch.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

_log = logging.getLogger(__name__)
#: The files of a segment in the order of their removal. A log without indexes gets new ones, but an index without its
#: log would stay, and the log that a partition begins with needs its snapshot.
SEGMENT_FILES = ("index", "timeindex", "txnindex", "log", "snapshot")


def set_aside_segment(path: Path) -> None:
    """Rename the log file of a segment, and remove its other files. `path` is the ``.log`` file."""
    for kind in SEGMENT_FILES:
        if kind == "log" and path.stat().st_size > 0:
            size = path.stat().st_size
            kept = next(one for one in _names(path, 0) if not one.exists())
            path.rename(kept)
            _log.warning("%s: it follows a corrupt batch; its %d bytes are moved to %s", path, size, kept.name)
        else:
            path.with_suffix(f".{kind}").unlink(missing_ok=True)


def cut(path: Path, position: int) -> None:
    """Copy the bytes after the last intact batch to another file, then cut them off. Raise OSError if this fails."""
    with path.open("rb+") as file:
        file.seek(position)
        data = file.read()
        # a recovery that was killed here has left a complete or incomplete copy
        kept = next(one for one in _names(path, position) if not one.exists() or one.read_bytes() == data)
        if not kept.exists():
            _write_new(kept, data)
        os.ftruncate(file.fileno(), position)
    _log.warning(
        "%s: the %d bytes from position %d on do not begin with a whole batch and a valid CRC; they are moved to %s",
        path,
        len(data),
        position,
        kept.name,
    )


def _names(path: Path, position: int) -> Iterator[Path]:
    """Yield names of files for removed bytes. Files of an earlier recovery are not replaced."""
    for number in count():
        yield path.with_name(f"{path.name}.corrupt-at-{position}{f'.{number}' if number else ''}")


def _write_new(path: Path, data: bytes) -> None:
    try:
        with path.open("xb") as file:
            file.write(data)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
