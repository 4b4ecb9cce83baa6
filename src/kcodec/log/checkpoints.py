# SPDX-License-Identifier: Apache-2.0
"""The text files of a partition and of a log directory.

``replication-offset-checkpoint`` (high watermarks, seconds behind), ``recovery-point-offset-checkpoint``,
``log-start-offset-checkpoint`` (only partitions whose start DeleteRecords moved), ``cleaner-offset-checkpoint``:
a line with the version 0, a line with the number of entries, then "topic partition offset" each (CheckpointFile). A
file without a line, as the cleaner leaves one, has no entries. ``leader-epoch-checkpoint`` of a partition: the same
with "epoch start_offset". ``partition.metadata``: "version: 0", "topic_id: ID". ``meta.properties``: Java properties.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from kcodec.errors import DecodeError
from kcodec.log.small_files import read_whole
from kcodec.log.storage import LOCAL, Storage

LOG_START_OFFSETS = "log-start-offset-checkpoint"
OFFSET_CHECKPOINTS = (
    "replication-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    LOG_START_OFFSETS,
    "cleaner-offset-checkpoint",
)
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
VERSION = "0"
INTEGER = re.compile(r"[+-]?\d{1,19}", re.ASCII)

Line = TypeVar("Line")


class LeaderEpoch(NamedTuple):
    """From start_offset on, batches were appended under this leader epoch."""

    epoch: int
    start_offset: int


@dataclass(frozen=True)
class PartitionMetadata:
    """``partition.metadata``: topic_id as Kafka spells it, 22 letters of base64."""

    version: int
    topic_id: str

    @property
    def uuid(self) -> uuid.UUID:
        """The same id as a UUID."""
        return uuid.UUID(bytes=base64.urlsafe_b64decode(self.topic_id + "=="))


@dataclass(frozen=True)
class MetaProperties:
    """``meta.properties`` of a log directory; None for what it does not say. other: further (name, value) pairs."""

    version: int
    cluster_id: str | None
    node_id: int | None
    directory_id: str | None
    other: tuple[tuple[str, str], ...] = ()


def read_offsets(path: str | os.PathLike[str], storage: Storage = LOCAL) -> dict[tuple[str, int], int]:
    """The offsets in a checkpoint file by (topic, partition). DecodeError, naming file and line, for what is none."""
    return dict(_entries(path, storage, _partition_offset, "topic partition offset"))


def read_leader_epochs(path: str | os.PathLike[str], storage: Storage = LOCAL) -> tuple[LeaderEpoch, ...]:
    """The entries of a ``leader-epoch-checkpoint``, as they stand. DecodeError, naming file and line."""
    return tuple(_entries(path, storage, _leader_epoch, "epoch start_offset"))


def read_partition_metadata(path: str | os.PathLike[str], storage: Storage = LOCAL) -> PartitionMetadata:
    """What ``partition.metadata`` says. DecodeError, naming file and line, for another version or no topic id."""
    lines = [*_lines(path, storage), "", ""]
    version, topic_id = (line.partition(":") for line in lines[:2])
    if version[0].strip() != "version" or version[2].strip() != VERSION:
        raise _wrong(path, 1, f"{lines[0]!r}, expected 'version: {VERSION}'")
    found = topic_id[2].strip()
    if topic_id[0].strip() != "topic_id" or not _is_uuid(found):
        raise _wrong(path, 2, f"{lines[1]!r}, expected 'topic_id: ' and 22 letters of base64")
    return PartitionMetadata(int(VERSION), found)


def read_meta_properties(path: str | os.PathLike[str], storage: Storage = LOCAL) -> MetaProperties:
    """What ``meta.properties`` says (version 0 has broker.id, version 1 node.id). DecodeError for a bad value."""
    found = dict(_properties(read_whole(path, storage).decode("latin-1")))  # as Properties.load reads bytes

    def integer(name: str) -> int | None:
        value = found.pop(name, None)
        if value is not None and not INTEGER.fullmatch(value):
            raise DecodeError(f"{name} is {value!r}, expected a number", path=os.fspath(path))
        return None if value is None else int(value)

    version, node_id, broker_id = integer("version"), integer("node.id"), integer("broker.id")
    if version not in (0, 1):
        said = "no version" if version is None else f"version {version}"
        raise DecodeError(f"{said}, expected version 0 or 1", path=os.fspath(path))
    cluster_id, directory_id = found.pop("cluster.id", None), found.pop("directory.id", None)
    node = node_id if node_id is not None else broker_id
    return MetaProperties(version, cluster_id, node, directory_id, tuple(sorted(found.items())))


def log_start_offset(log_directory: str, topic: str, partition: int, storage: Storage = LOCAL) -> int | None:
    """What the log directory's checkpoint says of this partition; None if it says nothing, or there is no such file."""
    path = storage.join(log_directory, LOG_START_OFFSETS)
    return read_offsets(path, storage).get((topic, partition)) if storage.is_file(path) else None


# ---------------------------------------------------------------------------------------------------- checkpoint files


def _entries(
    path: str | os.PathLike[str], storage: Storage, parse: Callable[[list[str]], Line], what: str
) -> Iterator[Line]:
    lines = _lines(path, storage)
    if not lines:
        return
    if lines[0].strip() != VERSION:
        raise _wrong(path, 1, f"version {lines[0]!r} of a checkpoint file, expected {VERSION}")
    if len(lines) == 1:
        return
    entries = [(number, line) for number, line in enumerate(lines[2:], 3) if line.strip()]
    count = lines[1].strip()
    if not INTEGER.fullmatch(count) or int(count) != len(entries):
        raise _wrong(path, 2, f"{lines[1]!r} entries but {len(entries)} follow")
    for number, line in entries:
        fields = line.split()
        try:
            yield parse(fields)
        except ValueError:
            raise _wrong(path, number, f"{line!r} is not '{what}'") from None


def _partition_offset(fields: list[str]) -> tuple[tuple[str, int], int]:
    topic, partition, offset = fields
    return (topic, _integer(partition)), _integer(offset)


def _leader_epoch(fields: list[str]) -> LeaderEpoch:
    epoch, start_offset = fields
    return LeaderEpoch(_integer(epoch), _integer(start_offset))


def _integer(text: str) -> int:
    if not INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _text(path: str | os.PathLike[str], storage: Storage) -> str:
    try:
        return read_whole(path, storage).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DecodeError(f"byte {error.start}: no UTF-8 text", path=os.fspath(path)) from None


def _lines(path: str | os.PathLike[str], storage: Storage) -> list[str]:
    text = _text(path, storage)
    return re.split(r"\r\n|\n|\r", text.removesuffix("\n")) if text else []


def _wrong(path: str | os.PathLike[str], line: int, what: str) -> DecodeError:
    return DecodeError(f"line {line}: {what}", path=os.fspath(path))


def _is_uuid(text: str) -> bool:
    try:
        return len(text) == 22 and len(base64.b64decode(text + "==", altchars=b"-_", validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


# ------------------------------------------------------------------------------------------------------ Java properties

ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# A name ends at the first '=', ':' or blank that is not escaped; blanks around the separator are no part of either.
PROPERTY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*(?:[=:][ \t\f]*)?(.*)", re.DOTALL)
ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)


def _properties(text: str) -> Iterator[tuple[str, str]]:
    """The pairs of a Java properties file (java.util.Properties.load), in order."""
    for line in _logical_lines(text):
        match = PROPERTY.match(line)
        assert match is not None  # it matches any text
        yield _unescaped(match[1]), _unescaped(match[2])


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blank ones; one that ends in an odd number of backslashes goes on in the next."""
    logical, is_open = "", False
    for natural in re.split(r"\r\n|\n|\r", text):
        line = natural.lstrip(" \t\f")
        if not is_open and (not line or line[0] in "#!"):
            continue
        is_open = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        logical += line[:-1] if is_open else line
        if not is_open:
            yield logical
            logical = ""
    if logical:
        yield logical


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        letter = match[1]
        return chr(int(letter[1:], 16)) if len(letter) == 5 else ESCAPES.get(letter, letter)

    return ESCAPED.sub(plain, text)
