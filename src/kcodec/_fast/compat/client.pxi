# SPDX-License-Identifier: Apache-2.0
# Batches and record sets with the API that aiokafka and kafka-python share. The adapters of kcodec.compat install them
# in the consumers of these clients.

cdef enum:
    CRC_WITHOUT_GIL_FROM = 64 << 10  # bytes; for smaller batches, releasing the GIL takes longer than the checksum


# no_gc: no object that a batch refers to can refer back to it.
@cython.no_gc
cdef class ClientBatch:
    """A batch with the API that aiokafka and kafka-python share: header fields, validate_crc(), an iterator of records.

    Base of the adapters' classes, which set `is_legacy` (magic 0 and 1), `record_class` and `control_record_class`,
    `record_sizes` (whether the size of records is needed), and `translate(error)`, which returns the client's exception
    for a DecodeError.
    """

    cdef BatchHeader header
    cdef _Source source
    cdef ClientRecords parent
    cdef int64_t first_row
    cdef ClientRows rows
    cdef int is_made

    is_legacy = False
    record_class = ClientRecord
    control_record_class = ClientRecord
    record_sizes = False

    def __init__(self, buffer):
        cdef _Source source = _Source(buffer)
        cdef Fault fault
        cdef Limits limits
        cdef BatchHeader header  # assigned to self only together with the bytes it describes
        cdef int64_t needed
        _read_limits(DEFAULT_LIMITS, &limits)
        result = walk_batch(source.data(), source.size(), 0, 0, &limits, &header, &needed, &fault)
        if result == WALK_BATCH and bool(header_is_legacy(&header)) == self.is_legacy:
            if self.source is not None:  # also true for a batch of a record set, whose __init__ was not called
                raise TypeError(f"{type(self).__name__}.__init__ cannot be called a second time")
            _make_once(&self.is_made, self)
            self.header = header
            self.source = source
            return
        if result == WALK_BATCH:
            error = UnsupportedError(f"magic {header.magic} is not that of a {type(self).__name__}", position=0)
        elif result == WALK_FAULT:
            error = _error_of(&fault)
        else:
            error = TruncatedError(f"the batch has {needed} bytes, but {source.size()} are available", needed=needed,
                                   available=source.size(), position=0)
        raise self.translate(error) from error

    def translate(self, error):
        """The client's exception for a DecodeError; it is raised from it."""
        return error

    @property
    def base_offset(self):
        """Offset of the first record the batch was written with."""
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
        """The 16 bits as stored; 8 with magic 0 and 1."""
        return self.header.message_attributes if header_is_legacy(&self.header) else self.header.attributes

    @property
    def compression_type(self):
        """Kafka's number of the codec."""
        return header_compression(&self.header)

    @property
    def timestamp_type(self):
        """0 create, 1 append; None with magic 0."""
        cdef int kind = header_timestamp_type(&self.header)
        return None if kind < 0 else kind

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
        return self.header.max_timestamp if header_is_legacy(&self.header) else self.header.base_timestamp

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
        """Return whether the CRC matches the bytes, before or after iteration."""
        cdef uint32_t computed
        cdef const uint8_t *batch = self.source.data() + self.header.position
        if header_size(&self.header) < CRC_WITHOUT_GIL_FROM:
            computed = header_computed_crc(&self.header, batch)
        else:
            with nogil:
                computed = header_computed_crc(&self.header, batch)
        return computed == self.header.crc

    @property
    def raw(self):
        """Its bytes, a memoryview."""
        cdef int64_t begin = self.header.position
        return memoryview(self.source.owner).cast("B")[begin : begin + header_size(&self.header)]

    cdef ClientRows decoded_alone(self):
        """Decode this batch alone. The CRC of the batch is not checked, as the caller may call validate_crc(). If the
        CRC of a wrapper (magic 0 and 1) is right, the CRCs of the messages inside are checked."""
        cdef RecordSteps steps
        cdef _Rows rows
        check_crcs = header_is_wrapper(&self.header) and self.validate_crc()
        steps = RecordSteps(self.raw, control_records="include", check_crcs=check_crcs)
        try:
            rows = steps.take()
        except DecodeError as error:
            error.position = self.header.position
            raise self.translate(error) from error
        if rows is None:
            rows = _empty_rows(steps.layout)
        return _client_rows(rows, 0, rows.count, None)

    cdef ClientRows started(self):
        cdef ClientRows rows = None
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
            self.rows = rows
        return self.rows

    def __iter__(self):
        return self.started()

    def __next__(self):
        return next(self.started())


cdef class ClientRecords:
    """A record set with the API that aiokafka and kafka-python share: has_next() and next_batch() over bytes.

    Base of the adapters' classes, which set `batch_type`, `legacy_batch_type` (magic 0 and 1), and `translate(error)`,
    which returns the client's exception for a DecodeError. An incomplete batch at the end is left out. A corrupt header
    raises the exception each time the batch is requested. Records are decoded ahead, chunk by chunk, over consecutive
    batches of magic 2.
    """

    cdef _Source source
    cdef BatchHeader header          # header of the next batch if `result` is WALK_BATCH
    cdef Limits limits
    cdef Fault fault
    cdef int64_t needed, at, row
    cdef WalkResult result
    cdef object batch_class, record_class
    cdef RecordSteps steps
    cdef int64_t current_row         # number of the first row of `current` among all records of magic 2
    cdef _Rows current
    cdef _HeaderNames names          # header names of `current`
    cdef int64_t span                # span of `current` in which the last batch read begins
    cdef int in_use, is_made

    batch_type = ClientBatch
    legacy_batch_type = ClientBatch

    def __cinit__(self):
        self.result = WALK_CUT

    def __init__(self, bytes_data):
        source = _Source(bytes_data)
        _make_once(&self.is_made, self)
        self.source = source
        _read_limits(DEFAULT_LIMITS, &self.limits)
        self.batch_class = self.batch_type
        self.record_class = self.batch_type.record_class
        self.at = self.row = 0
        self.steps = None
        self.current = None
        self.walk()

    def translate(self, error):
        """The client's exception for a DecodeError; it is raised from it."""
        return error

    cdef void walk(self) noexcept nogil:
        self.result = walk_batch(self.source.data(), self.source.size(), self.at, 0, &self.limits, &self.header,
                                 &self.needed, &self.fault)

    cdef void step(self) noexcept nogil:
        self.at = self.at + self.needed
        self.walk()

    @property
    def data(self):
        """The bytes of the record set."""
        return self.source.owner

    def size_in_bytes(self):
        """Number of bytes of the record set."""
        return self.source.size()

    def valid_bytes(self):
        """Number of bytes of whole batches, up to the first invalid header."""
        cdef ClientRecords ahead = type(self)(self.source.owner)
        while ahead.result == WALK_BATCH:
            ahead.step()
        return ahead.at

    def has_next(self):
        """Return whether next_batch() returns a batch or raises an error."""
        return self.result != WALK_CUT

    def next_batch(self):
        """Return the next batch; None at the end."""
        _enter(&self.in_use, self)
        try:
            return self.take_batch()
        finally:
            use_end(&self.in_use)

    cdef object take_batch(self):
        cdef ClientBatch batch
        if self.result == WALK_CUT:
            return None
        if self.result == WALK_FAULT:
            error = _error_of(&self.fault)
            raise self.translate(error) from error
        if header_is_legacy(&self.header):
            batch = kcodec_new_object(self.legacy_batch_type, ())
        else:
            batch = kcodec_new_object(self.batch_class, ())
            batch.parent = self
            batch.first_row = self.row
            self.row += max(self.header.records_count, 0)
        batch.header = self.header
        batch.source = self.source
        self.step()
        return batch

    def __iter__(self):
        return self

    def __next__(self):
        batch = self.next_batch()
        if batch is None:
            raise StopIteration
        return batch

    cdef int64_t run_end(self, int64_t begin) noexcept nogil:
        """Return the end of the consecutive batches of magic 2 from `begin` on, at most SLAB batches."""
        cdef int64_t at = begin, needed
        cdef BatchHeader header
        cdef Fault fault
        for _ in range(SLAB):
            if walk_batch(self.source.data(), self.source.size(), at, 0, &self.limits, &header, &needed,
                          &fault) != WALK_BATCH or header_is_legacy(&header):
                break
            at += needed
        return at

    cdef bint decoded_up_to(self, int64_t row) except -1:
        """Decode further chunks until `current` contains that row. Return False if decoding ends before it."""
        while self.current is not None and row >= self.current_row + self.current.count:
            self.current_row += self.current.count
            self.span = 0
            self.names = _HeaderNames.__new__(_HeaderNames)
            try:
                self.current = self.steps.take()
            except DecodeError:
                self.current = None
        return self.current is not None

    cdef int64_t span_at(self, int64_t row) noexcept:
        """Return the span of `current` that contains a row. The search begins at the span found last, because batches
        are mostly read in order."""
        cdef const Chunk *chunk = self.current.chunk
        cdef const BatchSpan *spans = <const BatchSpan *>chunk.spans.data
        if spans[self.span].first_row > row:
            self.span = 0
        while self.span + 1 < chunk.span_count and spans[self.span + 1].first_row <= row:
            self.span += 1
        return self.span

    cdef ClientRows rows_of(self, ClientBatch batch):
        """Return the records of a batch from those decoded ahead. Return None if the batch must decode its records
        itself, which reports errors."""
        _enter(&self.in_use, self)
        try:
            return self.decoded_rows_of(batch)
        finally:
            use_end(&self.in_use)

    cdef ClientRows decoded_rows_of(self, ClientBatch batch):
        cdef int64_t first = batch.first_row, count = batch.header.records_count, begin = batch.header.position
        cdef ClientRows rows
        if count <= 0 or (self.current is not None and first < self.current_row):
            return None
        if not self.decoded_up_to(first):
            ahead = memoryview(self.source.owner).cast("B")[begin : self.run_end(begin)]
            self.steps = RecordSteps(ahead, control_records="include", check_crcs=False)
            self.current = _empty_rows(self.steps.layout)
            self.current_row = first
            if not self.decoded_up_to(first):
                return None
        if first + count > self.current_row + self.current.count:
            self.current = None
            return None
        rows = _client_rows(self.current, first - self.current_row, count, self.names)
        rows.span = self.span_at(rows.row)
        return rows
