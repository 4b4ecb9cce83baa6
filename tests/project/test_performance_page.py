# SPDX-License-Identifier: Apache-2.0
"""The tables of the Performance page, as they are generated from files of results, and what `make bench` summarizes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import bench
import draw_performance
import measure
import pytest
from measure import Bar, Round


def comparison(ratio: float, *, busy: bool = False, bar: Bar | None = None, figure: str = "cpu") -> measure.Row:
    rounds = [Round({"kcodec": {figure: 100 * ratio}, "peer": {figure: 100.0}}, 1.0 if busy else 0.0, busy)] * 3
    return measure.compare(rounds, figure, "kcodec", "peer", case="100 B", unit="ns a record", bar=bar)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of results."""
    monkeypatch.setattr(draw_performance, "RESULTS", tmp_path)
    draw_performance.result.cache_clear()
    yield tmp_path
    draw_performance.result.cache_clear()


def write(folder: Path, name: str, parts: dict[str, list[measure.Row]]) -> None:
    measured = {part: {"date": "2026-01-02", "commit": "1234567"} for part in parts}
    (folder / f"{name}.json").write_text(json.dumps({"machine": {"cores": 2}, "measured": measured, "parts": parts}))


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("send", "send"),
        ("produce", "producer"),
        ("partitions", "partitions"),
        ("consume", "consumer"),
        ("iteration", "consumer"),
        ("transactions", "transactions"),
        ("import", "import"),
        ("topics", "topics"),
        ("sink", "sink"),
        ("spark", "spark"),
        ("compat", "compat"),
    ],
)
@pytest.mark.usefixtures("results")
def test_table_without_results_has_the_command(table: str, name: str) -> None:
    """The command is one that `make bench` knows."""
    text = draw_performance.TABLES[f"performance-{table}"]()
    assert text == f'Not measured yet. This command measures it: `make bench ARGS="--part {name}"`\n'
    assert name in bench.BENCHMARKS


def test_comparison_has_interval_bar_and_other_figures(results: Path) -> None:
    rows = [comparison(0.8, bar=Bar(1.0)), comparison(1.5, figure="broker")]
    write(results, "send", {"cells": rows})
    *_, line = draw_performance.draw_send().splitlines()
    cells = ["100 B", "kcodec / peer", "80.0", "100", "0.80 (0.80 to 0.80)", "≤ 1: met", "", "1.50 (1.50 to 1.50)"]
    assert line == f"| {' | '.join(cells)} |"


def test_figure_of_a_busy_machine_is_marked(results: Path) -> None:
    write(results, "send", {"cells": [comparison(0.8, busy=True, bar=Bar(1.0)), comparison(0.8, figure="elapsed")]})
    text = draw_performance.draw_send()
    assert "| 0.80 (0.80 to 0.80), busy | ≤ 1: not judged | 0.80 (0.80 to 0.80) |" in text
    conditions = draw_performance.draw_conditions()
    assert "| 2026-01-02 | 1234567 | 2 cores | busy in 1 of 2 rows |" in conditions


def test_load_that_was_not_recorded_is_not_quiet(results: Path) -> None:
    write(results, "send", {"cells": [comparison(0.8) | {"others": None, "busy_rounds": None}]})
    assert "| 2 cores | not recorded |" in draw_performance.draw_conditions()


def test_files_of_the_page_are_those_that_make_bench_writes() -> None:
    assert set(draw_performance.FILES) <= {one.results for one in bench.BENCHMARKS.values()}


def test_summary_names_the_missed_bars(tmp_path: Path) -> None:
    """Of both forms: comparisons, and rows with the times of several programs."""
    row = {"codec": "none", "shape": "a", "over_floor": 1.4, "over_floor_bar": 1.2, "over_floor_met": False}
    met = {"codec": "none", "shape": "b", "over_floor_met": True, "gain_met": "not judged"}
    cells = [comparison(2.0, bar=Bar(1.0)), comparison(0.5, bar=Bar(1.0)), comparison(0.5)]
    write(tmp_path, "send", {"cells": cells, "decode": [row, met]})
    text = bench.summary([tmp_path / "send.json", tmp_path / "send.json"])
    assert text.splitlines() == [
        "bars: 2 met, 2 missed, 1 not judged",
        "  missed: send: 100 B, kcodec, cpu",
        "  missed: send: none a, over_floor",
    ]


@pytest.mark.parametrize("name", bench.BENCHMARKS)
def test_program_of_each_benchmark_exists(name: str) -> None:
    assert (bench.HERE / bench.BENCHMARKS[name].program.split()[0]).is_file()
