# SPDX-License-Identifier: Apache-2.0
"""The face of the compiled core, compared with it by stubtest. The docstrings of the core itself say more."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, Never, Protocol, SupportsIndex, TypeAlias, final, overload

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
    verify_crc: bool = True,
    limits: DecodeLimits = ...,
    binary_type: _BinaryType = "binary",
    threads: int = 1,
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
    def records_count(self) -> int: ...
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
        verify_crc: bool = True,
        limits: DecodeLimits = ...,
        binary_type: str = "binary",
        max_rows: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
        path: str | None = None,
        spark_layout: bool = False,
        keep_position: bool = False,
        above_offset: int | None = None,
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

def stream_capsule(
    columns: Iterable[str], binary_type: str, iterator: Iterable[DecodedRecords], spark_layout: bool = False
) -> CapsuleType:
    """An ``arrow_array_stream`` over an iterator of results. Internal."""

def schema_of(columns: Iterable[str], binary_type: str = "binary", spark_layout: bool = False) -> ColumnsSchema:
    """The schema of results with these columns. Internal."""

# -------------------------------------------------------------------------------- checksum, switches, memory

def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C of a bytes-like object, continuing `value`. Internal."""

def crc32c_path_names() -> list[str]: ...
def crc32c_by(name: str, data: Buffer, value: int = 0) -> int: ...
def use_system_zstd(wanted: bool) -> bool: ...
def uses_system_zstd() -> bool: ...
def pool_state() -> tuple[int, int, int]: ...
def trim_pool() -> None: ...
