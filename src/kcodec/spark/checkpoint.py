# SPDX-License-Identifier: Apache-2.0
"""The position of a query of Spark's own Kafka source, from its checkpoint, so that another query can continue there.

A checkpoint (OffsetSeqLog, CommitLog) has two files for each batch: one in ``offsets``, which is written before the
batch runs, and one in ``commits``, which is written afterwards. A file in ``offsets`` contains a version, the metadata
of the batch, and a line for each source. The line has the offsets of the source as JSON, or ``-`` if there are none.
From version 2 on, the name of the source precedes the offsets. ``sources/<source>/0`` contains the offsets at which the
query started.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kcodec.spark.offset_options import parse_partition_numbers
from kcodec.spark.paths import check_scheme

NO_OFFSET = "-"


def offsets_of_checkpoint(path: str, *, source: int | str | None = None, filesystem: Any = None) -> str:
    """Return the next offsets of a query that read with ``format("kafka")``, to be passed as `startingOffsets`.

    They are the end of the last batch that is committed in the checkpoint. A batch that is not committed must be
    read again, so stop the query first. Without a committed batch they are where the query started.

    path: of the checkpoint, `checkpointLocation` of the query: a local path, or an address that pyarrow resolves
    (``s3://...``). filesystem: a ``pyarrow.fs.FileSystem`` that `path` is in. source: the number of the Kafka source
    in the order of the query's plan, or its name; needed where a query has several sources.

    Raise FileNotFoundError if there is no checkpoint, and ValueError if `source` has to be given or is not there, if
    the source is not Kafka, or if the files have an unknown version. Versions 1 and 2, of Spark 3.5 to 4.3, are known.
    """
    files = _Checkpoint(path, filesystem)
    batches = files.numbers("offsets")
    if not batches:
        raise FileNotFoundError(f"{path}: no batch in 'offsets', so it is not the checkpoint of a streaming query")
    committed = set(files.numbers("commits"))
    name: str | None = None
    for batch in sorted(batches, reverse=True):
        sources = _sources(files.lines(f"offsets/{batch}"), f"{path}/offsets/{batch}")
        name = _name_of(sources, source, path)
        if batch in committed and sources[name] != NO_OFFSET:
            return _offsets(sources[name], f"{path}/offsets/{batch}")
    file_path = f"sources/{name}/0"
    lines = files.lines(file_path)
    _check_version(lines, f"{path}/{file_path}", ("v1",))
    return _offsets("".join(lines[1:]), f"{path}/{file_path}")


def _sources(lines: list[str], file_path: str) -> dict[str, str]:
    """Return the offsets of each source, by its number or name."""
    _check_version(lines, file_path, ("v1", "v2"))
    offsets = [line.strip() for line in lines[2:] if line.strip()]
    if lines[0] == "v1":
        return {str(number): line for number, line in enumerate(offsets)}
    pairs = (line.partition(":") for line in offsets)
    return {name: offset for name, _, offset in pairs}


def _check_version(lines: list[str], file_path: str, known: Iterable[str]) -> None:
    if not lines or lines[0] not in known:
        raise ValueError(
            f"{file_path}: expected version {' or '.join(known)} in its first line, found "
            f"{repr(lines[0]) if lines else 'an empty file'}"
        )


def _name_of(sources: Mapping[str, str], source: int | str | None, path: str) -> str:
    names = list(sources)
    if source is None:
        if len(names) == 1:
            return names[0]
        raise ValueError(f"{path}: the query has the sources {', '.join(names)}: name one of them by `source`")
    if str(source) in sources:
        return str(source)
    if isinstance(source, int) and 0 <= source < len(names):
        return names[source]
    raise ValueError(f"{path}: the query has no source {source!r}; it has {', '.join(names)}")


def _offsets(text: str, file_path: str) -> str:
    try:
        found = parse_partition_numbers("startingOffsets", text)
    except ValueError:
        raise ValueError(f"{file_path}: expected the offsets of a Kafka source, found {text!r}") from None
    each: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(found.items()):
        each.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return json.dumps(each, separators=(",", ":"))


class _Checkpoint:
    """The files of a checkpoint in any file system."""

    def __init__(self, path: str, filesystem: Any) -> None:
        from pyarrow import fs

        if filesystem is None:
            check_scheme(path)
            filesystem, path = fs.FileSystem.from_uri(path) if "://" in path else (fs.LocalFileSystem(), path)
        self._filesystem = filesystem
        self._path = path.removeprefix("file:").rstrip("/")

    def numbers(self, folder: str) -> list[int]:
        """Return the numbers of the batches that have a file in a folder. Other files (``.0.crc``, temporary files) are
        ignored."""
        from pyarrow import fs

        selector = fs.FileSelector(f"{self._path}/{folder}", allow_not_found=True)
        return [int(info.base_name) for info in self._filesystem.get_file_info(selector) if info.base_name.isdecimal()]

    def lines(self, name: str) -> list[str]:
        """Return the lines of a file, without the zero byte that Spark writes at the beginning of files in
        ``sources``."""
        with self._filesystem.open_input_stream(f"{self._path}/{name}") as file:
            return str(file.read().decode("utf-8")).removeprefix("\0").splitlines()
