# SPDX-License-Identifier: Apache-2.0
"""Committed offsets compared with Kafka's own group coordinator: random histories of commits, transactions and
tombstones."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import golden_data
import pytest
from batch_writer import RecordSpec
from group_records import classic, commit, newer, plain, removed, within
from java_internals import coordinated_groups
from java_judge import JavaJudge
from log_files import ABORT, COMMIT, marker, partition

from kcodec.log import GroupOffsets, group_offsets, open_partition

LONG = os.environ.get("KCODEC_PROFILE") == "long"
GROUPS = ("a", "b", "c")
PRODUCERS = (7, 8, 9)


@pytest.fixture(scope="module")
def judge(java_home: object) -> Iterator[JavaJudge]:
    with JavaJudge() as running:
        yield running


def random_record(chance: random.Random) -> RecordSpec:
    group, at = chance.choice(GROUPS), chance.randrange(3)
    kind = chance.random()
    if kind < 0.7:
        return commit(chance.randrange(1000), group, at=at)
    if kind < 0.85:
        return removed(group, at=at)
    if kind < 0.92:
        return RecordSpec(classic(group).key, None)
    return classic(group, *chance.sample(("m", "n"), chance.randrange(3)), generation=chance.randrange(9))


def random_history(chance: random.Random) -> list[bytes]:
    batches: list[bytes] = []
    offset = 0
    for _ in range(chance.randrange(4, 40)):
        step = chance.random()
        if step < 0.25:
            batches.append(marker(chance.choice((ABORT, COMMIT)), chance.choice(PRODUCERS), offset))
            offset += 1
        elif step < 0.6:
            records = [commit(chance.randrange(1000), chance.choice(GROUPS), at=chance.randrange(3)) for _ in range(2)]
            batches.append(within(chance.choice(PRODUCERS), offset, *records))
            offset += len(records)
        else:
            records = [random_record(chance) for _ in range(chance.randrange(1, 4))]
            batches.append(plain(offset, *records))
            offset += len(records)
    return batches


def check(found: dict[str, GroupOffsets], judge: JavaJudge, log: bytes) -> None:
    known = coordinated_groups(judge, log)
    assert set(found) == set(known)
    for name, group in found.items():
        assert {(*one,): committed.offset for one, committed in group.items()} == known[name].offsets
        pending = {(*one.topic_partition,) for one in group.pending}
        assert known[name].unstable == pending & set(known[name].offsets)
        assert (group.protocol_type or "") == known[name].protocol_type


@pytest.mark.parametrize("seed", range(300 if LONG else 40))
def test_random_histories_end_as_kafkas_coordinator_ends(tmp_path: Path, judge: JavaJudge, seed: int) -> None:
    batches = random_history(random.Random(seed))
    log = open_partition(partition(tmp_path, batches, name="__consumer_offsets-0"))
    check(group_offsets(log), judge, b"".join(batches))


@pytest.mark.parametrize("cluster", golden_data.CLUSTERS)
def test_captured_logs_end_as_kafkas_coordinator_ends_wherever_they_are_cut(
    tmp_path: Path, cluster: str, judge: JavaJudge
) -> None:
    log = open_partition(golden_data.root() / cluster / "logs" / "__consumer_offsets-0")
    batches = [bytes(batch.data) for batch in log.batches]
    for end in range(1, len(batches) + 1, 1 if LONG else 9):
        directory = partition(tmp_path / str(end), batches[:end], name="__consumer_offsets-0")
        check(group_offsets(open_partition(directory)), judge, b"".join(batches[:end]))


def test_a_group_of_the_newer_protocol_is_named_by_its_metadata(tmp_path: Path, judge: JavaJudge) -> None:
    batch = plain(0, newer(3, "c", struct.pack(">i", 5) + b"\x00"), commit(4, "c"))
    log = open_partition(partition(tmp_path, [batch], name="__consumer_offsets-0"))
    check(group_offsets(log), judge, batch)
