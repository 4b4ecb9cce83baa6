# SPDX-License-Identifier: Apache-2.0
"""Indexes, snapshots and checkpoints that are cut, damaged, empty or of another version: what is read, what is said."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from reference_codecs import crc32c as reference_crc32c

import kcodec
from kcodec.log import (
    LeaderEpoch,
    OffsetIndexEntry,
    ProducerState,
    TimeIndexEntry,
    pack_snapshot,
    read_leader_epochs,
    read_meta_properties,
    read_offset_index,
    read_offsets,
    read_partition_metadata,
    read_snapshot,
    read_time_index,
    read_transaction_index,
    small_files,
    write_snapshot,
)

STATE = ProducerState(9001, 3, 7, 41, 2, 1_767_225_600_000, 5, 40)
FRESH = ProducerState(9002, 0, -1, -1, 0, 1_767_225_600_001, -1, None)


def written(folder: Path, name: str, data: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


# ------------------------------------------------------------------------------------------------------------- indexes


def test_an_offset_index_is_a_sequence_of_entries_with_absolute_offsets(tmp_path: Path) -> None:
    data = struct.pack(">iiii", 3, 4100, 9, 8300)
    index = read_offset_index(written(tmp_path, f"{100:020d}.index", data))
    assert list(index) == [(103, 4100), (109, 8300)]
    assert (len(index), index[0], index[-1].position, index[:1]) == (2, (103, 4100), 8300, [(103, 4100)])
    assert OffsetIndexEntry(109, 8300) in index
    with pytest.raises(IndexError, match="index 2 is out of range"):
        index[2]
    array = index.to_numpy()
    assert (array["offset"].tolist(), array["position"].tolist()) == ([103, 109], [4100, 8300])
    assert (array.dtype["offset"], array.dtype["position"]) == (np.dtype("int64"), np.dtype("int32"))
    assert repr(index) == (
        "<OffsetIndex of 2 entries, OffsetIndexEntry(offset=103, position=4100) .. "
        "OffsetIndexEntry(offset=109, position=8300)>"
    )
    elsewhere = read_offset_index(written(tmp_path, "copy.bin", data), base_offset=100)
    assert elsewhere == index == pickle.loads(pickle.dumps(index))
    assert hash(elsewhere) == hash(index)
    assert read_offset_index(tmp_path / "copy.bin")[0] == (3, 4100)
    assert read_offset_index(tmp_path / "copy.bin") != index


def test_zeros_behind_the_entries_are_room_and_no_entries(tmp_path: Path) -> None:
    data = struct.pack(">ii", 1, 256) + bytes(8 * 5 + 3)
    index = read_offset_index(written(tmp_path, f"{0:020d}.index", data))
    assert (list(index), index.preallocated_entries, index.remaining_bytes) == ([(1, 256)], 5, 3)
    assert repr(index).endswith(", 5 preallocated, 3 bytes of an incomplete entry>")
    empty = read_offset_index(written(tmp_path, f"{1:020d}.index", bytes(10 << 20)))
    assert (list(empty), empty.preallocated_entries, empty.to_numpy().tolist()) == ([], (10 << 20) // 8, [])
    assert repr(empty) == "<OffsetIndex of 0 entries, 1310720 preallocated>"
    cut = read_offset_index(written(tmp_path, f"{2:020d}.index", b"\0\0\0\1\0"))
    assert (list(cut), cut.remaining_bytes) == ([], 5)


def test_a_time_index_of_one_entry_may_be_all_zeros(tmp_path: Path) -> None:
    """Timestamp 0 in the first batch: what a broker writes at the end of a segment. Preallocated files are larger."""
    assert list(read_time_index(written(tmp_path, f"{70:020d}.timeindex", bytes(12)))) == [TimeIndexEntry(0, 70)]
    assert list(read_time_index(written(tmp_path, f"{71:020d}.timeindex", bytes(24)))) == []
    data = struct.pack(">qiqi", -1, 0, 1 << 40, 256)
    index = read_time_index(written(tmp_path, f"{72:020d}.timeindex", data + bytes(12)))
    assert (list(index), index.preallocated_entries) == ([(-1, 72), (1 << 40, 328)], 1)
    assert index.to_numpy().tolist() == [(-1, 72), (1 << 40, 328)]


def test_disorder_and_negative_numbers_are_read_as_they_are(tmp_path: Path) -> None:
    data = struct.pack(">iiii", -2, -1, -3, 5)
    assert list(read_offset_index(written(tmp_path, f"{9:020d}.index", data))) == [(7, -1), (6, 5)]


def test_a_transaction_index_of_another_version_is_refused(tmp_path: Path) -> None:
    entry = struct.pack(">hqqqq", 0, 7, 10, 20, 21)
    index = read_transaction_index(written(tmp_path, f"{5:020d}.txnindex", entry + entry[:9]))
    assert (list(index), index.remaining_bytes) == ([(0, 7, 10, 20, 21)], 9)
    later = written(tmp_path, f"{6:020d}.txnindex", entry + b"\0\1" + entry[2:])
    with pytest.raises(kcodec.UnsupportedError, match=r"6\.txnindex: byte 34: entry 1: version 1 .* expected 0"):
        read_transaction_index(later)


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(small_files.LIMITS, "MAX_INDEX_BYTES", 100)
    path = written(tmp_path, "x.index", bytes(101))
    with pytest.raises(kcodec.LimitExceededError, match="101 bytes, expected at most 100") as caught:
        read_offset_index(path)
    assert (caught.value.limit, caught.value.claimed) == ("MAX_INDEX_BYTES", 101)


# ----------------------------------------------------------------------------------------------------------- snapshots


def test_a_snapshot_is_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / f"{42:020d}.snapshot"
    write_snapshot(path, [STATE, FRESH])
    snapshot = read_snapshot(path)
    assert (snapshot.producers, snapshot.offset, snapshot.version) == ((STATE, FRESH), 42, 1)
    assert snapshot.crc == reference_crc32c(path.read_bytes()[6:])
    assert (STATE.first_sequence, FRESH.first_sequence) == (5, -1)
    assert repr(snapshot) == "<ProducerSnapshot at offset 42: 2 producers>"
    assert repr(STATE) == (
        "<ProducerState producer_id=9001/3 sequence 7 at offset 41, transaction open since offset 40>"
    )
    assert repr(FRESH) == "<ProducerState producer_id=9002/0 no batch>"
    write_snapshot(path, [])
    assert read_snapshot(path).producers == ()
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_sequences_of_a_state_wrap_at_two_to_the_31st() -> None:
    assert ProducerState(1, 0, 1, 9, 3, 0, -1, None).first_sequence == 2147483646


def test_every_flipped_bit_and_every_cut_of_a_snapshot_is_an_error(tmp_path: Path) -> None:
    data = pack_snapshot([STATE, FRESH])
    path = tmp_path / "x.snapshot"
    for at in range(len(data) * 8):
        path.write_bytes(data[: at // 8] + bytes([data[at // 8] ^ 1 << at % 8]) + data[at // 8 + 1 :])
        with pytest.raises(kcodec.DecodeError):
            read_snapshot(path)
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(kcodec.DecodeError):
            read_snapshot(path)


def test_errors_of_snapshots_say_what_is_wrong(tmp_path: Path) -> None:
    data = pack_snapshot([STATE])

    def error(changed: bytes, kind: type[kcodec.DecodeError]) -> str:
        path = written(tmp_path, "x.snapshot", changed)
        with pytest.raises(kind) as caught:
            read_snapshot(path)
        assert caught.value.path == str(path)
        return str(caught.value).removeprefix(f"{path}: ")

    def with_crc(body: bytes) -> bytes:
        return data[:2] + struct.pack(">I", reference_crc32c(body)) + body

    assert error(b"\0\2" + data[2:], kcodec.UnsupportedError) == "byte 0: version 2 of a snapshot, expected 1"
    assert error(data[:5], kcodec.TruncatedError) == "the file has 5 bytes, but a snapshot takes 10"
    assert error(data + b"\0", kcodec.CorruptBatchError).startswith("byte 2: the stored CRC 0x")
    more = with_crc(data[6:] + b"\0")
    assert error(more, kcodec.CorruptBatchError) == "byte 6: 1 producers take 56 bytes, but the file has 57"
    less = with_crc(struct.pack(">i", 2) + data[10:])
    assert error(less, kcodec.TruncatedError) == "the file has 56 bytes, but a snapshot of 2 producers takes 102"
    negative = with_crc(struct.pack(">i", -1) + data[10:])
    assert error(negative, kcodec.CorruptBatchError).startswith("byte 6: -1 producers")


def test_a_snapshot_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "x.snapshot"
    target.mkdir()
    with pytest.raises(OSError, match=r"x\.snapshot"):
        write_snapshot(target, [STATE])
    assert list(tmp_path.iterdir()) == [target]


# --------------------------------------------------------------------------------------------------------- checkpoints


def test_leader_epochs(tmp_path: Path) -> None:
    path = written(tmp_path, "leader-epoch-checkpoint", "0\n2\n0 0\n4 17\n")
    assert read_leader_epochs(path) == (LeaderEpoch(0, 0), LeaderEpoch(4, 17))
    for text, error in (
        ("0\n1\n0 0 0\n", "line 3: expected 'epoch start_offset', found '0 0 0'"),
        ("0\n1\nx 0\n", "line 3"),
    ):
        with pytest.raises(kcodec.DecodeError, match=error):
            read_leader_epochs(written(tmp_path, "x", text))


@pytest.mark.parametrize("text", ["", "0\n", "0\n0\n", "0\n0"])
def test_a_checkpoint_without_entries(tmp_path: Path, text: str) -> None:
    """CheckpointFile reads a file without lines as no entries; a cleaner that never ran leaves one."""
    assert read_offsets(written(tmp_path, "cleaner-offset-checkpoint", text)) == {}


def test_bytes_that_are_no_text_are_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, "x-checkpoint", b"0\n1\norders \xff 4\n")
    with pytest.raises(kcodec.DecodeError, match="byte 11: the text is not UTF-8"):
        read_offsets(path)


def test_partition_metadata(tmp_path: Path) -> None:
    found = read_partition_metadata(written(tmp_path, "a", "version: 0\ntopic_id: Spe1hQoPQ-qy52z4uzie_g"))
    assert (found.version, found.topic_id) == (0, "Spe1hQoPQ-qy52z4uzie_g")
    assert str(found.uuid) == "4a97b585-0a0f-43ea-b2e7-6cf8bb389efe"
    for text, error in (
        ("", "line 1: '', expected 'version: 0'"),
        ("version: 1\ntopic_id: Spe1hQoPQ-qy52z4uzie_g", "line 1: 'version: 1'"),
        ("version: 0\n", "line 2: ''"),
        ("version: 0\ntopic_id: Spe1hQoPQ", "line 2: 'topic_id: Spe1hQoPQ'"),
        ("version: 0\ntopic_id: Spe1hQoPQ qy52z4uzie_g", "line 2"),
    ):
        with pytest.raises(kcodec.DecodeError, match=error):
            read_partition_metadata(written(tmp_path, "b", text))


def test_meta_properties_are_java_properties(tmp_path: Path) -> None:
    text = "#\n! a comment\nversion=1\nnode.id : 7\ncluster.id=a\\=b\\u00e9\n"
    text += "directory.id=one\\\n  two\nother\\ name  x\\ty\n"
    found = read_meta_properties(written(tmp_path, "meta.properties", text))
    assert (found.version, found.node_id, found.cluster_id, found.directory_id) == (1, 7, "a=b\u00e9", "onetwo")
    assert found.other == (("other name", "x\ty"),)
    old = read_meta_properties(written(tmp_path, "old", "broker.id=3\nversion=0\ncluster.id=c\\"))
    assert (old.version, old.node_id, old.cluster_id, old.directory_id) == (0, 3, "c", None)
    for wrong, error in (
        ("", "no version, expected version 0 or 1"),
        ("version=2", "version 2"),
        ("version=1\nnode.id=one", "node.id is 'one', expected a number"),
    ):
        with pytest.raises(kcodec.DecodeError, match=error):
            read_meta_properties(written(tmp_path, "meta.properties", wrong))
