// SPDX-License-Identifier: Apache-2.0
// A function that runs without the GIL reports invalid data in a Fault: which rule was violated and where, what was
// found and what was expected. faults.pxi turns it into an exception and has all messages and classes. Nothing here
// allocates.
#ifndef KCODEC_FAULT_H
#define KCODEC_FAULT_H

#include <stdint.h>

typedef enum {
    FAULT_NONE = 0,
    // structure of the batch sequence
    FAULT_BATCH_LENGTH_TOO_SMALL,  // found: batch_length, expected: the minimum
    FAULT_BATCH_LENGTH_LIMIT,      // found: batch_length, expected: max_batch_bytes
    FAULT_MAGIC,                   // found: magic
    FAULT_CRC,                     // found: stored, expected: computed
    // header fields
    FAULT_COMPRESSION_ID,          // found: id
    FAULT_FIELD_NEGATIVE,          // field, found
    FAULT_OFFSET_OVERFLOW,         // found: last_offset_delta
    FAULT_BASE_OFFSET_ORDER,       // found: base_offset, expected: the last offset before it
    FAULT_COUNT_TOO_BIG,           // found: records_count, expected: bytes available for records
    FAULT_BYTES_LEFT,              // found: bytes after the last record, expected: records_count
    // records
    FAULT_RECORD_MISSING,          // found: records read, expected: records_count
    FAULT_VARINT_CUT,              // field
    FAULT_VARINT_LONG,             // field
    FAULT_LENGTH_BEYOND,           // field, found: length, expected: bytes that remain
    FAULT_LENGTH_NEGATIVE,         // field, found
    FAULT_RECORD_LENGTH_MISMATCH,  // found: record_length, expected: bytes its fields take
    FAULT_OFFSET_DELTA_RANGE,      // found: offset_delta, expected: last_offset_delta
    FAULT_OFFSET_DELTA_ORDER,      // found: offset_delta, expected: that of the previous record
    FAULT_MESSAGE_TOO_SMALL,       // message inside a compressed one (magic 0, 1); found: size, expected: the minimum
    FAULT_MESSAGE_MAGIC,           // message inside a compressed one; found: magic
    FAULT_MESSAGE_CRC,             // message inside a compressed one; found: stored, expected: computed
    FAULT_MESSAGE_COMPRESSED,      // message inside a compressed one; found: compression id
    FAULT_WRAPPER_NULL,            // a compressed message whose value is null
    FAULT_WRAPPER_EMPTY,           // a compressed message that contains no whole message
    FAULT_WRAPPER_OFFSET,          // found: offset of the wrapper, expected: relative offset of its last message
    FAULT_CONTROL_KEY_SHORT,       // found: key length (-1 null), expected: 4
    FAULT_CONTROL_KEY_VERSION,     // found: version
    FAULT_TIMESTAMP_OVERFLOW,      // found: timestamp in ms (only if microseconds were requested)
    // compressed streams
    FAULT_COMPRESSED_CUT,          // field: codec
    FAULT_COMPRESSED_BAD,          // field: codec, detail: what
    FAULT_DECOMPRESSED_LIMIT,      // found: size reached or claimed, expected: limit
    // values that cannot be written; `record` is the row of the source
    FAULT_ENCODE_NULL,             // field: what must not be null
    FAULT_ENCODE_TIMESTAMP,        // found: timestamp below -1
    FAULT_ENCODE_SECONDS,          // found: timestamp in s that does not fit into int64 ms, expected: the maximum
    FAULT_ENCODE_OFFSET,           // field, found: negative, or too large
    FAULT_ENCODE_LAST_OFFSET,      // found: base_offset, expected: last_offset_delta, whose sum is too large
    FAULT_ENCODE_OFFSET_BASE,      // found: offset, expected: base_offset, which is larger
    FAULT_ENCODE_OFFSET_ORDER,     // found: offset, expected: the previous offset
    FAULT_ENCODE_OFFSET_DELTA,     // found: offset, expected: base_offset
    FAULT_ENCODE_INT32,            // field, found: does not fit into int32
    FAULT_ENCODE_LENGTH,           // field, found, expected: the maximum
    FAULT_ENCODE_INVALID,          // field: a column whose Arrow offsets, views or indices are out of bounds
    FAULT_ENCODE_TOO_LARGE,        // field (record, batch), found: bytes, expected: max_batch_bytes
    // not caused by the data
    FAULT_NO_MEMORY,
    FAULT_PYTHON,                  // found: number of the Python exception, which packages.pxi stores
} FaultCode;

typedef struct {
    int32_t code;
    int32_t has_base_offset;
    int64_t position;     // byte in the input where the batch begins
    int64_t base_offset;
    int64_t record;       // index within the batch; -1 if the fault does not concern a record
    int64_t found;
    int64_t expected;
    const char *field;    // a static string: name of the field or codec
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
