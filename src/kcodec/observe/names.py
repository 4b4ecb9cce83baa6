# SPDX-License-Identifier: Apache-2.0
"""The metrics that clients report: their names, units and labels. docs/logging.md has the same table."""

from __future__ import annotations

from typing import Final, NamedTuple


class MetricName(NamedTuple):
    """A metric of clients.

    kind: "count", "latency" (seconds) or "gauge": the method that reports it.
    labels: Names of its labels.
    text: What it counts or measures.
    """

    kind: str
    labels: tuple[str, ...]
    text: str


METRICS: Final[dict[str, MetricName]] = {
    "connection.opened": MetricName("count", ("node",), "connections that were opened"),
    "connection.failed": MetricName("count", ("node",), "connections that failed"),
    "connection.refused": MetricName("count", ("node",), "connections that failed because a login was refused"),
    "connection.authenticated": MetricName("count", ("node",), "connections that were authenticated"),
    "request.sent": MetricName("count", ("api", "node"), "requests that were sent"),
    "request.failed": MetricName("count", ("api", "node"), "requests that got no response"),
    "bytes.sent": MetricName("count", ("node",), "bytes that were sent"),
    "bytes.received": MetricName("count", ("node",), "bytes that were received"),
    "metadata.refreshed": MetricName("count", (), "metadata responses"),
    "producer.records": MetricName("count", (), "records that brokers have acknowledged"),
    "producer.batches": MetricName("count", (), "batches that brokers have acknowledged"),
    "producer.batch_bytes": MetricName("count", (), "bytes of the batches that brokers have acknowledged"),
    "producer.retries": MetricName("count", (), "batches that were sent again"),
    "producer.failures": MetricName("count", (), "batches that failed"),
    "consumer.records": MetricName("count", (), "records that the program has received"),
    "consumer.rebalances": MetricName("count", (), "rebalances of the group that this member has taken part in"),
    "consumer.fetched_bytes": MetricName("count", ("node",), "bytes of records in Fetch responses"),
    "consumer.fetch_errors": MetricName("count", ("code",), "partitions with an error in a Fetch response"),
    "consumer.fetch_failed": MetricName("count", ("node",), "Fetch requests that got no response"),
    "request": MetricName("latency", ("api",), "time from a request to its response"),
    "throttle": MetricName(
        "latency", ("api",), "time for which a broker throttles the client, as its quota is used up"
    ),
    "producer.delivery": MetricName("latency", (), "time from the first record of a batch to its acknowledgment"),
    "requests.in_flight": MetricName("gauge", ("node",), "requests that wait for their response"),
    "producer.buffered_bytes": MetricName("gauge", (), "memory of records that are not acknowledged"),
    "producer.unfinished_batches": MetricName("gauge", (), "batches that are not acknowledged"),
    "consumer.buffered_bytes": MetricName("gauge", (), "bytes of records that are fetched and not polled"),
    "consumer.assigned_partitions": MetricName("gauge", (), "assigned partitions"),
    "consumer.lag": MetricName("gauge", ("topic", "partition"), "offsets to the high watermark; 0 once unassigned"),
    "consumer.seconds_since_poll": MetricName("gauge", (), "time since the program polled last"),
}


def metric_of(name: str, kind: str, labels: dict[str, object]) -> MetricName:
    """Return the metric of a name; one that a newer client reports has the labels of its first value."""
    return METRICS.get(name) or MetricName(kind, tuple(sorted(labels)), name)
