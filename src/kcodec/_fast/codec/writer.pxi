# SPDX-License-Identifier: Apache-2.0
# _Writer: checks the settings of batches and appends rows and Arrow data to a BatchWriter.

_ENCODE_TEXTS = {
    FAULT_ENCODE_NULL: "{field} is null, but must have a value",
    FAULT_ENCODE_TIMESTAMP: "timestamp {found} is below -1, which means no timestamp",
    FAULT_ENCODE_SECONDS: "column '{field}': {found} seconds is outside 0 to {expected}, the range of timestamps in "
                          "milliseconds; check the unit of the column",
    FAULT_ENCODE_OFFSET: "{field} {found} is outside 0 to 9223372036854775806",
    FAULT_ENCODE_LAST_OFFSET: "base_offset {found} is too large: the last offset of the batch, which is {expected} "
                              "above it, must be at most 9223372036854775806",
    FAULT_ENCODE_OFFSET_BASE: "offset {found} is below base_offset {expected}",
    FAULT_ENCODE_OFFSET_ORDER: "offset {found} is not above the previous offset, {expected}",
    FAULT_ENCODE_OFFSET_DELTA: "offset {found} is too far from base_offset {expected}: a batch spans at most "
                               "2147483647 offsets",
    FAULT_ENCODE_INT32: "column '{field}': {found} is outside -2147483648 to 2147483647",
    FAULT_ENCODE_LENGTH: "{field}: the size {found} is outside 0 to {expected}",
    FAULT_ENCODE_INVALID: "column '{field}' holds invalid Arrow data: an offset, a view or a dictionary index of this "
                          "row points outside of the column; check the program that created the column",
    FAULT_ENCODE_TOO_LARGE: "a {field} of {found} bytes exceeds max_batch_bytes {expected}",
}


cdef object _encode_error(const Fault *fault):
    """Return the exception for a fault of encoding."""
    if fault.code not in _ENCODE_TEXTS:
        return _error_of(fault)
    cdef int64_t found = fault.found, expected = fault.expected
    field = _static_text(fault.field)
    reason = _ENCODE_TEXTS[fault.code].format(field=field, found=found, expected=expected)
    value = None if fault.code == FAULT_ENCODE_NULL or fault.code == FAULT_ENCODE_INVALID else found
    return EncodeError(reason, field=field, value=value, row=fault.record if fault.record >= 0 else None)


# Kafka's name -> member. A lookup takes a tenth of the time of calling the enumeration.
cdef dict _COMPRESSIONS = {member.label: member for member in Compression}
cdef dict _TIMESTAMP_TYPES = {member.label: member for member in TimestampType}


cdef object _kafka_enum(object kind, dict by_name, str name, object value):
    """Return the member of a Kafka enumeration for a member, a name or a number. Raise ValueError with a suggestion."""
    if type(value) is str:
        member = by_name.get(value)
        if member is not None:
            return member
    elif not isinstance(value, (str, kind)):
        number = _integer(value)
        if number is None:  # also True, which is equal to 1
            raise _choice_error(name, value, [member.label for member in kind])
        value = number
    try:
        return kind(value)
    except ValueError:
        raise _choice_error(name, value, [member.label for member in kind]) from None


cdef int64_t _field_in(object value, str field, int64_t least, int64_t most) except? -1:
    number = _integer(value)
    if number is None:
        raise EncodeError(f"{field} must be an int, not {type(value).__name__}", field=field, value=value)
    if not least <= number <= most:
        raise EncodeError(f"{field} {shown(number)} is outside {least} to {most}", field=field, value=value)
    return number


cdef int _check_producer(const BatchHeader *header) except -1:
    """Raise EncodeError if the producer state is invalid (MemoryRecordsBuilder.validateProducerState)."""
    if header.producer_id == -1:
        if header_is_transactional(header) and not header_is_control(header):
            raise EncodeError("a transactional batch needs a producer_id", field="producer_id", value=-1)
        return 0
    if header.producer_epoch < 0:
        raise EncodeError("a batch with a producer_id needs a producer_epoch", field="producer_epoch",
                          value=header.producer_epoch)
    if header.base_sequence < 0 and not header_is_control(header):
        raise EncodeError("a batch with a producer_id needs a base_sequence", field="base_sequence",
                          value=header.base_sequence)
    return 0


cdef int _attribute(BatchHeader *header, int bits, bint wanted) except -1:
    header.attributes = <int16_t>((header.attributes & ~bits) | (bits if wanted else 0))
    return 0


# An uncompressed batch of at most this size is finished, in a few microseconds, without releasing the GIL.
cdef enum:
    QUICK_BATCH_BYTES = 64 << 10


# no_gc: a writer is never part of a reference cycle, because it refers only to a compressor and a number.
@cython.no_gc
@cython.freelist(8)
cdef class _Writer:
    """A BatchWriter, its settings, and the Python objects it needs."""

    cdef BatchSettings settings
    cdef BatchWriter writer
    cdef _Compressor compressor
    cdef object timestamp      # timestamp of records that have none
    cdef bint framed, begun
    cdef StoredTime *stored_times

    def __dealloc__(self):
        writer_free(&self.writer)
        free(self.stored_times)

    cdef int set_header(self, object base_offset, object partition_leader_epoch, object producer_id,
                        object producer_epoch, object base_sequence, object is_transactional) except -1:
        """Check and set the fields whose argument is not None. The other fields stay unchanged."""
        cdef BatchHeader *header = &self.settings.header
        if base_offset is not None:
            header.base_offset = _field_in(base_offset, "base_offset", 0, INT64_MAX - 1)
            self.settings.has_base_offset = True
        if partition_leader_epoch is not None:
            header.partition_leader_epoch = _field_in(partition_leader_epoch, "partition_leader_epoch", -1, 0x7FFFFFFF)
        if producer_id is not None:
            header.producer_id = _field_in(producer_id, "producer_id", -1, INT64_MAX)
        if producer_epoch is not None:
            header.producer_epoch = _field_in(producer_epoch, "producer_epoch", -1, 0x7FFF)
        if base_sequence is not None:
            header.base_sequence = _field_in(base_sequence, "base_sequence", -1, 0x7FFFFFFF)
        if is_transactional is not None:
            _attribute(header, ATTRIBUTE_TRANSACTIONAL, is_transactional)
        return 0

    cdef int set_compression(self, object compression, object level, bint skip_useless) except -1:
        if compression is not None:
            codec = _kafka_enum(Compression, _COMPRESSIONS, "compression", compression)
            _attribute(&self.settings.header, 0x07, False)
            _attribute(&self.settings.header, <int>codec, True)
        else:
            codec = Compression(header_compression(&self.settings.header))
        self.compressor = _Compressor(_compression_level(codec, level))
        self.settings.compress = _package_compress
        self.settings.compress_context = <void *>self.compressor
        self.settings.skip_useless_compression = skip_useless
        return 0

    cdef int set_timestamps(self, object timestamp, object timestamp_type) except -1:
        cdef int64_t given = -1
        if timestamp is not None:
            given = _field_in(timestamp, "timestamp", -1, INT64_MAX)
            self.timestamp = given  # a plain int, even if a subclass was passed
        if timestamp_type is not None:
            kind = _kafka_enum(TimestampType, _TIMESTAMP_TYPES, "timestamp_type", timestamp_type)
            if kind == TimestampType.NO_TIMESTAMP_TYPE:
                raise ValueError("timestamp_type NoTimestampType belongs to magic 0, which kcodec does not write")
            _attribute(&self.settings.header, ATTRIBUTE_LOG_APPEND_TIME, kind == TimestampType.LOG_APPEND_TIME)
            if kind == TimestampType.LOG_APPEND_TIME and timestamp is not None:
                self.settings.has_append_time = True
                self.settings.append_time = given
        return 0

    cdef int set_limit(self, object max_batch_bytes) except -1:
        number = _integer(max_batch_bytes)
        if number is None:
            raise TypeError(f"max_batch_bytes must be an int, not {type(max_batch_bytes).__name__}")
        if not BATCH_OVERHEAD <= number <= 0x7FFFFFFF:
            raise ValueError(f"max_batch_bytes must be between {BATCH_OVERHEAD} and 2147483647, not {shown(number)}")
        self.settings.max_batch_bytes = number
        return 0

    cdef int set_framing(self, object framing) except -1:
        self.framed = framing is not None
        if self.framed:
            _choice("framing", framing, {"confluent": True})
        return 0

    cdef int set_stored_times(self, dict times) except -1:
        """Replace the timestamps of records whose offset is in `times` by those of its entries."""
        cdef int64_t at
        self.stored_times = <StoredTime *>malloc((len(times) + 1) * sizeof(StoredTime))
        if self.stored_times == NULL:
            raise MemoryError("no memory for timestamps")
        for at, offset in enumerate(sorted(times)):
            self.stored_times[at].offset = offset
            self.stored_times[at].timestamp = times[offset]
        self.settings.stored_times = self.stored_times
        self.settings.stored_times_count = len(times)
        return 0

    cdef int begin(self) except -1:
        writer_begin(&self.writer, &self.settings)
        self.begun = True
        return 0

    cdef int append_source(self, object source, bint one_batch) except -1:
        """Append all records of a source, which has rows or Arrow data."""
        if isinstance(source, DecodedRecords):
            if not header_is_control(&self.settings.header):
                _refuse_control_rows(<DecodedRecords>source)
            if _has_invalid_names(<DecodedRecords>source):
                source = source.records()  # Arrow strings cannot contain invalid UTF-8, but records can
        if _is_arrow(source):
            return self.append_arrow(_arrow_source_of(source, _CHECKED_NAMES), one_batch)
        if isinstance(source, (str, bytes, bytearray, memoryview, dict)):
            raise TypeError(f"source must be rows or Arrow data, not {type(source).__name__}")
        _refuse_lazy_frame(source, "source")
        return self.append_rows(source, one_batch)

    cdef int append_rows(self, object rows, bint one_batch) except -1:
        cdef _RowReader reader = _RowReader(self.timestamp, self.framed)
        cdef Fault fault
        cdef AppendResult result
        reader.is_control = header_is_control(&self.settings.header)
        for row in rows:
            reader.read(row)
            result = writer_append(&self.writer, &reader.fields, reader.row, &fault)
            if result == APPEND_FULL:
                if one_batch:
                    raise self.full_error(reader.row)
                self.finish_batch()
                PyErr_CheckSignals()
                result = writer_append(&self.writer, &reader.fields, reader.row, &fault)
            if result == APPEND_FAULT:
                raise _encode_error(&fault)
        return 0

    cdef object full_error(self, object row):
        limit = self.settings.max_batch_bytes
        return EncodeError(
            f"the records do not fit into one batch of max_batch_bytes ({limit}); raise it, or encode fewer records",
            field="batch", value=self.writer.length, row=row,
        )

    cdef int append_arrow(self, _ArrowSource source, bint one_batch) except -1:
        cdef _ArrowRows rows = _ArrowRows(self.timestamp, self.framed)
        cdef Fault fault
        cdef int failed
        cdef int64_t first_row = 0
        rows.check_schema(source)
        while source.next_array():
            rows.bind(source)
            if not header_is_control(&self.settings.header):
                rows.refuse_control(source, first_row)
            with nogil:
                failed = writer_append_rows(&self.writer, &rows.input, first_row, one_batch, &fault)
            if failed:
                raise _encode_error(&fault)
            first_row += rows.input.rows
            PyErr_CheckSignals()
        return 0

    cdef int finish_batch(self) except -1:
        cdef Fault fault
        cdef int failed
        if self.writer.length <= QUICK_BATCH_BYTES and not writer_compresses(&self.writer):
            failed = writer_finish_batch(&self.writer, &fault)
        else:
            with nogil:
                failed = writer_finish_batch(&self.writer, &fault)
        if failed:
            raise _encode_error(&fault)
        return 0

    cdef int set_last_offset(self, object last_offset) except -1:
        """Set the last offset of the open batch, or of a batch without records."""
        cdef BatchHeader *header = &self.writer.settings.header
        cdef int64_t base = header.base_offset, least = header.base_offset
        if self.writer.is_open:
            base, least = self.writer.base_offset, self.writer.last_offset
        most = min(<object>base + 0x7FFFFFFF, INT64_MAX - 1)
        header.last_offset_delta = <int32_t>(_field_in(last_offset, "last_offset", least, most) - base)
        self.writer.settings.has_last_offset = True
        return 0

    cdef EncodedBatches take(self):
        """Return the finished batches. Their memory is moved to the result."""
        cdef EncodedBatches encoded = EncodedBatches.__new__(EncodedBatches)
        encoded.memory = self.writer.out
        encoded.size = self.writer.finished
        encoded.records_count_ = self.writer.records_count
        encoded.next_sequence_ = self.writer.base_sequence
        memset(&self.writer.out, 0, sizeof(Buffer))
        self.writer.finished = 0
        return encoded


cdef int _refuse_lazy_frame(object source, str name) except -1:
    """Raise TypeError for a LazyFrame of polars. It can be iterated, but raises an unrelated error."""
    if type(source).__name__ == "LazyFrame":
        raise TypeError(f"{name} must not be a LazyFrame, which has no data yet: pass the result of its collect()")
    return 0


cdef str _CONTROL_REASON = (
    "a control record would become an ordinary record of a user: decode with control_records=\"skip\", or write the "
    "control records of one batch by encode_batch(..., is_control_batch=True)"
)


cdef int _refuse_control_rows(DecodedRecords decoded) except -1:
    """Raise EncodeError if a row is a control record."""
    cdef _Rows rows
    cdef const BatchSpan *spans
    cdef int64_t at, first, end, before = 0
    for rows in decoded._parts:
        spans = <const BatchSpan *>rows.chunk.spans.data
        for at in range(rows.chunk.span_count):
            if not spans[at].is_control:
                continue
            first = max(spans[at].first_row, rows.first)
            end = spans[at + 1].first_row if at + 1 < rows.chunk.span_count else rows.chunk.rows
            if first < min(end, rows.first + rows.count):
                raise EncodeError(_CONTROL_REASON, field="record", value=None, row=before + first - rows.first)
        before += rows.count
    return 0


cdef bint _has_invalid_names(DecodedRecords decoded):
    cdef _Rows rows
    for rows in decoded._parts:
        if rows.chunk.has_invalid_names:
            return True
    return False
