# SPDX-License-Identifier: Apache-2.0
"""Warn when `poll` returns nothing because a transaction has not ended, and name the transaction.

A read_committed consumer stops in two places: at the last stable offset of a partition while a transaction in it is
open, and before its first fetch while a transaction that commits the group's offsets is open (UNSTABLE_OFFSET_COMMIT,
KIP-447). Both are correct and both look like an empty topic, so after a few seconds the consumer looks up the
transaction (DescribeProducers, ListTransactions, DescribeTransactions; KIP-664) and logs it.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.retry_driver import CallContext
from kcodec.consumer.assignment import COMMITTED, Assignment
from kcodec.consumer.committed_offsets import CommittedOffsets
from kcodec.consumer.lag import BlockingTransaction, open_transactions_of
from kcodec.consumer.options import ConsumerSettings
from kcodec.consumer.rebalance_handler import Polls
from kcodec.errors import DeliveryTimeoutError, KcodecError
from kcodec.flow import Flow, sleep
from kcodec.offsets import TopicPartition

log = logging.getLogger("kcodec.consumer")
#: A partition that a transaction holds back for this time is worth a warning.
HELD_BACK_SECONDS = 5.0
#: Interval between two looks at the partitions, and between two warnings of one consumer.
LOOK_SECONDS, REPEAT_SECONDS = 1.0, 60.0
#: Longest time for the requests that find the transaction.
DESCRIBE_SECONDS = 5.0
#: Partitions that one warning describes, and transactions that it names of each.
MAX_PARTITIONS, MAX_TRANSACTIONS = 3, 5
OFFSETS_TOPIC = "__consumer_offsets"
ADVICE = (
    "A transaction ends by its commit, its abort or its transaction_timeout_ms; `kcodec txn find-hanging` finds those "
    "that do not end"
)


class _Held(NamedTuple):
    """The time since which a partition is blocked, and the offset; -1 if its committed offset is pending."""

    since: float
    offset: int


class HeldBack:
    """The partitions of one consumer that transactions block."""

    def __init__(
        self,
        cluster: Cluster,
        assignment: Assignment,
        committed: CommittedOffsets | None,
        settings: ConsumerSettings,
        polls: Polls,
    ) -> None:
        self._cluster = cluster
        self._assignment = assignment
        self._committed = committed
        self._settings = settings
        self._polls = polls
        self._held: dict[TopicPartition, _Held] = {}
        self._quiet_until = 0.0

    def run(self) -> Flow[None]:
        """Check the partitions periodically until the consumer is closed."""
        while True:
            yield from sleep(LOOK_SECONDS)
            self._look()
            now = self._cluster.clock()
            late = [item for item, held in self._held.items() if now - held.since >= HELD_BACK_SECONDS]
            if late and now >= self._quiet_until and self._polls.polled_within(HELD_BACK_SECONDS):
                self._quiet_until = now + REPEAT_SECONDS
                try:
                    yield from self._warn(late)
                except KcodecError as error:
                    names = ", ".join(map(str, sorted(late)[:MAX_PARTITIONS]))
                    log.warning(
                        "poll returns no records of %s, as a transaction is open; the transaction is unknown: %s",
                        names,
                        error,
                    )

    def _look(self) -> None:
        now = self._cluster.clock()
        pending = self._committed.unstable if self._committed is not None else frozenset()
        found: dict[TopicPartition, _Held] = {}
        for item, state in list(self._assignment.partitions.items()):
            offset = None
            if state.awaiting == COMMITTED and item in pending:
                offset = -1
            elif self._settings.is_committed_only and state.is_fetchable:
                is_held = 0 <= state.last_stable_offset <= (state.position or 0) < state.high_watermark
                offset = state.last_stable_offset if is_held else None
            if offset is None:
                continue
            known = self._held.get(item)
            found[item] = known if known is not None and known.offset == offset else _Held(now, offset)
        self._held = found

    def _warn(self, late: list[TopicPartition]) -> Flow[None]:
        context = CallContext(self._cluster, DESCRIBE_SECONDS, int, DeliveryTimeoutError)
        deadline = context.deadline(None)
        shown = sorted(late)[:MAX_PARTITIONS]
        places = {item: item if self._held[item].offset >= 0 else None for item in shown}
        if None in places.values():
            offsets = yield from self._offsets_partition(deadline.share(4))
            places = {item: place or offsets for item, place in places.items()}
        shown_partitions = {place for place in places.values() if place is not None}
        opened = yield from open_transactions_of(context, shown_partitions, deadline, most=MAX_TRANSACTIONS)
        for item in shown:
            held, place = self._held.get(item), places[item]
            if held is None or place is None:
                continue
            if held.offset >= 0 and place not in opened:
                continue  # it has just ended
            transactions, unknown = opened.get(place, ((), "its leader reports no open transaction"))
            named = "; ".join(_named(one) for one in transactions) or f"unknown ({unknown})"
            if transactions and unknown is not None:
                named += f" ({unknown})"
            seconds = self._cluster.clock() - held.since
            if held.offset >= 0:
                log.warning(
                    "%s: poll has returned no records of it for %.0f s, as a transaction is open at offset %d: a "
                    "read_committed consumer reads up to the last stable offset. Open: %s. %s",
                    *(item, seconds, held.offset, named, ADVICE),
                )
            else:
                log.warning(
                    "%s: poll has returned no records of it for %.0f s, as a transaction that commits its offset for "
                    "group %r has not ended (UNSTABLE_OFFSET_COMMIT). Open in %s: %s. %s",
                    *(item, seconds, self._settings.group_id, place, named, ADVICE),
                )
        if len(late) > len(shown):
            log.warning("open transactions block %d more partitions", len(late) - len(shown))

    def _offsets_partition(self, timeout: float) -> Flow[TopicPartition]:
        """Return the partition of __consumer_offsets that has the group's offsets (Kafka:
        GroupCoordinator.partitionFor, Utils.abs and String.hashCode)."""
        topic = yield from self._cluster.ensure_topic(OFFSETS_TOPIC, timeout)
        code = java_hash(self._settings.group_id or "")
        return TopicPartition(OFFSETS_TOPIC, (0 if code == -(1 << 31) else abs(code)) % len(topic.partitions))


def java_hash(text: str) -> int:
    """Return String.hashCode of Java: over UTF-16 units, as a signed 32-bit number."""
    code, data = 0, text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        code = (31 * code + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return code - (1 << 32) if code >= 1 << 31 else code


def _named(one: BlockingTransaction) -> str:
    name = (
        "with an unknown transactional_id"
        if one.transactional_id is None
        else f"of transactional_id {one.transactional_id!r}"
    )
    return f"the transaction {name}, producer {one.producer_id}/{one.producer_epoch}, from offset {one.first_offset} on"
