# SPDX-License-Identifier: Apache-2.0
"""The options of a bounded read in addition to those of every client: a consumer's, without those of groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from kcodec.arguments import check_conversions
from kcodec.cluster.list_offsets import isolation_of
from kcodec.constants import IsolationLevel
from kcodec.consumer.options import DEFAULT_COLUMNS, ConsumerSettings, check_fetch_wait, checked_columns
from kcodec.limits import DEFAULT_LIMITS, DecodeLimits
from kcodec.network.options import ClientConfig, take_client_options
from kcodec.options import Deserializer, OptionSet, option, settings_of

#: The columns of Spark's own Kafka source, in its order.
SPARK_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestamp_type")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadTopicConfig(OptionSet):
    """The options of `read_topic`, `read_ranges` and `scan_topic`, named as those of Java's consumer where it has
    them."""

    isolation_level: IsolationLevel | Literal["read_committed", "read_uncommitted"] = option(
        IsolationLevel.READ_COMMITTED
    )
    """Which records the call returns. "read_committed": without the records of aborted and open transactions.
    "read_uncommitted": all records."""
    columns: Iterable[str] = option(DEFAULT_COLUMNS)
    """Columns of the result: names from `kcodec.COLUMNS`, and with `framing` also key_schema_id and value_schema_id.
    With `framing`, the default includes these two."""
    binary_type: Literal["binary", "large_binary", "binary_view"] = option("binary")
    """Arrow type of keys and values: "binary", "large_binary" or "binary_view"."""
    framing: Literal["confluent"] | None = option(None)
    """"confluent": separate the schema ids of Confluent's serializers from keys and values, as in `kcodec.decode`."""
    limits: DecodeLimits = option(DEFAULT_LIMITS)
    """Limits of the size of a batch, a `kcodec.DecodeLimits`."""
    on_error: str = option("raise", choices=("raise", "skip"), deprecated="on_corrupt")
    """What to do with a batch that cannot be read. "raise": raise an error. "skip": skip the batch and count it."""
    check_crcs: bool = option(True)
    """Whether kcodec checks the CRC of each batch."""
    max_partition_fetch_bytes: int = option(1_048_576, minimum=1)
    """Maximum size of the data of one partition in a fetch response. If the first batch is larger, the response
    contains this whole batch."""
    fetch_max_bytes: int = option(52_428_800, minimum=1)
    """Maximum size of a fetch response. If the first batch is larger, the response contains this whole batch."""
    fetch_ahead_max_bytes: int = option(33_554_432, minimum=1)
    """Maximum size of all fetch responses that are requested, or received and not yet returned."""
    fetch_max_wait_ms: float = option(500, minimum=0)
    """Maximum time that a broker waits for records before it responds."""
    key_deserializer: Deserializer | None = option(None)
    """Function that converts the key of a record from bytes, for `rows()`. Keys of None are not passed to it. If it
    fails, `rows()` raises a DeserializationError, or skips the record with on_error="skip"."""
    value_deserializer: Deserializer | None = option(None)
    """Function that converts the value of a record from bytes, for `rows()`, as key_deserializer does for the key."""
    client_rack: str = option("")
    """Rack in which the program runs. If the brokers allow it, kcodec reads from a replica in this rack (KIP-392)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "columns", checked_columns(self.columns, self.binary_type, self.framing))
        isolation_of(self.isolation_level)
        check_conversions("bytes", key_deserializer=self.key_deserializer, value_deserializer=self.value_deserializer)
        if (self.key_deserializer or self.value_deserializer) and "offset" not in self.columns:
            raise ValueError("a deserializer needs the column 'offset' for its errors: add it to columns=")

    def settings(self, client: ClientConfig) -> ConsumerSettings:
        """Return the settings of the flows. Raise ValueError if the time of a fetch is not below that of a request."""
        check_fetch_wait(self.fetch_max_wait_ms, client)
        return settings_of(
            ConsumerSettings,
            self,
            client,
            bootstrap_servers=",".join(map(str, client.addresses)),
            isolation_level=isolation_of(self.isolation_level),
        )


#: Names of the arguments of a function that are not options, which an error suggests for a similar unknown option.
ARGUMENTS = {
    "read_topic": {"partitions", "start", "end", "max_rows"},
    "read_ranges": {"spark_layout", "on_missing"},
}


def take_options(given: Mapping[str, Any]) -> tuple[ReadTopicConfig, ClientConfig]:
    """Return the options of a read and those of its client. Raise TypeError for an unknown option."""
    left = dict(given)
    own = ReadTopicConfig.take(left)
    return own, take_client_config(left, "read_topic")


def take_client_config(left: dict[str, Any], what: str) -> ClientConfig:
    """Return the options of the client of `what`, from the options that `what` does not have itself. Raise TypeError
    for an unknown option."""
    return take_client_options(left, ReadTopicConfig.names() | ARGUMENTS.get(what, set()), what)
