# SPDX-License-Identifier: Apache-2.0
"""The format of the output: aligned tables, times, JSON lines.

Golden tests check the format. Scripts can rely on the JSON lines, but not on the tables.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from kcodec.cli.output import Output

# Columns take their widths from this number of rows; a wider cell further on moves its own line only.
ROWS_FOR_WIDTHS = 1000
COLOURS = {"good": "\x1b[32m", "bad": "\x1b[31;1m", "notable": "\x1b[33m", "quiet": "\x1b[2m"}
END_OF_COLOUR = "\x1b[0m"
LEAST_TIME, MOST_TIME = -62_135_596_800_000, 253_402_300_799_999


Item = TypeVar("Item")


class Cell(NamedTuple):
    """A cell with a meaning, which its text expresses and a color repeats."""

    text: str
    meaning: str


def time_text(timestamp: int | None) -> str:
    """Return milliseconds as 2026-11-21T09:30:00.000Z; the number if no such date exists, "-" for None."""
    if timestamp is None:
        return "-"
    if timestamp == -1 or not LEAST_TIME <= timestamp <= MOST_TIME:
        return str(timestamp)
    seconds, milliseconds = divmod(timestamp, 1000)
    date = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
    return f"{date:%H:%M:%S}".join((f"{date.year:04}-{date:%m-%d}T", f".{milliseconds:03}Z"))


def duration_text(milliseconds: int) -> str:
    """Return a duration as 0.250 s, 42 s, 14 min, 3 h 20 min or 5 d 3 h."""
    seconds = milliseconds / 1000
    if abs(seconds) < 10:
        return f"{seconds:.3f} s"
    if abs(seconds) < 120:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def cell_text(value: Any) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def coloured(text: str, meaning: str, output: Output) -> str:
    """Return the text, in the color of its meaning if colors are requested."""
    return _painted(text, meaning) if output.has_colour else text


def _painted(text: str, meaning: str) -> str:
    return COLOURS[meaning] + text + END_OF_COLOUR if meaning in COLOURS else text


def json_line(value: Mapping[str, Any]) -> bytes:
    """Return one object on a line, keys in their order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str).encode("utf-8", "replace") + b"\n"


def write_rows(output: Output, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, as_json: bool) -> None:
    """Write rows as a table, or as JSON lines whose keys are the columns."""
    if not as_json:
        write_table(output, columns, rows)
        return
    for row in rows:
        values = (value.text if isinstance(value, Cell) else value for value in row)
        output.write(json_line(dict(zip(columns, values, strict=True))))


def write_items(
    output: Output,
    items: Iterable[Item],
    columns: Sequence[str],
    row: Callable[[Item], Sequence[Any]],
    fields: Callable[[Item], Mapping[str, Any]],
    *,
    as_json: bool,
) -> None:
    """Write items as a table, a `row` each, or as JSON lines of their `fields`."""
    if as_json:
        for item in items:
            output.write(json_line(fields(item)))
    else:
        write_table(output, columns, map(row, items))


def attributes(value: object, names: str) -> dict[str, Any]:
    """Return the attributes of these names, which spaces separate, as fields of a JSON object."""
    return {name: getattr(value, name) for name in names.split()}


def counted(count: int, noun: str) -> str:
    """Return "1 partition", "2 partitions"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def now_ms() -> int:
    """Return the time of this machine in ms."""
    return time.time_ns() // 1_000_000


def write_table(output: Output, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Write an aligned table with a line of column names; numbers to the right. Return the number of rows."""
    rows = iter(rows)
    first = [[_cell(value) for value in row] for row in islice(rows, ROWS_FOR_WIDTHS)]
    cells = [[row[at] for row in first] for at in range(len(columns))]
    rights = [bool(first) and all(cell.meaning == "number" or cell.text == "-" for cell in column) for column in cells]
    widths = [max(len(name), *(len(row[at].text) for row in first), 0) for at, name in enumerate(columns)]
    head = [Cell(name, "quiet") for name in columns]
    output.write(_line(head, widths, rights, output.has_colour))
    count = 0
    for shown in chain(first, ([_cell(value) for value in row] for row in rows)):
        output.write(_line(shown, widths, rights, output.has_colour))
        count += 1
    return count


def _cell(value: Any) -> Cell:
    if isinstance(value, Cell):
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell(cell_text(value), "number" if is_number else "")


def _line(cells: Sequence[Cell], widths: Sequence[int], rights: Sequence[bool], has_colour: bool) -> bytes:
    shown = []
    for cell, width, right in zip(cells, widths, rights, strict=True):
        text = cell.text.rjust(width) if right else cell.text.ljust(width)
        shown.append(_painted(text, cell.meaning) if has_colour else text)
    return ("  ".join(shown).rstrip() + "\n").encode("utf-8", "replace")
