# SPDX-License-Identifier: Apache-2.0
"""A folder whose files are committed all together or not at all, even after a kill: staging, manifests, recovery.

The folder of a landing, for instance /data/orders:

    _landings/000000000007.json              manifest of landing 7, and the commit point
    _landings/000000000008-<run>/            staging of a run that wants to become landing 8
    _landings/000000000008-<run>/<id>.staged
    000000000007-00000-orders-3-450.parquet  published files; also below topic=orders/partition=3

A run stages its files, commits, and publishes:

1. Tasks write files with new names into the staging folder of the run. No manifest lists the files that failed or
   repeated tasks leave there.
2. The manifest is written into the staging folder, and then gets its final name, on a local file system by a hard
   link. The name contains the number of the landing. If two runs try to get the same number, the second one gets
   LandingError. When the manifest has its final name, the landing is committed, and the next run continues after it.
3. Each file is renamed to its final name. After the last file, the staging folder is removed.

If a run finds the staging folder of the last manifest, the previous run was killed in step 3. The run finishes this
step first. Any other staging folder whose number is not above that of the last manifest can never be committed, and is
removed.

Readers of Parquet files ignore names that begin with an underscore (Spark, pyarrow), or read `*.parquet` (DuckDB,
polars). They therefore see only published files. This module uses ``pyarrow.fs``, and neither Spark nor Kafka's
protocol.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcodec.offsets import TopicPartition
from kcodec.spark.paths import check_scheme
from kcodec.spark.planner import StreamOffsets

if TYPE_CHECKING:
    from pyarrow import fs

logger = logging.getLogger("kcodec.spark")
HIDDEN = "_landings"
VERSION = 1
#: What `os.link` fails with where there are no hard links.
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
COUNTS = ("lost_offsets", "skipped_batches")
MANIFEST = re.compile(r"(\d{12})\.json")
STAGING = re.compile(r"(\d{12})-[0-9a-f]{32}")
#: Of a topic's name in the name of a file: most file systems allow 255 bytes, a topic may have 249.
TOPIC_CHARACTERS = 128


class LandingError(RuntimeError):
    """A folder of landings cannot be used: another run has committed first, or its files are not as expected."""


@dataclass(frozen=True, slots=True)
class LandedFile:
    """A file of a landing.

    path:        Path relative to the folder.
    rows, bytes: Number of rows, and size of the file.
    topic, partition, start, end: Offsets [start, end) of its task. All files of one task have the same values.
    """

    path: str
    rows: int
    bytes: int
    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Landing:
    """What one call of `land` added to a folder.

    path:      The folder.
    number:    Number of the landing, from 1; None if there was nothing to land.
    files:     The files, in the order of the tasks.
    offsets:   Offset of each partition at which the next landing continues.
    schema:    Schema of the files, as Arrow prints it.
    committed: Time of the commit, ISO 8601 in UTC.
    lost_offsets:    Number of offsets that were no longer in the log (failOnDataLoss=False).
    skipped_batches: Number of corrupt batches that were left out (mode="permissive").
    """

    path: str
    number: int | None
    files: tuple[LandedFile, ...] = ()
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    schema: str = ""
    committed: str = ""
    lost_offsets: int = 0
    skipped_batches: int = 0

    @property
    def rows(self) -> int:
        """The number of rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """The number of bytes of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def paths(self) -> list[str]:
        """The paths of the files, including the folder, for readers."""
        return [f"{self.path}/{file.path}" for file in self.files]

    def __repr__(self) -> str:
        if self.number is None:
            return f"<Landing in {self.path}: nothing to land>"
        return (
            f"<Landing {self.number} in {self.path}: {self.rows} rows in {len(self.files)} files, {self.bytes} bytes>"
        )


@dataclass(frozen=True)
class StagedFile:
    """A file that a task has written: its name in the staging folder, and its final path."""

    staged: str
    file: LandedFile


@dataclass(frozen=True)
class Manifest:
    """The contents of a manifest: a landing, the names of its files in the staging folder, and the position of the next
    landing."""

    number: int
    run: str
    committed: str
    files: tuple[StagedFile, ...]
    position: StreamOffsets
    schema: str
    lost_offsets: int
    skipped_batches: int

    def to_json(self) -> str:
        """Return the text of the manifest."""
        value = {
            "v": VERSION,
            "number": self.number,
            "run": self.run,
            "committed": self.committed,
            "schema": self.schema,
            "lost_offsets": self.lost_offsets,
            "skipped_batches": self.skipped_batches,
            "offsets": self.position.to_dict(),
            "files": [{"staged": each.staged, **asdict(each.file)} for each in self.files],
        }
        return json.dumps(value, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, path: str) -> Manifest:
        """Return the manifest in a text. Raise LandingError if the text is invalid, or has a later version."""
        try:
            value = json.loads(text)
            if value["v"] != VERSION:
                raise ValueError(f"version {value['v']!r}: expected version {VERSION}")
            files = tuple(
                StagedFile(each["staged"], LandedFile(**{name: each[name] for name in LandedFile.__slots__}))
                for each in value["files"]
            )
            position = StreamOffsets.from_dict(value["offsets"])
            return cls(
                files=files,
                position=position,
                **{name: value[name] for name in ("number", "run", "committed", "schema", *COUNTS)},
            )
        except (ValueError, KeyError, TypeError) as error:
            raise LandingError(
                f"{path} is not a valid manifest of a landing ({type(error).__name__}: {error})"
            ) from None


class LandingFolder:
    """A folder of landings, in a file system of pyarrow."""

    def __init__(self, path: str | os.PathLike[str], filesystem: Any = None) -> None:
        self.filesystem, self.path = resolve(path, filesystem)
        self._hidden = f"{self.path}/{HIDDEN}"

    def landings(self) -> list[Landing]:
        """Return the landings that are published completely, in their order."""
        numbers, staged = self._listed()
        if numbers and any(name.startswith(f"{numbers[-1]:012d}-") for name in staged):
            last = self._manifest(numbers[-1])
            numbers = numbers[:-1] if last.run in staged else numbers
        return [self.landing_of(self._manifest(number)) for number in numbers]

    def landing_of(self, manifest: Manifest) -> Landing:
        """Return the Landing for the caller of `land` from a manifest."""
        return Landing(
            path=self.path,
            number=manifest.number,
            files=tuple(each.file for each in manifest.files),
            offsets=manifest.position.offsets,
            schema=manifest.schema,
            committed=manifest.committed,
            lost_offsets=manifest.lost_offsets,
            skipped_batches=manifest.skipped_batches,
        )

    def recover(self) -> Manifest | None:
        """Finish the publication of the last landing. Remove staging folders that can never be committed. Return its
        manifest."""
        numbers, staged = self._listed()
        if not numbers:
            return None
        last = self._manifest(numbers[-1])
        if last.run in staged:
            logger.info("%s: publishing landing %d, which an earlier run committed", self.path, last.number)
            self.publish(last)
        self._sweep(last.number, staged - {last.run})
        return last

    def begin(self, after: Manifest | None) -> str:
        """Create the staging folder of a run that follows a manifest. Return its name."""
        number = 1 if after is None else after.number + 1
        run = f"{number:012d}-{uuid.uuid4().hex}"
        self.filesystem.create_dir(self.staging(run), recursive=True)
        return run

    def staging(self, run: str) -> str:
        """Return the path of the staging folder of a run."""
        return f"{self._hidden}/{run}"

    def commit(self, manifest: Manifest) -> None:
        """Commit a landing. Raise LandingError if one of its files is missing, or if its number is already used."""
        if self._exists(self._manifest_path(manifest.number)):
            raise self._conflict(manifest.number)
        self._check_staged(manifest)
        staged, final = f"{self.staging(manifest.run)}/manifest.json", self._manifest_path(manifest.number)
        with self.filesystem.open_output_stream(staged) as file:
            file.write(manifest.to_json().encode())
        if not self._is_local:
            self._move_manifest(staged, final, manifest.number)
            return
        sync(staged)
        sync(self.staging(manifest.run))
        try:
            os.link(staged, final)
        except FileExistsError:
            # Over a network, a link that was made may be reported so, as its request was repeated.
            if self._manifest(manifest.number).run != manifest.run:
                raise self._conflict(manifest.number) from None
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            self._move_manifest(staged, final, manifest.number)
        sync(self._hidden)

    def _move_manifest(self, staged: str, final: str, number: int) -> None:
        """Move the manifest on a file system without hard links, where for a moment two runs can get the same
        number."""
        if self._exists(final):
            raise self._conflict(number)
        self.filesystem.move(staged, final)

    def publish(self, manifest: Manifest) -> None:
        """Rename the files of a landing that do not have their final names yet, and remove its staging folder."""
        created = set()
        for each in manifest.files:
            staged, final = f"{self.staging(manifest.run)}/{each.staged}", f"{self.path}/{each.file.path}"
            folder = final.rpartition("/")[0]
            if folder not in created:
                self.filesystem.create_dir(folder, recursive=True)
                created.add(folder)
            try:
                self.filesystem.move(staged, final)
            except FileNotFoundError:
                # The run that died here had renamed it, or a run at work at the same time has.
                if not self._exists(final):
                    raise LandingError(
                        f"{final} of landing {manifest.number} is missing, and so is {staged}; they were removed by "
                        "another program"
                    ) from None
        if self._is_local:
            # A new folder is an entry of the one above it.
            above = {str(each) for folder in created for each in Path(folder).parents if each.is_relative_to(self.path)}
            for folder in sorted(created | above, reverse=True):
                sync(folder)
        self.discard(manifest.run)

    def discard(self, run: str) -> None:
        """Remove the staging folder of a run, if it exists."""
        with suppress(FileNotFoundError):  # A run at work at the same time has removed it.
            self.filesystem.delete_dir(self.staging(run))

    def sweep(self, number: int) -> None:
        """Remove the staging folders that can no longer be committed after the landing of this number."""
        self._sweep(number, self._listed()[1])

    def _sweep(self, number: int, staged: set[str]) -> None:
        for run in sorted(staged):
            if int(run[:12]) <= number:
                logger.info("%s: removing %s/%s, which a run left without a commit", self.path, HIDDEN, run)
                self.discard(run)

    def _listed(self) -> tuple[list[int], set[str]]:
        """Return the sorted numbers of the manifests, and the names of the staging folders."""
        from pyarrow import fs

        infos = self.filesystem.get_file_info(fs.FileSelector(self._hidden, allow_not_found=True))
        names = [info.base_name for info in infos]
        numbers = [int(match.group(1)) for match in map(MANIFEST.fullmatch, names) if match]
        return sorted(numbers), {name for name in names if STAGING.fullmatch(name)}

    def _manifest(self, number: int) -> Manifest:
        path = self._manifest_path(number)
        with self.filesystem.open_input_stream(path) as file:
            return Manifest.from_json(file.read().decode("utf-8", "replace"), path)

    def _manifest_path(self, number: int) -> str:
        return f"{self._hidden}/{number:012d}.json"

    def _check_staged(self, manifest: Manifest) -> None:
        from pyarrow import fs

        infos = self.filesystem.get_file_info(fs.FileSelector(self.staging(manifest.run), allow_not_found=True))
        sizes = {info.base_name: info.size for info in infos}
        for each in manifest.files:
            found = sizes.get(each.staged)
            if found != each.file.bytes:
                state = "is missing" if found is None else f"has {found} bytes"
                raise LandingError(
                    f"{self.staging(manifest.run)}/{each.staged} {state}, but a task wrote {each.file.bytes} bytes: "
                    "the path must be the same folder on the driver and on all executors"
                )

    def _conflict(self, number: int) -> LandingError:
        return LandingError(
            f"{self.path}: another run has committed landing {number} in the meantime, so this run was discarded; "
            "run one land() at a time in a folder"
        )

    def _exists(self, path: str) -> bool:
        from pyarrow import fs

        return bool(self.filesystem.get_file_info(path).type != fs.FileType.NotFound)

    @property
    def _is_local(self) -> bool:
        from pyarrow import fs

        return isinstance(self.filesystem, fs.LocalFileSystem)


def resolve(path: str | os.PathLike[str], filesystem: Any) -> tuple[fs.FileSystem, str]:
    """Return the file system and the path in it: of a local path, or of an address (``s3://bucket/orders``)."""
    from pyarrow import fs

    text = os.fspath(path)
    if filesystem is None and "://" in text:
        found, text = fs.FileSystem.from_uri(text)
    elif filesystem is None:
        check_scheme(text)
        found, text = fs.LocalFileSystem(), str(Path(text.removeprefix("file:")).absolute())
    elif isinstance(filesystem, fs.FileSystem):
        found = filesystem
    else:
        found = fs.PyFileSystem(fs.FSSpecHandler(filesystem))
    if not text.rstrip("/"):
        raise ValueError(f"path is {os.fspath(path)!r}: expected a folder")
    return found, text.rstrip("/")


def sync(path: str) -> None:
    """Write a local file or folder to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_path(number: int, task: int, part: int, topic: str, partition: int, start: int, by: Sequence[str]) -> str:
    """Return the path of a published file relative to the folder. The numbers of landing and task make it unique.

    by: "topic" and "partition", for folders named as in Hive.
    """
    values = {"topic": topic, "partition": partition}
    folders = "".join(f"{name}={values[name]}/" for name in by)
    suffix = f"-{part}" if part else ""
    return f"{folders}{number:012d}-{task:05d}-{topic[:TOPIC_CHARACTERS]}-{partition}-{start}{suffix}.parquet"


def now() -> str:
    """Return the time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
