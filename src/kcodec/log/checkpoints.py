# SPDX-License-Identifier: Apache-2.0
"""The text files of a partition and of a log directory.

``replication-offset-checkpoint`` (high watermarks, some seconds old), ``recovery-point-offset-checkpoint``,
``log-start-offset-checkpoint`` (only partitions whose start DeleteRecords moved) and ``cleaner-offset-checkpoint`` have
a line with the version 0, a line with the number of entries, then a line "topic partition offset" for each
(CheckpointFile). A file without a line, as the cleaner leaves it, has no entries. ``leader-epoch-checkpoint`` of a
partition is the same with "epoch start_offset". ``partition.metadata``: "version: 0", "topic_id: ID".
``meta.properties``: Java properties.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import os
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from kcodec.errors import DecodeError
from kcodec.java_properties import read_properties
from kcodec.log.small_files import PIECE_BYTES, read_whole
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
# "topic partition offset" is the longest entry.
MOST_FIELDS = 3
MOST_SHOWN = 300
_LINE_END = re.compile(r"\r\n|\n|\r")
_LINE_END_BYTES = re.compile(rb"\r\n|\n|\r")
_LINE_BYTES = re.compile(rb"[^\r\n]+")

Line = TypeVar("Line")


class LeaderEpoch(NamedTuple):
    """A leader epoch: batches from start_offset on were appended under it."""

    epoch: int
    start_offset: int


@dataclass(frozen=True)
class PartitionMetadata:
    """The contents of ``partition.metadata``: version and topic_id, 22 characters of base64 as Kafka writes it."""

    version: int
    topic_id: str

    @property
    def uuid(self) -> uuid.UUID:
        """The topic id as a UUID."""
        return uuid.UUID(bytes=base64.urlsafe_b64decode(self.topic_id + "=="))


@dataclass(frozen=True)
class MetaProperties:
    """The contents of ``meta.properties``; None for a missing value.

    version:      0 or 1.
    cluster_id:   Id of the cluster.
    node_id:      Id of the broker or controller.
    directory_id: Id of the log directory (KIP-858).
    other:        Further (name, value) pairs.
    """

    version: int
    cluster_id: str | None
    node_id: int | None
    directory_id: str | None
    other: tuple[tuple[str, str], ...] = ()


def read_offsets(path: str | os.PathLike[str], storage: Storage = LOCAL) -> dict[tuple[str, int], int]:
    """Return the offsets in a checkpoint file by (topic, partition). Raise DecodeError with file and line.

    path, storage: As in `kcodec.log.read_offset_index`.
    """
    return dict(offset_entries(path, storage))


def offset_entries(path: str | os.PathLike[str], storage: Storage = LOCAL) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield the entries of a checkpoint file as `read_offsets` has them, one by one, with its errors."""
    return _entries(path, storage, _partition_offset, "topic partition offset", "MAX_CHECKPOINT_BYTES")


def read_leader_epochs(path: str | os.PathLike[str], storage: Storage = LOCAL) -> tuple[LeaderEpoch, ...]:
    """Return the entries of a ``leader-epoch-checkpoint``. Raise DecodeError with file and line.

    path, storage: As in `kcodec.log.read_offset_index`.
    """
    return tuple(_entries(path, storage, _leader_epoch, "epoch start_offset", "MAX_LEADER_EPOCHS_BYTES"))


def read_partition_metadata(path: str | os.PathLike[str], storage: Storage = LOCAL) -> PartitionMetadata:
    """Read ``partition.metadata``. Raise DecodeError for another version or a missing topic id.

    path, storage: As in `kcodec.log.read_offset_index`.
    """
    data = read_whole(path, storage, "MAX_PROPERTIES_BYTES")
    _check_text(data, path)
    lines = [*_LINE_END.split(data.decode("utf-8")), "", ""]
    version, topic_id = (line.partition(":") for line in lines[:2])
    if version[0].strip() != "version" or version[2].strip() != VERSION:
        raise _wrong(path, 1, f"{_shown(lines[0])}, expected 'version: {VERSION}'")
    found = topic_id[2].strip()
    if topic_id[0].strip() != "topic_id" or not _is_uuid(found):
        raise _wrong(path, 2, f"{_shown(lines[1])}, expected 'topic_id: ' and 22 letters of base64")
    return PartitionMetadata(int(VERSION), found)


def read_meta_properties(path: str | os.PathLike[str], storage: Storage = LOCAL) -> MetaProperties:
    """Read ``meta.properties`` (version 0: broker.id, version 1: node.id). Raise DecodeError if a value is invalid.

    path, storage: As in `kcodec.log.read_offset_index`.
    """
    data = read_whole(path, storage, "MAX_PROPERTIES_BYTES")
    found = {one.name: one.value for one in read_properties(data.decode("latin-1"))}  # as Properties.load reads bytes

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
    """Return the offset of this partition in the checkpoint of the log directory; None if the entry or the file is
    missing."""
    path = storage.join(log_directory, LOG_START_OFFSETS)
    if not storage.is_file(path):
        return None
    found = None
    for named, offset in offset_entries(path, storage):
        if named == (topic, partition):
            found = offset
    return found


# Checkpoint files


def _entries(
    path: str | os.PathLike[str], storage: Storage, parse: Callable[[list[str]], Line], what: str, limit: str
) -> Iterator[Line]:
    """Yield the entries, with only one line in memory at a time, because a file of newlines must not become a list of
    lines."""
    data = read_whole(path, storage, limit)
    _check_text(data, path)
    if not data:
        return
    (version, at), (count, begin) = (first := _line(data, 0)), _line(data, first[1])
    if version.strip() != VERSION:
        raise _wrong(path, 1, f"version {_shown(version)} of a checkpoint file, expected {VERSION}")
    if not data[at:]:
        return
    found = sum(1 for _ in _filled_lines(data, begin))
    stated = count.strip()  # of more than int() strips
    if not INTEGER.fullmatch(stated) or int(stated) != found:
        raise _wrong(path, 2, f"{_shown(count)} entries but {found} follow")
    for start, line in _filled_lines(data, begin):
        try:
            # Only as many as are needed to detect that there are too many.
            yield parse(line.split(None, MOST_FIELDS))
        except ValueError:
            number = 1 + len(_LINE_END.findall(data[:start].decode("utf-8")))
            raise _wrong(path, number, f"expected '{what}', found {_shown(line)}") from None


def _line(data: bytes, start: int) -> tuple[str, int]:
    """Return the line that begins at a position, without its line end, and the position of the next line."""
    match = _LINE_END_BYTES.search(data, start)
    end, following = match.span() if match else (len(data), len(data))
    return data[start:end].decode("utf-8"), following


def _filled_lines(data: bytes, start: int) -> Iterator[tuple[int, str]]:
    """Yield position and text of each line that is not blank. Sequences of newlines are skipped in one step."""
    for match in _LINE_BYTES.finditer(data, start):
        line = match[0].decode("utf-8")
        if not line.isspace():
            yield match.start(), line


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


def _check_text(data: bytes, path: str | os.PathLike[str]) -> None:
    """Raise DecodeError if the bytes are not UTF-8. Decode them in pieces, because text may need four times as much
    memory."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(0, len(data), PIECE_BYTES):
        pending = len(decoder.getstate()[0])
        try:
            decoder.decode(data[at : at + PIECE_BYTES], final=at + PIECE_BYTES >= len(data))
        except UnicodeDecodeError as error:
            raise DecodeError(
                f"byte {at - pending + error.start}: the text is not UTF-8", path=os.fspath(path)
            ) from None


def _shown(text: str) -> str:
    """Return the text of the file for an error, shortened if it is long."""
    return repr(text) if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]!r} ... ({len(text)} characters)"


def _wrong(path: str | os.PathLike[str], line: int, what: str) -> DecodeError:
    return DecodeError(f"line {line}: {what}", path=os.fspath(path))


def _is_uuid(text: str) -> bool:
    try:
        return len(text) == 22 and len(base64.b64decode(text + "==", altchars=b"-_", validate=True)) == 16
    except (binascii.Error, ValueError):
        return False
