# SPDX-License-Identifier: Apache-2.0
"""What stands behind damage, for the oracle in reference.py: whether a batch there can be believed."""

from __future__ import annotations

import struct

from reference_batch import DecodeError, Header, check_fields, crc_is_right, parse_header

LOWEST_OFFSET = -(1 << 63)  # is above nothing, also where nothing came before


def provable(data: bytes, at: int, above: int | None, max_batch_bytes: int) -> bool:
    """Whether a header stands there that can be believed although what came before it was damaged."""
    try:
        header = parse_header(data, at, max_batch_bytes)
        if isinstance(header, int):
            return False
        check_fields(header)
    except DecodeError:
        return False
    return crc_is_right(data, header) and header.base_offset > (LOWEST_OFFSET if above is None else above)


def skip_target(data: bytes, at: int, above: int | None, max_batch_bytes: int) -> int | None:
    """Where the length of the damaged batch at `at` points, if a provable batch stands there."""
    length = struct.unpack_from(">i", data, at + 8)[0]
    target = at + 12 + length
    return target if length >= 0 and provable(data, target, above, max_batch_bytes) else None


def agrees(data: bytes, at: int, above: int, max_batch_bytes: int) -> bool:
    """Whether a header stands there that follows `above`: enough to believe the length of the batch before."""
    try:
        header = parse_header(data, at, max_batch_bytes)
    except DecodeError:
        return False
    return not isinstance(header, int) and header.base_offset > above


def is_message(data: bytes, at: int, max_batch_bytes: int) -> bool:
    """Whether a whole message of magic 0 or 1 stands there: its offset is that of its last record, no base offset."""
    try:
        header = parse_header(data, at, max_batch_bytes)
    except DecodeError:
        return False
    return isinstance(header, Header) and header.magic < 2
