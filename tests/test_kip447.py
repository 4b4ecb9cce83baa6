# SPDX-License-Identifier: Apache-2.0
"""A session that loses its partitions in the middle of a transaction, on a real broker: nothing is lost, nothing comes
twice, and the controls show that it could. Each case is a story of tests/kip447.py; tests/prove_kip447.py runs them on
other brokers too, with markers that are late by 5 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from kip447 import CASES, Outcome, Stage, held_markers

LATE_MARKERS_SECONDS = 1.0
# A time-out ends A's transaction in d, too.
CLASSIC = [name for name in CASES if name != "c timed out"]
WANTED = [(name, "classic") for name in CLASSIC] + [("markers", "consumer")]


def story(name: str) -> Callable[[Stage, str], Outcome]:
    """The case; markers are not late for as long as in the proof."""
    if name == "markers":
        return lambda stage, protocol: held_markers(stage, protocol, seconds=LATE_MARKERS_SECONDS)
    return CASES[name]


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[tuple[str, str], Future[Outcome]]]:
    """All cases, beside each other: they wait for time-outs most of the time."""
    with Stage("4.3.1", 2) as stage, ThreadPoolExecutor(len(WANTED)) as pool:
        yield {(name, protocol): pool.submit(story(name), stage, protocol) for name, protocol in WANTED}


@pytest.mark.parametrize(("name", "protocol"), WANTED)
def test_members_that_lose_their_partitions(
    outcomes: dict[tuple[str, str], Future[Outcome]], name: str, protocol: str
) -> None:
    outcome = outcomes[name, protocol].result()
    assert outcome.faults() == [], outcome.line()
