# SPDX-License-Identifier: Apache-2.0
"""One request to a coordinator, repeated until it gets a response or its deadline has passed.

FindCoordinator is always sent first. In a new cluster it creates the internal topic, without which the response to
InitProducerId is always NOT_COORDINATOR. A request is repeated after a lost response and after a retriable error. All
copies of a request are equal. Copies without a response are counted, because they may be processed late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kcodec.cluster.metadata import Cluster
from kcodec.errors import (
    AuthenticationError,
    BrokerError,
    DecodeError,
    DeliveryTimeoutError,
    TransportError,
    UnsupportedError,
)
from kcodec.flow import Flow, Reply, call, sleep
from kcodec.offsets import TopicPartition
from kcodec.producer.identity import HIGHEST_VERSION
from kcodec.protocol.error_codes import ErrorCode, broker_error
from kcodec.quantities import seconds_text
from kcodec.transactions.errors import Failed, TransactionDisposition

#: The coordinator moved, or is not ready.
COORDINATOR_GONE = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)
#: Errors that pass: all that Kafka calls retriable, with REQUEST_TIMED_OUT (KAFKA-14417) and CONCURRENT_TRANSACTIONS.
PASSING = frozenset(code for code in ErrorCode if code.retriable)
# First and longest pause while the markers of another producer's transaction are written, which usually takes 2 to 25
# ms. If it takes longer, a broker has a problem, so the pauses grow (KIP-360, as in franz-go). OWN_CONCURRENT_BACKOFF
# is the pause for the markers of this producer's last transaction, which usually takes less than 2 ms.
CONCURRENT_BACKOFF, CONCURRENT_BACKOFF_MAX = 0.020, 1.0
OWN_CONCURRENT_BACKOFF = 0.001


@dataclass(eq=False)
class CoordinatorCall:
    """One request to the coordinator of a transactional id ("transaction") or a group ("group").

    doing:         Text for the request in errors: "EndTxn of 'orders'".
    deadline:      Time of the cluster's clock, after which DeliveryTimeoutError is raised.
    on_no_response: Called for each copy that may have been sent and got no response.
    is_over:       Called before each repeat. If it returns True, the last error is raised instead.
    is_uncertain:  Returns whether a broker with this error code may have processed the request nevertheless. The copy
                   then counts as one without a response.
    concurrent_backoff: First pause after CONCURRENT_TRANSACTIONS.
    is_sent_late:  Whether the first copy is sent even if no time remains to wait for its response.
    unconfirmed:   Number of copies that may have been sent and got no response.
    """

    cluster: Cluster
    kind: str
    key: str
    doing: str
    deadline: float
    on_no_response: Callable[[], None] = lambda: None
    is_over: Callable[[], bool] = lambda: False
    is_uncertain: Callable[[int], bool] = lambda code: False
    concurrent_backoff: float = CONCURRENT_BACKOFF
    is_sent_late: bool = False
    unconfirmed: int = 0

    def __post_init__(self) -> None:
        self._started = self.cluster.clock()
        self._attempt = self._concurrent = 0

    def send(
        self, request: Any, code_of: Callable[[Any], int], *, lowest: int = 0, highest: int = HIGHEST_VERSION
    ) -> Flow[Reply]:
        """Return the first response whose code (`code_of` of the message) is NONE or an error that is not retried.

        Raise Failed (of FindCoordinator), DeliveryTimeoutError, AuthenticationError, UnsupportedError.
        """
        while True:
            node = yield from self._find()
            left = self.deadline - self.cluster.clock()
            if left <= 0 and not self.is_sent_late:
                raise self._late("the timeout of the call had passed before this request was sent")
            timeout = min(self.cluster.times.request, max(left, 0.0))
            try:
                reply: Reply = yield from call(node, request, timeout=timeout, lowest=lowest, highest=highest)
            except TransportError as error:
                if error.possibly_sent:
                    self._note_no_response()
                if isinstance(error, AuthenticationError):
                    raise
                self.cluster.coordinators.forget(self.kind, self.key)
                yield from self._pause(error)
                continue
            except UnsupportedError:  # nothing was sent
                raise
            except (DecodeError, GeneratorExit, KeyboardInterrupt, SystemExit):
                # A response without a result, or a caller that stopped waiting while the request was in flight.
                self._note_no_response()
                raise
            code = code_of(reply.message)
            if code not in PASSING and not self.is_uncertain(code):
                return reply
            if code in COORDINATOR_GONE:
                self.cluster.coordinators.forget(self.kind, self.key)
            if self.is_uncertain(code):
                self._note_no_response()
            yield from self._pause(broker_error(code, self.doing, resource=self.key))

    def _find(self) -> Flow[int]:
        left = max(self.deadline - self.cluster.clock(), 0.0)
        try:
            return (yield from self.cluster.coordinators.find(self.kind, self.key, left))
        except BrokerError as error:
            # A missing permission on the id or on the group. With another group, the producer can continue after an
            # abort.
            is_own = self.kind == "transaction"
            raise Failed(TransactionDisposition.FATAL if is_own else TransactionDisposition.ABORT, error) from error

    def _note_no_response(self) -> None:
        """Count a copy without a response, and report it."""
        self.unconfirmed += 1
        self.on_no_response()

    def _pause(self, last: BrokerError | TransportError) -> Flow[None]:
        """Wait before the next copy; `last` is the error of the previous one. Raise it, or DeliveryTimeoutError, if
        there is no next copy."""
        clock, random = self.cluster.clock, self.cluster.random.random()
        if self.is_over():
            raise last
        if isinstance(last, BrokerError) and last.code == ErrorCode.CONCURRENT_TRANSACTIONS:
            seconds = min(self.concurrent_backoff * 1.5**self._concurrent, CONCURRENT_BACKOFF_MAX)
            seconds *= 0.8 + 0.4 * random
            self._concurrent = min(self._concurrent + 1, 30)
        else:
            seconds = self.cluster.times.backoff(self._attempt, random)
            self._attempt += 1
        if clock() + seconds >= self.deadline:
            raise self._late(f"the last error: {last}") from last
        yield from sleep(seconds)

    def _late(self, why: str) -> DeliveryTimeoutError:
        seconds = max(self.deadline - self._started, 0.0)
        return DeliveryTimeoutError(
            f"{self.doing}: not successful within {seconds_text(seconds)}; {why}", possibly_sent=self.unconfirmed > 0
        )


def worst_result(results: Iterable[tuple[int, TopicPartition]]) -> tuple[int, TopicPartition | None]:
    """Return the first significant error of the partitions, or (NONE, None).

    A retriable error, or OPERATION_NOT_ATTEMPTED because of another partition, counts only if there is no other.
    """
    errors = [result for result in results if result[0]]
    passing = [result for result in errors if result[0] in PASSING]
    lasting = [result for result in errors if result[0] not in {*PASSING, ErrorCode.OPERATION_NOT_ATTEMPTED}]
    return next(iter(lasting or passing or errors), (ErrorCode.NONE, None))
