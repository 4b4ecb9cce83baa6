# SPDX-License-Identifier: Apache-2.0
"""Stream readers with read limits and Trigger.AvailableNow, which Spark 4.2 and later have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from kcodec.spark.stream_readers import _StreamReader
from kcodec.spark.trigger_limits import TriggerLimits


def read_limit(limits: TriggerLimits) -> ReadLimit:
    """Return the read limit that Spark passes back to `latestOffset`. Spark passes ReadAllAvailable in its place if the
    trigger is `once`."""
    if limits.max_offsets is not None:
        return ReadMaxRows(limits.max_offsets)
    if limits.max_bytes is not None:
        return ReadMaxBytes(limits.max_bytes)
    return ReadAllAvailable() if limits.min_offsets is None else ReadMinRows(limits.min_offsets)


class LimitedStreamReader(_StreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return a read limit if an option sets one."""
        return read_limit(self._query.limits)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch."""
        return self._driver().latest_offset(start, is_limited=not isinstance(limit, ReadAllAvailable))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember the ends of the logs, which the query reads up to."""
        self._driver().prepare_for_available_now()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the logs, for `latestOffset` of the progress."""
        return self._driver().report()
