# SPDX-License-Identifier: Apache-2.0
"""Whether a group transact session is safe with the brokers it has found.

With KIP-447 (Kafka 2.5) a stale generation cannot commit offsets, and who takes a partition over waits until offsets
that are pending are settled. Without it only time protects: a member that the group has given up must not be able to
commit any more, so its transaction must have been aborted before its session is over.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from kcodec.cluster.metadata import Cluster
from kcodec.protocol.messages import OffsetFetchRequest, TxnOffsetCommitRequest
from kcodec.protocol.versions import BrokerVersions

#: The first versions of TxnOffsetCommit that names a generation, and of OffsetFetch with RequireStable.
GENERATION_VERSION, REQUIRE_STABLE_VERSION = 3, 7
HIGHEST_VERSION = 32767
#: How often a coordinator looks for transactions that are over their time, unless it was told otherwise
#: (transaction.abort.timed.out.transaction.cleanup.interval.ms).
SCAN_SECONDS = 10.0
#: Without KIP-447: so long after a commit a rebalance goes on at the earliest, as its markers may not be written yet.
MARKER_WAIT_SECONDS = 0.5
log = logging.getLogger("kcodec.session")


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionTimes:
    """Seconds, and bounds of versions below what brokers offer. session: None where it is the broker's and could not be
    learnt (KIP-848); max_poll_interval: without a poll for so long the member leaves."""

    session: float | None
    request: float
    scan: float = SCAN_SECONDS
    max_poll_interval: float = 300.0
    txn_offset_commit_highest_version: int = HIGHEST_VERSION
    offset_fetch_highest_version: int = HIGHEST_VERSION


def has_kip447(cluster: Cluster, group_id: str, times: SessionTimes) -> bool:
    """By what the group's coordinator offers; where it is not known yet, by the least that any broker we know does."""
    found = cluster.coordinator_versions("group", group_id)
    known = [found] if found is not None else list(cluster.versions.values())
    return bool(known) and all(_offers(versions, times) for versions in known)


def _offers(versions: BrokerVersions, times: SessionTimes) -> bool:
    commit = min(versions.apis.get(TxnOffsetCommitRequest.api_key, (0, 0))[1], times.txn_offset_commit_highest_version)
    fetch = min(versions.apis.get(OffsetFetchRequest.api_key, (0, 0))[1], times.offset_fetch_highest_version)
    return commit >= GENERATION_VERSION and fetch >= REQUIRE_STABLE_VERSION


def check_times(times: SessionTimes, transaction_timeout: float) -> None:
    """For a broker without KIP-447: a warning says what times that are safe are worth. Raises ValueError where they are
    not."""
    if times.session is None:
        log.warning(
            "this broker knows no generations with offsets (KIP-447), and the session time-out of the group is its own "
            "and could not be read: it must be longer than transaction_timeout_ms + %d + request_timeout_ms",
            times.scan * 1000,
        )
        return
    least = transaction_timeout + times.scan + times.request
    if times.session <= least:
        raise ValueError(
            f"session_timeout_ms={times.session * 1000:.0f} is not safe with this broker, which knows no generations "
            f"with offsets (KIP-447, Kafka 2.5): a member that the group gave up could still commit. It must be above "
            f"transaction_timeout_ms ({transaction_timeout * 1000:.0f}) + the coordinator's scan interval "
            f"({times.scan * 1000:.0f}) + request_timeout_ms ({times.request * 1000:.0f}) = {least * 1000:.0f}. Make "
            "these shorter or the session's longer (group.max.session.timeout.ms of the broker bounds it), or write "
            "with one transactional id a partition"
        )
    log.warning(
        "this broker knows no generations with offsets (KIP-447, Kafka 2.5): whether each record is processed once "
        "depends on timing. Each commit delays the rebalances after it by %g s",
        MARKER_WAIT_SECONDS,
    )
