# SPDX-License-Identifier: Apache-2.0
"""The table of findings of a check, with severities and remedies."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath

from kcodec.errors import DecodeError

ERROR, WARNING, NOTICE = "error", "warning", "notice"
# Number of findings of one kind in one file that are reported one by one; the rest are counted.
MOST_ALIKE = 10

_RECOPY = "take the segment from another replica: stop this broker, delete the partition's directory, start it again"
_REBUILD = "delete the file while the broker is stopped: the broker writes a new one at its next start"
_NEXT_ROLL = "delete the file while the broker is stopped: the log, or the next snapshot, has the state of producers"

# For each code: severity, meaning and remedy. {topic}, {partition} and {offset} are those of the finding.
CODES: dict[str, tuple[str, str, str]] = {
    "bad-crc": (ERROR, "the CRC of a batch does not match its bytes; the package crc32c confirms it", _RECOPY),
    "crc-disagreement": (
        ERROR,
        "kcodec and the package crc32c compute different checksums of a batch",
        "check this machine's memory and processor, then report it to kcodec with these bytes",
    ),
    "bad-batch": (ERROR, "no record batch begins where the one before ends", _RECOPY),
    "cut-batch": (ERROR, "a segment that is not the last ends within a batch", _RECOPY),
    "bad-record": (ERROR, "the checksum of a batch is right but its records cannot be read", _RECOPY),
    "record-offsets": (
        WARNING,
        "offsets of records within a batch do not increase, or are outside of the batch; consumers skip some records",
        "no repair is possible: find the producer that wrote it",
    ),
    "unsupported": (
        WARNING,
        "a message format or compression that kcodec does not read",
        "read it with the Kafka version that wrote it",
    ),
    "offset-order": (ERROR, "base offsets do not increase from batch to batch", _RECOPY),
    "overlapping-segments": (
        ERROR,
        "a batch is outside the offsets given by the names of its segment and the next one",
        "log cleaning or a copy was interrupted: stop the broker, and keep the segments of one of the two",
    ),
    "torn-tail": (
        WARNING,
        "the last append is incomplete, as the broker died; it has no data that all replicas acknowledged",
        "start the broker: it truncates the tail",
    ),
    "offset-gap": (
        WARNING,
        "offsets are missing, without other signs of compaction",
        "compare with another replica: batches may have been lost",
    ),
    "sequence-gap": (
        WARNING,
        "a producer's sequence numbers have a gap that compaction does not explain",
        "compare with another replica: a batch may have been lost, or the producer's state had expired",
    ),
    "producer-epoch": (
        WARNING,
        "a batch of an older epoch follows one of a newer epoch: a fenced producer wrote it",
        "compare with another replica, and look for a second producer with this transactional id",
    ),
    "mixed-transaction": (
        ERROR,
        "a producer with an open transaction wrote a batch outside of it",
        "compare with another replica: a broker refuses such a batch",
    ),
    "open-transaction": (
        NOTICE,
        "a transaction has no end marker yet: read_committed consumers stop before it",
        "wait for its end, or run kafka-transactions.sh find-hanging",
    ),
    "hanging-transaction": (
        WARNING,
        "a transaction is open longer than coordinators allow: read_committed consumers wait for it",
        "end it: kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic {topic} --partition {partition} "
        "--start-offset {offset}",
    ),
    "index-entry": (ERROR, "an entry of an index contradicts the log", _REBUILD),
    "index-order": (ERROR, "entries of an index do not increase", _REBUILD),
    "index-size": (WARNING, "an index ends within an entry", _REBUILD),
    "index-not-trimmed": (WARNING, "the index of a segment that is not the last one still ends with zeros", _REBUILD),
    "index-incomplete": (ERROR, "the time index of a full segment lacks its largest timestamp", _REBUILD),
    "index-missing": (WARNING, "a segment has no index, but others do", "start the broker: it writes a new one"),
    "index-unreadable": (ERROR, "an index cannot be read", _REBUILD),
    "transaction-index-entry": (
        ERROR,
        "an entry of a .txnindex does not match the markers: consumers may drop the wrong records",
        _REBUILD,
    ),
    "transaction-index-incomplete": (
        ERROR,
        "an aborted transaction is not in the .txnindex: read_committed consumers may receive its records",
        _REBUILD,
    ),
    "snapshot-unreadable": (ERROR, "a .snapshot cannot be read", _NEXT_ROLL),
    "snapshot-disagrees": (ERROR, "a .snapshot contradicts the log about a producer", _NEXT_ROLL),
    "snapshot-beyond-log": (
        WARNING,
        "the offset of a .snapshot is after the end of the log: the log was truncated later",
        _NEXT_ROLL,
    ),
    "leader-epoch": (
        ERROR,
        "leader-epoch-checkpoint contradicts the leader epochs of batches: replicas may truncate wrongly",
        "take the partition from another replica: stop this broker, delete its directory, start it again",
    ),
    "checkpoint-unreadable": (
        ERROR,
        "a checkpoint or metadata file cannot be read",
        "delete it while the broker is stopped; restore partition.metadata and meta.properties instead",
    ),
    "leftover": (
        NOTICE,
        "a file of an interrupted log cleaning (.cleaned, .swap), or one to be deleted (.deleted)",
        "start the broker: it finishes or removes it",
    ),
}


@dataclass(frozen=True)
class Finding:
    """A finding of a check.

    code, severity, remedy: As in CODES. Severity "error": data, or a file that Kafka relies on, is wrong. "warning":
                            unusual, but no data is lost for certain. "notice": information.
    path:     The file.
    position: Byte in the file; None if it does not apply.
    offset:   Offset in the log; None if it does not apply.
    text:     What was found, and what was expected.
    """

    code: str
    severity: str
    path: str
    position: int | None
    offset: int | None
    text: str
    remedy: str

    def __str__(self) -> str:
        place = "" if self.position is None else f"byte {self.position}: "
        if self.offset is not None:
            place = f"byte {self.position} (offset {self.offset}): " if place else f"offset {self.offset}: "
        return f"{self.path}: {place}{self.text} ({self.code})"


def finding(
    code: str, path: str | os.PathLike[str], text: str, *, position: int | None = None, offset: int | None = None
) -> Finding:
    """Return a Finding with severity and remedy from CODES; the directory's name gives topic and partition."""
    severity, _meaning, remedy = CODES[code]
    if "{" in remedy:
        topic, _, partition = PurePath(path).parent.name.rpartition("-")
        remedy = remedy.format(topic=topic or "TOPIC", partition=partition or "PARTITION", offset=offset)
    return Finding(code, severity, os.fspath(path), position, offset, text, remedy)


def unreadable(code: str, path: str | os.PathLike[str], error: Exception) -> Finding:
    """Return a finding of a file that cannot be read."""
    return finding(code, path, error.reason if isinstance(error, DecodeError) else str(error))


class Flood:
    """Findings of one kind in one file. The first MOST_ALIKE are described, the others are counted.

    The description of a finding takes more time than the check, and a malicious file can cause millions of findings.
    """

    def __init__(self, code: str, path: str | os.PathLike[str]) -> None:
        self._code, self._path = code, path
        self._count = 0

    def is_full(self) -> bool:
        """Count one more finding. Return whether there are too many to describe it."""
        self._count += 1
        return self._count > MOST_ALIKE

    def rest(self) -> Iterator[Finding]:
        """Yield one finding for all that were not described. `without_floods` reports their number."""
        if self._count > MOST_ALIKE:
            plain = finding(self._code, self._path, "")
            yield _More(**vars(plain), count=self._count - MOST_ALIKE)


@dataclass(frozen=True)
class _More(Finding):
    """Findings that were counted and not described. `without_floods` never yields such an object."""

    count: int


def without_floods(found: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings. If one file has more than MOST_ALIKE of a kind, yield the number of the others instead."""
    seen: Counter[tuple[str, str]] = Counter()
    for one in found:
        seen[one.code, one.path] += one.count if isinstance(one, _More) else 1
        if seen[one.code, one.path] <= MOST_ALIKE:
            yield one
    for (code, path), count in seen.items():
        if count > MOST_ALIKE:
            yield finding(code, path, f"{count - MOST_ALIKE} more like these")
