# SPDX-License-Identifier: Apache-2.0
"""The size of a micro-batch: maxOffsetsPerTrigger, minOffsetsPerTrigger, maxTriggerDelay and maxBytesPerTrigger.

The first three options are those of Spark's own Kafka source (KafkaMicroBatchStream). Spark passes only one read limit
to a Python source, so this module applies all four.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kcodec.offsets import TopicPartition
from kcodec.spark import offset_options, planner

LIMIT_OPTIONS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger")
DEFAULT_MAX_DELAY_MS = 15 * 60 * 1000
#: Spark's units of time (JavaUtils.timeStringAs); without one a number is in milliseconds.
MILLISECONDS = {
    "us": 0.001,
    "ms": 1,
    "": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
DURATION = re.compile(r"([0-9]+)\s*([a-z]*)")

BytesPerOffset = Callable[[planner.PartitionOffsets, planner.PartitionOffsets], Mapping[TopicPartition, float]]


@dataclass(frozen=True)
class TriggerLimits:
    """The limits of a micro-batch; None is unlimited. `max_delay_ms` is the maximum wait for `min_offsets`."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = DEFAULT_MAX_DELAY_MS
    max_bytes: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> TriggerLimits:
        """Return the limits that options, in Spark's spelling, set. Raise ValueError if one is invalid."""
        limits = cls(
            offset_options.parse_positive(options, "maxOffsetsPerTrigger"),
            offset_options.parse_positive(options, "minOffsetsPerTrigger"),
            _duration_ms(options, "maxTriggerDelay", DEFAULT_MAX_DELAY_MS),
            offset_options.parse_positive(options, "maxBytesPerTrigger"),
        )
        if limits.max_offsets is not None and (limits.min_offsets or 0) > limits.max_offsets:
            raise ValueError(
                f"option 'minOffsetsPerTrigger' is {limits.min_offsets}: it must not be greater than "
                f"maxOffsetsPerTrigger, which is {limits.max_offsets}"
            )
        return limits


NO_LIMITS = TriggerLimits()


class TriggerControl:
    """Applies the limits to successive micro-batches, and stores the time of the last one.

    bytes_per_offset: Function that estimates the bytes of an offset between two positions, for max_bytes.
    """

    def __init__(
        self,
        limits: TriggerLimits,
        bytes_per_offset: BytesPerOffset,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._bytes_per_offset = bytes_per_offset
        self._clock = clock
        self._last: float | None = None

    def end(
        self, start: planner.PartitionOffsets, available: planner.PartitionOffsets, *, may_delay: bool
    ) -> dict[TopicPartition, int]:
        """Return the end of the micro-batch that begins at `start`. If it has to wait, return `start`.

        start:     Offset of each partition in `available`.
        may_delay: False with Trigger.AvailableNow, which must end.
        """
        limits, now = self._limits, self._clock()
        waited_ms = limits.max_delay_ms if self._last is None else int((now - self._last) * 1000)
        if may_delay and planner.is_batch_delayed(start, available, limits.min_offsets, waited_ms, limits.max_delay_ms):
            return {partition: start[partition] for partition in available}
        self._last = now
        end = dict(available)
        if limits.max_offsets is not None:
            end = planner.limit_offsets(start, end, limits.max_offsets)
        if limits.max_bytes is not None:
            end = planner.limit_bytes(start, end, limits.max_bytes, self._bytes_per_offset(start, end))
        return end


def _duration_ms(options: Mapping[str, str], option: str, default: int) -> int:
    if option not in options:
        return default
    text = options[option].strip().lower()
    match = DURATION.fullmatch(text)
    if match is None or match[2] not in MILLISECONDS:
        raise ValueError(f"option {option!r} is {text!r}: expected a duration like 500ms, 30s, 15m or 1h")
    return int(int(match[1]) * MILLISECONDS[match[2]])
