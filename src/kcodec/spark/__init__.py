# SPDX-License-Identifier: Apache-2.0
"""Kafka topics and log files in Spark.

    spark.read.format("kcodec").load(path)     a data source (Spark 4.0 and newer) that needs no registration. It also
                                               reads topics, with the options of format("kafka"), and has readStream,
                                               write and writeStream
    decode_in_arrow(df, ...)                   decodes a column of a DataFrame by mapInArrow; the fastest way, also on
                                               Spark 3.5
    decode_partition(iterator, ...)            for rdd.mapPartitions; the slowest way, for programs that need tuples
    schema(...)                                the columns of the three rows above
    map_batches(spark, topics, function, ...)  applies a Python function to the records of topics, also on Spark 3.5
    exactly_once(df, ...)                      writes a streaming query or a batch job to a topic, each row once
    land(spark, topics, path, ...)             writes topics to Parquet files, each record once, also on Spark 3.5
    landings(path)                             what land() has written to a folder
    offsets_of_checkpoint(path)                the position of a query of format("kafka"), for startingOffsets

docs/spark.md links to the tables of options. pyspark and pyarrow are imported when a function needs them.
"""

from kcodec._lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kcodec.spark.arrow_functions import decode_in_arrow, decode_partition
    from kcodec.spark.batch_functions import map_batches
    from kcodec.spark.checkpoint import offsets_of_checkpoint
    from kcodec.spark.columns import schema
    from kcodec.spark.landing import LandedFile, Landing, LandingError, land, landings
    from kcodec.spark.planner import DataLossError
    from kcodec.spark.sink import exactly_once
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
    "exactly_once": "kcodec.spark.sink",
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
