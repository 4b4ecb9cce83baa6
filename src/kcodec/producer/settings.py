# SPDX-License-Identifier: Apache-2.0
"""Settings of a producer's flows; times in seconds, sizes in bytes. The public classes make them from the options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ProducerSettings:
    """Names and defaults are Kafka's (ProducerConfig); `kcodec.producer.options` says what each one does.

    acks:          0, 1 or -1 (all).
    retry_backoff: seconds before the n'th repeat (0 the first), given a random number between 0 and 1.
    """

    acks: int = -1
    compression_type: str = "none"
    compression_level: int | None = None
    linger: float = 0.005
    batch_size: int = 16_384
    buffer_memory: int = 33_554_432
    max_block: float = 60.0
    max_request_size: int = 1_048_576
    max_in_flight: int = 5
    retries: int = 2_147_483_647
    delivery_timeout: float = 120.0
    request_timeout: float = 30.0
    retry_backoff: Callable[[int, float], float] = lambda attempt, random: 0.1
    adaptive_partitioning: bool = True
    ignore_keys: bool = False
