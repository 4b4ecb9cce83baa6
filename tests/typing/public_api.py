# SPDX-License-Identifier: Apache-2.0
"""What type checkers make of the public API of kcodec and kcodec.log: read by mypy and basedpyright, never run."""

from collections.abc import Iterator
from typing import Any, assert_type

import kcodec
from kcodec import (
    AbortedTransaction,
    Column,
    Compression,
    ControlType,
    Counts,
    DecodedRecords,
    DecodeError,
    DecodeLimits,
    EncodedBatches,
    IsolationLevel,
    Partitions,
    Record,
    RecordBatch,
    RecordBatches,
    TimestampType,
)
from kcodec.log import (
    CommittedOffset,
    Finding,
    Log,
    LogDirectory,
    OffsetIndexEntry,
    ProducerState,
    Transaction,
    check_file,
    open_log_directory,
    read_offset_index,
    read_offsets,
    read_snapshot,
)


def bytes_like(data: bytes, writable: bytearray, view: memoryview) -> None:
    assert_type(kcodec.decode(data), DecodedRecords)
    assert_type(kcodec.decode(writable), DecodedRecords)
    assert_type(kcodec.batches(view), RecordBatches)
    kcodec.decode("text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kcodec.batches(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def options(data: bytes) -> None:
    decoded = kcodec.decode(
        data,
        columns=("offset", "value"),
        isolation_level=IsolationLevel.READ_COMMITTED,
        aborted_transactions=[AbortedTransaction(7, 0), (7, 12), (7, 20, 24)],
        last_stable_offset=40,
        start_offset=3,
        end_offset=None,
        control_records="include",
        on_error="skip",
        check_crcs=False,
        limits=DecodeLimits(max_batch_bytes=1 << 20),
        binary_type="large_binary",
        threads=2,
    )
    assert_type(decoded, DecodedRecords)
    kcodec.decode(data, isolation_level="read_commited")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kcodec.decode(data, on_error="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kcodec.decode(data, binary_type="string")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kcodec.decode(data, colums=("offset",))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    kcodec.decode(data, ("offset",))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def results(decoded: DecodedRecords) -> None:
    assert_type(len(decoded), int)
    assert_type(decoded.columns, tuple[str, ...])
    assert_type(decoded.records(), Iterator[Record])
    assert_type(decoded.chunks, tuple[DecodedRecords, ...])
    assert_type(decoded.counts, Counts)
    assert_type(decoded.counts.aborted, int)
    assert_type(decoded.next_offset, int | None)
    assert_type(decoded.remaining_bytes, int)
    assert_type(decoded.error, DecodeError | None)
    assert_type(decoded.column("key"), Column)
    assert_type(decoded.column("key")[0:2], list[Any])
    decoded.next_offset = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    decoded.counts.records += 1  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def record(one: Record) -> None:
    assert_type(one.offset, int)
    assert_type(one.timestamp_type, TimestampType)
    assert_type(one.key, bytes | None)
    assert_type(one.headers, tuple[tuple[str, bytes | None], ...])
    assert_type(one.control_type, ControlType | int | None)
    one.value.decode()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    one.offset = 1  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def batches(found: RecordBatches) -> None:
    assert_type(found[0], RecordBatch)
    assert_type(found[-2:], list[RecordBatch])
    for batch in found:
        assert_type(batch, RecordBatch)
        assert_type(batch.compression, Compression | int)
        assert_type(Compression("zstd"), Compression)
        assert_type(IsolationLevel("read_committed"), IsolationLevel)
        assert_type(batch.delete_horizon_ms, int | None)
        assert_type(batch.path, str | None)
        assert_type(batch.data, memoryview)
        assert_type(batch.records(), Iterator[Record])
        assert_type(batch.is_valid(), bool)
        batch.crc = 0  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    assert_type(found.remaining_bytes, int)
    RecordBatch(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def directories(path: str) -> None:
    assert_type(kcodec.open(path), Log | LogDirectory)
    directory = open_log_directory(path)
    assert_type(directory["orders-0"], Log)
    assert_type(directory[kcodec.TopicPartition("orders", 0)], Log)
    assert_type(directory.topics, dict[str, tuple[int, ...]])
    assert_type(directory.high_watermarks, dict[kcodec.TopicPartition, int])
    for group in directory.group_offsets().values():
        assert_type(group[kcodec.TopicPartition("orders", 0)], CommittedOffset)
    for found in directory.transactions():
        assert_type(found.transaction.age_ms(0), int)
        assert_type(found.abort_command, str | None)
    assert_type(directory["orders-0"].holding_transaction, Transaction | None)


def beside_the_records(log: Log, path: str) -> None:
    assert_type(log.check(), list[Finding])
    assert_type(check_file(path)[0].offset, int | None)
    assert_type(log.producer_states, tuple[ProducerState, ...])
    assert_type(log.offset_for_timestamp(0, use_index=False), int | None)
    assert_type(read_offset_index(path)[0], OffsetIndexEntry)
    assert_type(read_offset_index(path)[1:], list[OffsetIndexEntry])
    assert_type(read_snapshot(path).producers, tuple[ProducerState, ...])
    assert_type(read_offsets(path), dict[tuple[str, int], int])
    log.check()[0].text = ""  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def before_the_log(encoded: EncodedBatches, decoded: DecodedRecords, buffer: bytearray) -> None:
    assert_type(kcodec.partition_for(decoded.column("key"), 12), Partitions)
    assert_type(kcodec.partition_for([b"k", None], 12)[0], int | None)
    kcodec.partition_for(["k"], 12)  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    kcodec.validate(encoded, cleanup_policy="compact", message_timestamp_type="LogAppendTime")
    kcodec.validate(encoded.batches[0], origin="broker")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(kcodec.filter_to(encoded, lambda batch, record: record.key is not None), bytes)
    kcodec.filter_to(encoded, lambda batch, record: batch.is_control_batch, batch_retention="RETAIN_EMPTY")
    kcodec.filter_to(
        encoded, lambda batch, record: True, batch_retention=lambda batch: ("DELETE", batch.is_control_batch)
    )
    kcodec.set_base_offset(buffer, 5, position=78)
    kcodec.set_max_timestamp(buffer, 5, "LogAppendTime")
    kcodec.set_producer_state(buffer, 9001, 3, 0, is_transactional=True)


def errors() -> None:
    try:
        kcodec.decode(b"")
    except kcodec.LimitExceededError as error:
        assert_type(error.limit, str)
        assert_type(error.claimed, int)
    except kcodec.CorruptBatchError as error:
        assert_type(error.stored_crc, int)
        assert_type(error.decoded, DecodedRecords | None)
    except kcodec.TruncatedError as error:
        assert_type(error.needed, int)
    except kcodec.RecordValidationError as error:
        assert_type(error.code, int)
        assert_type(error.record_indexes, tuple[int, ...])
    except kcodec.DecodeError as error:
        assert_type(error.reason, str)
        assert_type(error.position, int | None)
        assert_type(error.next_offset, int | None)


def arrow(decoded: DecodedRecords) -> None:
    import pandas
    import polars

    assert_type(polars.DataFrame(decoded), polars.DataFrame)
    assert_type(pandas.DataFrame({"offset": decoded.to_numpy("offset")}), pandas.DataFrame)
    assert_type(len(decoded.to_numpy("offset")), int)
