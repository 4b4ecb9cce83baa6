# SPDX-License-Identifier: Apache-2.0
# The batch builder with the API that aiokafka and kafka-python share. The adapters of kcodec.compat install it in the
# producers of these clients.

cdef extern from "Python.h":
    object PyByteArray_FromStringAndSize(const char *data, Py_ssize_t size)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    PyObject *PySequence_Fast_GET_ITEM(object sequence, Py_ssize_t index)

cdef enum:
    CLIENT_RECORD_OVERHEAD = 21  # the clients' upper bound of a record's size without key, value and headers
    QUICK_HEADERS = 16           # a record with more headers is read by _RowReader


@cython.no_gc
@cython.freelist(64)
cdef class ClientRecordMetadata:
    """ClientRecordMetadata(offset, size, timestamp)
    --

    The result of append() for a record: its offset, its size in bytes and its timestamp in ms.
    """

    cdef readonly int64_t offset, size, timestamp

    crc = None

    def __init__(self, offset, size, timestamp):
        self.offset = offset
        self.size = size
        self.timestamp = timestamp

    def __repr__(self):
        return f"DefaultRecordMetadata(offset={self.offset!r}, size={self.size!r}, timestamp={self.timestamp!r})"

    def __reduce__(self):
        return type(self), (self.offset, self.size, self.timestamp)


cdef int64_t _payload_size(object value) except -1:
    """Return the number of bytes of a key or value, including the varint of its length."""
    cdef _Source source
    if value is None:
        return 1
    if type(value) is bytes:
        return _bytes_size(PyBytes_GET_SIZE(value))
    source = _Source(value)
    return _bytes_size(source.size())


def client_size_of(key, value, headers):
    """Return the number of bytes of key, value and headers in a record, including their lengths and count."""
    cdef int64_t size = _payload_size(key) + _payload_size(value)
    if not headers:
        return size + 1
    size += _varint_size(len(headers))
    for name, content in headers:
        size += _bytes_size(len(name.encode("utf-8", "surrogateescape"))) + _payload_size(content)
    return size


def client_record_size(offset_delta, timestamp_delta, key, value, headers):
    """Return the number of bytes of a record, including the varint of its length."""
    cdef int64_t size = 1 + _varint_size(offset_delta) + _varint_size(timestamp_delta)
    size += client_size_of(key, value, headers)
    return size + _varint_size(size)


cdef inline bint _quick_payload(object value, Payload *out) noexcept:
    """Set `out` to a value that is bytes or None. Return False for other types."""
    if value is None:
        out.length = PAYLOAD_NULL
        return True
    if type(value) is not bytes:
        return False
    out.bytes = <const uint8_t *>PyBytes_AS_STRING(value)
    out.length = PyBytes_GET_SIZE(value)
    out.readable_end = out.bytes + out.length
    return True


cdef class ClientBatchBuilder:
    """Builds one batch of magic 2, record by record, for a client's producer.

    Base of the adapters' classes, which set `clock` (a function that returns the time in ns since 1970, for records
    without a timestamp), `full_at_batch_size` (whether a batch must stay below batch_size), and
    `skip_useless_compression` (whether a batch stays uncompressed if compression does not make it smaller). The first
    record is accepted whatever its size.
    """

    cdef _Writer writer
    cdef _RowReader reader        # for rows that quick_fields does not support
    cdef RecordFields fields
    cdef HeaderField headers[QUICK_HEADERS]
    cdef object built
    cdef int64_t limit
    cdef int codec, in_use, is_made
    cdef tuple row_headers        # headers of the row that is being appended

    clock = None
    full_at_batch_size = False
    skip_useless_compression = False

    def __init__(self, int magic, int compression_type, is_transactional, int64_t producer_id, int16_t producer_epoch,
                 int32_t base_sequence, Py_ssize_t batch_size):
        assert magic == 2, f"magic {magic} is not written by kcodec: only 2 is"
        cdef _Writer writer = _Writer()
        cdef BatchHeader *header = &writer.settings.header
        self.codec = compression_type & 0x07
        if 0 < self.codec <= COMPRESSION_ZSTD:
            writer.set_compression(Compression(self.codec), None, self.skip_useless_compression)
        header.partition_leader_epoch = -1
        header.producer_id = producer_id
        header.producer_epoch = producer_epoch
        header.base_sequence = base_sequence
        _attribute(header, ATTRIBUTE_TRANSACTIONAL, bool(is_transactional))
        writer.settings.has_base_offset = True
        writer.begin()
        _make_once(&self.is_made, self)  # after the options, because reading them may run code of the application
        self.built = self.reader = None
        self.limit = min(batch_size, 0x7FFFFFFF) - (1 if self.full_at_batch_size else 0)
        self.writer = writer

    cdef bint quick_row(self, object key, object value, object headers) except -1:
        """Set the fields to key, value and headers. Return False unless all are of the exact built-in types.

        With a GIL this neither runs code of the application nor creates objects, which could start a garbage
        collection, so no object changes until the record is written. Without a GIL the caller holds the key and the
        value, and row_headers holds the headers.
        """
        cdef Py_ssize_t count = 0, at
        cdef HeaderField *field
        cdef Py_ssize_t size
        if not (_quick_payload(key, &self.fields.key) and _quick_payload(value, &self.fields.value)):
            return False
        if type(headers) is list:
            if THREADS_RUN_AT_ONCE:  # another thread may change the list
                headers = self.row_headers = tuple(<list>headers)
            count = len(headers)
            if count > QUICK_HEADERS:
                return False
            for at in range(count):
                pair = <object>PySequence_Fast_GET_ITEM(headers, at)
                if type(pair) is not tuple or len(<tuple>pair) != 2:
                    return False
                name = (<tuple>pair)[0]
                field = &self.headers[at]
                if type(name) is not str or not PyUnicode_IS_COMPACT_ASCII(name):
                    return False
                field.name.bytes = <const uint8_t *>PyUnicode_AsUTF8AndSize(name, &size)
                field.name.length = size
                field.name.readable_end = field.name.bytes + size
                if not _quick_payload((<tuple>pair)[1], &field.value):
                    return False
        elif headers is not None and headers is not ():  # testing another object for emptiness may run code
            return False
        self.fields.headers = self.headers
        self.fields.headers_count = count
        return True

    cdef inline bint quick_fields(self, object offset, object timestamp, object key, object value,
                                  object headers) except -1:
        """Set the fields to a record. Return False if an argument is not of an exact built-in type."""
        if type(offset) is not int or type(timestamp) is not int or not self.quick_row(key, value, headers):
            return False
        self.fields.has_offset = True
        self.fields.offset = offset
        self.fields.timestamp = timestamp
        return True

    cdef RecordFields *read_row(self, object offset, object timestamp, object key, object value,
                                object headers) except NULL:
        """Read a row into fields. Raise TypeError for a type that the clients' own builders do not accept."""
        if timestamp is None:
            timestamp = self.clock() // 1_000_000
        if self.quick_fields(offset, timestamp, key, value, headers):
            return &self.fields
        if self.reader is None:
            self.reader = _RowReader(None, False)
        self.reader.forget()
        try:
            self.reader.take(key, value, headers if headers else (), timestamp, offset)
        except EncodeError as error:
            raise TypeError(error.reason) from error
        return &self.reader.fields

    def append(self, offset, timestamp, key, value, headers):
        """Append a record. Return None, and leave the batch unchanged, if it is full. timestamp: in ms; None: now."""
        # With a GIL, rows of built-in types need no guard, because no other code runs between reading and writing them.
        if not THREADS_RUN_AT_ONCE and not self.in_use and self.built is None:
            if self.quick_fields(offset, timestamp, key, value, headers):
                return self.append_fields(&self.fields)
        _enter(&self.in_use, self)  # reading other rows may run code that calls the builder again
        try:
            if self.built is not None:
                raise ValueError("the batch is built: no record can be appended")
            return self.append_fields(self.read_row(offset, timestamp, key, value, headers))
        finally:
            self.row_headers = None
            use_end(&self.in_use)

    cdef inline object append_fields(self, RecordFields *fields):
        cdef BatchWriter *writer = &self.writer.writer
        cdef ClientRecordMetadata metadata
        cdef Fault fault
        cdef int64_t before = writer.length if writer.is_open else BATCH_OVERHEAD
        writer.settings.max_batch_bytes = self.limit if writer.count else 0x7FFFFFFF
        result = writer_append(writer, fields, writer.count, &fault)
        if result == APPEND_FAULT:
            raise _encode_error(&fault)
        if result == APPEND_FULL:
            return None
        metadata = ClientRecordMetadata.__new__(ClientRecordMetadata)
        metadata.offset = writer.last_offset
        metadata.size = writer.length - before
        metadata.timestamp = fields.timestamp
        return metadata

    def set_producer_state(self, producer_id, producer_epoch, base_sequence, is_transactional=None):
        """Set the producer's id, epoch and base sequence; it may be called again until build()."""
        _enter(&self.in_use, self)
        try:
            if self.built is not None:
                raise ValueError("the batch is built: its producer state can no longer change")
            self.writer.set_header(None, None, producer_id, producer_epoch, base_sequence, is_transactional)
            self.writer.writer.settings.header = self.writer.settings.header
            self.writer.writer.base_sequence = self.writer.settings.header.base_sequence
        finally:
            use_end(&self.in_use)

    @property
    def producer_id(self):
        """-1 without one."""
        return self.writer.settings.header.producer_id

    @property
    def producer_epoch(self):
        """-1 without one."""
        return self.writer.settings.header.producer_epoch

    @property
    def base_sequence(self):
        """-1 without one."""
        return self.writer.settings.header.base_sequence

    def unknown_codec(self, codec):
        """Return the client's exception for an unknown compression type."""
        return ValueError(f"compression type {codec} is unknown; expected 0 to 4")

    def build(self):
        """Return the batch. A second call returns the same bytearray."""
        if self.built is not None:
            return self.built
        _enter(&self.in_use, self)
        try:
            return self.build_batch()
        finally:
            use_end(&self.in_use)

    cdef object build_batch(self):
        cdef BatchWriter *writer = &self.writer.writer
        cdef Fault fault
        if self.codec > COMPRESSION_ZSTD:
            raise self.unknown_codec(self.codec)
        _check_producer(&self.writer.settings.header)
        if writer.is_open:
            self.writer.finish_batch()
        elif writer_empty_batch(writer, &fault):
            raise _encode_error(&fault)
        self.built = PyByteArray_FromStringAndSize(<const char *>writer.out.data, writer.finished)
        return self.built

    def size(self):
        """Return the number of bytes so far, header included; before compression until the batch is built."""
        if self.built is not None:
            return len(self.built)
        return self.writer.writer.length if self.writer.writer.is_open else BATCH_OVERHEAD

    @property
    def first_timestamp(self):
        """Timestamp of the first record; None before it."""
        return self.writer.writer.base_timestamp if self.writer.writer.count else None

    @classmethod
    def size_of(cls, key, value, headers):
        """Return the number of bytes of key, value and headers in a record."""
        return client_size_of(key, value, headers)

    @classmethod
    def estimate_size_in_bytes(cls, key, value, headers):
        """Return an upper bound of the size of a batch with only this record."""
        return BATCH_OVERHEAD + CLIENT_RECORD_OVERHEAD + client_size_of(key, value, headers)
