# SPDX-License-Identifier: Apache-2.0
"""The metrics that a consumer reports at an interval."""

from __future__ import annotations

from kcodec.consumer.fetch_buffer import FetchBuffer
from kcodec.consumer.health import HealthWatch
from kcodec.network.metrics import Gauge, Metrics
from kcodec.offsets import TopicPartition


class ConsumerGauges:
    """The gauges of a consumer, and what was reported last."""

    def __init__(self, metrics: Metrics, health: HealthWatch, buffer: FetchBuffer) -> None:
        self._metrics = metrics
        self._health = health
        self._buffer = buffer
        self._reported_records = 0
        self._reported_generation = -1
        self._reported_lags: set[TopicPartition] = set()

    def report(self, gauge: Gauge) -> None:
        """Report gauges, and counters that would cost time if they were reported while records are taken."""
        found, buffer = self._health.take(), self._buffer
        records, self._reported_records = buffer.taken_records - self._reported_records, buffer.taken_records
        if records:
            self._metrics.count("consumer.records", records)
        if found.generation is not None and found.generation != self._reported_generation:
            self._reported_generation = found.generation
            self._metrics.count("consumer.rebalances")
        gauge("consumer.assigned_partitions", len(found.partitions))
        gauge("consumer.seconds_since_poll", found.seconds_since_poll)
        gauge("consumer.buffered_bytes", sum(one.buffered_bytes for one in found.partitions.values()))
        for topic, partition in self._reported_lags - found.partitions.keys():
            gauge("consumer.lag", 0, topic=topic, partition=partition)  # otherwise the last value would stay
        self._reported_lags &= found.partitions.keys()
        for place, one in found.partitions.items():
            if one.lag is not None:
                self._reported_lags.add(place)
                gauge("consumer.lag", one.lag, topic=place.topic, partition=place.partition)
