# SPDX-License-Identifier: Apache-2.0
"""Records that Kafka writes for itself: every one of the captured logs as Kafka's own tools show it, unknown types and
versions, and hostile bytes."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import golden_data
import pytest
from internal_truth import Truth, check_record
from opened_logs import open_log

from kcodec.log import decode_internal_record, internal_record
from kcodec.log.internal.records import (
    COORDINATOR_RECORDS,
    decode_control_record,
    decode_coordinator_record,
    decode_metadata_record,
)

PARTITIONS = [partition for partition in golden_data.partitions() if partition.topic.startswith("__")]


class Reported(NamedTuple):
    """A record as stored, for what needs no batch around it."""

    key: bytes | None
    value: bytes | None
    control_type: int | None = None


def truths(partition: golden_data.Partition) -> Iterator[Truth]:
    return (record for batch in partition.batches for record in batch["records"])


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_every_captured_record_is_shown_as_kafka_shows_it(partition: golden_data.Partition) -> None:
    records = list(open_log(partition.path).records(control_records="include"))
    reported = list(truths(partition))
    assert len(records) == len(reported) > 0
    for record, truth in zip(records, reported, strict=True):
        shown = internal_record(partition.topic, record)
        assert shown is not None
        json.dumps(shown)
        check_record(shown, truth)


def test_markers_are_shown_in_every_topic_and_other_records_in_none() -> None:
    log = open_log(golden_data.root() / "tv2" / "logs" / "txn-java-0")
    shown = [internal_record("txn-java", record) for record in log.records(control_records="include")]
    assert {reported["type"] for reported in shown if reported is not None} == {"COMMIT", "ABORT"}
    assert {"type": "COMMIT", "version": 0, "value": {"coordinator_epoch": 0}} in shown
    assert sum(reported is None for reported in shown) == len(list(log.records()))


def coordinator(topic: str, key: bytes | None, value: bytes | None) -> dict[str, Any]:
    return decode_coordinator_record(COORDINATOR_RECORDS[topic], key, value).to_dict()


GROUP_KEY = struct.pack(">hh", 1, 1) + b"g" + struct.pack(">h", 1) + b"t" + struct.pack(">i", 3)


@pytest.mark.parametrize(
    ("version", "value", "expected"),
    [
        (0, struct.pack(">qh", 7, 1) + b"m" + struct.pack(">q", 99), {}),
        (1, struct.pack(">qh", 7, 1) + b"m" + struct.pack(">qq", 99, 100), {"expire_timestamp": 100}),
        (2, struct.pack(">qh", 7, 1) + b"m" + struct.pack(">q", 99), {}),
        (3, struct.pack(">qih", 7, 5, 1) + b"m" + struct.pack(">q", 99), {"leader_epoch": 5}),
        (4, struct.pack(">qi", 7, 5) + b"\x02m" + struct.pack(">q", 99) + b"\x00", {"leader_epoch": 5}),
    ],
)
def test_commits_of_every_version_are_read(version: int, value: bytes, expected: dict[str, Any]) -> None:
    for number, name in ((0, "LegacyOffsetCommit"), (1, "OffsetCommit")):
        key = struct.pack(">h", number) + GROUP_KEY[2:]
        assert coordinator("__consumer_offsets", key, struct.pack(">h", version) + value) == {
            "type": name,
            "key": {"group": "g", "topic": "t", "partition": 3},
            "version": version,
            "value": {"offset": 7, "metadata": "m", "commit_timestamp": 99, **expected},
        }


def test_an_unknown_record_is_described_and_is_no_error() -> None:
    key = {"group": "g", "topic": "t", "partition": 3}
    assert coordinator("__consumer_offsets", b"\x00\x09\x00\x01g", b"\x00\x00") == {
        "type": "unknown (9)",
        "error": "record type 9 is not known",
    }
    assert coordinator("__consumer_offsets", GROUP_KEY, b"\x00\x05rest") == {
        "type": "OffsetCommit",
        "key": key,
        "version": 5,
        "error": "OffsetCommitValue version 5 is unknown; expected 0 to 4",
    }
    assert coordinator("__consumer_offsets", GROUP_KEY, b"\x00")["error"] == (
        "the value has 1 byte, expected a version of 2 bytes first"
    )
    assert coordinator("__consumer_offsets", b"\x00", None) == {"type": "unknown", "error": "a key of 1 bytes"}
    assert coordinator("__consumer_offsets", None, b"") == {"type": "unknown", "error": "no key"}
    assert coordinator("__consumer_offsets", GROUP_KEY, None) == {"type": "OffsetCommit", "key": key, "value": None}
    assert decode_metadata_record(b"\x01\x3f\x00").to_dict() == {
        "type": "unknown (63)",
        "version": 0,
        "error": "record type 63 is not known",
    }
    assert decode_metadata_record(b"\x02\x02\x00").error == "frame of a metadata record: frame version 2, expected 1"
    assert decode_metadata_record(None).error == "a metadata record has no value"
    assert (
        decode_metadata_record(b"\x01\x18\x00\x00!").error
        == "EndTransactionRecord version 0: 1 bytes follow the message"
    )
    assert decode_control_record(b"\x00\x00\x00\x09", b"\x00\x00").error == "control type 9 is not known"
    assert decode_control_record(b"\xff\xff\x00\x01", b"\x00\x00").error == "key version -1 is not known"
    assert decode_control_record(b"\x00\x00", b"").error == (
        "a key of 2 bytes: version and type of a control record take 4"
    )


def test_a_newer_end_marker_and_a_newer_key_are_read_as_far_as_they_are_known() -> None:
    value = struct.pack(">hi", 3, 12) + b"more"
    assert decode_control_record(b"\x00\x02\x00\x01", value).to_dict() == {
        "type": "COMMIT",
        "version": 3,
        "value": {"coordinator_epoch": 12},
    }


def test_a_leader_change_of_version_1_brings_directories() -> None:
    voter = struct.pack(">i", 1) + bytes(range(16)) + b"\x00"
    value = struct.pack(">hi", 1, 1) + b"\x02" + voter + b"\x01" + b"\x00"
    shown = decode_control_record(b"\x00\x00\x00\x02", value).to_dict()
    assert shown["value"] == {
        "version": 1,
        "leader_id": 1,
        "voters": [{"voter_id": 1, "voter_directory_id": "AAECAwQFBgcICQoLDA0ODw"}],
        "granting_voters": [],
    }


def shown(topic: str, key: bytes | None, value: bytes | None) -> dict[str, Any]:
    found = internal_record(topic, Reported(key, value))  # type: ignore[arg-type]
    assert found is not None
    return found


def test_text_that_is_not_utf8_is_shown_as_java_shows_it() -> None:
    """An encoded surrogate is one U+FFFD in Java and three in Python (test_record_messages.py runs Kafka's class)."""
    key = struct.pack(">hh", 0, 3) + b"\xed\xa0\x80"
    assert shown("__transaction_state", key, None)["key"] == {"transactional_id": "\ufffd"}


def test_bytes_that_kafka_refuses_are_an_error() -> None:
    """A tag of a later version, and a string above 32767 bytes (test_record_messages.py runs Kafka's class)."""
    change = b"\x01\x11\x00" + bytes(12)
    assert "error" not in shown("__cluster_metadata", None, change + b"\x00")
    later = shown("__cluster_metadata", None, change + b"\x01\x01\x01\x01")
    assert "the tag 1 belongs to other versions" in later["error"]
    feature = shown("__cluster_metadata", None, b"\x01\x0c\x00" + b"\x81\x80\x02" + b"f" * 32768 + bytes(3))
    assert "name at byte 6: the string has 32768 bytes" in feature["error"]


def test_edited_records_are_described_and_never_raise() -> None:
    chance = random.Random(5)
    for partition in PARTITIONS:
        records = list(open_log(partition.path).records(control_records="include"))
        for record in chance.sample(records, min(len(records), 120)):
            reported = Reported(record.key, record.value, record.control_type)
            for _ in range(8):
                shown = internal_record(partition.topic, edited(chance, reported))  # type: ignore[arg-type]
                assert shown is not None
                json.dumps(shown)
                assert ("error" in shown) != ("value" in shown)


def edited(chance: random.Random, reported: Reported) -> Reported:
    """One byte changed, or the end cut off, in key or value."""
    name = chance.choice([part for part in ("key", "value") if getattr(reported, part)])
    content = bytearray(getattr(reported, name))
    at = chance.randrange(len(content))
    if chance.random() < 0.3:
        del content[at:]
    else:
        content[at] = chance.choice((0, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    changed: Any = {name: bytes(content)}
    return reported._replace(**changed)


def test_a_tombstone_is_one_and_an_unreadable_record_is_none() -> None:
    kinds = COORDINATOR_RECORDS["__consumer_offsets"]
    assert decode_coordinator_record(kinds, GROUP_KEY, None).is_tombstone
    assert not decode_coordinator_record(kinds, GROUP_KEY, b"\x00\x63").is_tombstone
    assert not decode_coordinator_record(kinds, GROUP_KEY[:-1], None).is_tombstone
    record = Reported(GROUP_KEY, None)
    reported = decode_internal_record("__consumer_offsets", record)  # type: ignore[arg-type]
    assert reported is not None
    assert reported.is_tombstone
