# SPDX-License-Identifier: Apache-2.0
"""The coordinators of groups and transactional ids: which broker it is, and the flows that find it (KIP-699)."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Protocol

from kcodec.cluster.values import Broker, ClusterTimes
from kcodec.errors import (
    AuthenticationError,
    BrokerError,
    DeliveryTimeoutError,
    KcodecError,
    TransportError,
    UnsupportedError,
)
from kcodec.flow import ANY_NODE, ByVersion, Clock, Flow, call, sleep
from kcodec.protocol.error_codes import ErrorCode, broker_error, note_final
from kcodec.protocol.versions import BrokerVersions
from kcodec.quantities import seconds_text

#: Maximum number of keys in a FindCoordinator request.
MOST_COORDINATOR_KEYS = 1000
COORDINATOR_KINDS = {"group": 0, "transaction": 1, "share": 2}
#: Errors of FindCoordinator that pass: the internal topic is being made, its leader moves or loads; and
#: UNKNOWN_SERVER_ERROR, as one failure of a broker must not end a producer. The deadline bounds the retries.
PASSING = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class KnownCluster(Protocol):
    """What `Coordinators` uses of `kcodec.cluster.metadata.Cluster`."""

    clock: Clock
    random: Random
    times: ClusterTimes
    brokers: dict[int, Broker]
    versions: dict[int, BrokerVersions]
    last_error: BaseException | None

    def request_update(self, reason: str) -> None:
        """See Cluster."""


class Coordinators:
    """The known coordinators, by kind ("group", "transaction" or "share") and key (the group id or transactional id).

    errors: Why a coordinator could not be found the last time, until it is found.
    """

    def __init__(self, cluster: KnownCluster) -> None:
        self.errors: dict[tuple[str, str], BaseException] = {}
        self._cluster = cluster
        self._found: dict[tuple[str, str], int] = {}

    def known(self, kind: str, key: str) -> int | None:
        """Return the coordinator of a group or a transactional id; None if it is unknown."""
        found = self._found.get((kind, key))
        return found if found in self._cluster.brokers else None

    def forget(self, kind: str, key: str) -> None:
        """Forget a coordinator, so that it is looked up again."""
        self._found.pop((kind, key), None)

    def versions(self, kind: str, key: str) -> BrokerVersions | None:
        """Return the API versions of the coordinator of a group or a transactional id; None while they are not
        known."""
        return self._cluster.versions.get(self._found.get((kind, key), ANY_NODE))

    def forget_all(self) -> None:
        """Forget all coordinators, because the client starts again from the bootstrap servers."""
        self._found.clear()

    # Flows

    def find(self, kind: str, key: str, timeout: float) -> Flow[int]:
        """Return the coordinator of a group ("group") or a transactional id ("transaction"), and remember it.

        FindCoordinator also creates the internal topic in a new cluster, so it precedes any request to a coordinator.
        Raise AuthorizationError with the resource, BrokerError, DeliveryTimeoutError.
        """
        deadline = self._cluster.clock() + timeout
        attempt = 0
        last: BaseException | None = self.errors.get((kind, key)) or self._cluster.last_error
        while (known := self.known(kind, key)) is None:
            left = deadline - self._cluster.clock()
            if left <= 0:
                how = f"was not found within {seconds_text(timeout)}" if attempt else "is unknown, and no time was left"
                raise DeliveryTimeoutError(f"the coordinator of {kind} {key!r} {how}: {last or 'no response'}")
            errors = yield from self._request(kind, [key], min(left, self._cluster.times.request))
            if (error := errors.get(key)) is not None:
                if not _is_passing(error):
                    raise error
                last = self.errors[kind, key] = error
            elif (known := self.known(kind, key)) is not None:
                return known
            pause = self._cluster.times.backoff(attempt, self._cluster.random.random())
            yield from sleep(min(pause, max(deadline - self._cluster.clock(), 0.0)))
            attempt += 1
        return known

    def find_each(self, kind: str, keys: Iterable[str], timeout: float) -> Flow[dict[str, KcodecError]]:
        """Look up the coordinators of several groups or transactional ids once. From version 4 on, one request names
        all of them (KIP-699); below, they are requested one by one. Return the errors by key: a TransportError if a
        later attempt may succeed."""
        errors = yield from self._request(kind, list(keys), timeout)
        for key, error in errors.items():
            if _is_passing(error):
                self.errors[kind, key] = error
            if _is_passing(error) and isinstance(error, BrokerError):
                errors[key] = TransportError(f"the coordinator of {kind} {key!r} was not found: {error}")
                errors[key].__cause__ = error
        return errors

    def _request(self, kind: str, keys: list[str], timeout: float) -> Flow[dict[str, KcodecError]]:
        from kcodec.protocol.messages.metadata import FindCoordinatorRequest

        number, deadline = COORDINATOR_KINDS[kind], self._cluster.clock() + timeout
        errors: dict[str, KcodecError] = {}
        missing = list(dict.fromkeys(keys))
        while missing:
            some = missing[:MOST_COORDINATOR_KEYS]

            def build(version: int, some: list[str] = some) -> FindCoordinatorRequest:
                if version >= 4:
                    return FindCoordinatorRequest(key_type=number, coordinator_keys=some)
                return FindCoordinatorRequest(key=some[0], key_type=number)

            request = ByVersion(FindCoordinatorRequest, build)
            left = max(deadline - self._cluster.clock(), 0.0)
            try:
                reply = yield from call(ANY_NODE, request, timeout=left, lowest=1 if kind == "transaction" else 0)
            except (TransportError, UnsupportedError, BrokerError) as failed:
                # If no known broker responds, the metadata flow starts again from the bootstrap servers.
                self._cluster.request_update("FindCoordinator got no response")
                return {**errors, **dict.fromkeys(missing, failed)}
            if reply.version < 4:
                found = {some[0]: reply.message}
            else:
                found = {one.key: one for one in reply.message.coordinators}
            requested = some[: 1 if reply.version < 4 else None]
            for key in requested:
                if (coordinator := found.get(key)) is None:
                    errors[key] = TransportError(f"the FindCoordinator response has no result for {kind} {key!r}")
                elif coordinator.error_code:
                    error = errors[key] = broker_error(
                        coordinator.error_code,
                        f"FindCoordinator of {kind} {key!r}",
                        resource=key,
                        message=coordinator.error_message,
                    )
                    note_final(error)  # an abort does not help to find a coordinator
                else:
                    self._found[kind, key] = node_id = coordinator.node_id
                    self.errors.pop((kind, key), None)
                    known = self._cluster.brokers.get(node_id)
                    if known is None or (known.host, known.port) != (coordinator.host, coordinator.port):
                        # The address in the metadata may be an old one.
                        rack = None if known is None else known.rack
                        self._cluster.brokers[node_id] = Broker(node_id, coordinator.host, coordinator.port, rack)
            missing = missing[len(requested) :]
        return errors


def _is_passing(error: KcodecError) -> bool:
    """Return whether a coordinator may be found later, after this error."""
    if isinstance(error, BrokerError):
        return error.code in PASSING or error.retriable
    return not isinstance(error, AuthenticationError | UnsupportedError)
