# SPDX-License-Identifier: Apache-2.0
"""Time and memory grow with the bytes that are read and made, in every shape of small parts that growth.py knows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import growth
import pytest

PROGRAM = Path(__file__).parent.parent / "support" / "growth.py"
PARTS = 1000
# Four times the parts may take this many times as long and as much; sixteen would be quadratic.
MOST_FACTOR = 8
SECONDS_OF_NOISE, BYTES_OF_NOISE = 0.01, 16 << 20


def measurements(name: str) -> list[tuple[float, int]]:
    command = [sys.executable, str(PROGRAM), name, str(PARTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return [(seconds, peak) for seconds, peak in json.loads(done.stdout)]


@pytest.mark.parametrize("name", growth.SHAPES)
def test_time_and_memory_are_linear(name: str) -> None:
    """At n, 2 n and 4 n parts. A measurement that other programs disturbed is taken once more."""
    for attempt in range(3):
        (seconds, peak), _, (most_seconds, most_peak) = measurements(name)
        is_linear = most_seconds <= MOST_FACTOR * seconds + SECONDS_OF_NOISE
        if is_linear or attempt == 2:
            break
    assert is_linear, f"{seconds} s became {most_seconds} s"
    assert most_peak <= MOST_FACTOR * peak + BYTES_OF_NOISE


def test_a_large_batch_of_gzip_members_takes_no_second() -> None:
    """4 MiB of empty members, for which the copies of what is left once took a minute."""
    seconds, _ = growth.measured(growth.gzip_members((4 << 20) // 400))
    assert seconds < 2


def test_a_large_incompressible_gzip_batch_takes_no_second() -> None:
    """60 MiB in one member."""
    seconds, _ = growth.measured(growth.gzip_incompressible((60 << 20) // 2000))
    assert seconds < 2
