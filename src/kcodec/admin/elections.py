# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: election of leaders (KIP-460)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kcodec.admin.values import ElectedLeader
from kcodec.arguments import partitions_of
from kcodec.cluster.retry_driver import ApiHandler, CallContext, ItemResult, by_topic, results
from kcodec.cluster.retry_routes import Controller
from kcodec.flow import Flow
from kcodec.offsets import TopicPartition
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

ELECTIONS = {"preferred": 0, "unclean": 1}


def elect_leaders(
    context: CallContext,
    partitions: Iterable[TopicPartition],
    *,
    election: str = "preferred",
    timeout: float | None = None,
) -> Flow[dict[TopicPartition, ElectedLeader]]:
    """Make the first replica of partitions their leader (KIP-460). An "unclean" election elects any replica and can
    lose records.

    election: "preferred" or "unclean". A partition that needs no election is not an error.

    A request whose response is lost is repeated. `was_needed` is then False if the earlier request has elected the
    leader.

    Raise BrokerError, for example PREFERRED_LEADER_NOT_AVAILABLE or ELIGIBLE_LEADERS_NOT_AVAILABLE, or
    AuthorizationError without the permission. For several partitions, an AdminError contains the errors. Raise
    ValueError if `election` is invalid.
    """
    if election not in ELECTIONS:
        raise ValueError(f"election must be one of {', '.join(ELECTIONS)}, not {election!r}")
    handler: ApiHandler[TopicPartition, ElectedLeader] = ApiHandler(
        "elect leader of",
        Controller(context.cluster),
        lambda some, until: messages.ElectLeadersRequest(
            election_type=ELECTIONS[election],
            topic_partitions=[
                messages.ElectLeadersTopicPartitions(topic=topic, partitions=numbers)
                for topic, numbers in by_topic(some).items()
            ],
            timeout_ms=until.left_ms,
        ),
        _elected,
        final=frozenset({ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}),
        lowest=1 if election == "unclean" else 0,
    )
    return results(context, partitions_of(partitions), handler, timeout)


def _elected(response: Any, partitions: list[TopicPartition]) -> Iterator[tuple[TopicPartition, ItemResult]]:
    if response.error_code:
        yield from ((partition, ItemResult(response.error_code)) for partition in partitions)
        return
    for topic in response.replica_election_results:
        for one in topic.partition_result:
            partition = TopicPartition(topic.topic, one.partition_id)
            is_needless = one.error_code == ErrorCode.ELECTION_NOT_NEEDED
            code = ErrorCode.NONE if is_needless else one.error_code
            yield partition, ItemResult(code, ElectedLeader(partition, not is_needless), one.error_message)
