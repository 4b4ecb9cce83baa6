# SPDX-License-Identifier: Apache-2.0
# Column names and layouts, and Column, a sequence of the values of one column.

# The columns that exist with any framing.
COLUMNS = tuple(_static_text(column_name(column)) for column in range(COLUMN_KEY_SCHEMA_ID))
# Additional columns with framing="confluent".
FRAMING_COLUMNS = tuple(_static_text(column_name(column)) for column in range(COLUMN_KEY_SCHEMA_ID, COLUMN_COUNT))
DEFAULT_COLUMNS = ("offset", "timestamp", "key", "value", "headers")

cdef object _index(object index):
    if not hasattr(index, "__index__"):
        raise TypeError(f"an index must be an int or a slice, not {type(index).__name__}")
    return index.__index__()


cdef dict _COLUMN_IDS = {name: column for column, name in enumerate(COLUMNS + FRAMING_COLUMNS)}
cdef dict _BINARY_TYPES = {"binary": BINARY, "large_binary": LARGE_BINARY, "binary_view": BINARY_VIEW}
# The numpy type of each fixed-width column. Boolean columns are bits, which are unpacked.
cdef dict _NUMPY_TYPES = {
    "offset": "<i8", "timestamp": "<M8[ms]", "timestamp_type": "<i4", "base_offset": "<i8", "producer_id": "<i8",
    "producer_epoch": "<i2", "sequence": "<i4", "partition_leader_epoch": "<i4", "is_transactional": "bool",
    "is_control": "bool", "control_type": "<i2", "partition": "<i4", "key_schema_id": "<i4", "value_schema_id": "<i4",
}


cdef class _Layout:
    """The columns of a result, their order and their types, shared by all of its chunks."""

    cdef ChunkLayout chunk
    cdef ColumnOrder order
    cdef uint32_t asked       # the requested columns: chunk.wanted without those that only other columns need
    cdef readonly tuple columns
    cdef readonly str binary_type
    cdef readonly object framing

    def __cinit__(self, columns, binary_type, bint spark_layout=False, source_columns=False, framing=None):
        if framing is not None:
            self.chunk.framing = _choice("framing", framing, {"confluent": True})
            self.framing = framing
            if columns is DEFAULT_COLUMNS:
                columns = DEFAULT_COLUMNS + FRAMING_COLUMNS
        if isinstance(columns, str):
            raise TypeError(f"columns must be a sequence of names, not the string {columns!r}")
        try:
            self.columns = tuple(columns)
        except TypeError:
            raise TypeError(f"columns must be a sequence of names, not {type(columns).__name__}") from None
        self.chunk.binary_type = _choice("binary_type", binary_type, _BINARY_TYPES)
        self.binary_type = binary_type
        self.chunk.timestamp_microseconds = spark_layout
        self.chunk.null_empty_headers = spark_layout
        self.order.all_nullable = spark_layout
        possible = [name for name in COLUMNS if source_columns or name not in ("topic", "partition")]
        if framing is not None:
            possible += FRAMING_COLUMNS
        for name in self.columns:
            if framing is None and name in FRAMING_COLUMNS:
                raise ValueError(f'column {name!r} needs framing="confluent"')
            if name not in possible:
                raise _choice_error("column", name, possible)
            column = _COLUMN_IDS[name]
            if self.chunk.wanted >> <int>column & 1:
                raise ValueError(f"column {name!r} is requested twice")
            self.chunk.wanted |= 1u << <int>column
            self.order.columns[self.order.count] = column
            self.order.count += 1
        self.asked = self.chunk.wanted
        if self.wants(COLUMN_KEY_SCHEMA_ID):
            self.chunk.wanted |= 1u << <int>COLUMN_KEY
        if self.wants(COLUMN_VALUE_SCHEMA_ID):
            self.chunk.wanted |= 1u << <int>COLUMN_VALUE

    cdef bint wants(self, int column):
        return self.asked >> column & 1


cdef _Layout _DEFAULT_LAYOUT = _Layout(DEFAULT_COLUMNS, "binary")


cdef class _Rows:
    """A range of rows of a chunk, which it keeps alive. Results consist of these."""

    cdef Chunk *chunk
    cdef int64_t first, count

    def __dealloc__(self):
        chunk_release(self.chunk)


cdef _Rows _rows_of(Chunk *chunk, int64_t first, int64_t count):
    """Return rows of a chunk. The result owns the caller's reference to the chunk."""
    cdef _Rows rows = _Rows.__new__(_Rows)
    rows.chunk = chunk
    rows.first = first
    rows.count = count
    return rows


cdef list _split_parts(list parts):
    """Return the same rows in parts that can be exported, which are not longer than chunk_part_rows()."""
    cdef _Rows rows
    cdef int64_t most, at
    found = []
    for rows in parts:
        most = chunk_part_rows(rows.chunk)
        if rows.count <= most:
            found.append(rows)
            continue
        for at in range(0, rows.count, most):
            chunk_retain(rows.chunk)
            found.append(_rows_of(rows.chunk, rows.first + at, min(most, rows.count - at)))
    return found


cdef list _joined_parts(list parts):
    """Return the same rows, with adjacent parts of one chunk joined."""
    cdef _Rows rows, last = None
    found = []
    for rows in parts:
        if last is not None and last.chunk == rows.chunk and last.first + last.count == rows.first:
            chunk_retain(rows.chunk)
            last = found[len(found) - 1] = _rows_of(rows.chunk, last.first, last.count + rows.count)
        else:
            last = rows
            found.append(rows)
    return found


cdef class _ColumnMemory:
    """Read-only access to the memory of a fixed-width column by the buffer protocol."""

    cdef _Rows rows
    cdef int column

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        cdef Py_ssize_t width = column_width(self.column)
        cdef uint8_t *data = self.rows.chunk.fixed[self.column].data
        PyBuffer_FillInfo(buffer, self, data + self.rows.first * width, self.rows.count * width, 1, flags)


cdef object _fixed_at(const Chunk *chunk, int column, int64_t row):
    cdef const uint8_t *data = chunk.fixed[column].data
    cdef int width = column_width(column)
    cdef int64_t nulls
    cdef const uint8_t *validity = chunk_validity(chunk, column, &nulls)
    if nulls and not bitmap_get(validity, row):
        return None
    if width == 0:
        return bool(bitmap_get(data, row))
    row = chunk_fixed_row(chunk, column, row)
    if width == 8:
        return (<const int64_t *>data)[row]
    if width == 4:
        return (<const int32_t *>data)[row]
    return (<const int16_t *>data)[row]


cdef object _cell_at(const Chunk *chunk, int column, int64_t row, _HeaderNames names):
    if column == COLUMN_KEY:
        return _bytes_at(&chunk.key, &chunk.layout, chunk, row)
    if column == COLUMN_VALUE:
        return _bytes_at(&chunk.value, &chunk.layout, chunk, row)
    if column == COLUMN_HEADERS:
        if _has_headers(chunk, row):
            return tuple(names.headers_at(chunk, row))
        return None if chunk.layout.null_empty_headers else ()
    if column == COLUMN_TOPIC:
        return None if chunk.topic == NULL else chunk.topic[: chunk.topic_length].decode("utf-8")
    return _fixed_at(chunk, column, row)


cdef class Column:
    """A column of a result, with its name: a sequence of Python values that exports itself as an Arrow stream."""

    cdef readonly str name
    cdef DecodedRecords decoded
    cdef int column

    def __init__(self):
        raise TypeError("Column cannot be created directly: call DecodedRecords.column()")

    def __len__(self):
        return len(self.decoded)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        place = _index(index)
        if place < 0:
            place += len(self)
        cdef _Rows rows
        cdef int64_t at
        if 0 <= place < len(self):
            at = place
            for rows in self.decoded._parts:
                if at < rows.count:
                    return _cell_at(rows.chunk, self.column, rows.first + at, _HeaderNames.__new__(_HeaderNames))
                at -= rows.count
        raise IndexError(f"row {index} is out of range: column {self.name!r} has {len(self)} rows")

    def __iter__(self):
        cdef _Rows rows
        cdef int64_t row
        names = _HeaderNames.__new__(_HeaderNames)  # can be shared by all parts, whose memory the result keeps
        for rows in self.decoded._parts:
            for row in range(rows.first, rows.first + rows.count):
                yield _cell_at(rows.chunk, self.column, row, names)

    def __eq__(self, other):
        return list(self) == list(other) if isinstance(other, Column) else NotImplemented

    __hash__ = None

    def __repr__(self):
        return f"<Column {self.name} of {len(self)} rows>"

    def __reduce__(self):
        return _column_of, (self.decoded, self.name)

    def __arrow_c_schema__(self):
        return _column_schema_capsule(self.decoded._layout, self.column)

    def __arrow_c_stream__(self, requested_schema=None):
        return _stream_capsule(self.decoded._layout, iter(self.decoded._parts), self.column)


def _column_of(decoded, name):
    """Undo Column.__reduce__."""
    return decoded.column(name)
