# SPDX-License-Identifier: Apache-2.0
# RecordBatch, the header of a batch, and RecordBatches, a lazy sequence of headers.

_ALL_RECORD_COLUMNS = ("offset", "timestamp", "key", "value", "headers")


cdef object _readable_size(int64_t size):
    return f"{size} B" if size < 1024 else f"{size / 1024:.1f} KiB" if size < 1 << 20 else f"{size / (1 << 20):.1f} MiB"


cdef class RecordBatch:
    """The header of one record batch, with methods that read its records. Immutable.

    The fields have Kafka's names (DefaultRecordBatch). path is the file, or None. records() and ensure_valid() check
    the CRC; reading a field does not.

    In magic 0 and 1 every message is a batch, and a compressed message contains others (AbstractLegacyRecordBatch). The
    format stores the last offset only: base_offset of a compressed message is found by decompressing it, and is the
    stored offset if that fails. records_count is None, and fields that the format lacks are -1, False or None. If a
    compressed message has offset 0 (old producers), last_offset is 0, whatever it contains.
    """

    cdef BatchHeader header
    cdef object source, loader, opened_base_offset
    cdef readonly object path
    cdef object limits

    @property
    def base_offset(self):
        """Offset of the first record the batch was written with; in magic 0 and 1 of the first record it still has."""
        if not header_is_wrapper(&self.header):
            return self.header.base_offset
        if self.opened_base_offset is None:
            whole = self.data
            try:
                self.opened_base_offset = decode(whole, columns=("offset",), check_crcs=False,
                                                 limits=self.limits).column("offset")[0]
            except DecodeError:
                self.opened_base_offset = self.header.base_offset
        return self.opened_base_offset

    @property
    def batch_length(self):
        """Number of bytes after this field."""
        return self.header.batch_length

    @property
    def partition_leader_epoch(self):
        """Epoch of the leader that appended it, -1 from a producer."""
        return self.header.partition_leader_epoch

    @property
    def magic(self):
        """Version of the format: 2, or 0 and 1 in old logs."""
        return self.header.magic

    @property
    def crc(self):
        """Stored checksum: CRC-32C from the attributes on; in magic 0 and 1 CRC-32 from the magic on."""
        return self.header.crc

    @property
    def attributes(self):
        """Attribute bits as stored: 16, in magic 0 and 1 8."""
        return self.header.message_attributes if header_is_legacy(&self.header) else self.header.attributes

    @property
    def last_offset_delta(self):
        """last_offset - base_offset, kept by compaction."""
        return self.last_offset - self.base_offset if header_is_wrapper(&self.header) else self.header.last_offset_delta

    @property
    def base_timestamp(self):
        """Stored field in ms: base of the timestamps, or the delete horizon. In magic 0 and 1 the timestamp."""
        return self.header.max_timestamp if header_is_legacy(&self.header) else self.header.base_timestamp

    @property
    def max_timestamp(self):
        """Largest timestamp in ms; with LogAppendTime the timestamp of all records. -1 in magic 0."""
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
    def records_count(self):
        """Number of records now; None in magic 0 and 1, where only reading counts them (Kafka: countOrNull)."""
        return None if header_is_legacy(&self.header) else self.header.records_count

    @property
    def position(self):
        """Byte of the input or file at which the batch begins."""
        return self.header.position

    def __init__(self):
        raise TypeError("RecordBatch cannot be created directly: call kcodec.batches(), or read a log")

    @property
    def last_offset(self):
        """base_offset + last_offset_delta, which compaction does not change. In magic 0 and 1 the stored offset."""
        return <object>self.header.base_offset + self.header.last_offset_delta

    @property
    def next_offset(self):
        """last_offset + 1."""
        return self.last_offset + 1

    @property
    def last_sequence(self):
        """Sequence number of the last record the batch was written with; 0 follows 2147483647. -1 without sequences."""
        return sequence_after(self.header.base_sequence, self.header.last_offset_delta)

    @property
    def size_in_bytes(self):
        """The whole batch, header included."""
        return header_size(&self.header)

    @property
    def compression(self):
        """Compression of the records, or the number of an unknown codec."""
        cdef int codec = header_compression(&self.header)
        return Compression(codec) if codec <= 4 else codec

    @property
    def timestamp_type(self):
        """TimestampType of all records."""
        return TimestampType(header_timestamp_type(&self.header))

    @property
    def delete_horizon_ms(self):
        """Time in ms from which the log cleaner may remove markers and tombstones (KIP-534); None if it is not set."""
        return self.header.base_timestamp if self.header.attributes & ATTRIBUTE_DELETE_HORIZON else None

    @property
    def is_transactional(self):
        """Attribute bit 4."""
        return bool(header_is_transactional(&self.header))

    @property
    def is_control_batch(self):
        """Attribute bit 5: end-transaction markers and the like, not user records."""
        return bool(header_is_control(&self.header))

    @property
    def data(self):
        """Bytes of the batch as a memoryview. Raise TruncatedError if they are not, or no longer, complete."""
        cdef int64_t size = header_size(&self.header)
        if self.loader is not None:
            raw = memoryview(self.loader()).cast("B")
        else:
            raw = memoryview(self.source).cast("B") if self.source is not None else memoryview(b"")
        if len(raw) < size:
            raise TruncatedError(
                f"the batch has {size} bytes, but only {len(raw)} are available", needed=size, available=len(raw),
                position=self.position, base_offset=self.header.base_offset, path=self.path,
            )
        return raw[:size]

    def is_valid(self):
        """Whether the CRC is that of the bytes."""
        try:
            self.ensure_valid()
        except CorruptBatchError:
            return False
        return True

    def ensure_valid(self):
        """Raise CorruptBatchError unless the CRC is that of the bytes."""
        cdef _Source source = _Source(self.data)
        cdef uint32_t computed
        with nogil:
            computed = header_computed_crc(&self.header, source.data())
        if computed != self.header.crc:
            raise CorruptBatchError(
                f"the stored CRC {self.header.crc:#010x} does not match the CRC of the bytes, {computed:#010x}",
                stored_crc=self.header.crc, computed_crc=computed, position=self.position,
                base_offset=self.header.base_offset, path=self.path,
            )

    def decode(self, **options):
        """Decode this batch alone, with the options of decode(). Errors name its position."""
        try:
            decoded = decode(self.data, limits=options.pop("limits", self.limits), **options)
        except DecodeError as error:
            error.position = self.position
            error.path = self.path
            raise
        if decoded.error is not None:
            decoded.error.position = self.position
            decoded.error.path = self.path
        return decoded

    def records(self):
        """Check the CRC and return an iterator over the records; those of a control batch are control records."""
        return self.decode(control_records="include").records()

    def _with_loader(self, loader):
        """Return a copy that calls loader() for its bytes when they are first used."""
        cdef RecordBatch batch = _batch_of(&self.header, None, self.path, self.limits)
        batch.loader = loader
        return batch

    def _key(self):
        cdef BatchHeader *header = &self.header
        return (header.position, self.path, header.magic, header.base_offset, header.batch_length,
                header.partition_leader_epoch, header.crc, self.attributes, header.last_offset_delta,
                self.base_timestamp, header.max_timestamp, header.producer_id, header.producer_epoch,
                header.base_sequence, header.records_count)

    def __eq__(self, other):
        return self._key() == other._key() if isinstance(other, RecordBatch) else NotImplemented

    def __hash__(self):
        return hash(self._key())

    def __repr__(self):
        is_wrapper = header_is_wrapper(&self.header)  # its base offset would need decompression
        notes = [f"{'' if is_wrapper else self.base_offset}..{self.last_offset}", str(self.compression)]
        if self.is_control_batch:
            notes.append("control")
        elif self.is_transactional:
            notes.append("txn")
        if self.producer_id > -1:
            notes.append(f"producer_id={self.producer_id}/{self.producer_epoch}")
        if self.delete_horizon_ms is not None:
            notes.append(f"delete_horizon_ms={self.delete_horizon_ms}")
        notes.append(f"magic {self.magic}" if header_is_legacy(&self.header) else f"{self.records_count} records")
        notes.append(_readable_size(self.size_in_bytes))
        return f"<RecordBatch {' '.join(notes)}>"

    def __reduce__(self):
        return _rebuild_batch, (bytes(self.data), self.position, self.path, self.limits)


cdef RecordBatch _batch_of(const BatchHeader *header, object source, object path, object limits):
    cdef RecordBatch batch = RecordBatch.__new__(RecordBatch)
    batch.header = header[0]
    batch.source = source
    batch.path = path
    batch.limits = limits
    return batch


def _rebuild_batch(raw, position, path, limits):
    """Undo RecordBatch.__reduce__."""
    return header_at(raw, position, path, limits)


def header_at(data, position=0, path=None, limits=DEFAULT_LIMITS):
    """Return the RecordBatch whose header begins at data[0], byte `position` of a file; None if the header is
    incomplete.

    The records may be missing: ``.data`` then raises TruncatedError until a loader is given. Raise DecodeError if the
    header is invalid.
    """
    cdef _Source source = _Source(data)
    cdef BatchHeader header
    cdef Fault fault
    cdef Limits bounds
    cdef int64_t needed
    _read_limits(limits, &bounds)
    cdef WalkResult result = walk_batch(source.data(), source.size(), 0, position, &bounds, &header, &needed, &fault)
    if result == WALK_FAULT:
        raise _error_of(&fault, path)
    if source.size() < LEAST_SIZE_ANY_MAGIC or source.size() < header_bytes(source.data()):
        return None
    header_parse(source.data(), &header)
    return _batch_of(&header, data, path, limits)


cdef class RecordBatches:
    """The batches in a bytes-like object (`data`), a lazy sequence. Nothing is copied or decompressed.

    The arguments are those of batches().

    len() and iteration read the headers as far as needed. An invalid header raises DecodeError when it is reached. An
    incomplete last batch ends the sequence: remaining_bytes of it are in the data, and bytes_needed is its size (0 if
    the data ends with a whole batch).
    """

    cdef _Source source
    cdef object limits
    cdef list found
    cdef int64_t walked, needed
    cdef bint ended

    def __init__(self, data, limits=DEFAULT_LIMITS):
        cdef Limits ignored
        _read_limits(limits, &ignored)
        self.source = _Source(data)
        self.limits = limits
        self.found = []

    cdef bint _walk_to(self, int64_t index) except -1:
        """Read headers up to this index. Return whether a batch with this index exists."""
        cdef BatchHeader header
        cdef Fault fault
        cdef Limits bounds
        cdef WalkResult result
        cdef int64_t at, needed
        _read_limits(self.limits, &bounds)
        while len(self.found) <= index and not self.ended:
            at = self.walked
            result = walk_batch(self.source.data(), self.source.size(), at, 0, &bounds, &header, &needed, &fault)
            if result == WALK_FAULT:
                raise _error_of(&fault)
            if result == WALK_CUT:
                self.needed = needed
                self.ended = True
                break
            whole = memoryview(self.source.owner).cast("B")[at : at + header_size(&header)]
            batch = _batch_of(&header, whole, None, self.limits)
            with cython.critical_section(self):
                if self.walked == at:  # neither another thread nor code run by the garbage collector has added it
                    self.found.append(batch)
                    self.walked = at + header_size(&header)
        return len(self.found) > index

    def __len__(self):
        self._walk_to(INT64_MAX - 1)
        return len(self.found)

    def __getitem__(self, index):
        if isinstance(index, slice):
            self._walk_to(INT64_MAX - 1)
            return self.found[index]
        place = _index(index)
        if place < 0:
            self._walk_to(INT64_MAX - 1)
            place += len(self.found)
        if place < 0 or not self._walk_to(min(place, INT64_MAX - 1)):
            raise IndexError(f"batch index {index} is out of range: there are {len(self.found)} batches")
        return self.found[place]

    def __iter__(self):
        cdef int64_t index = 0
        while self._walk_to(index):
            yield self.found[index]
            index += 1

    @property
    def remaining_bytes(self):
        """Number of bytes after the last whole batch."""
        self._walk_to(INT64_MAX - 1)
        return self.source.size() - self.walked

    @property
    def bytes_needed(self):
        """Size of the incomplete batch at the end as far as it is known; 0 without one."""
        self._walk_to(INT64_MAX - 1)
        return self.needed

    def to_numpy(self):
        """Return the header table as a numpy structured array, one row per batch."""
        from kcodec.record.header_table import to_numpy

        return to_numpy(self)

    def to_arrow(self):
        """Return the header table as a pyarrow Table, one row per batch."""
        from kcodec.record.header_table import to_arrow

        return to_arrow(self)

    def __eq__(self, other):
        return list(self) == list(other) if isinstance(other, RecordBatches) else NotImplemented

    __hash__ = None

    def __repr__(self):
        known = f"{len(self.found)} batches" if self.ended else f"{len(self.found)} batches walked so far"
        return f"<RecordBatches {known}, {_readable_size(self.source.size())}>"

    def __reduce__(self):
        return RecordBatches, (bytes(self.source.owner), self.limits)


def batches(data, *, limits=DEFAULT_LIMITS):
    """Return the batches in a bytes-like object as a lazy sequence, RecordBatches.

    limits: DecodeLimits: bounds on the size of a batch.

    Raise TypeError if `data` is not bytes-like. A batch with an invalid header raises DecodeError when it is reached.

    >>> len(batches(b""))
    0
    """
    return RecordBatches(data, limits)
