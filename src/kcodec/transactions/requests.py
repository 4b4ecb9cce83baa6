# SPDX-License-Identifier: Apache-2.0
"""One request to a coordinator, repeated until it gets a response or its time is over.

FindCoordinator comes first, always: on a fresh cluster it makes the internal topic, without it InitProducerId is
answered NOT_COORDINATOR for ever. Repeated are lost answers and the codes that pass by themselves; all copies of a
request are equal, and how many of them went unanswered is counted: their late copies may still be acted on.
"""

from __future__ import annotations

from collections.abc import Callable
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
from kcodec.protocol.error_codes import ERRORS, broker_error
from kcodec.transactions.errors import Failed, Treatment

#: The coordinator moved, or is not ready: 14 COORDINATOR_LOAD_IN_PROGRESS, 15 COORDINATOR_NOT_AVAILABLE,
#: 16 NOT_COORDINATOR.
COORDINATOR_GONE = frozenset({14, 15, 16})
#: 51: the transaction before this one is being ended (Kafka: CONCURRENT_TRANSACTIONS).
CONCURRENT_TRANSACTIONS = 51
#: What passes: all that Kafka calls retriable, 7 REQUEST_TIMED_OUT (KAFKA-14417) and 51 among them.
PASSING = frozenset(code for code, row in ERRORS.items() if row.retriable)
# While another instance's transaction is ended: markers are written within 2 to 25 ms; after that something is wrong,
# and patience is better (KIP-360, franz-go). While our own last one is: most often it takes less than 2 ms.
CONCURRENT_BACKOFF, CONCURRENT_BACKOFF_MAX = 0.020, 1.0
OWN_CONCURRENT_BACKOFF = 0.001
HIGHEST_VERSION = 32767


class CoordinatorCall:
    """Asks the coordinator of a transactional id ("transaction") or a group ("group") for one thing.

    doing:         what is requested, for errors: "EndTxn of 'orders'".
    deadline:      by the cluster's clock; past it DeliveryTimeoutError is raised.
    on_unanswered: called each time a copy that may have been sent got no answer.
    is_over:       asked before each repeat; once true, the last error is raised instead.
    resource:      what an error code of the answer is about.
    unanswered:    how many copies may have been sent and got no answer.
    is_uncertain:  tells codes of a broker that may have carried the request out all the same, as if it had no answer.
    concurrent_backoff: the first pause after CONCURRENT_TRANSACTIONS.
    is_sent_late:  whether the first copy is sent also where no time is left to wait for its response.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: str,
        key: str,
        doing: str,
        deadline: float,
        *,
        on_unanswered: Callable[[], None] = lambda: None,
        is_over: Callable[[], bool] = lambda: False,
        is_uncertain: Callable[[int], bool] = lambda code: False,
        concurrent_backoff: float = CONCURRENT_BACKOFF,
        is_sent_late: bool = False,
    ) -> None:
        self.cluster = cluster
        self.kind, self.key = kind, key
        self.doing = doing
        self.deadline = deadline
        self.on_unanswered = on_unanswered
        self.is_over = is_over
        self.is_uncertain = is_uncertain
        self.concurrent_backoff = concurrent_backoff
        self.is_sent_late = is_sent_late
        self.unanswered = 0
        self._started = cluster.clock()
        self._attempt = self._concurrent = 0

    def ask(
        self, request: Any, code_of: Callable[[Any], int], *, lowest: int = 0, highest: int = HIGHEST_VERSION
    ) -> Flow[Reply]:
        """The answer whose code (by `code_of` of the message) is 0 or one that does not pass.

        Raises Failed (of FindCoordinator), DeliveryTimeoutError, AuthenticationError, UnsupportedError.
        """
        while True:
            node = yield from self._find()
            left = self.deadline - self.cluster.clock()
            if left <= 0 and not self.is_sent_late:
                raise self._late("the timeout of the call was over before this request was sent")
            timeout = min(self.cluster.times.request, max(left, 0.0))
            try:
                reply = yield from self._call(node, request, timeout, lowest, highest)
            except AuthenticationError:
                raise
            except TransportError as error:
                self.cluster.forget_coordinator(self.kind, self.key)
                yield from self.pause(error)
                continue
            code = code_of(reply.message)
            if code not in PASSING and not self.is_uncertain(code):
                return reply
            if code in COORDINATOR_GONE:
                self.cluster.forget_coordinator(self.kind, self.key)
            if self.is_uncertain(code):
                self.note_unanswered()
            yield from self.pause(broker_error(code, self.doing, resource=self.key))

    def _find(self) -> Flow[int]:
        left = max(self.deadline - self.cluster.clock(), 0.0)
        try:
            return (yield from self.cluster.coordinator(self.kind, self.key, left))
        except BrokerError as error:
            # No permission on the id, or on the group; of another group an aborted producer may go on.
            raise Failed(Treatment.FATAL if self.kind == "transaction" else Treatment.ABORTABLE, error) from error

    def _call(self, node: int, request: Any, timeout: float, lowest: int, highest: int) -> Flow[Reply]:
        try:
            reply: Reply = yield from call(node, request, timeout=timeout, lowest=lowest, highest=highest)
        except TransportError as error:
            if error.possibly_sent:
                self.note_unanswered()
            raise
        except UnsupportedError:
            raise
        except (DecodeError, GeneratorExit):
            # A response without a result, or a caller that gave up while the request was under way.
            self.note_unanswered()
            raise
        return reply

    def note_unanswered(self) -> None:
        """A copy got no response that reports its outcome."""
        self.unanswered += 1
        self.on_unanswered()

    def pause(self, last: BrokerError | TransportError) -> Flow[None]:
        """Wait before the next copy; `last` is what the one before met. Raises it, or DeliveryTimeoutError, if none
        is to follow."""
        clock, random = self.cluster.clock, self.cluster.random.random()
        if self.is_over():
            raise last
        if isinstance(last, BrokerError) and last.code == CONCURRENT_TRANSACTIONS:
            seconds = min(self.concurrent_backoff * 1.5**self._concurrent, CONCURRENT_BACKOFF_MAX)
            seconds *= 0.8 + 0.4 * random
            self._concurrent = min(self._concurrent + 1, 30)
        else:
            seconds = self.cluster.times.backoff(self._attempt, random)
            self._attempt += 1
        if clock() + seconds >= self.deadline:
            raise self._late(f"the last was: {last}") from last
        yield from sleep(seconds)

    def _late(self, why: str) -> DeliveryTimeoutError:
        seconds = max(self.deadline - self._started, 0.0)
        return DeliveryTimeoutError(
            f"{self.doing}: no success within {seconds:.3g} s; {why}", possibly_sent=self.unanswered > 0
        )
