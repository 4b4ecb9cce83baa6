# SPDX-License-Identifier: Apache-2.0
"""Recipes on the embedded broker, which needs no Java: a topic of numbers, and what is committed.

For test_recipes_parallel.py and prove_delta.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import kcodec
from kcodec import TopicPartition
from kcodec.broker import Broker
from kcodec.client import Admin, NewTopic, Producer


def numbers(broker: Broker, topic: str, count: int, partitions: int = 1, bad: Sequence[int] = ()) -> None:
    """Create a topic of the numbers from 0, each tenth with an aborted record before it; `bad` ones are words."""
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, partitions)])
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=f"fill-{topic}") as producer:
        for first in range(0, count, 10):
            with producer.transaction() as txn:
                txn.send(topic, b"1000000", key=b"never")
                producer.flush()
                txn.abort()
            with producer.transaction() as txn:
                for number in range(first, min(first + 10, count)):
                    value = b"word-%d" % number if number in bad else b"%d" % number
                    txn.send(topic, value, key=b"k%d" % (number % 7))


def committed_values(broker: Broker, topic: str) -> Counter[bytes]:
    """The values of committed records, with the number of each."""
    with kcodec.read_topic(topic, bootstrap_servers=broker.bootstrap_servers) as records:
        return Counter(record.value or b"" for batch in records for record in batch.records())


def committed_offset(broker: Broker, group: str, topic: str, partition: int = 0) -> int | None:
    """The committed offset of a group."""
    place = TopicPartition(topic, partition)
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        found: Any = admin.list_group_offsets(group, [place])[place]
        return None if found is None else int(found.offset)
