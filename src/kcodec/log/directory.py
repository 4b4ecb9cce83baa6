# SPDX-License-Identifier: Apache-2.0
"""A log directory of a broker: its partitions as logs, and the contents of its own files.

Partitions are the directories named ``topic-partition``. Directories that are being deleted or moved (``-delete``,
``-future``, ``-stray``), other directories and other files are listed separately.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from kcodec._fast import CHECK_CRCS, checks_crcs
from kcodec.constants import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from kcodec.limits import DEFAULT_LIMITS, DecodeLimits
from kcodec.log.checkpoints import (
    META_PROPERTIES,
    OFFSET_CHECKPOINTS,
    PARTITION_METADATA,
    MetaProperties,
    read_meta_properties,
    read_offsets,
    read_partition_metadata,
)
from kcodec.log.opening import (
    CLUSTER_METADATA,
    PARTITION_DIRECTORY,
    Source,
    open_partition,
    open_segment,
    partition_at,
)
from kcodec.log.partition import Log
from kcodec.log.storage import Entry, Storage, storage_at
from kcodec.log.swaps import has_segments
from kcodec.offsets import TopicPartition

if TYPE_CHECKING:
    from kcodec.log.internal.offsets import GroupOffsets
    from kcodec.log.internal.transactions import PartitionTransaction, TransactionState

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
REPLICATION_OFFSETS, RECOVERY_POINTS, LOG_START_OFFSETS, CLEANER_OFFSETS = OFFSET_CHECKPOINTS
#: Partitions or topics that a message names.
MAX_NAMED_PARTITIONS = 5
#: Files that a broker writes to a log directory.
MARKS = frozenset({META_PROPERTIES, *OFFSET_CHECKPOINTS})
#: Files that a broker writes to the directory of a partition, also before its first segment.
PARTITION_MARKS = frozenset({PARTITION_METADATA, "leader-epoch-checkpoint"})
#: For a directory that is no log directory: how deep, and in how many directories, a log directory is searched.
SEARCH_LEVELS, SEARCHED_DIRECTORIES = 3, 100
#: What only a Log has, and is often looked for here.
PARTITION_METHODS = ("records", "to_arrow", "batches")
KNOWN_FILES = {META_PROPERTIES, CLEAN_SHUTDOWN, BOOTSTRAP_CHECKPOINT, ".lock", *OFFSET_CHECKPOINTS}
# The suffix that LocalLog appends to a partition's name: a unique id, and the state of the directory.
RENAMED = re.compile(r".+\.[0-9a-zA-Z_-]+-(delete|future|stray)")


class OtherEntry(NamedTuple):
    """An entry of a log directory that is not a partition.

    name: Name in the directory.
    kind: "delete" (a partition that is being deleted), "future" (one that is being moved here), "stray" (one that the
          cluster no longer assigns to the broker), "directory" or "file".
    """

    name: str
    kind: str


class Topics(dict[str, tuple[int, ...]]):
    """The partitions of each topic of a log directory. A KeyError says which topics there are."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def __missing__(self, name: object) -> tuple[int, ...]:
        text = f"{self.path} has no topic {name!r}"
        match = PARTITION_DIRECTORY.fullmatch(name) if isinstance(name, str) else None
        near = difflib.get_close_matches(str(name), self, n=1)
        if match is not None and int(match[2]) in self.get(match[1], ()):
            raise KeyError(f"{text}: this is the name of a partition; directory[{name!r}] opens it")
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise KeyError(f"{text}; it has {_listed(list(self), 'topics')}{hint}")


class LogDirectory(Mapping[str, Log]):
    """The partitions of a log directory by name, ``directory["orders-0"]``, or by TopicPartition.

    Created by ``kcodec.open`` from the `storage` and its `entries`. It keeps no file open and can be pickled. The
    directory is listed once; a partition is
    opened each time it is requested. Iteration returns names in order of topic and partition.
    """

    def __init__(
        self, path: str, storage: Storage, entries: Iterable[Entry], *, check_crcs: bool, limits: DecodeLimits
    ) -> None:
        self.path = path
        self.storage = storage
        self._check_crcs = check_crcs
        self._limits = limits
        self._partitions: dict[TopicPartition, str] = {}
        others, files = [], set()
        for entry in sorted(entries):
            found = _partition_of(entry)
            if found is not None:
                self._partitions[found] = entry.name
            elif entry.name in KNOWN_FILES and not entry.is_directory:
                files.add(entry.name)
            else:
                others.append(OtherEntry(entry.name, _kind_of(entry)))
        self._partitions = dict(sorted(self._partitions.items()))
        self._files = frozenset(files)
        self.others = tuple(others)

    def __repr__(self) -> str:
        properties = self.meta_properties
        parts = [f"{len(self)} partitions of {len(self.topics)} topics"]
        if properties is not None and properties.node_id is not None:
            parts.append(f"node {properties.node_id}")
        parts.append("clean shutdown" if self.is_clean_shutdown else "no clean shutdown")
        for kind in ("delete", "future", "stray"):
            count = sum(other.kind == kind for other in self.others)
            parts += [f"{count} -{kind}"] if count else []
        return f"<LogDirectory {self.path}: {', '.join(parts)}>"

    # Partitions

    def _there_are(self) -> str:
        """Return the first existing partitions, for a message."""
        return f"; it has {_listed([str(partition) for partition in self._partitions], 'partitions')}"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in PARTITION_METHODS:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            raise AttributeError(
                f"a LogDirectory has no {name}(): call it for one partition, as in directory['orders-0'].{name}(), or "
                f"for each, as in [log.{name}() for log in directory.values()]",
                name=name,
                obj=self,
            )

    def __getitem__(self, name: str | tuple[str, int]) -> Log:
        found = self._named(name)
        if found is None:
            others = [other.kind for other in self.others if other.name == name]
            raise KeyError(
                f"{self.path} has no partition {name!r}"
                + (
                    f": the directory of this name is not a partition, but of the kind {others[0]!r}"
                    if others
                    else self._there_are()
                )
            )
        return open_partition(
            self.storage.join(self.path, self._partitions[found]),
            filesystem=self.storage,
            check_crcs=self._check_crcs,
            limits=self._limits,
        )

    def __contains__(self, name: object) -> bool:
        return self._named(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._partitions.values())

    def __len__(self) -> int:
        return len(self._partitions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogDirectory) and (self.path, self.storage) == (other.path, other.storage)

    def __hash__(self) -> int:
        return hash(self.path)

    def _named(self, name: object) -> TopicPartition | None:
        """Return the partition for a name or a (topic, partition); None if it is not in the directory."""
        if isinstance(name, str):
            match = PARTITION_DIRECTORY.fullmatch(name)
            name = (match[1], int(match[2])) if match else None
        found = TopicPartition(*name) if isinstance(name, tuple) and len(name) == 2 else None
        return found if found in self._partitions else None

    @property
    def topics(self) -> dict[str, tuple[int, ...]]:
        """The partitions in this directory by topic, in order. A KeyError says which topics there are."""
        found = Topics(self.path)
        for topic, partition in self._partitions:
            found[topic] = (*found.get(topic, ()), partition)
        return found

    @cached_property
    def topic_ids(self) -> dict[str, str]:
        """Topic ids, as Kafka writes them, from ``partition.metadata`` of the first partition of each topic."""
        found: dict[str, str] = {}
        for (topic, _), name in self._partitions.items():
            path = self.storage.join(self.storage.join(self.path, name), PARTITION_METADATA)
            if topic not in found and self.storage.is_file(path):
                found[topic] = read_partition_metadata(path, self.storage).topic_id
        return found

    def _logs(self, topic: str | None = None) -> list[Log]:
        """Return the partitions of a topic, or of all topics. Leave out partitions that have no segment yet."""
        wanted = [name for found, name in self._partitions.items() if topic in (None, found.topic)]
        return [self[name] for name in wanted if has_segments(self.storage.list(self.storage.join(self.path, name)))]

    # Files of the directory

    @cached_property
    def meta_properties(self) -> MetaProperties | None:
        """The broker's ``meta.properties``; None if the file is missing. Raise DecodeError if it is invalid."""
        if META_PROPERTIES not in self._files:
            return None
        return read_meta_properties(self.storage.join(self.path, META_PROPERTIES), self.storage)

    @property
    def is_clean_shutdown(self) -> bool:
        """Whether the broker was shut down cleanly; otherwise active segments may have a torn tail."""
        return CLEAN_SHUTDOWN in self._files

    @property
    def high_watermarks(self) -> dict[TopicPartition, int]:
        """High watermarks from ``replication-offset-checkpoint``. They are some seconds old and limit no reading."""
        return self._offsets(REPLICATION_OFFSETS)

    @property
    def recovery_points(self) -> dict[TopicPartition, int]:
        """Offsets below which data was flushed to disk, from ``recovery-point-offset-checkpoint``."""
        return self._offsets(RECOVERY_POINTS)

    @property
    def log_start_offsets(self) -> dict[TopicPartition, int]:
        """Log start offsets of partitions whose start DeleteRecords moved, from ``log-start-offset-checkpoint``."""
        return self._offsets(LOG_START_OFFSETS)

    @property
    def cleaner_offsets(self) -> dict[TopicPartition, int]:
        """Offsets below which the log is compacted, from ``cleaner-offset-checkpoint``."""
        return self._offsets(CLEANER_OFFSETS)

    def _offsets(self, name: str) -> dict[TopicPartition, int]:
        """Return one of the checkpoints, empty if the file does not exist. Raise DecodeError if it is invalid."""
        if name not in self._files:
            return {}
        offsets = read_offsets(self.storage.join(self.path, name), self.storage)
        return {TopicPartition(*found): offset for found, offset in sorted(offsets.items())}

    # Coordinators

    def transaction_states(self, on_error: str = "raise") -> dict[str, TransactionState]:
        """Return the last state of each transactional id in this directory's partitions of ``__transaction_state``.

        on_error: As in `kcodec.log.transaction_states`.
        """
        from kcodec.log.internal.transactions import transaction_states

        return transaction_states(self._logs(TRANSACTION_STATE_TOPIC), on_error)

    def group_offsets(self, on_error: str = "raise") -> dict[str, GroupOffsets]:
        """Return the committed offsets of each group in this directory's partitions of ``__consumer_offsets``.

        on_error: As in `kcodec.log.group_offsets`.
        """
        from kcodec.log.internal.offsets import group_offsets

        return group_offsets(self._logs(CONSUMER_OFFSETS_TOPIC), on_error)

    def cluster_topics(self) -> dict[str, str]:
        """Return the topics of the cluster and their ids; empty if the metadata log is not in this directory."""
        from kcodec.log.internal.topics import cluster_topics

        return {
            name: topic_id for log in self._logs(CLUSTER_METADATA[0]) for name, topic_id in cluster_topics(log).items()
        }

    def transactions(
        self, states: Collection[str] | None = ("open",), on_error: str = "raise"
    ) -> list[PartitionTransaction]:
        """Return the transactions of all partitions in these states, in order of topic, partition and offset.

        states:   From "open", "committed", "aborted"; None: all.
        on_error: "stop" or "skip" returns the transactions that corruption does not hide.

        Each transaction has what the coordinator recorded for its producer, if that partition of
        ``__transaction_state`` is in this directory. The headers of every partition are read.
        """
        from kcodec.log.internal.transactions import partition_transactions

        noted = self.transaction_states(on_error).values()
        return [found for log in self._logs() for found in partition_transactions(log, noted, states, on_error)]


def _listed(names: list[str], what: str) -> str:
    """Return the first of the names, for a message."""
    more = f" and {len(names) - MAX_NAMED_PARTITIONS} more" if len(names) > MAX_NAMED_PARTITIONS else ""
    return f"{', '.join(names[:MAX_NAMED_PARTITIONS])}{more}" if names else f"no {what}"


def open(  # noqa: A001  the public name is kcodec.open
    path: Source,
    *,
    filesystem: Any = None,
    topic: str | None = None,
    partition: int | None = None,
    high_watermark: int | None = None,
    check_crcs: bool = CHECK_CRCS,
    limits: DecodeLimits = DEFAULT_LIMITS,
    verify_crc: bool | None = None,
) -> Log | LogDirectory:
    """Open a log: a ``.log`` file alone, or a partition directory with all its segments; or a log directory.

    Return a Log, or a LogDirectory for a directory of partitions. open_segment, open_partition and open_log_directory
    open only one of these kinds.

    path:             A local path; a path in `filesystem`; an address such as ``s3://bucket/orders-0``, which pyarrow
                      resolves; or one segment as an object with ``seek`` and ``read``, or with ``read_at(position,
                      size)`` and ``size``. Files are read by ranges, never as a whole.
    filesystem:       An object of pyarrow.fs or fsspec.
    topic, partition: Needed if the name of the directory (``orders-0``) does not contain them.
    high_watermark:   Records from this offset on are ignored; None: no record is.
    check_crcs:       Whether to verify the CRC of each batch that is read; verify_crc is its deprecated name.
    limits:           DecodeLimits for reading.

    topic, partition and high_watermark are for one partition; with a log directory they raise ValueError.

    Raise FileNotFoundError if the path does not exist; ValueError if the file or directory is not a log; TypeError for
    an object that is not a file or filesystem; OSError, with path and bytes, if a read fails.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp(), "orders-0")
    >>> folder.mkdir()
    >>> (folder / "00000000000000000042.log").write_bytes(b"")
    0
    >>> log = open(folder)
    >>> log.topic, log.partition, log.log_start_offset, log.log_end_offset, log.tail, list(log.records())
    ('orders', 0, 42, 42, None, [])
    """
    check_crcs = checks_crcs(check_crcs, verify_crc)
    storage, place = storage_at(path, filesystem)
    for_one: dict[str, Any] = {"topic": topic, "partition": partition, "high_watermark": high_watermark}
    if not storage.is_directory(place):
        return open_segment(place, filesystem=storage, check_crcs=check_crcs, limits=limits, **for_one)
    log = partition_at(storage, place, check_crcs=check_crcs, limits=limits, **for_one)
    if log is not None:
        return log
    directory = open_log_directory(place, filesystem=storage, check_crcs=check_crcs, limits=limits)
    given = [name for name, value in for_one.items() if value is not None]
    if given:
        raise ValueError(
            f"{place} is a log directory: {', '.join(given)} can be given for one partition only (open_partition)"
        )
    return directory


def open_log_directory(
    path: Source,
    *,
    filesystem: Any = None,
    check_crcs: bool = CHECK_CRCS,
    limits: DecodeLimits = DEFAULT_LIMITS,
    verify_crc: bool | None = None,
) -> LogDirectory:
    """Open a log directory: one with partition directories, or with files that only a broker writes.

    The arguments are those of open().

    Raise FileNotFoundError if the directory does not exist or has neither, and ValueError for a partition directory.
    """
    storage, place = storage_at(path, filesystem)
    if not storage.is_directory(place):
        raise FileNotFoundError(f"{place}: no such directory")
    entries = storage.list(place)
    if has_segments(entries):
        raise ValueError(f"{place} is a partition directory: open it with kcodec.open or open_partition")
    if not _is_log_directory(storage, place, entries):
        below = _log_directories_below(storage, place, entries)
        if below:
            names = " or ".join(below[:MAX_NAMED_PARTITIONS])
            raise FileNotFoundError(f"{place} is not a log directory, but contains one: open {names}")
        raise FileNotFoundError(
            f"{place}: the directory is not a partition directory, because it has no segment (20 digits and .log), and "
            f"not a log directory, because it has no {META_PROPERTIES}, no checkpoint and no partition directory such "
            "as orders-0"
        )
    return LogDirectory(place, storage, entries, check_crcs=checks_crcs(check_crcs, verify_crc), limits=limits)


def _is_log_directory(storage: Storage, directory: str, entries: list[Entry]) -> bool:
    """Return whether a directory has files of a broker, or directories of partitions: these are named like orders-0,
    and have files of a partition or are empty. The name alone is not enough: a node-1 may be anything."""
    if any(entry.name in MARKS and not entry.is_directory for entry in entries):
        return True
    for entry in entries:
        if _partition_of(entry) is not None:
            inside = storage.list(storage.join(directory, entry.name))
            if not inside or has_segments(inside) or any(one.name in PARTITION_MARKS for one in inside):
                return True
    return False


def _log_directories_below(storage: Storage, directory: str, entries: list[Entry]) -> list[str]:
    """Return the log directories below another directory, from the highest level at which there are any."""
    level = [(directory, entries)]
    searched = 0
    for _ in range(SEARCH_LEVELS):
        paths = [storage.join(path, one.name) for path, inside in level for one in sorted(inside) if one.is_directory]
        paths = paths[: SEARCHED_DIRECTORIES - searched]
        searched += len(paths)
        level = [(path, storage.list(path)) for path in paths]
        found = [path for path, inside in level if _is_log_directory(storage, path, inside)]
        if found:
            return found
    return []


def _partition_of(entry: Entry) -> TopicPartition | None:
    match = PARTITION_DIRECTORY.fullmatch(entry.name) if entry.is_directory else None
    return TopicPartition(match[1], int(match[2])) if match else None


def _kind_of(entry: Entry) -> str:
    if not entry.is_directory:
        return "file"
    match = RENAMED.fullmatch(entry.name)
    return match[1] if match else "directory"
