# SPDX-License-Identifier: Apache-2.0
"""From a path on the command line to the files meant, and what kind each is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from kcodec.cli.parser import CommandError

# A file that the broker is about to swap in, or to delete, is of the kind of its name without that.
ON_THEIR_WAY = (".swap", ".cleaned", ".deleted")
SUFFIXES = {
    ".log": "log",
    ".checkpoint": "checkpoint",
    ".index": "index",
    ".timeindex": "timeindex",
    ".txnindex": "txnindex",
    ".snapshot": "snapshot",
}
NAMES = {
    "leader-epoch-checkpoint": "leader-epoch-checkpoint",
    "partition.metadata": "partition.metadata",
    "meta.properties": "meta.properties",
    "replication-offset-checkpoint": "offset-checkpoint",
    "recovery-point-offset-checkpoint": "offset-checkpoint",
    "log-start-offset-checkpoint": "offset-checkpoint",
    "cleaner-offset-checkpoint": "offset-checkpoint",
}
SEGMENT = re.compile(r"\d{20}\.log")


@dataclass(frozen=True)
class Place:
    """A file, its kind, and whether it may end in a broker's torn append: a last segment, or one by itself."""

    path: Path
    kind: str
    is_active: bool = True


def kind_of(path: Path) -> str | None:
    """The kind that a file's name tells."""
    name = path.name
    for ending in ON_THEIR_WAY:
        name = name.removesuffix(ending)
    return NAMES.get(name) or SUFFIXES.get(Path(name).suffix)


def places(path: Path) -> list[Place]:
    """The file, or of a directory the segments in order of offsets. CommandError for what is neither."""
    if path.is_dir():
        segments = sorted(file for file in path.iterdir() if SEGMENT.fullmatch(file.name) and file.is_file())
        if not segments:
            raise CommandError(f"{path}: no segment is there (20 digits and .log, as Kafka names them)")
        return [Place(file, "log", file is segments[-1]) for file in segments]
    if not path.exists():
        raise CommandError(f"{path}: no such file or directory")
    kind = kind_of(path)
    if kind is None:
        known = ", ".join([*SUFFIXES, *NAMES])
        raise CommandError(f"{path}: no file of a Kafka log directory; those are named {known}")
    return [Place(path, kind, is_last(path))]


def is_last(path: Path) -> bool:
    """Whether no later segment lies beside this one."""
    if not SEGMENT.fullmatch(path.name):
        return True
    beside = path.absolute().parent.glob("*.log")
    return all(other.name <= path.name for other in beside if SEGMENT.fullmatch(other.name))


def is_log_directory(path: Path) -> bool:
    """Whether this is a directory of partition directories."""
    return path.is_dir() and not any(path.glob("*.log")) and any(path.glob("*/*.log"))
