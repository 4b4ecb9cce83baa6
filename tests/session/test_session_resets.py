# SPDX-License-Identifier: Apache-2.0
"""Positions that are reset while a transaction of a group transact session is open. After an abort, the next poll
returns the same records again."""

from __future__ import annotations

import time

import pytest

from kcodec import TopicPartition
from kcodec.broker import Broker
from kcodec.client import Admin, Consumer, GroupTransactSession

SECONDS = 20.0


class AbortError(Exception):
    """Aborts a transaction."""


def poll_values(session: GroupTransactSession, seconds: float = SECONDS, *, is_aborted: bool) -> list[bytes | None]:
    """The values that one transaction polls."""
    values: list[bytes | None] = []
    try:
        with session.transaction() as txn:
            values = [record.value for record in txn.poll(seconds)]
            if is_aborted:
                raise AbortError
    except AbortError:
        pass
    return values


@pytest.mark.parametrize("committed", [None, 2, 9])
def test_an_abort_after_a_reset_to_the_end_loses_no_records(kcodec_broker: Broker, committed: int | None) -> None:
    """The committed offset is missing, below the log, or above it. The reset happens within the transaction."""
    topic = kcodec_broker.create_topic(partitions=1)
    place, servers = TopicPartition(topic, 0), kcodec_broker.bootstrap_servers
    kcodec_broker.seed(topic, [b"a", b"b", b"c", b"d", b"e"])
    if committed is not None:
        with Consumer(bootstrap_servers=servers, group_id=topic, enable_auto_commit=False) as consumer:
            consumer.assign([place])
            consumer.commit({place: committed})
    with Admin(bootstrap_servers=servers) as admin:
        admin.delete_records({place: 5})
    with GroupTransactSession(
        bootstrap_servers=servers, group_id=topic, transactional_id=topic, topics=[topic], auto_offset_reset="latest"
    ) as session:
        try:
            with session.transaction() as txn:
                until = time.monotonic() + SECONDS
                while (state := session._core.assignment.partitions.get(place)) is None or state.position != 5:
                    assert time.monotonic() < until
                    assert txn.poll(0.1) == []
                kcodec_broker.seed(topic, [b"x", b"y", b"z"])
                assert [record.value for record in txn.poll(SECONDS)] == [b"x", b"y", b"z"]
                raise AbortError
        except AbortError:
            pass
        assert poll_values(session, is_aborted=True) == [b"x", b"y", b"z"]
        assert poll_values(session, is_aborted=False) == [b"x", b"y", b"z"]
        assert poll_values(session, 0.3, is_aborted=False) == []
