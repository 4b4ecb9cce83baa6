# SPDX-License-Identifier: Apache-2.0
# The result of decode(): DecodedRecords, Counts and the schema.

cdef class Counts:
    """Numbers of batches and records that were read, by outcome. Immutable.

    batches, skipped_batches: Number of batches read, and how many of them on_error="skip" passed over.
    records:      Records returned.
    aborted:      Records of aborted transactions.
    control:      Control records that were left out.
    undecided:    Records beyond the last stable offset, or of a transaction whose marker was not found.
    out_of_range: Records outside of start_offset and end_offset.

    Each record counts once. In a batch that was not decompressed the header's records_count is counted.
    """

    cdef readonly int64_t batches, skipped_batches, records, aborted, control, undecided, out_of_range

    def __init__(self, batches=0, skipped_batches=0, records=0, aborted=0, control=0, undecided=0, out_of_range=0):
        self.batches = batches
        self.skipped_batches = skipped_batches
        self.records = records
        self.aborted = aborted
        self.control = control
        self.undecided = undecided
        self.out_of_range = out_of_range

    def __iter__(self):
        return iter((self.batches, self.skipped_batches, self.records, self.aborted, self.control, self.undecided,
                     self.out_of_range))

    def __eq__(self, other):
        return tuple(self) == tuple(other) if isinstance(other, Counts) else NotImplemented

    def __hash__(self):
        return hash(tuple(self))

    def __repr__(self):
        return ("Counts(batches={}, skipped_batches={}, records={}, aborted={}, control={}, undecided={}, "
                "out_of_range={})".format(*self))

    def __reduce__(self):
        return Counts, tuple(self)


cdef Counts _counts_of(const CCounts *counts):
    return Counts(counts.batches, counts.skipped_batches, counts.records, counts.aborted, counts.control,
                  counts.undecided, counts.out_of_range)


_MANY_CHUNKS = "{} needs one chunk but there are {}: go through .chunks, or use the stream"


class ManyChunksError(ValueError, AttributeError):
    """A method that needs the rows in one chunk was called on a result with several chunks."""


cdef class DecodedRecords:
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

    cdef _Layout _layout
    cdef list _parts
    cdef readonly Counts counts
    cdef readonly object next_offset, error
    cdef readonly int64_t remaining_bytes, bytes_needed
    cdef int64_t _rows
    cdef readonly object topic, partition

    def __init__(self):
        raise TypeError("DecodedRecords cannot be created directly: call kcodec.decode()")

    def __len__(self):
        return self._rows

    def __repr__(self):
        notes = [f"{self._rows} records", ", ".join(self._layout.columns)]
        for name in ("aborted", "control", "undecided", "out_of_range", "skipped_batches"):
            if getattr(self.counts, name):
                notes.append(f"{name} {getattr(self.counts, name)}")
        notes.append(f"next_offset {self.next_offset}")
        if self.remaining_bytes:
            notes.append(f"{self.remaining_bytes} bytes remain")
        if self.error is not None:
            notes.append(f"error: {self.error}")
        return f"<DecodedRecords {'; '.join(notes)}>"

    def __eq__(self, other):
        if not isinstance(other, DecodedRecords):
            return NotImplemented
        return _comparable(self) == _comparable(other)

    __hash__ = None

    @property
    def columns(self):
        """Names of the columns, in the order requested."""
        return self._layout.columns

    @property
    def schema(self):
        """Schema for Arrow libraries: ``pyarrow.schema(decoded.schema)``."""
        return ColumnsSchema(self._layout)

    @property
    def chunks(self):
        """The chunks, each as DecodedRecords; counts and offsets are those of the whole result."""
        return tuple(_decoded_of(self._layout, [part], self) for part in self._parts)

    def records(self):
        """Return an iterator over the records, a RecordCursor."""
        return _cursor_of(self)

    def column(self, name):
        """Return one column. Raise ValueError if it was not requested."""
        if name not in self._layout.columns:
            raise _choice_error("column", name, self._layout.columns)
        cdef Column column = Column.__new__(Column)
        column.name = name
        column.decoded = self
        column.column = _COLUMN_IDS[name]
        return column

    def to_numpy(self, name):
        """Return a fixed-width column as a numpy array; timestamp becomes datetime64[ms].

        No bytes are copied, except for booleans. Raise ValueError if the column has variable width, contains nulls, or
        has more than one chunk.
        """
        import numpy

        self.column(name)
        if name not in _NUMPY_TYPES:
            raise ValueError(f"column {name!r} has no fixed width, which numpy cannot hold: use Arrow")
        joined = _joined_parts(self._parts)
        if len(joined) != 1:
            raise ManyChunksError(_MANY_CHUNKS.format("to_numpy", len(joined)))
        cdef _Rows rows = joined[0]
        cdef int column = _COLUMN_IDS[name]
        cdef int64_t nulls
        chunk_validity(rows.chunk, column, &nulls)
        if nulls:
            raise ValueError(f"column {name!r} contains nulls, which numpy cannot hold: use Arrow")
        cdef _ColumnMemory memory = _ColumnMemory.__new__(_ColumnMemory)
        cdef int64_t row
        if column_width(column) == 0:
            return numpy.array(
                [bitmap_get(rows.chunk.fixed[column].data, row) for row in range(rows.first, rows.first + rows.count)],
                dtype=bool,
            )
        memory.rows = rows
        memory.column = column
        kind = _NUMPY_TYPES[name]
        if name == "timestamp" and self._layout.chunk.timestamp_microseconds:
            kind = "<M8[us]"
        if rows.chunk.holds_one_batch and column_is_constant(column):
            return numpy.full(rows.count, _fixed_at(rows.chunk, column, rows.first) if rows.count else 0, dtype=kind)
        return numpy.frombuffer(memory, dtype=kind)

    cdef _Rows _one_part(self, str what):
        if len(self._parts) != 1:
            raise ManyChunksError(_MANY_CHUNKS.format(what, len(self._parts)))
        return self._parts[0]

    def __arrow_c_schema__(self):
        return _schema_capsule(self._layout)

    @property
    def __arrow_c_array__(self):
        """Method that returns the schema and array capsules of the only chunk. Raise ManyChunksError if there are more.

        It is a property, and the error is also an AttributeError, so that ``hasattr`` returns False for several chunks
        and an Arrow library uses the stream instead.
        """
        if len(self._parts) != 1:
            raise ManyChunksError(_MANY_CHUNKS.format("__arrow_c_array__", len(self._parts)))
        return self._export_array

    def _export_array(self, requested_schema=None):
        return _schema_capsule(self._layout), _array_capsule(self._layout, self._one_part("__arrow_c_array__"))

    def __arrow_c_stream__(self, requested_schema=None):
        return _stream_capsule(self._layout, iter(self._parts), -1)

    def __reduce__(self):
        layout = self._layout
        state = (self.counts, self.next_offset, self.error, self.remaining_bytes, self.bytes_needed, self.topic,
                 self.partition)
        settings = (layout.columns, layout.binary_type, bool(layout.chunk.timestamp_microseconds), True, layout.framing)
        return _rebuild_decoded, (settings, [_pack_rows(rows) for rows in _joined_parts(self._parts)], state)


cdef tuple _comparable(DecodedRecords decoded):
    rows = [list(decoded.column(name)) for name in decoded._layout.columns]
    return (decoded._layout.columns, rows, decoded.counts, decoded.next_offset, decoded.remaining_bytes)


cdef class ColumnsSchema:
    """Arrow schema of a result, for every library that accepts ``__arrow_c_schema__``."""

    cdef _Layout _layout

    def __init__(self, _Layout layout not None):
        self._layout = layout

    def __arrow_c_schema__(self):
        return _schema_capsule(self._layout)

    def __eq__(self, other):
        return self.__reduce__() == other.__reduce__() if isinstance(other, ColumnsSchema) else NotImplemented

    def __hash__(self):
        return hash(self.__reduce__())

    def __repr__(self):
        return f"<ColumnsSchema {', '.join(self._layout.columns)}; {self._layout.binary_type}>"

    def __reduce__(self):
        layout = self._layout
        return _rebuild_schema, (layout.columns, layout.binary_type, bool(layout.chunk.timestamp_microseconds),
                                 layout.framing)


def _rebuild_schema(columns, binary_type, spark_layout, framing=None):
    """Undo ColumnsSchema.__reduce__."""
    return ColumnsSchema(_Layout(columns, binary_type, spark_layout, True, framing))


cdef DecodedRecords _decoded_of(_Layout layout, list parts, DecodedRecords like=None):
    cdef DecodedRecords decoded = DecodedRecords.__new__(DecodedRecords)
    cdef _Rows rows
    for rows in parts:
        decoded._rows += rows.count
        if rows.count > chunk_part_rows(rows.chunk):
            parts = _split_parts(parts)  # does not change the list that the loop iterates over
    decoded._layout = layout
    decoded._parts = parts
    if like is not None:
        decoded.counts = like.counts
        decoded.next_offset = like.next_offset
        decoded.error = like.error
        decoded.remaining_bytes = like.remaining_bytes
        decoded.bytes_needed = like.bytes_needed
        decoded.topic = like.topic
        decoded.partition = like.partition
    return decoded


# Pickling. A chunk is pickled as a whole, as the bytes of its buffers. A part with only some of its rows is sliced
# after unpickling.

cdef bytes _buffer_bytes(const Buffer *buffer, int64_t size):
    return b"" if buffer.data == NULL else PyBytes_FromStringAndSize(<const char *>buffer.data, size)


cdef int _fill_buffer(Buffer *buffer, bytes data) except -1:
    if not data:
        return 0
    if buffer_acquire(buffer, len(data)):
        raise MemoryError("no memory for columns")
    memcpy(buffer.data, <const char *>data, len(data))
    return 0


cdef tuple _pack_binary(const BinaryColumn *column, int64_t rows, int element):
    return (column.length, column.null_count, _buffer_bytes(&column.offsets, (rows + (element < 16)) * element),
            _buffer_bytes(&column.data, column.length), _buffer_bytes(&column.validity, (rows + 7) // 8))


cdef int _unpack_binary(BinaryColumn *column, tuple packed) except -1:
    column.length, column.null_count, offsets, data, validity = packed
    _fill_buffer(&column.offsets, offsets)
    _fill_buffer(&column.data, data)
    return _fill_buffer(&column.validity, validity)


cdef tuple _pack_rows(_Rows part):
    cdef Chunk *chunk = part.chunk
    cdef int64_t rows = chunk.rows, headers = chunk.header_count, width
    cdef BinaryType binary_type = chunk.layout.binary_type
    cdef int element = 4 if binary_type == BINARY else 8 if binary_type == LARGE_BINARY else 16
    cdef int column
    fixed = []
    for column in range(COLUMN_COUNT):
        width = column_width(column)
        width *= chunk_fixed_rows(chunk, column, rows)
        fixed.append(_buffer_bytes(&chunk.fixed[column], width if column_width(column) else (rows + 7) // 8))
    topic = None if chunk.topic == NULL else chunk.topic[: chunk.topic_length]
    sources = [PyBytes_FromStringAndSize(<const char *>chunk.view_sources[at].base, chunk.view_sources[at].length)
               for at in range(chunk.view_source_count)]
    return (
        (part.first, part.count, rows, headers, chunk.header_list_nulls, chunk.control_type_nulls,
         chunk.schema_id_nulls[0], chunk.schema_id_nulls[1], chunk.holds_one_batch),
        fixed,
        _buffer_bytes(&chunk.control_type_validity, (rows + 7) // 8),
        [_buffer_bytes(&chunk.schema_id_validity[0], (rows + 7) // 8),
         _buffer_bytes(&chunk.schema_id_validity[1], (rows + 7) // 8)],
        _pack_binary(&chunk.key, rows, element),
        _pack_binary(&chunk.value, rows, element),
        _buffer_bytes(&chunk.header_lists, (rows + 1) * 4),
        _pack_binary(&chunk.header_name, headers, 4),
        _pack_binary(&chunk.header_value, headers, 4),
        _buffer_bytes(&chunk.spans, chunk.span_count * <int64_t>sizeof(BatchSpan)),
        _buffer_bytes(&chunk.view_arena, chunk.view_arena_length),
        sources,
        topic,
        (chunk.partition, chunk.has_partition),
    )


cdef _Rows _unpack_rows(_Layout layout, tuple packed):
    (numbers, fixed, control, schema_ids, key, value, lists, name, header_value, spans, arena, sources, topic,
     partition) = packed
    first, count, n_rows, headers, _list_nulls, control_nulls, key_nulls, value_nulls, holds_one_batch = numbers
    cdef Chunk *chunk = chunk_new(&layout.chunk)
    cdef Fault fault
    if chunk == NULL:
        raise MemoryError("no memory for columns")
    part = _rows_of(chunk, first, count)
    for column in range(COLUMN_COUNT):
        _fill_buffer(&chunk.fixed[<int>column], fixed[column])
    _fill_buffer(&chunk.control_type_validity, control)
    _fill_buffer(&chunk.schema_id_validity[0], schema_ids[0])
    _fill_buffer(&chunk.schema_id_validity[1], schema_ids[1])
    chunk.schema_id_nulls[0] = key_nulls
    chunk.schema_id_nulls[1] = value_nulls
    chunk.is_split = True  # the packed payloads no longer have the prefix of their schema ids
    chunk.holds_one_batch = holds_one_batch
    _unpack_binary(&chunk.key, key)
    _unpack_binary(&chunk.value, value)
    _fill_buffer(&chunk.header_lists, lists)
    _unpack_binary(&chunk.header_name, name)
    _unpack_binary(&chunk.header_value, header_value)
    _fill_buffer(&chunk.spans, spans)
    _fill_buffer(&chunk.view_arena, arena)
    chunk.rows = chunk.row_capacity = n_rows
    chunk.header_count = chunk.header_capacity = headers
    chunk.control_type_nulls = control_nulls
    chunk.span_count = len(spans) // sizeof(BatchSpan)
    chunk.view_arena_length = len(arena)
    chunk.partition, chunk.has_partition = partition
    if topic is not None:
        chunk.topic = <const char *>malloc(len(topic) + 1)
        if chunk.topic == NULL:
            raise MemoryError("no memory for topic")
        memcpy(<void *>chunk.topic, <const char *>topic, len(topic))
        chunk.topic_length = len(topic)
    if sources:
        chunk.view_sources = <ViewSource *>calloc(len(sources), sizeof(ViewSource))
        if chunk.view_sources == NULL:
            raise MemoryError("no memory for views")
        for at, source in enumerate(sources):
            chunk.view_sources[<int>at].base = <const uint8_t *><const char *>source
            chunk.view_sources[<int>at].length = len(source)
        chunk.view_source_count = len(sources)
        Py_INCREF(sources)
        chunk.owner = <void *>sources
        chunk.release_owner = _release_object
    if chunk_finish(chunk, &fault):
        raise _error_of(&fault)
    return part


def _rebuild_decoded(settings, parts, state):
    """Undo DecodedRecords.__reduce__."""
    cdef DecodedRecords decoded
    layout = _Layout(*settings)
    decoded = _decoded_of(layout, [_unpack_rows(layout, part) for part in parts])
    (decoded.counts, decoded.next_offset, decoded.error, decoded.remaining_bytes, decoded.bytes_needed, decoded.topic,
     decoded.partition) = state
    return decoded
