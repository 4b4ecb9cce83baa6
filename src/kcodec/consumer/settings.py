# SPDX-License-Identifier: Apache-2.0
"""Settings of a consumer's flows; times in seconds, sizes in bytes. The public classes make them from the options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kcodec.constants import IsolationLevel
from kcodec.limits import DEFAULT_LIMITS, DecodeLimits

HIGHEST_VERSION = 32767
DEFAULT_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerSettings:
    """Names and defaults are Kafka's (ConsumerConfig); `kcodec.consumer.options` says what each one does.

    bootstrap_servers:   the addresses that the client was given, for messages.
    auto_offset_reset:   "earliest", "latest", "none", or "by_duration" with auto_offset_reset_duration in seconds.
    fetch_ahead_max_bytes: what is fetched and not taken yet; nobody is asked for more beyond it.
    columns:             of the batches that poll_arrow gives.
    retry_backoff:       seconds before the n'th repeat (0 the first), given a random number between 0 and 1.
    offset_fetch_highest_version, txn_offset_commit_highest_version: bounds below what brokers offer, to speak as with
                         brokers before 2.5.
    """

    bootstrap_servers: str = ""
    group_id: str | None = None
    group_instance_id: str | None = None
    group_protocol: str = "classic"
    group_remote_assignor: str | None = None
    partition_assignment_strategy: tuple[Any, ...] = ("range", "cooperative-sticky")
    client_id: str = "kcodec"
    client_rack: str = ""
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    auto_offset_reset: str = "latest"
    auto_offset_reset_duration: float = 0.0
    allow_auto_create_topics: bool = True
    exclude_internal_topics: bool = True
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 52_428_800
    fetch_max_wait: float = 0.5
    max_partition_fetch_bytes: int = 1_048_576
    fetch_ahead_max_bytes: int = 67_108_864
    max_poll_records: int = 500
    max_poll_interval: float = 300.0
    session_timeout: float = 45.0
    heartbeat_interval: float = 3.0
    enable_auto_commit: bool = True
    auto_commit_interval: float = 5.0
    check_crcs: bool = True
    on_error: str = "raise"
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    binary_type: str = "binary"
    framing: str | None = None
    limits: DecodeLimits = DEFAULT_LIMITS
    request_timeout: float = 30.0
    default_api_timeout: float = 60.0
    metadata_max_age: float = 300.0
    retry_backoff: Callable[[int, float], float] = lambda attempt, random: 0.1
    offset_fetch_highest_version: int = HIGHEST_VERSION
    txn_offset_commit_highest_version: int = HIGHEST_VERSION

    @property
    def is_committed_only(self) -> bool:
        """Whether aborted records, and those of open transactions, are left out."""
        return self.isolation_level is IsolationLevel.READ_COMMITTED
