# SPDX-License-Identifier: Apache-2.0
"""Header names that are not UTF-8: in Arrow what Java shows, in Python a name that can be turned back."""

from __future__ import annotations

import itertools

import pyarrow as pa
from batch_writer import RecordSpec, build_batch
from java_judge import JavaJudge
from reference_batch import java_string

import kcodec
from kcodec import _fast

EDGE = (
    0x00,
    0x41,
    0x7F,
    0x80,
    0x8F,
    0x90,
    0x9F,
    0xA0,
    0xBF,
    0xC0,
    0xC1,
    0xC2,
    0xDF,
    0xE0,
    0xE1,
    0xEC,
    0xED,
    0xEE,
    0xEF,
)
HIGH = (0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xF8, 0xFF)
BEHIND = (0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC2, 0xF0)
# What java.lang.String(bytes, UTF_8) of Java 21 gave; "?" stands for U+FFFD.
JAVA_TEXTS = {
    "eda080": "?",
    "edbfbf": "?",
    "eda080edb080": "??",
    "fffe": "??",
    "c3": "?",
    "c328": "?(",
    "c080": "??",
    "e282": "?",
    "e28261": "?a",
    "e080": "??",
    "e08080": "???",
    "f09f98": "?",
    "f09f9841": "?A",
    "f0808080": "????",
    "f4908080": "????",
    "f8888080": "????",
    "61ff62": "a?b",
    "c3a9ff": "é?",
    "efbfbd": "?",
    "efbbbf61": "\ufeffa",
    "f09f9880": "😀",
}


def names_as_arrow(names: list[bytes]) -> tuple[list[str], list[str]]:
    """What Arrow and what Python have of a record's header names."""
    data = build_batch([RecordSpec(headers=tuple((name, None) for name in names)), RecordSpec(headers=((b"ok", b""),))])
    result = kcodec.decode(data, columns=("headers",))
    table = pa.table(result)
    table.validate(full=True)
    assert table["headers"][1].as_py() == [{"key": "ok", "value": b""}]
    return [entry["key"] for entry in table["headers"][0].as_py()], [name for name, _ in result.column("headers")[0]]


def test_names_that_are_not_utf8_become_what_java_shows() -> None:
    in_arrow, in_python = names_as_arrow([bytes.fromhex(name) for name in JAVA_TEXTS])
    assert in_arrow == [text.replace("?", "\ufffd") for text in JAVA_TEXTS.values()]
    assert [name.encode("utf-8", "surrogateescape").hex() for name in in_python] == list(JAVA_TEXTS)


def test_every_kind_of_malformed_name_becomes_what_java_shows(java_home: object) -> None:
    names = [bytes(name) for size in (1, 2, 3) for name in itertools.product(EDGE + HIGH, repeat=size)]
    names += [bytes((first, *rest)) for first in EDGE[-6:] + HIGH for rest in itertools.product(BEHIND, repeat=3)]
    in_arrow, in_python = names_as_arrow(names)
    assert in_arrow == [java_string(name) for name in names]
    assert [name.encode("utf-8", "surrogateescape") for name in in_python] == names
    with JavaJudge() as judge:
        judged = judge.record_set(build_batch([RecordSpec(headers=tuple((name, None) for name in names))]))
    (batch,) = judged.batches
    assert batch.records is not None
    assert [name for name, _ in batch.records[0].headers] == in_arrow


def test_names_across_batches_and_slices_stay_with_their_rows() -> None:
    rows = [RecordSpec(headers=((b"\xed\xa0\x80", b"%d" % at),) * (at % 3)) for at in range(40)]
    decoder = _fast.Decoder(columns=("headers",), max_rows=7)
    decoder.feed(build_batch(rows[:19]) + build_batch(rows[19:], base_offset=19, compression="lz4"))
    parts = [pa.table(part) for part in decoder.take(flush=True)]
    for part in parts:
        part.validate(full=True)
    found = [row for part in parts for row in part["headers"].to_pylist()]
    assert found == [[{"key": "\ufffd", "value": b"%d" % at}] * (at % 3) for at in range(40)]
