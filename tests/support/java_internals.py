# SPDX-License-Identifier: Apache-2.0
"""Kafka's own classes for internal records and log directories: further calls of the Java program of java_judge.py."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

from java_judge import JavaJudge


class WrittenMessage(NamedTuple):
    """A message as Kafka writes it: its bytes, and the JSON of Kafka's converter."""

    data: bytes
    json: dict[str, Any]


def written_message(judge: JavaJudge, name: str, version: int, reported: dict[str, Any]) -> WrittenMessage:
    """Return the message that the generated class of this full name reads from JSON."""
    spelt = name.encode()
    question = struct.pack(">chi", b"J", version, len(spelt)) + spelt + json.dumps(reported).encode()
    answer = judge._ask(question)
    return WrittenMessage(base64.b64decode(answer["data"]), answer["json"])


class LoadedLog(NamedTuple):
    """The state of a broker that has loaded a directory: base offsets of segments and records, or its error."""

    segments: list[int]
    records: list[tuple[int, bytes]]
    error: dict[str, str] | None


def loaded_log(judge: JavaJudge, directory: Path) -> LoadedLog:
    """Start a broker's log on a directory. It changes the directory: give it a copy."""
    answer = judge._ask(b"D" + str(directory).encode())
    segments = answer.get("segments", [])
    records = [(offset, base64.b64decode(value)) for segment in segments for offset, value in segment["records"]]
    return LoadedLog([segment["baseOffset"] for segment in segments], records, answer.get("error"))


def recovered_offsets(
    judge: JavaJudge, directory: Path, timestamps: list[int], index_interval_bytes: int, *, clean: bool = False
) -> list[int | None]:
    """Start a broker's log on a directory, look up offsets for these timestamps, and close it.

    It changes the directory, as recovery does: indexes and snapshots are built again. clean: it was shut down cleanly,
    so the newest snapshot is loaded.
    """
    question = struct.pack(f">c?ii{len(timestamps)}q", b"T", clean, index_interval_bytes, len(timestamps), *timestamps)
    found: list[int | None] = judge._ask(question + str(directory).encode())["offsets"]
    return found


class CoordinatedGroup(NamedTuple):
    """A group as the coordinator knows it: offsets by (topic, partition), and those that an open transaction covers."""

    protocol_type: str
    offsets: dict[tuple[str, int], int]
    unstable: set[tuple[str, int]]


def coordinated_groups(judge: JavaJudge, data: bytes) -> dict[str, CoordinatedGroup]:
    """Return the groups and committed offsets of the group coordinator after it has replayed this log."""
    return {
        name: CoordinatedGroup(
            reported["protocolType"],
            {(topic, partition): offset for topic, partition, offset in reported["offsets"]},
            {(topic, partition) for topic, partition, _ in reported["unstable"]},
        )
        for name, reported in judge._ask(b"G" + data)["groups"].items()
    }
