# SPDX-License-Identifier: Apache-2.0
"""The compiled core. Signatures are compared with it by stubtest; tools/draw_stub.py writes its docstrings here."""

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
from types import TracebackType
from typing import (
    Any,
    ClassVar,
    Final,
    Literal,
    Never,
    Protocol,
    Self,
    SupportsIndex,
    TypeAlias,
    TypeVar,
    final,
    overload,
)

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

class _AbortedEntry(Protocol):  # such as kcodec.protocol.messages.AbortedTransaction
    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> int: ...

_Aborted: TypeAlias = AbortedTransaction | _AbortedEntry | tuple[int, int] | tuple[int, int, int | None]

# Bytes to records

# COLUMNS exist with any framing, FRAMING_COLUMNS (key_schema_id and value_schema_id) only with framing="confluent".
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
    """Decode the record batches in a bytes-like object to columns.

    `data` holds batches as a Fetch response or a ``.log`` file does.

    columns:              Names from ``kcodec.COLUMNS``, except topic and partition, and with framing also
                          key_schema_id and value_schema_id. Only these columns are built.
    isolation_level:      "read_committed" leaves out the records of aborted transactions (KIP-98; Kafka:
                          CompletedFetch).
    aborted_transactions: AbortedTransaction values in any order, or other objects with producer_id and first_offset,
                          such as those of a FetchResponse; ``[]`` means that there are none. With None the
                          end-transaction markers inside `data` decide, and records of a transaction without a marker
                          in `data` are left out.
    last_stable_offset:   Under read_committed, records from this offset on are left out. -1, which a Fetch response
                          contains if the broker does not report the offset, is None.
    start_offset, end_offset: Only records with offsets in [start_offset, end_offset) are returned.
    control_records:      "skip" leaves control records out. "include" returns those below the last stable offset, key
                          and value as stored.
    on_error:             "raise" raises the first error. "stop" returns the records before the corruption, and the
                          error as `.error`. "skip" continues after a corrupt batch if its length leads to a batch whose
                          header and CRC are valid.
    check_crcs:           Whether to check the CRC-32C of every whole batch, including those that are filtered out.
    limits:               DecodeLimits: bounds on the size of a batch before and after decompression.
    binary_type:          Arrow type of key and value: "binary", "large_binary" or "binary_view". With "binary_view",
                          values of uncompressed batches are not copied if `data` is read-only, such as bytes. A
                          writable buffer is copied as a whole, because its bytes may change later.
    framing:              "confluent" splits the prefix of Schema Registry serializers (a zero byte and an int32 schema
                          id) from keys and values. The ids are returned in the nullable columns key_schema_id and
                          value_schema_id, which are then among the default columns. Other keys and values stay
                          unchanged, with a null id.
    threads:              Number of threads. The records and their order do not depend on it.
    verify_crc:           Deprecated name of check_crcs.

    Return DecodedRecords. Raise DecodeError (CorruptBatchError, UnsupportedError, LimitExceededError), whose
    ``.decoded`` holds the records before the corruption. Raise ValueError or TypeError if an argument is invalid.

    >>> decode(b"").counts
    Counts(batches=0, skipped_batches=0, records=0, aborted=0, control=0, undecided=0, out_of_range=0)
    """

def batches(data: Buffer, *, limits: DecodeLimits = ...) -> RecordBatches:
    """Return the batches in a bytes-like object as a lazy sequence, RecordBatches.

    limits: DecodeLimits: bounds on the size of a batch.

    Raise TypeError if `data` is not bytes-like. A batch with an invalid header raises DecodeError when it is reached.

    >>> len(batches(b""))
    0
    """

# Results

@final
class Record:
    """A record of a batch. Immutable.

    Columns that decode() was not requested to build raise AttributeError. topic, partition and leader_epoch are set for
    records of a consumer and None elsewhere; control_type and coordinator_epoch are set for control records.
    """

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
    def offset(self) -> int:
        """Offset of the record in its partition."""
    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970; -1 if the record has no timestamp."""
    @property
    def timestamp_type(self) -> TimestampType:
        """Whether the producer (CreateTime) or the broker (LogAppendTime) set the timestamp."""
    @property
    def key(self) -> bytes | None:
        """bytes or None."""
    @property
    def value(self) -> bytes | None:
        """bytes or None."""
    @property
    def headers(self) -> _Headers:
        """Headers as (name, value) pairs in order, duplicates included; a value is bytes or None.

        Bytes of a name that are not UTF-8 are kept by the error handler surrogateescape.
        """
    @property
    def sequence(self) -> int:
        """Sequence number of an idempotent producer; -1 without one."""
    @property
    def control_type(self) -> ControlType | int | None:
        """ControlType of a control record, or the number of an unknown type; None for other records."""
    @property
    def coordinator_epoch(self) -> int | None:
        """Coordinator epoch of an end-transaction marker; None for other records."""
    @property
    def key_schema_id(self) -> int | None:
        """Schema id of the key, with framing="confluent"; None if the key has no such prefix."""
    @property
    def value_schema_id(self) -> int | None:
        """Schema id of the value, with framing="confluent"; None if the value has no such prefix."""
    @property
    def topic(self) -> str | None:
        """Topic that the record was read from; None if it is unknown."""
    @property
    def partition(self) -> int | None:
        """Partition that the record was read from; None if it is unknown."""
    @property
    def leader_epoch(self) -> int | None:
        """Epoch of the leader that wrote the batch (KIP-320); None if it is unknown."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Column:
    """A column of a result, with its name: a sequence of Python values that exports itself as an Arrow stream."""

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
    """Numbers of batches and records that were read, by outcome. Immutable.

    batches, skipped_batches: Number of batches read, and how many of them on_error="skip" passed over.
    records:      Records returned.
    aborted:      Records of aborted transactions.
    control:      Control records that were left out.
    undecided:    Records beyond the last stable offset, or of a transaction whose marker was not found.
    out_of_range: Records outside of start_offset and end_offset.

    Each record counts once. In a batch that was not decompressed the header's records_count is counted.
    """

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
    """Arrow schema of a result, for every library that accepts ``__arrow_c_schema__``."""

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    def __arrow_c_schema__(self) -> CapsuleType: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

class ManyChunksError(ValueError, AttributeError):
    """A method that needs the rows in one chunk was called on a result with several chunks."""

class _ArrayExport(Protocol):
    def __call__(self, requested_schema: object = None) -> tuple[CapsuleType, CapsuleType]: ...

@final
class DecodedRecords:
    """The records of a decode() call, as columns. Immutable.

    counts:          Counts of the batches and records that were read.
    next_offset:     Offset at which a reader continues after these records; None if it is unknown. It is unknown for a
                     chunk of a log that ends within a batch, unless the chunk has the column offset.
    remaining_bytes: Bytes after the last whole batch: an incomplete batch, or everything from the corruption on.
    bytes_needed:    Size of that incomplete batch as far as it is known; 0 otherwise.
    error:           The first DecodeError, with on_error="stop" or "skip".
    topic, partition: Where a consumer fetched the records; None elsewhere.

    Pass it to any library that accepts Arrow data (``pyarrow.table(decoded)``, ``polars.DataFrame(decoded)``), iterate
    over ``records()``, or take one ``column(name)``. A chunk has at most about 32 MB; several threads return at least
    one chunk each.
    """

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in the order requested."""
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
    def schema(self) -> ColumnsSchema:
        """Schema for Arrow libraries: ``pyarrow.schema(decoded.schema)``."""
    @property
    def chunks(self) -> tuple[DecodedRecords, ...]:
        """The chunks, each as DecodedRecords; counts and offsets are those of the whole result."""
    def __len__(self) -> int: ...
    def records(self) -> Iterator[Record]:
        """Return an iterator over the records, a RecordCursor."""
    def column(self, name: str) -> Column:
        """Return one column. Raise ValueError if it was not requested."""
    def to_numpy(self, name: str) -> NDArray[Any]:
        """Return a fixed-width column as a numpy array; timestamp becomes datetime64[ms].

        No bytes are copied, except for booleans. Raise ValueError if the column has variable width, contains nulls, or
        has more than one chunk.
        """
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
    """An iterator over the records of a result. ``take(count)`` returns several at once, at less cost."""

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    def take(self, count: int) -> list[Record]:
        """Return a list of the next `count` records; fewer only at the end."""
    def __iter__(self) -> RecordCursor: ...
    def __next__(self) -> Record: ...
    def __reduce__(self) -> Never: ...

# Consumers

class FrameBuffer:
    """FrameBuffer(size)
    --

    A buffer of `size` bytes with undefined contents. They return to the pool when the last view of them is released:
    fresh memory costs a page fault for every 4 KiB, which is more than decoding what is received into it.
    """

    def __new__(cls, size: int) -> FrameBuffer: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __reduce__(self) -> Never: ...

CHECK_CRCS: Final[bool]  # True, as a default that can be distinguished from a True that is given

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
    spark_layout: bool = False,
    verify_crc: bool | None = None,
) -> DecodedRecords:
    """Decode the records of one partition in a Fetch response, as Java's consumer does (Kafka: CompletedFetch; KIP-98).

    topic, partition:     Where the records come from: for the columns of these names, and for Record.
    start_offset:         Position of the consumer. Records below it are left out.
    aborted_transactions: (producer_id, first_offset) pairs as in the response, in any order. A pair applies from its
                          first_offset to the producer's ABORT marker or the end of the data. None, which brokers send
                          under read_uncommitted, is an empty list.
    spark_layout:         As Spark expects: timestamps in microseconds, NULL if a record has no headers, nullable
                          columns.

    The other arguments are those of decode(). The last batch of a response may be incomplete; that is not an error.
    next_offset is the position afterwards, after markers, aborted records and empty batches. A result without records
    has one empty chunk.

    Return DecodedRecords. Raise DecodeError, whose ``.decoded`` holds the records before the corruption. Raise
    ValueError or TypeError if an argument is invalid.
    """

@final
class FetchedRecords:
    """The records of one partition in a Fetch response, decoded step by step as decode_fetch() does.

    Memory is used for one chunk and one batch, whatever the decompressed size of the response is. The arguments are
    those of decode_fetch(). take() needs the column offset.

    is_done: Whether all records were returned. Then `position` is after markers, aborted records and empty batches, and
             `error` is the exception that ended decoding early, if there was one.
    """

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
    def position(self) -> int:
        """Offset of the next record to read."""
    @property
    def leader_epoch(self) -> int:
        """Leader epoch of the batch before the position; -1 before the first batch."""
    @property
    def counts(self) -> Counts:
        """Counts of the batches and records decoded so far."""
    @property
    def remaining_bytes(self) -> int:
        """Bytes of an incomplete last batch, or bytes that are not decoded yet."""
    @property
    def bytes_needed(self) -> int:
        """Size of that incomplete batch as far as it is known; 0 otherwise."""
    def take(self, count: int) -> list[Record]:
        """Return a list of the next `count` records; fewer only at the end.

        Raise RuntimeError while another call decodes.
        """
    def take_decoded(self) -> DecodedRecords:
        """Return the next chunk (at most about 32 MB) as DecodedRecords; it has no rows at the end.

        Raise RuntimeError while another call decodes.
        """

def deserialize_records(
    records: list[Record],
    key_deserializer: Callable[[bytes], Any] | None,
    value_deserializer: Callable[[bytes], Any] | None,
    start: int = 0,
    takes_none: bool = False,
) -> tuple[int, str, Exception] | None:
    """Convert the keys and values of these records in place, those that are not None. Internal.

    takes_none: also call the deserializers for None.

    Return None, or the index of the first record that failed, the name of the field and the exception. That record
    stays as it was.
    """

@final
class Delivery:
    """The response to one request for records by an iteration.

    is_over: request again before the next record is taken: the consumer was sought, paused, rebalanced or closed, or
             another request was made.
    records: an iterator over the records, shared by all that deliver from the same chunk.
    """

    is_over: bool
    records: Iterator[Record]

    def __init__(self) -> None: ...

@final
class RecordIterator:
    """The iterator of `for`.

    request: a function that waits for the next Delivery and returns it.
    """

    def __init__(self, request: Callable[[], Delivery]) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Record: ...
    def close(self) -> None:
        """Do nothing: the consumer holds all state. Here for callers that close their generators."""

@final
class AsyncRecordIterator:
    """The iterator of `async for`. It is also the awaitable of each step, so that a record that has already arrived
    needs no further object and no coroutine.

    request: a coroutine function that returns the next Delivery.
    """

    def __init__(self, request: Callable[[], Coroutine[Any, Any, Delivery]]) -> None: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Awaitable[Record]: ...
    def __await__(self) -> Generator[Any, None, Record]: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def send(self, value: Any) -> Any:
        """Continue, as the coroutine of a request would."""
    def throw(self, *error: Any) -> Any:
        """Raise an error in the request under way, such as the cancellation of the task."""
    def close(self) -> None:
        """Give the request under way up."""
    async def aclose(self) -> None:
        """Do nothing: the consumer holds all state. Here for callers that close their asynchronous generators."""

# Headers

@final
class RecordBatch:
    """The header of one record batch, with methods that read its records. Immutable.

    The fields have Kafka's names (DefaultRecordBatch). path is the file, or None. records() and ensure_valid() check
    the CRC; reading a field does not.

    In magic 0 and 1 every message is a batch, and a compressed message contains others (AbstractLegacyRecordBatch). The
    format stores the last offset only: base_offset of a compressed message is found by decompressing it, and is the
    stored offset if that fails. records_count is None, and fields that the format lacks are -1, False or None. If a
    compressed message has offset 0 (old producers), last_offset is 0, whatever it contains.
    """

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    @property
    def base_offset(self) -> int:
        """Offset of the first record the batch was written with; in magic 0 and 1 of the first record it still has."""
    @property
    def last_offset(self) -> int:
        """base_offset + last_offset_delta, which compaction does not change. In magic 0 and 1 the stored offset."""
    @property
    def last_offset_delta(self) -> int:
        """last_offset - base_offset, kept by compaction."""
    @property
    def next_offset(self) -> int:
        """last_offset + 1."""
    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record the batch was written with; 0 follows 2147483647. -1 without sequences."""
    @property
    def position(self) -> int:
        """Byte of the input or file at which the batch begins."""
    @property
    def path(self) -> str | None: ...
    @property
    def size_in_bytes(self) -> int:
        """The whole batch, header included."""
    @property
    def batch_length(self) -> int:
        """Number of bytes after this field."""
    @property
    def partition_leader_epoch(self) -> int:
        """Epoch of the leader that appended it, -1 from a producer."""
    @property
    def magic(self) -> int:
        """Version of the format: 2, or 0 and 1 in old logs."""
    @property
    def crc(self) -> int:
        """Stored checksum: CRC-32C from the attributes on; in magic 0 and 1 CRC-32 from the magic on."""
    @property
    def attributes(self) -> int:
        """Attribute bits as stored: 16, in magic 0 and 1 8."""
    @property
    def compression(self) -> Compression | int:
        """Compression of the records, or the number of an unknown codec."""
    @property
    def timestamp_type(self) -> TimestampType:
        """TimestampType of all records."""
    @property
    def base_timestamp(self) -> int:
        """Stored field in ms: base of the timestamps, or the delete horizon. In magic 0 and 1 the timestamp."""
    @property
    def max_timestamp(self) -> int:
        """Largest timestamp in ms; with LogAppendTime the timestamp of all records. -1 in magic 0."""
    @property
    def delete_horizon_ms(self) -> int | None:
        """Time in ms from which the log cleaner may remove markers and tombstones (KIP-534); None if it is not set."""
    @property
    def producer_id(self) -> int:
        """-1 without one."""
    @property
    def producer_epoch(self) -> int:
        """-1 without one."""
    @property
    def base_sequence(self) -> int:
        """-1 without one."""
    @property
    def records_count(self) -> int | None:
        """Number of records now; None in magic 0 and 1, where only reading counts them (Kafka: countOrNull)."""
    @property
    def is_transactional(self) -> bool:
        """Attribute bit 4."""
    @property
    def is_control_batch(self) -> bool:
        """Attribute bit 5: end-transaction markers and the like, not user records."""
    @property
    def data(self) -> memoryview:
        """Bytes of the batch as a memoryview. Raise TruncatedError if they are not, or no longer, complete."""
    def records(self) -> Iterator[Record]:
        """Check the CRC and return an iterator over the records; those of a control batch are control records."""
    def decode(self, **options: Any) -> DecodedRecords:
        """Decode this batch alone, with the options of decode(). Errors name its position."""
    def is_valid(self) -> bool:
        """Whether the CRC is that of the bytes."""
    def ensure_valid(self) -> None:
        """Raise CorruptBatchError unless the CRC is that of the bytes."""
    def _with_loader(self, loader: Callable[[], Buffer]) -> RecordBatch: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class RecordBatches:
    """The batches in a bytes-like object (`data`), a lazy sequence. Nothing is copied or decompressed.

    The arguments are those of batches().

    len() and iteration read the headers as far as needed. An invalid header raises DecodeError when it is reached. An
    incomplete last batch ends the sequence: remaining_bytes of it are in the data, and bytes_needed is its size (0 if
    the data ends with a whole batch).
    """

    def __init__(self, data: Buffer, limits: DecodeLimits = ...) -> None: ...
    @property
    def remaining_bytes(self) -> int:
        """Number of bytes after the last whole batch."""
    @property
    def bytes_needed(self) -> int:
        """Size of the incomplete batch at the end as far as it is known; 0 without one."""
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: SupportsIndex, /) -> RecordBatch: ...
    @overload
    def __getitem__(self, index: slice[Any, Any, Any], /) -> list[RecordBatch]: ...
    def __iter__(self) -> Iterator[RecordBatch]: ...
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]
    def __reduce__(self) -> tuple[Any, ...]: ...
    def to_numpy(self) -> NDArray[numpy.void]:
        """Return the header table as a numpy structured array, one row per batch."""
    def to_arrow(self) -> pyarrow.Table:
        """Return the header table as a pyarrow Table, one row per batch."""

def header_at(
    data: Buffer, position: int = 0, path: str | None = None, limits: DecodeLimits = ...
) -> RecordBatch | None:
    """Return the RecordBatch whose header begins at data[0], byte `position` of a file; None if the header is
    incomplete.

    The records may be missing: ``.data`` then raises TruncatedError until a loader is given. Raise DecodeError if the
    header is invalid.
    """

def find_provable(data: Buffer, above_offset: int, limits: DecodeLimits = ..., budget: int | None = None) -> int:
    """Return the first position in `data` of a batch with a valid header and CRC and a base offset above
    `above_offset`.

    Return -1 if no such batch exists, and -2 if finding out would read more than `budget` bytes for CRCs.
    """

# Records to bytes

DEFAULT_MAX_BATCH_BYTES: Final[int]
LARGEST_LIMIT: Final[int]

_Compression: TypeAlias = Compression | Literal["none", "gzip", "snappy", "lz4", "zstd"] | int
_Named = TypeVar("_Named", bound=tuple[Any, ...])
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
    """Encode rows or Arrow data as record batches of magic 2, as Kafka's own writer does. The order of rows is kept.

    source: An iterable of rows, each a Record, a dict or a tuple (key, value, headers, timestamp) whose last fields may
            be missing; or an object with ``__arrow_c_stream__`` or ``__arrow_c_array__`` whose columns have the names
            that decode() uses: offset, timestamp, key, value, headers. key and value are binary or string columns of
            any Arrow layout except run-end encoding. Other columns of decode() and of Spark's Kafka source are ignored,
            as the batch determines them, and so is the index of a pandas DataFrame if it has no name.
    compression:     "none", "gzip", "snappy", "lz4" or "zstd".
    compression_level: Level of the codec in Kafka's numbering (KIP-390); None: Kafka's default.
    base_offset:     Offset of the first batch. None: the offset of the first record, or 0. Offsets in the rows are
                     kept, including gaps. A batch spans at most 2,147,483,648 offsets; a larger gap begins a new batch.
    timestamp:       Timestamp in ms for rows without one; with ``timestamp_type="LogAppendTime"`` for all rows.
    max_batch_bytes: Maximum size of a batch before compression. A record that exceeds it alone raises EncodeError.
    producer_id, producer_epoch, base_sequence: Identity of an idempotent producer, and the sequence number of the first
                     record; -1 without one.
    is_transactional: Whether the batches belong to a transaction.
    partition_leader_epoch: Epoch of the leader; -1, as producers send it.
    framing:         "confluent" writes the columns key_schema_id and value_schema_id, where they are not null, as the
                     prefix of Schema Registry serializers.
    skip_useless_compression: Leave a batch uncompressed if compression would not make it smaller.

    Return EncodedBatches. Raise EncodeError for values that a batch cannot hold and for control records, and ValueError
    or TypeError if an argument is invalid.

    >>> encoded = encode([(b"key", b"value")], timestamp=1_700_000_000_000)
    >>> encoded
    <EncodedBatches 1 batches, 1 records, 76 B>
    """

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
    """Encode exactly one batch, with control over every header field.

    Fields that are not given are those of `like`, or the defaults of encode(). Other options are those of encode().

    like:              A RecordBatch. Encoding its records, or what compaction leaves of them, gives the same bytes if
                       it is not compressed. This includes timestamps below -1. If the batch has LogAppendTime, a
                       record with the offset of one of its records gets the timestamp that is stored in the bytes, and
                       a record without a timestamp gets that of the batch.
    last_offset:       Last offset of the batch. It may be above the offset of its last record, because compaction keeps
                       it when it removes the last records. A batch without records needs `like` or last_offset. The
                       log cleaner keeps such a batch for its sequence numbers (DefaultRecordBatch.writeEmptyHeader).
    base_timestamp, max_timestamp: Header fields in ms; by default those of the records.
    delete_horizon_ms: Time in ms (KIP-534).
    is_control_batch:  Whether the records are control records. Their keys and values are written as they are.

    Raise EncodeError as encode() does, and if the records do not fit into one batch.
    """

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
    """Return the control batch that ends a transaction (EndTransactionMarker), 78 bytes.

    control_type: ControlType.COMMIT or ABORT, or its name or number.
    producer_id, producer_epoch: Identity of the transaction's producer.
    coordinator_epoch: Epoch of the transaction coordinator.
    timestamp:    Milliseconds since 1970.
    base_offset, partition_leader_epoch: As in encode().

    Raise EncodeError or ValueError if an argument is invalid.
    """

@final
class EncodedBatches:
    """Encoded batches, for everything that accepts a buffer (``sock.sendall``, ``file.write``, ``bytes``). Immutable.

    len() is the number of bytes.
    """

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    @property
    def batches(self) -> RecordBatches:
        """Headers of the batches, as RecordBatches."""
    @property
    def records_count(self) -> int:
        """Number of records in all batches."""
    @property
    def next_sequence(self) -> int:
        """base_sequence of this producer's next batch; 0 follows 2147483647. -1 without sequences."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class RecordBatchBuilder:
    """Builds one batch, record by record (MemoryRecordsBuilder).

    Options are those of encode(). size_in_bytes is the size before compression, header included. Nothing can be
    appended after close(). Raise RuntimeError if two threads call it at the same time.

    >>> builder = RecordBatchBuilder(timestamp=0)
    >>> builder.append(b"key", b"value"), builder.append(None, b"more")
    (0, 1)
    >>> builder.records_count, len(builder.close())
    (2, 87)
    """

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
    def has_room_for(self, key: Buffer | None, value: Buffer | None, headers: _HeadersIn = ()) -> bool:
        """Return whether a record fits for certain.

        Its size is estimated from above: its fields, 36 bytes, 10 for each header, and 10 with framing.
        """
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
    ) -> int:
        """Append a record and return its offset delta.

        timestamp: Milliseconds since 1970; None: the builder's timestamp.
        offset:    Offset of the record, at least the next one; None: the next one.

        Raise EncodeError, and leave the batch unchanged, if the record does not fit (see has_room_for) or is invalid.
        """
    @property
    def records_count(self) -> int:
        """Number of records so far."""
    @property
    def size_in_bytes(self) -> int:
        """Number of bytes so far, header included, before compression."""
    max_batch_bytes: int
    def most_bytes(self, key: Any, value: Any, headers: Any) -> int:
        """Return the size in bytes that `has_room_for` assumes of a record. Internal."""
    def append_if_room(self, key: Any, value: Any, headers: Any, timestamp: int) -> int | None:
        """Append a record and return its offset delta; None if the batch is full. Raise EncodeError for an invalid
        record, and for one that an empty batch cannot hold. Internal.
        """
    def successor(self, max_batch_bytes: int) -> RecordBatchBuilder:
        """Return an empty builder with the options of this one, which must be new, and another limit. Internal."""
    def take(self) -> EncodedBatches:
        """Close it and return the batch as EncodedBatches, without a copy; afterwards `close` returns b"". Internal."""
    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
    def set_producer_state(
        self, producer_id: int, producer_epoch: int, base_sequence: int, is_transactional: bool
    ) -> None:
        """Set the producer's identity. It can be set again until close() (ProducerBatch.setProducerState).

        producer_id, producer_epoch: As InitProducerId returned them; -1 without one.
        base_sequence:    Sequence number of the first record; -1 without one.
        is_transactional: Whether the batch belongs to a transaction.
        """
    def close(self) -> bytes:
        """Return the batch; b"" if it has no records. A second call returns the same bytes.

        Raise EncodeError if the producer state is invalid.
        """

# Transactions

@final
class AbortedTransaction:
    """AbortedTransaction(producer_id, first_offset, last_offset=None)
    --

    A transaction that was aborted, as a Fetch response names it (KIP-98). Frozen.

    producer_id, first_offset: of the transaction's first record, as the response has them.
    last_offset:               of its ABORT marker, where it is known (a log on disk); None from a broker.
    """

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
    """Aborted transactions, sorted once: for a Decoder that reads several chunks of a file.

    entries: AbortedTransaction values, other objects with producer_id and first_offset, such as those of a
             FetchResponse, or (producer_id, first_offset[, last_offset]) tuples, in any order.
    """

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
    """Finds the transactions of a log by its batch headers and markers, chunk by chunk.

    A data batch with records begins its producer's transaction, an end-transaction marker ends it (the rules of
    ProducerStateManager). ``finished``: tuples (producer_id, producer_epoch, first_offset, last_offset, marker_offset,
    control_type, first_timestamp, marker_timestamp, coordinator_epoch, first_position) in the order of the markers;
    first_offset and last_offset are -1 for a marker without data. ``open``: tuples (producer_id, producer_epoch,
    first_offset, last_offset, first_timestamp, last_timestamp, first_position).

    The CRC of every batch of at most 256 bytes is checked, as a corrupt end-transaction marker (78 to 81 bytes) must
    not end a transaction. above_offset: if it is a number, every base offset must be above it, and it advances with
    each batch. last_position: position of the last batch read. max_timestamp: the largest timestamp since it was last
    set to None. Messages of magic 0 and 1 are read as batches without a producer, with their stored offset.
    """

    path: str | None
    def __init__(self, *, limits: DecodeLimits = ..., path: str | None = None) -> None: ...
    @property
    def finished(self) -> list[tuple[int, int, int, int, int, int, int, int, int, int]]: ...
    @property
    def open(self) -> list[tuple[int, int, int, int, int, int, int]]:
        """Transactions whose marker has not been read yet."""
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
    def feed(self, data: Buffer, position: int, end: int) -> tuple[int, int]:
        """Read the headers in `data`, which begins at byte `position` of a file of `end` bytes.

        Return (next, needed): the position of the first batch that was not read, which may be after `data`, and the
        number of its bytes that must be in `data` next time. If next + needed > end, the file ends with an incomplete
        batch, or with a whole one if next == end.
        """

# Streaming

@final
class Decoder:
    """Decodes a file chunk by chunk with constant memory.

    The arguments are those of decode(). Under read_committed aborted_transactions are required, each with its
    last_offset, so that a chunk can be decoded without the following ones.

    topic, partition: For the columns of these names.
    path:             File name for errors.
    max_rows:         Maximum number of rows of a chunk.
    spark_layout:     Timestamps in microseconds, NULL if a record has no headers, nullable columns.
    keep_position:    As Java's consumer: a position advances from start_offset with each record and batch, and records
                      below it count as out_of_range.
    above_offset:     Every base offset must be above it and above the last offset before, else DecodeError is raised.
    """

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
    def counts(self) -> Counts:
        """Counts of all data passed to feed()."""
    @property
    def next_offset(self) -> int | None:
        """last_offset + 1 of the last whole batch read; None before the first."""
    @property
    def bytes_needed(self) -> int: ...
    @property
    def schema(self) -> ColumnsSchema:
        """Schema of the chunks."""
    def feed(self, data: Buffer, position: int = 0) -> int:
        """Decode every whole batch in `data`, which begins at byte `position` of the file. Return the number of bytes
        used.

        The remaining bytes are an incomplete batch of `bytes_needed` bytes (at most 61 while its length is unknown). If
        bytes_needed is 0, they are batches that wait until take() was called: call it, and feed the remaining bytes
        again.

        Raise DecodeError, with the position in the file, if a batch is corrupt; the batches before it are kept, and
        feeding can continue after it. Raise RuntimeError while another call decodes.
        """
    def take(self, flush: bool = False) -> list[DecodedRecords]:
        """Return the finished chunks, a list of DecodedRecords with at most max_rows rows each.

        flush: End the unfinished chunk and return it as well. Raise RuntimeError while another call decodes.
        """

@final
class TextBytes:
    """Text of records (`rows` of them), a read-only buffer. Its memory is reused when its last view is released."""

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    @property
    def rows(self) -> int: ...

@final
class TextTemplate:
    """The format in which each record is written, and the columns it needs. Immutable.

    parts: Bytes, which are written as they are, and tuples (kind, column, width, null), whose last elements may be
    missing. width is the minimum number of characters of a number, null the bytes written for a missing value. text.h
    lists the kinds.

    Raise ValueError if a kind is unknown or does not accept the column.
    """

    def __new__(cls, parts: Iterable[bytes | tuple[object, ...]]) -> TextTemplate: ...
    @property
    def parts(self) -> tuple[bytes | tuple[object, ...], ...]: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    def format(
        self, decoded: DecodedRecords, most: int | None = None, lines: Sequence[tuple[int, bytes]] = ()
    ) -> TextBytes:
        """Return the records in `decoded` as TextBytes: all, or the first `most` of them.

        lines: (position, bytes) pairs in order of positions. Each is written before the records of the batch that
               begins at its position, or of the next batch; the remaining ones are written last.

        Raise ValueError if a column is missing.
        """
    def __reduce__(self) -> tuple[Any, ...]: ...

def stream_capsule(
    columns: Iterable[str],
    binary_type: str,
    iterator: Iterable[DecodedRecords],
    spark_layout: bool = False,
    framing: str | None = None,
) -> CapsuleType:
    """Return an ``arrow_array_stream`` capsule over an iterator of DecodedRecords, which is read as the consumer
    requests.

    An exception of the iterator becomes the error of the stream, with its text. After KeyboardInterrupt Python raises
    that again as soon as the consumer's call has returned.
    """

def schema_of(
    columns: Iterable[str], binary_type: str = "binary", spark_layout: bool = False, framing: str | None = None
) -> ColumnsSchema:
    """Return the schema of results with these columns."""

# Partitions of keys

class _ArrowArray(Protocol):
    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]: ...

class _ArrowStream(Protocol):
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...

@final
class Partitions:
    """The partition of each key, in order. Immutable.

    A sequence of int, with None for null keys, whose number is null_count. It is also an Arrow array of int32
    (``pyarrow.array(it)``, ``table.append_column("partition", it)``) and a read-only buffer of int32
    (``numpy.asarray(it)``), where -1 is a null key. Neither copies.
    """

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
    """Return the partition to which Java's producer sends each key: its murmur2 hash modulo `partitions`.

    keys:       An Arrow column (an object with ``__arrow_c_array__`` or ``__arrow_c_stream__``, of a binary, string or
                null type, or a dictionary of one), or an iterable of bytes-like objects and None.
    partitions: Number of partitions of the topic, at least 1.

    Return Partitions. A null key has no partition (None): a producer chooses one, and Java's fills a batch for one
    partition before it changes to another. An empty key is a key.

    The result equals BuiltInPartitioner.partitionForKey, and librdkafka's partitioner ``murmur2``; librdkafka's default
    is a different one, ``consistent_random``. Raise TypeError or ValueError if an argument is invalid, and EncodeError
    for invalid Arrow data and for a key whose bytes are not contiguous.

    >>> partition_for([b"order-1", b"order-2", None], 12)
    <Partitions [10, 3, None] of 3 keys>
    """

def check_arrow_columns(source: _ArrowArray | _ArrowStream, columns: Collection[str]) -> None:
    """Raise EncodeError, with column and row, if an offset of a row points outside of its column. Internal.

    source: A table or stream. columns: Names among key, value and headers. For code that passes rows of a table on
    before encode() checks them.
    """

# Validation

MAX_RECORD_INDEXES: Final[int]

def validate_batch_records(
    batch: RecordBatch, *, is_compacted: bool, is_create_time: bool, now: int, before_max_ms: int, after_max_ms: int
) -> tuple[DecodeError, bool] | tuple[tuple[int, ...], int, int, bool, bool]:
    """Return what a leader finds in the records of a batch; offsets are not checked.

    Return (indexes, without_key, wrong_time, is_sequential, has_negative_time), or (error, is_stream_fault) with the
    DecodeError of invalid records. Raise LimitExceededError.
    """

# API of other clients (kcodec.compat)

DETAILED_COLUMNS: Final[tuple[str, ...]]

@final
class RecordSteps:
    """The records of one fetch, decoded chunk by chunk as they are requested.

    Memory is used for one chunk and one batch, whatever the decompressed size is. The arguments are those of decode();
    under read_committed aborted_transactions=None is an empty list. keep_position: as Java's consumer, a position
    advances from start_offset with each record and batch, and records below it are left out. topic, partition: for the
    columns of these names. Iteration returns DecodedRecords, and raises DecodeError after the last record before
    corruption.
    """

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
    def position(self) -> int | None:
        """Offset after the last batch that was decoded; start_offset, or None, before the first."""
    @property
    def leader_epoch(self) -> int:
        """Leader epoch of the last batch that was read; -1 before the first."""
    def __iter__(self) -> RecordSteps: ...
    def __next__(self) -> DecodedRecords: ...

def client_tuples(steps: RecordSteps, detailed: bool = False) -> Iterator[Iterator[tuple[Any, ...]]]:
    """Return an iterator of iterators, one per chunk, over (offset, timestamp, timestamp_type, key, value, headers).

    headers is a tuple. With `detailed` it is a list, followed by partition_leader_epoch, the size of the record in
    bytes, and the size of its header names and values (-1 without headers); `steps` must have the columns
    DETAILED_COLUMNS.
    """

class ClientRecord:
    """ClientRecord(offset, timestamp, timestamp_type, key, value, headers, size_in_bytes=0)
    --

    A record of magic 2: offset, timestamp (ms), timestamp_type (0 create, 1 append), key and value (bytes or None),
    headers (a list of (str, bytes or None)). checksum is None, as magic 2 has none a record.
    size_in_bytes is set where a caller requests it, see ClientBatch.record_sizes.
    """

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
    def headers(self) -> list[tuple[str, bytes | None]]:
        """A list of (str, bytes or None)."""
    @property
    def size_in_bytes(self) -> int: ...
    def validate_crc(self) -> bool:
        """Return True: in magic 2 the batch has the checksum."""
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class ClientRows:
    """An iterator over the rows of one chunk: ClientRecord objects, or tuples if no record class is given."""

    def __reduce__(self) -> Never: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...

class ClientBatch:
    """A batch with the API that aiokafka and kafka-python share: header fields, validate_crc(), an iterator of records.

    Base of the adapters' classes, which set `is_legacy` (magic 0 and 1), `record_class` and `control_record_class`,
    `record_sizes` (whether the size of records is needed), and `translate(error)`, which returns the client's exception
    for a DecodeError.
    """

    is_legacy: bool
    record_class: type[ClientRecord]
    control_record_class: type[ClientRecord]
    record_sizes: bool
    def __init__(self, buffer: Buffer) -> None: ...
    def translate(self, error: DecodeError) -> Exception:
        """The client's exception for a DecodeError; it is raised from it."""
    @property
    def base_offset(self) -> int:
        """Offset of the first record the batch was written with."""
    @property
    def last_offset_delta(self) -> int:
        """last_offset - base_offset, kept by compaction."""
    @property
    def last_offset(self) -> int:
        """base_offset + last_offset_delta."""
    @property
    def next_offset(self) -> int:
        """last_offset + 1."""
    @property
    def size_in_bytes(self) -> int:
        """The whole batch, header included."""
    @property
    def leader_epoch(self) -> int:
        """Epoch of the leader that appended it, -1 from a producer."""
    @property
    def magic(self) -> int:
        """Version of the format."""
    @property
    def crc(self) -> int:
        """CRC-32C as stored."""
    @property
    def attributes(self) -> int:
        """The 16 bits as stored; 8 with magic 0 and 1."""
    @property
    def compression_type(self) -> int:
        """Kafka's number of the codec."""
    @property
    def timestamp_type(self) -> int | None:
        """0 create, 1 append; None with magic 0."""
    @property
    def is_transactional(self) -> bool:
        """Attribute bit 4."""
    @property
    def is_control_batch(self) -> bool:
        """Attribute bit 5."""
    @property
    def raw(self) -> memoryview:
        """Its bytes, a memoryview."""
    @property
    def first_timestamp(self) -> int:
        """The field as stored: base of the deltas, or the delete horizon (attribute bit 6)."""
    @property
    def max_timestamp(self) -> int:
        """In ms."""
    @property
    def producer_id(self) -> int:
        """-1 without one."""
    @property
    def producer_epoch(self) -> int:
        """-1 without one."""
    @property
    def base_sequence(self) -> int:
        """-1 without one."""
    @property
    def last_sequence(self) -> int:
        """Of the last record there ever was; after 2147483647 comes 0."""
    @property
    def records_count(self) -> int:
        """Records in it now."""
    def validate_crc(self) -> bool:
        """Return whether the CRC matches the bytes, before or after iteration."""
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...

class ClientRecords:
    """A record set with the API that aiokafka and kafka-python share: has_next() and next_batch() over bytes.

    Base of the adapters' classes, which set `batch_type`, `legacy_batch_type` (magic 0 and 1), and `translate(error)`,
    which returns the client's exception for a DecodeError. An incomplete batch at the end is left out. A corrupt header
    raises the exception each time the batch is requested. Records are decoded ahead, chunk by chunk, over consecutive
    batches of magic 2.
    """

    batch_type: type[ClientBatch]
    legacy_batch_type: type[ClientBatch]
    def __init__(self, bytes_data: Buffer) -> None: ...
    def translate(self, error: DecodeError) -> Exception:
        """The client's exception for a DecodeError; it is raised from it."""
    @property
    def data(self) -> Buffer:
        """The bytes of the record set."""
    def size_in_bytes(self) -> int:
        """Number of bytes of the record set."""
    def valid_bytes(self) -> int:
        """Number of bytes of whole batches, up to the first invalid header."""
    def has_next(self) -> bool:
        """Return whether next_batch() returns a batch or raises an error."""
    def next_batch(self) -> Any:
        """Return the next batch; None at the end."""
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...

class ClientRecordMetadata:
    """ClientRecordMetadata(offset, size, timestamp)
    --

    The result of append() for a record: its offset, its size in bytes and its timestamp in ms.
    """

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
    """Return the number of bytes of key, value and headers in a record, including their lengths and count."""

def client_record_size(
    offset_delta: int,
    timestamp_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Iterable[tuple[str, Buffer | None]],
) -> int:
    """Return the number of bytes of a record, including the varint of its length."""

class ClientBatchBuilder:
    """Builds one batch of magic 2, record by record, for a client's producer.

    Base of the adapters' classes, which set `clock` (a function that returns the time in ns since 1970, for records
    without a timestamp), `full_at_batch_size` (whether a batch must stay below batch_size), and
    `skip_useless_compression` (whether a batch stays uncompressed if compression does not make it smaller). The first
    record is accepted whatever its size.
    """

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
    ) -> ClientRecordMetadata | None:
        """Append a record. Return None, and leave the batch unchanged, if it is full. timestamp: in ms; None: now."""
    def set_producer_state(
        self, producer_id: int, producer_epoch: int, base_sequence: int, is_transactional: bool | None = None
    ) -> None:
        """Set the producer's id, epoch and base sequence; it may be called again until build()."""
    @property
    def producer_id(self) -> int:
        """-1 without one."""
    @property
    def producer_epoch(self) -> int:
        """-1 without one."""
    @property
    def base_sequence(self) -> int:
        """-1 without one."""
    @property
    def first_timestamp(self) -> int | None:
        """Timestamp of the first record; None before it."""
    def unknown_codec(self, codec: int) -> Exception:
        """Return the client's exception for an unknown compression type."""
    def build(self) -> bytearray:
        """Return the batch. A second call returns the same bytearray."""
    def size(self) -> int:
        """Return the number of bytes so far, header included; before compression until the batch is built."""
    @classmethod
    def size_of(cls, key: Buffer | None, value: Buffer | None, headers: Iterable[tuple[str, Buffer | None]]) -> int:
        """Return the number of bytes of key, value and headers in a record."""
    @classmethod
    def estimate_size_in_bytes(
        cls, key: Buffer | None, value: Buffer | None, headers: Iterable[tuple[str, Buffer | None]]
    ) -> int:
        """Return an upper bound of the size of a batch with only this record."""

# Messages of the protocol

LONGEST_STRING: int
DEEPEST_MESSAGE: int
MOST_ELEMENTS: int
MOST_VALUES: int
MOST_UNKNOWN_TAGGED_FIELDS: int
MOST_EMPTY_ELEMENTS: int

class MessageObject:
    """The base of all protocol messages: slots that are set by keyword, and equality. Internal.

    Derived classes have a slot for each field, and unknown_tagged_fields: ((tag, bytes), ...), the tagged fields that
    the version does not define, in order.
    """

    __hash__: ClassVar[None]  # type: ignore[assignment]
    def __init__(self, *args: Never, **fields: Any) -> None: ...
    def __eq__(self, other: object, /) -> bool: ...

@final
class MessageShape:
    """The fields of a message class: positions of the slots, and their defaults. Internal."""

    names: tuple[str, ...]
    def __new__(cls, message_class: type, names: Iterable[str], defaults: Iterable[Any]) -> Self: ...

@final
class MessagePlan:
    """The layout of a message class in one version. Internal; created by kcodec.protocol.schema.

    fields: (name, kind, place, tag, is_array, is_nullable, is_compact, is_ignorable, is_secret, default, plan of the
    struct or None), in order of their declaration.
    """

    message_class: type
    title: str
    is_flexible: bool
    least: int
    def __new__(cls, message_class: type, title: str, is_flexible: bool, fields: Iterable[Iterable[Any]]) -> Self: ...

def read_message(plan: MessagePlan, data: Buffer, position: int = 0, is_whole: bool = True) -> tuple[Any, int]:
    """Return the message at `position` of `data`, and its end. is_whole: it must end with the data. Internal."""

def write_message(plan: MessagePlan, message: MessageObject, before: bytes = b"", is_frame: bool = False) -> bytes:
    """Return `before` and the bytes of a message. is_frame: their length comes first. Internal."""

def write_message_parts(
    plan: MessagePlan, message: MessageObject, before: bytes = b"", is_frame: bool = False, least_part: int = 0
) -> list[bytes | memoryview]:
    """Return the same as a list of buffers. Records of at least `least_part` bytes are the caller's own. Internal."""

# Checksum, switches and memory

def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the CRC-32C of a bytes-like object, continuing `value`."""

def crc32c_path_names() -> list[str]:
    """Return the implementations of CRC-32C that this processor supports, fastest first."""

def crc32c_by(name: str, data: Buffer, value: int = 0) -> int:
    """Return the CRC-32C computed by the implementation of this name: for tests."""

def use_zstd(way: str) -> str:
    """Select how zstd is decompressed. Return the way that is in use, "package" if the wanted one is not available.

    "package" calls the zstandard package, "system" the system's libzstd of whatever version, and "library" the libzstd
    that the package contains, without its Python objects.
    """

def zstd_way() -> str:
    """Return how zstd is decompressed: see use_zstd."""

def pool_state() -> tuple[int, int, int]:
    """Return (bytes kept, buffers kept, buffers in use) of the pool of output memory."""

def trim_pool() -> None:
    """Release all unused memory of the pool to the system."""

@final
class SendLock:
    """A lock as `threading.Lock`, which compiled code takes without a Python call. Ctrl-C interrupts a wait for it.

    A thread that holds it cannot wait for it: the call raises RuntimeError.
    """
    def __init__(self) -> None: ...
    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock; return False if it is held and `blocking` is false."""
    def release(self) -> None:
        """Release the lock. Raise RuntimeError if it is not held."""
    def forget_threads(self) -> None:
        """In a forked child: release the lock, whichever thread held it, and forget the threads that waited."""
    def locked(self) -> bool:
        """Return whether the lock is held."""
    def refuse_owner(self) -> int:
        """Raise RuntimeError if the calling thread holds the lock: what it is about to wait for may need the lock."""
    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def __reduce__(self) -> Never: ...

@final
class IoTurn:
    """Whether the I/O thread of a client has urgent work. Internal.

    is_urgent: threads that send pause while the I/O thread works. The I/O thread sets it, and a thread that sends the
        first record to a topic.
    helpers: number of threads whose results the I/O thread waits for. It counts as working while there is one.
    cannot_wait: whether the I/O thread cannot wait with `wait`, so that the end of its work is unknown. No thread then
        pauses.
    """

    helpers: int
    cannot_wait: bool
    def __init__(self) -> None: ...
    @property
    def is_urgent(self) -> bool:
        """Whether threads that send pause."""
    @is_urgent.setter
    def is_urgent(self, value: bool) -> None: ...
    def wait(self, fd: int, timeout: float | None) -> list[tuple[int, int]] | None:
        """On the I/O thread: wait until `fd`, that of a selector, has events, to the microsecond. Return the events, as
        pairs of a file descriptor and the bits of `selectors`, or an empty list if the time is over. Return None at
        once if the platform cannot wait for it. timeout: seconds; None: no limit.
        """
    def __reduce__(self) -> Never: ...

class RecordDelivery:
    """The batch of a record, and the index of the record there: what `send` returns of it. Internal."""
    def __init__(self, batch: Any, index: int, timestamp: int) -> None: ...
    _batch: Any
    _index: int
    _timestamp: Any
    def _register(self, callback: Callable[[Any], object]) -> bool: ...
    def _stored(self, kind: type[_Named]) -> _Named | None: ...
    def __reduce__(self) -> Never: ...

class PartitionSlot:
    """The last batch of a partition, if records may still be appended to it. Internal."""

    open: Any

class TopicSlot:
    """The partitions of a topic, as PartitionSlot, and the one for records without a key. Internal."""

    queues: Any
    sticky_queue: Any

class RecordAppender:
    """Appends records to the open batches of their partitions. Internal.

    topics: TopicSlot by name. refusal: what `append` raises while it is set. turn: that of the I/O thread, if any.
    owner_thread: identifier (threading.get_ident) of the only thread whose records are appended here; 0: of any thread.

    A record without an open batch that takes it is passed on to `append_slowly`, and so is one that takes more than a
    look: without metadata, of an unusual type, invalid, from another thread. The caller holds the lock, except of
    `send`.
    """
    def __init__(self, lock: Any, delivery_type: type[RecordDelivery], ignore_keys: bool) -> None: ...
    topics: Any
    refusal: BaseException | None
    turn: IoTurn | None
    owner_thread: int
    lock: Any
    def append(
        self, topic: str, key: Any, value: Any, headers: Any, partition: int | None, timestamp: int | None
    ) -> Any:
        """Append a record to its partition's open batch. Return None if `buffer_memory` has no free capacity for it
        now. headers: a tuple of pairs; timestamp: ms, or None for now. Raise as `append_slowly` does.
        """
    def send(self, topic: str, key: Any, value: Any, headers: Any, partition: int | None, timestamp: int | None) -> Any:
        """Append a record as `append` does; take the lock for it, a SendLock."""
    def __reduce__(self) -> Never: ...

# kcodec.compat.confluent

def set_confluent_message(message_class: type | None) -> None:
    """Set the class that `isinstance` takes a ConfluentMessage for: confluent_kafka.Message."""

class ConfluentMessage:
    """A message with the methods of confluent_kafka.Message, which `isinstance` takes it for. Only clients make one."""
    def error(self) -> Any:
        """Return the KafkaError, or None."""
    def value(self) -> Any:
        """Return the value, or None."""
    def key(self) -> Any:
        """Return the key, or None."""
    def topic(self) -> Any:
        """Return the name of the topic, or None."""
    def partition(self) -> int | None:
        """Return the number of the partition, or None."""
    def offset(self) -> int | None:
        """Return the offset, or None."""
    def leader_epoch(self) -> int | None:
        """Return the epoch of the leader that wrote the batch, or None."""
    def timestamp(self) -> tuple[int, int]:
        """Return (type, milliseconds since 1970). The type is one of confluent_kafka's constants TIMESTAMP_*."""
    def latency(self) -> float | None:
        """Return the seconds from produce() to the report, or None."""
    def delivery_count(self) -> None:
        """Return None: only share consumers count deliveries."""
    def headers(self) -> Any:
        """Return a list of (name, value), or None without headers."""
    def deserialized_key(self) -> Any:
        """Return the key."""
    def deserialized_value(self) -> Any:
        """Return the value."""
    def set_headers(self, headers: Any, /) -> None:
        """Replace the headers."""
    def set_value(self, value: Any, /) -> None:
        """Replace the value."""
    def set_key(self, key: Any, /) -> None:
        """Replace the key."""
    def set_topic(self, topic: Any, /) -> None:
        """Replace the topic."""
    def set_error(self, error: Any, /) -> None:
        """Replace the error."""
    def __len__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class DeliveryReport(ConfluentMessage):
    """The message of a record of a producer, and the function that the record calls when it has ended. Internal."""
    def _where(self) -> tuple[Any, int]: ...
    def __call__(self, delivery: RecordDelivery) -> None: ...

class EventQueue:
    """What a program is to be called back for: functions and delivery reports, in order. Internal.

    is_awaited: a thread waits for an event; the next one calls `notify`. It is set before that thread looks for events.
    statistics_at: when the statistics are due, in ms since 1970; 0: never.
    """

    is_awaited: bool
    statistics_at: int
    @property
    def is_empty(self) -> bool:
        """Whether no event waits."""
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def add(self, call: Callable[[], Any]) -> None:
        """Add a function to call; from any thread."""
    def notify(self) -> None:
        """Wake the threads that wait; for a subclass."""
    def serve(self) -> int:
        """Call what waits, and return how many events there were. An exception of a callback ends it, and the later
        ones stay.
        """
    def __reduce__(self) -> Never: ...

class ReportQueue(EventQueue):
    """The events of a producer. Internal.

    send: appends a record that takes more than a look, and returns its RecordDelivery.
    error_of: returns the KafkaError of a record that has failed.
    note_lost: called with the topic and the KafkaError of a batch with a record that has failed and has no callback.
    most_messages, most_bytes: the limits of records that have not ended, or whose callback waits for poll().
    only_errors: call back for failed records only. on_delivery: the callback of records without one.
    closing_thread: the only thread that may produce records, as it closes the producer; 0: all may.
    """

    closing_thread: int
    def __init__(
        self,
        error_of: Callable[[BaseException], Any],
        note_lost: Callable[[str, Any], Any],
        most_messages: int,
        most_bytes: int,
        only_errors: bool,
        on_delivery: Callable[..., Any] | None,
    ) -> None: ...
    @property
    def unreported(self) -> int:
        """Records that have not ended, or whose callback was not called."""
    def attach(self, appender: RecordAppender, send: Callable[..., Any], partitioner: Any) -> None:
        """Set the buffer of a new producer, its method `send`, and its partitioner."""
    def detach(self) -> None:
        """Refuse records from now on."""
    def end_report(self, report: DeliveryReport, /) -> None:
        """On the I/O thread: the record of the report has ended. Queue it for poll()."""

class MessageFeed:
    """The decoded records of a consumer, as messages. Internal.

    delivery: The Delivery of the last request for records.
    note:     Called with the last record that was taken of a partition, at the latest by `note_last`.
    """
    def __init__(self, events: EventQueue, note: Callable[[Record], Any]) -> None: ...
    delivery: Delivery
    def note_last(self) -> None:
        """Call `note` with the record taken last, unless it has been called with it."""
    def take_into(self, messages: list[Any], most: int) -> None:
        """Append messages until the list has `most`, or until no message can be returned now."""
    def __reduce__(self) -> Never: ...

def poll_message(self: Any, timeout: float = -1.0) -> Any:
    """Return a message, None after `timeout` seconds (no limit if it is negative). Errors of a partition or the group
    are messages whose error() is set.
    """

def poll_reports(self: Any, timeout: float = -1.0) -> int:
    """Call the callbacks of what has happened, and return their number; wait up to `timeout` seconds for one.

    A negative timeout waits without a limit.
    """

def produce_message(
    self: Any,
    topic: str,
    value: Any = None,
    key: Any = None,
    partition: int = -1,
    callback: Callable[..., Any] | None = None,
    on_delivery: Callable[..., Any] | None = None,
    timestamp: int = 0,
    headers: Any = None,
) -> None:
    """Append a record to the buffer. `poll` and `flush` call callback(error, message), also named on_delivery.

    Raise BufferError if queue.buffering.max.messages or queue.buffering.max.kbytes is reached, KafkaException for a
    record that cannot be sent, TypeError for values that are neither text nor bytes.
    """
