# SPDX-License-Identifier: Apache-2.0
# Records, batches and record sets as aiokafka and kafka-python show them: kcodec.compat gives these to their consumers.

cdef extern from "Python.h":
    object PyUnicode_DecodeUTF8(const char *data, Py_ssize_t size, const char *errors)

cdef enum:
    NAMES_KEPT = 8  # header names remembered, by their place in a record: most records have the same ones in one order


@cython.no_gc
cdef class ClientRecord:
    """ClientRecord(offset, timestamp, timestamp_type, key, value, headers, size_in_bytes=0)
    --

    A record of magic 2: offset, timestamp (ms), timestamp_type (0 create, 1 append), key and value (bytes or None),
    headers (a list of (str, bytes or None)). checksum is None, as magic 2 has none a record.
    size_in_bytes is set where somebody asks for it, see ClientBatch.record_sizes.
    """

    cdef readonly int64_t offset, timestamp, size_in_bytes
    cdef readonly int8_t timestamp_type
    cdef readonly object key, value, headers

    checksum = None

    def __init__(self, offset, timestamp, timestamp_type, key, value, headers, size_in_bytes=0):
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self.headers = headers
        self.size_in_bytes = size_in_bytes

    def validate_crc(self):
        """True: the checksum of magic 2 is the batch's."""
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
    """Bytes of a cell with the varint of its length."""
    cdef const int32_t *ends = <const int32_t *>column.offsets.data
    if column.null_count and not bitmap_get(column.validity.data, row):
        return 1
    return _bytes_size(ends[row + 1] - ends[row])


cdef int64_t _row_size(const Chunk *chunk, int64_t row, int64_t base_offset, int64_t base_timestamp) noexcept nogil:
    """Bytes of a record as every writer makes them, without the varint of that number."""
    cdef const int32_t *lists = <const int32_t *>chunk.header_lists.data
    cdef int64_t at, size = 1 + _cell_size(&chunk.key, row) + _cell_size(&chunk.value, row)
    size += _varint_size((<const int64_t *>chunk.fixed[COLUMN_OFFSET].data)[row] - base_offset)
    size += _varint_size((<const int64_t *>chunk.fixed[COLUMN_TIMESTAMP].data)[row] - base_timestamp)
    size += _varint_size(lists[row + 1] - lists[row])
    for at in range(lists[row], lists[row + 1]):
        size += _cell_size(&chunk.header_name, at) + _cell_size(&chunk.header_value, at)
    return size


cdef class ClientRows:
    """An iterator over rows of one chunk: ClientRecords, or tuples where no class of records is given."""

    cdef _Rows rows
    cdef int64_t row, end, span
    cdef object record_class
    cdef bint plain_class, as_tuples, detailed, with_size
    cdef int64_t base_offset, base_timestamp
    cdef const char *names_at[NAMES_KEPT]
    cdef int32_t names_length[NAMES_KEPT]
    cdef list names

    def __iter__(self):
        return self

    cdef object name_of(self, int64_t place, const char *name, int32_t length):
        if place >= NAMES_KEPT:
            return PyUnicode_DecodeUTF8(name, length, "surrogateescape")
        if self.names_at[place] != NULL and self.names_length[place] == length and (
            memcmp(self.names_at[place], name, length) == 0
        ):
            return self.names[place]
        found = PyUnicode_DecodeUTF8(name, length, "surrogateescape")
        if self.names is None:
            self.names = [None] * NAMES_KEPT
        self.names[place] = found
        self.names_at[place] = name
        self.names_length[place] = length
        return found

    cdef list headers_of(self, const Chunk *chunk, int64_t row):
        cdef const int32_t *lists = <const int32_t *>chunk.header_lists.data
        cdef const int32_t *name_ends = <const int32_t *>chunk.header_name.offsets.data
        cdef const int32_t *value_ends = <const int32_t *>chunk.header_value.offsets.data
        cdef const char *names = <const char *>chunk.header_name.data.data
        cdef const char *values = <const char *>chunk.header_value.data.data
        cdef int64_t at, first = lists[row]
        cdef list headers = []
        for at in range(first, lists[row + 1]):
            name = self.name_of(at - first, names + name_ends[at], name_ends[at + 1] - name_ends[at])
            if chunk.header_value.null_count and not bitmap_get(chunk.header_value.validity.data, at):
                value = None
            else:
                value = PyBytes_FromStringAndSize(values + value_ends[at], value_ends[at + 1] - value_ends[at])
            headers.append((name, value))
        return headers

    cdef object tuple_of(self, const Chunk *chunk, int64_t row):
        """(offset, timestamp, timestamp_type, key, value, headers); detailed: headers a list, and behind it the leader
        epoch, the size of the record and the bytes of its headers, -1 without any.
        """
        cdef const BatchSpan *spans = <const BatchSpan *>chunk.spans.data
        cdef const int32_t *lists = <const int32_t *>chunk.header_lists.data
        cdef const int64_t *timestamps = <const int64_t *>chunk.fixed[COLUMN_TIMESTAMP].data
        while self.span + 1 < chunk.span_count and spans[self.span + 1].first_row <= row:
            self.span += 1
        offset = (<const int64_t *>chunk.fixed[COLUMN_OFFSET].data)[row]
        key = _bytes_at(&chunk.key, &chunk.layout, chunk, row)
        value = _bytes_at(&chunk.value, &chunk.layout, chunk, row)
        if not self.detailed:
            headers = () if lists[row] == lists[row + 1] else tuple(self.headers_of(chunk, row))
            return (offset, timestamps[row], spans[self.span].timestamp_type, key, value, headers)
        return (
            offset, timestamps[row], spans[self.span].timestamp_type, key, value, self.headers_of(chunk, row),
            (<const int32_t *>chunk.fixed[COLUMN_PARTITION_LEADER_EPOCH].data)[row],
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
            record = self.record_class.__new__(self.record_class)
        record.offset = (<const int64_t *>chunk.fixed[COLUMN_OFFSET].data)[row]
        record.timestamp = (<const int64_t *>chunk.fixed[COLUMN_TIMESTAMP].data)[row]
        record.timestamp_type = (<const BatchSpan *>chunk.spans.data)[self.span].timestamp_type
        record.key = _bytes_at(&chunk.key, &chunk.layout, chunk, row)
        record.value = _bytes_at(&chunk.value, &chunk.layout, chunk, row)
        record.headers = self.headers_of(chunk, row)
        if self.with_size:
            record.size_in_bytes = _row_size(chunk, row, self.base_offset, self.base_timestamp)
        return record

    def __next__(self):
        cdef int64_t row = self.row
        if row >= self.end:
            raise StopIteration
        self.row = row + 1
        if self.as_tuples:
            return self.tuple_of(self.rows.chunk, row)
        return self.record_of(self.rows.chunk, row)


cdef ClientRows _client_rows(_Rows rows, int64_t first, int64_t count):
    cdef ClientRows found = ClientRows.__new__(ClientRows)
    found.rows = rows
    found.row = first
    found.end = first + count
    return found


DETAILED_COLUMNS = (*DEFAULT_COLUMNS, "partition_leader_epoch")


def client_tuples(RecordSteps steps not None, bint detailed=False):
    """An iterator of iterators, one a chunk, over (offset, timestamp, timestamp_type, key, value, headers).

    headers is a tuple. `detailed`: a list, and behind it partition_leader_epoch, the size of the record in bytes, and
    the bytes of names and values of its headers (-1: it has none); for that, steps are of DETAILED_COLUMNS.
    """
    cdef ClientRows found
    cdef _Rows rows
    if steps.layout.columns != (DETAILED_COLUMNS if detailed else DEFAULT_COLUMNS):
        raise ValueError(f"client_tuples() needs other columns than {steps.layout.columns}")
    while True:
        rows = steps.take()
        if rows is None:
            return
        found = _client_rows(rows, 0, rows.count)
        found.as_tuples = True
        found.detailed = detailed
        yield found


cdef class ClientBatch:
    """A batch of magic 2 by the face that both clients share: header fields, validate_crc(), and an iterator of records.

    Base of the adapters' classes, which say in `record_class` and `control_record_class` what records are,
    in `record_sizes` whether somebody asks for their size, and in `translate(error)` which exception stands for a
    DecodeError.
    """

    cdef BatchHeader header
    cdef _Source source
    cdef ClientRecords parent
    cdef int64_t first_row
    cdef ClientRows rows

    record_class = ClientRecord
    control_record_class = ClientRecord
    record_sizes = False

    def __init__(self, buffer):
        cdef _Source source = _Source(buffer)
        cdef Fault fault
        cdef Limits limits
        cdef int64_t needed
        _read_limits(DEFAULT_LIMITS, &limits)
        result = walk_batch(source.data(), source.size(), 0, 0, &limits, &self.header, &needed, &fault)
        if result == WALK_BATCH:
            self.source = source
            self.parent = None
            self.rows = None
            return
        if result == WALK_FAULT:
            error = _error_of(&fault)
        else:
            error = TruncatedError(f"{needed} bytes are needed but {source.size()} are there", needed=needed,
                                   available=source.size(), position=0)
        raise self.translate(error) from error

    def translate(self, error):
        """The client's exception for a DecodeError; it is raised from it."""
        return error

    @property
    def base_offset(self):
        """Offset of the first record there ever was in it."""
        return self.header.base_offset

    @property
    def last_offset_delta(self):
        """last_offset - base_offset, kept by compaction."""
        return self.header.last_offset_delta

    @property
    def last_offset(self):
        """base_offset + last_offset_delta."""
        return self.base_offset + self.header.last_offset_delta

    @property
    def next_offset(self):
        """last_offset + 1."""
        return self.last_offset + 1

    @property
    def size_in_bytes(self):
        """The whole batch, header included."""
        return header_size(&self.header)

    @property
    def leader_epoch(self):
        """Epoch of the leader that appended it, -1 from a producer."""
        return self.header.partition_leader_epoch

    @property
    def magic(self):
        """Version of the format."""
        return <int>self.header.magic

    @property
    def crc(self):
        """CRC-32C as stored."""
        return self.header.crc

    @property
    def attributes(self):
        """The 16 bits as stored."""
        return self.header.attributes

    @property
    def compression_type(self):
        """Kafka's number of the codec."""
        return header_compression(&self.header)

    @property
    def timestamp_type(self):
        """0 create, 1 append."""
        return 1 if self.header.attributes & ATTRIBUTE_LOG_APPEND_TIME else 0

    @property
    def is_transactional(self):
        """Attribute bit 4."""
        return bool(header_is_transactional(&self.header))

    @property
    def is_control_batch(self):
        """Attribute bit 5."""
        return bool(header_is_control(&self.header))

    @property
    def first_timestamp(self):
        """The field as stored: base of the deltas, or the delete horizon (attribute bit 6)."""
        return self.header.base_timestamp

    @property
    def max_timestamp(self):
        """In ms."""
        return self.header.max_timestamp

    @property
    def producer_id(self):
        """-1 without one."""
        return self.header.producer_id

    @property
    def producer_epoch(self):
        """-1 without one."""
        return self.header.producer_epoch

    @property
    def base_sequence(self):
        """-1 without one."""
        return self.header.base_sequence

    @property
    def last_sequence(self):
        """Of the last record there ever was; after 2147483647 comes 0."""
        return sequence_after(self.header.base_sequence, self.header.last_offset_delta)

    @property
    def records_count(self):
        """Records in it now."""
        return self.header.records_count

    def __repr__(self):
        return (f"DefaultRecordBatch(magic={self.magic}, base_offset={self.base_offset}, "
                f"last_offset_delta={self.last_offset_delta}, first_timestamp={self.first_timestamp}, "
                f"max_timestamp={self.max_timestamp}, is_transactional={self.is_transactional}, "
                f"producer_id={self.producer_id}, producer_epoch={self.producer_epoch}, "
                f"base_sequence={self.base_sequence}, records_count={self.records_count})")

    def validate_crc(self):
        """Whether the CRC is that of the bytes. May be asked before and after iteration."""
        cdef uint32_t computed
        cdef const uint8_t *covered = self.source.data() + self.header.position + ATTRIBUTES_POSITION
        cdef int64_t size = header_size(&self.header) - ATTRIBUTES_POSITION
        with nogil:
            computed = _crc32c(0, covered, size)
        return computed == self.header.crc

    cdef ClientRows decoded_alone(self):
        cdef RecordSteps steps
        cdef _Rows rows
        whole = memoryview(self.source.owner).cast("B")
        whole = whole[self.header.position : self.header.position + header_size(&self.header)]
        steps = RecordSteps(whole, control_records="include", verify_crc=False)
        try:
            rows = steps.take()
        except DecodeError as error:
            error.position = self.header.position
            raise self.translate(error) from error
        if rows is None:
            rows = _empty_rows(steps.layout)
        return _client_rows(rows, 0, rows.count)

    cdef ClientRows started(self):
        cdef ClientRows rows = None
        cdef const BatchSpan *spans
        if self.rows is None:
            if self.parent is not None:
                rows = self.parent.rows_of(self)
            if rows is None:
                rows = self.decoded_alone()
            if header_is_control(&self.header):
                rows.record_class = self.control_record_class
            else:
                rows.record_class = self.record_class if self.parent is None else self.parent.record_class
            rows.plain_class = rows.record_class is ClientRecord
            rows.with_size = not rows.plain_class and self.record_sizes
            rows.base_offset = self.header.base_offset
            rows.base_timestamp = self.header.base_timestamp
            spans = <const BatchSpan *>rows.rows.chunk.spans.data
            while rows.span + 1 < rows.rows.chunk.span_count and spans[rows.span + 1].first_row <= rows.row:
                rows.span += 1
            self.rows = rows
        return self.rows

    def __iter__(self):
        return self.started()

    def __next__(self):
        return next(self.started())


cdef class ClientRecords:
    """A record set by the face that both clients share: has_next() and next_batch() over bytes.

    Base of the adapters' classes, which say in `batch_class` what batches are, in `legacy_batch(raw, magic)` what those
    of magic 0 and 1 are, and in `translate(error)` which exception stands for a DecodeError. A cut batch at the end is
    no batch; damage of structure is an error each time the batch is asked for. Records are decoded ahead, a chunk at
    a time, over the batches that follow.
    """

    cdef _Source source
    cdef BatchHeader header          # of the next batch, where `result` says it is one
    cdef Limits limits
    cdef Fault fault
    cdef int64_t needed, at, row
    cdef WalkResult result
    cdef readonly bint is_legacy     # the next batch is of magic 0 or 1
    cdef object batch_class, record_class
    cdef RecordSteps steps           # from byte steps_at on, whose first record is row steps_row of all
    cdef int64_t current_row
    cdef _Rows current

    def __init__(self, bytes_data):
        self.source = _Source(bytes_data)
        _read_limits(DEFAULT_LIMITS, &self.limits)
        self.batch_class = self.batch_type
        self.record_class = self.batch_type.record_class
        self.at = self.row = 0
        self.steps = None
        self.current = None
        self.walk()

    batch_type = ClientBatch

    def legacy_batch(self, raw, magic):
        """The batch in `raw` (memoryview), of magic 0 or 1."""
        raise NotImplementedError(f"magic {magic}")

    def translate(self, error):
        """The client's exception for a DecodeError; it is raised from it."""
        return error

    cdef void walk(self) noexcept nogil:
        self.result = walk_batch(self.source.data(), self.source.size(), self.at, 0, &self.limits, &self.header,
                                 &self.needed, &self.fault)
        self.is_legacy = self.result == WALK_FAULT and self.fault.code == FAULT_MAGIC and self.fault.found in (0, 1)
        if self.is_legacy and self.needed > self.source.size() - self.at:
            self.result = WALK_CUT

    cdef void step(self) noexcept nogil:
        self.at = self.at + self.needed
        self.walk()

    @property
    def data(self):
        """The bytes it was made of."""
        return self.source.owner

    def size_in_bytes(self):
        """Of all the bytes."""
        return self.source.size()

    def valid_bytes(self):
        """Bytes of whole batches, up to where a structure is none."""
        cdef ClientRecords ahead = type(self)(self.source.owner)
        while ahead.result == WALK_BATCH or (ahead.is_legacy and ahead.result != WALK_CUT):
            ahead.step()
        return ahead.at

    def has_next(self):
        """Whether next_batch() has something to say: a batch, or what is wrong with it."""
        return self.result != WALK_CUT

    def next_batch(self):
        """The next batch, None at the end."""
        cdef ClientBatch batch
        if self.result == WALK_CUT:
            return None
        if self.is_legacy:
            raw = memoryview(self.source.owner).cast("B")[self.at : self.at + self.needed]
            magic = self.fault.found
            self.step()
            return self.legacy_batch(raw, magic)
        if self.result == WALK_FAULT:
            error = _error_of(&self.fault)
            raise self.translate(error) from error
        batch = self.batch_class.__new__(self.batch_class)
        batch.header = self.header
        batch.source = self.source
        batch.parent = self
        batch.first_row = self.row
        if self.header.records_count > 0:
            self.row += self.header.records_count
        self.step()
        return batch

    def __iter__(self):
        return self

    def __next__(self):
        batch = self.next_batch()
        if batch is None:
            raise StopIteration
        return batch

    cdef ClientRows rows_of(self, ClientBatch batch):
        """The records of a batch out of what is decoded ahead; None: it has to decode itself, and tell what is wrong."""
        cdef int64_t first = batch.first_row, count = batch.header.records_count
        if count <= 0:
            return None
        if self.current is not None and first < self.current_row:
            return None
        try:
            if self.steps is None:
                rest = memoryview(self.source.owner).cast("B")[batch.header.position :]
                self.steps = RecordSteps(rest, control_records="include", verify_crc=False)
                self.current_row = first
                self.current = self.steps.take()
            while self.current is not None and first >= self.current_row + self.current.count:
                self.current_row += self.current.count
                self.current = self.steps.take()
        except DecodeError:
            self.current = None
        if self.current is None or first + count > self.current_row + self.current.count:
            self.steps = self.current = None
            return None
        return _client_rows(self.current, first - self.current_row, count)
