# SPDX-License-Identifier: Apache-2.0
"""The common part of the sync and async `read_ranges`: the options, and the flows of one read with a client of the
pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from kcodec.arguments import items_of
from kcodec.client.client_pool import ClientPool, key_of
from kcodec.client.topic_reading import BoundedReading
from kcodec.cluster.broker_report import MAX_NAMED_TOPICS, reported
from kcodec.errors import TransportError
from kcodec.flow import Flow
from kcodec.network.client import Client
from kcodec.offsets import OffsetRange
from kcodec.reading.bounded_read import OnMissing
from kcodec.reading.decoding import RangeDecoder
from kcodec.reading.offset_ranges import ON_MISSING, open_ranges
from kcodec.reading.options import SPARK_COLUMNS, ReadTopicConfig, take_client_config
from kcodec.reading.partition_read import RangeProgress


class RangeReading(BoundedReading):
    """A read of ranges of offsets.

    client_options: Options of the client as the caller passed them.
    config:         The checked options of the client.

    is_sample:      Whether the read of each range ends after its first response.

    Raise TypeError or ValueError if a range or an option is invalid, before any request.
    """

    is_sample = False

    def __init__(
        self,
        ranges: OffsetRange | Iterable[OffsetRange],
        spark_layout: bool,
        on_missing: OnMissing,
        options: Mapping[str, Any],
        pool: ClientPool[Any],
    ) -> None:
        # A single OffsetRange is accepted, too. The cast is for type checkers, because it is not iterable.
        self.ranges = items_of(cast("Iterable[OffsetRange]", ranges), OffsetRange, "ranges")
        if on_missing not in ON_MISSING:
            raise ValueError(f"on_missing must be one of {', '.join(ON_MISSING)}, not {on_missing!r}")
        self._on_missing: OnMissing = on_missing
        left = {"columns": SPARK_COLUMNS, **options} if spark_layout else dict(options)
        own = ReadTopicConfig.take(left)
        self.client_options = key_of(left)
        self.config = pool.config(self.client_options) or take_client_config(dict(self.client_options), "read_ranges")
        settings = own.settings(self.config)
        super().__init__(settings, RangeDecoder(settings, spark_layout=spark_layout), spark_layout)

    def open(self, client: Client) -> Flow[None]:
        """Start the fetches."""
        settings = self.settings
        opening = open_ranges(client.cluster, self.ranges, settings, self._on_missing, is_sample=self.is_sample)
        topics = ", ".join(sorted({repr(each.topic) for each in self.ranges})[:MAX_NAMED_TOPICS])
        self._read = yield from reported(
            opening,
            client.cluster,
            f"read of {topics}",
            settings.default_api_timeout,
            "kcodec.reading",
        )

    def stop(self) -> None:
        """Stop fetching. Call this on the I/O loop."""
        if self._read is not None:
            self._read.stop()

    @property
    def has_failed_connection(self) -> bool:
        """Whether the client may have caused the error, because a connection has failed."""
        return isinstance(self.failure, TransportError)

    @property
    def progress(self) -> tuple[RangeProgress, ...]:
        """The ranges with their progress."""
        self._note_undelivered()
        return tuple(partition.progress for partition in self.partitions)

    def describe(self) -> str:
        """Return a text for `repr`."""
        return self._describe(f"{len(self.ranges)} ranges")
