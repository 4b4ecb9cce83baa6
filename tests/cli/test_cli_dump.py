# SPDX-License-Identifier: Apache-2.0
"""``kcodec dump``: what it shows of golden files is what Kafka's own classes say of them, and how it looks."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import golden_data
import pytest
from batch_writer import RecordSpec, build_batch
from cli_runner import long_partition, orders, partition, run, same_as_golden
from golden_data import Partition, same_bytes
from log_files import COMMIT, data, marker, plain
from log_files import partition as write_partition
from reference_batch import java_string

from kcodec.cli import ExitStatus
from kcodec.text import unescape

PARTITIONS = golden_data.partitions(2)
OLD = [partition for partition in golden_data.partitions() if partition.magics & {0, 1}]
COPIES = golden_data.copies("live") + golden_data.copies("killed")
# Header field of Kafka's truth -> key of ours, where they are spelt alike but for the case.
HEADER = {
    "baseOffset": "base_offset",
    "lastOffset": "last_offset",
    "position": "position",
    "size": "size_in_bytes",
    "magic": "magic",
    "crc": "crc",
    "producerId": "producer_id",
    "producerEpoch": "producer_epoch",
    "baseSequence": "base_sequence",
    "partitionLeaderEpoch": "partition_leader_epoch",
    "maxTimestamp": "max_timestamp",
    "baseTimestampField": "base_timestamp",
    "deleteHorizonMs": "delete_horizon_ms",
    "lastSequence": "last_sequence",
    "attributes": "attributes",
    "count": "records_count",
    "compression": "compression",
    "timestampType": "timestamp_type",
    "isTransactional": "is_transactional",
    "isControl": "is_control_batch",
    "valid": "is_valid",
}


def json_of(*arguments: str | Path) -> list[dict[str, Any]]:
    ran = run("dump", "--json", *arguments)
    return [json.loads(line) for line in ran.data.splitlines()]


def bytes_of(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode("utf-8") if isinstance(value, str) else base64.b64decode(value["base64"])


@pytest.mark.parametrize("partition", PARTITIONS + COPIES, ids=str)
def test_batches_are_those_kafka_reads(partition: Partition) -> None:
    found = json_of(partition.path)
    assert len(found) == len(partition.batches)
    for batch, reported in zip(found, partition.batches, strict=True):
        assert Path(batch["path"]).name == reported["file"]
        assert {ours: batch[ours] for ours in HEADER.values()} == {
            ours: reported[name] for name, ours in HEADER.items()
        }


def same_headers(found: list[dict[str, Any]], reported: list[list[Any]]) -> bool:
    return len(found) == len(reported) and all(
        java_string(bytes_of(one["key"]) or b"") == name and same_bytes(bytes_of(one["value"]), value)
        for one, (name, value) in zip(found, reported, strict=True)
    )


@pytest.mark.parametrize("partition", PARTITIONS + COPIES, ids=str)
def test_records_are_those_kafka_reads(partition: Partition) -> None:
    found = json_of("--records", partition.path)
    reported = [(batch, record) for batch in partition.batches for record in batch["records"]]
    assert len(found) == len(reported)
    for record, (batch, expected) in zip(found, reported, strict=True):
        assert (record["offset"], record["timestamp"]) == (expected["offset"], expected["timestamp"])
        assert same_bytes(bytes_of(record["key"]), expected["key"])
        assert same_bytes(bytes_of(record["value"]), expected["value"])
        assert same_headers(record["headers"], expected["headers"])
        assert record["base_offset"] == batch["baseOffset"]
        assert (record["producer_id"], record["producer_epoch"]) == (batch["producerId"], batch["producerEpoch"])
        assert record["sequence"] == expected["sequence"]


@pytest.mark.parametrize("partition", OLD, ids=str)
def test_records_of_old_formats_are_those_kafka_reads(partition: Partition) -> None:
    found = json_of("--records", partition.path)
    reported = [record for batch in partition.batches for record in batch["records"]]
    assert [(one["offset"], one["timestamp"]) for one in found] == [
        (one["offset"], one["timestamp"]) for one in reported
    ]
    for record, expected in zip(found, reported, strict=True):
        assert same_bytes(bytes_of(record["key"]), expected["key"])
        assert same_bytes(bytes_of(record["value"]), expected["value"])
    kinds = [(batch["magic"], batch["timestamp_type"], batch["records_count"]) for batch in json_of(partition.path)]
    assert [kind[0] for kind in kinds] == [batch["magic"] for batch in partition.batches]
    assert all((kind[1] == "NoTimestampType") == (kind[0] == 0) for kind in kinds)
    assert ("records_count -" in run("dump", "--records", partition.path).out) == any(kind[2] is None for kind in kinds)


LINE = re.compile(r" *(-?\d+)  ( *\S+)  +(-?\d+)  +(-?\d+)  +(-?\d+)  (.*)")


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_text_says_the_same_as_json(partition: Partition) -> None:
    """A line is taken apart by its sizes, so that nothing in a key can be mistaken for the gap behind it."""
    reported = json_of("--records", partition.path)
    lines = run("dump", "--records", partition.path).out.split("\n")
    found = [line for line in lines if LINE.fullmatch(line)]
    assert len(found) == len(reported)
    assert len([line for line in lines if line.startswith("batch ")]) == len(partition.batches)
    for line, record in zip(found, reported, strict=True):
        match = LINE.fullmatch(line)
        assert match
        offset, _, sequence, key_size, value_size, rest = match.groups()
        key, value = bytes_of(record["key"]), bytes_of(record["value"])
        assert (int(offset), int(sequence)) == (record["offset"], record["sequence"])
        assert (int(key_size), int(value_size)) == tuple(-1 if one is None else len(one) for one in (key, value))
        if record["is_control"]:
            assert rest.startswith(f"{record['control_type']}  ")
            continue
        assert [unescape(part) for part in split_by_sizes(rest, int(key_size), int(value_size))] == [key, value]


def split_by_sizes(text: str, *sizes: int) -> list[str]:
    """Escaped fields with two spaces between, each of so many bytes."""
    found = []
    for size in sizes:
        end = 0
        if size < 0:
            end = 2
        while size > 0:
            escape = re.compile(r"\\x..|\\.").match(text, end)
            taken = escape[0] if escape else text[end]
            size -= len(unescape(taken) or b"") if escape else len(taken.encode())
            end += len(taken)
        found.append(text[:end])
        text = text[end + 2 :]
    return found


# ------------------------------------------------------------------------------------------------------- how it looks


def test_the_table_of_batches() -> None:
    assert same_as_golden(run("dump", partition("txn-java-0") / f"{7:020}.log").out, "dump-batches.txt")


def test_the_table_of_an_old_and_odd_partition() -> None:
    for name in ("compact-txn-0", "raw-odd-0", "appendtime-java-lz4-0"):
        path = sorted(partition(name).glob("*.log"))[0]
        assert same_as_golden(run("dump", path).out, f"dump-batches-{name}.txt")


def test_records_below_their_batches() -> None:
    path = partition("txn-java-0") / f"{7:020}.log"
    assert same_as_golden(run("dump", "--records", "--offsets", "7:20", path).out, "dump-records.txt")
    assert same_as_golden(run("dump", "--records", "--json", "--offsets", "7:12", path).out, "dump-records.jsonl")


@pytest.mark.parametrize(
    "name",
    [
        "txn-java-0/00000000000000000058.index",
        "txn-java-0/00000000000000000058.timeindex",
        "txn-java-0/00000000000000000058.txnindex",
        "txn-java-0/00000000000000000058.snapshot",
        "txn-java-0/leader-epoch-checkpoint",
        "txn-java-0/partition.metadata",
        "log-start-offset-checkpoint",
        "meta.properties",
    ],
)
def test_the_other_files(name: str) -> None:
    path, short = partition(name), Path(name).name.lstrip("0")
    assert same_as_golden(run("dump", path).out, f"dump-{short}.txt")
    assert same_as_golden(run("dump", "--json", path).out, f"dump-{short}.jsonl")


def test_a_log_directory_is_a_table_of_its_partitions(tmp_path: Path) -> None:
    for number in (0, 10, 2):
        write_partition(tmp_path, [plain(0)], [plain(3)], name=f"orders-{number}")
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\norders 2 6\n")
    found = json_of(tmp_path)
    assert [(row["topic"], row["partition"]) for row in found] == [("orders", 0), ("orders", 2), ("orders", 10)]
    assert {(row["segments"], row["first_segment_offset"], row["last_segment_offset"]) for row in found} == {(2, 0, 3)}
    assert [row["high_watermark"] for row in found] == [None, 6, None]
    assert len(run("dump", tmp_path).out.splitlines()) == 4
    assert "need a partition" in run("dump", "--records", tmp_path).err


def test_several_files_have_headings_and_a_directory_stands_for_its_segments(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, [plain(0)], [plain(3), plain(6)])
    lines = run("dump", directory).out.splitlines()
    assert [line for line in lines if line.endswith(".log")] == [str(path) for path in sorted(directory.glob("*.log"))]
    assert len(lines) == 2 + 1 + 2 + 1 + 2


def test_offsets_choose_batches_and_records(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, [plain(0), plain(3), plain(6)])
    assert [batch["base_offset"] for batch in json_of("--offsets", "4:6", directory)] == [3]
    assert [record["offset"] for record in json_of("--records", "--offsets", "4:7", directory)] == [4, 5, 6]
    assert [record["offset"] for record in json_of("--records", "--offsets", "8:", directory)] == [8]
    assert [record["offset"] for record in json_of("--records", "--offsets", "2", directory)] == [2]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_nothing(tmp_path: Path, threads: int) -> None:
    directory = long_partition(tmp_path, 200, count=100, size=200)
    ran = run("dump", "--records", "--threads", str(threads), directory)
    offsets = [int(line.split()[0]) for line in ran.out.splitlines()[1:] if not line.startswith("batch")]
    assert offsets == list(range(20_000))
    assert len([line for line in ran.out.splitlines() if line.startswith("batch")]) == 200


# ----------------------------------------------------------------------------------------------------- what is damaged


def damaged(batch: bytes, at: int = 70) -> bytes:
    return batch[:at] + bytes([batch[at] ^ 1]) + batch[at + 1 :]


@pytest.mark.parametrize("options", [(), ("--records",)])
def test_a_corrupt_batch_is_shown_and_passed_over(tmp_path: Path, options: tuple[str, ...]) -> None:
    directory = write_partition(tmp_path, [plain(0), damaged(plain(3)), plain(6)])
    ran = run("dump", *options, directory)
    assert ran.status is ExitStatus.FINDINGS
    assert "BAD" in ran.out
    assert ran.err.count("\n") == 1
    assert f"batch at byte {len(plain(0))} (base_offset 3): the stored CRC" in ran.err
    last = ran.out.splitlines()[-1].split()
    assert last[0] == ("8" if options else "6")


def test_an_unreadable_record_is_reported_after_the_other_records(tmp_path: Path) -> None:
    broken = build_batch([RecordSpec(value=b"x" * 20)], base_offset=3, records_count=2)
    directory = write_partition(tmp_path, [plain(0), broken, plain(6)])
    ran = run("dump", "--records", directory)
    assert ran.status is ExitStatus.FINDINGS
    assert "UNREADABLE" in ran.out
    assert [line.split()[0] for line in ran.out.splitlines()[-3:]] == ["6", "7", "8"]
    assert run("dump", directory).status is ExitStatus.OK


def test_a_torn_tail_is_reported(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, [plain(0), plain(3)[:50]])
    ran = run("dump", directory)
    assert ran.status is ExitStatus.FINDINGS
    assert f"50 bytes from byte {len(plain(0))} on are no batch: the last batch is incomplete" in ran.err


def test_a_structure_that_is_none_ends_the_file(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, [plain(0), b"\xff" * 200], [plain(9)])
    ran = run("dump", directory)
    assert ran.status is ExitStatus.FINDINGS
    assert "batch_length -1 is below 14" in ran.err
    assert ran.out.splitlines()[-1].split()[0] == "9"


def test_a_cut_index_entry_is_reported(tmp_path: Path) -> None:
    path = tmp_path / f"{5:020}.index"
    path.write_bytes((7).to_bytes(4, "big") + (100).to_bytes(4, "big") + b"\1\2\3")
    ran = run("dump", path)
    assert ran.out.splitlines()[1].split() == ["12", "100"]
    assert "3 bytes of an incomplete entry" in ran.err


def test_a_corrupt_snapshot_is_a_finding(tmp_path: Path) -> None:
    source = partition("txn-java-0") / f"{58:020}.snapshot"
    path = tmp_path / source.name
    path.write_bytes(damaged(source.read_bytes(), 20))
    ran = run("dump", path)
    assert ran.status is ExitStatus.FINDINGS
    assert "stored CRC" in ran.err


@pytest.mark.parametrize("seed", range(20))
def test_hostile_segments_never_raise(tmp_path: Path, seed: int) -> None:
    import random

    draw = random.Random(seed)
    whole = bytearray(b"".join([plain(0), data(1, 3), plain(5), marker(COMMIT, 1, 8), plain(9, compression="zstd")]))
    for _ in range(draw.randrange(1, 6)):
        whole[draw.randrange(len(whole))] = draw.randrange(256)
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(whole[: draw.randrange(len(whole))] if seed % 3 == 0 else whole)
    for options in ((), ("--records",), ("--json",), ("--records", "--json")):
        ran = run("dump", *options, path)
        assert ran.status in (ExitStatus.OK, ExitStatus.FINDINGS)
        assert (ran.status is ExitStatus.OK) == (ran.err == "")


def test_records_of_an_index_are_refused(tmp_path: Path) -> None:
    ran = run("dump", "--records", orders(tmp_path) / f"{7:020}.index")
    assert ran.status is ExitStatus.ERROR
    assert "omit --records" in ran.err


@pytest.mark.parametrize("command", ["dump", "check", "cat"])
def test_an_empty_path_is_refused(command: str) -> None:
    ran = run(command, "")
    assert ran.status is ExitStatus.ERROR
    assert "the path is empty; name a file or a directory" in ran.err
