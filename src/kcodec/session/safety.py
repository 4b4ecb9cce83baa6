# SPDX-License-Identifier: Apache-2.0
"""Whether a group transact session is safe with the brokers of its cluster.

With KIP-447 (Kafka 2.5), a stale generation cannot commit offsets, and a new owner of a partition waits until pending
offsets are resolved. Without KIP-447, safety depends on timeouts. A member that was removed from the group must not be
able to commit, so its transaction must have been aborted before its session ends.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from kcodec.cluster.metadata import Cluster
from kcodec.protocol.messages import OffsetFetchRequest, TxnOffsetCommitRequest
from kcodec.protocol.versions import BrokerVersions
from kcodec.transactions.offsets import GENERATION_VERSION

#: The first version of OffsetFetch with RequireStable.
REQUIRE_STABLE_VERSION = 7
#: How often a coordinator looks for transactions that are over their time, unless it is configured otherwise
#: (transaction.abort.timed.out.transaction.cleanup.interval.ms).
SCAN_SECONDS = 10.0
#: Without KIP-447: minimum delay of a rebalance after a commit, whose markers may not be written yet.
MARKER_WAIT_SECONDS = 0.5
log = logging.getLogger("kcodec.session")


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionTimes:
    """Times in seconds.

    session:           Session timeout; None if it is a setting of the broker that could not be read (KIP-848).
    max_poll_interval: Time without a poll after which the member leaves.
    """

    session: float | None
    request: float
    scan: float = SCAN_SECONDS
    max_poll_interval: float = 300.0


def has_kip447(cluster: Cluster, group_id: str) -> bool:
    """Return whether the group's coordinator supports KIP-447; while it is unknown, whether all known brokers do."""
    found = cluster.coordinators.versions("group", group_id)
    known = [found] if found is not None else list(cluster.versions.values())
    return bool(known) and all(_offers(versions) for versions in known)


def _offers(versions: BrokerVersions) -> bool:
    commit = versions.apis.get(TxnOffsetCommitRequest.api_key, (0, 0))[1]
    fetch = versions.apis.get(OffsetFetchRequest.api_key, (0, 0))[1]
    return commit >= GENERATION_VERSION and fetch >= REQUIRE_STABLE_VERSION


def check_times(times: SessionTimes, transaction_timeout: float) -> None:
    """For a broker without KIP-447: log a warning about the limits of safe timeouts. Raise ValueError if they are not
    safe."""
    if times.session is None:
        log.warning(
            "this broker does not support generations with offsets (KIP-447), and the session timeout of the group "
            "could not be read: it must be longer than transaction_timeout_ms + %d + request_timeout_ms",
            times.scan * 1000,
        )
        return
    least = transaction_timeout + times.scan + times.request
    if times.session <= least:
        raise ValueError(
            f"session_timeout_ms={times.session * 1000:.0f} is not safe with this broker, which does not support "
            f"generations with offsets (KIP-447, Kafka 2.5): a member that was removed from the group could "
            f"still commit. It must be above transaction_timeout_ms ({transaction_timeout * 1000:.0f}) + the "
            f"coordinator's scan interval ({times.scan * 1000:.0f}) + request_timeout_ms ({times.request * 1000:.0f}) "
            f"= {least * 1000:.0f}. Reduce these, or increase session_timeout_ms (the broker's "
            "group.max.session.timeout.ms limits it), or use one transactional id for each partition"
        )
    log.warning(
        "this broker does not support generations with offsets (KIP-447, Kafka 2.5): exactly-once processing depends "
        "on timing. Each commit delays the rebalances after it by %g s",
        MARKER_WAIT_SECONDS,
    )
