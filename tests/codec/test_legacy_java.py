# SPDX-License-Identifier: Apache-2.0
"""Messages of magic 0 and 1 before Kafka's own classes: generated sets, edited ones, and those of golden legacy/.

The oracle has the same judge as kcodec. java_comparison.py says where the two may differ.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import golden_data
import pytest
from java_comparison import Decode, compare
from java_judge import JavaJudge
from java_subjects import SUBJECTS
from legacy_strategies import damaged_message, random_message, random_messages, random_wrapper, random_wrong_wrapper

import kcodec

LONG = os.environ.get("KCODEC_PROFILE") == "long"
SEEDS = range(200 if LONG else 8)
SETS_A_SEED = 500 if LONG else 60

EACH = pytest.mark.parametrize("decode", [SUBJECTS["kcodec"], SUBJECTS["reference"]], ids=["kcodec", "reference"])


@pytest.fixture(scope="module")
def judge(java_home: object) -> Iterator[JavaJudge]:
    with JavaJudge() as running:
        yield running


def around(rng: random.Random, middle: bytes) -> bytes:
    """What is judged between what is right: messages before it, a batch of magic 2 behind."""
    from batch_writer import RecordSpec, build_batch

    before, _ = random_messages(rng, 0)
    return before + middle + build_batch([RecordSpec(value=b"behind")], base_offset=500)


@EACH
@pytest.mark.parametrize("seed", SEEDS)
def test_generated_sets_are_read_as_java_reads_them(judge: JavaJudge, decode: Decode, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(SETS_A_SEED):
        data = around(rng, random_messages(rng, rng.choice((100, 0, 1 << 40)))[0])
        assert compare(data, judge.record_set(data), decode) in ("read by both", "read by us alone")


def any_message(rng: random.Random) -> bytes:
    magic = rng.randrange(2)
    return random_message(rng, magic, 100) if rng.randrange(3) == 0 else random_wrapper(rng, magic, 100)[0]


@EACH
@pytest.mark.parametrize("seed", SEEDS)
def test_corruption_is_refused_where_java_refuses_it_and_read_alike_where_not(
    judge: JavaJudge, decode: Decode, seed: int
) -> None:
    rng = random.Random(seed)
    ways: dict[str, int] = {}
    for number in range(SETS_A_SEED):
        if rng.randrange(2):
            middle = damaged_message(rng, any_message(rng))
        else:
            middle = random_wrong_wrapper(rng, rng.randrange(2), rng.choice((0, 100)))
        data = around(rng, middle)
        try:
            way = compare(data, judge.record_set(data), decode)
        except Exception as error:
            error.add_note(f"seed {seed}, number {number}: {data.hex()}")
            raise
        ways[way] = ways.get(way, 0) + 1
    assert ways["read by both"] > SETS_A_SEED // 10
    assert ways["refused by both"] > SETS_A_SEED // 10


@EACH
@pytest.mark.parametrize("seed", SEEDS)
def test_a_consumer_beginning_anywhere_gets_the_same(judge: JavaJudge, decode: Decode, seed: int) -> None:
    """Wrappers that hold what lies below and above the fetch offset."""
    rng = random.Random(seed)
    for _ in range(SETS_A_SEED // 4):
        data, next_offset = random_messages(rng, 100, linked=False)
        start = rng.randint(95, next_offset)
        delivered = judge.consumer(data, fetch_offset=start)
        assert delivered.error is None
        outcome = decode(data, start_offset=start)
        offsets = [record.offset for record in delivered.records]
        if all(wrapper.base_offset >= 100 for wrapper in kcodec.batches(data)):
            assert outcome.records == list(delivered.records)
            assert outcome.timestamp_types == list(delivered.timestamp_types)
            assert outcome.next_offset == max(start, delivered.position)
        else:  # one counts from 0: what it holds lies below, and takes no reader back
            assert [record.offset for record in outcome.records if record.offset in set(offsets)] == offsets
            assert outcome.next_offset is not None
            assert outcome.next_offset > max([start - 1, *offsets])


@EACH
@pytest.mark.parametrize("golden", golden_data.legacy(), ids=lambda golden: golden[0])
def test_every_cut_of_the_golden_sets_is_read_alike(
    judge: JavaJudge, decode: Decode, golden: tuple[str, bytes, object]
) -> None:
    _, data, _ = golden
    for size in [*range(0, len(data), 1 if LONG else 13), len(data)]:
        compare(data[:size], judge.record_set(data[:size]), decode)
