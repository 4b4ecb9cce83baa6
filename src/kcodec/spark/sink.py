# SPDX-License-Identifier: Apache-2.0
"""`exactly_once`: a Kafka sink that shows each row to read_committed consumers exactly once, even after failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from kcodec.arguments import suggesting

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from kcodec.spark.sink_protocol import OnNewCheckpoint, SinkResult

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
@suggesting
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

    Each micro-batch is written in one Kafka transaction, which also commits the number of the batch. After a failure,
    the next attempt or the next start of the query reads that number. It then skips the batch if it was committed, and
    writes it again otherwise.

    df:           A streaming DataFrame, or its DataStreamWriter (`df.writeStream.queryName(...)`). Its columns are
                  those of Spark's own Kafka sink: value, and optionally key, headers and partition. Other columns are
                  not written.
    topic:        Topic that all rows are written to.
    application:  Name of this query. It must stay the same after a restart, and no other query may use it, even for
                  another topic. Only jobs with `version` may use one name for several topics. It is the
                  transactional id, and the consumer group whose committed offset is the number of the next batch. Do
                  not use it as the group.id of a consumer.
    partitioner:  How the partition of a row is chosen.
                  - "key": by the column `partition`. If it is NULL or missing, by the key as Java's producer chooses.
                    Rows without a key go to each partition in turn.
                  - "column": by the column `partition`, which must not be NULL.
                  - A Column or SQL text: an int that is 0 or greater.
                  - A function that is called for each batch with the number of partitions, and returns a Column.
    partitions_per_task: Number of Kafka partitions that one task writes. All tasks run at the same time, and each needs
                  one free slot. None: one task for each partition, but at most as many tasks as the cluster has slots.
                  Slots that other jobs use are included.
    transaction_timeout_ms: Maximum time to write one batch, in ms. The limit is transaction.max.timeout.ms of the
                  broker (900,000 by default). If the driver dies during a batch, consumers wait at most this long.
    on_new_checkpoint: What to do if the checkpoint does not continue what was committed. "refuse": raise
                  CheckpointMismatchError. "adopt": continue with the batch of the checkpoint. Use "adopt" for one start
                  only.
    progress:     Where the number of the last batch is stored. "group": as the committed offset of the group, which
                  expires after offsets.retention.minutes without a batch (7 days by default). "topic": also as a record
                  in the compacted topic `<application>-progress`, which does not expire. The topic is created if it is
                  missing.
    attempts:     Maximum number of times that a batch is written before the query fails. If a broker refuses
                  credentials that a provider has returned, the provider is called again and the batch is repeated once
                  more, which is not counted.
    version:      Number of this write, for a DataFrame that is not streaming. The DataFrame is written now, unless this
                  version or a later one was committed before. Versions of an application must increase and can have
                  gaps.
    options:      Options of `kcodec.client.TransactionWriter` (compression_type, sasl_mechanism ...).

    Return a DataStreamWriter to start. With `version`, return the SinkResult.

    Raise ValueError or TypeError if an argument or the schema is invalid. While the query runs, a batch fails with
    - CheckpointMismatchError if the checkpoint does not match what was committed;
    - ExactlyOnceError if another attempt cannot help, for example because the callback was interrupted. With `version`,
      Ctrl-C in the main thread raises KeyboardInterrupt, after the Spark job was cancelled and the transaction aborted;
    - TransactionTimedOutError if writing took longer than transaction_timeout_ms;
    - AuthorizationError if a permission is missing;
    - ValueError if a row cannot be written;
    - the error of the last attempt otherwise.

    Needs Spark 3.5 or later without dynamic allocation, and brokers of Kafka 2.8 or later. Permissions: WRITE on the
    transactional id `application`, READ on the group `application`, and READ and WRITE on the topic.
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
