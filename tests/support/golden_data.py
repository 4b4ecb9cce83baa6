# SPDX-License-Identifier: Apache-2.0
"""Loads tests/golden/golden.tar.xz: bytes of brokers, and how Kafka's own classes read them (golden/README.md).

    root() -> Path                        the archive, unpacked once into .cache/golden-<first 8 of its SHA-256>
    partitions(magic=None) -> list of Partition, by cluster and name; magic=2: those that hold nothing else
    copies(kind) -> list of Partition     kind "live" (copied from a running broker) or "killed"
    fetched() -> list of Fetched          every record set in a recorded Fetch response
    legacy() -> list of (name, bytes, truth lines)       message sets of magic 0 and 1
    unpack_bytes(reported) -> bytes | None    base64 or null; long ones are a dict: a TypeError, use same_bytes
    same_bytes(value, reported) -> bool       compares bytes with base64, null, or {"size", "sha256"}
    same_headers(headers, reported) -> bool   names are compared as Java shows them

An expected batch or record, called truth, is the dict of its JSON line. golden/README.md describes it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from reference_batch import java_string
from wire_fetch import parse_fetch_response

HERE = Path(__file__).resolve().parent.parent
ARCHIVE = HERE / "golden" / "golden.tar.xz"
CACHE = HERE.parent / ".cache"
CLUSTERS = ("tv0", "tv2")
# Fields of magic 2 that a truth of magic 0 and 1 does not have.
OF_MAGIC_2 = ("attributes", "lastOffsetDelta", "baseTimestampField")
IsolationName = Literal["read_uncommitted", "read_committed"]
Truth = dict[str, Any]


@cache
def root() -> Path:
    """Return the unpacked archive. Several processes may unpack it at the same time, each into a separate folder; the
    first one to rename its folder wins."""
    folder = CACHE / f"golden-{hashlib.sha256(ARCHIVE.read_bytes()).hexdigest()[:8]}"
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    own = Path(tempfile.mkdtemp(prefix="golden-unpacking-", dir=CACHE))
    try:
        with tarfile.open(ARCHIVE, "r:xz") as archive:
            archive.extractall(own / "golden", filter="data")
        try:
            (own / "golden").rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(own)
    return folder


def _lines(path: Path) -> list[Truth]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@cache
def offsets(cluster: str) -> Truth:
    """truth/offsets.json of a cluster."""
    return dict(json.loads((root() / cluster / "truth" / "offsets.json").read_text("utf-8")))


@dataclass(frozen=True)
class Partition:
    """A partition's directory and its truth; `kind` is "logs", "live" or "killed"."""

    cluster: str
    name: str
    kind: str = "logs"

    def __str__(self) -> str:
        return f"{self.cluster}-{self.name}" if self.kind == "logs" else f"{self.cluster}-{self.kind}-{self.name}"

    @property
    def topic(self) -> str:
        return self.name.rpartition("-")[0]

    @property
    def partition(self) -> int:
        return int(self.name.rpartition("-")[2])

    @property
    def path(self) -> Path:
        return root() / self.cluster / self.kind / self.name

    @property
    def segments(self) -> list[Path]:
        """The .log files in order of offsets."""
        return sorted(self.path.glob("*.log"))

    @property
    def log(self) -> bytes:
        """All segments one after the other."""
        return b"".join(path.read_bytes() for path in self.segments)

    @cached_property
    def _truth(self) -> list[Truth]:
        return _lines(self._truth_folder / f"{self.name}.batches.jsonl.gz")

    @property
    def _truth_folder(self) -> Path:
        return root() / self.cluster / "truth" / ("batches" if self.kind == "logs" else self.kind)

    @property
    def batches(self) -> list[Truth]:
        """The batches of the .log files in order, as Kafka reads them."""
        return [line for line in self._truth if line["file"].endswith(".log") and "baseOffset" in line]

    @property
    def checkpoint_batches(self) -> dict[str, list[Truth]]:
        """The batches of the .checkpoint snapshots next to the segments, by file name."""
        names = sorted({line["file"] for line in self._truth if line["file"].endswith(".checkpoint")})
        return {name: [line for line in self._truth if line["file"] == name and "baseOffset" in line] for name in names}

    @property
    def remarks(self) -> list[Truth]:
        """Truth lines that are not batches: bytes that Kafka did not read or rejected."""
        return [line for line in self._truth if "baseOffset" not in line]

    @property
    def auxiliary(self) -> Truth:
        """Indexes, snapshots and checkpoints of the directory, parsed."""
        return dict(json.loads((self._truth_folder / f"{self.name}.aux.json").read_text("utf-8")))

    @property
    def magics(self) -> set[int]:
        return {batch["magic"] for batch in self.batches}

    @property
    def offsets(self) -> Truth | None:
        """logStartOffset, lastStableOffset, highWatermark ... of the broker at its end; None if they were not
        requested."""
        truth: Truth | None = offsets(self.cluster)["partitions"].get(self.name)
        return truth

    @property
    def log_start_offset(self) -> int:
        return int(self.offsets["logStartOffset"]) if self.offsets else 0

    def consumed(self, isolation_level: str) -> list[Truth] | None:
        """Return what Kafka's consumer delivered from the log start on; None if no consumer ran."""
        path = root() / self.cluster / "truth" / "consumer" / f"{self.name}.{isolation_level}.jsonl.gz"
        return _lines(path) if self.kind == "logs" and path.exists() else None


@cache
def partitions(magic: int | None = None) -> list[Partition]:
    """Every partition with a truth; with `magic`, those whose batches all have it."""
    every = [
        Partition(cluster, path.name.removesuffix(".batches.jsonl.gz"))
        for cluster in CLUSTERS
        for path in sorted((root() / cluster / "truth" / "batches").glob("*.batches.jsonl.gz"))
    ]
    return [partition for partition in every if magic is None or partition.magics <= {magic}]


def copies(kind: str) -> list[Partition]:
    """Partitions whose directory was copied from a running ("live") or a killed ("killed") broker."""
    return [
        Partition(cluster, path.name.removesuffix(".batches.jsonl.gz"), kind)
        for cluster in CLUSTERS
        for path in sorted((root() / cluster / "truth" / kind).glob("*.batches.jsonl.gz"))
    ]


@dataclass(frozen=True)
class Fetched:
    """The record set of one partition in one Fetch response; `aborted_transactions` is None under read_uncommitted."""

    name: str
    version: int
    isolation_level: IsolationName
    topic: str
    partition: int
    error_code: int
    fetch_offset: int | None
    position: int
    data: bytes
    aborted_transactions: tuple[tuple[int, int], ...] | None
    last_stable_offset: int
    high_watermark: int
    batches: Sequence[Truth]
    trailing_bytes: int

    def __str__(self) -> str:
        return f"{self.name}-{self.topic}-{self.partition}"

    @property
    def magics(self) -> set[int]:
        return {batch["magic"] for batch in self.batches}


def _topic_names(cluster: str) -> dict[str, str]:
    named = offsets(cluster)["partitions"].items()
    return {truth["topicId"]: name.rpartition("-")[0] for name, truth in named if "topicId" in truth}


def _fetch_offsets(request: Truth) -> dict[tuple[str, int], int]:
    return {
        (topic.get("topic") or topic["topicId"], partition["partition"]): partition["fetchOffset"]
        for topic in request["topics"]
        for partition in topic["partitions"]
    }


def _fetched_in(cluster: str, exchange: Truth, frame: bytes) -> Iterable[Fetched]:
    """The partitions of a response as the frame holds them, each compared with what Kafka's classes printed."""
    request, response = exchange["request"], exchange["response"]
    reported = [(topic, partition) for topic in response["responses"] for partition in topic["partitions"]]
    asked = _fetch_offsets(request)
    names = _topic_names(cluster)
    sets = iter(exchange["responseRecords"])
    parsed = parse_fetch_response(frame, exchange["version"])
    for data, (topic, partition) in zip(parsed, reported, strict=True):
        key = topic.get("topic") or topic["topicId"]
        aborted = partition["abortedTransactions"]
        entries = None if aborted is None else tuple((entry["producerId"], entry["firstOffset"]) for entry in aborted)
        found = None if data.aborted_transactions is None else tuple(data.aborted_transactions)
        if (data.partition, data.last_stable_offset, found) != (
            partition["partitionIndex"],
            partition["lastStableOffset"],
            entries,
        ):
            raise ValueError(f"{exchange['name']}: the frame holds {data}, its truth {partition}")
        if data.records_position is None or data.records_size is None:
            continue
        truth = next(sets)
        yield Fetched(
            name=exchange["name"],
            version=exchange["version"],
            isolation_level="read_committed" if request["isolationLevel"] else "read_uncommitted",
            topic=names.get(key, key),
            partition=data.partition,
            error_code=data.error_code,
            fetch_offset=asked.get((key, data.partition)),
            position=data.records_position,
            data=frame[data.records_position : data.records_position + data.records_size],
            aborted_transactions=entries,
            last_stable_offset=data.last_stable_offset,
            high_watermark=data.high_watermark,
            batches=truth["batches"],
            trailing_bytes=truth["trailingBytes"],
        )


@cache
def fetched() -> list[Fetched]:
    """Every record set of every recorded Fetch response, empty ones included."""
    found: list[Fetched] = []
    for cluster in CLUSTERS:
        folder = root() / "wire" / cluster
        manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        frames = {entry["response"].removesuffix(".res"): entry["response"] for entry in manifest if entry["response"]}
        for path in sorted(folder.glob("*.decoded.jsonl.gz")):
            for exchange in _lines(path):
                if exchange["api"] == "Fetch":
                    frame = (folder / frames[exchange["name"]]).read_bytes()
                    found += _fetched_in(cluster, exchange, frame)
    return found


def legacy() -> list[tuple[str, bytes, list[Truth]]]:
    """The message sets of magic 0 and 1, each with how Kafka reads it."""
    return [
        (
            path.stem,
            path.read_bytes(),
            [json.loads(line) for line in path.with_suffix(".jsonl").read_text("utf-8").splitlines()],
        )
        for path in sorted((root() / "legacy").glob("*.bin"))
    ]


def unpack_bytes(reported: str | None) -> bytes | None:
    """Return bytes of a truth."""
    return None if reported is None else base64.b64decode(reported, validate=True)


def same_bytes(value: bytes | None, reported: str | Truth | None) -> bool:
    """Return whether these bytes equal those of the truth."""
    if isinstance(reported, dict):
        return (
            value is not None
            and len(value) == reported["size"]
            and hashlib.sha256(value).hexdigest() == reported["sha256"]
        )
    return value == unpack_bytes(reported)


def same_headers(headers: Iterable[tuple[str, bytes | None]], reported: list[list[Any]]) -> bool:
    """Return whether these are the headers. Names that are not UTF-8 may contain surrogates or U+FFFD."""
    headers = list(headers)
    return len(headers) == len(reported) and all(
        java_string(name.encode("utf-8", "surrogateescape")) == reported_name and same_bytes(value, reported_value)
        for (name, value), (reported_name, reported_value) in zip(headers, reported, strict=True)
    )
