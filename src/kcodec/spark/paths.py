# SPDX-License-Identifier: Apache-2.0
"""The partitions at a path: a segment, a partition directory, a folder of partition directories, or a pattern.

Segments of one directory belong to one partition and are planned together, even if the path names only some of them.
The marker of a transaction can be in another segment than its records.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from urllib.parse import unquote, urlsplit

SEGMENT = re.compile(r"\d{20}\.log")
# Directories of a broker on their way out or in: LogManager's -delete, -future and -stray.
PASSING = re.compile(r".+\.[0-9a-zA-Z_-]+-(delete|future|stray)")
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
INNERMOST_BRACES = re.compile(r"\{([^{}]*)\}")
# What no consumer means by "all topics"; each can still be named by its own path.
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata")


@dataclass(frozen=True)
class FoundPartition:
    """What to open as one partition.

    path:     A partition directory, or a single ``.log`` file.
    segments: names of the requested files in it; None means all.
    """

    path: str
    segments: frozenset[str] | None = None

    def wants(self, name: str) -> bool:
        """Return whether the file of this name is to be read."""
        return self.segments is None or name in self.segments

    def alone(self) -> list[FoundPartition]:
        """Return the requested segments, each to be opened as if there were no other; itself if all are requested."""
        if self.segments is None:
            return [self]
        return [FoundPartition(str(Path(self.path, name))) for name in sorted(self.segments)]


def find_partitions(patterns: Iterable[str]) -> list[FoundPartition]:
    """Return the partitions that the paths and globs name, each once, in order of their paths.

    Hidden files, indexes, snapshots and checkpoints are passed over. FileNotFoundError for a path or glob where there
    is nothing to read, ValueError for a file that is no segment, or an address on another machine.
    """
    requested: dict[Path, set[str] | None] = {}
    for pattern in patterns:
        matches = list(_matches(local_path(pattern)))
        if not matches:
            raise FileNotFoundError(f"{pattern}: found no .log file and no partition directory")
        for directory, segment in matches:
            names = requested.setdefault(directory, set())
            if segment is None:
                requested[directory] = None
            elif names is not None:
                names.add(segment)
    found = []
    for directory, names in sorted(requested.items()):
        if names is None:
            found.append(FoundPartition(str(directory)))
            continue
        segments = {name for name in names if SEGMENT.fullmatch(name)}
        if segments:
            found.append(FoundPartition(str(directory), frozenset(segments)))
        found += [FoundPartition(str(directory / name)) for name in sorted(names - segments)]
    return found


def local_path(path: str) -> Path:
    """Return a path of this machine, absolute, from a path or a ``file:`` address."""
    scheme = SCHEME.match(path)
    if scheme and scheme[1].lower() != "file":
        raise ValueError(
            f"{path}: {scheme[1]}: is not supported; expected a local path that is the same on all executors"
        )
    return Path(os.path.normpath(Path(unquote(urlsplit(path).path) if scheme else path).absolute()))


def check_scheme(path: str) -> None:
    """Raise ValueError for an address without ``//``, which is not a local path: ``dbfs:/data`` would become a folder
    ``dbfs:`` in the working directory."""
    scheme = SCHEME.match(path)
    if scheme and scheme[1].lower() != "file" and "://" not in path:
        raise ValueError(
            f"path is {path!r}: the scheme {scheme[1]!r} is not supported without '//'; pass a local path (on "
            "Databricks /dbfs/... or /Volumes/...), an address such as s3://..., or filesystem="
        )


def _matches(pattern: Path) -> Iterator[tuple[Path, str | None]]:
    """(directory, name of a segment, or None for the whole directory) for one path or glob."""
    if pattern.exists() or not (has_magic(str(pattern)) or "{" in str(pattern)):
        if pattern.is_file() and pattern.suffix != ".log":
            raise ValueError(f"{pattern}: not a segment (segments are named .log)")
        yield from _below(pattern)
        return
    matches = {
        path
        for each in _without_braces(str(pattern.relative_to(pattern.anchor)))
        for path in Path(pattern.anchor).glob(each)
    }
    for path in sorted(matches):
        if not path.name.startswith(".") and (path.is_dir() or path.suffix == ".log"):
            yield from _below(path)


def _without_braces(pattern: str) -> Iterator[str]:
    """Yield the patterns that a pattern with ``{a,b}`` stands for, as in Hadoop's globs; braces may be nested."""
    found = INNERMOST_BRACES.search(pattern)
    if found is None:
        yield pattern
        return
    for each in found[1].split(","):
        yield from _without_braces(pattern[: found.start()] + each + pattern[found.end() :])


def _below(path: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield the same for one path: a file, a partition directory, or a folder that holds partition directories."""
    if path.is_file():
        yield path.parent, path.name
    elif path.is_dir():
        if _holds_segments(path):
            yield path, None
            return
        for entry in sorted(path.iterdir()):
            hidden = entry.name.startswith(".") or PASSING.fullmatch(entry.name)
            internal = entry.name.rpartition("-")[0] in INTERNAL_TOPICS
            if entry.is_dir() and not hidden and not internal and _holds_segments(entry):
                yield entry, None


def _holds_segments(directory: Path) -> bool:
    names = (entry for entry in directory.iterdir() if entry.suffix == ".log" and not entry.name.startswith("."))
    return any(entry.is_file() for entry in names)
