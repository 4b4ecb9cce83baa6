# SPDX-License-Identifier: Apache-2.0
# RecordSteps: decodes records a few thousand at a time, for readers that return them one by one.

cdef enum:
    STEP_ROWS = 4096  # rows of a chunk, unless one batch has more, so that they are read while they are still cached


cdef class RecordSteps:
    """The records of one fetch, decoded chunk by chunk as they are requested.

    Memory is used for one chunk and one batch, whatever the decompressed size is. The arguments are those of decode();
    under read_committed aborted_transactions=None is an empty list. keep_position: as Java's consumer, a position
    advances from start_offset with each record and batch, and records below it are left out. topic, partition: for the
    columns of these names. Iteration returns DecodedRecords, and raises DecodeError after the last record before
    corruption.
    """

    cdef DecodeSettings settings
    cdef DecodeRun run
    cdef BatchTable table
    cdef Visibility visibility
    cdef AbortedTransactions aborted
    cdef _Source source
    cdef _Layout layout
    cdef int64_t next_batch
    cdef int32_t walked_epoch
    cdef bint ended, whole
    cdef object error
    cdef bytes topic
    cdef int in_use, is_made
    cdef int64_t taken_position      # position after the chunk that was returned last

    def __cinit__(self):
        self.ended = True

    def __init__(self, data, *, columns=DEFAULT_COLUMNS, isolation_level="read_uncommitted", aborted_transactions=None,
                 start_offset=None, control_records="skip", check_crcs=True, limits=DEFAULT_LIMITS,
                 keep_position=False, topic=None, partition=None):
        _make_once(&self.is_made, self)
        if isinstance(columns, _Layout):
            self.layout = columns
        else:
            self.layout = _DEFAULT_LAYOUT if columns is DEFAULT_COLUMNS else _Layout(columns, "binary")
        _settings_of(&self.settings, self.layout, limits, check_crcs, start_offset, None)
        self.settings.keep_position = keep_position
        self.settings.max_rows = STEP_ROWS
        self.visibility.include_control = _includes_control(control_records)
        self.visibility.start_offset = self.settings.start_offset
        self.visibility.end_offset = self.visibility.limit = INT64_MAX
        if _is_committed(isolation_level):
            self.aborted = _as_aborted(() if aborted_transactions is None else aborted_transactions)
            self.visibility.isolation = READ_COMMITTED_BY_LIST
            self.visibility.aborted = &self.aborted.index
        self.topic = _name_source(&self.settings, topic, partition)
        self.source = _Source(data)
        if self.layout.chunk.binary_type == BINARY_VIEW:
            self.settings.owner = <void *>self.source
        self.run.settings = &self.settings
        self.run.data = self.source.data()
        self.run.size = self.source.size()
        self.run.position = self.settings.start_offset
        self.run.last_offset = INT64_MIN
        self.walked_epoch = -1
        self.run.stop_at_bytes = 1  # decoding stops after each finished chunk
        scan_begin(&self.table)
        self.ended = False

    def __dealloc__(self):
        decode_reset(&self.run)
        scan_free(&self.table)
        visibility_free(&self.visibility)

    @property
    def position(self):
        """Offset after the last batch that was decoded; start_offset, or None, before the first."""
        return None if self.run.position == INT64_MIN else self.run.position

    @property
    def leader_epoch(self):
        """Leader epoch of the last batch that was read; -1 before the first."""
        _enter(&self.in_use, self)
        try:
            return self.last_epoch()
        finally:
            use_end(&self.in_use)

    cdef int32_t last_epoch(self) noexcept nogil:
        return self.run.table[self.next_batch - 1].partition_leader_epoch if self.next_batch else self.walked_epoch

    cdef int more_batches(self) noexcept nogil:
        """Read the next headers into the table and set their outcomes. Return -1 if there is no memory."""
        if self.next_batch:
            self.walked_epoch = self.run.table[self.next_batch - 1].partition_leader_epoch
        self.table.count = self.next_batch = 0
        if scan_batches(self.run.data, self.run.size, 0, &self.settings.limits, 0, SLAB, &self.table):
            return -1
        self.run.table = table_batches(&self.table)
        self.run.ahead = self.run.size - self.table.end if self.whole and not self.table.done else 0
        if self.visibility.isolation != READ_UNCOMMITTED and decode_control_types(
            &self.settings, self.run.data, 0, self.run.table, self.table.count
        ):
            return -1
        if visibility_resolve(&self.visibility, self.run.table, self.table.count):
            return -1
        return 0

    cdef int advance(self) noexcept nogil:
        """Decode until a chunk is finished. Return 1 if one is finished or the data ends, 0 if a batch is corrupt, and
        -1 if there is no memory."""
        while not self.run.chunks.count:
            if self.next_batch >= self.table.count:
                if self.table.done:
                    self.ended = True
                    return -1 if decode_finish_chunk(&self.run) else 1
                if self.more_batches():
                    return -1
            elif decode_range(&self.run, self.next_batch, self.table.count):
                self.next_batch = self.run.corrupt
                return 0
            else:
                self.next_batch = self.run.done
        return 1

    cdef int refused(self) except -1:
        """Store the error until the records before it were returned. An interrupt is raised at once, and the next call
        decodes the batch again."""
        cdef Fault fault = self.run.fault
        if fault.code == FAULT_PYTHON:
            raise _error_of(&fault)
        self.ended = True
        if decode_finish_chunk(&self.run):
            raise _error_of(&self.run.fault)
        self.error = _error_of(&fault, None, self.offset_behind(&fault))
        return 0

    cdef object offset_behind(self, const Fault *fault):
        """Return the offset for error.next_offset at which a reader can continue after the corrupt batch, or None."""
        if self.next_batch >= self.table.count:
            return None
        behind = _offset_behind(&self.run, &self.settings, self.run.table + self.next_batch, fault)
        return _offset_ahead(&self.run, behind)

    cdef void drop_empty_chunk(self) noexcept:
        """Release a chunk without rows: its batch was corrupt, or all of its records were below the position."""
        if self.run.chunks.count and not self.run.chunks.list[0].chunk.rows:
            chunk_release(self.run.chunks.list[0].chunk)
            self.run.chunks.count = 0

    cdef _Rows take(self):
        """Return the rows of the next chunk, at least one; None at the end. Raise RuntimeError while another call
        decodes."""
        _enter(&self.in_use, self)
        try:
            return self.take_rows()
        finally:
            use_end(&self.in_use)

    cdef _Rows take_rows(self):
        cdef int state
        cdef _Rows rows
        while not self.ended and not self.run.chunks.count:
            with nogil:
                state = self.advance()
            if state < 0:
                raise MemoryError("no memory for records")
            if state == 0:
                self.refused()
            elif self.ended and self.table.corrupt >= 0:
                self.error = _error_of(&self.table.fault)
            self.drop_empty_chunk()
        if self.run.chunks.count:
            rows = _rows_of(self.run.chunks.list[0].chunk, 0, self.run.chunks.list[0].chunk.rows)
            self.taken_position = self.run.chunks.list[0].position
            self.run.chunks.count = 0
            return rows
        if self.error is not None:
            raise self.error
        return None

    def __iter__(self):
        return self

    def __next__(self):
        cdef _Rows rows = self.take()
        if rows is None:
            raise StopIteration
        return _decoded_of(self.layout, [rows])
