# SPDX-License-Identifier: Apache-2.0
"""What a broker's own classes make of a log when they recover it: indexes, snapshots, offsets of timestamps."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from batch_writer import RecordSpec, build_batch, end_transaction_marker
from index_files import write_indexes
from java_internals import recovered_offsets
from java_judge import JavaJudge
from log_files import partition
from opened_logs import open_log

from kcodec.limits import DEFAULT_LIMITS
from kcodec.log import (
    ProducerState,
    read_offset_index,
    read_snapshot,
    read_time_index,
    read_transaction_index,
    write_snapshot,
)
from kcodec.log.producers import producer_states

INTERVAL = 300
SEEDS = 60 if os.environ.get("KCODEC_PROFILE") == "long" else 4


@pytest.fixture(scope="module")
def judge() -> Iterator[JavaJudge]:
    with JavaJudge() as running:
        yield running


class Writer:
    """A log of producers in and out of transactions, drawn from a seed; timestamps go forth and back around now."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now = int(time.time() * 1000)  # producers of long ago would be forgotten
        self.offset = 0
        self.sequences = {1: 0, 2: 2147483640, 3: 0, 4: 0}
        self.epochs = dict.fromkeys(self.sequences, 0)
        self.opened: set[int] = set()

    def batch(self) -> bytes:
        """The next one: data of a producer, of none, or a marker."""
        dice, base = self.dice, self.offset
        stamp = self.now + base * 10 + dice.randrange(-300, 300)
        if self.opened and dice.random() < 0.25:
            return self.marker(dice.choice(sorted(self.opened)), stamp)
        count = dice.randrange(1, 5)
        records = [RecordSpec(b"k", dice.randbytes(40), timestamp_delta=dice.randrange(9)) for _ in range(count)]
        self.offset += count
        if dice.random() < 0.2:
            return build_batch(records, base_offset=base, base_timestamp=stamp)
        producer = dice.choice(list(self.sequences))
        is_transactional = producer != 4
        if is_transactional:
            self.opened.add(producer)
        sequence = self.sequences[producer]
        self.sequences[producer] = (sequence + count) & 0x7FFFFFFF
        return build_batch(
            records,
            base_offset=base,
            base_timestamp=stamp,
            producer_id=producer,
            producer_epoch=self.epochs[producer],
            base_sequence=sequence,
            is_transactional=is_transactional,
        )

    def marker(self, producer: int, stamp: int) -> bytes:
        """Commit or abort, sometimes with the next epoch."""
        if self.dice.random() < 0.2:
            self.epochs[producer] += 1
            self.sequences[producer] = 0
        self.opened.discard(producer)
        written = end_transaction_marker(
            self.dice.randrange(2),
            producer_id=producer,
            producer_epoch=self.epochs[producer],
            base_offset=self.offset,
            base_timestamp=stamp,
            coordinator_epoch=1,
        )
        self.offset += 1
        return written


def recovered(judge: JavaJudge, folder: Path, seed: int) -> tuple[Path, Path, Writer, list[int], list[int | None]]:
    """(the log as written, a copy that Kafka recovered, its writer, timestamps, Kafka's answers)."""
    writer = Writer(seed)
    segments = [[writer.batch() for _ in range(40)] for _ in range(3)]
    written = partition(folder / "written", *segments)
    copy = Path(shutil.copytree(written, folder / "recovered" / written.name))
    timestamps = [writer.now + at for at in range(-400, writer.offset * 10 + 500, 61)]
    return written, copy, writer, timestamps, recovered_offsets(judge, copy, timestamps, INTERVAL)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_log_that_kafka_recovered(judge: JavaJudge, tmp_path: Path, seed: int) -> None:
    written, copy, writer, timestamps, reported = recovered(judge, tmp_path, seed)
    for path in (written, copy):
        assert [open_log(path).offset_for_timestamp(timestamp) for timestamp in timestamps] == reported
    walked = open_log(copy)
    assert [walked.offset_for_timestamp(timestamp, use_index=False) for timestamp in timestamps] == reported
    found = open_log(copy).check()
    assert {one.code for one in found} <= {"open-transaction"}, "\n".join(map(str, found))
    assert len(found) == len(writer.opened)


@pytest.mark.parametrize("seed", range(100, 100 + SEEDS))
def test_indexes_and_producers_are_those_that_kafka_wrote(judge: JavaJudge, tmp_path: Path, seed: int) -> None:
    written, copy, _writer, _timestamps, _reported = recovered(judge, tmp_path, seed)
    log = open_log(written)
    alone = producer_states(log.segments, log.log_end_offset, DEFAULT_LIMITS, use_snapshots=False)
    snapshot = read_snapshot(copy / f"{log.log_end_offset:020d}.snapshot")
    assert sorted(snapshot.producers, key=lambda state: state.producer_id) == list(alone)
    aborted = 0
    for segment in sorted(written.glob("*.log")):
        write_indexes(segment, interval=INTERVAL)
        copied = copy / segment.name
        ours, theirs = (read_offset_index(path.with_suffix(".index")) for path in (segment, copied))
        assert list(ours) == list(theirs)
        assert len(ours) > 5
        times = [read_time_index(path.with_suffix(".timeindex")) for path in (segment, copied)]
        assert list(times[0]) == list(times[1])
        if copied.with_suffix(".txnindex").exists():
            aborted += len(read_transaction_index(copied.with_suffix(".txnindex")))
    assert aborted == sum(one.state == "aborted" and one.first_offset is not None for one in log.transactions)


def test_a_snapshot_of_ours_is_loaded_by_kafka(judge: JavaJudge, tmp_path: Path) -> None:
    """It knows a producer of which the log has nothing: Kafka's next snapshot has it, too."""
    _written, copy, writer, _timestamps, _reported = recovered(judge, tmp_path, 9)
    path = max(copy.glob("*.snapshot"))
    other = ProducerState(77, 3, 9, 5, 1, writer.now, 4, None)
    states = [*read_snapshot(path).producers, other]
    write_snapshot(path, states)
    last = max(copy.glob("*.log"))
    end = open_log(copy).log_end_offset
    last.write_bytes(last.read_bytes() + build_batch([RecordSpec()], base_offset=end, base_timestamp=writer.now))
    recovered_offsets(judge, copy, [], INTERVAL, clean=True)
    found = read_snapshot(copy / f"{end + 1:020d}.snapshot")
    assert other in found.producers
    assert len(found.producers) == len(states)
