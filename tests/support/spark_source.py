# SPDX-License-Identifier: Apache-2.0
"""Spark's own Kafka source, its classes called in the JVM of a session: the planner's results are compared with it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, IllegalArgumentException

from kcodec.offsets import OffsetRange, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JARS = Path(__file__).resolve().parent.parent.parent / ".cache" / "spark-kafka"


class SparkSource:
    """The classes of ``org.apache.spark.sql.kafka010``."""

    def __init__(self, spark: SparkSession) -> None:
        assert list(JARS.glob("spark-sql-kafka-*.jar")), "the jars of Spark's Kafka source are missing: run `make jars`"
        assert spark._jvm is not None
        self._jvm: Any = spark._jvm
        self._source = self._jvm.org.apache.spark.sql.kafka010
        self._convert = self._jvm.scala.jdk.javaapi.CollectionConverters

    def cut(self, ranges: Iterable[OffsetRange], options: Mapping[str, str]) -> list[OffsetRange]:
        """KafkaOffsetRangeCalculator.getRanges."""
        given = self._jvm.java.util.ArrayList()
        for each in ranges:
            partition = self._jvm.org.apache.kafka.common.TopicPartition(each.topic, each.partition)
            given.append(self._source.KafkaOffsetRange(partition, each.start, each.end, self._jvm.scala.Option.empty()))
        calculator = self._source.KafkaOffsetRangeCalculator.apply(self._case_insensitive(options))
        no_executors = self._convert.asScala(self._jvm.java.util.ArrayList()).toSeq()
        found = calculator.getRanges(self._convert.asScala(given).toSeq(), no_executors)
        return [
            OffsetRange(
                one.topicPartition().topic(), one.topicPartition().partition(), one.fromOffset(), one.untilOffset()
            )
            for one in self._convert.asJava(found)
        ]

    def _case_insensitive(self, options: Mapping[str, str]) -> Any:
        return self._jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(dict(options))

    def refused_by_writer(self, frame: DataFrame, topic: str | None) -> str | None:
        """KafkaWriter.validateQuery: its error for the schema of a DataFrame; None if it accepts that."""
        option = self._jvm.scala.Option.apply(topic if topic is None else topic.strip())
        try:
            self._source.KafkaWriter.validateQuery(frame._jdf.queryExecution().analyzed().output(), option)
        except AnalysisException as error:
            return str(error)
        return None

    def partition_offsets(self, text: str) -> dict[TopicPartition, int] | None:
        """JsonUtils.partitionOffsets; None where it refuses the text."""
        try:
            return self._offsets(self._source.JsonUtils.partitionOffsets(text))
        except IllegalArgumentException:
            return None

    def partitions(self, text: str) -> list[TopicPartition] | None:
        """JsonUtils.partitions; None where it refuses the text."""
        try:
            found = self._source.JsonUtils.partitions(text)
        except IllegalArgumentException:
            return None
        return [TopicPartition(one.topic(), one.partition()) for one in found]

    def _offsets(self, found: Any) -> dict[TopicPartition, int]:
        each = self._convert.asJava(found)
        return {TopicPartition(key.topic(), key.partition()): each[key] for key in each}

    def scala_offsets(self, offsets: Mapping[TopicPartition, int]) -> Any:
        """A Map of the Scala library."""
        grouped: dict[str, dict[str, int]] = {}
        for partition, offset in offsets.items():
            grouped.setdefault(partition.topic, {})[str(partition.partition)] = offset
        return self._source.JsonUtils.partitionOffsets(json.dumps(grouped))

    def limit(self, options: Mapping[str, str], side: str, default: str) -> str:
        """KafkaSourceProvider.getKafkaOffsetRangeLimit, as text; the class of its error, where there is one."""
        folded = {name.lower(): value for name, value in options.items()}
        scala = self._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(folded)
        kind = getattr(self._jvm.org.apache.spark.sql.catalyst.util, "CaseInsensitiveMap$")
        given = getattr(kind, "MODULE$").apply(scala)
        names = (f"{side}timestamp", f"{side}offsetsbytimestamp", f"{side}offsets")
        fallback = getattr(getattr(self._source, f"{default.title()}OffsetRangeLimit$"), "MODULE$")
        try:
            return str(self._source.KafkaSourceProvider.getKafkaOffsetRangeLimit(given, *names, fallback).toString())
        except IllegalArgumentException:
            return "IllegalArgumentException"

    def rate_limit(
        self, limit: int, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """KafkaMicroBatchStream.rateLimit, which is private and needs nothing of the stream."""
        kind = self._jvm.java.lang.Class.forName("org.apache.spark.sql.kafka010.KafkaMicroBatchStream")
        unsafe = self._jvm.java.lang.Class.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe")
        unsafe.setAccessible(True)
        stream = unsafe.get(None).allocateInstance(kind)
        (method,) = (one for one in kind.getDeclaredMethods() if one.getName() == "rateLimit")
        method.setAccessible(True)
        arguments = self._jvm.java.util.ArrayList()
        for one in (limit, self.scala_offsets(start), self.scala_offsets(end)):
            arguments.append(one)
        return self._offsets(method.invoke(stream, arguments.toArray()))
