# SPDX-License-Identifier: Apache-2.0
"""A topic that is deleted and created again while a session commits its offsets: the session aborts by itself, and
reads the new topic."""

from __future__ import annotations

import threading
import time
from typing import Any

from kcodec.broker import Broker
from kcodec.client import Admin, GroupTransactSession, NewTopic
from kcodec.offsets import OffsetAndMetadata, TopicPartition


def test_a_topic_created_again_during_a_commit_aborts_quietly() -> None:
    with Broker() as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("orders", 1), NewTopic("results", 1)])
        broker.seed("orders", [b"old"])
        broker.faults.add("TxnOffsetCommit", delay_ms=1500, count=1)

        def create_again() -> None:
            while not broker.wire_log.requests("TxnOffsetCommit"):
                time.sleep(0.01)
            admin.delete_topics(["orders"])
            admin.create_topics([NewTopic("orders", 1)])
            broker.seed("orders", [b"new"])

        thread = threading.Thread(target=create_again)
        thread.start()
        options: Any = {"bootstrap_servers": broker.bootstrap_servers, "metadata_max_age_ms": 500}
        read: list[Any] = []
        outcomes: list[bool | None] = []
        with GroupTransactSession(topics="orders", group_id="g", transactional_id="t", **options) as session:
            until = time.monotonic() + 30
            while b"new" not in read and time.monotonic() < until:
                with session.transaction() as block:
                    found = block.poll(2.0)
                    read += [record.value for record in found]
                    for record in found:
                        block.send("results", record.value)
                if found:
                    outcomes.append(block.committed)
            thread.join()
        assert (read, outcomes) == ([b"old", b"new"], [False, True])
        assert admin.list_group_offsets("g") == {TopicPartition("orders", 0): OffsetAndMetadata(1, leader_epoch=0)}
        end = admin.list_offsets({TopicPartition("results", 0): "latest"})[TopicPartition("results", 0)].offset
        assert end == 4  # a record and a marker of each transaction
