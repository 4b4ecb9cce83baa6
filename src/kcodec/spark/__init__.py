# SPDX-License-Identifier: Apache-2.0
"""Kafka's log in Spark.

    spark.read.format("kcodec").load(path)     a data source (Spark 4.0 and newer); nothing to register. readStream and
                                               topics of a cluster, too, with the options of format("kafka")
    decode_in_arrow(df, ...)                   over a DataFrame, by mapInArrow: the quickest, on Spark 3.5, too
    decode_partition(iterator, ...)            for rdd.mapPartitions: the slowest, for programs that need tuples
    schema(...)                                the columns of all three
    map_batches(spark, topics, function, ...)  topics of a cluster through a Python function; on Spark 3.5, too
    exactly_once(df, ...)                      a streaming query, or a batch job, to a topic, each row once
    land(spark, topics, path, ...)             topics of a cluster to Parquet files, each record once; on Spark 3.5, too
    landings(path)                             what land() has written to a folder
    offsets_of_checkpoint(path)                where a query of format("kafka") has got to, as startingOffsets

docs/spark.md has the options. pyspark and pyarrow are imported when they are needed, not with this package.
"""

# Not imported late, as the module has the name of the function: whatever imports the module would hide the function.
from kcodec._lazy import lazy_exports
from kcodec.spark.exactly_once import exactly_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kcodec.spark.arrow_functions import decode_in_arrow, decode_partition
    from kcodec.spark.batch_functions import map_batches
    from kcodec.spark.checkpoint import offsets_of_checkpoint
    from kcodec.spark.columns import schema
    from kcodec.spark.landing import LandedFile, Landing, LandingError, land, landings
    from kcodec.spark.planner import DataLossError
    from kcodec.spark.sink_protocol import CheckpointMismatchError, ExactlyOnceError, SinkResult
del TYPE_CHECKING

# Imported at their first use: each streaming query starts a Python, which needs none of them.
_EXPORTS = {
    "CheckpointMismatchError": "kcodec.spark.sink_protocol",
    "DataLossError": "kcodec.spark.planner",
    "ExactlyOnceError": "kcodec.spark.sink_protocol",
    "LandedFile": "kcodec.spark.landing",
    "Landing": "kcodec.spark.landing",
    "LandingError": "kcodec.spark.landing",
    "SinkResult": "kcodec.spark.sink_protocol",
    "decode_in_arrow": "kcodec.spark.arrow_functions",
    "decode_partition": "kcodec.spark.arrow_functions",
    "land": "kcodec.spark.landing",
    "landings": "kcodec.spark.landing",
    "map_batches": "kcodec.spark.batch_functions",
    "offsets_of_checkpoint": "kcodec.spark.checkpoint",
    "schema": "kcodec.spark.columns",
}

__all__ = [
    "CheckpointMismatchError",
    "DataLossError",
    "ExactlyOnceError",
    "LandedFile",
    "Landing",
    "LandingError",
    "SinkResult",
    "decode_in_arrow",
    "decode_partition",
    "exactly_once",
    "land",
    "landings",
    "map_batches",
    "offsets_of_checkpoint",
    "schema",
]

__getattr__, __dir__ = lazy_exports(
    "kcodec.spark", _EXPORTS, ("arrow_functions", "batch_functions", "checkpoint", "columns", "landing")
)
