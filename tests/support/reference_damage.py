# SPDX-License-Identifier: Apache-2.0
"""Batches after corruption, for the reference decoder in reference.py: whether a batch there is valid."""

from __future__ import annotations

import struct

from reference_batch import DecodeError, check_fields, crc_is_right, parse_header

LOWEST_OFFSET = -(1 << 63)  # lower bound of offsets if there is no batch before


def provable(data: bytes, at: int, above: int | None, max_batch_bytes: int) -> bool:
    """Return whether a batch with a valid header and CRC begins there, although the data before it is corrupt."""
    try:
        header = parse_header(data, at, max_batch_bytes)
        if isinstance(header, int):
            return False
        check_fields(header)
    except DecodeError:
        return False
    return crc_is_right(data, header) and header.base_offset > (LOWEST_OFFSET if above is None else above)


def skip_target(data: bytes, at: int, above: int | None, max_batch_bytes: int) -> int | None:
    """Return the end of the corrupt batch at `at`, according to its length, if a valid batch begins there."""
    length = struct.unpack_from(">i", data, at + 8)[0]
    target = at + 12 + length
    return target if length >= 0 and provable(data, target, above, max_batch_bytes) else None


def agrees(data: bytes, at: int, above: int, max_batch_bytes: int) -> bool:
    """Return whether a header with a base offset above `above` begins there, which confirms the length before it."""
    try:
        header = parse_header(data, at, max_batch_bytes)
    except DecodeError:
        return False
    return not isinstance(header, int) and header.base_offset > above
