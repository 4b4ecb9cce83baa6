// SPDX-License-Identifier: Apache-2.0
// Records to batches of magic 2. A BatchWriter lays batches one behind the other into its output, as Kafka's own writer does
// (MemoryRecordsBuilder, DefaultRecord.writeTo): shortest varints, one attribute byte of 0 a record, the header last.
#ifndef KCODEC_ENCODE_H
#define KCODEC_ENCODE_H

#include "arrow_import.h"
#include "header.h"
#include "pool.h"
#include "writing.h"

// Compresses by a Python package, called without the GIL: appends to `out` behind its first `at` bytes. -1 with the fault.
typedef int (*CompressFunction)(void *context, int codec, const uint8_t *data, int64_t size, Buffer *out, int64_t at,
                                int64_t *length, Fault *fault);

typedef struct {
    BatchHeader header;        // the fields that are known beforehand; attributes with all bits
    int64_t max_batch_bytes;   // of a whole batch before compression
    int has_base_offset;       // the first batch begins at header.base_offset, whatever its first record's offset
    int has_base_timestamp;    // deltas refer to header.base_timestamp: the delete horizon, or a batch to be written alike
    int has_max_timestamp;     // header.max_timestamp is to be written; else the largest of the records
    int has_last_offset;       // header.last_offset_delta is a floor: compaction keeps it
    int any_timestamp;         // below -1, too: what a log may hold though Kafka's builder refuses it
    int has_append_time;       // every record has this time (LogAppendTime)
    int64_t append_time;
    int skip_useless_compression;
    CompressFunction compress;
    void *compress_context;
} BatchSettings;

typedef struct {
    Payload name, value;
} HeaderField;

typedef struct {
    int64_t offset;            // its own, or the next where has_offset is 0
    int64_t timestamp;
    Payload key, value;
    int has_offset;
    int has_key_schema_id, has_value_schema_id;
    int32_t key_schema_id, value_schema_id;
    int64_t headers_count;
    const HeaderField *headers;
} RecordFields;

typedef struct {
    BatchSettings settings;
    Buffer out;                // finished batches, and the open one where it is not compressed
    int64_t finished;          // bytes of finished batches in out
    Buffer scratch;            // the open batch where it is to be compressed
    int is_open, has_begun;    // a batch is open; a record has ever been taken
    int64_t length;            // of the open batch, header included, before compression
    int64_t base_offset, last_offset, base_timestamp, max_timestamp, count;
    int length_width;          // bytes of the last record's length: the guess for the next
    int32_t base_sequence;
    int64_t next_offset;       // of a record without one; of the next batch
    int64_t records_count;     // in finished batches
} BatchWriter;

// Rows of one Arrow array.
typedef struct {
    BinaryInput key, value;
    HeadersInput headers;
    IntegerInput offset, timestamp, key_schema_id, value_schema_id;
    int has_timestamp;         // default_timestamp stands for a null, and for a column that is not there
    int64_t default_timestamp;
    int64_t rows;
} RowsInput;

typedef enum { APPEND_DONE, APPEND_FULL, APPEND_FAULT } AppendResult;

void writer_begin(BatchWriter *writer, const BatchSettings *settings);
void writer_free(BatchWriter *writer);
// One record. FULL: it does not fit into the open batch any more, which is as it was. `row` is named in faults. Offset and
// timestamp of the record may be filled in.
AppendResult writer_append(BatchWriter *writer, RecordFields *record, int64_t row, Fault *fault);
// Ends the open batch, if there is one: compression, header, CRC. -1 with the fault.
int writer_finish_batch(BatchWriter *writer, Fault *fault);
// A batch without records, as the cleaner retains it (DefaultRecordBatch.writeEmptyHeader).
int writer_empty_batch(BatchWriter *writer, Fault *fault);
// All rows, batch after batch; the last one stays open. `row` of the first is `first_row` in faults.
int writer_append_rows(BatchWriter *writer, const RowsInput *rows, int64_t first_row, int one_batch, Fault *fault);

typedef struct {               // where a record's headers come from: an Arrow list or an array of fields
    const HeadersInput *input;
    int64_t first, count;
    const HeaderField *fields;
} HeaderSource;

// ---- what encode.c and encode_rows.c share

// As writer_append, with headers from elsewhere.
AppendResult writer_append_from(BatchWriter *writer, RecordFields *record, const HeaderSource *headers, int64_t row,
                                Fault *fault);
// Opens a batch whose base offset and base timestamp are these, unless the settings say another timestamp.
int writer_begin_batch(BatchWriter *writer, int64_t offset, int64_t timestamp, Fault *fault);
// Room for `bytes` more behind `length` bytes of the open batch. -1 with the fault.
int writer_make_room(BatchWriter *writer, int64_t length, int64_t bytes, Fault *fault);
int row_fault(Fault *fault, int32_t code, const char *field, int64_t found, int64_t expected, int64_t row);

static inline int writer_compresses(const BatchWriter *writer) {
    return header_compression(&writer->settings.header) != COMPRESSION_NONE;
}

// Where the open batch is laid, and at which byte it begins.
static inline Buffer *writer_open_buffer(BatchWriter *writer, int64_t *begin) {
    *begin = writer_compresses(writer) ? 0 : writer->finished;
    return writer_compresses(writer) ? &writer->scratch : &writer->out;
}

#endif
