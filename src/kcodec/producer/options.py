# SPDX-License-Identifier: Apache-2.0
"""The options of a producer, checked as Java's producer checks them (ProducerConfig)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from kcodec._fast import RecordBatchBuilder
from kcodec.errors import BufferFullError
from kcodec.network.options import ClientOptions, OptionSet, refuse_unknown
from kcodec.network.preload import load_codec
from kcodec.producer.settings import ProducerSettings
from kcodec.security import SECURITY_OPTIONS

if TYPE_CHECKING:
    pass

Serializer = Callable[[Any], "bytes | None"]
DEFAULT_DELIVERY_TIMEOUT_MS = 120_000
_ACKS = {0: 0, 1: 1, -1: -1, "0": 0, "1": 1, "-1": -1, "all": -1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProducerOptions(OptionSet):
    """Times are milliseconds, sizes bytes; names and defaults are those of Java's producer (Kafka 4).

    acks:               "all" (or -1): a record is acknowledged once all in-sync replicas have it; 1: once the leader
                        has it; 0: brokers send no response, so errors and offsets are unknown.
    enable_idempotence: Number the batches, so that a broker drops repeats and refuses gaps; needs acks="all", retries,
                        and at most 5 requests in flight.
    transactional_id:   Id of a transactional producer: one for each live instance, the same after a restart.
    transaction_timeout_ms: Time after which the coordinator aborts an open transaction.
    compression_type:   "none", "gzip", "snappy", "lz4" or "zstd".
    compression_level:  Level of the codec, with Kafka's ranges (KIP-390); None: the codec's default.
    linger_ms:          Time that a batch which is not full waits for more records.
    batch_size:         Maximum bytes of a batch before compression; a larger record gets a batch alone.
    buffer_memory:      Maximum bytes of records that are not acknowledged, in whole batches; above it `send` waits.
    max_block_ms:       Maximum time that `send` waits for buffer space, and a record for its topic's metadata.
    max_request_size:   Maximum bytes of a record, and of all batches of one request together; a larger record is an
                        error.
    max_in_flight_requests_per_connection: Maximum number of requests to a broker without a response.
    retries, delivery_timeout_ms: A record is sent again until one of them is used up. The time counts from `send`, is
                        120,000 by default, and is at least linger_ms + request_timeout_ms.
    partitioner_adaptive_partitioning_enable, partitioner_ignore_keys: For records without a key, prefer partitions
                        with short queues; ignore keys as well (KIP-794).
    key_serializer, value_serializer: Functions that turn the arguments of `send` into bytes or None.
    """

    MINIMUM: ClassVar[dict[str, float]] = {
        "transaction_timeout_ms": 1,
        "linger_ms": 0,
        "batch_size": 0,
        "buffer_memory": 1,
        "max_block_ms": 0,
        "max_request_size": 1,
        "max_in_flight_requests_per_connection": 1,
        "retries": 0,
        "delivery_timeout_ms": 1,
    }
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {"compression_type": ("none", "gzip", "snappy", "lz4", "zstd")}

    acks: int | str = "all"
    enable_idempotence: bool = True
    transactional_id: str | None = None
    transaction_timeout_ms: float = 60_000
    compression_type: str = "none"
    compression_level: int | None = None
    linger_ms: float = 5
    batch_size: int = 16_384
    buffer_memory: int = 33_554_432
    max_block_ms: float = 60_000
    max_request_size: int = 1_048_576
    max_in_flight_requests_per_connection: int = 5
    retries: int = 2_147_483_647
    delivery_timeout_ms: float | None = None
    partitioner_adaptive_partitioning_enable: bool = True
    partitioner_ignore_keys: bool = False
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.acks not in _ACKS:
            raise ValueError(f'acks must be 0, 1 or "all", not {self.acks!r}')
        if self.transactional_id is not None and not (isinstance(self.transactional_id, str) and self.transactional_id):
            raise ValueError(f"transactional_id must be a string that is not empty, got {self.transactional_id!r}")
        if self.transactional_id is not None and not self.enable_idempotence:
            raise ValueError("enable_idempotence=False is not possible with a transactional_id")
        if self.enable_idempotence:
            self._check_idempotence()
        # The codec's own check: a package that is missing, a level it does not have.
        RecordBatchBuilder(
            compression=self.compression_type,  # type: ignore[arg-type]
            compression_level=self.compression_level,
            timestamp=0,
        ).close()
        load_codec(self.compression_type)

    def _check_idempotence(self) -> None:
        """As ProducerConfig.postProcessAndValidateIdempotenceConfigs, for settings made by hand."""
        remedy = "; or set enable_idempotence=False"
        if _ACKS[self.acks] != -1:
            raise ValueError(f'acks must be "all" for an idempotent producer, not {self.acks!r}{remedy}')
        if self.retries == 0:
            raise ValueError(f"retries must be at least 1 for an idempotent producer{remedy}")
        most = self.max_in_flight_requests_per_connection
        if most > 5:
            reason = "a broker remembers five batches of a producer in a partition"
            raise ValueError(
                f"max_in_flight_requests_per_connection must be at most 5 for an idempotent producer, not {most}:"
                f" {reason}{remedy}"
            )

    def serialize(self, key: Any, value: Any) -> tuple[Any, Any]:
        """Return what the serializers make of a key and a value."""
        if self.key_serializer is not None:
            key = self.key_serializer(key)
        if self.value_serializer is not None:
            value = self.value_serializer(value)
        return key, value

    def settings(self, client: ClientOptions) -> ProducerSettings:
        """Return the settings of the flows. Raise ValueError if the deadline of a record is below that of a request."""
        least = self.linger_ms + client.request_timeout_ms
        delivery_timeout_ms = self.delivery_timeout_ms
        if delivery_timeout_ms is None:
            delivery_timeout_ms = max(DEFAULT_DELIVERY_TIMEOUT_MS, least)
        if delivery_timeout_ms < least:
            raise ValueError(
                f"delivery_timeout_ms {delivery_timeout_ms:g} must be at least linger_ms + request_timeout_ms"
                f" ({least:g})"
            )
        return ProducerSettings(
            acks=_ACKS[self.acks],
            compression_type=self.compression_type,
            compression_level=self.compression_level,
            linger=self.linger_ms / 1000,
            batch_size=self.batch_size,
            buffer_memory=self.buffer_memory,
            max_block=self.max_block_ms / 1000,
            max_request_size=self.max_request_size,
            max_in_flight=self.max_in_flight_requests_per_connection,
            retries=self.retries,
            delivery_timeout=delivery_timeout_ms / 1000,
            request_timeout=client.request_timeout_ms / 1000,
            retry_backoff=client.retry_backoff,
            adaptive_partitioning=self.partitioner_adaptive_partitioning_enable,
            ignore_keys=self.partitioner_ignore_keys,
        )


def take_options(given: dict[str, Any]) -> tuple[ProducerOptions, ClientOptions]:
    """A producer's options and its client's from the given options. Raise TypeError for an unknown one."""
    left = dict(given)
    own = ProducerOptions.take(left)
    client_names = ClientOptions.names() | SECURITY_OPTIONS
    refuse_unknown(
        {name: value for name, value in left.items() if name not in client_names},
        ProducerOptions.names() | client_names,
        "a producer",
    )
    client = ClientOptions.take(left)
    own.settings(client)
    return own, client


def buffer_full(options: ProducerOptions, why: str | None) -> BufferFullError:
    """Return the error of a send for which no buffer space came free in time. why: what is known of the cause."""
    text = f"buffer_memory ({options.buffer_memory} bytes) was full for max_block_ms ({options.max_block_ms:g})"
    if why:
        return BufferFullError(f"{text}, as records are not acknowledged: {why}")
    advice = "records are sent faster than brokers acknowledge them; send more slowly, or increase one of the two"
    return BufferFullError(f"{text}: {advice}")
