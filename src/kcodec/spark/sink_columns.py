# SPDX-License-Identifier: Apache-2.0
"""The columns that a sink takes: those of Spark's own Kafka sink (``KafkaWriter.validateQuery``).

| column      | type                                        | if it is missing, or NULL in a row              |
| ----------- | ------------------------------------------- | ----------------------------------------------- |
| `value`     | string or binary                            | missing: an error; NULL: a tombstone            |
| `key`       | string or binary                            | no key                                          |
| `topic`     | string                                      | the option `topic`; without both an error       |
| `partition` | int                                         | the key decides, as Java's producer does        |
| `headers`   | array<struct<key:string,value:binary>>      | no headers                                      |

Names are case-sensitive and other columns are not written, as in Spark's sink, so a DataFrame that was read from Kafka
can be written without a change. The option `topic` overrides the column of this name, even if it is not a string.

    columns = SinkColumns.of(df.schema, topic="orders")          # on the driver; raises ValueError
    for batch in batches:                                        # in a task: pickles, needs pyarrow only
        for rows in columns.by_topic(batch):
            producer.send_arrow(rows.topic, rows.table)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kcodec.errors import EncodeError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

SENT_COLUMNS = ("key", "value", "headers", "partition")
SINK_COLUMNS = (*SENT_COLUMNS, "topic")
TYPES = {
    "key": "string or binary",
    "value": "string or binary",
    "headers": "array<struct<key:string,value:binary>>",
    "partition": "int",
    "topic": "string",
}


class TopicRows(NamedTuple):
    """Rows of one batch for one topic.

    table: Columns of `send_arrow`, in the order of the batch.
    rows:  Number of each row in the batch; None if these are all of its rows.
    """

    topic: str
    table: pa.RecordBatch
    rows: Any

    def row_in_batch(self, row: int) -> int:
        """Return the number that a row of `table` has in the batch."""
        return row if self.rows is None else int(self.rows[row])


@dataclass(frozen=True)
class SinkColumns:
    """The positions of the columns of a sink in a schema. They can be pickled.

    positions: Position in the schema of each column that it contains, by name.
    topic:     Topic of all rows; None: the column `topic` has it.
    unused:    Names of the columns that are not written.
    """

    positions: tuple[tuple[str, int], ...]
    topic: str | None
    unused: tuple[str, ...]

    @classmethod
    def of(cls, schema: StructType, topic: str | None = None) -> SinkColumns:
        """Find the columns of a sink in the schema of a DataFrame.

        Raise ValueError where Spark's own sink refuses the schema: without `value`, without `topic` if the argument is
        None, and for a column of another type.
        """
        names = [field.name for field in schema.fields]
        positions = {name: names.index(name) for name in SINK_COLUMNS if name in names}
        if topic is not None:
            topic = topic.strip()
            positions.pop("topic", None)
        elif "topic" not in positions:
            raise ValueError("no topic is given: set the option 'topic', or add a column topic (string) to the data")
        if "value" not in positions:
            folded = [name for name in names if name.lower() == "value"]
            hint = f" (names are compared exactly: rename {folded[0]!r})" if folded else ""
            raise ValueError(f"column 'value' is missing{hint}; the data has {', '.join(names) or 'no columns'}")
        for name, position in positions.items():
            kind = schema.fields[position].dataType
            if not _is_allowed(name, kind):
                raise ValueError(
                    f"column {name!r} is {kind.simpleString()}: it must be {TYPES[name]}; convert it, for example with "
                    f"{_conversion(name, kind)}"
                )
        used = set(positions.values())
        unused = tuple(name for position, name in enumerate(names) if position not in used)
        return cls(tuple(positions.items()), topic, unused)

    def by_topic(self, batch: pa.RecordBatch) -> Iterator[TopicRows]:
        """Yield the rows of a batch, topic by topic, as `Producer.send_arrow` takes them; rows keep their order.

        Raise EncodeError with the number of the first row without a topic, before anything is yielded.
        """
        import pyarrow as pa

        places = dict(self.positions)
        names = [name for name in SENT_COLUMNS if name in places]
        table = pa.RecordBatch.from_arrays([batch.column(places[name]) for name in names], names=names)
        if self.topic is not None:
            yield TopicRows(self.topic, table, None)
        else:
            yield from _split(table, batch.column(places["topic"]))


def _is_allowed(name: str, kind: DataType) -> bool:
    """Apply the rule of Spark's sink: types are equal but for nullability and the case of names inside."""
    from pyspark.sql import types

    if name in ("key", "value"):
        return kind in (types.StringType(), types.BinaryType())
    if name == "headers":
        if not isinstance(kind, types.ArrayType) or not isinstance(kind.elementType, types.StructType):
            return False
        found = [(field.name.lower(), field.dataType) for field in kind.elementType.fields]
        return found == [("key", types.StringType()), ("value", types.BinaryType())]
    return bool(kind == (types.IntegerType() if name == "partition" else types.StringType()))


def _conversion(name: str, kind: DataType) -> str:
    """Return an expression of SQL that converts a column of another type."""
    if name in ("key", "value"):
        is_nested = kind.typeName() in ("struct", "array", "map", "variant")
        return f"to_json({name})" if is_nested else f"CAST({name} AS STRING)"
    if name != "headers":
        return f"CAST({name} AS {TYPES[name].upper()})"
    if kind.typeName() not in ("array", "map"):
        return "array(struct('name' AS key, CAST(headers AS BINARY) AS value))"
    return f"CAST({'map_entries(headers)' if kind.typeName() == 'map' else name} AS {TYPES[name]})"


def _split(table: pa.RecordBatch, topics: pa.Array) -> Iterator[TopicRows]:
    import numpy

    if not len(table):
        return
    if topics.null_count:
        row = int(numpy.asarray(topics.is_null()).argmax())
        raise EncodeError("column 'topic' is NULL; set the option 'topic' to have one topic for all rows", row=row)
    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield TopicRows(names[0], table, None)
        return
    codes = encoded.indices.to_numpy()
    order = numpy.argsort(codes, kind="stable")
    ends = numpy.cumsum(numpy.bincount(codes, minlength=len(names)))
    for name, rows in zip(names, numpy.split(order, ends[:-1]), strict=True):
        yield TopicRows(name, table.take(rows), rows)
