# SPDX-License-Identifier: Apache-2.0
# RecordBatchBuilder: builds one batch record by record, as a producer or a broker does.

cdef class RecordBatchBuilder:
    """Builds one batch, record by record (MemoryRecordsBuilder).

    Options are those of encode(). size_in_bytes is the size before compression, header included. Nothing can be
    appended after close(). Raise RuntimeError if two threads call it at the same time.

    >>> builder = RecordBatchBuilder(timestamp=0)
    >>> builder.append(b"key", b"value"), builder.append(None, b"more")
    (0, 1)
    >>> builder.records_count, len(builder.close())
    (2, 87)
    """

    cdef _Writer writer
    cdef _RowReader reader
    cdef bytes built
    cdef int in_use, is_made

    def __init__(self, *, compression="none", compression_level=None, base_offset=None, timestamp=None,
                 timestamp_type="CreateTime", producer_id=-1, producer_epoch=-1, base_sequence=-1,
                 is_transactional=False, partition_leader_epoch=-1, max_batch_bytes=DEFAULT_MAX_BATCH_BYTES,
                 framing=None, skip_useless_compression=False):
        cdef _Writer writer = _Writer()
        writer.set_header(base_offset, partition_leader_epoch, producer_id, producer_epoch, base_sequence,
                          is_transactional)
        writer.set_compression(compression, compression_level, skip_useless_compression)
        writer.set_timestamps(timestamp, timestamp_type)
        writer.set_limit(max_batch_bytes)
        writer.set_framing(framing)
        writer.begin()
        _make_once(&self.is_made, self)  # after the options, because reading them may run code of the application
        self.built = None
        self.reader = _RowReader(timestamp, writer.framed)
        self.writer = writer

    cdef int enter(self) except -1:
        """Begin to use the writer and the reader, until leave(). Raise RuntimeError during another use.

        Reading a header or a number may run code that calls the builder again, and another thread may call it while
        close() compresses."""
        if self.writer is None:
            raise TypeError("the RecordBatchBuilder is not initialized: its __init__ did not run")
        _enter(&self.in_use, self)
        if self.built is not None:
            use_end(&self.in_use)
            raise ValueError("the builder is closed: nothing can be appended")
        return 0

    cdef int leave(self) except -1:
        self.reader.forget()
        use_end(&self.in_use)
        return 0

    def has_room_for(self, key, value, headers=()):
        """Return whether a record fits for certain.

        Its size is estimated from above: its fields, 36 bytes, 10 for each header, and 10 with framing."""
        self.enter()
        try:
            return self.size_in_bytes + self.estimate(key, value, headers) <= self.writer.settings.max_batch_bytes
        finally:
            self.leave()

    def most_bytes(self, key, value, headers):
        """Return the size in bytes that `has_room_for` assumes of a record. Internal."""
        self.enter()
        try:
            return self.estimate(key, value, headers)
        finally:
            self.leave()

    cdef int64_t estimate(self, object key, object value, object headers) except -1:
        cdef _RowReader reader = self.reader
        cdef int64_t size = RECORD_ROOM + (2 * SCHEMA_ID_BYTES if self.writer.framed else 0), at
        reader.forget()
        reader.row = self.writer.writer.count
        reader.take(key, value, headers, 0, None)
        size += max(reader.fields.key.length, 0) + max(reader.fields.value.length, 0)
        for at in range(reader.fields.headers_count):
            size += HEADER_ROOM + reader.fields.headers[at].name.length + max(reader.fields.headers[at].value.length, 0)
        return size

    def append(self, key, value, headers=(), timestamp=None, offset=None, *, key_schema_id=None, value_schema_id=None):
        """Append a record and return its offset delta.

        timestamp: Milliseconds since 1970; None: the builder's timestamp.
        offset:    Offset of the record, at least the next one; None: the next one.

        Raise EncodeError, and leave the batch unchanged, if the record does not fit (see has_room_for) or is invalid.
        """
        self.enter()
        try:
            return self.append_record(key, value, headers, timestamp, offset, key_schema_id, value_schema_id)
        finally:
            self.leave()

    def append_if_room(self, key, value, headers, timestamp):
        """Append a record and return its offset delta; None if the batch is full. Raise EncodeError for an invalid
        record, and for one that an empty batch cannot hold. Internal."""
        self.enter()
        try:
            return self.append_record(key, value, headers, timestamp, None, None, None, True)
        finally:
            self.leave()

    cdef object append_record(self, object key, object value, object headers, object timestamp, object offset,
                              object key_schema_id, object value_schema_id, bint may_be_full=False):
        cdef _RowReader reader = self.reader
        cdef BatchWriter *writer = &self.writer.writer
        cdef Fault fault
        reader.forget()
        reader.row = writer.count
        reader.take(key, value, headers, timestamp, offset)
        if key_schema_id is not None or value_schema_id is not None:
            if not self.writer.framed:
                raise EncodeError("schema ids need framing='confluent'", field="framing", value=None)
            reader.take_schema_ids(key_schema_id, value_schema_id)
        result = writer_append(writer, &reader.fields, reader.row, &fault)
        if result == APPEND_FULL and may_be_full:
            return None
        if result == APPEND_FULL:
            raise self.writer.full_error(writer.count)
        if result == APPEND_FAULT:
            raise _encode_error(&fault)
        return writer.last_offset - writer.base_offset

    cdef int64_t put(self, bytes key, bytes value, tuple headers, int64_t timestamp) except -2:
        """Append a record of plain bytes and return its offset delta. Return -1 without any change if `append` must be
        called instead, which supports every record and reports errors."""
        cdef RecordFields fields
        cdef BatchWriter *writer
        cdef Fault fault
        if self.writer is None or self.built is not None or not use_begin(&self.in_use):
            return -1
        writer = &self.writer.writer
        memset(&fields, 0, sizeof(fields))
        fields.key.length = fields.value.length = PAYLOAD_NULL
        fields.timestamp = timestamp
        if key is not None:
            _bytes_payload(key, &fields.key)
        if value is not None:
            _bytes_payload(value, &fields.value)
        try:
            if len(headers):
                self.reader.forget()
                self.reader.row = writer.count
                self.reader.take_headers(headers)
                fields.headers = self.reader.fields.headers
                fields.headers_count = self.reader.fields.headers_count
            if writer_append(writer, &fields, writer.count, &fault) != APPEND_DONE:
                return -1
            return writer.last_offset - writer.base_offset
        finally:
            if len(headers):
                self.reader.forget()
            use_end(&self.in_use)

    @property
    def records_count(self):
        """Number of records so far."""
        return self.writer.writer.count

    @property
    def size_in_bytes(self):
        """Number of bytes so far, header included, before compression."""
        cdef BatchWriter *writer = &self.writer.writer
        return writer.length if writer.is_open else max(writer.finished, <int64_t>BATCH_OVERHEAD)

    @property
    def max_batch_bytes(self):
        """Maximum size of the batch before compression. It can be raised while the builder is open."""
        return self.writer.settings.max_batch_bytes

    @max_batch_bytes.setter
    def max_batch_bytes(self, most):
        self.enter()
        try:
            if most < self.writer.settings.max_batch_bytes:
                raise ValueError(f"max_batch_bytes can only be raised, not from {self.max_batch_bytes} to {most}")
            self.writer.set_limit(most)
            self.writer.writer.settings.max_batch_bytes = self.writer.settings.max_batch_bytes
        finally:
            self.leave()

    def successor(self, max_batch_bytes):
        """Return an empty builder with the options of this one, which must be new, and another limit. Internal."""
        cdef RecordBatchBuilder other = RecordBatchBuilder.__new__(RecordBatchBuilder)
        cdef _Writer writer = _Writer.__new__(_Writer)
        self.enter()
        try:
            writer.settings = self.writer.settings
            writer.compressor = self.writer.compressor
            writer.timestamp = self.writer.timestamp
            writer.framed = self.writer.framed
            writer.set_limit(max_batch_bytes)
            writer.begin()
            other.is_made = 1
            other.reader = _RowReader(self.reader.default_timestamp, writer.framed)
            other.writer = writer
        finally:
            self.leave()
        return other

    @property
    def is_closed(self):
        """Whether close() was called."""
        return self.built is not None

    def set_producer_state(self, producer_id, producer_epoch, base_sequence, is_transactional):
        """Set the producer's identity. It can be set again until close() (ProducerBatch.setProducerState).

        producer_id, producer_epoch: As InitProducerId returned them; -1 without one.
        base_sequence:    Sequence number of the first record; -1 without one.
        is_transactional: Whether the batch belongs to a transaction."""
        self.enter()
        cdef _Writer writer = self.writer
        try:
            writer.set_header(None, None, producer_id, producer_epoch, base_sequence, is_transactional)
            writer.writer.settings.header = writer.settings.header
            writer.writer.base_sequence = writer.settings.header.base_sequence
        finally:
            self.leave()

    def close(self):
        """Return the batch; b"" if it has no records. A second call returns the same bytes.

        Raise EncodeError if the producer state is invalid.
        """
        if self.built is None:
            self.enter()
            try:
                self.build()
            finally:
                self.leave()
        return self.built

    def take(self):
        """Close it and return the batch as EncodedBatches, without a copy; afterwards `close` returns b"". Internal."""
        self.enter()
        try:
            return self.finish(b"")
        finally:
            self.leave()

    cdef int build(self) except -1:
        self.built = bytes(self.finish(None))
        return 0

    cdef EncodedBatches finish(self, bytes built):
        cdef EncodedBatches encoded
        _check_producer(&self.writer.settings.header)
        count = self.writer.writer.count
        self.writer.finish_batch()
        encoded = self.writer.take()
        self.built = built
        self.writer.writer.count = count
        self.writer.writer.finished = encoded.size
        return encoded

    def __reduce__(self):
        raise TypeError("a RecordBatchBuilder cannot be copied or pickled: close() returns its batch")

    def __repr__(self):
        state = "closed" if self.is_closed else "open"
        return f"<RecordBatchBuilder {state}, {self.records_count} records, {_readable_size(self.size_in_bytes)}>"
