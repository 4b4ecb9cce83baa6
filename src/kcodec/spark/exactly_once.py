# SPDX-License-Identifier: Apache-2.0
"""`exactly_once`: a Kafka sink whose batches are visible once, whatever fails, to read_committed consumers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from kcodec.spark.sink_protocol import OnNewCheckpoint, SinkResult

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    Partitioner = str | Column | Callable[[int], Column]


@overload
def exactly_once(
    df: DataFrame | DataStreamWriter,
    *,
    topic: str,
    application: str,
    bootstrap_servers: str | Sequence[str],
    partitioner: Partitioner = ...,
    partitions_per_task: int | None = ...,
    transaction_timeout_ms: float = ...,
    on_new_checkpoint: OnNewCheckpoint = ...,
    progress: Literal["group", "topic"] = ...,
    attempts: int = ...,
    version: None = ...,
    **options: Any,
) -> DataStreamWriter: ...
@overload
def exactly_once(
    df: DataFrame,
    *,
    topic: str,
    application: str,
    bootstrap_servers: str | Sequence[str],
    partitioner: Partitioner = ...,
    partitions_per_task: int | None = ...,
    transaction_timeout_ms: float = ...,
    on_new_checkpoint: OnNewCheckpoint = ...,
    progress: Literal["group", "topic"] = ...,
    attempts: int = ...,
    version: int,
    **options: Any,
) -> SinkResult: ...
def exactly_once(
    df: DataFrame | DataStreamWriter,
    *,
    topic: str,
    application: str,
    bootstrap_servers: str | Sequence[str],
    partitioner: Partitioner = "key",
    partitions_per_task: int | None = None,
    transaction_timeout_ms: float = 600_000,
    on_new_checkpoint: OnNewCheckpoint = "refuse",
    progress: Literal["group", "topic"] = "group",
    attempts: int = 4,
    version: int | None = None,
    **options: Any,
) -> DataStreamWriter | SinkResult:
    """Write a streaming DataFrame to a topic so that read_committed consumers see each row once.

        query = (
            exactly_once(df, topic="out", application="copy-orders", bootstrap_servers="localhost:9092")
            .option("checkpointLocation", "/checkpoints/copy-orders")
            .start()
        )

    The number of the batch is committed in the same transaction. After a failure at any time, the next attempt, or the
    next start of the query, finds there whether the batch was committed, and then skips it or writes it again.

    df:           A streaming DataFrame, or its DataStreamWriter (`df.writeStream.queryName(...)`). Its columns are
                  those of Spark's own Kafka sink: value, and optionally key, headers and partition; others are not
                  written.
    topic:        Topic that all rows are written to.
    application:  Name of this query, the same after each restart, for no other query: the transactional id, and the
                  consumer group whose committed offset is the number of the next batch. No consumer joins that group.
    partitioner:  "key": the column `partition`, where it is NULL or missing the key, as Java's producer chooses, and
                  without a key each partition in turn. "column": the column `partition`, which must not be NULL. A
                  Column or SQL text: an int from 0 on. A function: called with the number of partitions of each batch,
                  returns a Column.
    partitions_per_task: Number of Kafka partitions that one task writes. All tasks run at once and take one slot each.
                  None: as few partitions as the free slots allow.
    transaction_timeout_ms: Maximum time to write one batch, in ms; at most the broker's transaction.max.timeout.ms
                  (900,000 by default). Consumers wait at most this long after the driver has died in a batch.
    on_new_checkpoint: What to do if the checkpoint does not continue what was committed. "refuse": raise
                  CheckpointMismatchError. "adopt": continue with the batch of the checkpoint; for one start only.
    progress:     "group": the number of the last batch is the offset of the group, which expires after
                  offsets.retention.minutes without a batch (7 days by default). "topic": also a record in the compacted
                  topic `<application>-progress`, which does not expire and is created if it is missing.
    attempts:     Maximum number of times that a batch is written before the query fails.
    version:      For a DataFrame that is not streaming: write it now, unless this version or a later one was committed
                  before. Versions of an application rise; they may have gaps.
    options:      Those of `kcodec.client.TransactionWriter` (compression_type, sasl_mechanism ...).

    Return a DataStreamWriter to start; with `version` the SinkResult.

    Raise ValueError or TypeError if an argument or the schema is invalid. While the query runs, a batch fails with
    CheckpointMismatchError, ExactlyOnceError (stopped), TransactionTimedOutError (names transaction_timeout_ms),
    AuthorizationError, ValueError for a row that cannot be written, or what its last attempt failed with.

    Needs Spark 3.5 or later without dynamic allocation, and brokers from Kafka 2.8 on. Permissions: WRITE on the
    transactional id `application`, READ on the group `application`, READ, WRITE and DESCRIBE on the topic.
    """
    from kcodec.spark.sink_query import query_writer, sink_of, write_version  # which import the clients

    sink = sink_of(
        {"bootstrap_servers": bootstrap_servers, **options},
        partitioner,
        partitions_per_task,
        application=application,
        topic=topic,
        transaction_timeout_ms=transaction_timeout_ms,
        on_new_checkpoint=on_new_checkpoint,
        progress=progress,
        attempts=attempts,
    )
    return query_writer(df, sink) if version is None else write_version(df, sink, version)
