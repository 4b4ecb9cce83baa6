# SPDX-License-Identifier: Apache-2.0
"""The start of `read_ranges`: the topics of its ranges are looked up, and missing ones raise an error or are skipped.

The offsets are given and need no request: a client that knows the topics begins with Fetch requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import NO_UUID
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import BrokerError
from kcodec.flow import Flow, sleep
from kcodec.offsets import OffsetRange
from kcodec.protocol.error_codes import ErrorCode, broker_error
from kcodec.quantities import count_text
from kcodec.reading.bounded_read import GONE, TOPIC_PATIENCE_SECONDS, BoundedRead, OnMissing

ON_MISSING: tuple[OnMissing, ...] = ("raise", "skip")


def open_ranges(
    cluster: Cluster,
    ranges: Sequence[OffsetRange],
    settings: ConsumerSettings,
    on_missing: OnMissing,
    *,
    is_sample: bool = False,
) -> Flow[BoundedRead]:
    """Start to fetch the ranges, of a sample up to the first response of each. Raise BrokerError for a topic or a
    partition that does not exist, unless it is skipped."""
    filled = [each for each in ranges if each.start < each.end]
    cluster.add_topics({each.topic for each in filled})
    errors: dict[str, BrokerError] = {}
    for topic in dict.fromkeys(each.topic for each in filled):
        try:
            yield from cluster.ensure_topic(topic, settings.default_api_timeout)
        except BrokerError as error:
            if error.code not in GONE:
                raise
            errors[topic] = error
    deadline = cluster.clock() + TOPIC_PATIENCE_SECONDS
    outdated = [each for each in filled if each.topic not in errors]
    while (outdated := [each for each in outdated if _missing(cluster, each)]) and cluster.clock() < deadline:
        yield from sleep(cluster.times.backoff(0, cluster.random.random()))
        yield from cluster.refresh(settings.default_api_timeout)
    read = BoundedRead(cluster, ranges, settings, on_missing, is_sample=is_sample)
    for partition in read.partitions:
        if partition.range in outdated:
            read.skip_rest(partition, _error(partition.range, _missing(cluster, partition.range)))
        elif partition.range.start < partition.range.end and partition.range.topic in errors:
            read.skip_rest(partition, _error(partition.range, errors[partition.range.topic]))
    yield from read.start()
    return read


def _missing(cluster: Cluster, each: OffsetRange) -> BrokerError | None:
    """Return the error of a range by the metadata, which may be outdated: another topic has the name, or the partition
    does not exist."""
    found = cluster.topics.get(each.topic)
    if found is None or found.error:
        return None
    if each.topic_id is not None and found.topic_id not in (NO_UUID, each.topic_id):
        doing = f"topic {each.topic!r} was deleted and created again: its id is {found.topic_id}, not {each.topic_id}"
        return broker_error(ErrorCode.INCONSISTENT_TOPIC_ID, doing, resource=each.topic, remedy="stop")
    if each.partition not in found.partitions:
        doing = f"topic {each.topic!r} has {count_text(len(found.partitions), 'partition')}, numbered from 0"
        return broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, doing, resource=each.topic_partition, remedy="stop")
    return None


def _error(each: OffsetRange, error: BrokerError | None) -> BrokerError:
    assert error is not None
    return BrokerError(
        f"range {each}: {error}", code=error.code, name=error.name, remedy="stop", resource=each.topic_partition
    )
