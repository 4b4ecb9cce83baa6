# SPDX-License-Identifier: Apache-2.0
# Records with the API that aiokafka and kafka-python share. The adapters of kcodec.compat install them in the consumers
# of these clients.


cdef extern from *:
    """
    // Creates an object as cls.__new__(cls) does, but by the tp_new slot, without attribute lookups.
    static inline PyObject *kcodec_new_object(PyObject *cls, PyObject *no_arguments) {
        return ((PyTypeObject *)cls)->tp_new((PyTypeObject *)cls, no_arguments, NULL);
    }
    """
    object kcodec_new_object(object cls, tuple no_arguments)


@cython.no_gc
@cython.freelist(64)
cdef class ClientRecord:
    """ClientRecord(offset, timestamp, timestamp_type, key, value, headers, size_in_bytes=0)
    --

    A record of magic 2: offset, timestamp (ms), timestamp_type (0 create, 1 append), key and value (bytes or None),
    headers (a list of (str, bytes or None)). checksum is None, as magic 2 has none a record.
    size_in_bytes is set where a caller requests it, see ClientBatch.record_sizes.
    """

    cdef readonly int64_t offset, timestamp, size_in_bytes
    cdef readonly int8_t timestamp_type
    cdef readonly object key, value
    cdef object known_headers
    cdef bint is_unread              # known_headers is a tuple, which is converted to a list when it is first read

    checksum = None

    def __init__(self, offset, timestamp, timestamp_type, key, value, headers, size_in_bytes=0):
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self.known_headers = headers
        self.is_unread = False
        self.size_in_bytes = size_in_bytes

    @property
    def headers(self):
        """A list of (str, bytes or None)."""
        if self.is_unread:
            headers = list(<tuple>self.known_headers)
            if self.is_unread:  # creating the list may start the garbage collector and so code that reads the headers
                self.known_headers = headers
                self.is_unread = False
        return self.known_headers

    def validate_crc(self):
        """Return True: in magic 2 the batch has the checksum."""
        return True

    def __repr__(self):
        return (f"DefaultRecord(offset={self.offset!r}, timestamp={self.timestamp!r}, "
                f"timestamp_type={self.timestamp_type!r}, key={self.key!r}, value={self.value!r}, "
                f"headers={self.headers!r})")

    def __reduce__(self):
        return _rebuild_client_record, (type(self), (self.offset, self.timestamp, self.timestamp_type, self.key,
                                                     self.value, self.headers, self.size_in_bytes))


def _rebuild_client_record(cls, fields):
    """Undo ClientRecord.__reduce__."""
    record = cls.__new__(cls)
    ClientRecord.__init__(record, *fields)
    return record


cdef inline int64_t _varint_size(int64_t value) noexcept nogil:
    cdef uint64_t left = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    cdef int64_t size = 1
    while left >= 0x80:
        left >>= 7
        size += 1
    return size


cdef inline int64_t _bytes_size(int64_t length) noexcept nogil:
    return 1 if length < 0 else _varint_size(length) + length


cdef inline int64_t _cell_size(const BinaryColumn *column, int64_t row) noexcept nogil:
    """Return the number of bytes of a cell, including the varint of its length."""
    cdef const int32_t *ends = <const int32_t *>column.offsets.data
    if column.null_count and not bitmap_get(column.validity.data, row):
        return 1
    return _bytes_size(ends[row + 1] - ends[row])


cdef int64_t _row_size(const Chunk *chunk, int64_t row, int64_t base_offset, int64_t base_timestamp) noexcept nogil:
    """Return the encoded size of a record with shortest varints, without the varint of its length."""
    cdef const int32_t *lists = <const int32_t *>chunk.header_lists.data
    cdef int64_t at, size = 1 + _cell_size(&chunk.key, row) + _cell_size(&chunk.value, row)
    size += _varint_size((<const int64_t *>chunk.fixed[COLUMN_OFFSET].data)[row] - base_offset)
    size += _varint_size((<const int64_t *>chunk.fixed[COLUMN_TIMESTAMP].data)[row] - base_timestamp)
    size += _varint_size(lists[row + 1] - lists[row])
    for at in range(lists[row], lists[row + 1]):
        size += _cell_size(&chunk.header_name, at) + _cell_size(&chunk.header_value, at)
    return size


@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class ClientRows:
    """An iterator over the rows of one chunk: ClientRecord objects, or tuples if no record class is given."""

    cdef _Rows rows
    cdef int64_t row, end, span
    cdef object record_class
    cdef bint plain_class, as_tuples, detailed, with_size
    cdef int in_use
    cdef int64_t base_offset, base_timestamp
    cdef _HeaderNames names

    def __iter__(self):
        return self

    def __reduce__(self):
        raise TypeError("an iterator over records cannot be pickled")

    cdef list headers_of(self, const Chunk *chunk, int64_t row):
        return self.names.headers_at(chunk, row) if _has_headers(chunk, row) else []

    cdef object tuple_of(self, const Chunk *chunk, int64_t row):
        """Return (offset, timestamp, timestamp_type, key, value, headers); timestamps are None in magic 0.

        If `detailed` is true, headers is a list, followed by the leader epoch, the size of the record and the size of
        its headers (-1 without headers).
        """
        cdef const BatchSpan *spans = <const BatchSpan *>chunk.spans.data
        cdef const int64_t *timestamps = <const int64_t *>chunk.fixed[COLUMN_TIMESTAMP].data
        cdef int timestamp_type
        while self.span + 1 < chunk.span_count and spans[self.span + 1].first_row <= row:
            self.span += 1
        timestamp_type = spans[self.span].timestamp_type
        kind = None if timestamp_type < 0 else timestamp_type
        timestamp = None if timestamp_type < 0 and timestamps[row] == -1 else timestamps[row]
        offset = (<const int64_t *>chunk.fixed[COLUMN_OFFSET].data)[row]
        key = _bytes_at(&chunk.key, &chunk.layout, chunk, row)
        value = _bytes_at(&chunk.value, &chunk.layout, chunk, row)
        if not self.detailed:
            headers = self.names.header_tuple_at(chunk, row) if _has_headers(chunk, row) else ()
            return (offset, timestamp, kind, key, value, headers)
        return (
            offset, timestamp, kind, key, value, self.headers_of(chunk, row),
            spans[self.span].leader_epoch,
            _row_size(chunk, row, spans[self.span].base_offset, timestamps[spans[self.span].first_row]),
            self.header_bytes(chunk, row),
        )

    cdef int64_t header_bytes(self, const Chunk *chunk, int64_t row) noexcept nogil:
        cdef const int32_t *lists = <const int32_t *>chunk.header_lists.data
        cdef const int32_t *name_ends = <const int32_t *>chunk.header_name.offsets.data
        cdef const int32_t *value_ends = <const int32_t *>chunk.header_value.offsets.data
        cdef int64_t first = lists[row], end = lists[row + 1]
        return -1 if first == end else name_ends[end] - name_ends[first] + value_ends[end] - value_ends[first]

    cdef ClientRecord record_of(self, const Chunk *chunk, int64_t row):
        cdef ClientRecord record
        if self.plain_class:
            record = ClientRecord.__new__(ClientRecord)
        else:
            record = kcodec_new_object(self.record_class, ())
        record.offset = (<const int64_t *>chunk.fixed[COLUMN_OFFSET].data)[row]
        record.timestamp = (<const int64_t *>chunk.fixed[COLUMN_TIMESTAMP].data)[row]
        record.timestamp_type = (<const BatchSpan *>chunk.spans.data)[self.span].timestamp_type
        record.key = _bytes_at(&chunk.key, &chunk.layout, chunk, row)
        record.value = _bytes_at(&chunk.value, &chunk.layout, chunk, row)
        if THREADS_RUN_AT_ONCE:  # two threads that read the headers at the same time could get different lists
            record.known_headers = self.headers_of(chunk, row)
        else:
            record.known_headers = self.names.header_tuple_at(chunk, row) if _has_headers(chunk, row) else ()
            record.is_unread = True
        if self.with_size:
            record.size_in_bytes = _row_size(chunk, row, self.base_offset, self.base_timestamp)
        return record

    def __next__(self):
        _enter(&self.in_use, self)
        try:
            found = self.next_row()
        finally:
            use_end(&self.in_use)
        if found is None:
            raise StopIteration  # raised directly in __next__, where Cython creates no traceback
        return found

    cdef object next_row(self):
        """Return the next record or tuple; None at the end."""
        cdef int64_t row = self.row
        if row >= self.end:
            return None
        self.row = row + 1
        if self.as_tuples:
            return self.tuple_of(self.rows.chunk, row)
        return self.record_of(self.rows.chunk, row)


cdef ClientRows _client_rows(_Rows rows, int64_t first, int64_t count, _HeaderNames names):
    """Return an iterator over rows of a chunk. names: the chunk's header names, which its iterators share if there is a
    GIL; None: create new ones."""
    cdef ClientRows found = ClientRows.__new__(ClientRows)
    found.rows = rows
    found.names = _HeaderNames.__new__(_HeaderNames) if names is None or THREADS_RUN_AT_ONCE else names
    found.row = first
    found.end = first + count
    return found


DETAILED_COLUMNS = (*DEFAULT_COLUMNS, "partition_leader_epoch")


def client_tuples(RecordSteps steps not None, bint detailed=False):
    """Return an iterator of iterators, one per chunk, over (offset, timestamp, timestamp_type, key, value, headers).

    headers is a tuple. With `detailed` it is a list, followed by partition_leader_epoch, the size of the record in
    bytes, and the size of its header names and values (-1 without headers); `steps` must have the columns
    DETAILED_COLUMNS.
    """
    cdef ClientRows found
    cdef _Rows rows
    if steps.layout.columns != (DETAILED_COLUMNS if detailed else DEFAULT_COLUMNS):
        raise ValueError(f"client_tuples() does not support the columns {steps.layout.columns}")
    while True:
        rows = steps.take()
        if rows is None:
            return
        found = _client_rows(rows, 0, rows.count, None)
        found.as_tuples = True
        found.detailed = detailed
        yield found
