# SPDX-License-Identifier: Apache-2.0
"""The options of a bounded reading beside those of every client: a consumer's, as far as they need no group."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar

from kcodec._fast import COLUMNS, schema_of
from kcodec.cluster.list_offsets import isolation_of
from kcodec.constants import IsolationLevel
from kcodec.consumer.settings import DEFAULT_COLUMNS, ConsumerSettings
from kcodec.limits import DEFAULT_LIMITS, DecodeLimits
from kcodec.network.options import ClientOptions, OptionSet, refuse_unknown
from kcodec.security import SECURITY_OPTIONS


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadOptions(OptionSet):
    """Times are milliseconds, sizes bytes; names are those of Java's consumer where it has them.

    isolation_level:       "read_committed", or "read_uncommitted".
    columns, binary_type, framing, limits: as `kcodec.decode` has them, with the columns topic and partition.
    on_error:            "raise", or "skip": batches that cannot be read are passed over and counted.
    check_crcs:            verify checksums.
    max_partition_fetch_bytes, fetch_max_bytes: of one answer; a larger batch comes whole, up to fetch_max_bytes from
                           brokers that cut it.
    fetch_ahead_max_bytes: what is fetched and not taken yet. Less than a consumer's: nobody waits for the first record,
                           and this is what is held of a topic of any length.
    fetch_max_wait_ms:     how long a broker that has nothing is given to find something before that is believed.
    client_rack:           where the reader is (KIP-392), for brokers that want to know.
    """

    MINIMUM: ClassVar[dict[str, float]] = {
        "fetch_max_bytes": 1,
        "fetch_max_wait_ms": 0,
        "max_partition_fetch_bytes": 1,
        "fetch_ahead_max_bytes": 1,
    }
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {"on_error": ("raise", "skip")}
    RENAMED: ClassVar[dict[str, str]] = {"on_corrupt": "on_error"}

    isolation_level: IsolationLevel | str = IsolationLevel.READ_COMMITTED
    columns: Iterable[str] = DEFAULT_COLUMNS
    binary_type: str = "binary"
    framing: str | None = None
    limits: DecodeLimits = DEFAULT_LIMITS
    on_error: str = "raise"
    check_crcs: bool = True
    max_partition_fetch_bytes: int = 1_048_576
    fetch_max_bytes: int = 52_428_800
    fetch_ahead_max_bytes: int = 33_554_432
    fetch_max_wait_ms: float = 500
    client_rack: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = (self.columns,) if isinstance(self.columns, str) else tuple(self.columns)
        for name in columns:
            if name not in COLUMNS:
                raise ValueError(f"unknown column {name!r}; possible: {', '.join(COLUMNS)}")
        object.__setattr__(self, "columns", columns)
        schema_of(columns, self.binary_type, False, self.framing)  # the core's own check
        isolation_of(self.isolation_level)

    def settings(self, client: ClientOptions) -> ConsumerSettings:
        """What the flows are told."""
        return ConsumerSettings(
            isolation_level=isolation_of(self.isolation_level),
            columns=tuple(self.columns),
            binary_type=self.binary_type,
            framing=self.framing,
            limits=self.limits,
            on_error=self.on_error,
            check_crcs=self.check_crcs,
            max_partition_fetch_bytes=self.max_partition_fetch_bytes,
            fetch_max_bytes=self.fetch_max_bytes,
            fetch_ahead_max_bytes=self.fetch_ahead_max_bytes,
            fetch_max_wait=self.fetch_max_wait_ms / 1000,
            client_rack=self.client_rack,
            request_timeout=client.request_timeout_ms / 1000,
            default_api_timeout=client.default_api_timeout_ms / 1000,
            retry_backoff=client.retry_backoff,
        )


def take_options(given: dict[str, Any]) -> tuple[ReadOptions, ClientOptions]:
    """A reading's options and its client's out of what the user gave; TypeError for one that neither has."""
    left = dict(given)
    own = ReadOptions.take(left)
    client_names = ClientOptions.names() | SECURITY_OPTIONS
    refuse_unknown(
        {name: value for name, value in left.items() if name not in client_names},
        ReadOptions.names() | client_names,
        "read_topic",
    )
    return own, ClientOptions.take(left)
