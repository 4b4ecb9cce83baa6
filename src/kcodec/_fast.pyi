# SPDX-License-Identifier: Apache-2.0
"""The face of the compiled core, compared with it by stubtest. The docstrings of the core itself say more."""

from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, ClassVar, Final, Literal, Never, Protocol, Self, SupportsIndex, TypeAlias, final, overload

import numpy
import pyarrow
from numpy.typing import NDArray
from typing_extensions import Buffer, CapsuleType

from kcodec.constants import Compression, ControlType, IsolationLevel, TimestampType
from kcodec.errors import DecodeError
from kcodec.limits import DecodeLimits

_IsolationLevel: TypeAlias = IsolationLevel | Literal["read_uncommitted", "read_committed"]
_ControlRecords: TypeAlias = Literal["skip", "include"]
_OnError: TypeAlias = Literal["raise", "stop", "skip"]
_BinaryType: TypeAlias = Literal["binary", "large_binary", "binary_view"]
_Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
_Aborted: TypeAlias = AbortedTransaction | tuple[int, int] | tuple[int, int, int | None]

# ------------------------------------------------------------------------------------------------ bytes to records

COLUMNS: Final[tuple[str, ...]]
DEFAULT_COLUMNS: Final[tuple[str, ...]]
FRAMING_COLUMNS: Final[tuple[str, ...]]

def decode(
    data: Buffer,
    *,
    columns: Iterable[str] = ...,
    isolation_level: _IsolationLevel = "read_uncommitted",
    aborted_transactions: Iterable[_Aborted] | AbortedTransactions | None = None,
    last_stable_offset: int | None = None,
    start_offset: int | None = None,
    end_offset: int | None = None,
    control_records: _ControlRecords = "skip",
    on_error: _OnError = "raise",
    check_crcs: bool = ...,
    limits: DecodeLimits = ...,
    binary_type: _BinaryType = "binary",
    threads: int = 1,
    framing: Literal["confluent"] | None = None,
    verify_crc: bool | None = None,
) -> DecodedRecords:
    """Decode the record batches in a bytes-like object to columns. Raises DecodeError, ValueError, TypeError."""

def batches(data: Buffer, *, limits: DecodeLimits = ...) -> RecordBatches:
    """The batches in a bytes-like object, lazily. Raises DecodeError when a structure that is none is reached."""

# --------------------------------------------------------------------------------------------------------- results

@final
class Record:
    """A record of a batch; an attribute whose column was not asked for is an AttributeError."""

    def __init__(
        self,
        offset: int,
        timestamp: int,
        timestamp_type: TimestampType | int | str,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        sequence: int = -1,
        control_type: ControlType | int | None = None,
        coordinator_epoch: int | None = None,
        key_schema_id: int | None = None,
        value_schema_id: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
        leader_epoch: int | None = None,
    ) -> None: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def timestamp_type(self) -> TimestampType: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> _Headers: ...
    @property
    def sequence(self) -> int: ...
    @property
    def control_type(self) -> ControlType | int | None: ...
    @property
    def coordinator_epoch(self) -> int | None: ...
    @property
    def key_schema_id(self) -> int | None: ...
    @property
    def value_schema_id(self) -> int | None: ...
    @property
    def topic(self) -> str | None: ...
    @property
    def partition(self) -> int | None: ...
    @property
    def leader_epoch(self) -> int | None: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Column:
    """One column of a result: a sequence of Python values, and an Arrow stream of arrays."""

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    @property
    def name(self) -> str: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Any: ...
    @overload
    def __getitem__(self, index: slice[Any, Any, Any], /) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]
    def __reduce__(self) -> tuple[Any, ...]: ...
    def __arrow_c_schema__(self) -> CapsuleType: ...
    def __arrow_c_stream__(self, requested_schema: object = None) -> CapsuleType: ...

@final
class Counts:
    """How much was walked, and what became of it."""

    def __init__(
        self,
        batches: int = 0,
        skipped_batches: int = 0,
        records: int = 0,
        aborted: int = 0,
        control: int = 0,
        undecided: int = 0,
        out_of_range: int = 0,
    ) -> None: ...
    @property
    def batches(self) -> int: ...
    @property
    def skipped_batches(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def aborted(self) -> int: ...
    @property
    def control(self) -> int: ...
    @property
    def undecided(self) -> int: ...
    @property
    def out_of_range(self) -> int: ...
    def __iter__(self) -> Iterator[int]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class ColumnsSchema:
    """The schema of a result, for anything that takes ``__arrow_c_schema__``."""

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    def __arrow_c_schema__(self) -> CapsuleType: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

class ManyChunksError(ValueError, AttributeError):
    """One chunk was asked for and there are more."""

class _ArrayExport(Protocol):
    def __call__(self, requested_schema: object = None) -> tuple[CapsuleType, CapsuleType]: ...

@final
class DecodedRecords:
    """The records of a decode() call, as columns, to be fed to anything that takes Arrow."""

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def counts(self) -> Counts: ...
    @property
    def next_offset(self) -> int | None: ...
    @property
    def remaining_bytes(self) -> int: ...
    @property
    def bytes_needed(self) -> int: ...
    @property
    def error(self) -> DecodeError | None: ...
    @property
    def topic(self) -> str | None: ...
    @property
    def partition(self) -> int | None: ...
    @property
    def schema(self) -> ColumnsSchema: ...
    @property
    def chunks(self) -> tuple[DecodedRecords, ...]: ...
    def __len__(self) -> int: ...
    def records(self) -> Iterator[Record]: ...
    def column(self, name: str) -> Column: ...
    def to_numpy(self, name: str) -> NDArray[Any]: ...
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]
    def __reduce__(self) -> tuple[Any, ...]: ...
    def __arrow_c_schema__(self) -> CapsuleType: ...
    @property
    def __arrow_c_array__(self) -> _ArrayExport: ...
    def _export_array(self, requested_schema: object = None) -> tuple[CapsuleType, CapsuleType]: ...
    def __arrow_c_stream__(self, requested_schema: object = None) -> CapsuleType: ...

@final
class RecordCursor:
    """An iterator over the Records of a result. take(count) gives the next ones as a list, at less a record."""

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    def take(self, count: int) -> list[Record]: ...
    def __iter__(self) -> RecordCursor: ...
    def __next__(self) -> Record: ...
    def __reduce__(self) -> Never: ...

# -------------------------------------------------------------------------------------------------------- consumers

class FrameBuffer:
    """Memory of so many bytes, used again once the last view of it is gone. Internal."""

    def __new__(cls, size: int) -> FrameBuffer: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __reduce__(self) -> Never: ...

CHECK_CRCS: Final[bool]  # True, as a default that can be told from a True that is given

def checks_crcs(check_crcs: bool, verify_crc: bool | None) -> bool:
    """Return what check_crcs says, or verify_crc, its deprecated name. Internal."""

DEFAULT_FETCH_COLUMNS: Final[tuple[str, ...]]

def decode_fetch(
    data: Buffer,
    *,
    topic: str,
    partition: int,
    start_offset: int,
    columns: Iterable[str] = ...,
    isolation_level: _IsolationLevel = "read_committed",
    aborted_transactions: Iterable[_Aborted] | AbortedTransactions | None = (),
    last_stable_offset: int | None = None,
    end_offset: int | None = None,
    on_error: _OnError = "raise",
    check_crcs: bool = ...,
    limits: DecodeLimits = ...,
    binary_type: str = "binary",
    framing: str | None = None,
    verify_crc: bool | None = None,
) -> DecodedRecords:
    """Decode what a Fetch brought of one partition, by the rule of Java's consumer. Raises DecodeError."""

@final
class FetchedRecords:
    """What a Fetch brought of one partition, given a few records or a chunk at a time. Internal."""

    def __init__(
        self,
        data: Buffer,
        *,
        topic: str,
        partition: int,
        start_offset: int,
        columns: Iterable[str] = ...,
        isolation_level: _IsolationLevel = "read_committed",
        aborted_transactions: Iterable[_Aborted] | None = (),
        check_crcs: bool = True,
        limits: DecodeLimits = ...,
        binary_type: str = "binary",
        framing: str | None = None,
    ) -> None: ...
    @property
    def is_done(self) -> bool: ...
    @property
    def error(self) -> Exception | None: ...
    @property
    def position(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def counts(self) -> Counts: ...
    @property
    def remaining_bytes(self) -> int: ...
    @property
    def bytes_needed(self) -> int: ...
    def take(self, count: int) -> list[Record]: ...
    def take_decoded(self) -> DecodedRecords: ...

@final
class Delivery:
    """The response to one request for records by an iteration of a consumer. Internal."""

    is_over: bool
    records: Iterator[Record]

    def __init__(self) -> None: ...

@final
class RecordIterator:
    """What `for` iterates over a consumer. Internal."""

    def __init__(self, request: Callable[[], Delivery]) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Record: ...
    def close(self) -> None: ...

@final
class AsyncRecordIterator:
    """What `async for` iterates over a consumer; its own awaitable. Internal."""

    def __init__(self, request: Callable[[], Coroutine[Any, Any, Delivery]]) -> None: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Awaitable[Record]: ...
    def __await__(self) -> Generator[Any, None, Record]: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def send(self, value: Any) -> Any: ...
    def throw(self, *error: Any) -> Any: ...
    def close(self) -> None: ...
    async def aclose(self) -> None: ...

# --------------------------------------------------------------------------------------------------------- headers

@final
class RecordBatch:
    """The header of one record batch, and the way to its records."""

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def last_sequence(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def path(self) -> str | None: ...
    @property
    def size_in_bytes(self) -> int: ...
    @property
    def batch_length(self) -> int: ...
    @property
    def partition_leader_epoch(self) -> int: ...
    @property
    def magic(self) -> int: ...
    @property
    def crc(self) -> int: ...
    @property
    def attributes(self) -> int: ...
    @property
    def compression(self) -> Compression | int: ...
    @property
    def timestamp_type(self) -> TimestampType: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def delete_horizon_ms(self) -> int | None: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def records_count(self) -> int | None: ...
    @property
    def is_transactional(self) -> bool: ...
    @property
    def is_control_batch(self) -> bool: ...
    @property
    def data(self) -> memoryview: ...
    def records(self) -> Iterator[Record]: ...
    def decode(self, **options: Any) -> DecodedRecords: ...
    def is_valid(self) -> bool: ...
    def ensure_valid(self) -> None: ...
    def _with_loader(self, loader: Callable[[], Buffer]) -> RecordBatch: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class RecordBatches:
    """The batches in a bytes-like object, a lazy sequence."""

    def __init__(self, data: Buffer, limits: DecodeLimits = ...) -> None: ...
    @property
    def remaining_bytes(self) -> int: ...
    @property
    def bytes_needed(self) -> int: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: SupportsIndex, /) -> RecordBatch: ...
    @overload
    def __getitem__(self, index: slice[Any, Any, Any], /) -> list[RecordBatch]: ...
    def __iter__(self) -> Iterator[RecordBatch]: ...
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]
    def __reduce__(self) -> tuple[Any, ...]: ...
    def to_numpy(self) -> NDArray[numpy.void]: ...
    def to_arrow(self) -> pyarrow.Table: ...

def header_at(
    data: Buffer, position: int = 0, path: str | None = None, limits: DecodeLimits = ...
) -> RecordBatch | None:
    """The batch whose header begins at data[0], byte `position` of a file; None below 61 bytes. Internal."""

def find_provable(data: Buffer, above_offset: int, limits: DecodeLimits = ..., budget: int | None = None) -> int:
    """The first position in `data` where a believable batch begins; -1: nowhere, -2: budget spent. Internal."""

# -------------------------------------------------------------------------------------------------- records to bytes

DEFAULT_MAX_BATCH_BYTES: Final[int]
LARGEST_LIMIT: Final[int]

_Compression: TypeAlias = Compression | Literal["none", "gzip", "snappy", "lz4", "zstd"] | int
_TimestampType: TypeAlias = TimestampType | Literal["CreateTime", "LogAppendTime"]
_HeadersIn: TypeAlias = Iterable[tuple[str | bytes, Buffer | None]] | Mapping[str, Buffer | None]
_Row: TypeAlias = Record | Mapping[str, Any] | tuple[Any, ...]

class _ArrowArrayExport(Protocol):
    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]: ...

class _ArrowStreamExport(Protocol):
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...

_RecordSource: TypeAlias = Iterable[_Row] | _ArrowArrayExport | _ArrowStreamExport

def encode(
    source: _RecordSource,
    *,
    compression: _Compression = "none",
    compression_level: int | None = None,
    base_offset: int | None = None,
    timestamp: int | None = None,
    timestamp_type: _TimestampType = "CreateTime",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    partition_leader_epoch: int = -1,
    max_batch_bytes: int = ...,
    framing: Literal["confluent"] | None = None,
    skip_useless_compression: bool = False,
) -> EncodedBatches:
    """Record batches of magic 2 from rows or Arrow data. Raises EncodeError, ValueError, TypeError."""

def encode_batch(
    source: _RecordSource,
    *,
    like: RecordBatch | None = None,
    base_offset: int | None = None,
    last_offset: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    delete_horizon_ms: int | None = None,
    is_control_batch: bool | None = None,
    compression: _Compression | None = None,
    compression_level: int | None = None,
    timestamp: int | None = None,
    timestamp_type: _TimestampType | None = None,
    producer_id: int | None = None,
    producer_epoch: int | None = None,
    base_sequence: int | None = None,
    is_transactional: bool | None = None,
    partition_leader_epoch: int | None = None,
    max_batch_bytes: int = ...,
    framing: Literal["confluent"] | None = None,
    skip_useless_compression: bool = False,
) -> bytes:
    """Exactly one batch, every header field of it at hand. Raises EncodeError, ValueError, TypeError."""

def encode_end_transaction_marker(
    control_type: ControlType | Literal["COMMIT", "ABORT"] | int,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
) -> bytes:
    """The control batch that ends a transaction. Raises EncodeError, ValueError."""

@final
class EncodedBatches:
    """Batches as bytes, by the buffer protocol."""

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    @property
    def batches(self) -> RecordBatches: ...
    @property
    def records_count(self) -> int: ...
    @property
    def next_sequence(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class RecordBatchBuilder:
    """Fills one batch record by record."""

    def __init__(
        self,
        *,
        compression: _Compression = "none",
        compression_level: int | None = None,
        base_offset: int | None = None,
        timestamp: int | None = None,
        timestamp_type: _TimestampType = "CreateTime",
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
        partition_leader_epoch: int = -1,
        max_batch_bytes: int = ...,
        framing: Literal["confluent"] | None = None,
        skip_useless_compression: bool = False,
    ) -> None: ...
    def has_room_for(self, key: Buffer | None, value: Buffer | None, headers: _HeadersIn = ()) -> bool: ...
    def append(
        self,
        key: Buffer | None,
        value: Buffer | None,
        headers: _HeadersIn = (),
        timestamp: int | None = None,
        offset: int | None = None,
        *,
        key_schema_id: int | None = None,
        value_schema_id: int | None = None,
    ) -> int: ...
    @property
    def records_count(self) -> int: ...
    @property
    def size_in_bytes(self) -> int: ...
    @property
    def is_closed(self) -> bool: ...
    def set_producer_state(
        self, producer_id: int, producer_epoch: int, base_sequence: int, is_transactional: bool
    ) -> None: ...
    def close(self) -> bytes: ...

# ---------------------------------------------------------------------------------------------------- transactions

@final
class AbortedTransaction:
    """A transaction that was aborted, as a Fetch response names it; `last_offset` is that of its ABORT marker."""

    def __init__(self, producer_id: int, first_offset: int, last_offset: int | None = None) -> None: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int | None: ...
    def __iter__(self) -> Iterator[int | None]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class AbortedTransactions:
    """Many of them, sorted once for look-up. Internal."""

    def __new__(cls, entries: Iterable[_Aborted] = ()) -> AbortedTransactions: ...
    @property
    def entries(self) -> tuple[AbortedTransaction, ...]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[AbortedTransaction]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class TransactionScanner:
    """Settles the transactions of a log by its headers and markers, window by window. Internal."""

    path: str | None
    def __init__(self, *, limits: DecodeLimits = ..., path: str | None = None) -> None: ...
    @property
    def finished(self) -> list[tuple[int, int, int, int, int, int, int, int, int, int]]: ...
    @property
    def open(self) -> list[tuple[int, int, int, int, int, int, int]]: ...
    @property
    def batches(self) -> int: ...
    @property
    def first_offset(self) -> int | None: ...
    @property
    def last_offset(self) -> int | None: ...
    @property
    def last_position(self) -> int: ...
    max_timestamp: int | None
    above_offset: int | None
    def feed(self, data: Buffer, position: int, end: int) -> tuple[int, int]: ...

# ------------------------------------------------------------------------------------------------------- streaming

@final
class Decoder:
    """Decodes a file window by window at constant memory. Internal."""

    def __init__(
        self,
        *,
        columns: Iterable[str] = ...,
        isolation_level: IsolationLevel | str = "read_uncommitted",
        aborted_transactions: Iterable[_Aborted] | AbortedTransactions | None = None,
        last_stable_offset: int | None = None,
        start_offset: int | None = None,
        end_offset: int | None = None,
        control_records: str = "skip",
        check_crcs: bool = ...,
        limits: DecodeLimits = ...,
        binary_type: str = "binary",
        max_rows: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
        path: str | None = None,
        spark_layout: bool = False,
        keep_position: bool = False,
        above_offset: int | None = None,
        framing: str | None = None,
        verify_crc: bool | None = None,
    ) -> None: ...
    @property
    def counts(self) -> Counts: ...
    @property
    def next_offset(self) -> int | None: ...
    @property
    def bytes_needed(self) -> int: ...
    @property
    def schema(self) -> ColumnsSchema: ...
    def feed(self, data: Buffer, position: int = 0) -> int: ...
    def take(self, flush: bool = False) -> list[DecodedRecords]: ...

@final
class TextBytes:
    """Records as text, by the buffer protocol. Internal: see kcodec.text."""

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    @property
    def rows(self) -> int: ...

@final
class TextTemplate:
    """What each record is written as. Internal: see kcodec.text."""

    def __new__(cls, parts: Iterable[bytes | tuple[object, ...]]) -> TextTemplate: ...
    @property
    def parts(self) -> tuple[bytes | tuple[object, ...], ...]: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    def format(
        self, decoded: DecodedRecords, most: int | None = None, lines: Sequence[tuple[int, bytes]] = ()
    ) -> TextBytes: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

def stream_capsule(
    columns: Iterable[str],
    binary_type: str,
    iterator: Iterable[DecodedRecords],
    spark_layout: bool = False,
    framing: str | None = None,
) -> CapsuleType:
    """An ``arrow_array_stream`` over an iterator of results. Internal."""

def schema_of(
    columns: Iterable[str], binary_type: str = "binary", spark_layout: bool = False, framing: str | None = None
) -> ColumnsSchema:
    """The schema of results with these columns. Internal."""

# -------------------------------------------------------------------------------------------------- keys to partitions

class _ArrowArray(Protocol):
    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]: ...

class _ArrowStream(Protocol):
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...

@final
class Partitions:
    """The partition of each key; None for a null one. Arrow and numpy (-1 for null) without a copy."""

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    @property
    def null_count(self) -> int: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: SupportsIndex, /) -> int | None: ...
    @overload
    def __getitem__(self, index: slice[Any, Any, Any], /) -> list[int | None]: ...
    def __iter__(self) -> Iterator[int | None]: ...
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]
    def __reduce__(self) -> tuple[Any, ...]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __arrow_c_schema__(self) -> CapsuleType: ...
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[CapsuleType, CapsuleType]: ...

def partition_for(keys: _ArrowArray | _ArrowStream | Iterable[Buffer | None], partitions: int) -> Partitions:
    """The partition Java's producer sends each key to. Raises EncodeError, TypeError, ValueError."""

def check_arrow_columns(source: _ArrowArray | _ArrowStream, columns: Collection[str]) -> None:
    """Raise EncodeError unless the offsets of every row are within these columns of a table. Internal."""

# ------------------------------------------------------------------------------------------------ before a log takes it

MAX_RECORD_INDEXES: Final[int]

def validate_batch_records(
    batch: RecordBatch, *, is_compacted: bool, is_create_time: bool, now: int, before_max_ms: int, after_max_ms: int
) -> tuple[DecodeError, bool] | tuple[tuple[int, ...], int, int, bool, bool]:
    """What a leader finds in the records of a batch. Internal."""

# ------------------------------------------------------------------------------ faces of other clients (kcodec.compat)

DETAILED_COLUMNS: Final[tuple[str, ...]]

@final
class RecordSteps:
    """The records of one fetch, decoded a chunk at a time. Internal."""

    def __init__(
        self,
        data: Buffer,
        *,
        columns: Iterable[str] = ...,
        isolation_level: str = "read_uncommitted",
        aborted_transactions: Iterable[_Aborted] | None = None,
        start_offset: int | None = None,
        control_records: str = "skip",
        check_crcs: bool = True,
        limits: DecodeLimits = ...,
        keep_position: bool = False,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None: ...
    @property
    def position(self) -> int | None: ...
    @property
    def leader_epoch(self) -> int: ...
    def __iter__(self) -> RecordSteps: ...
    def __next__(self) -> DecodedRecords: ...

def client_tuples(steps: RecordSteps, detailed: bool = False) -> Iterator[Iterator[tuple[Any, ...]]]:
    """The rows of each step as an iterator of tuples. Internal."""

class ClientRecord:
    """A record of magic 2 by the face that aiokafka and kafka-python share. Internal."""

    checksum: None
    def __init__(
        self,
        offset: int,
        timestamp: int,
        timestamp_type: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
        size_in_bytes: int = 0,
    ) -> None: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def timestamp_type(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> list[tuple[str, bytes | None]]: ...
    @property
    def size_in_bytes(self) -> int: ...
    def validate_crc(self) -> bool: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class ClientRows:
    """An iterator over rows of one chunk. Internal."""

    def __reduce__(self) -> Never: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...

class ClientBatch:
    """A batch of magic 2 by the face that aiokafka and kafka-python share. Internal."""

    is_legacy: bool
    record_class: type[ClientRecord]
    control_record_class: type[ClientRecord]
    record_sizes: bool
    def __init__(self, buffer: Buffer) -> None: ...
    def translate(self, error: DecodeError) -> Exception: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def size_in_bytes(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def magic(self) -> int: ...
    @property
    def crc(self) -> int: ...
    @property
    def attributes(self) -> int: ...
    @property
    def compression_type(self) -> int: ...
    @property
    def timestamp_type(self) -> int | None: ...
    @property
    def is_transactional(self) -> bool: ...
    @property
    def is_control_batch(self) -> bool: ...
    @property
    def raw(self) -> memoryview: ...
    @property
    def first_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def last_sequence(self) -> int: ...
    @property
    def records_count(self) -> int: ...
    def validate_crc(self) -> bool: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...

class ClientRecords:
    """A record set by the face that aiokafka and kafka-python share. Internal."""

    batch_type: type[ClientBatch]
    legacy_batch_type: type[ClientBatch]
    def __init__(self, bytes_data: Buffer) -> None: ...
    def translate(self, error: DecodeError) -> Exception: ...
    @property
    def data(self) -> Buffer: ...
    def size_in_bytes(self) -> int: ...
    def valid_bytes(self) -> int: ...
    def has_next(self) -> bool: ...
    def next_batch(self) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...

class ClientRecordMetadata:
    """What append() says of a record. Internal."""

    crc: None
    def __init__(self, offset: int, size: int, timestamp: int) -> None: ...
    @property
    def offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

def client_size_of(key: Buffer | None, value: Buffer | None, headers: Iterable[tuple[str, Buffer | None]]) -> int:
    """Bytes that key, value and headers take in a record. Internal."""

def client_record_size(
    offset_delta: int,
    timestamp_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Iterable[tuple[str, Buffer | None]],
) -> int:
    """Bytes of a record with the varint of its length. Internal."""

class ClientBatchBuilder:
    """Fills one batch of magic 2 for a client's producer. Internal."""

    clock: Any
    full_at_batch_size: bool
    skip_useless_compression: bool
    def __init__(
        self,
        magic: int,
        compression_type: int,
        is_transactional: int | bool,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        batch_size: int,
    ) -> None: ...
    def append(
        self,
        offset: int,
        timestamp: int | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]] | None,
    ) -> ClientRecordMetadata | None: ...
    def set_producer_state(
        self, producer_id: int, producer_epoch: int, base_sequence: int, is_transactional: bool | None = None
    ) -> None: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def first_timestamp(self) -> int | None: ...
    def unknown_codec(self, codec: int) -> Exception: ...
    def build(self) -> bytearray: ...
    def size(self) -> int: ...
    @classmethod
    def size_of(cls, key: Buffer | None, value: Buffer | None, headers: Iterable[tuple[str, Buffer | None]]) -> int: ...
    @classmethod
    def estimate_size_in_bytes(
        cls, key: Buffer | None, value: Buffer | None, headers: Iterable[tuple[str, Buffer | None]]
    ) -> int: ...

# -------------------------------------------------------------------------------- messages of the protocol

LONGEST_STRING: int
DEEPEST_MESSAGE: int
MOST_ELEMENTS: int
MOST_VALUES: int
MOST_UNKNOWN_TAGGED_FIELDS: int
MOST_EMPTY_ELEMENTS: int

class MessageObject:
    """What all messages are, under their declarations: slots by keyword, equality. Internal."""

    __hash__: ClassVar[None]  # type: ignore[assignment]
    def __init__(self, *args: Never, **fields: Any) -> None: ...
    def __eq__(self, other: object, /) -> bool: ...

@final
class MessageShape:
    """The fields of a message class: where its slots are, what is in them by default. Internal."""

    names: tuple[str, ...]
    def __new__(cls, message_class: type, names: Iterable[str], defaults: Iterable[Any]) -> Self: ...

@final
class MessagePlan:
    """How one class of messages lies in the bytes of one version. Internal."""

    message_class: type
    title: str
    is_flexible: bool
    least: int
    def __new__(cls, message_class: type, title: str, is_flexible: bool, fields: Iterable[Iterable[Any]]) -> Self: ...

def read_message(plan: MessagePlan, data: Buffer, position: int = 0, is_whole: bool = True) -> tuple[Any, int]:
    """(the message that begins at a byte of `data`, where it ends). Internal."""

def write_message(plan: MessagePlan, message: MessageObject, before: bytes = b"", is_frame: bool = False) -> bytes:
    """The bytes of a message behind those of `before`. Internal."""

def write_message_parts(
    plan: MessagePlan, message: MessageObject, before: bytes = b"", is_frame: bool = False, least_part: int = 0
) -> list[bytes | memoryview]:
    """The same as a list of buffers, in which records of `least_part` bytes and more are the caller's. Internal."""

# -------------------------------------------------------------------------------- checksum, switches, memory

def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C of a bytes-like object, continuing `value`. Internal."""

def crc32c_path_names() -> list[str]: ...
def crc32c_by(name: str, data: Buffer, value: int = 0) -> int: ...
def use_system_zstd(wanted: bool) -> bool: ...
def uses_system_zstd() -> bool: ...
def pool_state() -> tuple[int, int, int]: ...
def trim_pool() -> None: ...
