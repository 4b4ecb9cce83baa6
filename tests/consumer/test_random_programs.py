# SPDX-License-Identifier: Apache-2.0
"""A few random ordinary programs with consumers (tests/support/random_programs.py); prove_programs.py runs hundreds."""

from __future__ import annotations

import pytest
from prove_programs import KINDS, run_one

from kcodec.broker import Broker


@pytest.mark.parametrize("kind", KINDS)
def test_each_record_is_processed_and_each_reader_leaves(kind: str) -> None:
    with Broker() as broker:
        for seed in range(6):
            world = run_one(kind, seed, broker)
            assert world.processed
            assert world.faults() == [], world.steps
