# SPDX-License-Identifier: Apache-2.0
"""A broker's log directory as one object: the captured ones, and made-up ones with all that can lie in one."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import golden_data
import pytest
from batch_writer import RecordSpec
from log_files import ABORT, COMMIT, data, marker, offsets, partition, plain
from opened_logs import open_directory, open_log
from storages import Buckets

import kcodec
from kcodec.log import Log, LogDirectory, OtherEntry, open_log_directory, open_partition

CLUSTERS = golden_data.CLUSTERS
TP = kcodec.TopicPartition


def captured(cluster: str, kind: str = "logs") -> LogDirectory:
    return open_log_directory(golden_data.root() / cluster / kind)


def made(folder: Path) -> LogDirectory:
    return open_directory(folder)


# ------------------------------------------------------------------------------------------------------- the captured


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_captured_directory_holds_its_partitions(cluster: str) -> None:
    directory = captured(cluster)
    named = [one.name for one in golden_data.partitions() if one.cluster == cluster]
    assert len(directory) == len(named)
    assert set(directory) == set(named)
    assert list(directory) == [str(TP(topic, at)) for topic, held in directory.topics.items() for at in held]
    for name in ("__consumer_offsets-0", "txn-java-0" if cluster == "tv2" else "tv-java-0"):
        log = directory[name]
        assert isinstance(log, Log)
        assert f"{log.topic}-{log.partition}" == name
        assert offsets(log) == offsets(open_partition(golden_data.root() / cluster / "logs" / name))
    assert directory.others == ()
    assert directory.is_clean_shutdown


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_files_of_a_captured_directory_are_read(cluster: str) -> None:
    directory = captured(cluster)
    reported = golden_data.offsets(cluster)["partitions"]
    assert directory.meta_properties is not None
    assert directory.meta_properties.node_id == 1
    assert {directory.topic_ids[name.rpartition("-")[0]] for name in reported} == {
        one["topicId"] for one in reported.values()
    }
    for name, one in reported.items():
        assert directory.high_watermarks[named(name)] == one["highWatermark"]
        assert directory.recovery_points[named(name)] == one["highWatermark"]
    moved = {named(name): one["logStartOffset"] for name, one in reported.items() if name.startswith("deleted-")}
    assert directory.log_start_offsets == moved
    assert set(directory.cleaner_offsets) == ({TP(f"compact-{one}", 0) for one in KEPT} if cluster == "tv2" else set())


KEPT = ("drop", "keep", "txn", "txn-drop")


def named(name: str) -> kcodec.TopicPartition:
    topic, _, partition = name.rpartition("-")
    return TP(topic, int(partition))


def test_the_repr_shows_what_matters() -> None:
    assert repr(captured("tv2")).endswith("/tv2/logs: 116 partitions of 109 topics, node 1, clean shutdown>")
    assert repr(captured("tv2", "killed")).endswith("/tv2/killed: 3 partitions of 3 topics, no clean shutdown>")


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_every_captured_partition_is_read_through_its_directory(cluster: str) -> None:
    directory = captured(cluster)
    for one in golden_data.partitions(magic=2):
        if one.cluster == cluster:
            found = [(batch.base_offset, batch.crc) for batch in directory[one.name].batches]
            assert found == [(batch["baseOffset"], batch["crc"]) for batch in one.batches], one


def test_copies_of_running_and_killed_brokers_open() -> None:
    for partition_ in [*golden_data.copies("live"), *golden_data.copies("killed")]:
        directory = captured(partition_.cluster, partition_.kind)
        assert not directory.is_clean_shutdown
        assert directory.meta_properties is None
        log = directory[partition_.name]
        assert [batch.base_offset for batch in log.batches] == [batch["baseOffset"] for batch in partition_.batches]


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_coordinators_are_found_in_it(cluster: str) -> None:
    directory = captured(cluster)
    assert {name: len(group) for name, group in directory.group_offsets().items()} == {
        name: len(reported) for name, reported in golden_data.offsets(cluster)["groupOffsets"].items()
    }
    assert len(directory.transaction_states()) == len(golden_data.offsets(cluster)["transactions"])
    assert captured("tv2", "killed").transaction_states() == {}
    assert captured("tv2", "killed").group_offsets() == {}


# --------------------------------------------------------------------------------------------------- metadata snapshots


SNAPSHOTS = [
    (one, name)
    for one in golden_data.partitions()
    if one.topic == "__cluster_metadata"
    for name in one.checkpoint_batches
]


@pytest.mark.parametrize(("partition_", "name"), SNAPSHOTS, ids=[f"{one}-{name}" for one, name in SNAPSHOTS])
def test_a_metadata_snapshot_opens_like_a_log(partition_: golden_data.Partition, name: str) -> None:
    from internal_truth import check_record

    from kcodec.log import internal_record

    log = open_log(partition_.path / name)
    assert isinstance(log, Log)
    assert (log.topic, log.partition, log.segments[0].is_active) == ("__cluster_metadata", 0, False)
    reported = [record for batch in partition_.checkpoint_batches[name] for record in batch["records"]]
    records = list(log.records(control_records="include"))
    assert [record.offset for record in records] == [record["offset"] for record in reported]
    shown = [internal_record(log.topic, record) for record in records]
    for one, truth in zip(shown, reported, strict=True):
        assert one is not None
        check_record(one, truth)
    assert shown[0] is not None
    assert shown[-1] is not None
    assert (shown[0]["type"], shown[-1]["type"]) == ("SNAPSHOT_HEADER", "SNAPSHOT_FOOTER")


def test_a_cut_snapshot_is_corruption(tmp_path: Path) -> None:
    partition_, name = SNAPSHOTS[-1]
    content = (partition_.path / name).read_bytes()
    (tmp_path / "bootstrap.checkpoint").write_bytes(content[:-1])
    log = open_log(tmp_path / "bootstrap.checkpoint")
    assert log.topic == "__cluster_metadata"
    with pytest.raises(kcodec.TruncatedError):
        list(log.records())


# --------------------------------------------------------------------------------------------------------- the made-up


def broker(folder: Path) -> Path:
    """Three partitions, and all kinds of other things."""
    partition(folder, [plain(0)], name="b-10")
    partition(folder, [plain(5)], name="b-9")
    partition(folder, [plain(7)], name="a.b-c-0")
    unique = "0123456789abcdef0123456789abcdef"
    for kind in ("delete", "future", "stray"):
        partition(folder, [plain(0)], name=f"gone-0.{unique}-{kind}")
    (folder / "lost+found").mkdir()
    (folder / "notes.txt").write_text("x")
    (folder / ".lock").write_bytes(b"")
    (folder / "file-0").write_bytes(b"named like a partition")
    (folder / "meta.properties").write_text("version=1\nnode.id=4\ncluster.id=c\n")
    return folder


def test_what_is_no_partition_is_listed_and_not_mixed_in(tmp_path: Path) -> None:
    directory = made(broker(tmp_path))
    assert list(directory) == ["a.b-c-0", "b-9", "b-10"]
    assert directory.topics == {"a.b-c": (0,), "b": (9, 10)}
    unique = "0123456789abcdef0123456789abcdef"
    assert sorted(directory.others) == sorted(
        [
            OtherEntry("file-0", "file"),
            *(OtherEntry(f"gone-0.{unique}-{kind}", kind) for kind in ("delete", "future", "stray")),
            OtherEntry("lost+found", "directory"),
            OtherEntry("notes.txt", "file"),
        ]
    )
    assert repr(directory) == (
        f"<LogDirectory {tmp_path}: 3 partitions of 2 topics, node 4, no clean shutdown, "
        "1 -delete, 1 -future, 1 -stray>"
    )
    with pytest.raises(
        KeyError,
        match=f"has no partition 'gone-0.{unique}-stray': the directory of this name is not a partition, but",
    ):
        directory[f"gone-0.{unique}-stray"]


def test_partitions_are_found_by_name_and_by_topic_partition(tmp_path: Path) -> None:
    directory = made(broker(tmp_path))
    assert offsets(directory["b-9"]) == offsets(directory[TP("b", 9)]) == offsets(directory["b", 9]) == [5, 6, 7]
    for present in ("b-9", TP("b", 9)):
        assert present in directory
    for absent in ("b-11", "b", "b-x", "", 3, ("b",), TP("b", 11)):
        assert absent not in directory
        with pytest.raises(KeyError, match=r"has no partition .*; it has "):
            directory[absent]  # type: ignore[index]
    assert [log.log_start_offset for log in directory.values()] == [7, 5, 0]
    assert directory.get("b-11") is None
    assert pickle.loads(pickle.dumps(directory)) == directory
    assert len({directory, made(tmp_path)}) == 1


@pytest.mark.parametrize("option", ["topic", "partition", "high_watermark"])
def test_options_for_one_partition_are_refused(tmp_path: Path, option: str) -> None:
    value: Any = "b" if option == "topic" else 3
    with pytest.raises(ValueError, match=f"is a log directory: {option} can be given for one partition"):
        kcodec.open(broker(tmp_path), **{option: value})


def test_neither_a_partition_nor_a_log_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for opener in (kcodec.open, open_log_directory):
        with pytest.raises(FileNotFoundError, match=r"is not a partition directory, .*, and not a log directory"):
            opener(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such directory"):
        open_log_directory(tmp_path / "absent")
    with pytest.raises(ValueError, match="is a partition directory"):
        open_log_directory(partition(tmp_path, [plain(0)]))
    (tmp_path / "empty-0").mkdir()
    with pytest.raises(FileNotFoundError, match="is not a partition directory"):
        kcodec.open(tmp_path / "empty-0")


def test_a_folder_above_a_log_directory_is_refused(tmp_path: Path) -> None:
    """Its node-1 is named like a partition; the message has the path of the log directory."""
    broker(tmp_path / "node-1" / "data")
    for opener in (kcodec.open, open_log_directory):
        with pytest.raises(FileNotFoundError, match=rf"contains one: open {tmp_path}/node-1/data$"):
            opener(tmp_path)
    broker(tmp_path / "node-2" / "data")
    with pytest.raises(FileNotFoundError, match=rf"open {tmp_path}/node-1/data or {tmp_path}/node-2/data$"):
        kcodec.open(tmp_path)


def test_a_directory_with_nothing_but_its_own_files_is_one(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=4\n")
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\norders 0 17\n")
    directory = made(tmp_path)
    assert len(directory) == 0
    assert directory.recovery_points == {TP("orders", 0): 17}
    assert (directory.high_watermarks, directory.topics, directory.topic_ids) == ({}, {}, {})


def test_a_partition_without_a_segment_yet_stops_nothing(tmp_path: Path) -> None:
    partition(tmp_path, [data(7, 0)])
    (tmp_path / "orders-1").mkdir()
    directory = made(tmp_path)
    assert directory.topics == {"orders": (0, 1)}
    assert [found.partition for found in directory.transactions()] == [0]
    with pytest.raises(FileNotFoundError, match="has no segment"):
        directory["orders-1"]


def test_corrupt_files_are_decode_errors_that_name_them(tmp_path: Path) -> None:
    partition(tmp_path, [plain(0)])
    for name, ask in CHECKED.items():
        (tmp_path / name).write_bytes(b"\xff\xfe nonsense\n")
        with pytest.raises(kcodec.DecodeError, match=name):
            ask(made(tmp_path))
        (tmp_path / name).unlink()
    (tmp_path / "orders-0" / "partition.metadata").write_bytes(b"nonsense")
    with pytest.raises(kcodec.DecodeError, match=r"partition\.metadata"):
        _ = made(tmp_path).topic_ids


CHECKED: dict[str, Callable[[LogDirectory], object]] = {
    "meta.properties": lambda directory: directory.meta_properties,
    "replication-offset-checkpoint": lambda directory: directory.high_watermarks,
    "recovery-point-offset-checkpoint": lambda directory: directory.recovery_points,
    "log-start-offset-checkpoint": lambda directory: directory.log_start_offsets,
    "cleaner-offset-checkpoint": lambda directory: directory.cleaner_offsets,
}


def test_a_directory_of_another_filesystem_opens_in_the_same_way(tmp_path: Path) -> None:
    broker(tmp_path)
    directory = open_log_directory("", filesystem=Buckets(tmp_path))
    assert list(directory) == ["a.b-c-0", "b-9", "b-10"]
    assert offsets(directory["b-9"]) == [5, 6, 7]
    assert directory.meta_properties == made(tmp_path).meta_properties


# --------------------------------------------------------------------------------------------------------- transactions


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_open_transactions_of_a_capture_are_those_of_the_broker(cluster: str) -> None:
    directory = captured(cluster)
    reported = golden_data.offsets(cluster)
    expected = {
        (name, one["producerId"], one["currentTransactionStartOffset"])
        for name, producers in reported["producers"].items()
        for one in producers
        if one["currentTransactionStartOffset"] >= 0
    }
    found = directory.transactions(on_error="stop")
    assert {
        (f"{one.topic}-{one.partition}", one.transaction.producer_id, one.transaction.first_offset) for one in found
    } == expected
    ids = {one["producerId"]: one["transactionalId"] for one in reported["transactions"]}
    for one in found:
        assert one.transactional_id == ids[one.transaction.producer_id]
        assert one.coordinator_state is not None
        assert one.coordinator_state.state == "Ongoing"
        assert one.is_hanging is False
        stable = reported["partitions"][f"{one.topic}-{one.partition}"]["lastStableOffset"]
        assert one.holds_last_stable_offset == (one.transaction.first_offset == stable)
        assert one.abort_command == (
            f"kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic {one.topic} "
            f"--partition {one.partition} --start-offset {one.transaction.first_offset}"
        )
    assert sum(one.holds_last_stable_offset for one in found) == len({(one.topic, one.partition) for one in found})


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_ended_transactions_are_joined_with_their_transactional_id(cluster: str) -> None:
    ids = {one["producerId"]: one["transactionalId"] for one in golden_data.offsets(cluster)["transactions"]}
    found = captured(cluster).transactions(None, on_error="stop")
    assert len(found) > 50
    for one in found:
        if one.transaction.state != "open":
            assert (one.abort_command, one.holds_last_stable_offset, one.is_hanging) == (None, False, False)
        if one.transaction.producer_id in ids:
            assert one.transactional_id == ids[one.transaction.producer_id]
    assert {one.transaction.state for one in found} == {"open", "committed", "aborted"}
    with pytest.raises(ValueError, match=r"states must be among open, committed, aborted, not \['opened'\]"):
        captured(cluster).transactions(["opened"])
    assert captured(cluster).transactions("open", on_error="stop") == [
        one for one in found if one.transaction.state == "open"
    ]


def test_the_transaction_that_holds_the_last_stable_offset_is_named(tmp_path: Path) -> None:
    log = open_partition(partition(tmp_path, [data(7, 0), data(8, 2), marker(ABORT, 7, 4), plain(5)]))
    assert log.holding_transaction is not None
    assert (log.holding_transaction.producer_id, log.last_stable_offset) == (8, 2)
    assert log.holding_transaction.age_ms(log.holding_transaction.first_timestamp + 5_000) == 5_000
    ended = log.transactions[0]
    assert ended.marker_timestamp is not None
    assert ended.age_ms(10**15) == ended.marker_timestamp - ended.first_timestamp
    below = open_partition(tmp_path / "orders-0", high_watermark=4)
    assert below.holding_transaction is not None
    assert (below.holding_transaction.producer_id, below.holding_transaction.state) == (7, "aborted")
    closed = open_partition(partition(tmp_path, [data(7, 0), marker(COMMIT, 7, 2)], name="closed-0"))
    assert closed.holding_transaction is None


def test_what_the_coordinator_does_not_expect_is_hanging(tmp_path: Path) -> None:
    from group_records import plain as batch
    from group_records import text

    def state(name: str, producer_id: int, status: int, *partitions: int, previous: int | None = None) -> RecordSpec:
        key = struct.pack(">h", 0) + text(name)
        value = struct.pack(">hqhib", 0 if previous is None else 1, producer_id, 0, 60_000, status)
        if previous is None:
            value += struct.pack(">i", 1) + text("orders") + struct.pack(">i", len(partitions))
            return RecordSpec(key, value + struct.pack(f">{len(partitions)}i", *partitions) + bytes(16))
        value += b"\x00" + bytes(16) + b"\x01\x00\x08" + previous.to_bytes(8, "big")
        return RecordSpec(key, value)

    noted = [
        state("writing", 7, 1, 0, 1),
        state("elsewhere", 8, 1, 5),
        state("done", 9, 4),
        state("moved", 20, 0, previous=10),
    ]
    partition(tmp_path, [batch(0, *noted)], name="__transaction_state-3")
    partition(tmp_path, [b"".join(data(producer, 2 * at) for at, producer in enumerate((7, 8, 9, 10, 11)))])
    found = made(tmp_path).transactions()
    assert [(one.transactional_id, one.is_hanging, one.holds_last_stable_offset) for one in found] == [
        ("writing", False, True),
        ("elsewhere", True, False),
        ("done", True, False),
        ("moved", True, False),
        (None, None, False),
    ]
    assert [one.topic for one in found] == ["orders"] * 5
    assert found[0].age_ms(found[0].transaction.first_timestamp + 7) == 7
    assert repr(found[0]) == (
        "<PartitionTransaction orders-0 producer_id=7/0 open 0..1, transactional_id='writing' Ongoing, "
        "holds last_stable_offset>"
    )
    assert repr(found[1]).endswith("transactional_id='elsewhere' Ongoing, hanging>")
    assert repr(found[4]) == "<PartitionTransaction orders-0 producer_id=11/0 open 8..9>"


def test_an_unknown_topic_names_those_that_there_are(tmp_path: Path) -> None:
    for name in ("orders-0", "orders-1", *(f"t{at:02}-0" for at in range(20))):
        partition(tmp_path, [data(1, 0)], name=name)
    topics = made(tmp_path).topics
    assert topics["orders"] == (0, 1) and topics.get("order") is None and "order" not in topics
    assert pickle.loads(pickle.dumps(topics)) == topics
    for name, reported in (
        ("order", r"has no topic 'order'; it has orders, t00, t01, t02, t03 and 16 more; did you mean 'orders'\?"),
        ("orders-1", r"has no topic 'orders-1': this is the name of a partition; directory\['orders-1'\] opens it"),
        ("zzz", r"has no topic 'zzz'; it has orders, .* more"),
    ):
        with pytest.raises(KeyError, match=reported):
            topics[name]


def test_a_log_and_a_directory_say_what_the_other_one_has(tmp_path: Path) -> None:
    partition(tmp_path, [data(1, 0)])
    directory: Any = made(tmp_path)
    with pytest.raises(AttributeError, match=r"a Log is one partition and has no topics: use log\.topic"):
        directory["orders-0"].topics  # noqa: B018
    with pytest.raises(
        AttributeError, match=r"has no to_arrow\(\): call it for one partition, as in directory\['orders-0'\]"
    ):
        directory.to_arrow()
    for found in (directory, directory["orders-0"]):
        with pytest.raises(AttributeError, match="object has no attribute 'else'"):
            getattr(found, "else")
        assert pickle.loads(pickle.dumps(found)).path == found.path
