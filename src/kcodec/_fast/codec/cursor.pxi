# SPDX-License-Identifier: Apache-2.0
# RecordCursor: an iterator over records, which can also return several at a time.

cdef tuple _KINDS_OF_TIME = (TimestampType.NO_TIMESTAMP_TYPE, TimestampType.CREATE_TIME,
                             TimestampType.LOG_APPEND_TIME)


cdef class RecordCursor:
    """An iterator over the records of a result. ``take(count)`` returns several at once, at less cost."""

    cdef _Layout layout
    cdef list parts
    cdef RecordSteps steps           # used instead of parts: decodes the next chunk when it is needed
    cdef Py_ssize_t next_part
    cdef _Rows rows
    cdef Chunk *chunk
    cdef int64_t row, end, span, span_end
    cdef BatchSpan current
    cdef _HeaderNames names
    cdef object topic, partition, leader_epoch, timestamp_type
    cdef bint has_offset, has_timestamp, has_key, has_value, has_headers, has_schema_ids
    cdef int in_use                  # guards calls from Python; FetchedRecords has its own flag

    def __init__(self):
        raise TypeError("RecordCursor cannot be created directly: call DecodedRecords.records()")

    def __iter__(self):
        return self

    def __reduce__(self):
        raise TypeError("an iterator over records cannot be pickled")

    def __next__(self):
        _enter(&self.in_use, self)
        try:
            while self.row >= self.end:
                if not self.next_rows():
                    raise StopIteration
            return self.next_record()
        finally:
            use_end(&self.in_use)

    def take(self, count):
        """Return a list of the next `count` records; fewer only at the end."""
        cdef int64_t most = _int64(count, "count")
        _enter(&self.in_use, self)
        try:
            return self.take_records(most)
        finally:
            use_end(&self.in_use)

    cdef list take_records(self, int64_t most):
        cdef int64_t here
        cdef list records = []
        while most > 0 and (self.row < self.end or self.next_rows()):
            here = min(most, self.end - self.row)
            most -= here
            while here:
                records.append(self.next_record())
                here -= 1
        return records

    cdef bint next_rows(self) except -1:
        """Go to the next rows. Return False if there are no more."""
        cdef _Rows rows
        if self.steps is not None:
            rows = self.steps.take()
        elif self.next_part < len(self.parts):
            rows = self.parts[self.next_part]
            self.next_part += 1
        else:
            rows = None
        self.rows = rows
        self.row = self.end = 0
        if rows is None:
            self.chunk = NULL
            return False
        self.chunk = rows.chunk
        self.row = rows.first
        self.end = rows.first + rows.count
        self.span = -1
        self.span_end = self.row
        self.names = _HeaderNames.__new__(_HeaderNames)
        return True

    cdef int next_span(self):
        """Advance to the span that contains the current row."""
        cdef const BatchSpan *spans = <const BatchSpan *>self.chunk.spans.data
        while True:
            self.span += 1
            if self.span + 1 >= self.chunk.span_count:
                self.span_end = INT64_MAX
                break
            self.span_end = spans[self.span + 1].first_row
            if self.span_end > self.row:
                break
        self.current = spans[self.span]
        self.timestamp_type = _KINDS_OF_TIME[self.current.timestamp_type + 1]
        if self.topic is not None and self.current.leader_epoch >= 0:
            self.leader_epoch = self.current.leader_epoch
        else:
            self.leader_epoch = None
        return 0

    cdef Record next_record(self):
        cdef const Chunk *chunk = self.chunk
        cdef int64_t row = self.row, offset
        cdef Record record = Record.__new__(Record)
        if row >= self.span_end:
            self.next_span()
        self.row = row + 1
        record._key = _bytes_at(&chunk.key, &chunk.layout, chunk, row) if self.has_key else _ABSENT
        record._value = _bytes_at(&chunk.value, &chunk.layout, chunk, row) if self.has_value else _ABSENT
        if not self.has_headers:
            record._headers = _ABSENT
        else:
            record._headers = self.names.header_tuple_at(chunk, row) if _has_headers(chunk, row) else ()
        if self.has_timestamp:
            record._timestamp = (<const int64_t *>chunk.fixed[COLUMN_TIMESTAMP].data)[row]
        else:
            record._timestamp = _ABSENT
        if self.has_offset:
            offset = (<const int64_t *>chunk.fixed[COLUMN_OFFSET].data)[row]
            record._offset = offset
            record._timestamp_type = self.timestamp_type
            record._sequence = sequence_after(self.current.base_sequence, offset - self.current.base_offset)
        else:
            record._offset = record._timestamp_type = record._sequence = _ABSENT
        if self.has_schema_ids:
            self.take_schema_ids(record, row)
        if not self.has_key or not self.has_value:
            record._control_type = record._coordinator_epoch = _ABSENT_KEY if not self.has_key else _ABSENT_VALUE
        elif self.current.is_control:
            record._control_type = _control_type_of(record._key)
            record._coordinator_epoch = _coordinator_epoch_of(record._control_type, record._value)
        record._topic = self.topic
        record._partition = self.partition
        record._leader_epoch = self.leader_epoch
        return record

    cdef int take_schema_ids(self, Record record, int64_t row) except -1:
        if self.layout.wants(COLUMN_KEY_SCHEMA_ID):
            record._key_schema_id = _fixed_at(self.chunk, COLUMN_KEY_SCHEMA_ID, row)
        if self.layout.wants(COLUMN_VALUE_SCHEMA_ID):
            record._value_schema_id = _fixed_at(self.chunk, COLUMN_VALUE_SCHEMA_ID, row)
        return 0


cdef RecordCursor _new_cursor(_Layout layout, object topic, object partition):
    cdef RecordCursor cursor = RecordCursor.__new__(RecordCursor)
    cursor.layout = layout
    cursor.topic = topic
    cursor.partition = partition
    cursor.has_offset = layout.wants(COLUMN_OFFSET)
    cursor.has_timestamp = layout.wants(COLUMN_TIMESTAMP)
    cursor.has_key = layout.wants(COLUMN_KEY)
    cursor.has_value = layout.wants(COLUMN_VALUE)
    cursor.has_headers = layout.wants(COLUMN_HEADERS)
    cursor.has_schema_ids = layout.wants(COLUMN_KEY_SCHEMA_ID) or layout.wants(COLUMN_VALUE_SCHEMA_ID)
    return cursor


cdef RecordCursor _cursor_of(DecodedRecords decoded):
    cdef RecordCursor cursor = _new_cursor(decoded._layout, decoded.topic, decoded.partition)
    cursor.parts = decoded._parts
    return cursor
