# SPDX-License-Identifier: Apache-2.0
"""``kcodec dump`` compared with kafka-dump-log, Kafka's own tool, over every golden segment: the same batches and
records.

DumpLogSegments prints keys and values as text and escapes nothing, so that a record may take several lines; of headers
it prints the names only. The quorum's own log is left out: its records are printed as JSON there.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden_data
import pytest
from cli_runner import run
from java_judge import FETCH, JVM_OPTIONS, JudgeUnavailable
from reference_batch import java_string

from kcodec.text import unescape

TIMEOUT_SECONDS = 120.0
BATCH = re.compile(
    r"baseOffset: (?P<base>-?\d+) lastOffset: (?P<last>-?\d+) count: (?P<count>\d+) baseSequence: (?P<sequence>-?\d+) "
    r"lastSequence: -?\d+ producerId: (?P<id>-?\d+) producerEpoch: (?P<epoch>-?\d+) "
    r"partitionLeaderEpoch: (?P<leader>-?\d+) isTransactional: (?P<transactional>\w+) isControl: (?P<control>\w+) "
    r"deleteHorizonMs: (?P<horizon>\S+) position: (?P<position>\d+) (?P<type>\w+): (?P<timestamp>-?\d+) "
    r"size: (?P<size>\d+) magic: (?P<magic>\d) compresscodec: (?P<codec>\w+) crc: (?P<crc>\d+) isvalid: (?P<valid>\w+)"
)
RECORD = re.compile(
    r"\| offset: (?P<offset>\d+) (?P<type>\w+): (?P<timestamp>-?\d+) keySize: (?P<key_size>-?\d+) "
    r"valueSize: (?P<value_size>-?\d+) sequence: (?P<sequence>-?\d+) headerKeys: \[(?P<names>.*?)\](?P<rest>.*)",
    re.DOTALL,
)
MARKER = re.compile(r" endTxnMarker: (\w+) coordinatorEpoch: (-?\d+)")
LINE = re.compile(r" *(\d+)  +(\S+) +(-?\d+) +(-?\d+) +(-?\d+)  (.*)")


def dump_log(files: list[Path]) -> Iterator[tuple[Path, str]]:
    """The entries that kafka-dump-log prints: file and text, a record's newlines kept."""
    if not FETCH.is_complete(FETCH.DEFAULT_TOOLS, FETCH.TOOLS):
        raise JudgeUnavailable("Kafka's command line tools are not in .cache/kafka-tools: run `make jars`")
    command = [str(FETCH.find_java()), *JVM_OPTIONS, "-cp", f"{FETCH.DEFAULT_TOOLS}/*"]
    command += ["-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8"]
    command += ["org.apache.kafka.tools.DumpLogSegments", "--print-data-log", "--files", ",".join(map(str, files))]
    done = subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_SECONDS)
    file, entry = files[0], ""
    for line in done.stdout.decode("utf-8", "replace").split("\n"):
        if line.startswith(("Dumping ", "Log starting offset: ", "baseOffset: ", "| offset: ")):
            if entry:
                yield file, entry
            entry = line if line.startswith(("baseOffset", "|")) else ""
            if line.startswith("Dumping "):
                file = Path(line.removeprefix("Dumping "))
        elif entry:
            entry += "\n" + line
    if entry:
        yield file, entry.rstrip("\n")


@pytest.fixture(scope="module")
def reported() -> dict[Path, list[str]]:
    """Every segment of the golden archive but the quorum's own, whose records the tool prints in another way."""
    partitions = [one for one in golden_data.partitions(2) if not one.name.startswith("__cluster")]
    files = [path for partition in partitions for path in partition.segments]
    found: dict[Path, list[str]] = {path: [] for path in files}
    for file, entry in dump_log(files):
        found[file].append(entry)
    return found


def batches_of(path: Path) -> list[dict[str, Any]]:
    import json

    return [json.loads(line) for line in run("dump", "--json", path).data.splitlines()]


def test_batches_are_those_of_kafka_dump_log(reported: dict[Path, list[str]]) -> None:
    assert len(reported) > 150
    for path, entries in reported.items():
        matches = [match for entry in entries if (match := BATCH.match(entry))]
        found = batches_of(path)
        assert len(found) == len(matches)
        for batch, match in zip(found, matches, strict=True):
            horizon = re.fullmatch(r"OptionalLong\[(\d+)\]", match["horizon"])
            numbers = ("base", "last", "count", "sequence", "id", "epoch", "leader", "position", "timestamp")
            assert [int(match[name]) for name in (*numbers, "size", "crc")] == [
                batch[name]
                for name in (
                    *("base_offset", "last_offset", "records_count", "base_sequence", "producer_id", "producer_epoch"),
                    *("partition_leader_epoch", "position", "max_timestamp", "size_in_bytes", "crc"),
                )
            ]
            assert (match["type"], match["codec"]) == (batch["timestamp_type"], batch["compression"])
            flags = (batch["is_transactional"], batch["is_control_batch"], batch["is_valid"])
            assert tuple(match[name] == "true" for name in ("transactional", "control", "valid")) == flags
            assert (int(horizon[1]) if horizon else None) == batch["delete_horizon_ms"]


def test_records_are_those_of_kafka_dump_log(reported: dict[Path, list[str]]) -> None:
    records = 0
    for path, entries in reported.items():
        matches = [match for entry in entries if (match := RECORD.fullmatch(entry))]
        lines = [match for line in run("dump", "--records", path).out.split("\n") if (match := LINE.fullmatch(line))]
        assert len(lines) == len(matches)
        for line, match in zip(lines, matches, strict=True):
            offset, _, sequence, key_size, value_size, rest = line.groups()
            theirs = tuple(int(match[name]) for name in ("offset", "sequence", "key_size", "value_size"))
            assert theirs == (int(offset), int(sequence), int(key_size), int(value_size))
            marker = MARKER.fullmatch(match["rest"])
            if marker:
                assert rest == f"{marker[1]}  coordinator_epoch={marker[2]}"
            else:
                assert payload_of(rest, int(key_size), int(value_size)) == match["rest"]
            records += 1
    assert records > 5000


def payload_of(text: str, key_size: int, value_size: int) -> str:
    """Our fields as that tool prints key and value."""
    shown = ""
    for name, size in (("key", key_size), ("payload", value_size)):
        field, text = split(text, size)
        if size >= 0:
            shown += f" {name}: {java_string(unescape(field) or b'')}"
    return shown


def split(text: str, size: int) -> tuple[str, str]:
    """An escaped field of so many bytes, and what comes behind the gap."""
    end = 2 if size < 0 else 0
    while size > 0:
        escape = re.compile(r"\\x..|\\.").match(text, end)
        size -= len(unescape(escape[0]) or b"") if escape else len(text[end].encode())
        end = escape.end() if escape else end + 1
    return text[:end], text[end + 2 :]
