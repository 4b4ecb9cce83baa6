// SPDX-License-Identifier: Apache-2.0
// A fault is what a nogil function fills when bytes are wrong: which rule was broken, where, what was found and what was
// expected. faults.pxi turns it into an exception, the one place that knows texts and classes. Nothing here allocates.
#ifndef KCODEC_FAULT_H
#define KCODEC_FAULT_H

#include <stdint.h>

typedef enum {
    FAULT_NONE = 0,
    // structure of the batch sequence
    FAULT_BATCH_LENGTH_TOO_SMALL,  // found: batch_length, expected: the least it may be
    FAULT_BATCH_LENGTH_LIMIT,      // found: batch_length, expected: max_batch_bytes
    FAULT_MAGIC,                   // found: magic
    FAULT_CRC,                     // found: stored, expected: computed
    // header fields
    FAULT_COMPRESSION_ID,          // found: id
    FAULT_FIELD_NEGATIVE,          // field, found
    FAULT_OFFSET_OVERFLOW,         // found: last_offset_delta
    FAULT_BASE_OFFSET_ORDER,       // found: base_offset, expected: the last offset before it
    FAULT_COUNT_TOO_BIG,           // found: records_count, expected: bytes there
    FAULT_BYTES_LEFT,              // found: bytes after the last record, expected: records_count
    // records
    FAULT_RECORD_MISSING,          // found: records read, expected: records_count
    FAULT_VARINT_CUT,              // field
    FAULT_VARINT_LONG,             // field
    FAULT_LENGTH_BEYOND,           // field, found: length, expected: bytes that remain
    FAULT_LENGTH_NEGATIVE,         // field, found
    FAULT_RECORD_LENGTH_MISMATCH,  // found: record_length, expected: bytes its fields take
    FAULT_OFFSET_DELTA_RANGE,      // found: offset_delta, expected: last_offset_delta
    FAULT_OFFSET_DELTA_ORDER,      // found: offset_delta, expected: the one before
    FAULT_MESSAGE_TOO_SMALL,       // of magic 0 and 1, inside a compressed one; found: size, expected: the least it may be
    FAULT_MESSAGE_MAGIC,           // likewise; found: magic
    FAULT_MESSAGE_CRC,             // likewise; found: stored, expected: computed
    FAULT_MESSAGE_COMPRESSED,      // likewise; found: compression id
    FAULT_WRAPPER_NULL,            // a compressed message without a value
    FAULT_WRAPPER_EMPTY,           // and one that holds no whole message
    FAULT_WRAPPER_OFFSET,          // found: its offset, expected: that of the last message inside, relative
    FAULT_CONTROL_KEY_SHORT,       // found: key length (-1 null), expected: 4
    FAULT_CONTROL_KEY_VERSION,     // found: version
    FAULT_TIMESTAMP_OVERFLOW,      // found: timestamp in ms (only where microseconds were asked for)
    // compressed streams
    FAULT_COMPRESSED_CUT,          // field: codec
    FAULT_COMPRESSED_BAD,          // field: codec, detail: what
    FAULT_DECOMPRESSED_LIMIT,      // found: size reached or claimed, expected: limit
    // values that cannot be written; `record` is the row of the source
    FAULT_ENCODE_NULL,             // field: what must not be null
    FAULT_ENCODE_TIMESTAMP,        // found: timestamp below -1
    FAULT_ENCODE_OFFSET,           // field, found: negative, or too large
    FAULT_ENCODE_OFFSET_BASE,      // found: offset, expected: the one before base_offset
    FAULT_ENCODE_OFFSET_ORDER,     // found: offset, expected: the offset before it
    FAULT_ENCODE_OFFSET_DELTA,     // found: offset, expected: base_offset
    FAULT_ENCODE_LENGTH,           // field, found, expected: the largest there may be
    FAULT_ENCODE_INVALID,          // field: a column whose Arrow offsets, views or indices lead outside of it
    FAULT_ENCODE_TOO_LARGE,        // field (record, batch), found: bytes, expected: max_batch_bytes
    // ours
    FAULT_NO_MEMORY,
    FAULT_PYTHON,                  // a Python exception is stored with the decompressor context
} FaultCode;

typedef struct {
    int32_t code;
    int32_t has_base_offset;
    int64_t position;     // byte in the input where the batch begins
    int64_t base_offset;
    int64_t record;       // index within the batch, -1: not about a record
    int64_t found;
    int64_t expected;
    const char *field;    // a static string: the field's or codec's name
    const char *detail;   // a static string or NULL
} Fault;

static inline int fault_set(Fault *fault, int32_t code, const char *field, int64_t found, int64_t expected) {
    fault->code = code;
    fault->field = field;
    fault->found = found;
    fault->expected = expected;
    fault->detail = 0;
    fault->record = -1;
    return -1;
}

static inline int fault_detail(Fault *fault, int32_t code, const char *field, const char *detail) {
    fault_set(fault, code, field, 0, 0);
    fault->detail = detail;
    return -1;
}

#endif
