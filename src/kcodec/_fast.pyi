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
    """Decode the record batches in a bytes-like object, as a Fetch response or a ``.log`` file has them, to columns.

    columns:              names out of ``kcodec.COLUMNS`` but topic and partition; only these are built.
    isolation_level:      "read_committed" leaves out aborted records (KIP-98; Kafka: CompletedFetch).
    aborted_transactions: what a broker said, AbortedTransaction in any order (``[]`` included); None: nobody said, and
                          the end markers inside `data` settle every transaction. Undecided records are left out.
    last_stable_offset:   under read_committed, records from here on are undecided.
    start_offset, end_offset: records in [start_offset, end_offset), a plain filter on each record.
    control_records:      "skip", or "include": markers of every fate below the limit, key and value as stored.
    on_error:             "raise"; "stop": the records before the damage, and `.error`; "skip": go on behind a damaged
                          batch where its own length leads to a batch that can be proved.
    check_crcs:           the CRC-32C of every whole batch, also of those that are ruled out.
    limits:               DecodeLimits.   binary_type: "binary", "large_binary" or "binary_view" for key and value.
    framing:              "confluent": a key or value that begins with a zero byte and a schema id (int32) gives the id
                          to the nullable columns key_schema_id and value_schema_id, which come with the default
                          columns, and the rest to its own. Whatever begins otherwise stays whole, its id null.
    threads:              batches side by side; the records and their order are the same.
    verify_crc:           deprecated name of check_crcs.

    Returns DecodedRecords. Raises DecodeError (CorruptBatchError, UnsupportedError, LimitExceededError) with the
    records before the damage in ``.decoded``; ValueError or TypeError for an argument that is none.

    >>> decode(b"").counts
    Counts(batches=0, skipped_batches=0, records=0, aborted=0, control=0, undecided=0, out_of_range=0)
    """

def batches(data: Buffer, *, limits: DecodeLimits = ...) -> RecordBatches:
    """The batches in a bytes-like object, lazily; see RecordBatches.

    Raises TypeError for what is not bytes-like; DecodeError, when it is reached, for a structure that is none.

    >>> len(batches(b""))
    0
    """

# --------------------------------------------------------------------------------------------------------- results

@final
class Record:
    """A record of a batch. Frozen.

    offset, timestamp (ms), timestamp_type (TimestampType), key and value (bytes or None), headers (a tuple of
    (name, bytes or None), in order, repeats kept; a name that is not UTF-8 is kept by surrogateescape), sequence (-1
    without one). Of a control record also control_type (ControlType, or a number for types unknown here) and
    coordinator_epoch (of an end-transaction marker); with framing="confluent" key_schema_id and value_schema_id. Of a
    record that a consumer gives also topic, partition and leader_epoch, which are None elsewhere. A column that
    decode() was not asked for is an AttributeError.
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
        """Its place in the partition."""
    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970; -1 none."""
    @property
    def timestamp_type(self) -> TimestampType:
        """TimestampType: who set the timestamp."""
    @property
    def key(self) -> bytes | None:
        """bytes or None."""
    @property
    def value(self) -> bytes | None:
        """bytes or None."""
    @property
    def headers(self) -> _Headers:
        """Tuple of (name, bytes or None)."""
    @property
    def sequence(self) -> int:
        """The idempotent producer's number of this record, -1 without one."""
    @property
    def control_type(self) -> ControlType | int | None:
        """ControlType of a control record, None of any other."""
    @property
    def coordinator_epoch(self) -> int | None:
        """Of an end-transaction marker, else None."""
    @property
    def key_schema_id(self) -> int | None:
        """The id of its key's schema, with framing="confluent"; None where the key has none."""
    @property
    def value_schema_id(self) -> int | None:
        """The id of its value's schema, with framing="confluent"; None where the value has none."""
    @property
    def topic(self) -> str | None:
        """The topic it was read from; None where that is not known."""
    @property
    def partition(self) -> int | None:
        """The partition it was read from; None where that is not known."""
    @property
    def leader_epoch(self) -> int | None:
        """Of the leader that wrote its batch (KIP-320); None where that is not known."""
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
    """How much was walked, and what became of it. Frozen.

    batches (skipped ones included) and skipped_batches count batches; records, aborted, control, undecided and
    out_of_range count records, each once (by records_count where a batch was not opened).
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
    """The records of a decode() call, as columns. Frozen.

    counts, next_offset (where a reader goes on; None if nothing says), remaining_bytes (of a cut last batch, or from
    the damage on), bytes_needed (the size of that cut batch as far as it is known, else 0), error (the first
    DecodeError under on_error "stop" or "skip"), topic and partition (of what a consumer fetched; None elsewhere).

    Feed it to anything that takes Arrow (``pyarrow.table(decoded)``, ``polars.DataFrame(decoded)``), iterate
    ``records()``, or take a ``column(name)``. Chunks are cut at about 32 MB; with threads there may be one a thread.
    """

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in the order asked for."""
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
        """An object with ``__arrow_c_schema__``: ``pyarrow.schema(decoded.schema)``."""
    @property
    def chunks(self) -> tuple[DecodedRecords, ...]:
        """A tuple of DecodedRecords of one chunk each; counts and offsets are those of the whole."""
    def __len__(self) -> int: ...
    def records(self) -> Iterator[Record]:
        """An iterator of Record, a RecordCursor."""
    def column(self, name: str) -> Column:
        """One column; ValueError if it was not asked for."""
    def to_numpy(self, name: str) -> NDArray[Any]:
        """A fixed-width column as a numpy array; no copy except of bool. timestamp becomes datetime64[ms].

        ValueError for a column that is not fixed-width, that holds nulls, or when there is more than one chunk.
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
    """An iterator over the Records of a result. ``take(count)`` gives the next ones as a list, at less a record."""

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    def take(self, count: int) -> list[Record]:
        """A list of the next `count` Records; fewer only where there are no more."""
    def __iter__(self) -> RecordCursor: ...
    def __next__(self) -> Record: ...
    def __reduce__(self) -> Never: ...

# -------------------------------------------------------------------------------------------------------- consumers

class FrameBuffer:
    """FrameBuffer(size)
    --

    So many bytes by the buffer protocol, contents undefined. They go back to the pool when the last view of them goes:
    fresh memory costs a page fault for every 4 KiB, which is more than decoding what is received into it.
    """

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
    spark_layout: bool = False,
    verify_crc: bool | None = None,
) -> DecodedRecords:
    """Decode what a Fetch brought of one partition, by the rule of Java's consumer (Kafka: CompletedFetch; KIP-98).

    topic, partition:     where it comes from: for the columns of these names, and for Record.
    start_offset:         the position. Each record and batch moves it on; records below it are passed over.
    aborted_transactions: as the answer has them, in any order: (producer_id, first_offset). Taken up once a batch
                          reaches first_offset, held until that producer's ABORT marker or the end of the data. None,
                          as brokers answer under read_uncommitted, is an empty list.
    spark_layout:         timestamps in microseconds, NULL for no headers, every column nullable, as Spark expects.
    Otherwise as decode(). A cut last batch is normal; next_offset is the position afterwards, behind markers, aborted
    records and empty batches. Without records the result holds no rows, in one Arrow batch.

    Returns DecodedRecords. Raises DecodeError with the records before the damage in ``.decoded``; ValueError or
    TypeError for an argument that is none.
    """

@final
class FetchedRecords:
    """What a Fetch brought of one partition, given a few records or a chunk at a time; the rule is decode_fetch()'s.

    Decoded as it is asked for: memory for a chunk and a batch, whatever compressed batches grow to. Arguments as of
    decode_fetch(); columns are those of take_decoded(), take() needs offset among them.

    is_done: all was given; then `position` is behind markers, aborted records and empty batches, and `error` the
    DecodeError that ended it, if one did (or what else kept it from going on).
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
        """The offset that is read next."""
    @property
    def leader_epoch(self) -> int:
        """Of the batch before the position; -1 while nothing was read."""
    @property
    def counts(self) -> Counts:
        """Counts of what was decoded so far."""
    @property
    def remaining_bytes(self) -> int:
        """Bytes of a cut last batch, or not decoded yet."""
    @property
    def bytes_needed(self) -> int:
        """The size of that cut batch as far as it is known, else 0."""
    def take(self, count: int) -> list[Record]:
        """A list of the next `count` Records; fewer only where it is done. RuntimeError while another call decodes."""
    def take_decoded(self) -> DecodedRecords:
        """The next chunk (about 32 MB at most) as DecodedRecords; without rows where it is done. RuntimeError while
        another call decodes.
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
    """What `for` iterates. request: returns the next Delivery, and waits for it."""

    def __init__(self, request: Callable[[], Delivery]) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Record: ...
    def close(self) -> None:
        """Do nothing: the consumer holds all state. Here for callers that close their generators."""

@final
class AsyncRecordIterator:
    """What `async for` iterates. It is its own awaitable, so that a record that is here takes no object and no
    coroutine.

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

# --------------------------------------------------------------------------------------------------------- headers

@final
class RecordBatch:
    """The header of one record batch, and the way to its records. Frozen.

    Fields as Kafka names them (DefaultRecordBatch); base_timestamp is the field as stored, delete_horizon_ms that field
    where attribute bit 6 says so, else None. position: byte in the input or file; path: the file, or None.
    The CRC is checked by records() and ensure_valid(), not before.

    With magic 0 and 1 every message is a batch, a compressed one with messages inside (AbstractLegacyRecordBatch). It
    stores its last offset alone: base_offset of a compressed one is read out of it when asked for (of one that cannot
    be opened it is the stored one), records_count is None, what those formats know nothing of is -1, False or None. Of
    a compressed message whose offset is 0 (old producers) last_offset is 0, whatever is inside.
    """

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    @property
    def base_offset(self) -> int:
        """Offset of the first record there ever was in it; with magic 0 and 1 of the first that is there."""
    @property
    def last_offset(self) -> int:
        """base_offset + last_offset_delta, kept by compaction. With magic 0 and 1 the offset as stored."""
    @property
    def last_offset_delta(self) -> int:
        """last_offset - base_offset, kept by compaction."""
    @property
    def next_offset(self) -> int:
        """last_offset + 1."""
    @property
    def last_sequence(self) -> int:
        """Of the last record there ever was; after 2147483647 comes 0. -1 without sequences."""
    @property
    def position(self) -> int:
        """Byte in the input or file."""
    @property
    def path(self) -> str | None: ...
    @property
    def size_in_bytes(self) -> int:
        """The whole batch, header included."""
    @property
    def batch_length(self) -> int:
        """Bytes after this field."""
    @property
    def partition_leader_epoch(self) -> int:
        """Epoch of the leader that appended it, -1 from a producer."""
    @property
    def magic(self) -> int:
        """Version of the format: 2, or 0 or 1, which old logs hold."""
    @property
    def crc(self) -> int:
        """CRC-32C as stored, over the bytes from the attributes on; with magic 0 and 1 CRC-32, from the magic on."""
    @property
    def attributes(self) -> int:
        """The 16 bits as stored; with magic 0 and 1 they are 8."""
    @property
    def compression(self) -> Compression | int:
        """Compression, or the plain number of an id that is unknown."""
    @property
    def timestamp_type(self) -> TimestampType:
        """TimestampType of all its records."""
    @property
    def base_timestamp(self) -> int:
        """The field as stored, in ms: base of the deltas, or the delete horizon. With magic 0 and 1 the only one."""
    @property
    def max_timestamp(self) -> int:
        """In ms; with LogAppendTime the timestamp of all records. -1 with magic 0."""
    @property
    def delete_horizon_ms(self) -> int | None:
        """When the cleaner may drop its markers and tombstones (KIP-534), or None."""
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
        """Records in it now; None with magic 0 and 1, as Kafka's countOrNull: opening tells."""
    @property
    def is_transactional(self) -> bool:
        """Attribute bit 4."""
    @property
    def is_control_batch(self) -> bool:
        """Attribute bit 5: end-transaction markers and the like, not user records."""
    @property
    def data(self) -> memoryview:
        """The raw batch as a memoryview. TruncatedError if its bytes are not (or no longer) all there."""
    def records(self) -> Iterator[Record]:
        """An iterator of its records, after a check of the CRC; of a control batch its control records."""
    def decode(self, **options: Any) -> DecodedRecords:
        """Decode this batch alone: decode() with the same options, limits and place in errors."""
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
    """The batches in a bytes-like object, a lazy sequence: nothing is copied, nothing decompressed.

    len() and iteration walk the headers as far as needed; a structure that is none is a DecodeError when it is
    reached. A cut last batch ends the sequence: remaining_bytes are there of it, bytes_needed it takes whole (0:
    nothing is cut).
    """

    def __init__(self, data: Buffer, limits: DecodeLimits = ...) -> None: ...
    @property
    def remaining_bytes(self) -> int:
        """Bytes behind the last whole batch."""
    @property
    def bytes_needed(self) -> int:
        """The size of the cut batch at the end as far as it is known, 0 if nothing is cut."""
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
        """The header table as a numpy structured array, a row a batch."""
    def to_arrow(self) -> pyarrow.Table:
        """The header table as a pyarrow Table, a row a batch."""

def header_at(
    data: Buffer, position: int = 0, path: str | None = None, limits: DecodeLimits = ...
) -> RecordBatch | None:
    """The RecordBatch whose header begins at data[0], byte `position` of a file; None if its header is cut.

    The records need not be there: then ``.data`` is a TruncatedError until a loader is given. DecodeError for
    structure.
    """

def find_provable(data: Buffer, above_offset: int, limits: DecodeLimits = ..., budget: int | None = None) -> int:
    """The first position in `data` where a batch begins that can be believed: structure, CRC and header fields right,
    base offset above `above_offset`. -1 if there is none, -2 if telling takes the CRC of more than `budget` bytes.
    """

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
    """Record batches of magic 2 from rows or Arrow data, as Kafka's own writer makes them; the order of rows is kept.

    source: rows, each a Record, a dict or a tuple (key, value, headers, timestamp) whose trailing fields may be left
    out; or anything with ``__arrow_c_stream__`` or ``__arrow_c_array__`` and columns of the names decode() gives
    (offset, timestamp, key, value, headers; key and value binary, string, a view, fixed size or a dictionary of these).
    Other columns of decode() and of Spark's Kafka source follow from the batch and are passed over.

    compression, compression_level: Kafka's numbers, for lz4 too, where 9 is the fast compressor (KIP-390).
    base_offset: of the first batch; None: the first record's own offset, or 0. Records with offsets keep them, gaps
    and all.
    timestamp: in ms, for records without one; with ``timestamp_type="LogAppendTime"`` for all of them.
    max_batch_bytes: of a batch before compression; a record that does not fit into one alone is an EncodeError.
    framing: "confluent" puts the columns key_schema_id and value_schema_id, where not null, before the payload.
    skip_useless_compression: a batch that compression would not make smaller is left uncompressed.

    Raises EncodeError for values that make no batch a broker takes, ValueError and TypeError for what cannot be a
    source or an option.

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
    """Exactly one batch, every header field of it at hand; what is not given is as in `like`, or as encode() has it.

    like: a RecordBatch. Its records, all or what compaction leaves of them, give the same bytes again where it is not
    compressed. last_offset: what the batch stands for although its last records may be gone. delete_horizon_ms:
    KIP-534. Without records it is an empty batch, as the cleaner retains one for its sequence
    (DefaultRecordBatch.writeEmptyHeader); that needs `like` or last_offset. is_control_batch: the records are control
    records, key and value as stored.

    Raises EncodeError as encode() does, and where the records do not fit into one batch.
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
    """The control batch that ends a transaction (EndTransactionMarker), 78 bytes.

    control_type: ControlType.COMMIT or ABORT, also as "COMMIT", 1. timestamp: in ms. Raises EncodeError, ValueError.
    """

@final
class EncodedBatches:
    """Batches as bytes: anything that takes a buffer takes this (``sock.sendall``, ``file.write``, ``bytes``). Frozen.

    len() is in bytes. batches: the headers, as kcodec.batches gives them. records_count: records in all of them.
    next_sequence: the base_sequence of what this producer sends next, -1 without sequences.
    """

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    @property
    def batches(self) -> RecordBatches:
        """RecordBatches over these bytes."""
    @property
    def records_count(self) -> int:
        """Records in all batches."""
    @property
    def next_sequence(self) -> int:
        """After the last record; after 2147483647 comes 0. -1 without sequences."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class RecordBatchBuilder:
    """Fills one batch record by record (MemoryRecordsBuilder). One caller at a time: a second is a RuntimeError.

    Options are those of encode(). size_in_bytes counts before compression, header included. After close() nothing can
    be appended.

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
        """Whether such a record surely fits: its size is reckoned at the most it can take, 36 bytes beside its fields,
        10 more with framing, 10 for each header.
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
        """Append a record; its offset delta is returned. timestamp: ms, or the builder's. offset: the next, or later.

        EncodeError if it does not fit (ask has_room_for), or makes no record; the batch is as it was.
        """
    @property
    def records_count(self) -> int:
        """Records so far."""
    @property
    def size_in_bytes(self) -> int:
        """Bytes so far, header included, before compression."""
    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
    def set_producer_state(
        self, producer_id: int, producer_epoch: int, base_sequence: int, is_transactional: bool
    ) -> None:
        """Who sends it; may be said, and said anew, until close() (ProducerBatch.setProducerState)."""
    def close(self) -> bytes:
        """The batch; b"" if it has no record; called again, the same. EncodeError if its producer state is none."""

# ---------------------------------------------------------------------------------------------------- transactions

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
    """Many of them, sorted once for look-up: give this to a Decoder that reads window after window.

    entries: AbortedTransaction, or (producer_id, first_offset[, last_offset]) in any order.
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
    """Settles the transactions of a log by its headers and markers, window by window.

    A data batch with records begins its producer's transaction, an end-transaction marker ends it (record-format
    rules of ProducerStateManager). ``finished``: tuples (producer_id, producer_epoch, first_offset, last_offset,
    marker_offset, control_type, first_timestamp, marker_timestamp, coordinator_epoch, first_position) in marker
    order; first_offset and last_offset are -1 for a marker without data. ``open``: tuples (producer_id,
    producer_epoch, first_offset, last_offset, first_timestamp, last_timestamp, first_position).

    The CRC of every batch of at most 256 bytes is checked (an end-transaction marker takes 78 to 81): one that is
    damaged must settle nothing. above_offset: with a number every base offset must be above it, and it moves on with
    each batch. last_position: of the last batch walked. max_timestamp: the largest since it was last set to None.
    Messages of magic 0 and 1 are walked as batches of no producer, by the offset they store, which is their last.
    """

    path: str | None
    def __init__(self, *, limits: DecodeLimits = ..., path: str | None = None) -> None: ...
    @property
    def finished(self) -> list[tuple[int, int, int, int, int, int, int, int, int, int]]: ...
    @property
    def open(self) -> list[tuple[int, int, int, int, int, int, int]]:
        """Transactions without a marker so far."""
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
        """Walk the headers in `data`, file bytes from `position` on of a file of `end` bytes.

        Returns (next, needed): the position of the first batch not done, which may lie beyond `data`, and the bytes
        of it that must be in `data` next time. next + needed > end: a cut tail, or the end when next == end.
        """

# ------------------------------------------------------------------------------------------------------- streaming

@final
class Decoder:
    """Decodes a file window by window at constant memory.

    Arguments as of decode(); under read_committed aborted_transactions must be given, each with its last_offset, so
    that no window needs to know another. topic, partition: for the columns of these names. path: named in errors.
    max_rows: a chunk ends before it would have more. spark_layout: timestamps in microseconds, NULL for no headers,
    every field nullable. keep_position: as Java's consumer, from start_offset on each record and batch moves a
    position on, and records below it count as out_of_range. above_offset: every base offset must be above it and
    above the last offset before, else DecodeError.
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
        """Counts of all that was fed."""
    @property
    def next_offset(self) -> int | None:
        """last_offset + 1 of the last whole batch walked; None before the first."""
    @property
    def bytes_needed(self) -> int: ...
    @property
    def schema(self) -> ColumnsSchema:
        """ColumnsSchema of the chunks."""
    def feed(self, data: Buffer, position: int = 0) -> int:
        """Decode every whole batch in `data`, which begins at byte `position` of the file. Returns the bytes consumed.

        The rest is a cut batch of `bytes_needed` bytes (61 or less while its length is unknown), or, where bytes_needed
        is 0, batches not done yet because there is much to take(): do, and feed the rest. DecodeError on damage,
        with its place in the file; the batches before it are kept, and feeding may go on behind it. RuntimeError while
        another call decodes.
        """
    def take(self, flush: bool = False) -> list[DecodedRecords]:
        """The finished chunks, a list of DecodedRecords of at most max_rows rows; `flush` ends the open one too.
        RuntimeError while another call decodes.
        """

@final
class TextBytes:
    """Text that was made, by the buffer protocol, read only. Its memory is used again once nobody looks at it."""

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    @property
    def rows(self) -> int: ...

@final
class TextTemplate:
    """What each record is written as. Frozen.

    parts: bytes, written as they are; or a tuple (kind, column, width, null), trailing ones optional: width is the
    least number of characters (of numbers only), null the bytes written where there is nothing. Kinds are those of
    text.h.
    ValueError for an unknown kind, or a column that a kind does not take.
    """

    def __new__(cls, parts: Iterable[bytes | tuple[object, ...]]) -> TextTemplate: ...
    @property
    def parts(self) -> tuple[bytes | tuple[object, ...], ...]: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    def format(
        self, decoded: DecodedRecords, most: int | None = None, lines: Sequence[tuple[int, bytes]] = ()
    ) -> TextBytes:
        """The records as TextBytes: all, or the first `most` of them.

        lines: (position, bytes) in order of positions; each is written before the records of the batch that begins
        there, or of the first one behind it, and those that are left come last. ValueError where a column is missing.
        """
    def __reduce__(self) -> tuple[Any, ...]: ...

def stream_capsule(
    columns: Iterable[str],
    binary_type: str,
    iterator: Iterable[DecodedRecords],
    spark_layout: bool = False,
    framing: str | None = None,
) -> CapsuleType:
    """An ``arrow_array_stream`` capsule over an iterator of DecodedRecords, drawn as the consumer asks.

    What the iterator raises becomes the stream's error, with its text.
    """

def schema_of(
    columns: Iterable[str], binary_type: str = "binary", spark_layout: bool = False, framing: str | None = None
) -> ColumnsSchema:
    """The ColumnsSchema of results with these columns."""

# -------------------------------------------------------------------------------------------------- keys to partitions

class _ArrowArray(Protocol):
    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]: ...

class _ArrowStream(Protocol):
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...

@final
class Partitions:
    """The partition of each key, in order. Frozen.

    A sequence of int, None where the key is null. Without a copy it is an Arrow array of int32 (``pyarrow.array(it)``,
    ``table.append_column("partition", it)``) and a read-only buffer of int32 (``numpy.asarray(it)``), where -1 stands
    for a null key.
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
    """The partition that Java's producer sends each key to: murmur2 of it, modulo `partitions`.

    keys: an Arrow column (anything with ``__arrow_c_array__`` or ``__arrow_c_stream__``, of binary, string, their large
    and view forms, fixed_size_binary, a dictionary of those, or null), or an iterable of bytes-like objects and None.
    partitions: how many the topic has, at least 1. The result is a Partitions: a sequence of int, Arrow and numpy
    without a copy. A null key has none, so None: producers spread those as they see fit (Java fills a batch for one
    partition, then changes it). An empty key is a key.

    It equals BuiltInPartitioner.partitionForKey, which also is librdkafka's ``murmur2`` partitioner, not its default
    (``consistent_random``, a CRC-32). Raises TypeError and ValueError, EncodeError for invalid Arrow data.

    >>> partition_for([b"order-1", b"order-2", None], 12)
    <Partitions [10, 3, None] of 3 keys>
    """

def check_arrow_columns(source: _ArrowArray | _ArrowStream, columns: Collection[str]) -> None:
    """Raise EncodeError, with column and row, unless the offsets of every row are within these columns. Internal.

    source: a table or stream; columns: names out of key, value and headers. For programs that hand rows of a table to
    other code before encode() sees them.
    """

# ------------------------------------------------------------------------------------------------ before a log takes it

MAX_RECORD_INDEXES: Final[int]

def validate_batch_records(
    batch: RecordBatch, *, is_compacted: bool, is_create_time: bool, now: int, before_max_ms: int, after_max_ms: int
) -> tuple[DecodeError, bool] | tuple[tuple[int, ...], int, int, bool, bool]:
    """What a leader finds in the records of a batch, without offsets checked.

    The answer is (indexes, without_key, wrong_time, is_sequential, has_negative_time), or (error, is_stream_fault) with
    the DecodeError of records that are none. LimitExceededError is raised.
    """

# ------------------------------------------------------------------------------ faces of other clients (kcodec.compat)

DETAILED_COLUMNS: Final[tuple[str, ...]]

@final
class RecordSteps:
    """The records of one fetch, decoded a chunk at a time as they are asked for: memory for a chunk and a batch,
    whatever compressed batches grow to.

    Arguments as of decode(); under read_committed aborted_transactions None is an empty list. keep_position: from
    start_offset on each record and batch moves a position on, and records below it are passed over, as Java's
    consumer does. topic, partition: for the columns of these names. Iteration gives DecodedRecords; at damage, after
    all records before it, a DecodeError.
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
        """The offset behind the last batch that was decoded; start_offset, or None, before the first."""
    @property
    def leader_epoch(self) -> int:
        """Of the last batch that was decoded or passed over; -1 before the first."""
    def __iter__(self) -> RecordSteps: ...
    def __next__(self) -> DecodedRecords: ...

def client_tuples(steps: RecordSteps, detailed: bool = False) -> Iterator[Iterator[tuple[Any, ...]]]:
    """An iterator of iterators, one a chunk, over (offset, timestamp, timestamp_type, key, value, headers).

    headers is a tuple. `detailed`: a list, and behind it partition_leader_epoch, the size of the record in bytes, and
    the bytes of names and values of its headers (-1: it has none); for that, steps are of DETAILED_COLUMNS.
    """

class ClientRecord:
    """ClientRecord(offset, timestamp, timestamp_type, key, value, headers, size_in_bytes=0)
    --

    A record of magic 2: offset, timestamp (ms), timestamp_type (0 create, 1 append), key and value (bytes or None),
    headers (a list of (str, bytes or None)). checksum is None, as magic 2 has none a record.
    size_in_bytes is set where somebody asks for it, see ClientBatch.record_sizes.
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
    def headers(self) -> list[tuple[str, bytes | None]]: ...
    @property
    def size_in_bytes(self) -> int: ...
    def validate_crc(self) -> bool:
        """True: the checksum of magic 2 is the batch's."""
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class ClientRows:
    """An iterator over rows of one chunk: ClientRecords, or tuples where no class of records is given."""

    def __reduce__(self) -> Never: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...

class ClientBatch:
    """A batch by the face both clients share: header fields, validate_crc(), and an iterator of records.

    Base of the adapters' classes, which say in `is_legacy` whether they are for magic 0 and 1, in `record_class` and
    `control_record_class` what records are, in `record_sizes` whether somebody asks for their size, and in
    `translate(error)` which exception stands for a DecodeError.
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
        """Offset of the first record there ever was in it."""
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
        """Whether the CRC is that of the bytes. May be asked before and after iteration."""
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...

class ClientRecords:
    """A record set by the face that both clients share: has_next() and next_batch() over bytes.

    Base of the adapters' classes, which say in `batch_type` what batches are, in `legacy_batch_type` what those of
    magic 0 and 1 are, and in `translate(error)` which exception stands for a DecodeError. A cut batch at the end is no
    batch; damage of structure is an error each time the batch is asked for. Records are decoded ahead, a chunk at a
    time, over the batches of magic 2 that follow.
    """

    batch_type: type[ClientBatch]
    legacy_batch_type: type[ClientBatch]
    def __init__(self, bytes_data: Buffer) -> None: ...
    def translate(self, error: DecodeError) -> Exception:
        """The client's exception for a DecodeError; it is raised from it."""
    @property
    def data(self) -> Buffer:
        """The bytes it was made of."""
    def size_in_bytes(self) -> int:
        """Of all the bytes."""
    def valid_bytes(self) -> int:
        """Bytes of whole batches, up to where a structure is none."""
    def has_next(self) -> bool:
        """Whether next_batch() has something to say: a batch, or what is wrong with it."""
    def next_batch(self) -> Any:
        """The next batch, None at the end."""
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...

class ClientRecordMetadata:
    """ClientRecordMetadata(offset, size, timestamp)
    --

    What append() says of a record: its offset in the batch, its bytes there, its timestamp (ms).
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
    """Bytes that key, value and headers take in a record, their lengths and number included."""

def client_record_size(
    offset_delta: int,
    timestamp_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Iterable[tuple[str, Buffer | None]],
) -> int:
    """Bytes of a record with the varint of its length."""

class ClientBatchBuilder:
    """Fills one batch of magic 2 record by record, for a client's producer.

    Base of the adapters' classes, which say in `clock` who tells the time (ns since 1970) of records without one, in
    `full_at_batch_size` whether a batch may not quite reach batch_size, and in `skip_useless_compression` whether one
    stays uncompressed where that is no gain. The first record is taken whatever its size.
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
        """Append a record. None if the batch is full: it is as it was then. timestamp None: now."""
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
        """Of the first record; None before it."""
    def unknown_codec(self, codec: int) -> Exception:
        """The client's exception for a compression type that nobody knows."""
    def build(self) -> bytearray:
        """The batch, a bytearray; called again, the same."""
    def size(self) -> int:
        """Bytes so far: before compression until it is built, header included."""
    @classmethod
    def size_of(cls, key: Buffer | None, value: Buffer | None, headers: Iterable[tuple[str, Buffer | None]]) -> int:
        """classmethod(function) -> method

        Convert a function to be a class method.

        A class method receives the class as implicit first argument,
        just like an instance method receives the instance.
        To declare a class method, use this idiom:

          class C:
              @classmethod
              def f(cls, arg1, arg2, argN):
                  ...

        It can be called either on the class (e.g. C.f()) or on an instance
        (e.g. C().f()).  The instance is ignored except for its class.
        If a class method is called for a derived class, the derived class
        object is passed as the implied first argument.

        Class methods are different than C++ or Java static methods.
        If you want those, see the staticmethod builtin.
        """
    @classmethod
    def estimate_size_in_bytes(
        cls, key: Buffer | None, value: Buffer | None, headers: Iterable[tuple[str, Buffer | None]]
    ) -> int:
        """classmethod(function) -> method

        Convert a function to be a class method.

        A class method receives the class as implicit first argument,
        just like an instance method receives the instance.
        To declare a class method, use this idiom:

          class C:
              @classmethod
              def f(cls, arg1, arg2, argN):
                  ...

        It can be called either on the class (e.g. C.f()) or on an instance
        (e.g. C().f()).  The instance is ignored except for its class.
        If a class method is called for a derived class, the derived class
        object is passed as the implied first argument.

        Class methods are different than C++ or Java static methods.
        If you want those, see the staticmethod builtin.
        """

# -------------------------------------------------------------------------------- messages of the protocol

LONGEST_STRING: int
DEEPEST_MESSAGE: int
MOST_ELEMENTS: int
MOST_VALUES: int
MOST_UNKNOWN_TAGGED_FIELDS: int
MOST_EMPTY_ELEMENTS: int

class MessageObject:
    """What all messages are, under their declarations: slots by keyword, equality. Internal.

    Derived classes have a slot for each field, and unknown_tagged_fields: ((tag, bytes), ...) that the version read
    does not know, in their order.
    """

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
    """How one class of messages lies in the bytes of one version. Internal; made by kcodec.protocol.schema.

    fields: (name, kind, place, tag, is_array, is_nullable, is_compact, is_ignorable, is_secret, default, plan of the
    struct or None), in order of their declaration.
    """

    message_class: type
    title: str
    is_flexible: bool
    least: int
    def __new__(cls, message_class: type, title: str, is_flexible: bool, fields: Iterable[Iterable[Any]]) -> Self: ...

def read_message(plan: MessagePlan, data: Buffer, position: int = 0, is_whole: bool = True) -> tuple[Any, int]:
    """(the message that begins at a byte of `data`, where it ends). is_whole: nothing may follow it. Internal."""

def write_message(plan: MessagePlan, message: MessageObject, before: bytes = b"", is_frame: bool = False) -> bytes:
    """The bytes of a message behind those of `before`. is_frame: the length of both stands first. Internal."""

def write_message_parts(
    plan: MessagePlan, message: MessageObject, before: bytes = b"", is_frame: bool = False, least_part: int = 0
) -> list[bytes | memoryview]:
    """The same as a list of buffers, in which records of `least_part` bytes and more are the caller's own. Internal."""

# -------------------------------------------------------------------------------- checksum, switches, memory

def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C of a bytes-like object, continuing `value`."""

def crc32c_path_names() -> list[str]:
    """The ways this processor can compute it, fastest first."""

def crc32c_by(name: str, data: Buffer, value: int = 0) -> int:
    """CRC-32C by the path of this name: for tests."""

def use_system_zstd(wanted: bool) -> bool:
    """Decompress zstd by the system's libzstd, of whatever version, from now on, or never; the answer: is it in use."""

def uses_system_zstd() -> bool:
    """Whether the system's libzstd is in use."""

def pool_state() -> tuple[int, int, int]:
    """(bytes kept, buffers kept, buffers handed out and not yet back) of the pool of output memory."""

def trim_pool() -> None:
    """Give all memory that waits in the pool back to the system."""
