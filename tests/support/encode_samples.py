# SPDX-License-Identifier: Apache-2.0
"""Rows that the tests of encode share, and the expected records."""

from __future__ import annotations

from typing import Any, Literal

import kcodec
from kcodec import Record

CodecName = Literal["none", "gzip", "snappy", "lz4", "zstd"]
CODECS: tuple[CodecName, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
ROWS = [
    (b"a", b"one", (), 1000),
    (None, b"", (("h", b"x"), ("h", None), ("", b"")), 999),
    (b"", None, (), -1),
    (b"k" * 70, b"v" * 9000, (("n" * 200, b"y" * 300),), 1 << 40),
]


def fields(record: Record) -> tuple[Any, ...]:
    return record.key, record.value, record.headers, record.timestamp


def decoded(data: Any) -> list[Record]:
    return list(kcodec.decode(data).records())
