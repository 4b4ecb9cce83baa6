# SPDX-License-Identifier: Apache-2.0
"""The contestants under pytest-benchmark, for its comparisons and histograms. Bars are judged by run.py.

Usage: python -m pytest benchmarks/bench_decode.py --benchmark-enable [-k "a and none"] [--benchmark-autosave]

Groups are blobs (shape and codec). Contestants are not interleaved here, so compare runs of one contestant with each
other, and contestants with each other by run.py.
"""

from __future__ import annotations

import contestants
import floor
import pytest
import shapes
from pytest_benchmark.fixture import BenchmarkFixture

NAMES = ("kcodec", "floor", "aiokafka", "kafka-python")
CELLS = [(shape, codec, name) for shape in "abcd" for codec in shapes.CODECS for name in NAMES]


def readable(codec: str, name: str) -> bool:
    """Return whether a contestant can read a codec on this machine. Rows whose library is missing are left out."""
    if name == "floor":
        return codec in floor.codecs()
    return name != "kafka-python" or codec in contestants.kafka_python_contestant().codecs


@pytest.mark.parametrize(("shape", "codec", "name"), [cell for cell in CELLS if readable(cell[1], cell[2])])
def test_decode(benchmark: BenchmarkFixture, shape: str, codec: str, name: str) -> None:
    blob = shapes.blob(shape, codec)
    (one,) = contestants.contestants([name])
    benchmark.group = f"{shape}, {codec}"
    benchmark.name = name
    benchmark.extra_info["records"] = blob.records
    result = benchmark.pedantic(one.decode, args=(blob.data,), rounds=20, iterations=1, warmup_rounds=2)
    assert one.digest(result) == contestants.digest(contestants.decode_aiokafka(blob.data))


@pytest.mark.parametrize("shape", list("abcde"))
def test_the_generator_makes_the_bytes_that_figures_stand_for(shape: str) -> None:
    shapes.check_digests(shape)
