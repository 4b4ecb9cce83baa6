# SPDX-License-Identifier: Apache-2.0
"""The identity of a producer: producer id and epoch, how they are obtained, and when they change.

A broker knows a producer by its identity and numbers its batches for each partition (KIP-98). The `Sender` owns the
sequence numbers, the kept bytes and the retries. A `ProducerIdManager` owns the identity and decides on the errors that
concern it. There are four: `IdempotentProducerId` and `WithoutProducerId` here, `TransactionalProducerId` of a
transactional producer, and the handle of a shared transaction.

How the two work together:

- Before each batch of a partition the sender checks `refuses()`, then `current`, then `may_send(partition)`. If one of
  them forbids it, the batch stays in the buffer, and the sender checks again when `changed` is set.
- A partition adopts a new `current` when it has no batch in flight. Its sequence numbers then restart at 0, and its
  first batch with that identity is sent alone.
- A numbered batch that failed leaves a gap. If it was certainly not written, the sender renumbers the batches after it
  with the same identity. Otherwise the response to a later batch may be OUT_OF_ORDER_SEQUENCE_NUMBER, on which the
  manager decides. A transaction in which a batch failed with `possibly_written` cannot continue with this identity: its
  manager changes `current` first.
- Every numbered batch ends in exactly one `on_success` or `on_failure`.
- On `BatchDisposition.BUMP` the manager changes `current` (at once, or later with `changed`). The sender waits until no
  request of that partition is outstanding, renumbers its kept batches from 0 with the new identity and sends them
  again.

All calls come from the I/O thread, between two yields of a flow. No method may block or yield, except the flows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, Protocol

from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.constants import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from kcodec.errors import AuthenticationError, TransportError, UnsupportedError
from kcodec.flow import ANY_NODE, Flow, Signal, call, sleep, wait
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode, broker_error, error_code, note_final

log = logging.getLogger("kcodec.producer")
#: The highest epoch a producer id can have; at it the next bump is a new id from InitProducerId.
HIGHEST_EPOCH = 32767
#: Upper bound of a request's version where none is needed.
HIGHEST_VERSION = 32767
#: Java sends this where there is no transaction to time out.
NO_TRANSACTION_TIMEOUT_MS = 2_147_483_647
#: Of batches without one: neither numbered nor checked for duplicates.
NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
#: Errors of Produce about the producer, not about the partition or the records: its sequence, id, epoch, transaction or
#: transactional id. The `ProducerIdManager` decides on them. A broker checks all of it before it appends.
IDENTITY_ERRORS = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)


class BatchDisposition(Enum):
    """The disposition of a batch that a broker rejected because of the producer's identity."""

    #: Send it again as it is: same identity, same sequence, same bytes.
    RETRY = "retry"
    #: It fails, with the broker's error; `on_failure` follows.
    FAIL = "fail"
    #: The identity changes; then it is renumbered and sent again.
    BUMP = "bump"


class BufferedRecords(Protocol):
    """What a manager uses of the producer's core to end a transaction. `lock` is the lock of the producer."""

    lock: AbstractContextManager[Any]

    @property
    def has_unfinished(self) -> bool:
        """Whether records are buffered or in flight."""
        ...

    def flush(self, timeout: float | None = None, *, without_held: bool = False) -> Flow[None]:
        """Wait until all records sent so far have a result or an error. Raise only DeliveryTimeoutError.

        without_held: do not wait for records that are held back."""
        ...

    def hold_back(self, until: float) -> None:
        """Hold back the records that are sent from now on.

        until: Latest time of `release_held`.
        """
        ...

    def release_held(self) -> None:
        """Send the records that were held back, as soon as the manager permits it."""
        ...

    def abort_buffered(self, error: BaseException) -> None:
        """Fail all records that are not in flight."""
        ...

    def refuse_sends(self, error: BaseException | None) -> None:
        """Make `send` raise this error from now on. With None, it accepts records again."""
        ...


class ProducerIdManager:
    """Provides the identity of a producer. The methods here are those of a producer without one.

    transactional_id: Part of every ProduceRequest; None outside transactions.
    owns_transactions: Whether it begins and ends transactions. A writer of a shared transaction does not.
    changed:          Set whenever the result of `current`, `may_send` or `refuses` may have changed.
    last_error:       Error of the last request for an identity; None if no request has failed.
    newest:           Transaction to which records belong that are sent now; None outside transactions.
    """

    transactional_id: str | None = None
    owns_transactions: bool = False
    last_error: BaseException | None = None

    def __init__(self) -> None:
        self.changed = Signal()

    def attach(self, records: BufferedRecords) -> None:
        """Set the producer's core; called once."""

    def run(self) -> Flow[None]:
        """Obtain and renew the identity; runs next to the sender until the producer is closed."""
        yield from ()

    def close_flow(self, timeout: float | None) -> Flow[None]:
        """End an open transaction when the producer is closed."""
        yield from ()

    def last_flow(self, name: str, commit_seconds: float, abort_seconds: float) -> Flow[None] | None:
        """Return the flow that ends the transaction of a producer that the program has not closed, or None if no
        transaction is open.

        name:           The producer in log lines.
        commit_seconds: Maximum time for a commit in progress.
        abort_seconds:  Maximum time for an abort.
        """
        return None

    def abort_at_once(self, timeout: float) -> Flow[None]:
        """Abort an open transaction after an interruption of `close`. Only log errors."""
        yield from ()

    @property
    def newest(self) -> object:
        """See the class."""
        return None

    @property
    def current(self) -> ProducerIdAndEpoch | None:
        """The current identity. None if it is not available yet; the sender then keeps its batches."""
        return NO_PRODUCER

    @property
    def is_transaction_open(self) -> bool:
        """Whether a transaction is open of which brokers have received requests, whose end has not begun, and whose
        handle no other process has. This may be read on any thread."""
        return False

    def produce_highest_version(self) -> int:
        """Return the highest version of a ProduceRequest, which the old transaction flow (before KIP-890) limits."""
        return HIGHEST_VERSION

    def request(self) -> None:
        """Note that a batch waits for `current`, which is None. The sender calls this again and again, with its lock
        held."""

    def may_send(self, partition: TopicPartition) -> bool:
        """Return whether `current` may write to the partition now; called before a batch is sent.

        The old transaction flow returns False, sends AddPartitionsToTxn and sets `changed` when it gets the response.
        """
        return True

    def refuses(self) -> BaseException | None:
        """Return an error with which every batch in the buffer fails (fatal, fenced, abortable). None: the sender
        continues.

        Batches in flight do not fail; the sender waits for their responses.
        """
        return None

    def on_success(self, partition: TopicPartition, records_count: int, last_sequence: int) -> None:
        """Note an acknowledged batch, even if the broker reports it as a duplicate. `last_sequence` is -1 if it is not
        numbered."""

    def on_failure(self, partition: TopicPartition, error: BaseException, *, possibly_written: bool) -> None:
        """Note a batch that has finally failed. A transaction can then only be aborted.

        possibly_written: Whether a broker may have processed, or may still process, a request with the batch.

        This is also called, with False, for batches that were never numbered or sent (expired in the buffer, aborted),
        and for records whose topic's metadata did not arrive. The partition is then -1 if the record did not name one.
        """

    def on_held_failure(self, partition: TopicPartition, error: BaseException) -> None:
        """Note a record that failed while it was held back; see `on_failure`."""

    def on_rejected(self, transaction: object, partition: TopicPartition, error: BaseException) -> None:
        """Note a record that `send` refused with an error while `transaction` was the newest."""
        self.on_failure(partition, error, possibly_written=False)

    def on_refused(self, error: BaseException) -> None:
        """Note that `send` raised the error of `refuse_sends`. This may be called on any thread."""

    def forget(self, error: BaseException) -> None:
        """In a forked child: end all waits of callers with `error`."""

    def on_no_response(self, api: str) -> None:
        """Note a request ("Produce") that may have been sent and got no response, so that it may arrive late.

        In the old transaction flow the epoch must then be bumped.
        """

    def on_error_code(self, partition: TopicPartition, code: int) -> BatchDisposition:
        """Decide on one of IDENTITY_ERRORS, for the earliest unfinished batch of the partition."""
        return BatchDisposition.FAIL


class WithoutProducerId(ProducerIdManager):
    """`enable_idempotence=False`: batches are not numbered, and a retry may write records twice, or out of order."""


class IdempotentProducerId(ProducerIdManager):
    """A producer id from any broker. If a sequence breaks, the epoch is bumped here, without a request (KIP-360).

    A new id is requested when the epochs are used up, or if a broker reports the epoch or the id as invalid.

    If a refused login is not retried (see `kcodec.network.connections`), the records in the buffer fail with its error.
    A record that an earlier attempt may have written fails with a TransportError with `possibly_sent`. The next record
    requests an id again, and its sequence numbers begin at 0.

    request_timeout: Timeout of InitProducerId in seconds.
    backoff:         Function that returns the seconds before a repeat, from the number of the attempt and a random
    number.
    """

    def __init__(
        self, *, request_timeout: float, backoff: Callable[[int, float], float], random: Callable[[], float]
    ) -> None:
        super().__init__()
        self._request_timeout = request_timeout
        self._backoff = backoff
        self._random = random
        self._current: ProducerIdAndEpoch | None = None
        self._error: BaseException | None = None
        self._requested = Signal()
        self._records: BufferedRecords | None = None
        #: Whether the last login was refused, and no record has waited for an id since.
        self._is_refused = False

    def attach(self, records: BufferedRecords) -> None:
        """See ProducerIdManager."""
        self._records = records

    def run(self) -> Flow[None]:
        """Request ids until the producer is closed."""
        attempt = 0
        while True:
            if self._current is not None or self._error is not None or self._is_refused:
                if not self._is_refused:
                    attempt = 0
                yield from wait(self._requested)
                continue
            yield from self._init_producer_id()
            if self._current is None and self._error is None:
                yield from sleep(self._backoff(attempt, self._random()))
                attempt += 1

    def _init_producer_id(self) -> Flow[None]:
        """Send one InitProducerId request. After a retriable error, the caller sends the next one."""
        from kcodec.protocol.messages.transactions import InitProducerIdRequest

        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=NO_TRANSACTION_TIMEOUT_MS)
        try:
            reply = yield from call(ANY_NODE, request, timeout=self._request_timeout)
        except UnsupportedError as error:
            self._error = error
        except AuthenticationError as error:  # repeated only for a record, because it may lock the account
            self.last_error, self._is_refused = error, True
            if self._records is not None:
                self._records.abort_buffered(error)
            return
        except TransportError as error:
            log.info("no producer id yet: %s", error)
            self.last_error = error
            return
        else:
            response = reply.message
            code = error_code(response.error_code)
            doing = f"InitProducerId at broker {reply.node_id}"
            if code == ErrorCode.NONE:
                self._current = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
                log.debug("producer id %d, epoch %d", *self._current)
            elif code == ErrorCode.UNKNOWN_SERVER_ERROR or code.retriable:
                self.last_error = broker_error(code, doing)
                log.info("no producer id yet: %s", code.name)
                return
            else:
                self._error = broker_error(code, doing)
                note_final(self._error)
        self.changed.set()

    @property
    def current(self) -> ProducerIdAndEpoch | None:
        """The identity; None while it is requested."""
        return self._current

    def request(self) -> None:
        """Request an id again after a refused login."""
        if self._is_refused:
            self._is_refused = False
            self._requested.set()

    def refuses(self) -> BaseException | None:
        """Return the error if an id will never be available: the brokers do not support idempotence, or do not permit
        it."""
        return self._error

    def on_error_code(self, partition: TopicPartition, code: int) -> BatchDisposition:
        """Continue with the next epoch if the broker has lost, or never received, the earlier batches. Otherwise
        request a new id."""
        if code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID):
            self._bump()
        elif code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
            self._reset()
        else:
            return BatchDisposition.FAIL
        return BatchDisposition.BUMP

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
        self._requested.set()
