# SPDX-License-Identifier: Apache-2.0
"""The picture of a partition's transactions: what it shows, its limits, and that any name makes valid XML."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from cli_runner import run
from log_builder import LogBuilder

import kcodec
from kcodec.log import Log
from kcodec.log.timeline_picture import TimelinePicture

SVG = "{http://www.w3.org/2000/svg}"


def opened(folder: Path, builder: LogBuilder, name: str = "orders-0") -> Log:
    partition = folder / name
    partition.mkdir()
    (partition / f"{0:020d}.log").write_bytes(builder.data)
    log = kcodec.open(partition)
    assert isinstance(log, Log)
    return log


def texts(svg: str) -> list[str]:
    return [(node.text or "") for node in ET.fromstring(svg).iter(f"{SVG}text")]


def shapes(svg: str, kind: str) -> list[ET.Element]:
    """The transactions of one outcome that are drawn one by one; the legend is not in groups."""
    groups = ET.fromstring(svg).iter(f"{SVG}g")
    return [group for group in groups if any(kind == (node.get("class") or "").split()[0] for node in group[1:])]


def three_outcomes() -> LogBuilder:
    return (
        LogBuilder().write(1, 8).commit(1).write(2, 4).write(1, 3).abort(2).plain(5).write(3, 2).commit(1).write(2, 4)
    )


def test_each_transaction_has_its_outcome_and_place(tmp_path: Path) -> None:
    log = opened(tmp_path, three_outcomes())
    svg = log.timeline().to_svg()
    assert {kind: len(shapes(svg, kind)) for kind in ("committed", "aborted", "open")} == {
        "committed": 2,
        "aborted": 1,
        "open": 2,
    }
    found = texts(svg)
    assert found[0] == "orders-0"
    assert "5 transactions of 3 producers: 2 committed, 1 aborted, 2 open" in found
    assert {"producer 1", "producer 2", "producer 3"} < set(found)
    assert f"high watermark {log.high_watermark}" in found
    assert f"last stable offset {log.last_stable_offset}, held by producer 3" in found
    (title,) = (node.find(f"{SVG}title") for node in shapes(svg, "aborted"))
    assert title is not None and title.text is not None
    assert title.text.startswith("aborted: producer 2, epoch 0\noffsets 9 to 12, since ")
    assert "marker at offset 16" in title.text
    # Offsets are in proportion: the transaction of offsets 9 to 16 lies right of the one of 0 to 8.
    begins = [float(re.search(r"M([\d.]+)", node[1].get("d") or "")[1]) for node in shapes(svg, "committed")]  # type: ignore[index]
    assert begins == sorted(begins)
    assert log.timeline()._repr_svg_() == svg


def test_a_log_that_is_stable_has_one_limit(tmp_path: Path) -> None:
    svg = opened(tmp_path, LogBuilder().write(1, 3).commit(1)).timeline().to_svg()
    assert "last stable offset and high watermark 4" in texts(svg)
    assert not shapes(svg, "open")


@pytest.mark.parametrize("builder", [LogBuilder(), LogBuilder().plain(4)])
def test_a_log_without_transactions_says_so(tmp_path: Path, builder: LogBuilder) -> None:
    found = texts(opened(tmp_path, builder).timeline().to_svg())
    assert found.count("no transactions") == 2


def test_crowded_lanes_show_counts(tmp_path: Path) -> None:
    """200 transactions of one producer have less than PIXELS_FOR_ONE each; those of the other are shown one by one."""
    builder = LogBuilder().write(7, 2).commit(7)
    for number in range(200):
        builder.write(5, 2)
        builder = builder.abort(5) if number % 4 == 0 else builder.commit(5)
    svg = opened(tmp_path, builder.write(5, 1)).timeline().to_svg()
    assert len(shapes(svg, "committed")) == 1
    assert len(shapes(svg, "open")) == 1
    bars = [node for node in ET.fromstring(svg).iter(f"{SVG}rect") if node.find(f"{SVG}title") is not None]
    counted = {"committed": 0, "aborted": 0}
    for bar in bars:
        count, state = ((bar.find(f"{SVG}title").text or "") if bar is not None else "").split()  # type: ignore[union-attr]
        counted[state] += int(count)
    legend = {"committed": 5 + 10 + 7, "aborted": 5 + 10 + 7}
    assert counted == {"committed": 150 + legend["committed"], "aborted": 50 + legend["aborted"]}
    assert any(text.startswith("committed transactions that begin within ") for text in texts(svg))


def test_many_producers_share_lanes(tmp_path: Path) -> None:
    builder = LogBuilder()
    for number in range(60):
        builder.write(1000 + number, 2).commit(1000 + number)
    picture = opened(tmp_path, builder).timeline()
    labels = [text for text in texts(picture.to_svg(max_lanes=7)) if "producers from" in text]
    assert labels == [f"{count} producers from {1000 + 9 * at}" for at, count in enumerate([9] * 6 + [6])]
    assert len([text for text in texts(picture.to_svg(max_lanes=60)) if text.startswith("producer ")]) == 60


def test_ten_thousand_transactions_stay_small(tmp_path: Path) -> None:
    builder, parts = LogBuilder(), []
    for number in range(10_000):
        builder.write(number % 300, 1).commit(number % 300)
        if number % 500 == 499:
            parts.append(builder.data)
            builder.data = b""
    builder.data = b"".join(parts)
    svg = opened(tmp_path, builder).timeline().to_svg()
    assert len(svg) < 1_000_000
    assert ET.fromstring(svg).get("width") == "960"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"width": 479}, "width must be between 480 and 10,000, got 479"),
        ({"width": 10_001}, "width must be between 480 and 10,000"),
        ({"max_lanes": 0}, "max_lanes must be between 1 and 1,000, got 0"),
    ],
)
def test_options_out_of_range_are_refused(tmp_path: Path, options: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        opened(tmp_path, LogBuilder().plain()).timeline().to_svg(**options)


def test_any_name_makes_valid_xml() -> None:
    name = 'a<b>&"c\x00\ud800]]>'
    svg = TimelinePicture(name, [], 0, 0, 0, None).to_svg()
    assert texts(svg)[0] == 'a<b>&"c\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}]]>'
    svg.encode()


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    svg = opened(tmp_path, three_outcomes()).timeline().to_svg()
    assert not re.search(r"<script|<image|@import|url\(|href", svg)


def test_the_command_writes_the_picture(tmp_path: Path) -> None:
    log = opened(tmp_path, three_outcomes())
    target = tmp_path / "orders.svg"
    done = run("txn", "timeline", log.path, "--svg", target)
    assert done.status == 0
    assert target.read_text() == log.timeline().to_svg()
    assert "5 transactions" in done.err
    opened(tmp_path, LogBuilder().plain(), "other-0")
    assert "takes one partition, got 2" in run("txn", "timeline", log.path, tmp_path / "other-0", "--svg", target).err
    assert "--svg is an option of timeline, not of list" in run("txn", "list", log.path, "--svg", target).err
    assert "width must be between" in run("txn", "timeline", log.path, "--svg", target, "--width", "5").err


def test_a_corrupt_log_is_not_an_argument_error(tmp_path: Path) -> None:
    """DecodeError is a ValueError, as is the error for a wrong width."""
    log = opened(tmp_path, three_outcomes())
    path = Path(log.path) / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    done = run("txn", "timeline", log.path, "--svg", tmp_path / "orders.svg")
    assert done.status == 2
    assert "does not match the CRC" in done.err and "argument" not in done.err
