# SPDX-License-Identifier: Apache-2.0
"""The transactions of a partition as text: offsets from left to right, one line per producer and epoch.

    ├──◆ committed    ├▒▒✕ aborted    ├──▶ open    ┊ last_stable_offset    ┃ high_watermark

The shape shows the outcome, and the color repeats it. If a column stands for several offsets, the end of a transaction
hides the beginning of another, and a later transaction hides an earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence

from kcodec.cli.output import Output
from kcodec.cli.parser import CommandError
from kcodec.cli.render import coloured
from kcodec.log import Log, Transaction

LEAST_WIDTH = 40
MOST_LANES = 1000
SHAPES = {"committed": ("─", "◆"), "aborted": ("▒", "✕"), "open": ("─", "▶")}
MEANINGS = {"◆": "good", "✕": "bad", "▒": "bad", "▶": "notable", "┊": "notable"}
LEGEND = "◆ commit marker   ✕ abort marker   ▶ open   ┊ last_stable_offset   ┃ high_watermark"


def draw(log: Log, width: int, output: Output) -> None:
    """Write the picture of one log."""
    if width < LEAST_WIDTH:
        raise CommandError(f"--width must be at least {LEAST_WIDTH}, not {width}")
    lanes: dict[str, list[Transaction]] = {}
    for one in log.transactions:
        lanes.setdefault(f"producer {one.producer_id}", []).append(one)
    name = log.path if log.topic is None else f"{log.topic}-{log.partition}"
    margin = max([len(name), *map(len, list(lanes)[:MOST_LANES])]) + 2
    scale = _Scale(log.log_start_offset, log.high_watermark, max(10, width - margin))
    stable = scale.column(log.last_stable_offset)
    rows = [name.ljust(margin) + scale.ruler()]
    for lane, transactions in list(lanes.items())[:MOST_LANES]:
        rows.append(lane.ljust(margin) + _shown(_lane(transactions, scale, stable), output))
    if not lanes:
        rows.append("(no transaction)".ljust(margin) + _shown(_lane([], scale, stable), output))
    if len(lanes) > MOST_LANES:
        rows.append(f"... and {len(lanes) - MOST_LANES} more producers")
    rows.append(" " * margin + LEGEND)
    output.write(("\n".join(row.rstrip() for row in rows) + "\n").encode("utf-8", "surrogateescape"))


class _Scale:
    """Converts offsets to columns."""

    def __init__(self, first: int, end: int, width: int) -> None:
        self.first = first
        self.end = max(end, first + 1)
        self.width = width

    def column(self, offset: int) -> int:
        """Return the column of an offset; the high watermark is the last column."""
        share = (min(max(offset, self.first), self.end) - self.first) / (self.end - self.first)
        return int(share * (self.width - 1))

    def ruler(self) -> str:
        """Return the offsets above their columns, as far apart as their digits need."""
        line, free = [" "] * (self.width + len(str(self.end))), 0
        step = _round_step((self.end - self.first) / max(1, self.width // 12))
        marks = [self.first, *range((self.first // step + 1) * step, self.end, step), self.end]
        end_at = self.column(self.end)
        for mark in marks:
            at, text = self.column(mark), str(mark)
            if at < free or (mark != self.end and at + len(text) >= end_at):
                continue
            line[at : at + len(text)] = text
            free = at + len(text) + 1
        return "".join(line)


def _round_step(least: float) -> int:
    step = 1
    while True:
        for factor in (1, 2, 5):
            if step * factor >= least:
                return step * factor
        step *= 10


def _lane(transactions: Sequence[Transaction], scale: _Scale, stable: int) -> list[str]:
    cells = [" "] * scale.width
    cells[stable] = "┊"
    cells[-1] = "┃"
    ends: dict[int, str] = {}
    for one in transactions:
        body, end = SHAPES[one.state]
        last = scale.end if one.marker_offset is None else one.marker_offset
        first = last if one.first_offset is None else one.first_offset
        begin, stop = scale.column(first), min(scale.column(last), scale.width - 2)
        cells[begin:stop] = body * (stop - begin)
        if begin < stop:
            cells[begin] = "├"
        ends[stop] = end
    for at, end in ends.items():
        cells[at] = end
    return cells


def _shown(cells: list[str], output: Output) -> str:
    return "".join(coloured(cell, MEANINGS.get(cell, ""), output) for cell in cells)
