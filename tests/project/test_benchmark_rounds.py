# SPDX-License-Identifier: Apache-2.0
"""How the benchmarks make figures of rounds: intervals, busy rounds, bars, and files of results."""

from __future__ import annotations

import functools
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import measure
import pytest
from measure import Bar, Round


def rounds_of(ratios: list[float], busy: tuple[int, ...] = ()) -> list[Round]:
    """Rounds in which kcodec takes these times 100, and the peer always 100; some on a busy machine."""
    return [
        Round({"kcodec": {"cpu": 100 * ratio}, "peer": {"cpu": 100.0}}, 1.5 if number in busy else 0.1, number in busy)
        for number, ratio in enumerate(ratios)
    ]


def compared(rounds: list[Round], bar: Bar | None = None) -> measure.Row:
    return measure.compare(rounds, "cpu", "kcodec", "peer", case="a case", unit="ns a record", bar=bar)


@pytest.mark.parametrize(
    ("number", "ranks", "confidence"),
    [(1, (0, 0), 0.0), (5, (0, 4), 0.9375), (6, (0, 5), 0.96875), (9, (1, 7), 0.961), (20, (5, 14), 0.959)],
)
def test_interval_has_the_ranks_of_the_sign_test(number: int, ranks: tuple[int, int], confidence: float) -> None:
    """The ranks and the confidence are those of published tables of the sign test's interval."""
    values = [float(value) for value in range(number)]
    random.Random(1).shuffle(values)
    low, high, found = measure.rank_interval(values)
    assert [low, high] == list(ranks)
    assert found == pytest.approx(confidence, abs=0.0005)


def test_interval_contains_the_median_as_often_as_it_says() -> None:
    """Of a skewed distribution whose median is known."""
    draw = random.Random(7)
    inside = 0
    for _ in range(2000):
        low, high, confidence = measure.rank_interval([draw.expovariate(1.0) for _ in range(9)])
        inside += low <= 0.6931 <= high
    assert inside / 2000 == pytest.approx(confidence, abs=0.02)


def test_value_is_the_median_of_the_ratios_of_rounds() -> None:
    """A disturbance of a whole round changes both contestants and not their ratio."""
    slow = Round({"kcodec": {"cpu": 900.0}, "peer": {"cpu": 1000.0}}, 0.1, False)
    row = compared([*rounds_of([0.8, 0.9, 0.9, 1.0]), slow])
    assert (row["value"], row["low"], row["high"]) == (0.9, 0.8, 1.0)
    assert row["medians"] == {"kcodec": 90.0, "peer": 100.0}


def test_busy_rounds_do_not_count_while_half_are_quiet() -> None:
    row = compared(rounds_of([0.8, 5.0, 0.9, 1.0], busy=(1,)), Bar(1.0))
    assert (row["value"], row["high"], row["busy_rounds"], row["rounds"]) == (0.9, 1.0, 1, 4)
    assert (row["others"], row["verdict"]) == (0.1, "met")


def test_bar_is_not_judged_on_a_busy_machine() -> None:
    row = compared(rounds_of([0.8, 0.8, 0.8], busy=(0, 2)), Bar(1.0))
    assert (row["verdict"], row["busy_rounds"], row["others"]) == ("not judged", 2, 1.5)
    assert row["value"] == 0.8


@pytest.mark.parametrize(
    ("bar", "expected"),
    [(Bar(1.0), "met"), (Bar(0.8), "missed"), (Bar(0.8, is_least=True), "met"), (Bar(1.0, is_least=True), "missed")],
)
def test_bar_is_met_or_missed_by_the_median(bar: Bar, expected: str) -> None:
    assert compared(rounds_of([0.8, 0.9, 1.0]), bar)["verdict"] == expected


def test_figure_without_a_peer_has_its_own_interval() -> None:
    row = measure.compare(rounds_of([0.5, 0.6, 0.7]), "cpu", "kcodec", case="a case", unit="ms", bar=Bar(75))
    assert (row["value"], row["low"], row["high"], row["second"]) == (60.0, 50.0, 70.0, None)
    assert row["verdict"] == "met"


def test_rounds_without_a_figure_of_the_peer_are_rejected() -> None:
    none = [Round({"kcodec": {"cpu": 1.0}, "peer": {"cpu": 0.0}}, 0.0, False)]
    with pytest.raises(ValueError, match="a case: no round measured 'cpu' above 0 for peer"):
        compared(none)


def test_order_of_the_contestants_rotates_and_is_reversed() -> None:
    """Each contestant then follows different ones. The rounds that warm up do not count."""
    order: list[str] = []

    def contestant(name: str) -> dict[str, float]:
        order.append(name)
        return {"cpu": float(len(order))}

    found = measure.take_turns({name: functools.partial(contestant, name) for name in "abc"}, 2, warm_up=1)
    assert "".join(order) == "bacabccba"
    assert [one.figures["a"]["cpu"] for one in found] == [4, 9]


def test_children_are_not_other_load() -> None:
    """A process below this one that computes for 0.4 s; another benchmark on the machine may add to the other load."""
    total, own, load = measure.busy_seconds(), measure.tree_seconds(), measure.OtherLoad()
    code = "import time\nwhile time.process_time() < 0.4: pass"
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    seconds = time.perf_counter() - began
    used, spent = measure.busy_seconds() - total, measure.tree_seconds() - own
    assert spent >= 0.39
    assert load.cores() <= max(0.0, used - spent) / seconds + 0.15


def test_result_file_keeps_parts_that_were_not_measured(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    measure.save(path, {"one": compared(rounds_of([1.0])), "two": []}, {}, 0.0)
    measure.save(path, {"two": compared(rounds_of([0.5]))}, {"rounds": 1}, 0.0, unit="ms")
    found = json.loads(path.read_text())
    assert found["parts"]["one"]["value"] == 1.0
    assert found["parts"]["two"]["value"] == 0.5
    assert set(found["measured"]) == {"one", "two"}
    assert {"date", "commit", "machine", "options", "load_average_1_min"} <= set(found)
    assert found["unit"] == "ms"


def test_ratio_of_samples_has_an_interval() -> None:
    """As `interleaved` gives them: the median of the rounds, not the ratio of the minima."""
    found = measure.ratio([2.0, 3.0, 8.0], [1.0, 2.0, 2.0])
    assert (found.of_minima, found.median, found.low, found.high) == (2.0, 2.0, 1.5, 4.0)
