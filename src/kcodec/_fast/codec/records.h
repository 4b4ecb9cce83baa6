// SPDX-License-Identifier: Apache-2.0
// Decoding of the decompressed records of one batch to columns (Kafka: DefaultRecord.readFrom, RecordIterator).
//
// Record: length varint | attributes i8 | timestamp_delta varlong | offset_delta varint | key_length varint, key |
//         value_length varint, value | headers varint, each: name_length varint, name, value_length varint, value
// All varints are zig-zag encoded. Any negative length of a key, value or header value means null, as in Java.
#ifndef KCODEC_RECORDS_H
#define KCODEC_RECORDS_H

#include "columns.h"

enum {
    READ_AHEAD = 64,        // bytes after a record that the fast loop may read
    FUSE_CRC_FROM = 512,    // average record size from which the CRC is computed while parsing
    FUSE_STEP = 8 << 10,
};

typedef struct {
    const uint8_t *bytes;
    int32_t size;  // -1 null
} Field;

typedef struct {
    const BatchHeader *header;
    const uint8_t *records;        // decompressed
    int64_t length;
    const uint8_t *readable_end;   // end of the readable memory, which may be after the end of the records
    int64_t view_base;             // for binary_view: position of records[0] in the view buffer
    int32_t view_buffer;           // for binary_view: index of the view buffer
    int64_t start_offset, end_offset, limit;
    int is_filtered;               // some records may be outside of these three bounds
    int keep_position;             // in an uncompressed batch, leave out a record that is not above those before it
    int fuse_crc;                  // compute `crc` while parsing; the caller compares it at the end, even after a fault
    const uint8_t *crc_position;
    uint32_t crc;
    int64_t delivered, undecided, out_of_range;  // numbers of records by outcome
} RecordsJob;

// Appends the records. Returns -1 with the fault, where fault->record is the index of the record; the caller must then
// roll the chunk back.
int records_append(Chunk *chunk, RecordsJob *job, Fault *fault);

// Appends records from `index` on, whose first begins at *position, up to the first unusual record or the end, and
// returns the index of the next record. The memory must have been reserved. The appended records are valid; an unusual
// record is neither accepted nor rejected. records_choose_append selects a function by whether offsets must rise
// (`ordered`): with job->keep_position, or in a compressed batch.
typedef int64_t (*AppendFunction)(Chunk *chunk, RecordsJob *job, int64_t index, const uint8_t **position,
                                  int64_t *least_delta);
AppendFunction records_choose_append(const Chunk *chunk, int fused, int ordered);

// The fields of one record, which point into the input; for code that checks records without decoding them to columns.
typedef struct {
    int64_t timestamp_delta, offset_delta, offset;
    Field key, value;
    int32_t headers;
    Reader header_reader;  // at the first header
} CheckedRecord;

// Reads and checks a whole record, including its headers. `reader` must end at the end of the records of the batch.
int check_record(Reader *reader, CheckedRecord *record, Fault *fault);

// Appends a key or value of job->records to its column. Returns -1 if there is no memory.
int records_put_field(Chunk *chunk, const RecordsJob *job, BinaryColumn *column, const Field *field, int64_t row);

// Reads the type in the key of a control record: version i16, type i16 (ControlRecordType.parseTypeId).
int control_type_of(const uint8_t *key, int32_t key_length, int16_t *type, Fault *fault);

// Reads the type of a control batch from its first record. It is CONTROL_NOT_A_MARKER if the batch has no records or is
// neither a COMMIT nor an ABORT marker.
int control_batch_type(const uint8_t *records, int64_t length, int32_t records_count, int16_t *type, Fault *fault);

#endif
