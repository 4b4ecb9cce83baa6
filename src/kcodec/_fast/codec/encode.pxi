# SPDX-License-Identifier: Apache-2.0
# encode() for batches of rows or Arrow data, encode_batch() for exactly one batch, and end-transaction markers.

DEFAULT_MAX_BATCH_BYTES = 1_048_576  # about Kafka's default of max.message.bytes


cdef class EncodedBatches:
    """Encoded batches, for everything that accepts a buffer (``sock.sendall``, ``file.write``, ``bytes``). Immutable.

    len() is the number of bytes.
    """

    cdef Buffer memory
    cdef int64_t size, records_count_
    cdef int32_t next_sequence_

    def __init__(self):
        raise TypeError("EncodedBatches cannot be created directly: call kcodec.encode()")

    def __dealloc__(self):
        buffer_release(&self.memory, self.size)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        cdef const uint8_t *data = <const uint8_t *>&self.size  # any valid address, for an empty buffer
        if self.size:
            data = self.memory.data
        PyBuffer_FillInfo(buffer, self, <void *>data, self.size, 1, flags)

    def __len__(self):
        return self.size

    @property
    def batches(self):
        """Headers of the batches, as RecordBatches."""
        return batches(self, limits=DecodeLimits(LARGEST_LIMIT, LARGEST_LIMIT))

    @property
    def records_count(self):
        """Number of records in all batches."""
        return self.records_count_

    @property
    def next_sequence(self):
        """base_sequence of this producer's next batch; 0 follows 2147483647. -1 without sequences."""
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
    """Encode rows or Arrow data as record batches of magic 2, as Kafka's own writer does. The order of rows is kept.

    source: An iterable of rows, each a Record, a dict or a tuple (key, value, headers, timestamp) whose last fields may
            be missing; or an object with ``__arrow_c_stream__`` or ``__arrow_c_array__`` whose columns have the names
            that decode() uses: offset, timestamp, key, value, headers. key and value are binary or string columns of
            any Arrow layout except run-end encoding. Other columns of decode() and of Spark's Kafka source are ignored,
            as the batch determines them, and so is the index of a pandas DataFrame if it has no name.
    compression:     "none", "gzip", "snappy", "lz4" or "zstd".
    compression_level: Level of the codec in Kafka's numbering (KIP-390); None: Kafka's default.
    base_offset:     Offset of the first batch. None: the offset of the first record, or 0. Offsets in the rows are
                     kept, including gaps. A batch spans at most 2,147,483,648 offsets; a larger gap begins a new batch.
    timestamp:       Timestamp in ms for rows without one; with ``timestamp_type="LogAppendTime"`` for all rows.
    max_batch_bytes: Maximum size of a batch before compression. A record that exceeds it alone raises EncodeError.
    producer_id, producer_epoch, base_sequence: Identity of an idempotent producer, and the sequence number of the first
                     record; -1 without one.
    is_transactional: Whether the batches belong to a transaction.
    partition_leader_epoch: Epoch of the leader; -1, as producers send it.
    framing:         "confluent" writes the columns key_schema_id and value_schema_id, where they are not null, as the
                     prefix of Schema Registry serializers.
    skip_useless_compression: Leave a batch uncompressed if compression would not make it smaller.

    Return EncodedBatches. Raise EncodeError for values that a batch cannot hold and for control records, and ValueError
    or TypeError if an argument is invalid.

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
    writer.settings.ends_at_gap = True
    writer.begin()
    writer.append_source(source, False)
    writer.finish_batch()
    return writer.take()


# Encoding of exactly one batch.

def encode_batch(source, *, like=None, base_offset=None, last_offset=None, base_timestamp=None, max_timestamp=None,
                 delete_horizon_ms=None, is_control_batch=None, compression=None, compression_level=None,
                 timestamp=None, timestamp_type=None, producer_id=None, producer_epoch=None, base_sequence=None,
                 is_transactional=None, partition_leader_epoch=None, max_batch_bytes=DEFAULT_LIMITS.max_batch_bytes,
                 framing=None, skip_useless_compression=False):
    """Encode exactly one batch, with control over every header field.

    Fields that are not given are those of `like`, or the defaults of encode(). Other options are those of encode().

    like:              A RecordBatch. Encoding its records, or what compaction leaves of them, gives the same bytes if
                       it is not compressed. This includes timestamps below -1. If the batch has LogAppendTime, a
                       record with the offset of one of its records gets the timestamp that is stored in the bytes, and
                       a record without a timestamp gets that of the batch.
    last_offset:       Last offset of the batch. It may be above the offset of its last record, because compaction keeps
                       it when it removes the last records. A batch without records needs `like` or last_offset. The
                       log cleaner keeps such a batch for its sequence numbers (DefaultRecordBatch.writeEmptyHeader).
    base_timestamp, max_timestamp: Header fields in ms; by default those of the records.
    delete_horizon_ms: Time in ms (KIP-534).
    is_control_batch:  Whether the records are control records. Their keys and values are written as they are.

    Raise EncodeError as encode() does, and if the records do not fit into one batch.
    """
    cdef _Writer writer = _Writer()
    cdef BatchHeader *header = &writer.settings.header
    header.partition_leader_epoch = header.producer_epoch = header.base_sequence = -1
    header.producer_id = -1
    if like is not None:
        if not isinstance(like, RecordBatch):
            raise TypeError(f"like must be a RecordBatch, not {type(like).__name__}")
        if like.magic != 2:
            raise EncodeError(f"a batch of magic {like.magic} cannot be encoded: kcodec writes magic 2", field="magic",
                              value=like.magic)
        header[0] = (<RecordBatch>like).header
        _field_in(like.base_offset, "base_offset", 0, INT64_MAX - 1)
        _field_in(like.last_offset, "last_offset", like.base_offset, INT64_MAX - 1)
        writer.settings.has_base_offset = True
        writer.settings.has_base_timestamp = writer.settings.has_max_timestamp = writer.settings.has_last_offset = True
        writer.settings.any_timestamp = True
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
    elif header.attributes & ATTRIBUTE_LOG_APPEND_TIME and not writer.settings.has_append_time:
        _restore_create_times(writer, like)
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


cdef int _restore_create_times(_Writer writer, RecordBatch like) except -1:
    """Give the records of the batch `like`, which may have LogAppendTime, the timestamps that are stored in it.

    Readers of a batch with LogAppendTime see the broker's timestamp for all records, but each record still has its own
    in the encoded bytes. With these timestamps the encoded bytes are again the same.
    """
    if not like.header.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        return 0
    if writer.timestamp is None:
        writer.timestamp = like.header.max_timestamp
    if not like.header.records_count:
        return 0
    raw = bytearray(like.data)
    raw[ATTRIBUTES_POSITION + 1] &= 0xFF ^ ATTRIBUTE_LOG_APPEND_TIME
    stored = decode(raw, columns=("offset", "timestamp"), check_crcs=False, control_records="include",
                    limits=like.limits)
    writer.set_stored_times(dict(zip(stored.column("offset"), stored.column("timestamp"))))
    return 0


def encode_end_transaction_marker(control_type, *, producer_id, producer_epoch, coordinator_epoch, timestamp,
                                  base_offset=0, partition_leader_epoch=-1):
    """Return the control batch that ends a transaction (EndTransactionMarker), 78 bytes.

    control_type: ControlType.COMMIT or ABORT, or its name or number.
    producer_id, producer_epoch: Identity of the transaction's producer.
    coordinator_epoch: Epoch of the transaction coordinator.
    timestamp:    Milliseconds since 1970.
    base_offset, partition_leader_epoch: As in encode().

    Raise EncodeError or ValueError if an argument is invalid.
    """
    kind = _kafka_enum(ControlType, {}, "control_type", control_type)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        raise EncodeError(f"control_type must be COMMIT or ABORT, not {kind.label}", field="control_type", value=kind)
    epoch = _field_in(coordinator_epoch, "coordinator_epoch", -0x80000000, 0x7FFFFFFF)
    _field_in(producer_id, "producer_id", 0, INT64_MAX)
    _field_in(producer_epoch, "producer_epoch", 0, 0x7FFF)
    key = b"\x00\x00" + int(kind).to_bytes(2, "big")
    value = b"\x00\x00" + int(epoch).to_bytes(4, "big", signed=True)
    return encode_batch(
        [(key, value, (), timestamp)], is_control_batch=True, is_transactional=True, producer_id=producer_id,
        producer_epoch=producer_epoch, base_offset=base_offset, partition_leader_epoch=partition_leader_epoch,
    )
