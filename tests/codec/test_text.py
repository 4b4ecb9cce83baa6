# SPDX-License-Identifier: Apache-2.0
"""kcodec.text: records as text, held against json, csv and datetime of the standard library, and back to the bytes."""

from __future__ import annotations

import base64
import csv
import datetime
import io
import json
import pickle
from typing import Any

import pytest
from batch_writer import RecordSpec, build_batch, control_batch, end_transaction_marker
from hypothesis import given
from hypothesis import strategies as st

import kcodec
from kcodec.text import TextTemplate, csv_lines, json_lines, rule_of_json, unescape

ODD_BYTES = (
    None,
    b"",
    b"plain",
    b'{"id":1,"quoted":"a\\"b"}',
    b"\x00\x01\x1f\x7f\x80",
    b"tab\tnewline\ncarriage\rbackslash\\",
    "naïve 雪 \U0001f600 \u0085 \u2028".encode(),
    b"\xed\xa0\x80",
    b"\xff" * 5,
    b"\\N",
    b"base64:no",
    b'comma,quote"newline\n',
    b'"' * 9000,
    b"\xe2\x82",
    b"1234567\\",
    b"12345678\x7f",
    bytes(range(256)),
)
ALL = (*kcodec.COLUMNS[:-2], "coordinator_epoch")


def decoded_of(values: Any, **options: Any) -> kcodec.DecodedRecords:
    """A record for each value, which is its key, its value, and that of a header with its bytes as name."""
    specs = [
        RecordSpec(key=value, value=value, headers=() if value is None else ((value, value), (b"n", None)))
        for value in values
    ]
    columns = kcodec.COLUMNS[:-2]
    return kcodec.decode(build_batch(specs), columns=columns, control_records="include", **options)


def text_of(template: TextTemplate, decoded: kcodec.DecodedRecords, **options: Any) -> bytes:
    return bytes(memoryview(template.format(decoded, **options)))


def bytes_of_json(value: Any) -> bytes | None:
    """The rule, read back."""
    if value is None:
        return None
    return value.encode("utf-8") if isinstance(value, str) else base64.b64decode(value["base64"], validate=True)


@pytest.mark.parametrize("binary_type", ["binary", "large_binary", "binary_view"])
def test_json_gives_back_every_byte(binary_type: str) -> None:
    lines = text_of(json_lines(ALL), decoded_of(ODD_BYTES, binary_type=binary_type)).splitlines()
    assert len(lines) == len(ODD_BYTES)
    for line, value in zip(lines, ODD_BYTES, strict=True):
        reported = json.loads(line)
        assert list(reported) == list(ALL)
        assert bytes_of_json(reported["key"]) == bytes_of_json(reported["value"]) == value
        expected = [] if value is None else [[value, value], [b"n", None]]
        assert [[bytes_of_json(one["key"]), bytes_of_json(one["value"])] for one in reported["headers"]] == expected
        assert reported["value"] == rule_of_json(value)


@given(st.lists(st.one_of(st.none(), st.binary(), st.text().map(str.encode)), min_size=1, max_size=20))
def test_every_rule_can_be_undone(values: list[bytes | None]) -> None:
    decoded = decoded_of(values)
    template = TextTemplate([("escaped", "key"), b"  ", ("escaped", "value"), b"\n"])
    for line, value in zip(text_of(template, decoded).decode("utf-8").split("\n"), values, strict=False):
        one = line[: len(line) // 2 - 1]
        assert line == f"{one}  {one}"
        assert unescape(one) == value
    for one_object, value in zip(text_of(json_lines(["value"]), decoded).splitlines(), values, strict=True):
        assert bytes_of_json(json.loads(one_object)["value"]) == value
    rows = csv.reader(io.StringIO(text_of(csv_lines(["value"]), decoded).decode("utf-8"), newline=""))
    for row, value in zip(rows, values, strict=False):
        cell = row[0] if row else ""
        reported = base64.b64decode(cell[7:]) if cell.startswith("base64:") else cell.encode("utf-8")
        assert reported == (value or b"")


def test_escaped_text_holds_nothing_that_moves_a_cursor() -> None:
    text = text_of(TextTemplate([("escaped", "value"), b"|"]), decoded_of(ODD_BYTES)).decode("utf-8")
    assert not [character for character in text if ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0]


def test_csv_distinguishes_null_from_empty() -> None:
    assert text_of(csv_lines(["offset", "key", "value"]), decoded_of([None, b"", b"a,b"])) == (
        b'0,,\n1,"",""\n2,"a,b","a,b"\n'
    )


def test_headers_with_separators_in_them_stay_one_header() -> None:
    decoded = decoded_of([b"a=b,c", None])
    assert text_of(TextTemplate([("escaped", "headers", 0, b"  "), b"\n"]), decoded) == (
        b"  a\\x3db\\x2cc=a\\x3db\\x2cc,n=\\N\n\n"
    )
    assert text_of(TextTemplate([("pairs", "headers", 0, b"NULL"), b"\n"]), decoded) == b"a=b,c=a=b,c,n=NULL\n\n"


@pytest.mark.parametrize(
    "timestamp",
    [
        0,
        1,
        -2,
        999,
        -1000,
        951_782_399_999,
        951_782_400_000,
        4_107_542_399_000,
        253_402_300_799_999,
        -62_135_596_800_000,
    ]
    + [1_767_225_600_000 + day * 86_400_000 for day in range(0, 800, 37)],
)
def test_times_are_those_of_datetime(timestamp: int) -> None:
    decoded = kcodec.decode(build_batch([RecordSpec()], base_timestamp=timestamp), columns=["offset", "timestamp"])
    date = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=timestamp)
    expected = date.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert text_of(TextTemplate([("time",)]), decoded).decode() == expected


@pytest.mark.parametrize("timestamp", [-1, 253_402_300_800_000, -62_135_596_800_001, (1 << 63) - 1, -(1 << 63)])
def test_a_timestamp_that_is_no_date_is_its_number(timestamp: int) -> None:
    decoded = kcodec.decode(build_batch([RecordSpec()], base_timestamp=timestamp), columns=["offset", "timestamp"])
    assert text_of(TextTemplate([("time",)]), decoded).decode() == str(timestamp).rjust(24)
    assert text_of(TextTemplate([("integer", "timestamp")]), decoded).decode() == str(timestamp)


def test_numbers_are_padded_to_a_width_and_never_cut() -> None:
    batch = build_batch([RecordSpec(), RecordSpec()], base_offset=99_999)
    decoded = kcodec.decode(batch, columns=["offset"])
    assert text_of(TextTemplate([("integer", "offset", 5), b"|"]), decoded) == b"99999|100000|"
    assert text_of(TextTemplate([("integer", "offset", 8), b"|"]), decoded) == b"   99999|  100000|"


def test_control_records_say_what_they_are() -> None:
    data = end_transaction_marker(1, producer_id=4, base_offset=0, coordinator_epoch=7)
    data += control_batch(2, b"\0\0", base_offset=1) + control_batch(77, b"x", base_offset=2)
    data += build_batch([RecordSpec(b"\0\0\0\1", b"\0\0\0\0\0\7")], base_offset=3)
    decoded = kcodec.decode(data, columns=kcodec.COLUMNS[:-2], control_records="include")
    lines = [json.loads(line) for line in text_of(json_lines(ALL), decoded).splitlines()]
    assert [line["control_type"] for line in lines] == ["COMMIT", "LEADER_CHANGE", 77, None]
    assert [line["coordinator_epoch"] for line in lines] == [7, None, None, None]
    template = TextTemplate([("escaped", "key"), b" ", ("escaped", "value"), b"\n"])
    assert text_of(template, decoded) == (
        b"COMMIT coordinator_epoch=7\nLEADER_CHANGE \\x00\\x00\n77 x\n"
        b"\\x00\\x00\\x00\\x01 \\x00\\x00\\x00\\x00\\x00\\x07\n"
    )


def test_lines_come_before_the_records_of_their_batch() -> None:
    one, two = build_batch([RecordSpec(), RecordSpec()]), build_batch([RecordSpec()], base_offset=0)
    decoded = kcodec.decode(one + two, columns=["offset"])
    lines = [(0, b"first\n"), (5, b"nothing here\n"), (len(one), b"second\n"), (len(one + two), b"end\n")]
    template = TextTemplate([("integer", "offset"), b"\n"])
    assert text_of(template, decoded, lines=lines) == b"first\n0\n1\nnothing here\nsecond\n0\nend\n"
    assert text_of(template, decoded, most=1) == b"0\n"
    assert template.format(decoded, most=2).rows == 2


def test_topic_and_partition_are_constants() -> None:
    decoded = kcodec.decode(build_batch([RecordSpec()]), columns=["offset"])
    lines = json_lines(["topic", "partition", "offset"], topic='o"x', partition=3)
    assert text_of(lines, decoded) == b'{"topic":"o\\"x","partition":3,"offset":0}\n'
    assert text_of(json_lines(["topic", "partition"]), decoded) == b'{"topic":null,"partition":null}\n'


def test_a_long_value_is_written_in_slices() -> None:
    value = ('"\\\n' + "é" * 3 + "plain text ") * 50_000
    decoded = decoded_of([value.encode()])
    assert json.loads(text_of(json_lines(["value"]), decoded))["value"] == value
    assert unescape(text_of(TextTemplate([("escaped", "value")]), decoded).decode()) == value.encode()


def test_wrong_templates_are_refused() -> None:
    for parts in ([("jsn", "key")], [("json", "offset")], [("json", "key", 5000)], [()], [("integer", "value")]):
        with pytest.raises(ValueError, match=r"unknown|width|a part is"):
            TextTemplate(parts)
    with pytest.raises(ValueError, match="did you mean 'offset'"):
        json_lines(["ofset"])
    decoded = kcodec.decode(build_batch([RecordSpec()]), columns=["offset"])
    with pytest.raises(ValueError, match="'value' is missing"):
        json_lines(["value"]).format(decoded)
    with pytest.raises(ValueError, match="not a valid escape"):
        unescape("\\q")


def test_a_template_pickles() -> None:
    template = json_lines(ALL)
    assert pickle.loads(pickle.dumps(template)).parts == template.parts


def test_text_outlives_what_it_was_made_of() -> None:
    text = json_lines(["value"]).format(decoded_of([b"kept"]))
    view = memoryview(text)
    del text
    assert bytes(view) == b'{"value":"kept"}\n'
    with pytest.raises(TypeError):
        view[0] = 0
