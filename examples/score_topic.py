# SPDX-License-Identifier: Apache-2.0
"""A model applied to every record of a topic:  python examples/score_topic.py localhost:9092 payments

Values are JSON, such as {"amount": 120.5, "hour": 3}. Records are decoded and scored in Spark's Python workers; only
offsets and scores reach the JVM. The model is sent to the workers with the function, once for each task.
"""

import os
import sys
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyspark.sql import DataFrame, SparkSession

from kcodec.spark import map_batches

SCORES = "partition int, offset bigint, score double"


class Model:
    """A logistic regression; any object that can be pickled does."""

    def __init__(self, weights: list[float], bias: float) -> None:
        self.weights, self.bias = np.array(weights), bias

    def predict(self, features: np.ndarray) -> np.ndarray:
        logits = features @ self.weights + self.bias
        return np.asarray(1 / (1 + np.exp(-logits)))


def scores(spark: SparkSession, servers: str, topic: str, model: Model) -> DataFrame:
    """The score of each record that has a value, next to its position."""

    def score(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            batch = batch.filter(pc.is_valid(batch["value"]))  # a NULL value is a deletion (tombstone)
            if not batch.num_rows:
                continue
            lines = pa.py_buffer(b"\n".join(batch["value"].to_pylist()))
            fields = pyarrow.json.read_json(pa.BufferReader(lines))
            features = np.column_stack([fields["amount"].to_numpy(), fields["hour"].to_numpy()])
            columns = [batch["partition"], batch["offset"], pa.array(model.predict(features))]
            yield pa.record_batch(columns, names=["partition", "offset", "score"])

    columns = ["value", "partition", "offset"]  # others are not decoded
    return map_batches(spark, topic, score, SCORES, columns=columns, bootstrap_servers=servers)


def main(servers: str, topic: str) -> None:
    # Tasks must run in the Python that has kcodec.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("scores").getOrCreate()
    found = scores(spark, servers, topic, Model([0.02, -0.3], -1.0))
    found.where("score > 0.9").show()


if __name__ == "__main__":
    main(*sys.argv[1:])
