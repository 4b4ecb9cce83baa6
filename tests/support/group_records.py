# SPDX-License-Identifier: Apache-2.0
"""Records of `__consumer_offsets` as a coordinator writes them, and batches of them."""

from __future__ import annotations

import struct
from typing import Any

from batch_writer import BASE_TIMESTAMP, RecordSpec, build_batch


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def commit(offset: int, group: str = "g", topic: str = "t", at: int = 0) -> RecordSpec:
    key = struct.pack(">h", 1) + text(group) + text(topic) + struct.pack(">i", at)
    return RecordSpec(key, struct.pack(">hqi", 3, offset, -1) + text("") + struct.pack(">q", BASE_TIMESTAMP))


def removed(group: str = "g", topic: str = "t", at: int = 0) -> RecordSpec:
    return RecordSpec(commit(0, group, topic, at).key, None)


def classic(group: str, *members: str, generation: int = 1) -> RecordSpec:
    value = struct.pack(">h", 3) + text("consumer") + struct.pack(">ihhqi", generation, -1, -1, 0, len(members))
    for member in members:
        value += text(member) + struct.pack(">h", -1) + text("c") + text("/h") + struct.pack(">iiii", 0, 0, 0, 0)
    return RecordSpec(struct.pack(">h", 2) + text(group), value)


def newer(number: int, group: str, value: bytes | None, member: str | None = None) -> RecordSpec:
    """A record of the newer protocols; value: behind its version."""
    key = struct.pack(">h", number) + text(group) + (b"" if member is None else text(member))
    return RecordSpec(key, None if value is None else b"\x00\x00" + value)


def plain(base_offset: int, *records: RecordSpec) -> bytes:
    return build_batch(list(records), base_offset=base_offset, base_timestamp=BASE_TIMESTAMP)


def within(producer_id: int, base_offset: int, *records: RecordSpec) -> bytes:
    producer: dict[str, Any] = {
        "producer_id": producer_id,
        "producer_epoch": 0,
        "base_sequence": 0,
        "is_transactional": True,
    }
    return build_batch(list(records), base_offset=base_offset, base_timestamp=BASE_TIMESTAMP, **producer)
