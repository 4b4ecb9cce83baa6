# SPDX-License-Identifier: Apache-2.0
"""The broker's files: what a killed broker leaves is all that it acknowledged, and others can read it."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from broker_core import CoreClient, Identity

import kcodec
from kcodec.broker import Broker, EmbeddedBrokerError
from kcodec.broker.transactions.coordinator import MARKER_RETRY_MS
from kcodec.log import Log, check_file
from kcodec.protocol.error_codes import ErrorCode

NONE = ErrorCode.NONE
ftruncate = os.ftruncate


def reopened(client: CoreClient, directory: Path, *, is_clean: bool = False) -> CoreClient:
    client.core.close(is_clean=is_clean)
    return CoreClient(directory, start_ms=client.clock.now_ms() + 1000)


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_open_and_decided_transactions_survive(tmp_path: Path, is_clean: bool) -> None:
    client = CoreClient(tmp_path)
    client.prepare()
    client.core.transactions.marker_delay_ms = 1000
    opened = client.init("open")[1]
    client.produce(opened, transactional_id="open", values=(b"open",))
    decided = client.init("decided")[1]
    client.produce(decided, transactional_id="decided", values=(b"decided",))
    following = client.end("decided", decided)[1]
    plain = client.init(None)[1]
    client.produce(plain, 0, values=(b"plain",))
    again = reopened(client, tmp_path, is_clean=is_clean)
    again.clock.run_due()
    assert (again.state("open"), again.state("decided")) == ("Ongoing", "CompleteCommit")
    assert (again.committed(), again.last_stable_offset()) == ([], 0)
    assert again.produce(plain, 0, values=(b"plain",)) == (NONE, 2)
    assert again.produce(opened, 1, transactional_id="open", values=(b"more",))[0] is NONE
    assert again.end("open", opened)[0] is NONE
    assert again.committed() == [b"open", b"decided", b"plain", b"more"]
    assert again.produce(following, transactional_id="decided")[0] is NONE
    newest = again.init(None)[1].producer_id
    assert newest >= 1000 > following.producer_id
    again.core.close()


def test_topics_settings_and_leader_epochs_survive(tmp_path: Path) -> None:
    client = CoreClient(tmp_path)
    client.prepare("a", 2, max_message_bytes="5000")
    client.prepare("b")
    deleted = client.core.topics.get("b")
    assert deleted is not None
    client.core.topics.delete(deleted)
    client.core.topics.create("b", 1)
    topic = client.core.topics.get("a")
    assert topic is not None
    client.core.topics.change_leader_epoch(topic, topic.partitions[1])
    client.produce(None, topic="a", partition=1)
    again = reopened(client, tmp_path)
    found = again.core.topics.get("a")
    assert found is not None
    assert (found.id, found.configs, len(found.partitions)) == (topic.id, {"max.message.bytes": "5000"}, 2)
    assert [partition.leader_epoch for partition in found.partitions] == [2, 3]
    assert found.partitions[1].log.epochs == [(1, 0), (3, 1)]
    assert found.partitions[1].log.end_of_epoch(1) == (1, 1)
    assert again.core.topics.names() == ["__consumer_offsets", "__transaction_state", "a", "b"]
    again.core.close()


@pytest.mark.parametrize("call", ["create_topic", "seed"])
def test_the_metadata_log_is_not_a_topic(tmp_path: Path, call: str) -> None:
    """Files of a topic of its name would replace it, and all topics would be lost at the next start."""
    name = "__cluster_metadata"
    with Broker(data_dir=tmp_path) as broker:
        broker.create_topic("orders", 2)
        broker.seed("orders", [b"a"])
        with pytest.raises(EmbeddedBrokerError, match="Creation of internal topic __cluster_metadata is prohibited"):
            broker.create_topic(name) if call == "create_topic" else broker.seed(name, [b"v"])
    with Broker(data_dir=tmp_path) as broker:
        assert [record.value for record in broker.committed("orders")] == [b"a"]


def test_a_torn_batch_at_the_end_is_cut_off(tmp_path: Path) -> None:
    client = CoreClient(tmp_path)
    client.prepare()
    for number in range(3):
        client.produce(None, values=(b"%d" % number,))
    client.core.close(is_clean=False)
    path = tmp_path / "t-0" / f"{0:020}.log"
    whole = path.read_bytes()
    for size in (len(whole) - 1, len(whole) - 60, len(whole) // 3 + 5):
        path.write_bytes(whole[:size])
        again = CoreClient(tmp_path)
        kept = again.committed()
        assert kept == [b"0", b"1", b"2"][: len(kept)]
        assert path.stat().st_size == len(whole) // 3 * len(kept)
        assert again.produce(None)[1] == len(kept)
        again.core.close(is_clean=False)


def test_files_are_those_of_kafka(tmp_path: Path) -> None:
    """Segments, indexes, transaction index and snapshots have no findings, and kcodec.open reads the committed data."""
    client = CoreClient(tmp_path)
    client.prepare("t", 1, **{"internal.segment.bytes": "20000", "index.interval.bytes": "4096"})
    producer = client.init("a")[1]
    expected: list[bytes] = []
    for number in range(30):
        values = (b"%d" % number * 500, b"x" * 900)
        assert client.produce(producer, transactional_id="a", values=values)[0] is NONE
        producer = client.end("a", producer, commit=number % 3 > 0)[1]
        expected += values if number % 3 else ()
    client.core.close()
    folder = tmp_path / "t-0"
    endings = {path.suffix for path in folder.iterdir()}
    assert endings >= {".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".metadata"}
    findings = [finding for path in sorted(folder.iterdir()) for finding in check_file(path)]
    assert [finding for finding in findings if finding.severity != "info"] == []
    log = kcodec.open(folder)
    assert isinstance(log, Log)
    stream = log.records(isolation_level="read_committed")
    assert [record.value for record in stream] == expected
    again = CoreClient(tmp_path)
    found = again.core.topics.partition("t", 0)
    before = client.core.topics.partition("t", 0)
    assert found is not None
    assert before is not None
    assert found.log.aborted_transactions() == before.log.aborted_transactions()
    assert found.log.log_end_offset == before.log.log_end_offset == 90
    assert {entry.producer_id: entry.epoch for entry in found.log.producers} == {
        entry.producer_id: entry.epoch for entry in before.log.producers
    }
    again.core.close()


def test_an_empty_partition_has_a_segment(tmp_path: Path) -> None:
    """As on Kafka, so that tools can read its directory; before and after a restart."""
    client = CoreClient(tmp_path)
    client.prepare("t", 2)
    log = kcodec.open(tmp_path / "t-1")
    assert isinstance(log, Log)
    assert list(log.records()) == []
    reopened(client, tmp_path).core.close()
    assert [path.name for path in (tmp_path / "t-1").glob("*.log")] == [f"{0:020}.log"]


def test_a_moved_log_start_survives(tmp_path: Path) -> None:
    client = CoreClient(tmp_path)
    client.prepare()
    client.produce(None, values=(b"a", b"b", b"c"))
    partition = client.core.topics.partition("t", 0)
    assert partition is not None
    partition.log.delete_before(2)
    client.core.topics.keep_starts()
    again = reopened(client, tmp_path)
    found = again.core.topics.partition("t", 0)
    assert found is not None
    assert (found.log.log_start_offset, found.log.log_end_offset) == (2, 3)
    again.core.close()


@pytest.mark.parametrize("seed", range(8))
def test_random_kills_lose_nothing_acknowledged(tmp_path: Path, seed: int) -> None:
    """Transactions of two producers, the broker gone between any two requests; a model says what is committed."""
    chosen = random.Random(seed)
    client = CoreClient(tmp_path)
    client.prepare()
    client.core.transactions.marker_delay_ms = 5
    producers: dict[str, Identity] = {}
    sequences: dict[str, int] = {}
    written: dict[str, list[tuple[int, bytes]]] = {"a": [], "b": []}
    committed: dict[int, bytes] = {}
    for number in range(60):
        name = chosen.choice("ab")
        action = chosen.random()
        if action < 0.12:
            client = reopened(client, tmp_path, is_clean=chosen.random() < 0.3)
            client.core.transactions.marker_delay_ms = 5
        client.clock.advance(20)
        if name not in producers or action > 0.95:
            while (found := client.init(name))[0] is ErrorCode.CONCURRENT_TRANSACTIONS:
                client.clock.advance(20)
            assert found[0] is NONE
            producers[name], sequences[name] = found[1], 0
            written[name] = []
        elif action < 0.7 or not written[name]:
            value = b"%s%d" % (name.encode(), number)
            code, offset = client.produce(producers[name], sequences[name], transactional_id=name, values=(value,))
            assert code is NONE
            written[name].append((offset, value))
            sequences[name] += 1
        else:
            is_commit = chosen.random() < 0.6
            code, producers[name] = client.end(name, producers[name], commit=is_commit)
            assert code is NONE
            committed.update(written[name] if is_commit else ())
            written[name], sequences[name] = [], 0
    client = reopened(client, tmp_path)
    client.clock.advance(20)
    for name, producer in producers.items():
        client.end(name, producer, commit=False)
    client.clock.advance(20)
    assert client.committed() == [committed[offset] for offset in sorted(committed)]
    client.core.close()


def test_batches_after_corrupt_bytes_are_kept_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What follows a corrupt batch is no part of the log any more, as in Kafka, but its bytes are not deleted."""
    client = CoreClient(tmp_path)
    client.prepare(segment_bytes=str(1 << 20))
    for value in (b"a", b"b", bytes(1 << 19), bytes(1 << 19), b"later"):
        client.produce(None, values=(value,))
    client.core.close()
    segments = sorted((tmp_path / "t-0").glob("*.log"))
    assert len(segments) == 2
    data = bytearray(segments[0].read_bytes())
    first = 12 + int.from_bytes(data[8:12], "big")
    data[first + 30] ^= 1
    segments[0].write_bytes(data)
    following = segments[1].read_bytes()
    again = CoreClient(tmp_path)
    assert again.committed() == [b"a"]
    assert again.produce(None, values=(b"new",)) == (NONE, 1)
    aside = [segments[0].with_suffix(f".log.corrupt-at-{first}"), segments[1].with_suffix(".log.corrupt-at-0")]
    assert [path.read_bytes() for path in aside] == [data[first:], following]
    assert [record.getMessage() for record in caplog.records if aside[1].name in record.getMessage()] != []
    again.core.close()
    assert not segments[1].exists()


@pytest.mark.parametrize("is_killed_early", [False, True])
def test_new_topic_of_an_old_name_keeps_its_records(tmp_path: Path, is_killed_early: bool) -> None:
    """The log start offset of a deleted topic is not that of the next topic with its name."""
    client = CoreClient(tmp_path)
    client.prepare()
    client.produce(None, values=(b"a", b"b", b"c"))
    partition = client.core.topics.partition("t", 0)
    assert partition is not None
    partition.log.delete_before(2)
    client.core.topics.keep_starts()
    starts = (tmp_path / "log-start-offset-checkpoint").read_bytes()
    deleted = client.core.topics.get("t")
    assert deleted is not None
    client.core.topics.delete(deleted)
    if is_killed_early:  # between the deletion in the metadata log and the checkpoint
        (tmp_path / "log-start-offset-checkpoint").write_bytes(starts)
        client = reopened(client, tmp_path)
    client.core.topics.create("t", 1)
    assert client.produce(None, values=(b"new",)) == (NONE, 0)
    again = reopened(client, tmp_path)
    assert again.committed() == [b"new"]
    again.core.close()


def test_full_disk_loses_no_record_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails in the middle leaves no part of a batch between the batches before and after it."""
    client = CoreClient(tmp_path)
    client.prepare()
    assert client.produce(None, values=(b"before",))[0] is NONE
    write = os.write

    def half(file: int, data: bytes) -> int:
        write(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        assert client.produce(None, values=(b"refused",))[0] is ErrorCode.KAFKA_STORAGE_ERROR
    assert client.produce(None, values=(b"after",)) == (NONE, 1)
    assert client.committed() == [b"before", b"after"]
    again = reopened(client, tmp_path)
    assert again.committed() == [b"before", b"after"]
    again.core.close()


def test_markers_are_written_again_after_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = CoreClient(tmp_path)
    client.prepare()
    client.core.transactions.marker_delay_ms = 10
    producer = client.init("a")[1]
    client.produce(producer, transactional_id="a")
    assert client.end("a", producer)[0] is NONE

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        client.clock.advance(100)
    assert (client.state("a"), client.committed()) == ("PrepareCommit", [])
    client.clock.advance(MARKER_RETRY_MS)
    assert (client.state("a"), client.committed()) == ("CompleteCommit", [b"v"])
    client.core.close()


def segments_with_a_corrupt_batch(directory: Path) -> tuple[Identity, list[bytes]]:
    """Write five segments of a producer, and corrupt the second batch of the second one. Return its values."""
    client = CoreClient(directory)
    client.prepare(internal_segment_bytes="300")
    producer = client.init(None)[1]
    values = [b"%d" % number * 50 for number in range(10)]
    for number, value in enumerate(values):
        assert client.produce(producer, number, values=(value,)) == (NONE, number)
    client.core.close(is_clean=False)
    logs = sorted((directory / "t-0").glob("*.log"))
    assert len(logs) == 5
    data = bytearray(logs[1].read_bytes())
    data[-3] ^= 1
    logs[1].write_bytes(data)
    return producer, values


class Killed(BaseException):
    """Ends a recovery before a change of a file."""


def killed_before(change: int, patch: pytest.MonkeyPatch) -> None:
    """Let the change of a file with this number, from 1 on, raise Killed instead."""
    left = change
    for owner, name in ((Path, "rename"), (Path, "unlink"), (Path, "open"), (os, "open"), (os, "ftruncate")):
        really = getattr(owner, name)

        def counted(*arguments: Any, really: Any = really, **options: Any) -> Any:
            nonlocal left
            left -= "t-0" in str(arguments[0]) or really is ftruncate
            if not left:
                raise Killed
            return really(*arguments, **options)

        patch.setattr(owner, name, counted)


def test_kill_in_a_recovery_leaves_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recovery is killed before each change of a file; the next one finds the same end of the log."""
    segments_with_a_corrupt_batch(tmp_path / "0")
    number, is_killed = 0, True
    while is_killed:
        number += 1
        directory = tmp_path / str(number)
        shutil.copytree(tmp_path / "0", directory)
        removed = b"".join(path.read_bytes() for path in sorted((directory / "t-0").glob("*.log"))[2:])
        with monkeypatch.context() as patch:
            killed_before(number, patch)
            try:
                CoreClient(directory).core.close(is_clean=False)
                is_killed = False
            except Killed:
                pass
        again = CoreClient(directory)
        found = again.core.topics.partition("t", 0)
        assert found is not None
        assert [batch.base_offset for batch in found.log.batches_from(0)] == [0, 1, 2], number
        assert found.log.log_end_offset == 3
        again.core.close(is_clean=False)
        aside = [path.read_bytes() for path in sorted((directory / "t-0").glob("*.corrupt-at-*"))]
        assert len(aside) == 4
        assert b"".join(aside[1:]) == removed
    assert number > 20


def test_recovered_log_knows_no_later_sequence(tmp_path: Path) -> None:
    """The producer state is that of the log after the cut, whatever the snapshots of later segments have."""
    producer, values = segments_with_a_corrupt_batch(tmp_path)
    again = CoreClient(tmp_path)
    assert again.produce(producer, 3, values=(b"again",)) == (NONE, 3)
    found = again.core.topics.partition("t", 0)
    assert found is not None
    kept = [record.value for batch in found.log.batches_from(0) for record in batch.records()]
    assert kept == [*values[:3], b"again"]
    again.core.close()


def test_segment_is_read_in_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system reads less than 2 GiB at once, and a segment can be larger. What is missing must not be cut off."""
    client = CoreClient(tmp_path)
    client.prepare()
    for number in range(3):
        assert client.produce(None, values=(b"%d" % number * 50,)) == (NONE, number)
    client.core.close(is_clean=False)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, position: pread(file, min(size, 70), position))
    again = CoreClient(tmp_path)
    assert again.committed() == [b"0" * 50, b"1" * 50, b"2" * 50]
    again.core.close()


def test_earlier_removed_bytes_are_not_replaced(tmp_path: Path) -> None:
    client = CoreClient(tmp_path)
    client.prepare()
    path = tmp_path / "t-0" / f"{0:020}.log"
    removed = []
    for value in (b"first", b"second"):
        assert client.produce(None, values=(value,)) == (NONE, 0)
        client.core.close(is_clean=False)
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
        removed.append(bytes(data))
        client = CoreClient(tmp_path)
    client.core.close()
    assert [path.with_name(f"{path.name}.corrupt-at-0{end}").read_bytes() for end in ("", ".1")] == removed
