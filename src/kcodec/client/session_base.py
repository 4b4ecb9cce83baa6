# SPDX-License-Identifier: Apache-2.0
"""What the sync and async API of a session share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from kcodec._fast import decode_fetch
from kcodec.consumer.core import ConsumerCore, leaving_seconds
from kcodec.errors import EncodeError, KcodecError, ProducerFencedError, TransactionStateError, TransportError
from kcodec.flow import Flow
from kcodec.offsets import TopicPartition, check_offsets
from kcodec.producer import delivery as txn_delivery
from kcodec.producer.batch import BatchOutcome, ProducerBatch
from kcodec.session.block import SessionBlock
from kcodec.session.core import GroupSession, Listener
from kcodec.session.end import SessionEnd
from kcodec.transactions.manager import TransactionManager
from kcodec.transactions.state import State

if TYPE_CHECKING:
    from kcodec._fast import DecodedRecords
    from kcodec.consumer.callbacks import Notice
    from kcodec.network.client import Client
    from kcodec.producer.identity import ProducerIdSource
    from kcodec.session.options import SessionOptions

D = TypeVar("D", bound=txn_delivery.Delivery)
T = TypeVar("T", bound=txn_delivery.TableDelivery)
#: The first version of TxnOffsetCommit that transaction.version 2 takes; below it the old flow is spoken.
NEW_FLOW_TXN_OFFSET_COMMIT = 5


def manager_for(options: SessionOptions, client: Client) -> TransactionManager:
    """The identity of a session's producer."""
    own = options.producer
    assert own.transactional_id is not None
    manager = TransactionManager(
        client.cluster, own.transactional_id, int(own.transaction_timeout_ms), own.max_block_ms / 1000
    )
    if options.times.txn_offset_commit_highest_version < NEW_FLOW_TXN_OFFSET_COMMIT:
        manager.highest_level = 1
    return manager


class SessionTransactionViews:
    """What the blocks of the sync and async API share."""

    def __init__(self, flows: GroupSession, timeout: float | None) -> None:
        self._flows = flows
        self._timeout = timeout
        self._block: SessionBlock | None = None
        self._is_interrupted = False

    def _is_gone(self) -> bool:
        """Whether the begin was interrupted: nobody has the block that came of it."""
        return self._is_interrupted

    @property
    def committed(self) -> bool | None:
        """True; False: aborted, by a rebalance, an error or `abort`, and the records come again; None: still open, or
        EndTxn was not answered and nobody knows."""
        return None if self._block is None else self._block.committed

    @property
    def is_doomed(self) -> bool:
        """Whether a rebalance has taken what it read: its end aborts, and a block may as well end now."""
        return self._block is not None and self._block.failed is not None

    @property
    def _current(self) -> SessionBlock:
        if self._block is None:
            raise TransactionStateError(
                "the transaction begins with its block: with session.transaction() as txn",
                state=State.READY.name,
                event="SEND",
            )
        return self._block

    def _check_new(self) -> None:
        if self._block is not None:
            raise TransactionStateError(
                "this transaction has been used: session.transaction() makes the next one",
                state=State.READY.name,
                event="BEGIN",
            )
        self._flows.check_idle()

    def _sending(self) -> SessionBlock:
        block = self._current
        block.check_open("send")
        block.has_sent = True
        return block

    def _seek(self, core: ConsumerCore, partition: TopicPartition, offset: int) -> Flow[None]:
        self._current.check_open("seek")
        ((name, where),) = check_offsets({partition: offset}).items()
        self._flows.note_starts()
        yield from core.seek(name, where)

    @staticmethod
    def _check_discarded(block: SessionBlock, error: KcodecError) -> None:
        """Raise what a send raised, unless a rebalance has ruled the commit out: then nothing is lost by it."""
        if block.failed is None or isinstance(error, ProducerFencedError | EncodeError):
            raise error

    def _lock(self) -> AbstractContextManager[Any]:
        assert self._flows.manager.records is not None
        return self._flows.manager.records.lock

    def _discarded(self, kind: type[D], topic: str, error: BaseException) -> D:
        return kind(self._failed_batch(topic, error), 0, -1)

    def _discarded_table(self, kind: type[T], topic: str, error: BaseException) -> T:
        table = kind(topic, self._lock())
        with self._lock():
            table.add(self._failed_batch(topic, error))
            table.ended()
        table.seal()
        return table

    def _failed_batch(self, topic: str, error: BaseException) -> ProducerBatch:
        batch = ProducerBatch(topic, -1, self._lock())
        batch.finish(BatchOutcome(error=error))
        return batch

    def __repr__(self) -> str:
        state = "not begun" if self._block is None else "open" if not self._block.is_ending else f"{self.committed}"
        return f"<SessionTransaction of {self._flows.manager.transactional_id!r}, committed: {state}>"


class SessionViews:
    """What the sync and async sessions share."""

    _client: Client

    def _make(
        self,
        options: SessionOptions,
        source: ProducerIdSource,
        lock: AbstractContextManager[Any],
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        """The parts beside the producer."""
        assert isinstance(source, TransactionManager)
        assert options.consumer.group_id is not None
        client = self._client
        client.cluster.allow_auto_topic_creation = options.consumer.allow_auto_create_topics
        self._options = options
        self._max_poll_records = options.consumer.max_poll_records
        self._flows = GroupSession(source, options.times, options.consumer.group_id, clock=client.clock)
        self._core = ConsumerCore(
            options.consumer.settings(client.options),
            client.cluster,
            clock=client.clock,
            metrics=client.options.metrics,
            lock=lock,
            post=post,
            now=lambda: time.time_ns() // 1_000_000,
            handler=self._flows,
        )
        self._flows.attach(self._core, Listener(**options.callbacks))
        client.on_crash.append(self._core.crash)

    def _begin(self, topics: Iterable[str], pattern: str | None) -> None:
        """On the loop: have everything run."""
        spawn = self._client.scheduler.spawn
        for flow, name in (
            (self._core.run(), "consumer"),
            (self._flows.run(), "session"),
            (self._core.subscribe(topics, pattern), "subscribe"),
        ):
            task = spawn(flow, name)
            task.when_done(lambda ended: None if ended.error is None else self._core.crash(ended.error))

    def _close(self, timeout: float) -> Flow[None]:
        """Abort what is open, then leave the group: one deadline for both."""
        deadline = self._client.clock() + timeout
        block = self._flows.block
        if block is not None and not block.is_ending:
            yield from SessionEnd(self._flows, block, timeout - leaving_seconds(timeout)).run(
                is_commit=False, error=TransportError("the session is closed")
            )
        self._flows.is_closing = True
        yield from self._core.close(max(deadline - self._client.clock(), 0.0))

    def _last_notices(self) -> Iterable[Notice]:
        """What close still has to tell."""
        while self._core.notices.waiting:
            yield self._core.notices.waiting.popleft()

    def _take(self, block: SessionBlock, take: Callable[[], Any]) -> Any:
        """What there is to take; None where nothing may be taken now."""
        if self._core.has_business or not self._flows.may_take():
            return None
        taken: Any = ()
        try:
            taken = take()
        except KcodecError:
            raise
        except BaseException:
            # Interrupted: positions may have moved past what nobody was given.
            block.fail("a poll was interrupted")
            raise
        finally:
            self._flows.taken(len(taken))
        return taken

    def _no_rows(self) -> DecodedRecords:
        """What poll_arrow gives in place of nothing."""
        own: Any = self._core.settings
        return decode_fetch(
            b"",
            topic="",
            partition=0,
            start_offset=0,
            columns=own.columns,
            binary_type=own.binary_type,
            framing=own.framing,
        )

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are this session's now."""
        with self._core.assignment.lock:
            return frozenset(self._core.assignment.partitions)

    def __repr__(self) -> str:
        own = self._options
        return f"<{type(self).__name__} {own.producer.transactional_id!r} of group {own.consumer.group_id!r}>"
