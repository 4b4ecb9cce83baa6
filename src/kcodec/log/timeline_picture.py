# SPDX-License-Identifier: Apache-2.0
"""The transactions of a partition as an SVG picture: offsets from left to right, one lane for each producer id.

A lane with few transactions shows each of them, from its first offset to its end marker. A lane with many, or a lane
that stands for several producers, shows how many transactions were committed and aborted in each slice of offsets. The
outcome is always shown by the shape and by the color; the colors are those of Okabe and Ito, which people with any kind
of color blindness can tell apart. The picture has no script and needs no font or file from elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import chain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kcodec.log.timeline import Transaction

DEFAULT_WIDTH, LEAST_WIDTH, GREATEST_WIDTH = 960, 480, 10_000
DEFAULT_MAX_LANES, GREATEST_MAX_LANES = 20, 1000
MARGIN = 16
CHARACTER = 6.8  # The width of a character, about: there is no font to measure here.
LANE_HEIGHT, HEADER_HEIGHT, LEGEND_LINE = 34, 112, 24
LONGEST_LABEL = 30
# A lane with less width than this for each of its transactions shows counts.
PIXELS_FOR_ONE = 10
SLICE_PIXELS = 6
OUTCOMES = ("committed", "aborted", "open")
NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")

STYLE = """
.kcodec-timeline{font:12px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;
--ground:#fff;--ink:#1f2328;--faint:#6e7781;--line:#d0d7de;--committed:#0072b2;--aborted:#d55e00;--open:#a17900}
@media (prefers-color-scheme:dark){.kcodec-timeline{
--ground:#0d1117;--ink:#e6edf3;--faint:#9198a1;--line:#3d444d;--committed:#56b4e9;--aborted:#ff8a3d;--open:#f0e442}}
.kcodec-timeline text{fill:var(--ink)}
.kcodec-timeline path{stroke-width:2}
.kcodec-timeline .ground{fill:var(--ground)}
.kcodec-timeline .title{font-size:16px;font-weight:600}
.kcodec-timeline .faint{fill:var(--faint)}
.kcodec-timeline .line{stroke:var(--line);fill:none;stroke-width:1}
.kcodec-timeline .committed{stroke:var(--committed);fill:var(--committed)}
.kcodec-timeline .aborted{stroke:var(--aborted);fill:var(--aborted)}
.kcodec-timeline .open{stroke:var(--open);fill:var(--open)}
.kcodec-timeline .body{fill:none;stroke-width:4}
.kcodec-timeline .aborted.body{stroke-dasharray:2 3}
.kcodec-timeline .open.body{stroke-dasharray:10 4}
.kcodec-timeline .cross{fill:none;stroke-width:2.5}
.kcodec-timeline rect.committed{stroke:none}
.kcodec-timeline rect.aborted{fill-opacity:.35;stroke-width:1.5}
.kcodec-timeline .stable{stroke:var(--ink);fill:none;stroke-width:1.5;stroke-dasharray:4 3}
.kcodec-timeline .high{stroke:var(--ink);fill:none;stroke-width:1.5}
""".strip()


@dataclass(frozen=True, repr=False)
class TimelinePicture:
    """The transactions of one partition as a picture; made by `Log.timeline`. Jupyter notebooks show it by itself.

    name: of the partition. transactions: of `Log.transactions`. holding_transaction: the one that the last stable
    offset waits for, or None.
    """

    name: str
    transactions: Sequence[Transaction]
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    holding_transaction: Transaction | None

    def __repr__(self) -> str:
        return f"<TimelinePicture {self.name}: {_number(len(self.transactions), 'transaction')}>"

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def to_svg(self, *, width: int = DEFAULT_WIDTH, max_lanes: int = DEFAULT_MAX_LANES) -> str:
        """Return the picture as the text of an SVG file.

        width:     Width in pixels, from 480 to 10,000. The height follows from the number of lanes.
        max_lanes: Maximum number of lanes, from 1 to 1,000. If there are more producers, several share a lane, which
                   then shows counts. Producers are in the order of their first transactions.

        Raise ValueError if one of them is out of range.
        """
        _check_range("width", width, LEAST_WIDTH, GREATEST_WIDTH)
        _check_range("max_lanes", max_lanes, 1, GREATEST_MAX_LANES)
        lanes = _lanes(self.transactions, max_lanes)
        left = MARGIN + CHARACTER * max(len(_shortened(lane.label)) for lane in lanes) + 12
        scale = _OffsetScale(self.log_start_offset, self.high_watermark, left, width - 2 * MARGIN)
        counted = [lane for lane in lanes if lane.has_counts(scale)]
        most = max((max(pair) for lane in counted for pair in lane.counts(scale).values()), default=1)
        bottom = HEADER_HEIGHT + LANE_HEIGHT * len(lanes)
        body = list(self._head(scale, bottom))
        for number, lane in enumerate(lanes):
            top = HEADER_HEIGHT + LANE_HEIGHT * number
            body.append(_text(MARGIN, top + LANE_HEIGHT / 2 + 4, _shortened(lane.label), hover=lane.label))
            body.append(f'<path class="line" d="M{scale.left:.1f} {top + LANE_HEIGHT}H{scale.right:.1f}"/>')
            body += lane.draw(scale, top, most)
        body += self._limits(scale, bottom)
        legend, height = _legend(scale, bottom, lanes, counted, most)
        label = escape(_clean(f"Transactions of {self.name}"))
        frame = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="kcodec-timeline" width="{width}" height="{height:.0f}" '
            f'viewBox="0 0 {width} {height:.0f}" role="img" aria-label="{label}">'
        )
        ground = f'<rect class="ground" width="{width}" height="{height:.0f}"/>'
        return "\n".join([frame, f"<style>{STYLE}</style>", ground, *body, *legend, "</svg>\n"])

    def _head(self, scale: _OffsetScale, bottom: float) -> Iterator[str]:
        """Draw the name of the partition, the totals, and the ruler."""
        counts = {state: sum(one.state == state for one in self.transactions) for state in OUTCOMES}
        producers = len({one.producer_id for one in self.transactions})
        yield _text(MARGIN, 28, self.name, "title")
        parts = ", ".join(f"{counts[state]:,} {state}" for state in OUTCOMES if counts[state])
        total = f"{_number(len(self.transactions), 'transaction')} of {_number(producers, 'producer')}: {parts}"
        yield _text(MARGIN, 48, total if parts else "no transactions", "faint")
        for mark in scale.marks():
            at = scale.at(mark)
            text = f"{mark:,}"
            anchor = "end" if at + CHARACTER * len(text) / 2 > scale.right else "middle"
            yield _text(at, HEADER_HEIGHT - 10, text, "faint", anchor=anchor)
            yield f'<path class="line" d="M{at:.1f} {HEADER_HEIGHT - 5}V{bottom}"/>'

    def _limits(self, scale: _OffsetScale, bottom: float) -> Iterator[str]:
        """Draw the last stable offset and the high watermark, each as a line with its name."""
        stable, high = scale.at(self.last_stable_offset), scale.at(self.high_watermark)
        name = f"high watermark {self.high_watermark:,}"
        if self.last_stable_offset < self.high_watermark:
            yield f'<path class="stable" d="M{stable:.1f} {HEADER_HEIGHT - 40}V{bottom}"/>'
            is_left = stable < (scale.left + scale.right) / 2
            at, anchor = (stable + 5, "start") if is_left else (stable - 5, "end")
            held = self.holding_transaction
            reason = "" if held is None else f", held by producer {held.producer_id}"
            text = f"last stable offset {self.last_stable_offset:,}{reason}"
            yield _text(at, HEADER_HEIGHT - 31, text, anchor=anchor)
        else:
            name = f"last stable offset and {name}"
        yield f'<path class="high" d="M{high:.1f} {HEADER_HEIGHT - 60}V{bottom}"/>'
        yield _text(high - 5, HEADER_HEIGHT - 51, name, anchor="end")


@dataclass(frozen=True)
class _OffsetScale:
    """From offsets to pixels: `first` is at `left`, the high watermark `end` at `right`."""

    first: int
    end: int
    left: float
    right: float

    def at(self, offset: int) -> float:
        length = max(self.end - self.first, 1)
        return self.left + (self.right - self.left) * min(max(offset - self.first, 0) / length, 1)

    @property
    def pixels(self) -> float:
        return self.right - self.left

    def marks(self) -> Iterator[int]:
        """Return round offsets for the ruler, far enough from each other for their digits."""
        apart = CHARACTER * (len(f"{self.end:,}") + 3)
        step = _round_up((self.end - self.first) * apart / self.pixels)
        return iter(range(-(-self.first // step) * step, self.end + 1, step))


class _Lane:
    """The transactions of one producer, or of several that share a lane."""

    def __init__(self, transactions: Sequence[Transaction]) -> None:
        producers = list(dict.fromkeys(one.producer_id for one in transactions))
        self.transactions = transactions
        self.is_shared = len(producers) > 1
        self.label = f"producer {producers[0]}" if producers else "no transactions"
        if self.is_shared:
            self.label = f"{len(producers):,} producers from {producers[0]}"

    def has_counts(self, scale: _OffsetScale) -> bool:
        """Return whether there is no space to show each transaction."""
        return self.is_shared or len(self.transactions) * PIXELS_FOR_ONE > scale.pixels

    def counts(self, scale: _OffsetScale) -> dict[int, tuple[int, int]]:
        """Return the numbers of committed and aborted transactions by the slice of offsets in which they begin."""
        found: dict[int, tuple[int, int]] = {}
        for one in self.transactions:
            if one.state != "open":
                number = int((scale.at(_ends(one, scale)[0]) - scale.left) / SLICE_PIXELS)
                committed, aborted = found.get(number, (0, 0))
                is_committed = one.state == "committed"
                found[number] = (committed + is_committed, aborted + (not is_committed))
        return found

    def draw(self, scale: _OffsetScale, top: float, most: int) -> Iterator[str]:
        """Draw the lane. most: the count that has the tallest bar of the picture."""
        middle = top + LANE_HEIGHT / 2
        has_counts = self.has_counts(scale)
        if has_counts:
            for number, (committed, aborted) in sorted(self.counts(scale).items()):
                yield from _bars(scale.left + number * SLICE_PIXELS, middle, committed, aborted, most)
        for one in self.transactions:
            if one.state != "open" and has_counts:
                continue
            first, last = _ends(one, scale)
            begin, end = scale.at(first), scale.at(last)
            yield f"<g><title>{escape(_description(one))}</title>{_shape(one.state, begin, end, middle)}</g>"


def _lanes(transactions: Iterable[Transaction], max_lanes: int) -> list[_Lane]:
    """Return at least one lane. With more producers than lanes, each lane has about the same number of producers."""
    by_producer: dict[int, list[Transaction]] = {}
    for one in transactions:
        by_producer.setdefault(one.producer_id, []).append(one)
    several = -(-len(by_producer) // max_lanes) or 1
    each = list(by_producer.values())
    groups = [list(chain.from_iterable(each[at : at + several])) for at in range(0, len(each), several)]
    return [_Lane(group) for group in groups or [[]]]


def _ends(one: Transaction, scale: _OffsetScale) -> tuple[int, int]:
    """Return the offsets where a transaction begins and ends; one of which only the marker is there is a point."""
    last = scale.end if one.marker_offset is None else one.marker_offset
    return last if one.first_offset is None else one.first_offset, last


def _description(one: Transaction) -> str:
    """Return what the pointer shows of a transaction."""
    lines = [f"{one.state}: producer {one.producer_id}, epoch {one.producer_epoch}"]
    if one.first_offset is None:
        lines.append("no data in this log")
    else:
        lines.append(f"offsets {one.first_offset:,} to {one.last_offset:,}, since {_time(one.first_timestamp)}")
    if one.marker_offset is not None and one.marker_timestamp is not None:
        lines.append(f"marker at offset {one.marker_offset:,}, {_time(one.marker_timestamp)}")
    return "\n".join(lines)


def _shape(state: str, begin: float, end: float, middle: float) -> str:
    """Draw one transaction: a line, and at its end a diamond, a cross or an arrowhead."""
    line = f'<path class="{state} body" d="M{begin:.1f} {middle:.1f}H{end:.1f}"/>'
    start = f'<path class="{state}" d="M{begin:.1f} {middle - 5:.1f}v10"/>'
    if state == "committed":
        tip = f'<path class="{state}" d="M{end - 5:.1f} {middle:.1f}l5 -5l5 5l-5 5z"/>'
    elif state == "aborted":
        tip = f'<path class="{state} cross" d="M{end - 4.5:.1f} {middle - 4.5:.1f}l9 9m0 -9l-9 9"/>'
    else:
        tip = f'<path class="{state}" d="M{end - 9:.1f} {middle - 5:.1f}l9 5l-9 5z"/>'
    return line + start + tip


def _bars(left: float, middle: float, committed: int, aborted: int, most: int) -> Iterator[str]:
    """Draw the counts of one slice: committed upwards and filled, aborted downwards and framed."""
    for state, count in (("committed", committed), ("aborted", aborted)):
        if count:
            height = max((LANE_HEIGHT / 2 - 3) * count / most, 1.5)
            top = middle - height if state == "committed" else middle
            yield (
                f'<rect class="{state}" x="{left + 0.75:.1f}" y="{top:.1f}" width="{SLICE_PIXELS - 1.5}" '
                f'height="{height:.1f}"><title>{count:,} {state}</title></rect>'
            )


def _legend(
    scale: _OffsetScale, bottom: float, lanes: Sequence[_Lane], counted: Sequence[_Lane], most: int
) -> tuple[list[str], float]:
    """Return the meanings of the shapes that occur, in as many lines as they need, and the height of the picture."""
    each = {one.state for lane in lanes if lane not in counted for one in lane.transactions}
    each |= {one.state for lane in counted for one in lane.transactions if one.state == "open"}
    entries = [(state, state) for state in OUTCOMES if state in each]
    if counted:
        slice_offsets = max(round((scale.end - scale.first) * SLICE_PIXELS / scale.pixels), 1)
        several = f"transactions that begin within {_number(slice_offsets, 'offset')}; the tallest bar is {most:,}"
        entries += [("up", f"committed {several}"), ("down", f"aborted {several}")]
    drawn: list[str] = []
    x, y = float(MARGIN), bottom + LEGEND_LINE + 4
    for shape, text in entries:
        needed = 40 + CHARACTER * len(text)
        if x > MARGIN and x + needed > scale.right:
            x, y = float(MARGIN), y + LEGEND_LINE
        if shape in OUTCOMES:
            drawn.append(_shape(shape, x + 2, x + 26, y - 4))
        else:
            count = [(5, 0), (10, 0), (7, 0)] if shape == "up" else [(0, 5), (0, 10), (0, 7)]
            middle = y + 2 if shape == "up" else y - 10
            for number, (committed, aborted) in enumerate(count):
                drawn += (bar for bar in _bars(x + 6 + number * SLICE_PIXELS, middle, committed, aborted, 10))
        drawn.append(_text(x + 38, y, text))
        x += needed + 20
    return drawn, (y if entries else bottom) + MARGIN


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "start", hover: str = "") -> str:
    attributes = f' class="{kind}"' * bool(kind) + f' text-anchor="{anchor}"' * (anchor != "start")
    title = f"<title>{escape(_clean(hover))}</title>" if hover else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(_clean(text))}{title}</text>'


def _clean(text: str) -> str:
    """Replace what XML cannot hold; the names of files may have it."""
    return NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def _shortened(label: str) -> str:
    return label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL - 1]}\N{HORIZONTAL ELLIPSIS}"


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _time(milliseconds: int) -> str:
    """Return a timestamp as text; as its number where the calendar of Python ends."""
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"timestamp {milliseconds}"


def _round_up(least: float) -> int:
    """Return 1, 2 or 5 times a power of ten: the first that is not below `least`."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= least:
                return factor * power
        power *= 10


def _check_range(name: str, value: int, least: int, greatest: int) -> None:
    if not least <= value <= greatest:
        raise ValueError(f"{name} must be between {least:,} and {greatest:,}, got {value:,}")
