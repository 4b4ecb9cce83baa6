# SPDX-License-Identifier: Apache-2.0
# TransactionScanner: finds the transactions of a log, with their offsets and outcomes, by reading batch headers.

cdef enum:
    SMALL_BATCH = 256


cdef class TransactionScanner:
    """Finds the transactions of a log by its batch headers and markers, chunk by chunk.

    A data batch with records begins its producer's transaction, an end-transaction marker ends it (the rules of
    ProducerStateManager). ``finished``: tuples (producer_id, producer_epoch, first_offset, last_offset, marker_offset,
    control_type, first_timestamp, marker_timestamp, coordinator_epoch, first_position) in the order of the markers;
    first_offset and last_offset are -1 for a marker without data. ``open``: tuples (producer_id, producer_epoch,
    first_offset, last_offset, first_timestamp, last_timestamp, first_position).

    The CRC of every batch of at most 256 bytes is checked, as a corrupt end-transaction marker (78 to 81 bytes) must
    not end a transaction. above_offset: if it is a number, every base offset must be above it, and it advances with
    each batch. last_position: position of the last batch read. max_timestamp: the largest timestamp since it was last
    set to None. Messages of magic 0 and 1 are read as batches without a producer, with their stored offset.
    """

    cdef readonly list finished
    cdef readonly int64_t batches
    cdef readonly int64_t last_position
    cdef readonly object first_offset, last_offset
    cdef public object max_timestamp, above_offset
    cdef dict _open
    cdef object limits, path
    cdef Limits bounds
    cdef int in_use

    def __init__(self, *, limits=DEFAULT_LIMITS, path=None):
        _read_limits(limits, &self.bounds)
        self.limits = limits
        self.path = path
        self.finished = []
        self.last_position = -1
        self._open = {}

    @property
    def open(self):
        """Transactions whose marker has not been read yet."""
        return [(producer_id, *rest) for producer_id, rest in self._open.items()]

    @property
    def path(self):
        """The file named in errors; set it when going on to the next segment."""
        return self.path

    @path.setter
    def path(self, path):
        self.path = path

    def feed(self, data, position, end):
        """Read the headers in `data`, which begins at byte `position` of a file of `end` bytes.

        Return (next, needed): the position of the first batch that was not read, which may be after `data`, and the
        number of its bytes that must be in `data` next time. If next + needed > end, the file ends with an incomplete
        batch, or with a whole one if next == end.
        """
        cdef _Source source = _Source(data)
        cdef int64_t begin = position, file_end = end
        _enter(&self.in_use, self)
        try:
            return self.walk_window(source, begin, file_end)
        finally:
            use_end(&self.in_use)

    cdef object walk_window(self, _Source source, int64_t begin, int64_t file_end):
        cdef const uint8_t *bytes_ = source.data()
        cdef int64_t at = begin, size = source.size(), needed, offered
        cdef BatchHeader header
        cdef Fault fault
        cdef WalkResult result
        while True:
            offered = begin + size - at
            if at >= file_end or offered <= 0:  # less than BATCH_OVERHEAD may remain: a message of magic 0 or 1
                return at, min(BATCH_OVERHEAD, file_end - at) if at < file_end else BATCH_OVERHEAD
            result = walk_batch(bytes_, size, at - begin, begin, &self.bounds, &header, &needed, &fault)
            if result == WALK_FAULT:
                raise _error_of(&fault, self.path)
            if result == WALK_CUT:
                if offered < LOG_OVERHEAD:  # too few bytes for the length field
                    return at, min(needed, file_end - at) if begin + size < file_end else needed
                if at + needed > file_end:
                    return at, needed
                if offered < BATCH_OVERHEAD:
                    return at, min(needed, BATCH_OVERHEAD)
                header_parse(bytes_ + (at - begin), &header)
                if needed <= SMALL_BATCH or header_is_control(&header) and header.producer_id > -1:
                    return at, needed
                if header_is_wrapper(&header) and self.first_offset is None:
                    return at, needed
            self._check(&header, bytes_ + (at - begin))
            self._take(&header, bytes_ + (at - begin))
            at += header_size(&header)

    cdef int _check(self, const BatchHeader *header, const uint8_t *data) except -1:
        cdef Fault fault
        cdef uint32_t computed
        cdef int64_t size = header_size(header)
        if size <= SMALL_BATCH:
            computed = header_computed_crc(header, data)
            if computed != header.crc:
                fault_set(&fault, FAULT_CRC, "crc", header.crc, computed)
                self._refuse(header, &fault)
        if header_check(header, &fault):
            self._refuse(header, &fault)
        if self.above_offset is not None:
            if header.base_offset <= <int64_t>self.above_offset:
                fault_set(&fault, FAULT_BASE_OFFSET_ORDER, "base_offset", header.base_offset, self.above_offset)
                self._refuse(header, &fault)
            self.above_offset = header_last_offset(header)
        self.last_position = header.position
        return 0

    cdef int _refuse(self, const BatchHeader *header, Fault *fault) except -1:
        fault.position = header.position
        fault.base_offset = header.base_offset
        fault.has_base_offset = 1
        raise _error_of(fault, self.path)

    cdef int _take(self, const BatchHeader *header, const uint8_t *data) except -1:
        cdef DecodeSettings settings
        cdef BatchHeader copy = header[0]
        cdef int64_t last_offset = header_last_offset(header)
        self.batches += 1
        if self.first_offset is None:
            self.first_offset = header.base_offset
            if header_is_wrapper(header):
                self.first_offset = self._opened_base_offset(header, data)
        self.last_offset = last_offset
        if self.max_timestamp is None or header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
        if header.producer_id < 0 or header.records_count <= 0:
            return 0
        if header_is_control(header):
            memset(&settings, 0, sizeof(settings))
            settings.limits = self.bounds
            settings.package = _package_decompress
            copy.position = 0
            if decode_control_types(&settings, data, 0, &copy, 1):
                raise MemoryError("no memory for a context")
            if copy.control_type == CONTROL_UNREADABLE:
                raise DecodeError(
                    "the key of a control record is invalid: expected a version of 0 or more and a type, 2 bytes each",
                    position=header.position,
                    base_offset=header.base_offset, path=self.path, record=0,
                )
            if copy.control_type == CONTROL_ABORT or copy.control_type == CONTROL_COMMIT:
                self._end(header, copy.control_type, data)
        elif header_is_transactional(header):
            known = self._open.get(header.producer_id)
            if known is None:
                self._open[header.producer_id] = [header.producer_epoch, header.base_offset, last_offset,
                                                  header.max_timestamp, header.max_timestamp, header.position]
            else:
                known[0] = header.producer_epoch
                known[2] = last_offset
                known[4] = header.max_timestamp
        return 0

    cdef object _opened_base_offset(self, const BatchHeader *header, const uint8_t *data):
        """Return the base offset of a compressed message of magic 0 or 1, which is found by decompressing it."""
        raw = PyBytes_FromStringAndSize(<const char *>data, header_size(header))
        return header_at(raw, header.position, self.path, self.limits).base_offset

    cdef int _end(self, const BatchHeader *header, int control_type, const uint8_t *data) except -1:
        cdef int64_t size = header_size(header)
        raw = PyBytes_FromStringAndSize(<const char *>data, size)
        marker = next(header_at(raw, header.position, self.path, self.limits)
                      .decode(control_records="include", check_crcs=False).records())
        begun = self._open.pop(header.producer_id, None)
        first_offset, last_offset, first_timestamp, first_position = -1, -1, marker.timestamp, header.position
        if begun is not None:
            _epoch, first_offset, last_offset, first_timestamp, _last, first_position = begun
        self.finished.append((header.producer_id, header.producer_epoch, first_offset, last_offset, header.base_offset,
                              control_type, first_timestamp, marker.timestamp, marker.coordinator_epoch,
                              first_position))
        return 0
