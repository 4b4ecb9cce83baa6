// SPDX-License-Identifier: Apache-2.0
// The records of one batch, decompressed, into columns (Kafka: DefaultRecord.readFrom, RecordIterator).
//
// Record: length varint | attributes i8 | timestamp_delta varlong | offset_delta varint | key_length varint, key |
//         value_length varint, value | headers varint, each: name_length varint, name, value_length varint, value
// All varints are zig-zag; any negative key, value or header-value length is null, as Java reads it.
#ifndef KCODEC_RECORDS_H
#define KCODEC_RECORDS_H

#include "columns.h"

enum {
    READ_AHEAD = 64,        // bytes past a record that the optimistic loop may look at
    FUSE_CRC_FROM = 512,    // bytes a record on average from which the CRC is taken just ahead of the parser
    FUSE_STEP = 8 << 10,
};

typedef struct {
    const uint8_t *bytes;
    int32_t size;  // -1 null
} Field;

typedef struct {
    const BatchHeader *header;
    const uint8_t *records;        // as parsed: never compressed
    int64_t length;
    const uint8_t *readable_end;   // memory may be read up to here, past the records' own end
    int64_t view_base;             // with binary_view: added to a place in `records` to make a view's offset
    int32_t view_buffer;           // and the buffer it names
    int64_t start_offset, end_offset, limit;
    int is_filtered;               // some records may lie outside these three
    int keep_position;             // in an uncompressed batch pass over a record that is not above those before it
    int fuse_crc;                  // take the CRC while parsing; the caller compares `crc` at the end, fault or not
    const uint8_t *crc_position;
    uint32_t crc;
    int64_t delivered, undecided, out_of_range;  // what became of the records
} RecordsJob;

// Appends the records; on a fault (-1) the caller rolls the chunk back. fault->record is the index of the record.
int records_append(Chunk *chunk, RecordsJob *job, Fault *fault);

// Appends the records from `index` on, which begins at *position, until one is unusual or all are done, in memory that is
// reserved; the index of the next. What was appended is right; the unusual one is not decided about. Whether offsets must
// rise is a part of the choice: job->keep_position, or a compressed batch.
typedef int64_t (*AppendFunction)(Chunk *chunk, RecordsJob *job, int64_t index, const uint8_t **position,
                                  int64_t *least_delta);
AppendFunction records_choose_append(const Chunk *chunk, int fused, int ordered);

// One record as it lies there, for those who look at records without keeping them.
typedef struct {
    int64_t timestamp_delta, offset_delta, offset;
    Field key, value;
    int32_t headers;
    Reader header_reader;  // at the first header
} CheckedRecord;

// Reads and checks a whole record, headers included, without writing anything. `reader` ends where the record set ends.
int check_record(Reader *reader, CheckedRecord *record, Fault *fault);

// A key or value of job->records into its column. -1: no memory.
int records_put_field(Chunk *chunk, const RecordsJob *job, BinaryColumn *column, const Field *field, int64_t row);

// The type in a control record's key: version i16, type i16 (ControlRecordType.parseTypeId).
int control_type_of(const uint8_t *key, int32_t key_length, int16_t *type, Fault *fault);

// The type of a control batch by its first record; CONTROL_NOT_A_MARKER when it holds none.
int control_batch_type(const uint8_t *records, int64_t length, int32_t records_count, int16_t *type, Fault *fault);

#endif
