# SPDX-License-Identifier: Apache-2.0
"""The part "encode" of `make bench`: records to batches, from Arrow columns and from rows.

kcodec encodes all records of a blob in one call, and its batches end where aiokafka's do (by max_batch_bytes, the size
of the largest of these). The others fill one builder for each batch. The batches of each are read back and compared
before they are measured.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import bars
import contestants
import floor
import measure
import parts
import pyarrow as pa
import shapes

NAMES = ("kcodec", "kcodec rows", "floor", "aiokafka", "kafka-python")


def table_of(blob: shapes.Blob, *, headers: bool) -> pa.Table:
    """Return the records of a blob as one Arrow table without offsets, which a producer does not know."""
    import kcodec

    columns = ("timestamp", "key", "value", *(("headers",) if headers else ()))
    return pa.table(kcodec.decode(blob.data, columns=columns))


def by_aiokafka(groups: tuple[tuple[shapes.Row, ...], ...], codec: str) -> bytes:
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    made = []
    for group in groups:
        builder = DefaultRecordBatchBuilder(2, shapes.CODECS[codec], 0, -1, -1, -1, 1 << 30)
        for at, (timestamp, key, value, headers) in enumerate(group):
            builder.append(at, timestamp, key, value, headers)
        made.append(bytes(builder.build()))
    return b"".join(made)


def by_kafka_python(groups: tuple[tuple[shapes.Row, ...], ...], codec: str) -> bytes:
    from kafka.record.default_records import DefaultRecordBatchBuilder

    made = []
    for group in groups:
        builder = DefaultRecordBatchBuilder(2, shapes.CODECS[codec], False, -1, -1, -1, 1 << 30)
        for at, (timestamp, key, value, headers) in enumerate(group):
            builder.append(at, timestamp, key, value, headers)
        made.append(bytes(builder.build()))
    return b"".join(made)


def records_of(data: Any) -> list[tuple[Any, ...]]:
    """Return the records of batches without their offsets, in which the contestants differ."""
    import kcodec

    found = []
    for batch in kcodec.batches(data):
        found += [(one.timestamp, one.key, one.value, one.headers) for one in batch.records()]
    return found


def cases_of(shape: str, codec: str, names: tuple[str, ...]) -> tuple[dict[str, measure.Case], int, int]:
    """Return the cases, the number of records, and the number of bytes without compression."""
    import kcodec

    blob, groups = shapes.blob(shape, "none"), shapes.batches_of_rows(shape)
    largest = max(batch.size_in_bytes for batch in kcodec.batches(blob.data))
    table = table_of(blob, headers=shape in "ce")
    rows = [(key, value, headers, timestamp) for group in groups for timestamp, key, value, headers in group]
    encode = functools.partial(kcodec.encode, compression=codec, max_batch_bytes=largest)
    own = floor.FloorEncoder(table, shapes.SHAPES[shape].per_batch, len(blob.data) + 4096)
    cases: dict[str, measure.Case] = {
        "kcodec": functools.partial(encode, table),
        "kcodec rows": functools.partial(encode, rows),
        "floor": own.run,
        "aiokafka": functools.partial(by_aiokafka, groups, codec),
        "kafka-python": functools.partial(by_kafka_python, groups, codec),
    }
    if codec != "none":
        del cases["floor"]
    if "kafka-python" not in names or codec not in contestants.kafka_python_contestant().codecs:
        del cases["kafka-python"]
    expected = records_of(blob.data)
    for name, case in cases.items():
        made = own.result() if name == "floor" else case()
        if records_of(made) != expected:
            raise ValueError(f"shape {shape}, {codec}: {name} wrote other records")
    return cases, blob.records, len(blob.data)


def encode(options: parts.Options) -> list[parts.Row]:
    """Measure encoding on one thread: kcodec from Arrow and from rows, the clients' builders, and the floor."""
    rows = []
    for codec, shape in itertools.product(options.codecs, options.shapes):
        cases, records, plain = cases_of(shape, codec, options.names)
        row: parts.Row = {"codec": codec, "shape": shape, "records": records, "bytes": plain}
        samples = parts.measured(row, cases, options)
        times = parts.against(row, "times_aiokafka", samples, "aiokafka", "kcodec")
        bar = bars.ENCODE_TIMES_AIOKAFKA.get(shape) if codec == "none" else None
        parts.judged(row, "times_aiokafka", times, bar, least=True)
        ratio = parts.against(row, "over_floor", samples, "kcodec", "floor")
        parts.judged(row, "over_floor", ratio, bars.ENCODE_OVER_FLOOR)
        by_rows = parts.against(row, "rows_times_aiokafka", samples, "aiokafka", "kcodec rows")
        parts.judged(row, "rows_times_aiokafka", by_rows, None)
        rows.append(row)
    return rows
