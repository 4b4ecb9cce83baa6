# SPDX-License-Identifier: Apache-2.0
"""What coordinators know, from their logs: equal to what the captured brokers answered, and the rules of replay."""

from __future__ import annotations

import pickle
import random
import struct
from pathlib import Path

import golden_data
import pytest
from batch_writer import BASE_TIMESTAMP, RecordSpec
from group_records import classic, commit, newer, plain, removed, text, within
from log_files import ABORT, COMMIT, marker, partition
from opened_logs import open_log

import kcodec
from kcodec.log import CommittedOffset, GroupOffsets, Log, group_offsets, transaction_states

CLUSTERS = golden_data.CLUSTERS
TP = kcodec.TopicPartition


def captured(cluster: str, name: str) -> Log:
    log = open_log(golden_data.root() / cluster / "logs" / name)
    assert isinstance(log, Log)
    return log


# ---------------------------------------------------------------------------------------------------- the real brokers


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_offsets_are_what_the_broker_answered(cluster: str) -> None:
    found = group_offsets(captured(cluster, "__consumer_offsets-0"))
    shown = {
        name: {
            str(topic_partition): {
                "offset": committed.offset,
                "metadata": committed.metadata,
                "leaderEpoch": committed.leader_epoch,
            }
            for topic_partition, committed in group.items()
        }
        for name, group in found.items()
    }
    assert shown == golden_data.offsets(cluster)["groupOffsets"]


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_states_are_what_the_broker_answered(cluster: str) -> None:
    found = transaction_states(captured(cluster, "__transaction_state-0"))
    shown = sorted((name, state.producer_id, state.state) for name, state in found.items())
    reported = golden_data.offsets(cluster)["transactions"]
    assert shown == sorted((one["transactionalId"], one["producerId"], one["state"]) for one in reported)


def test_offsets_of_an_open_transaction_are_pending() -> None:
    group = group_offsets(captured("tv2", "__consumer_offsets-0"))["grp-open"]
    assert len(group) == 0
    (pending,) = group.pending
    assert (pending.producer_id, pending.topic_partition) == (1008, TP("txn-open", 0))
    assert (pending.committed.offset, pending.committed.metadata) == (5, "pending")
    state = transaction_states(captured("tv2", "__transaction_state-0"))["open-hang"]
    assert (state.producer_id, state.state, state.client_transaction_version) == (1008, "Ongoing", 2)
    assert state.topic_partitions == (TP("__consumer_offsets", 0), TP("txn-open", 0))
    assert state.start_timestamp <= state.last_update_timestamp


@pytest.mark.parametrize(("cluster", "classic", "consumer"), [("tv0", 5, 1), ("tv2", 20, 2)])
def test_the_kind_of_each_group_is_reported(cluster: str, classic: int, consumer: int) -> None:
    found = group_offsets(captured(cluster, "__consumer_offsets-0")).values()
    kinds = [group.type for group in found]
    assert [kinds.count("classic"), kinds.count("consumer")] == [classic, consumer]


# ------------------------------------------------------------------------------------------------------ rules of replay


def replayed(folder: Path, *batches: bytes) -> dict[str, GroupOffsets]:
    return group_offsets(open_log(partition(folder, batches, name="__consumer_offsets-7")))


def offset_of(found: dict[str, GroupOffsets], group: str = "g") -> int | None:
    committed = found[group].get(TP("t", 0))
    return None if committed is None else committed.offset


def test_a_transactional_commit_counts_from_its_commit_marker_on(tmp_path: Path) -> None:
    batches = [plain(0, commit(1)), within(7, 1, commit(2)), marker(COMMIT, 7, 2)]
    before = replayed(tmp_path / "open", *batches[:2])
    assert offset_of(before) == 1
    assert [(one.producer_id, one.committed.offset) for one in before["g"].pending] == [(7, 2)]
    after = replayed(tmp_path / "ended", *batches)
    assert (offset_of(after), after["g"].pending) == (2, ())
    assert after["g"][TP("t", 0)] == CommittedOffset(2, commit_timestamp=BASE_TIMESTAMP, record_offset=1)


def test_an_aborted_commit_is_dropped_and_the_group_is_still_there(tmp_path: Path) -> None:
    found = replayed(tmp_path, within(7, 0, commit(2)), marker(ABORT, 7, 1))
    assert dict(found["g"]) == {}
    assert found["g"].pending == ()


def test_a_later_commit_in_the_log_wins_whatever_the_order_of_markers(tmp_path: Path) -> None:
    later_plain = replayed(tmp_path / "a", within(7, 0, commit(10)), plain(1, commit(4)), marker(COMMIT, 7, 2))
    assert offset_of(later_plain) == 4
    crossed = [within(7, 0, commit(10)), within(8, 1, commit(4)), marker(COMMIT, 8, 2), marker(COMMIT, 7, 3)]
    assert offset_of(replayed(tmp_path / "b", *crossed)) == 4


def test_a_tombstone_removes_committed_and_pending_offsets_of_its_partition(tmp_path: Path) -> None:
    found = replayed(
        tmp_path,
        plain(0, commit(1), commit(5, at=1)),
        within(7, 2, commit(2), commit(6, at=1)),
        plain(4, removed()),
        marker(COMMIT, 7, 5),
    )
    assert {str(one): committed.offset for one, committed in found["g"].items()} == {"t-1": 6}


def test_a_second_transaction_of_a_producer_is_resolved_by_its_own_marker(tmp_path: Path) -> None:
    batches = [within(7, 0, commit(2)), marker(ABORT, 7, 1), within(7, 2, commit(3)), marker(COMMIT, 7, 3)]
    assert offset_of(replayed(tmp_path, *batches)) == 3


def test_a_group_ends_with_its_tombstones(tmp_path: Path) -> None:
    found = replayed(
        tmp_path, plain(0, classic("g", "m"), commit(1), removed(), RecordSpec(b"\x00\x02\x00\x01g", None))
    )
    assert found == {}


def test_a_tombstone_of_the_group_alone_hides_its_offsets_until_it_is_named_again(tmp_path: Path) -> None:
    records = [classic("g", "m"), commit(1), RecordSpec(classic("g").key, None)]
    assert replayed(tmp_path / "gone", plain(0, *records)) == {}
    found = replayed(tmp_path / "named", plain(0, *records, commit(2, at=1)))
    assert (offset_of(found), found["g"].type, found["g"].members) == (1, None, ())


def test_members_and_generation_are_those_of_the_last_record(tmp_path: Path) -> None:
    records = [classic("g", "b", "a"), classic("h", "x"), classic("h", generation=4), commit(1, "i")]
    found = replayed(tmp_path, plain(0, *records))
    assert (found["g"].type, found["g"].protocol_type) == ("classic", "consumer")
    assert (found["g"].generation, found["g"].members) == (1, ("a", "b"))
    assert (found["h"].generation, found["h"].members) == (4, ())
    assert (found["i"].type, found["i"].generation) == (None, None)


def test_members_of_the_newer_protocols_come_and_go(tmp_path: Path) -> None:
    member = b"\x00\x00\x01c\x01h\x01\x00" + bytes(4) + b"\x00\x00"
    share = b"\x00\x02c\x02h\x01\x00"
    found = replayed(
        tmp_path,
        plain(
            0,
            newer(3, "c", struct.pack(">i", 5) + b"\x00"),
            newer(5, "c", member.replace(b"\x01c\x01h", b"\x02c\x02h"), "one"),
            newer(5, "c", member.replace(b"\x01c\x01h", b"\x02c\x02h"), "two"),
            newer(5, "c", None, "one"),
            newer(11, "s", struct.pack(">iq", 2, 0) + b"\x00"),
            newer(10, "s", share, "only"),
            newer(17, "streams", struct.pack(">iq", 3, 0) + b"\x00"),
            newer(3, "gone", struct.pack(">i", 5) + b"\x00"),
            newer(3, "gone", None),
        ),
    )
    shown = {name: (group.type, group.generation, group.members) for name, group in found.items()}
    assert shown == {"c": ("consumer", 5, ("two",)), "s": ("share", 2, ("only",)), "streams": ("streams", 3, ())}


def test_what_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    broken = RecordSpec(commit(0).key, b"\x00\x03short")
    unknown = RecordSpec(struct.pack(">h", 99) + b"x", b"")
    assert offset_of(replayed(tmp_path, plain(0, unknown, commit(1), broken))) == 1


def test_states_are_the_last_records_and_tombstones_remove(tmp_path: Path) -> None:
    def state(name: str, status: int) -> RecordSpec:
        value = struct.pack(">hqhib", 0, 9, 3, 60_000, status) + struct.pack(">i", 1) + text("t")
        value += struct.pack(">iii", 2, 5, 4) + struct.pack(">qq", 20, 10)
        return RecordSpec(struct.pack(">h", 0) + text(name), value)

    gone = RecordSpec(state("gone", 0).key, None)
    batch = plain(0, state("one", 1), state("gone", 4), state("one", 2), gone, state("odd", 77))
    found = transaction_states(open_log(partition(tmp_path, [batch], name="__transaction_state-0")))
    assert set(found) == {"one", "odd"}
    assert found["odd"].state == "unknown (77)"
    one = found["one"]
    assert (one.state, one.offset, one.producer_id, one.producer_epoch) == ("PrepareCommit", 2, 9, 3)
    assert one.topic_partitions == (TP("t", 4), TP("t", 5))
    assert (one.start_timestamp, one.last_update_timestamp, one.transaction_timeout_ms) == (10, 20, 60_000)
    assert (one.previous_producer_id, one.next_producer_id, one.next_producer_epoch, one.version) == (-1, -1, -1, 0)


def test_partitions_of_another_topic_are_refused(tmp_path: Path) -> None:
    log = open_log(partition(tmp_path, [plain(0, commit(1))]))
    with pytest.raises(ValueError, match=r"^expected partitions of __consumer_offsets, got orders-0$"):
        group_offsets(log)
    with pytest.raises(ValueError, match=r"^expected partitions of __transaction_state, got orders-0$"):
        transaction_states([log])


def test_values_are_equal_hashable_and_pickle() -> None:
    found = group_offsets(captured("tv2", "__consumer_offsets-0"))
    states = transaction_states(captured("tv2", "__transaction_state-0"))
    assert pickle.loads(pickle.dumps(found)) == found
    assert pickle.loads(pickle.dumps(states)) == states
    assert len({*found.values(), *found.values()}) == len(found)
    assert str(TP("orders", 3)) == "orders-3"
    assert kcodec.OffsetAndMetadata(4) == kcodec.OffsetAndMetadata(4, "", -1)


@pytest.mark.parametrize("name", ["__consumer_offsets-0", "__transaction_state-0"])
def test_edited_logs_are_decode_errors_or_read_on(tmp_path: Path, name: str) -> None:
    """One byte wrong anywhere: never another error; and what is not damaged is still told if that is asked for."""
    segments = [Path(segment.path) for segment in captured("tv2", name).segments]
    content = b"".join(path.read_bytes() for path in segments)
    read = group_offsets if name.startswith("__consumer") else transaction_states
    chance = random.Random(name)
    raised = 0
    for turn in range(60):
        edited = bytearray(content)
        edited[chance.randrange(len(edited))] ^= 1 << chance.randrange(8)
        directory = tmp_path / str(turn) / name
        directory.mkdir(parents=True)
        (directory / f"{0:020d}.log").write_bytes(edited)
        log = open_log(directory)
        try:
            read(log)
        except kcodec.DecodeError:
            raised += 1
        assert len(read(log, on_error="skip")) > 0
        assert read(log, on_error="stop") is not None
    assert raised > 30
