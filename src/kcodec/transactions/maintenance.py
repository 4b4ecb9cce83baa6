# SPDX-License-Identifier: Apache-2.0
"""The requests of an open transaction that no call of the application waits for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kcodec.errors import AuthenticationError, KcodecError, UnsupportedError
from kcodec.flow import Flow, Wait, sleep
from kcodec.transactions.errors import Failed, TransactionDisposition
from kcodec.transactions.fencing import investigate, investigate_failed
from kcodec.transactions.partitions import add_partitions
from kcodec.transactions.state import WRITING, Event
from kcodec.transactions.transaction import WARNING_SHARE, ProducerTransaction

if TYPE_CHECKING:
    from kcodec.offsets import TopicPartition
    from kcodec.transactions.context import ProducerContext

log = logging.getLogger("kcodec.transactions")


class TransactionMaintenance:
    """The flow of one producer that runs next to its sender: it sends AddPartitionsToTxn for records that wait for it
    (old flow), investigates why an epoch is too old, waits for end markers, and logs the warning before a transaction
    times out."""

    def __init__(self, context: ProducerContext) -> None:
        self._context = context

    def run(self) -> Flow[None]:
        """Do the work that is due, until the producer is closed."""
        context = self._context
        while True:
            if context.markers.is_requested:
                yield from context.markers.run()
                context.changed.set()
            transaction = context.open
            if transaction is not None and context.state in WRITING:
                self._warn_if_late(transaction)
                if transaction.to_investigate is not None:
                    yield from self._investigate_produce(transaction)
                    continue
                if transaction.to_add:
                    yield from self._add_partitions(transaction)
                    continue
            if not context.markers.is_requested:
                yield Wait(context.wake, self._seconds_to_warning(), is_vague=True)

    def _investigate_produce(self, transaction: ProducerTransaction) -> Flow[None]:
        context = self._context
        assert transaction.to_investigate is not None
        doing, code = transaction.to_investigate
        failed = yield from investigate(context.cluster, context.ending(transaction), doing, code)
        if context.open is transaction and context.state in WRITING:
            context.fail(failed)
        transaction.to_investigate = None

    def _add_partitions(self, transaction: ProducerTransaction) -> Flow[None]:
        context = self._context
        partitions = frozenset(transaction.to_add)
        context.note_sent(transaction)
        transaction.requests += 1
        try:
            yield from self._add(transaction, partitions)
        finally:
            transaction.requests -= 1
            context.changed.set()

    def _add(self, transaction: ProducerTransaction, partitions: frozenset[TopicPartition]) -> Flow[None]:
        context = self._context

        def is_over() -> bool:
            return context.open is not transaction or context.state not in WRITING

        try:
            yield from add_partitions(
                context.cluster,
                context.transactional_id,
                transaction.producer,
                partitions,
                context.deadline(None),
                on_no_response=lambda: context.note_no_response("AddPartitionsToTxn"),
                is_over=is_over,
            )
        except Failed as failed:
            found = yield from investigate_failed(context.cluster, context.ending(transaction), failed)
            if not is_over():
                context.fail(found)
        except AuthenticationError as error:
            # The same login would be rejected again, and the account may be locked. The next attempt follows after the
            # abort.
            if not is_over():
                context.fail(Failed(TransactionDisposition.ABORT, error))
        except UnsupportedError as error:
            if not is_over():
                context.move(Event.FATAL, error)
        except KcodecError as error:
            # The records that wait for it have their deadlines, and end the transaction.
            log.warning("%s", error)
            yield from sleep(context.cluster.times.backoff(0, context.cluster.random.random()))
        else:
            transaction.added |= partitions
            transaction.to_add -= partitions

    def _seconds_to_warning(self) -> float | None:
        context = self._context
        if context.open is None or context.state not in WRITING:
            return None
        return context.open.seconds_to_warning(context.cluster.clock(), context.transaction_timeout_ms)

    def _warn_if_late(self, transaction: ProducerTransaction) -> None:
        context = self._context
        if self._seconds_to_warning() == 0.0:
            transaction.is_warned = True
            log.warning(
                "the transaction of %r has been open for %.0f %% of transaction_timeout_ms=%d: "
                "at 100 %% the coordinator aborts it",
                context.transactional_id,
                WARNING_SHARE * 100,
                context.transaction_timeout_ms,
            )
