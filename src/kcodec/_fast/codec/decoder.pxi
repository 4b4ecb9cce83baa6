# SPDX-License-Identifier: Apache-2.0
# Decoder: decodes a file window by window to chunks, for the streaming readers of kcodec.log and kcodec.spark.

cdef class Decoder:
    """Decodes a file chunk by chunk with constant memory.

    The arguments are those of decode(). Under read_committed aborted_transactions are required, each with its
    last_offset, so that a chunk can be decoded without the following ones.

    topic, partition: For the columns of these names.
    path:             File name for errors.
    max_rows:         Maximum number of rows of a chunk.
    spark_layout:     Timestamps in microseconds, NULL if a record has no headers, nullable columns.
    keep_position:    As Java's consumer: a position advances from start_offset with each record and batch, and records
                      below it count as out_of_range.
    above_offset:     Every base offset must be above it and above the last offset before, else DecodeError is raised.
    """

    cdef DecodeSettings settings
    cdef DecodeRun run
    cdef BatchTable table
    cdef Visibility visibility
    cdef AbortedTransactions aborted
    cdef _Layout layout
    cdef object path, next_offset_
    cdef bytes topic
    cdef int in_use, is_made
    cdef readonly int64_t bytes_needed

    def __init__(self, *, columns=DEFAULT_COLUMNS, isolation_level="read_uncommitted", aborted_transactions=None,
                 last_stable_offset=None, start_offset=None, end_offset=None, control_records="skip",
                 check_crcs=CHECK_CRCS, limits=DEFAULT_LIMITS, binary_type="binary", max_rows=None, topic=None,
                 partition=None, path=None, spark_layout=False, keep_position=False, above_offset=None, framing=None,
                 verify_crc=None):
        _make_once(&self.is_made, self)
        cdef _Layout layout = _Layout(columns, binary_type, spark_layout, True, framing)
        _settings_of(&self.settings, layout, limits, _checks_crcs(check_crcs, verify_crc), start_offset, end_offset)
        self.settings.keep_position = keep_position
        self.settings.rising = above_offset is not None
        self.run.position = self.settings.start_offset
        self.run.last_offset = _offset_or(above_offset, INT64_MIN, "above_offset")
        self.visibility.include_control = _includes_control(control_records)
        self.visibility.start_offset = self.settings.start_offset
        self.visibility.end_offset = self.settings.end_offset
        self.visibility.limit = INT64_MAX
        if _is_committed(isolation_level):
            if aborted_transactions is None:
                raise ValueError("isolation_level='read_committed' of a Decoder needs aborted_transactions=, "
                                 "as a Decoder does not read ahead to the markers")
            self.aborted = _as_aborted(aborted_transactions)
            if self.aborted.index.open_ended_count:
                raise ValueError("aborted_transactions: each needs a last_offset, as a Decoder does not read ahead "
                                 "to the markers")
            self.visibility.isolation = READ_COMMITTED_BY_LIST
            self.visibility.aborted = &self.aborted.index
            self.visibility.limit = _stable_offset(last_stable_offset)
        self.settings.limit = self.visibility.limit
        if max_rows is not None:
            if max_rows < 1:
                raise ValueError(f"max_rows must be at least 1, not {max_rows}")
            self.settings.max_rows = _int64(max_rows, "max_rows")
        self.topic = _name_source(&self.settings, topic, partition)
        self.path = path
        self.run.settings = &self.settings
        self.run.stop_at_bytes = CHUNK_BYTES // 2
        self.layout = layout  # set last: an instance without a layout cannot decode

    def __dealloc__(self):
        decode_reset(&self.run)
        scan_free(&self.table)
        visibility_free(&self.visibility)

    @property
    def counts(self):
        """Counts of all data passed to feed()."""
        return _counts_of(&self.run.counts)

    @property
    def next_offset(self):
        """last_offset + 1 of the last whole batch read; None before the first."""
        return self.next_offset_

    @property
    def schema(self):
        """Schema of the chunks."""
        return ColumnsSchema(self.layout)

    def feed(self, data, position=0):
        """Decode every whole batch in `data`, which begins at byte `position` of the file. Return the number of bytes
        used.

        The remaining bytes are an incomplete batch of `bytes_needed` bytes (at most 61 while its length is unknown). If
        bytes_needed is 0, they are batches that wait until take() was called: call it, and feed the remaining bytes
        again.

        Raise DecodeError, with the position in the file, if a batch is corrupt; the batches before it are kept, and
        feeding can continue after it. Raise RuntimeError while another call decodes.
        """
        cdef _Source source = _Source(data)
        cdef int64_t origin = position
        _enter(&self.in_use, self)
        try:
            return self.feed_window(source, origin)
        finally:
            use_end(&self.in_use)

    cdef object feed_window(self, _Source source, int64_t origin):
        cdef BatchHeader *batches
        cdef int64_t walked
        cdef int failed
        if self.layout is None:
            raise TypeError("the Decoder is not initialized: its __init__ did not finish")
        self.run.data = source.data()
        self.run.size = source.size()
        self.run.origin = origin
        if self.layout.chunk.binary_type == BINARY_VIEW:
            self.settings.owner = <void *>source
        scan_begin(&self.table)
        with nogil:
            failed = scan_batches(self.run.data, self.run.size, origin, &self.settings.limits, 0, INT64_MAX,
                                  &self.table)
        if failed:
            raise MemoryError("no memory for the table of batches")
        self.bytes_needed = self.table.needed
        batches = self.run.table = table_batches(&self.table)
        if self.visibility.isolation != READ_UNCOMMITTED:
            with nogil:
                failed = decode_control_types(&self.settings, self.run.data, origin, batches, self.table.count)
            if failed:
                raise MemoryError("no memory for a context")
        if visibility_resolve(&self.visibility, batches, self.table.count):
            raise MemoryError("no memory for transactions")
        with nogil:
            failed = decode_range(&self.run, 0, self.table.count)
        if self.layout.chunk.binary_type == BINARY_VIEW and decode_finish_chunk(&self.run):
            failed = -1  # a chunk with views must not outlast its window, because the next one has another owner
        walked = self.run.corrupt if failed else self.run.done
        if walked > 0:
            self.next_offset_ = <object>header_reached(&batches[walked - 1]) + 1
        self.settings.owner = NULL
        if failed:
            raise _error_of(&self.run.fault, self.path, _offset_ahead(&self.run, self._offset_behind(walked)))
        if walked < self.table.count:  # the caller must take the finished chunks before more are decoded
            self.bytes_needed = 0
            return batches[walked].position - origin
        if self.table.corrupt >= 0:
            raise _error_of(&self.table.fault, self.path)
        return self.table.end

    cdef object _offset_behind(self, int64_t index):
        """Return the offset for error.next_offset, as _Decoding.offset_behind does, within this window."""
        if index < 0 or index >= self.table.count:
            return None
        cdef BatchHeader *header = table_batches(&self.table) + index
        cdef Fault ignored
        if header_check(header, &ignored) or (header_is_wrapper(header) and header.base_offset == 0):
            return None
        if (self.run.fault.code == FAULT_CRC or not self.settings.check_crcs) and (
            index + 1 >= self.table.count or header[1].base_offset <= header_last_offset(header)
        ):
            return None
        return <object>header_last_offset(header) + 1

    def take(self, flush=False):
        """Return the finished chunks, a list of DecodedRecords with at most max_rows rows each.

        flush: End the unfinished chunk and return it as well. Raise RuntimeError while another call decodes."""
        _enter(&self.in_use, self)
        try:
            return self.take_chunks(bool(flush))
        finally:
            use_end(&self.in_use)

    cdef list take_chunks(self, bint flush):
        cdef ChunkList *chunks = &self.run.chunks
        cdef int64_t at, first, rows, most, position
        cdef Chunk *chunk
        cdef DecodedRecords decoded
        cdef _Rows whole
        if flush and decode_finish_chunk(&self.run):
            raise _error_of(&self.run.fault, self.path)
        taken = []
        for at in range(chunks.count):
            chunk = chunks.list[at].chunk
            position = chunks.list[at].position
            chunks.list[at].chunk = NULL
            whole = _rows_of(chunk, 0, chunk.rows)
            first = 0
            most = min(self.settings.max_rows, chunk_part_rows(chunk))
            while first < chunk.rows:  # a batch may have more than max_rows rows: split it into slices of its memory
                rows = min(chunk.rows - first, most)
                chunk_retain(chunk)
                decoded = _decoded_of(self.layout, [_rows_of(chunk, first, rows)])
                decoded.counts = Counts(records=rows)
                first += rows
                decoded.next_offset = self._offset_after(chunk, first, position)
                taken.append(decoded)
        chunks.count = 0
        return taken

    cdef object _offset_after(self, Chunk *chunk, int64_t rows, int64_t position):
        """Return the offset at which a reader continues after these first rows of a chunk, or None if it is unknown.

        position: Position after the last batch of the chunk, and after the invisible batches that follow it.
        """
        cdef int64_t bound = min(self.settings.limit, self.settings.end_offset)
        following = None
        if self.layout.wants(COLUMN_OFFSET):
            following = <object>(<const int64_t *>chunk.fixed[COLUMN_OFFSET].data)[rows - 1] + 1
        if rows < chunk.rows:  # the rest of the batch is in the next slices
            return following
        if bound < position:  # records from the bound on are not returned
            position = bound
        return position if following is None else max(following, position)
