// SPDX-License-Identifier: Apache-2.0
// Encoding of records to batches of magic 2. A BatchWriter writes batches one after the other into its output, as
// Kafka's own writer does (MemoryRecordsBuilder, DefaultRecord.writeTo): varints are as short as possible, the
// attributes of each record are 0, and the header of a batch is written last.
#ifndef KCODEC_ENCODE_H
#define KCODEC_ENCODE_H

#include "arrow_import.h"
#include "header.h"
#include "pool.h"
#include "writing.h"

// Compresses by a Python package and writes the result to `out` after its first `at` bytes. It is called without the
// GIL. Returns -1 with the fault.
typedef int (*CompressFunction)(void *context, int codec, const uint8_t *data, int64_t size, Buffer *out, int64_t at,
                                int64_t *length, Fault *fault);

typedef struct {
    int64_t offset, timestamp;
} StoredTime;

typedef struct {
    BatchHeader header;        // the fields that are known before the records; attributes with all bits
    int64_t max_batch_bytes;   // of a whole batch before compression
    int has_base_offset;       // the first batch has header.base_offset, whatever the offset of its first record is
    int has_base_timestamp;    // use header.base_timestamp as base of the deltas: a delete horizon, or a copied batch
    int has_max_timestamp;     // write header.max_timestamp instead of the largest timestamp of the records
    int has_last_offset;       // header.last_offset_delta is a minimum, because compaction keeps the last offset
    int any_timestamp;         // allow timestamps below -1, which a log may contain but Kafka's builder rejects
    int ends_at_gap;           // a record that is too far from the base offset begins a batch, and is not an error
    int has_append_time;       // every record gets the timestamp append_time (LogAppendTime)
    int64_t append_time;
    const StoredTime *stored_times;  // ascending; a record with one of these offsets gets the timestamp of the entry
    int64_t stored_times_count;
    int skip_useless_compression;
    CompressFunction compress;
    void *compress_context;
} BatchSettings;

typedef struct {
    Payload name, value;
} HeaderField;

typedef struct {
    int64_t offset;            // if has_offset is 0, writer_append sets it to the next offset
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
    Buffer out;                // finished batches, and the open batch if it will not be compressed
    int64_t finished;          // bytes of finished batches in out
    Buffer scratch;            // the open batch if it will be compressed
    int is_open, has_begun;    // whether a batch is open; whether a record was ever appended
    int64_t length;            // of the open batch, header included, before compression
    int64_t base_offset, last_offset, base_timestamp, max_timestamp, count;
    int length_width;          // width of the last record's varint length, which is the guess for the next record
    int32_t base_sequence;
    int64_t next_offset;       // offset of the next record if it has none and no batch is open
    int64_t records_count;     // in finished batches
} BatchWriter;

// Rows of one Arrow array.
typedef struct {
    BinaryInput key, value;
    HeadersInput headers;
    IntegerInput offset, timestamp, key_schema_id, value_schema_id;
    int has_timestamp;         // use default_timestamp for a null, or if there is no timestamp column
    int64_t default_timestamp;
    int64_t rows;
} RowsInput;

typedef enum { APPEND_DONE, APPEND_FULL, APPEND_FAULT } AppendResult;

void writer_begin(BatchWriter *writer, const BatchSettings *settings);
void writer_free(BatchWriter *writer);
// Appends one record. Returns APPEND_FULL if the record does not fit into the open batch, which is then unchanged.
// `row` is the row number in faults. The function may set the offset and the timestamp of the record.
AppendResult writer_append(BatchWriter *writer, RecordFields *record, int64_t row, Fault *fault);
// Compresses the open batch, if there is one, and writes its header and CRC. Returns -1 with the fault.
int writer_finish_batch(BatchWriter *writer, Fault *fault);
// Writes a batch without records, as the log cleaner retains it (DefaultRecordBatch.writeEmptyHeader).
int writer_empty_batch(BatchWriter *writer, Fault *fault);
// Appends all rows, beginning new batches as needed; the last batch stays open. `first_row` is the number of the first
// row in faults.
int writer_append_rows(BatchWriter *writer, const RowsInput *rows, int64_t first_row, int one_batch, Fault *fault);

// The headers of a record: elements of an Arrow list, or an array of fields.
typedef struct {
    const HeadersInput *input;
    int64_t first, count;
    const HeaderField *fields;
} HeaderSource;

// Functions shared by encode.c and encode_rows.c.

// As writer_append, but with the headers of `headers` instead of those of the record.
AppendResult writer_append_from(BatchWriter *writer, RecordFields *record, const HeaderSource *headers, int64_t row,
                                Fault *fault);
// Opens a batch with this base offset, and with this base timestamp unless the settings have one.
int writer_begin_batch(BatchWriter *writer, int64_t offset, int64_t timestamp, Fault *fault);
// Makes buffer space for `bytes` more after the first `length` bytes of the open batch. Returns -1 with the fault.
int writer_make_room(BatchWriter *writer, int64_t length, int64_t bytes, Fault *fault);
int row_fault(Fault *fault, int32_t code, const char *field, int64_t found, int64_t expected, int64_t row);

static inline int writer_compresses(const BatchWriter *writer) {
    return header_compression(&writer->settings.header) != COMPRESSION_NONE;
}

// Returns the buffer of the open batch, and sets *begin to the byte at which the batch begins.
static inline Buffer *writer_open_buffer(BatchWriter *writer, int64_t *begin) {
    *begin = writer_compresses(writer) ? 0 : writer->finished;
    return writer_compresses(writer) ? &writer->scratch : &writer->out;
}

#endif
