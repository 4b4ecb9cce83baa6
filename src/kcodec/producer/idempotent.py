# SPDX-License-Identifier: Apache-2.0
"""The identity of a producer without transactions: idempotent (KIP-98, KIP-360), or none at all."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kcodec.cluster.values import ProducerIdAndEpoch
from kcodec.errors import AuthenticationError, TransportError, UnsupportedError
from kcodec.flow import ANY_NODE, Flow, Signal, call, sleep, wait
from kcodec.offsets import TopicPartition
from kcodec.producer.identity import HIGHEST_EPOCH, NO_PRODUCER, ProducerIdSource, Verdict
from kcodec.protocol.error_codes import ErrorCode, broker_error, error_code, note_final

log = logging.getLogger("kcodec.producer")
#: Java sends this where there is no transaction to time out.
NO_TRANSACTION_TIMEOUT_MS = 2_147_483_647
OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, UNKNOWN_PRODUCER_ID = 45, 47, 49, 59


class IdempotentProducerId(ProducerIdSource):
    """An id from any broker, whose epoch is raised here when a sequence is broken (KIP-360: no request is needed).

    Behind epoch 32767, and where a broker says that the epoch or the id is not ours (47, 49), a new id is asked for.
    request_timeout: seconds for InitProducerId; backoff(attempt, random): seconds before it is repeated.
    last_error: why the last InitProducerId failed.
    """

    transactional_id = None

    def __init__(
        self, *, request_timeout: float, backoff: Callable[[int, float], float], random: Callable[[], float]
    ) -> None:
        self.changed = Signal()
        self._request_timeout = request_timeout
        self._backoff = backoff
        self._random = random
        self._current: ProducerIdAndEpoch | None = None
        self._error: BaseException | None = None
        self._wanted = Signal()
        self.last_error: BaseException | None = None

    def run(self) -> Flow[None]:
        """The flow that has ids handed out, for as long as the producer lives."""
        attempt = 0
        while True:
            if self._current is not None or self._error is not None:
                attempt = 0
                yield from wait(self._wanted)
                continue
            yield from self._ask()
            if self._current is None and self._error is None:
                yield from sleep(self._backoff(attempt, self._random()))
                attempt += 1

    def _ask(self) -> Flow[None]:
        """One InitProducerId. What may pass is left to the next one."""
        from kcodec.protocol.messages.transactions import InitProducerIdRequest

        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=NO_TRANSACTION_TIMEOUT_MS)
        try:
            reply = yield from call(ANY_NODE, request, timeout=self._request_timeout)
        except (AuthenticationError, UnsupportedError) as error:
            self._error = error
        except TransportError as error:
            log.info("no producer id yet: %s", error)
            self.last_error = error
            return
        else:
            answer = reply.message
            if answer.error_code == 0:
                self._current = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
                log.debug("producer id %d, epoch %d", *self._current)
            elif answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR or error_code(answer.error_code).retriable:
                self.last_error = broker_error(answer.error_code, f"InitProducerId at broker {reply.node_id}")
                log.info("no producer id yet: %s", error_code(answer.error_code).name)
                return
            else:
                self._error = broker_error(answer.error_code, f"InitProducerId at broker {reply.node_id}")
                note_final(self._error)
        self.changed.set()

    @property
    def current(self) -> ProducerIdAndEpoch | None:
        """The identity; None while one is asked for."""
        return self._current

    def produce_highest_version(self) -> int:
        """Any."""
        return 32767

    def may_send(self, partition: TopicPartition) -> bool:
        """Always."""
        return True

    def refuses(self) -> BaseException | None:
        """Why no id is to be had, ever: the brokers do not know idempotence, or do not permit it."""
        return self._error

    def on_success(self, partition: TopicPartition, records_count: int, last_sequence: int) -> None:
        """Nothing."""

    def on_failure(self, partition: TopicPartition, error: BaseException, *, possibly_written: bool) -> None:
        """Nothing: if the batch left a gap, the next one is answered with 45."""

    def on_unanswered(self, api: str) -> None:
        """Nothing."""

    def on_error_code(self, partition: TopicPartition, code: int) -> Verdict:
        """45, 59: the broker lost or never had what came before: on with the next epoch. 47, 49: with a new id."""
        if code in (OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID):
            self._bump()
        elif code in (INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING):
            self._reset()
        else:
            return Verdict.FAIL
        return Verdict.BUMP

    def _bump(self) -> None:
        if self._current is None:
            return
        if self._current.producer_epoch >= HIGHEST_EPOCH:
            self._reset()
            return
        self._current = self._current._replace(producer_epoch=self._current.producer_epoch + 1)
        self.changed.set()

    def _reset(self) -> None:
        self._current = None
        self._wanted.set()


class WithoutProducerId(ProducerIdSource):
    """`enable_idempotence=False`: batches are not numbered, and a repeat may be in the log twice, or out of order."""

    transactional_id = None

    def __init__(self) -> None:
        self.changed = Signal()

    @property
    def current(self) -> ProducerIdAndEpoch | None:
        """Nobody."""
        return NO_PRODUCER

    def produce_highest_version(self) -> int:
        """Any."""
        return 32767

    def may_send(self, partition: TopicPartition) -> bool:
        """Always."""
        return True

    def refuses(self) -> BaseException | None:
        """Never."""
        return None

    def on_success(self, partition: TopicPartition, records_count: int, last_sequence: int) -> None:
        """Nothing."""

    def on_failure(self, partition: TopicPartition, error: BaseException, *, possibly_written: bool) -> None:
        """Nothing."""

    def on_unanswered(self, api: str) -> None:
        """Nothing."""

    def on_error_code(self, partition: TopicPartition, code: int) -> Verdict:
        """Batches without a number are not asked about."""
        return Verdict.FAIL
