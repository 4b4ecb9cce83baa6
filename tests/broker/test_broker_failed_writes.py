# SPDX-License-Identifier: Apache-2.0
"""A full disk and too many open files: what was acknowledged stays, and what was not written is not acknowledged."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from broker_core import CoreClient

from kcodec.broker import derived_file, partition_log
from kcodec.broker import topics as broker_topics
from kcodec.broker.api import ApiError
from kcodec.broker.partition_log import PartitionLog
from kcodec.errors import DecodeError
from kcodec.log import check_file
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

NONE = ErrorCode.NONE


def reopened(client: CoreClient, directory: Path) -> CoreClient:
    client.core.close(is_clean=False)
    return CoreClient(directory, start_ms=client.clock.now_ms() + 1000)


def stored(client: CoreClient) -> list[bytes | None]:
    """Return the values of the records in all segments of t-0."""
    found = client.core.topics.partition("t", 0)
    assert found is not None
    return [record.value for batch in found.log.batches_from(0) for record in batch.records()]


def values_after_restart(client: CoreClient, directory: Path) -> list[bytes | None]:
    """The values of t-0 that a broker finds after the crash of the one before."""
    again = reopened(client, directory)
    values = stored(again)
    again.core.close()
    return values


def refuse_files(patch: pytest.MonkeyPatch, *endings: str) -> None:
    """Let files with these endings be opened no more, as if the process had too many."""
    for owner in (os, Path):
        really = owner.open

        def refuse(path: Any, *rest: Any, really: Any = really, **options: Any) -> Any:
            if str(path).endswith(endings):
                raise OSError(errno.EMFILE, "Too many open files", str(path))
            return really(path, *rest, **options)

        patch.setattr(owner, "open", refuse)


def full_disk(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("is_partial", [False, True], ids=["EMFILE", "ENOSPC in an entry"])
def test_failed_index_write_loses_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_partial: bool) -> None:
    """The batch is in the log when its index entry is written, so the entry follows later."""
    client = CoreClient(tmp_path)
    client.prepare()
    values = [b"%d" % number * 3000 for number in range(9)]
    pwrite = os.pwrite

    def a_byte(file: int, data: bytes, position: int) -> int:
        if len(data) == 1:
            full_disk()
        return pwrite(file, data[:1], position)

    for number, value in enumerate(values):
        with monkeypatch.context() as patch:
            if 2 <= number <= 5 and is_partial:
                patch.setattr(os, "pwrite", a_byte)
            elif 2 <= number <= 5:
                refuse_files(patch, ".index", ".timeindex")
            assert client.produce(None, values=(value,)) == (NONE, number)
    assert client.committed() == values
    findings = [one for path in (tmp_path / "t-0").iterdir() for one in check_file(path)]
    assert [one for one in findings if one.severity != "info"] == []
    again = reopened(client, tmp_path)
    assert again.committed() == values
    again.core.close()


def test_lost_transaction_index_hides_aborted_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recovery takes the aborted transactions from the log, also before the newest snapshot."""
    client = CoreClient(tmp_path)
    client.prepare(internal_segment_bytes="4000")
    producer = client.init("a")[1]
    with monkeypatch.context() as patch:
        refuse_files(patch, ".txnindex", ".snapshot")
        for number in range(4):
            assert client.produce(producer, transactional_id="a", values=(b"%d" % number * 1500,))[0] is NONE
            code, producer = client.end("a", producer, commit=number % 2 > 0)
            assert code is NONE
    kept = [b"1" * 1500, b"3" * 1500]
    assert len(list((tmp_path / "t-0").glob("*.log"))) > 1
    assert not list((tmp_path / "t-0").glob("*.txnindex"))
    again = reopened(client, tmp_path)
    found = again.core.topics.partition("t", 0)
    assert found is not None
    assert [first for _, first in found.log.aborted_transactions()] == [0, 4]
    values = [record.value for batch in found.log.batches_from(0) for record in batch.records() if record.value]
    assert [value for value in values if value in kept] == kept
    assert list((tmp_path / "t-0").glob("*.txnindex"))
    again.core.close()


def test_failed_epoch_checkpoint_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = CoreClient(tmp_path)
    client.prepare()
    with monkeypatch.context() as patch:
        patch.setattr(derived_file, "write_small", full_disk)
        assert client.produce(None)[0] is ErrorCode.KAFKA_STORAGE_ERROR
    assert client.produce(None) == (NONE, 0)
    again = reopened(client, tmp_path)
    found = again.core.topics.partition("t", 0)
    assert found is not None
    assert found.log.epochs[0] == (0, 0)
    again.core.close()


def test_torn_batch_that_cannot_be_cut_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = CoreClient(tmp_path)
    client.prepare()
    assert client.produce(None, values=(b"before",)) == (NONE, 0)
    write = os.write

    def half(file: int, data: bytes) -> int:
        write(file, data[: len(data) // 2])
        return int(full_disk())

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        patch.setattr(os, "ftruncate", full_disk)
        assert client.produce(None, values=(b"refused",))[0] is ErrorCode.KAFKA_STORAGE_ERROR
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", full_disk)
        assert client.produce(None, values=(b"refused",))[0] is ErrorCode.KAFKA_STORAGE_ERROR
    assert client.produce(None, values=(b"after",)) == (NONE, 1)
    again = reopened(client, tmp_path)
    assert again.committed() == [b"before", b"after"]
    again.core.close()


def test_no_segment_follows_a_torn_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recovery would take the batches of the next segment for what follows a corrupt batch."""
    client = CoreClient(tmp_path)
    client.prepare(internal_segment_bytes="300")
    assert client.produce(None, values=(b"a" * 100,)) == (NONE, 0)
    write = os.write

    def half(file: int, data: bytes) -> int:
        write(file, data[: len(data) // 2])
        return int(full_disk())

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", full_disk)
        with monkeypatch.context() as torn:
            torn.setattr(os, "write", half)
            assert client.produce(None, values=(b"refused",))[0] is ErrorCode.KAFKA_STORAGE_ERROR
        assert client.produce(None, values=(b"b" * 200,))[0] is ErrorCode.KAFKA_STORAGE_ERROR
    assert client.produce(None, values=(b"b" * 200,)) == (NONE, 1)
    assert len(list((tmp_path / "t-0").glob("*.log"))) == 2
    assert values_after_restart(client, tmp_path) == [b"a" * 100, b"b" * 200]


def test_stop_on_a_full_disk_keeps_the_producers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention has deleted their batches, so that only the snapshot at the beginning of the log knows them."""
    client = CoreClient(tmp_path)
    client.prepare(retention_ms="1000")
    producer = client.init(None)[1]
    assert client.produce(producer, 0) == (NONE, 0)
    client.clock.advance(2000)
    client.core.topics.apply_retention()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full_disk)
        patch.setattr(Path, "write_bytes", full_disk)
        client.core.close()
    again = CoreClient(tmp_path, start_ms=client.clock.now_ms() + 1000)
    assert [path.name for path in (tmp_path / "t-0").glob("*.log")] == [f"{1:020}.log"]
    assert again.produce(producer, 0) == (NONE, 0)
    again.core.close()


def test_failed_start_closes_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = CoreClient(tmp_path)
    client.prepare()
    client.produce(None)
    client.core.close()
    files: set[int] = set()
    really_open, really_close = os.open, os.close

    def noted_open(*arguments: Any, **options: Any) -> int:
        files.add(found := really_open(*arguments, **options))
        return found

    def noted_close(file: int) -> None:
        files.discard(file)
        really_close(file)

    monkeypatch.setattr(os, "open", noted_open)
    monkeypatch.setattr(os, "close", noted_close)
    with pytest.raises(ValueError, match="max_versions names APIs that the broker does not have: Nothing"):
        CoreClient(tmp_path, max_versions={"Nothing": 1})
    assert files == set()
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_text("0\n1\n0 zero\n")
    with pytest.raises(DecodeError, match="leader-epoch-checkpoint: line 3"):
        CoreClient(tmp_path)
    assert files == set()


def test_new_segment_without_a_file_refuses_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = CoreClient(tmp_path)
    client.prepare(internal_segment_bytes="300")
    producer = client.init(None)[1]
    assert client.produce(producer, 0, values=(b"a" * 200,)) == (NONE, 0)
    with monkeypatch.context() as patch:
        refuse_files(patch, ".log")
        assert client.produce(producer, 1, values=(b"b" * 200,))[0] is ErrorCode.KAFKA_STORAGE_ERROR
    assert client.produce(producer, 1, values=(b"b" * 200,)) == (NONE, 1)
    assert values_after_restart(client, tmp_path) == [b"a" * 200, b"b" * 200]


def test_topic_without_a_file_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata log has the topic, so all its partitions exist; their files follow with the first batch."""
    client = CoreClient(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", full_disk)
        client.core.topics.create("t", 2)
    client.produce(None, values=(b"v",), partition=1)
    assert client.result_of(client.produced) == (NONE, 0)
    client = reopened(client, tmp_path)
    assert client.produce(None, values=(b"w",), partition=1) == (NONE, 1)
    assert (tmp_path / "t-0" / "partition.metadata").exists()
    client.core.close()


def test_topic_without_a_file_can_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = CoreClient(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", full_disk)
        client.core.topics.create("t", 1)
    client.core.topics.delete(next(iter(client.core.topics)))
    client.core.topics.create("t", 1)
    assert client.produce(None) == (NONE, 0)
    client.core.close()


def test_coordinators_log_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Kafka, the client looks for the coordinator again and repeats its request."""
    client = CoreClient(tmp_path)
    client.prepare()
    producer = client.init("a")[1]
    assert client.produce(producer, transactional_id="a")[0] is NONE
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_disk)
        assert client.end("a", producer)[0] is ErrorCode.NOT_COORDINATOR
        assert client.init("b")[0] is ErrorCode.NOT_COORDINATOR
    assert client.state("a") == "Ongoing"
    assert client.end("a", producer)[0] is NONE
    assert client.committed() == [b"v"]
    client.core.close()


def test_deleted_topics_are_reported_as_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the file with the log start offsets cannot be written: the metadata log has the deletion already."""
    client = CoreClient(tmp_path)
    client.prepare()
    client.produce(None)
    assert client.result_of(client.produced) == (NONE, 0)
    deletion = messages.DeleteTopicsRequest(topics=[messages.DeleteTopicState(name="t")])
    with monkeypatch.context() as patch:
        patch.setattr(derived_file, "write_small", full_disk)
        assert [one.error_code for one in client.ask(deletion, 6).responses] == [NONE]
        assert client.core.topics.get("t") is None
        creation = messages.CreateTopicsRequest(
            topics=[messages.CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
        )
        assert [one.error_code for one in client.ask(creation, 7).topics] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert [one.error_code for one in client.ask(creation, 7).topics] == [NONE]
    assert client.produce(None) == (NONE, 0)
    client.core.close()


def test_new_topic_does_not_write_to_files_of_a_deleted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first records would follow those of the deleted topic, and the next recovery would cut them off."""
    client = CoreClient(tmp_path)
    client.prepare()
    assert client.produce(None, values=(b"old",)) == (NONE, 0)
    with monkeypatch.context() as patch:
        for module in (broker_topics, partition_log):
            patch.setattr(module, "rmtree", lambda path, *, ignore_errors: None)
        client.core.topics.delete(client.core.topics.get("t"))  # type: ignore[arg-type]
        assert (tmp_path / "t-0").exists()
        with pytest.raises(ApiError, match="t-0 belongs to a deleted topic, and cannot be removed"):
            client.prepare()
        assert client.core.topics.get("t") is None
    client.prepare()
    assert client.produce(None, values=(b"new",)) == (NONE, 0)
    assert values_after_restart(client, tmp_path) == [b"new"]


@pytest.mark.parametrize("is_added", [False, True], ids=["new topic", "added partition"])
def test_files_that_the_broker_has_not_written_stay(tmp_path: Path, is_added: bool) -> None:
    client = CoreClient(tmp_path)
    if is_added:
        client.core.topics.create("photos-2024", 1)
    found = tmp_path / f"photos-2024-{1 if is_added else 0}" / "summer.txt"
    found.parent.mkdir()
    found.write_text("kept")
    if is_added:
        topic = messages.CreatePartitionsTopic(name="photos-2024", count=2, assignments=None)
        (result,) = client.ask(messages.CreatePartitionsRequest(topics=[topic]), 3).results
    else:
        wanted = messages.CreatableTopic(name="photos-2024", num_partitions=1, replication_factor=1)
        (result,) = client.ask(messages.CreateTopicsRequest(topics=[wanted]), 7).topics
    reason = f"{found.parent} was not written by this broker; move it away"
    assert (result.error_code, result.error_message) == (ErrorCode.KAFKA_STORAGE_ERROR, reason)
    again = reopened(client, tmp_path)
    assert again.core.topics.names() == (["photos-2024"] if is_added else [])
    assert found.read_text() == "kept"
    again.core.close()


def test_each_topic_has_its_own_result_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = CoreClient(tmp_path)
    for name in ("a", "b"):
        client.core.topics.create(name, 1)
    write, left = os.write, [1]

    def one_write(file: int, data: bytes) -> int:
        if not left:
            full_disk()
        left.pop()
        return write(file, data)

    deletion = messages.DeleteTopicsRequest(topics=[messages.DeleteTopicState(name=name) for name in ("a", "b")])
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", one_write)
        codes = [one.error_code for one in client.ask(deletion, 6).responses]
    assert codes == [NONE, ErrorCode.KAFKA_STORAGE_ERROR]
    assert client.core.topics.names() == ["b"]
    again = reopened(client, tmp_path)
    assert again.core.topics.names() == ["b"]
    again.core.close()


def test_retention_goes_on_after_a_partition_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = CoreClient(tmp_path)
    for name in ("a", "b", "c"):
        client.core.topics.create(name, 1, {"retention.ms": "1000"})
    for topic in client.core.topics:
        topic.partitions[0].log.append_records([(None, b"v")])
    client.clock.advance(2000)
    really = PartitionLog.roll
    failing = [client.core.topics.partition("a", 0), client.core.topics.partition("b", 0)]

    def roll(self: PartitionLog) -> Any:
        return full_disk() if self in [one.log for one in failing if one is not None] else really(self)

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "roll", roll)
        client.core.topics.apply_retention()
    starts = [topic.partitions[0].log.log_start_offset for topic in client.core.topics]
    assert starts == [0, 0, 1]
    client.core.topics.apply_retention()
    assert [topic.partitions[0].log.log_start_offset for topic in client.core.topics] == [1, 1, 1]
    client.core.close()


def test_retention_deletes_segments_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The segments are out of the log at once. While the first file cannot be deleted, all of them stay, so that a
    restart finds the producers of each one."""
    client = CoreClient(tmp_path)
    client.prepare(internal_segment_bytes="300", retention_ms="1000")
    producer = client.init(None)[1]
    assert client.produce(None, values=(b"0" * 200,)) == (NONE, 0)
    assert client.produce(producer, values=(b"1" * 200,)) == (NONE, 1)
    assert client.produce(None, values=(b"2" * 200,)) == (NONE, 2)
    client.clock.advance(2000)
    really = Path.unlink

    def unlink(self: Path, *, missing_ok: bool = False) -> None:
        if self.name == f"{0:020}.log":
            raise PermissionError(13, "Permission denied", str(self))
        really(self, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        client.core.topics.apply_retention()
        log = client.core.topics.get("t").partitions[0].log  # type: ignore[union-attr]
        assert (log.log_start_offset, log.size_in_bytes) == (3, 0)
        names = [f"{number:020}.log" for number in range(4)]
        assert sorted(path.name for path in (tmp_path / "t-0").glob("*.log")) == names
        assert "cannot be deleted" in caplog.text
        again = reopened(client, tmp_path)
        assert again.produce(producer, values=(b"1" * 200,)) == (NONE, 1)
    again.core.topics.apply_retention()
    assert [path.name for path in (tmp_path / "t-0").glob("*.log")] == [f"{3:020}.log"]
    again.core.close()


def test_a_log_needs_one_open_file_for_all_its_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = CoreClient(tmp_path)
    client.prepare(internal_segment_bytes="300")
    values = [b"%d" % number * 200 for number in range(9)]
    files: set[int] = set()
    really_open, really_close = os.open, os.close

    def noted_open(path: Any, *rest: Any, **options: Any) -> int:
        found = really_open(path, *rest, **options)
        if str(path).endswith(".log") and "/t-0/" in str(path):
            files.add(found)
        return found

    def noted_close(file: int) -> None:
        files.discard(file)
        really_close(file)

    monkeypatch.setattr(os, "open", noted_open)
    monkeypatch.setattr(os, "close", noted_close)
    for number, value in enumerate(values):
        assert client.produce(None, values=(value,)) == (NONE, number)
        assert len(files) == 1
    assert len(list((tmp_path / "t-0").glob("*.log"))) == len(values)
    assert stored(client) == values
    again = reopened(client, tmp_path)
    assert len(files) == 1
    assert stored(again) == values
    assert len(files) == 1
    assert again.produce(None) == (NONE, len(values))
    again.core.close()
    assert files == set()


def test_a_segment_that_cannot_be_opened_fails_only_its_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = CoreClient(tmp_path)
    client.prepare(partitions=2, internal_segment_bytes="300")
    for number in range(3):
        assert client.produce(None, values=(b"%d" % number * 200,)) == (NONE, number)
    assert client.produce(None, partition=1) == (NONE, 0)
    times = [messages.ListOffsetsPartition(partition_index=number, timestamp=0) for number in (0, 1)]
    request = messages.ListOffsetsRequest(topics=[messages.ListOffsetsTopic(name="t", partitions=times)])
    with monkeypatch.context() as patch:
        refuse_files(patch, f"t-0/{0:020}.log")
        listed = client.ask(request, 7).topics[0].partitions
        assert [(one.error_code, one.offset) for one in listed] == [(ErrorCode.KAFKA_STORAGE_ERROR, -1), (NONE, 0)]
    listed = client.ask(request, 7).topics[0].partitions
    assert [(one.error_code, one.offset) for one in listed] == [(NONE, 0), (NONE, 0)]
    client.core.close()
