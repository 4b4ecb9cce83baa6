# SPDX-License-Identifier: Apache-2.0
"""A session that loses its partitions in the middle of a transaction, on a real broker: nothing is lost, nothing comes
twice, and a control shows that it could. Each case is a story of kip447.py; tests/prove/prove_kip447.py runs all of
them on every kind of broker and in both protocols.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from kip447 import CASES, Outcome, Stage

from kcodec.testing.kafka import KAFKA_VERSION

# Those that wait for markers come last: markers that are held back hold all others back, too.
WANTED = ("d", "a", "a by hand", "a control", "c fenced", "b")


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, Future[Outcome]]]:
    """All cases, at the same time: they wait for time-outs most of the time."""
    with Stage(KAFKA_VERSION, 2) as stage, ThreadPoolExecutor(5) as pool:
        yield {name: pool.submit(CASES[name], stage, "classic") for name in WANTED}


@pytest.mark.parametrize("name", WANTED)
def test_members_that_lose_their_partitions(outcomes: dict[str, Future[Outcome]], name: str) -> None:
    outcome = outcomes[name].result()
    assert outcome.faults() == [], outcome.line()
