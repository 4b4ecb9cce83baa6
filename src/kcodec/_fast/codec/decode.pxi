# SPDX-License-Identifier: Apache-2.0
# decode(): decodes bytes in one call. This file decides how to proceed after corruption; decode.c does the decoding.

cdef enum:
    ON_ERROR_RAISE
    ON_ERROR_STOP
    ON_ERROR_SKIP
    # Maximum number of times that transactions are resolved again under "skip". After that, the next corrupt batch ends
    # the data as under "stop".
    MOST_TURNS = 64
    SLAB = 128   # number of batches that one thread scans, resolves and decodes together

cdef dict _ON_ERROR = {"raise": ON_ERROR_RAISE, "stop": ON_ERROR_STOP, "skip": ON_ERROR_SKIP}


cdef int64_t _offset_or(object value, int64_t otherwise, str name) except? -1:
    if value is None:
        return otherwise
    number = _integer(value)
    if number is None:
        raise TypeError(f"{name} must be an int or None, not {type(value).__name__}")
    return min(max(number, INT64_MIN), INT64_MAX)


cdef int64_t _stable_offset(object value) except? -1:
    """Return the limit of read_committed. -1 in a Fetch response means that the broker did not report the offset."""
    cdef int64_t offset = _offset_or(value, INT64_MAX, "last_stable_offset")
    return INT64_MAX if offset == -1 else offset


cdef bint _is_committed(object isolation_level) except -1:
    if isolation_level == "read_uncommitted":
        return False
    if isolation_level == "read_committed":
        return True
    raise _choice_error("isolation_level", isolation_level, list(IsolationLevel))


cdef bint _includes_control(object control_records) except -1:
    if control_records == "skip":
        return False
    if control_records == "include":
        return True
    raise _choice_error("control_records", control_records, ["skip", "include"])


cdef object _offset_behind(DecodeRun *run, DecodeSettings *settings, const BatchHeader *header, const Fault *fault):
    """Return the offset at which a reader can continue after a corrupt batch, or None if it is unknown.

    It is the last offset of the batch plus 1, if its CRC is right or the header of the next batch is consistent with
    it. It is unknown for a wrapper with offset 0."""
    cdef BatchHeader next_header
    cdef Fault ignored
    cdef int64_t needed, at
    if header_check(header, &ignored) or (header_is_wrapper(header) and header.base_offset == 0):
        return None
    if fault.code == FAULT_CRC or not settings.check_crcs:
        at = header.position + header_size(header)
        if walk_batch(run.data, run.size, at, 0, &settings.limits, &next_header, &needed,
                      &ignored) != WALK_BATCH or next_header.base_offset <= header_last_offset(header):
            return None
    return <object>header_last_offset(header) + 1


cdef object _offset_ahead(DecodeRun *run, object offset):
    """Return an offset of _offset_behind, or None if a reader that continues there would read the same data again."""
    if offset is None or offset <= run.position:
        return None
    if run.last_offset > INT64_MIN and offset <= <object>run.last_offset + 1:
        return None
    return offset


cdef class _Decoding:
    """The state of one decode() call: its settings, its table of batches, its progress and the corruption it found."""

    cdef DecodeSettings settings
    cdef DecodeRun run
    cdef BatchTable table
    cdef Visibility visibility
    cdef AbortedTransactions aborted
    cdef _Source source
    cdef _Layout layout
    cdef bytes topic
    cdef int64_t given_limit
    cdef int on_error, threads
    cdef int64_t end                 # batches from this index on are not decoded, because of corruption
    cdef int64_t error_at            # index of the first corrupt batch, -1: none
    cdef Fault error_fault
    cdef object error_next_offset
    cdef int64_t skipped_at          # index of the last batch passed to goes_on_behind, -1: none yet
    cdef int64_t skipped_above       # the last offset before that batch

    def __cinit__(self):
        self.error_at = -1
        self.skipped_at = -1
        self.run.corrupt = -1

    def __dealloc__(self):
        decode_reset(&self.run)
        scan_free(&self.table)
        visibility_free(&self.visibility)

    cdef int note(self, int64_t index, const Fault *fault) except -1:
        """Store this corruption if its batch precedes that of the stored one."""
        if fault.code == FAULT_NO_MEMORY or fault.code == FAULT_PYTHON:
            raise _error_of(fault)
        if self.error_at < 0 or index < self.error_at:
            self.error_at = index
            self.error_fault = fault[0]
            self.error_next_offset = self.offset_behind(index, fault)
        return 0

    cdef object offset_behind(self, int64_t index, const Fault *fault):
        """Return the offset at which a reader can continue after a corrupt batch, or None."""
        cdef BatchHeader *header = table_batches(&self.table) + index
        if index >= self.table.count or header.outcome == OUTCOME_SKIPPED:
            return None
        return _offset_behind(&self.run, &self.settings, header, fault)

    cdef bint goes_on_behind(self, int64_t index):
        """Return whether on_error="skip" can continue: a batch with a valid header and CRC begins where the length of
        the corrupt batch leads."""
        cdef BatchHeader *batches = table_batches(&self.table)
        cdef BatchHeader found
        cdef int64_t before = index - 1, above = INT64_MIN
        while before >= 0 and batches[before].outcome == OUTCOME_SKIPPED and before != self.skipped_at:
            before -= 1
        if before >= 0:
            above = self.skipped_above if before == self.skipped_at else header_last_offset(&batches[before])
        self.skipped_at = index
        self.skipped_above = above
        return header_is_provable(self.run.data, self.run.size, batches[index].position + header_size(&batches[index]),
                                  above, &self.settings.limits, &found)

    cdef int begin_resolving(self) except -1:
        cdef int64_t at
        cdef BatchHeader *header
        self.skipped_at = -1
        self.run.last_offset = INT64_MIN
        self.run.position = self.settings.start_offset
        for at in range(self.table.count):
            header = table_batches(&self.table) + at
            if header.outcome != OUTCOME_SKIPPED:
                header.outcome = OUTCOME_DELIVER
            if header_is_legacy(header):
                header.reached_offset = header.base_offset
        visibility_free(&self.visibility)
        self.visibility.next_open_ended = 0
        self.visibility.limit = self.given_limit
        return 0

    cdef int resolve(self, int64_t begin) noexcept nogil:
        """Set the outcome of the batches from `begin` on. Return -1 if there is no memory."""
        cdef BatchHeader *batches = table_batches(&self.table) + begin
        cdef int64_t count = self.end - begin
        if self.visibility.isolation != READ_UNCOMMITTED and decode_control_types(
            &self.settings, self.run.data, 0, batches, count
        ):
            return -1
        if visibility_resolve(&self.visibility, batches, count):
            return -1
        self.settings.limit = self.visibility.limit
        return 0

    cdef bint stops_at_corruption(self) except -1:
        """Store the corruption that decode_range found. Return False if "skip" applies, after marking the batch as
        skipped."""
        cdef int64_t corrupt = self.run.corrupt
        if corrupt < 0:
            raise _error_of(&self.run.fault)
        self.note(corrupt, &self.run.fault)
        if self.on_error != ON_ERROR_SKIP or not self.goes_on_behind(corrupt):
            self.end = corrupt
            return True
        table_batches(&self.table)[corrupt].outcome = OUTCOME_SKIPPED
        self.run.counts.batches += 1
        self.run.counts.skipped_batches += 1
        return False

    cdef int scan(self, int64_t most) noexcept nogil:
        """Read at most `most` further headers into the table. Return -1 if there is no memory."""
        if scan_batches(self.run.data, self.run.size, 0, &self.settings.limits, self.on_error == ON_ERROR_SKIP, most,
                        &self.table):
            return -1
        self.run.table = table_batches(&self.table)
        self.run.ahead = 0 if self.table.done else self.run.size - self.table.end
        self.end = self.table.count
        return 0

    cdef int scan_all(self) except -1:
        cdef int failed
        with nogil:
            failed = self.scan(INT64_MAX)
        if failed:
            raise MemoryError("no memory for the table of batches")
        return 0

    cdef int finish_chunk(self) except -1:
        if decode_finish_chunk(&self.run):
            raise _error_of(&self.run.fault)
        return 0

    cdef int advance(self, int64_t begin) noexcept nogil:
        """Decode the table from `begin` on, and then the rest of the data in slabs of SLAB batches, all without the
        GIL. If other threads are running, acquiring it between slabs would cost more than the decoding.

        Return 0 at the end, 1 if the batch run.corrupt is corrupt, and -1 if there is no memory.
        """
        cdef BatchHeader *batches
        while True:
            if decode_range(&self.run, begin, self.end):
                return 1
            if self.table.done:
                return 0
            if self.error_at < 0 and self.table.corrupt < 0 and self.table.count:
                # Only the last batch of the table is needed from here on, so it becomes the first one.
                batches = table_batches(&self.table)
                batches[0] = batches[self.table.count - 1]
                self.table.count = 1
            begin = self.table.count
            if self.scan(SLAB) or self.resolve(begin):
                return -1

    cdef int in_one_go(self) except -1:
        """Scan, resolve and decode a few batches at a time, while their headers are still in the processor's cache.
        This is possible with one thread if the outcome of a batch does not depend on later batches.
        """
        cdef int64_t begin = 0
        cdef int state
        self.begin_resolving()
        while True:
            with nogil:
                state = self.advance(begin)
            if state < 0:
                raise MemoryError("no memory for the table of batches")
            if state == 0 or self.stops_at_corruption():
                return self.finish_chunk()
            begin = self.run.corrupt + 1

    cdef int table_first(self) except -1:
        """Resolve all batches of the table, then decode them, on several threads if that is worth while."""
        cdef int failed
        cdef int64_t begin = 0
        self.begin_resolving()
        decode_reset(&self.run)
        with nogil:
            failed = self.resolve(0)
            if not failed and self.threads > 1 and decode_worth_threads(self.run.table, self.end):
                failed = decode_parallel(&self.run, self.end, self.threads)
                if failed and self.run.fault.code == FAULT_PYTHON:
                    begin = -2
                elif failed:
                    decode_reset(&self.run)  # decode again on one thread, which delivers all before the corruption
                else:
                    begin = self.end
            elif failed:
                begin = -1
        if begin == -2:
            raise _error_of(&self.run.fault)
        if begin < 0:
            raise MemoryError("no memory for transactions")
        while begin < self.end:
            with nogil:
                failed = decode_range(&self.run, begin, self.end)
            if not failed or self.stops_at_corruption():
                break
            begin = self.run.corrupt + 1
        return self.finish_chunk()

    cdef int64_t skipped_so_far(self):
        cdef int64_t at, count = 0
        for at in range(self.end):
            count += table_batches(&self.table)[at].outcome == OUTCOME_SKIPPED
        return count

    cdef int check_all(self) except -1:
        """Reset the outcome of each batch: keep only errors of structure, and check CRC and header fields again."""
        cdef int64_t at
        cdef Fault fault
        cdef BatchHeader *batches = table_batches(&self.table)
        self.error_at = -1
        self.skipped_at = -1
        self.end = self.table.count
        for at in range(self.table.count):
            batches[at].outcome = OUTCOME_SKIPPED if batches[at].magic == MAGIC_UNREADABLE else OUTCOME_DELIVER
        for at in range(self.table.count):
            if batches[at].magic == MAGIC_UNREADABLE or not decode_check_batch(
                self.run.data, 0, &batches[at], self.settings.check_crcs, &fault
            ):
                continue
            self.note(at, &fault)
            if self.on_error != ON_ERROR_SKIP or not self.goes_on_behind(at):
                self.end = at
                break
            batches[at].outcome = OUTCOME_SKIPPED
        return 0

    cdef int execute(self) except -1:
        cdef int64_t skipped = -1, end = -1, turns = 0
        cdef bint together = self.threads == 1 and self.visibility.isolation != READ_COMMITTED_BY_MARKERS
        scan_begin(&self.table)
        if together:
            self.in_one_go()
        else:
            self.scan_all()
            self.table_first()
        if (self.run.counts.skipped_batches or self.end < self.table.count) and (
            self.visibility.isolation == READ_COMMITTED_BY_MARKERS
            or (self.visibility.isolation == READ_COMMITTED_BY_LIST and self.on_error == ON_ERROR_SKIP)
        ):
            # The visibility was computed with batches that decoding then found to be corrupt. Compute it again
            # without the batches whose CRC or header fields are wrong, and once more after each turn in which
            # decoding finds further corrupt batches.
            if together:
                scan_begin(&self.table)
                self.scan_all()
            self.check_all()
            while self.end != end or self.skipped_so_far() != skipped:
                end = self.end
                skipped = self.skipped_so_far()
                turns += 1
                if turns > MOST_TURNS:  # crafted data could require one turn for each batch
                    self.on_error = ON_ERROR_STOP
                self.table_first()
        if self.table.corrupt >= 0 and self.table.corrupt <= self.end:
            self.note(self.table.corrupt, &self.table.fault)
        return 0

    cdef object reached_before(self, int64_t end):
        """Return the greatest offset that a reader has passed after the batches before index `end`; None without one.

        The offset of a message of magic 0 or 1 may be lower than that of a message before it. The result is therefore
        the greatest offset of all such messages at the end and of the batch before them (see header_reached).
        """
        cdef BatchHeader *header
        cdef int64_t at = end - 1
        answer = None
        while at >= 0:
            header = table_batches(&self.table) + at
            at -= 1
            if header.outcome == OUTCOME_SKIPPED:
                continue
            reached = header_reached(header)
            answer = reached if answer is None else max(answer, reached)
            if not header_is_legacy(header):
                break
        return answer

    cdef object next_offset(self):
        """Return the offset after the last batch that was decoded. Fields of a corrupt batch have no effect on it."""
        answer = self.reached_before(self.end)
        if answer is not None:
            answer += 1
            if self.settings.limit != INT64_MAX:
                answer = min(answer, self.settings.limit)
            if self.settings.end_offset != INT64_MAX:
                answer = min(answer, self.settings.end_offset)
        if self.settings.start_offset != INT64_MIN and (answer is None or answer < self.settings.start_offset):
            answer = self.settings.start_offset
        return answer

    cdef object offset_after_error(self):
        """Return error.next_offset: None unless it is above the offsets before the corrupt batch and start_offset."""
        found, before = self.error_next_offset, self.reached_before(self.error_at)
        if found is None or found <= self.settings.start_offset or (before is not None and found <= before + 1):
            return None
        return found

    cdef DecodedRecords finish(self):
        cdef DecodedRecords decoded
        cdef int64_t at
        cdef Chunk *empty
        cdef ChunkList *chunks = &self.run.chunks
        parts = []
        for at in range(chunks.count):
            parts.append(_rows_of(chunks.list[at].chunk, 0, chunks.list[at].chunk.rows))
            chunks.list[at].chunk = NULL
        if not parts:
            parts.append(_empty_rows(self.layout))
        decoded = _decoded_of(self.layout, parts)
        decoded.counts = _counts_of(&self.run.counts)
        decoded.next_offset = self.next_offset()
        if self.end < self.table.count:
            decoded.remaining_bytes = self.run.size - table_batches(&self.table)[self.end].position
        else:
            decoded.remaining_bytes = self.run.size - self.table.end
            decoded.bytes_needed = self.table.needed
        if self.error_at >= 0:
            error = _error_of(&self.error_fault, None, self.offset_after_error())
            if self.on_error == ON_ERROR_RAISE:
                error.decoded = decoded
                raise error
            decoded.error = error
        return decoded


cdef _Rows _empty_rows(_Layout layout):
    cdef Chunk *chunk = chunk_new(&layout.chunk)
    cdef Fault fault
    if chunk == NULL:
        raise MemoryError("no memory for columns")
    rows = _rows_of(chunk, 0, 0)
    if chunk_reserve(chunk, 1, 1) or chunk_finish(chunk, &fault):
        raise MemoryError("no memory for columns")
    return rows


cdef int _settings_of(DecodeSettings *settings, _Layout layout, object limits, bint check_crcs, object start_offset,
                      object end_offset) except -1:
    settings.layout = layout.chunk
    _read_limits(limits, &settings.limits)
    settings.check_crcs = check_crcs
    settings.start_offset = _offset_or(start_offset, INT64_MIN, "start_offset")
    settings.end_offset = _offset_or(end_offset, INT64_MAX, "end_offset")
    settings.limit = INT64_MAX
    settings.max_rows = INT64_MAX
    settings.package = _package_decompress
    settings.retain_owner = _retain_object
    settings.release_owner = _release_object
    return 0


cdef bytes _name_source(DecodeSettings *settings, object topic, object partition):
    """Set the values of the columns topic and partition, where None is null. Return the bytes that settings.topic
    points to, which the caller must keep."""
    cdef bytes name = None
    if topic is not None:
        name = topic.encode("utf-8")
        settings.topic = name
        settings.topic_length = len(name)
    if partition is not None:
        if not 0 <= partition <= 0x7FFFFFFF:
            raise ValueError(f"partition must be between 0 and 2147483647, not {partition}")
        settings.partition = partition
        settings.has_partition = True
    return name


def decode(data, *, columns=DEFAULT_COLUMNS, isolation_level="read_uncommitted", aborted_transactions=None,
           last_stable_offset=None, start_offset=None, end_offset=None, control_records="skip", on_error="raise",
           check_crcs=CHECK_CRCS, limits=DEFAULT_LIMITS, binary_type="binary", threads=1, framing=None,
           verify_crc=None):
    """Decode the record batches in a bytes-like object to columns.

    `data` holds batches as a Fetch response or a ``.log`` file does.

    columns:              Names from ``kcodec.COLUMNS``, except topic and partition, and with framing also
                          key_schema_id and value_schema_id. Only these columns are built.
    isolation_level:      "read_committed" leaves out the records of aborted transactions (KIP-98; Kafka:
                          CompletedFetch).
    aborted_transactions: AbortedTransaction values in any order, or other objects with producer_id and first_offset,
                          such as those of a FetchResponse; ``[]`` means that there are none. With None the
                          end-transaction markers inside `data` decide, and records of a transaction without a marker
                          in `data` are left out.
    last_stable_offset:   Under read_committed, records from this offset on are left out. -1, which a Fetch response
                          contains if the broker does not report the offset, is None.
    start_offset, end_offset: Only records with offsets in [start_offset, end_offset) are returned.
    control_records:      "skip" leaves control records out. "include" returns those below the last stable offset, key
                          and value as stored.
    on_error:             "raise" raises the first error. "stop" returns the records before the corruption, and the
                          error as `.error`. "skip" continues after a corrupt batch if its length leads to a batch whose
                          header and CRC are valid.
    check_crcs:           Whether to check the CRC-32C of every whole batch, including those that are filtered out.
    limits:               DecodeLimits: bounds on the size of a batch before and after decompression.
    binary_type:          Arrow type of key and value: "binary", "large_binary" or "binary_view". With "binary_view",
                          values of uncompressed batches are not copied if `data` is read-only, such as bytes. A
                          writable buffer is copied as a whole, because its bytes may change later.
    framing:              "confluent" splits the prefix of Schema Registry serializers (a zero byte and an int32 schema
                          id) from keys and values. The ids are returned in the nullable columns key_schema_id and
                          value_schema_id, which are then among the default columns. Other keys and values stay
                          unchanged, with a null id.
    threads:              Number of threads. The records and their order do not depend on it.
    verify_crc:           Deprecated name of check_crcs.

    Return DecodedRecords. Raise DecodeError (CorruptBatchError, UnsupportedError, LimitExceededError), whose
    ``.decoded`` holds the records before the corruption. Raise ValueError or TypeError if an argument is invalid.

    >>> decode(b"").counts
    Counts(batches=0, skipped_batches=0, records=0, aborted=0, control=0, undecided=0, out_of_range=0)
    """
    cdef _Decoding work = _Decoding.__new__(_Decoding)
    cdef DecodedRecords decoded
    if columns is DEFAULT_COLUMNS and binary_type == "binary" and framing is None:
        work.layout = _DEFAULT_LAYOUT
    else:
        work.layout = _Layout(columns, binary_type, framing=framing)
    _settings_of(&work.settings, work.layout, limits, _checks_crcs(check_crcs, verify_crc), start_offset, end_offset)
    work.on_error = _choice("on_error", on_error, _ON_ERROR)
    wanted = _integer(threads)
    if wanted is None:
        raise TypeError(f"threads must be an int, not {type(threads).__name__}")
    if wanted < 1:
        raise ValueError(f"threads must be at least 1, not {shown(wanted)}")
    work.threads = min(wanted, 64)
    work.visibility.include_control = _includes_control(control_records)
    work.visibility.start_offset = work.settings.start_offset
    work.visibility.end_offset = work.settings.end_offset
    work.given_limit = INT64_MAX
    if _is_committed(isolation_level):
        work.given_limit = _stable_offset(last_stable_offset)
        work.visibility.isolation = READ_COMMITTED_BY_MARKERS
        if aborted_transactions is not None:
            work.visibility.isolation = READ_COMMITTED_BY_LIST
            work.aborted = _as_aborted(aborted_transactions)
            work.visibility.aborted = &work.aborted.index
    work.source = _Source(data)
    if binary_type == "binary_view" and not work.source.view.readonly:
        work.source = _Source(PyBytes_FromStringAndSize(<const char *>work.source.data(), work.source.size()))
    work.run.settings = &work.settings
    work.run.data = work.source.data()
    work.run.size = work.source.size()
    if binary_type == "binary_view":
        work.settings.owner = <void *>work.source
    work.execute()
    return work.finish()
