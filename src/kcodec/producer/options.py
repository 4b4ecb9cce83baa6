# SPDX-License-Identifier: Apache-2.0
"""The options of a producer. They are checked as Java's producer checks them (ProducerConfig)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from typing import Any, Literal

from kcodec._fast import RecordBatchBuilder
from kcodec.arguments import check_conversions
from kcodec.errors import BufferFullError
from kcodec.network.options import ClientConfig, take_client_options
from kcodec.network.preload import load_codec
from kcodec.options import OptionSet, PartitionFunction, Serializer, option, settings_of
from kcodec.quantities import count_text, number_text

DEFAULT_DELIVERY_TIMEOUT_MS = 120_000
#: `linger_ms` is the longest time that a record waits for others (Kafka: linger.ms), and encoding and sending a batch
#: take some of it: the sender begins this many seconds before, a twentieth of `linger_ms` at most.
SENDING_SECONDS, SENDING_SHARE = 0.000_250, 0.05
DEFAULT_PARTITIONER = "murmur2_random"
#: Names of partitioners, which are librdkafka's; `kcodec.producer.partitioner_option` says what they do.
PARTITIONERS = (
    *("murmur2_random", "murmur2", "consistent_random", "consistent"),
    *("fnv1a_random", "fnv1a", "random"),
)
_ACKS = {0: 0, 1: 1, -1: -1, "0": 0, "1": 1, "-1": -1, "all": -1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProducerConfig(OptionSet):
    """The options of a producer. Names and defaults are those of Java's producer (Kafka 4)."""

    acks: int | Literal["all", "-1", "0", "1"] = option("all", librdkafka="request.required.acks")
    """When a record counts as acknowledged. "all" or -1: when all in-sync replicas have the record. 1: when the leader
    has the record. 0: as soon as the record is sent. With 0, brokers send no response, so errors and offsets are
    unknown."""
    enable_idempotence: bool = option(True)
    """Whether the producer numbers its batches. A broker then stores a repeated batch only once, and refuses a batch if
    an earlier batch is missing. True requires acks="all", retries of at least 1, and at most five requests in
    flight."""
    transactional_id: str | None = option(None)
    """Name of a producer that writes transactions. Give each running instance its own name, and the same name again
    after a restart."""
    transaction_timeout_ms: float = option(60_000, minimum=1)
    """Time after which the coordinator aborts an open transaction."""
    compression_type: str = option(
        "none", choices=("none", "gzip", "snappy", "lz4", "zstd"), librdkafka="compression.codec"
    )
    """Codec that compresses the batches."""
    compression_level: int | None = option(None)
    """Compression level of the codec, in the ranges of Kafka (KIP-390). None: the default level of the codec."""
    linger_ms: float = option(5, minimum=0, librdkafka="queue.buffering.max.ms")
    """Time that the producer waits for more records before it sends a batch that is not full. Also the maximum time
    that a full batch waits while two requests to its broker have no response yet. The producer does not wait if the
    program waits for a record (`result`, `send_and_wait`, `await`) and no request is in flight. If many partitions get
    a few records each and the program uses the whole processor, it waits longer, up to 100 ms. With 0, it never
    waits."""
    batch_size: int = option(16_384, minimum=0, unit="bytes")
    """Size before compression at which a batch is full, and is sent. Until it is sent, a full batch accepts more
    records, up to max_request_size. A larger record gets a batch that contains only this record."""
    buffer_memory: int = option(33_554_432, minimum=1, unit="bytes", librdkafka="queue.buffering.max.kbytes")
    """Maximum total size of the batches that brokers have not acknowledged yet. If the buffer is full, `send` waits."""
    max_block_ms: float = option(60_000, minimum=0)
    """Maximum time that `send` waits for free space in the buffer. Also the maximum time that a record waits for the
    metadata of its topic."""
    max_request_size: int = option(1_048_576, minimum=1, unit="bytes", librdkafka="message.max.bytes")
    """Maximum size of a record, and of all batches in a request together. A larger record raises an error."""
    max_in_flight_requests_per_connection: int = option(5, minimum=1, librdkafka="max.in.flight")
    """Maximum number of requests to a broker that have no response yet."""
    retries: int = option(2_147_483_647, minimum=0, librdkafka="message.send.max.retries")
    """Maximum number of times that the producer sends a record again."""
    delivery_timeout_ms: float | None = option(None, minimum=1, librdkafka="message.timeout.ms")
    """Maximum time from the call of `send` until the record is acknowledged or has failed. The time includes retries.
    It must be at least linger_ms + request_timeout_ms. None: 120,000, or this sum if the sum is larger."""
    partitioner: str | PartitionFunction = option(DEFAULT_PARTITIONER, java="partitioner.class")
    """How the partition of a record is chosen if you pass no `partition`. "murmur2_random": by the hash of Java's
    producer; "consistent_random": by CRC-32, the default of librdkafka; "fnv1a_random": by FNV-1a; "random": without
    the key. These choose changing partitions for records without a key. "murmur2", "consistent" and "fnv1a" send
    records without a key to one partition. A function is called with the serialized key or None, the list of all
    partitions, and the list of those that have a leader; it returns the number of one."""
    partitioner_adaptive_partitioning_enable: bool = option(True)
    """Whether records without a key go to partitions with short queues more often (KIP-794)."""
    partitioner_ignore_keys: bool = option(False)
    """Whether the producer ignores the key when it chooses the partition of a record (KIP-794)."""
    key_serializer: Serializer | None = option(None)
    """Function that converts the argument `key` of `send` to bytes or None."""
    value_serializer: Serializer | None = option(None)
    """Function that converts the argument `value` of `send` to bytes or None."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.acks not in _ACKS:
            raise ValueError(f'acks must be 0, 1 or "all", not {self.acks!r}')
        if self.transactional_id is not None and not (isinstance(self.transactional_id, str) and self.transactional_id):
            raise ValueError(f"transactional_id must be a non-empty string, not {self.transactional_id!r}")
        if self.transactional_id is not None and not self.enable_idempotence:
            raise ValueError(
                "a transactional producer needs idempotence: remove enable_idempotence=False or transactional_id"
            )
        self._check_partitioner()
        check_conversions(
            "the argument of send", key_serializer=self.key_serializer, value_serializer=self.value_serializer
        )
        if self.enable_idempotence:
            self._check_idempotence()
        # The codec's own check: a package that is missing, a level it does not have.
        RecordBatchBuilder(
            compression=self.compression_type,  # type: ignore[arg-type]
            compression_level=self.compression_level,
            timestamp=0,
        ).close()
        load_codec(self.compression_type)

    def _check_partitioner(self) -> None:
        if iscoroutinefunction(self.partitioner):
            raise TypeError(
                f"partitioner must be a plain function, not the coroutine function {self.partitioner!r:.100}"
            )
        if not callable(self.partitioner) and self.partitioner not in PARTITIONERS:
            import difflib  # only where a name is wrong

            near = difflib.get_close_matches(str(self.partitioner), PARTITIONERS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"partitioner must be a function or one of {', '.join(PARTITIONERS)}, not {self.partitioner!r:.100}"
                f"{hint}"
            )
        if self.partitioner_ignore_keys and self.partitioner != DEFAULT_PARTITIONER:
            raise ValueError(
                "partitioner_ignore_keys has no effect together with partitioner, because the partitioner itself "
                "decides whether it uses the key; remove one of the two options"
            )

    def _check_idempotence(self) -> None:
        """Check as ProducerConfig.postProcessAndValidateIdempotenceConfigs does, for manually created settings."""
        remedy = "; or set enable_idempotence=False"
        if _ACKS[self.acks] != -1:
            raise ValueError(f'acks must be "all" for an idempotent producer, not {self.acks!r}{remedy}')
        if self.retries == 0:
            raise ValueError(f"retries must be at least 1 for an idempotent producer{remedy}")
        most = self.max_in_flight_requests_per_connection
        if most > 5:
            reason = "a broker keeps the sequence numbers of five batches of a producer in a partition"
            raise ValueError(
                f"max_in_flight_requests_per_connection must be at most 5 for an idempotent producer, not {most}:"
                f" {reason}{remedy}"
            )

    def serialize(self, key: Any, value: Any) -> tuple[Any, Any]:
        """Return the serialized key and value."""
        if self.key_serializer is not None:
            key = self.key_serializer(key)
        if self.value_serializer is not None:
            value = self.value_serializer(value)
        return key, value

    def settings(self, client: ClientConfig) -> ProducerSettings:
        """Return the settings of the flows. Raise ValueError if the timeout of a record is below that of a request."""
        least = self.linger_ms + client.request_timeout_ms
        delivery_timeout_ms = self.delivery_timeout_ms
        if delivery_timeout_ms is None:
            delivery_timeout_ms = max(DEFAULT_DELIVERY_TIMEOUT_MS, least)
        if delivery_timeout_ms < least:
            raise ValueError(
                f"delivery_timeout_ms ({number_text(delivery_timeout_ms)}) must be at least linger_ms + "
                "request_timeout_ms"
                f" ({number_text(least)})"
            )
        linger = self.linger_ms / 1000
        return settings_of(
            ProducerSettings,
            self,
            client,
            linger=linger - min(SENDING_SECONDS, linger * SENDING_SHARE),
            acks=_ACKS[self.acks],
            max_in_flight=self.max_in_flight_requests_per_connection,
            delivery_timeout=delivery_timeout_ms / 1000,
            adaptive_partitioning=self.partitioner_adaptive_partitioning_enable,
            ignore_keys=self.partitioner_ignore_keys,
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProducerSettings:
    """The settings of a producer's flows: the options of the same names, with times in seconds.

    acks:          0, 1 or -1 (all).
    linger:        Seconds after which the sender takes a batch that is not full.
    retry_backoff: Function that returns the seconds before a repeat, from its number (from 0) and a random number below
    1.
    """

    acks: int = -1
    compression_type: str = ProducerConfig.compression_type
    compression_level: int | None = ProducerConfig.compression_level
    linger: float = ProducerConfig.linger_ms / 1000
    batch_size: int = ProducerConfig.batch_size
    buffer_memory: int = ProducerConfig.buffer_memory
    max_block: float = ProducerConfig.max_block_ms / 1000
    max_request_size: int = ProducerConfig.max_request_size
    max_in_flight: int = ProducerConfig.max_in_flight_requests_per_connection
    retries: int = ProducerConfig.retries
    delivery_timeout: float = DEFAULT_DELIVERY_TIMEOUT_MS / 1000
    request_timeout: float = ClientConfig.request_timeout_ms / 1000
    retry_backoff: Callable[[int, float], float] = lambda attempt, random: 0.1
    adaptive_partitioning: bool = ProducerConfig.partitioner_adaptive_partitioning_enable
    ignore_keys: bool = ProducerConfig.partitioner_ignore_keys
    partitioner: str | PartitionFunction = DEFAULT_PARTITIONER


def take_options(given: Mapping[str, Any]) -> tuple[ProducerConfig, ClientConfig]:
    """Return the options of the producer and those of its client. Raise TypeError for an unknown option."""
    left = dict(given)
    own = ProducerConfig.take(left)
    client = take_client_options(left, ProducerConfig.names(), "a producer")
    own.settings(client)
    return own, client


def buffer_full(options: ProducerConfig, why: str | None, acknowledged: int) -> BufferFullError:
    """Return the error of a send that got no buffer space in time.

    why: The cause, if known. acknowledged: Number of batches that were acknowledged meanwhile.
    """
    text = (
        f"buffer_memory ({options.buffer_memory} bytes) was full for max_block_ms ({number_text(options.max_block_ms)})"
    )
    if acknowledged:
        batches = count_text(acknowledged, "batch", "batches")
        return BufferFullError(
            f"{text}: brokers acknowledged {batches} meanwhile, and other calls that waited took the space; "
            "send more slowly, or increase one of the two"
        )
    if why:
        return BufferFullError(f"{text} because records are not acknowledged: {why}")
    advice = "records are sent faster than brokers acknowledge them; send more slowly, or increase one of the two"
    return BufferFullError(f"{text}: {advice}")
