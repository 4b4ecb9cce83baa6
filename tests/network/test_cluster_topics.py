# SPDX-License-Identifier: Apache-2.0
"""The cluster's topics and their ids, from the captured metadata logs and made-up ones."""

from __future__ import annotations

import base64
from pathlib import Path

import golden_data
import pytest
from batch_writer import BASE_TIMESTAMP, RecordSpec, build_batch
from log_files import partition, plain

from kcodec.log import Log, cluster_topics, open_log_directory, open_partition

NAME = "__cluster_metadata-0"
BEGIN, END, ABORT = b"\x01\x17\x00\x00", b"\x01\x18\x00\x00", b"\x01\x19\x00\x00"


def topic(name: str, number: int) -> bytes:
    return b"\x01\x02\x00" + bytes([len(name) + 1]) + name.encode() + bytes(15) + bytes([number]) + b"\x00"


def removed(number: int) -> bytes:
    return b"\x01\x09\x00" + bytes(15) + bytes([number]) + b"\x00"


def spelt(number: int) -> str:
    return base64.urlsafe_b64encode(bytes(15) + bytes([number])).decode().rstrip("=")


def batch(base_offset: int, *values: bytes) -> bytes:
    records = [RecordSpec(None, value) for value in values]
    return build_batch(records, base_offset=base_offset, base_timestamp=BASE_TIMESTAMP)


def metadata(folder: Path, *values: bytes, snapshots: dict[str, bytes] | None = None, base_offset: int = 0) -> Log:
    directory = partition(folder, [batch(base_offset, *values)], name=NAME)
    for name, content in (snapshots or {}).items():
        (directory / name).write_bytes(content)
    return open_partition(directory)


@pytest.mark.parametrize("cluster", golden_data.CLUSTERS)
def test_topics_are_those_of_the_broker(cluster: str) -> None:
    directory = open_log_directory(golden_data.root() / cluster / "logs")
    reported = {
        one.topic: one.offsets["topicId"] for one in golden_data.partitions() if one.cluster == cluster and one.offsets
    }
    found = directory.cluster_topics()
    assert found == reported
    assert {name: directory.topic_ids[name] for name in found} == reported


def test_topics_come_and_go(tmp_path: Path) -> None:
    log = metadata(tmp_path, topic("a", 1), topic("b", 2), removed(1), topic("a", 3), b"\x01\x7f\x00", b"nonsense")
    assert cluster_topics(log) == {"a": spelt(3), "b": spelt(2)}


def test_an_aborted_metadata_transaction_counts_for_nothing(tmp_path: Path) -> None:
    values = [topic("a", 1), BEGIN, topic("b", 2), removed(1), ABORT, BEGIN, topic("c", 3), END, topic("d", 4)]
    assert cluster_topics(metadata(tmp_path, *values)) == {"a": spelt(1), "c": spelt(3), "d": spelt(4)}


def test_the_newest_snapshot_stands_for_the_log_before_it(tmp_path: Path) -> None:
    snapshots = {
        "00000000000000000010-0000000001.checkpoint": batch(0, topic("old", 1)),
        "00000000000000000020-0000000001.checkpoint": batch(0, topic("new", 2)),
        "00000000000000000030-0000000001.checkpoint.part": batch(0, topic("unfinished", 3)),
    }
    log = metadata(tmp_path, topic("before", 4), topic("behind", 5), snapshots=snapshots, base_offset=19)
    assert cluster_topics(log) == {"new": spelt(2), "behind": spelt(5)}


def test_another_topic_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected the log of __cluster_metadata-0, got .*orders-0$"):
        cluster_topics(open_partition(partition(tmp_path, [plain(0)])))
    assert open_log_directory(tmp_path).cluster_topics() == {}
