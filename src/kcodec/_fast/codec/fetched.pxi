# SPDX-License-Identifier: Apache-2.0
# One partition of a Fetch response, as a consumer reads it (Kafka: CompletedFetch; KIP-98).

DEFAULT_FETCH_COLUMNS = ("topic", "partition") + DEFAULT_COLUMNS


def decode_fetch(data, *, topic, partition, start_offset, columns=DEFAULT_FETCH_COLUMNS,
                 isolation_level="read_committed", aborted_transactions=(), last_stable_offset=None, end_offset=None,
                 on_error="raise", check_crcs=CHECK_CRCS, limits=DEFAULT_LIMITS, binary_type="binary", framing=None,
                 spark_layout=False, verify_crc=None):
    """Decode the records of one partition in a Fetch response, as Java's consumer does (Kafka: CompletedFetch; KIP-98).

    topic, partition:     Where the records come from: for the columns of these names, and for Record.
    start_offset:         Position of the consumer. Records below it are left out.
    aborted_transactions: (producer_id, first_offset) pairs as in the response, in any order. A pair applies from its
                          first_offset to the producer's ABORT marker or the end of the data. None, which brokers send
                          under read_uncommitted, is an empty list.
    spark_layout:         As Spark expects: timestamps in microseconds, NULL if a record has no headers, nullable
                          columns.

    The other arguments are those of decode(). The last batch of a response may be incomplete; that is not an error.
    next_offset is the position afterwards, after markers, aborted records and empty batches. A result without records
    has one empty chunk.

    Return DecodedRecords. Raise DecodeError, whose ``.decoded`` holds the records before the corruption. Raise
    ValueError or TypeError if an argument is invalid.
    """
    cdef _Decoding work = _Decoding.__new__(_Decoding)
    cdef DecodedRecords decoded
    work.layout = _fetch_layout(columns, binary_type, framing, spark_layout)
    _settings_of(&work.settings, work.layout, limits, _checks_crcs(check_crcs, verify_crc),
                 _int64(start_offset, "start_offset"), end_offset)
    work.settings.keep_position = True
    work.topic = _name_source(&work.settings, topic, partition)
    work.on_error = _choice("on_error", on_error, _ON_ERROR)
    work.threads = 1
    work.visibility.start_offset = work.settings.start_offset
    work.visibility.end_offset = work.settings.end_offset
    work.given_limit = INT64_MAX
    if _is_committed(isolation_level):
        work.given_limit = _stable_offset(last_stable_offset)
        work.visibility.isolation = READ_COMMITTED_BY_LIST
        work.aborted = _as_aborted(() if aborted_transactions is None else aborted_transactions)
        work.visibility.aborted = &work.aborted.index
    work.source = _Source(data)
    work.run.settings = &work.settings
    work.run.data = work.source.data()
    work.run.size = work.source.size()
    if binary_type == "binary_view":
        work.settings.owner = <void *>work.source
    work.execute()
    try:
        decoded = work.finish()
    except DecodeError as error:
        _of_partition(error.decoded, topic, partition)
        raise
    return _of_partition(decoded, topic, partition)


cdef DecodedRecords _of_partition(DecodedRecords decoded, object topic, object partition):
    decoded.topic = topic
    decoded.partition = partition
    return decoded


cdef _Layout _FETCH_LAYOUT = _Layout(DEFAULT_FETCH_COLUMNS, "binary", source_columns=True)


cdef _Layout _fetch_layout(object columns, object binary_type, object framing, bint spark_layout=False):
    if columns is not DEFAULT_FETCH_COLUMNS:
        return _Layout(columns, binary_type, spark_layout, True, framing)
    if binary_type == "binary" and framing is None and not spark_layout:
        return _FETCH_LAYOUT
    more = () if framing is None else FRAMING_COLUMNS
    return _Layout(DEFAULT_FETCH_COLUMNS + more, binary_type, spark_layout, True, framing)


cdef class FetchedRecords:
    """The records of one partition in a Fetch response, decoded step by step as decode_fetch() does.

    Memory is used for one chunk and one batch, whatever the decompressed size of the response is. The arguments are
    those of decode_fetch(). take() needs the column offset.

    is_done: Whether all records were returned. Then `position` is after markers, aborted records and empty batches, and
             `error` is the exception that ended decoding early, if there was one.
    """

    cdef RecordSteps steps
    cdef RecordCursor cursor
    cdef object topic, partition
    cdef int64_t given_position
    cdef int32_t given_epoch
    cdef int in_use, is_made
    cdef readonly bint is_done
    cdef readonly object error

    def __init__(self, data, *, topic, partition, start_offset, columns=DEFAULT_FETCH_COLUMNS,
                 isolation_level="read_committed", aborted_transactions=(), check_crcs=True, limits=DEFAULT_LIMITS,
                 binary_type="binary", framing=None):
        cdef RecordSteps steps = RecordSteps(
            data, columns=_fetch_layout(columns, binary_type, framing), isolation_level=isolation_level,
            aborted_transactions=aborted_transactions, start_offset=_int64(start_offset, "start_offset"),
            check_crcs=check_crcs, limits=limits, keep_position=True, topic=topic, partition=partition,
        )
        _make_once(&self.is_made, self)
        self.steps = steps
        self.topic = topic
        self.partition = partition
        self.cursor = _new_cursor(steps.layout, topic, partition)
        self.cursor.steps = steps
        self.given_position = start_offset
        self.given_epoch = -1
        self.is_done = False
        self.error = None

    def __reduce__(self):
        raise TypeError("FetchedRecords cannot be pickled; pickle the records")

    @property
    def position(self):
        """Offset of the next record to read."""
        return self.given_position

    @property
    def leader_epoch(self):
        """Leader epoch of the batch before the position; -1 before the first batch."""
        return self.given_epoch

    @property
    def counts(self):
        """Counts of the batches and records decoded so far."""
        return _counts_of(&self.steps.run.counts)

    @property
    def remaining_bytes(self):
        """Bytes of an incomplete last batch, or bytes that are not decoded yet."""
        return self.steps.run.size - self.steps.table.end

    @property
    def bytes_needed(self):
        """Size of that incomplete batch as far as it is known; 0 otherwise."""
        return self.steps.table.needed if self.steps.table.done else 0

    cdef int next_rows(self) except -1:
        """Decode the next rows. Set is_done after an error, and if there are no more."""
        try:
            if self.cursor.next_rows():
                return 0
        except Exception as error:
            self.cursor.row = self.cursor.end = 0
            self.error = error
        self.is_done = True
        if self.error is None and self.steps.run.last_offset > INT64_MIN:
            # As CompletedFetch.nextFetchedRecord: the last batch decides. If the base offset of a batch before it is
            # corrupt and too large, the position may have been larger.
            following = min(<object>self.steps.run.last_offset + 1, INT64_MAX)
            self.given_position = max(self.steps.settings.start_offset, following)
        else:
            self.given_position = max(self.given_position, self.steps.run.position)
        self.given_epoch = self.steps.last_epoch()
        return 0

    cdef int note_position(self) except -1:
        """Set the position and the leader epoch after records were returned."""
        cdef Chunk *chunk = self.cursor.chunk
        if self.cursor.row >= self.cursor.end:
            self.given_position = self.steps.taken_position
            self.given_epoch = (<const BatchSpan *>chunk.spans.data)[chunk.span_count - 1].leader_epoch
            # Decode further at once: if only markers or aborted records follow, all records have been returned.
            return self.next_rows()
        self.given_position = (<const int64_t *>chunk.fixed[COLUMN_OFFSET].data)[self.cursor.row - 1] + 1
        self.given_epoch = self.cursor.current.leader_epoch
        return 0

    cdef int begin(self) except -1:
        if self.cursor.row >= self.cursor.end and not self.is_done:
            self.next_rows()
        return 0

    def take(self, count):
        """Return a list of the next `count` records; fewer only at the end.

        Raise RuntimeError while another call decodes."""
        cdef int64_t most = _int64(count, "count")
        _enter(&self.in_use, self)
        try:
            return self.take_records(most)
        finally:
            use_end(&self.in_use)

    cdef list take_records(self, int64_t most):
        cdef list records = [], more
        cdef int64_t here
        if not self.steps.layout.wants(COLUMN_OFFSET):
            raise ValueError("take() needs the column 'offset'; add it to columns=")
        self.steps.settings.max_rows = STEP_ROWS
        self.begin()
        while most > 0 and not self.is_done:
            here = min(most, self.cursor.end - self.cursor.row)
            more = self.cursor.take_records(here)
            most -= here
            if records:
                records += more
            else:
                records = more
            self.note_position()
        return records

    def take_decoded(self):
        """Return the next chunk (at most about 32 MB) as DecodedRecords; it has no rows at the end.

        Raise RuntimeError while another call decodes."""
        _enter(&self.in_use, self)
        try:
            return self.take_chunk()
        finally:
            use_end(&self.in_use)

    cdef DecodedRecords take_chunk(self):
        cdef DecodedRecords decoded
        cdef _Rows rows
        self.steps.settings.max_rows = INT64_MAX
        self.steps.whole = True
        self.begin()
        if self.is_done:
            rows = _empty_rows(self.steps.layout)
        else:
            chunk_retain(self.cursor.chunk)
            rows = _rows_of(self.cursor.chunk, self.cursor.row, self.cursor.end - self.cursor.row)
            self.cursor.row = self.cursor.end
            self.note_position()
        decoded = _of_partition(_decoded_of(self.steps.layout, [rows]), self.topic, self.partition)
        decoded.counts = Counts(records=rows.count)
        decoded.next_offset = self.given_position
        return decoded
