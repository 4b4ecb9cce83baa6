# SPDX-License-Identifier: Apache-2.0
# encode(): rows or Arrow to batches; encode_batch(): to one; end-transaction markers.

DEFAULT_MAX_BATCH_BYTES = 1_048_576  # batch.size and max.message.bytes are of this order


cdef class EncodedBatches:
    """Batches as bytes: anything that takes a buffer takes this (``sock.sendall``, ``file.write``, ``bytes``). Frozen.

    len() is in bytes. batches: the headers, as kcodec.batches gives them. records_count: records in all of them.
    next_sequence: the base_sequence of what this producer sends next, -1 without sequences.
    """

    cdef Buffer memory
    cdef int64_t size, records_count_
    cdef int32_t next_sequence_

    def __init__(self):
        raise TypeError("EncodedBatches comes from kcodec.encode()")

    def __dealloc__(self):
        buffer_release(&self.memory, self.size)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        cdef const uint8_t *data = <const uint8_t *>&self.size  # an address for no bytes at all
        if self.size:
            data = self.memory.data
        PyBuffer_FillInfo(buffer, self, <void *>data, self.size, 1, flags)

    def __len__(self):
        return self.size

    @property
    def batches(self):
        """RecordBatches over these bytes."""
        return batches(self, limits=DecodeLimits(LARGEST_LIMIT, LARGEST_LIMIT))

    @property
    def records_count(self):
        """Records in all batches."""
        return self.records_count_

    @property
    def next_sequence(self):
        """After the last record; after 2147483647 comes 0. -1 without sequences."""
        return self.next_sequence_

    def __eq__(self, other):
        try:
            return memoryview(self) == memoryview(other).cast("B")
        except TypeError:
            return NotImplemented

    __hash__ = None

    def __repr__(self):
        counts = f"{len(self.batches)} batches, {self.records_count} records"
        return f"<EncodedBatches {counts}, {_readable_size(self.size)}>"

    def __reduce__(self):
        return _rebuild_encoded, (bytes(self), self.records_count_, self.next_sequence_)


def _rebuild_encoded(data, records_count, next_sequence):
    """Undo EncodedBatches.__reduce__."""
    cdef EncodedBatches encoded = EncodedBatches.__new__(EncodedBatches)
    cdef _Source source = _Source(data)
    if source.size():
        if buffer_acquire(&encoded.memory, source.size()):
            raise MemoryError("no memory for encoded batches")
        memcpy(encoded.memory.data, source.data(), source.size())
    encoded.size = source.size()
    encoded.records_count_ = records_count
    encoded.next_sequence_ = next_sequence
    return encoded


def encode(source, *, compression="none", compression_level=None, base_offset=None, timestamp=None,
           timestamp_type="CreateTime", producer_id=-1, producer_epoch=-1, base_sequence=-1, is_transactional=False,
           partition_leader_epoch=-1, max_batch_bytes=DEFAULT_MAX_BATCH_BYTES, framing=None,
           skip_useless_compression=False):
    """Record batches of magic 2 from rows or Arrow data, as Kafka's own writer makes them; the order of rows is kept.

    source: rows, each a Record, a dict or a tuple (key, value, headers, timestamp) whose trailing fields may be left
    out; or anything with ``__arrow_c_stream__`` or ``__arrow_c_array__`` and columns of the names decode() gives
    (offset, timestamp, key, value, headers; key and value binary, string, a view, fixed size or a dictionary of these).
    Other columns of decode() and of Spark's Kafka source follow from the batch and are passed over.

    compression, compression_level: Kafka's numbers, for lz4 too, where 9 is the fast compressor (KIP-390).
    base_offset: of the first batch; None: the first record's own offset, or 0. Records with offsets keep them, gaps
    and all.
    timestamp: in ms, for records without one; with ``timestamp_type="LogAppendTime"`` for all of them.
    max_batch_bytes: of a batch before compression; a record that does not fit into one alone is an EncodeError.
    framing: "confluent" puts the columns key_schema_id and value_schema_id, where not null, before the payload.
    skip_useless_compression: a batch that compression would not make smaller is left uncompressed.

    Raises EncodeError for values that make no batch a broker takes, ValueError and TypeError for what cannot be a
    source or an option.

    >>> encoded = encode([(b"key", b"value")], timestamp=1_700_000_000_000)
    >>> encoded
    <EncodedBatches 1 batches, 1 records, 76 B>
    """
    cdef _Writer writer = _Writer()
    writer.set_header(base_offset, partition_leader_epoch, producer_id, producer_epoch, base_sequence, is_transactional)
    writer.set_compression(compression, compression_level, skip_useless_compression)
    writer.set_timestamps(timestamp, timestamp_type)
    writer.set_limit(max_batch_bytes)
    writer.set_framing(framing)
    _check_producer(&writer.settings.header)
    writer.begin()
    writer.append_source(source, False)
    writer.finish_batch()
    return writer.take()


# ------------------------------------------------------------------------------------------------------- one batch

def encode_batch(source, *, like=None, base_offset=None, last_offset=None, base_timestamp=None, max_timestamp=None,
                 delete_horizon_ms=None, is_control_batch=None, compression=None, compression_level=None,
                 timestamp=None, timestamp_type=None, producer_id=None, producer_epoch=None, base_sequence=None,
                 is_transactional=None, partition_leader_epoch=None, max_batch_bytes=DEFAULT_LIMITS.max_batch_bytes,
                 framing=None, skip_useless_compression=False):
    """Exactly one batch, every header field of it at hand; what is not given is as in `like`, or as encode() has it.

    like: a RecordBatch. Its records, all or what compaction leaves of them, give the same bytes again where it is not
    compressed. last_offset: what the batch stands for although its last records may be gone. delete_horizon_ms:
    KIP-534. Without records it is an empty batch, as the cleaner retains one for its sequence
    (DefaultRecordBatch.writeEmptyHeader); that needs `like` or last_offset. is_control_batch: the records are control
    records, key and value as stored.

    Raises EncodeError as encode() does, and where the records do not fit into one batch.
    """
    cdef _Writer writer = _Writer()
    cdef BatchHeader *header = &writer.settings.header
    header.partition_leader_epoch = header.producer_epoch = header.base_sequence = -1
    header.producer_id = -1
    if like is not None:
        if not isinstance(like, RecordBatch):
            raise TypeError(f"like must be a RecordBatch, not {type(like).__name__}")
        if like.magic != 2:
            raise EncodeError(f"a batch of magic {like.magic} is only read: kcodec writes magic 2", field="magic",
                              value=like.magic)
        header[0] = (<RecordBatch>like).header
        _field_in(like.base_offset, "base_offset", 0, INT64_MAX - 1)
        _field_in(like.last_offset, "last_offset", like.base_offset, INT64_MAX - 1)
        writer.settings.has_base_offset = True
        writer.settings.has_base_timestamp = writer.settings.has_max_timestamp = writer.settings.has_last_offset = True
        source = _with_create_times(source, like)
    writer.set_header(base_offset, partition_leader_epoch, producer_id, producer_epoch, base_sequence, is_transactional)
    writer.set_compression(compression, compression_level, skip_useless_compression)
    writer.set_timestamps(timestamp, timestamp_type)
    writer.set_limit(max_batch_bytes)
    writer.set_framing(framing)
    if is_control_batch is not None:
        _attribute(header, ATTRIBUTE_CONTROL, is_control_batch)
    if base_timestamp is not None:
        header.base_timestamp = _field_in(base_timestamp, "base_timestamp", INT64_MIN, INT64_MAX)
        writer.settings.has_base_timestamp = True
    if max_timestamp is not None:
        header.max_timestamp = _field_in(max_timestamp, "max_timestamp", INT64_MIN, INT64_MAX)
        writer.settings.has_max_timestamp = True
    if delete_horizon_ms is not None:
        header.base_timestamp = _field_in(delete_horizon_ms, "delete_horizon_ms", 0, INT64_MAX)
        _attribute(header, ATTRIBUTE_DELETE_HORIZON, True)
        writer.settings.has_base_timestamp = True
    if like is None:
        _check_producer(header)
    writer.begin()
    writer.append_source(source, True)
    if last_offset is not None:
        writer.set_last_offset(last_offset)
    if writer.writer.is_open:
        writer.finish_batch()
    else:
        _empty_batch(writer, like)
    return bytes(writer.take())


cdef int _empty_batch(_Writer writer, object like) except -1:
    cdef Fault fault
    if not writer.writer.settings.has_last_offset:
        raise EncodeError("a batch without records needs last_offset", field="last_offset", value=None)
    cdef BatchHeader *header = &writer.writer.settings.header
    _attribute(header, 0x07, False)
    if like is None or like.records_count:
        writer.writer.settings.has_base_timestamp = False
        _attribute(header, ATTRIBUTE_DELETE_HORIZON, False)
    if writer_empty_batch(&writer.writer, &fault):
        raise _encode_error(&fault)
    return 0


cdef object _with_create_times(object source, RecordBatch like):
    """Of a batch that the broker stamped, a reader sees one time for all records, but each keeps its own: it is read
    from `like`, so that the bytes come out the same."""
    if not like.header.attributes & ATTRIBUTE_LOG_APPEND_TIME or not like.header.records_count:
        return source
    if isinstance(source, DecodedRecords):
        source = source.records()
    elif _is_arrow(source):
        return source
    raw = bytearray(like.data)
    raw[ATTRIBUTES_POSITION + 1] &= 0xFF ^ ATTRIBUTE_LOG_APPEND_TIME
    stored = decode(raw, columns=("offset", "timestamp"), check_crcs=False, control_records="include",
                    limits=like.limits)
    times = {record.offset: record.timestamp for record in stored.records()}
    return _stamped(source, times)


def _stamped(rows, times):
    """Records with the times that `times` holds for their offsets."""
    for row in rows:
        if isinstance(row, Record) and row.offset in times:
            row = Record(row.offset, times[row.offset], row.timestamp_type, row.key, row.value, row.headers)
        yield row


def encode_end_transaction_marker(control_type, *, producer_id, producer_epoch, coordinator_epoch, timestamp,
                                  base_offset=0, partition_leader_epoch=-1):
    """The control batch that ends a transaction (EndTransactionMarker), 78 bytes.

    control_type: ControlType.COMMIT or ABORT, also as "COMMIT", 1. timestamp: in ms. Raises EncodeError, ValueError.
    """
    kind = _kafka_enum(ControlType, {}, "control_type", control_type)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        raise EncodeError(f"{kind.label} ends no transaction: COMMIT and ABORT do", field="control_type", value=kind)
    epoch = _field_in(coordinator_epoch, "coordinator_epoch", -0x80000000, 0x7FFFFFFF)
    _field_in(producer_id, "producer_id", 0, INT64_MAX)
    _field_in(producer_epoch, "producer_epoch", 0, 0x7FFF)
    key = b"\x00\x00" + int(kind).to_bytes(2, "big")
    value = b"\x00\x00" + int(epoch).to_bytes(4, "big", signed=True)
    return encode_batch(
        [(key, value, (), timestamp)], is_control_batch=True, is_transactional=True, producer_id=producer_id,
        producer_epoch=producer_epoch, base_offset=base_offset, partition_leader_epoch=partition_leader_epoch,
    )
