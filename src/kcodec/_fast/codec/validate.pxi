# SPDX-License-Identifier: Apache-2.0
# Validation of the records of a produced batch by the rules of a topic. The rules for batches and requests are in
# record/validation.py.

cdef extern from "_fast/codec/validate.h" nogil:
    int C_MAX_RECORD_INDEXES "MAX_RECORD_INDEXES"

    ctypedef struct RecordRules:
        const BatchHeader *header
        int is_compacted, is_create_time
        int64_t now, before_max_ms, after_max_ms
        int64_t without_key, wrong_time, named
        int32_t indexes[1000]
        int is_sequential, has_negative_time, is_stream_fault

    Decompressor *decompressor_acquire(PackageFunction package)
    void decompressor_release(Decompressor *self)
    int validate_records(RecordRules *rules, Decompressor *decompressor, const uint8_t *stored, int64_t limit,
                         Fault *fault)

MAX_RECORD_INDEXES = C_MAX_RECORD_INDEXES


def validate_batch_records(RecordBatch batch, *, is_compacted, is_create_time, now, before_max_ms, after_max_ms):
    """Return what a leader finds in the records of a batch; offsets are not checked.

    Return (indexes, without_key, wrong_time, is_sequential, has_negative_time), or (error, is_stream_fault) with the
    DecodeError of invalid records. Raise LimitExceededError.
    """
    cdef RecordRules *rules = <RecordRules *>calloc(1, sizeof(RecordRules))
    if rules == NULL:
        raise MemoryError("no memory for rules")
    try:
        rules.header = &batch.header
        rules.is_compacted, rules.is_create_time = is_compacted, is_create_time
        rules.now, rules.before_max_ms, rules.after_max_ms = now, before_max_ms, after_max_ms
        return _validate_records(rules, batch)
    finally:
        free(rules)


cdef object _validate_records(RecordRules *rules, RecordBatch batch):
    cdef _Source source = _Source(batch.data)
    cdef Limits limits
    cdef Fault fault
    cdef int64_t at
    cdef int failed = -1
    _read_limits(batch.limits, &limits)
    with nogil:
        fault_set(&fault, FAULT_NO_MEMORY, b"context", 0, 0)
        decompressor = decompressor_acquire(_package_decompress)
        if decompressor != NULL:
            failed = validate_records(rules, decompressor, source.data() + BATCH_OVERHEAD,
                                      limits.max_decompressed_bytes, &fault)
            decompressor_release(decompressor)
    if not failed:
        indexes = tuple([rules.indexes[at] for at in range(rules.named)])
        return indexes, rules.without_key, rules.wrong_time, bool(rules.is_sequential), bool(rules.has_negative_time)
    fault.position, fault.base_offset, fault.has_base_offset = batch.header.position, batch.header.base_offset, True
    error = _error_of(&fault, batch.path)
    if isinstance(error, LimitExceededError) or not isinstance(error, DecodeError):
        raise error
    return error, bool(rules.is_stream_fault)
