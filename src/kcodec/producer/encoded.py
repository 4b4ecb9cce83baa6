# SPDX-License-Identifier: Apache-2.0
"""Encoded record batches for `send_encoded`: the checks of a batch that is sent without decoding its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kcodec._fast import batches
from kcodec.constants import Compression, TimestampType
from kcodec.errors import EncodeError
from kcodec.producer.tables import TableBatch
from kcodec.record.rewrite import set_base_offset

if TYPE_CHECKING:
    from typing_extensions import Buffer


def encoded_batch(data: Buffer, partition: int) -> TableBatch:
    """Return a copy of one encoded batch, whose producer id, epoch and sequence the sender sets.

    Raise EncodeError if the data is not exactly one batch of version 2 with consecutive offsets and CreateTime, or if
    it is a control batch. Raise DecodeError or a subclass if its header or its CRC is invalid.
    """
    copy = bytearray(memoryview(data))
    found = batches(copy)
    if len(found) != 1:
        raise EncodeError(
            f"batch must be one record batch, got {len(found)} of them in {len(copy)} bytes; send them one by one",
            field="batch",
        )
    batch = found[0]
    wrong = None
    if batch.magic != 2:
        wrong = f"its version (magic) is {batch.magic}, expected 2"
    elif batch.is_control_batch:
        wrong = "it is a control batch, which only brokers write"
    elif batch.timestamp_type != TimestampType.CREATE_TIME:
        wrong = "its timestamps are those of a broker (LogAppendTime), expected CreateTime"
    elif not isinstance(batch.compression, Compression):
        wrong = f"its compression id is {batch.compression}, expected 0 to {max(Compression)}"
    elif batch.delete_horizon_ms is not None:
        wrong = "it has a delete horizon, which only the log cleaner of a broker sets; encode its records again"
    elif not batch.records_count or batch.last_offset_delta != batch.records_count - 1:
        wrong = (
            f"it has {batch.records_count} records and a last offset delta of {batch.last_offset_delta}; a producer "
            "sends at least one record, with consecutive offsets (a compacted batch must be encoded again)"
        )
    if wrong is not None:
        raise EncodeError(f"batch cannot be sent: {wrong}", field="batch")
    batch.ensure_valid()
    count = batch.records_count or 0
    del batch, found  # they are views of the buffer
    set_base_offset(copy, 0)  # a leader counts the records of every batch from 0
    return TableBatch(partition, copy, count)
