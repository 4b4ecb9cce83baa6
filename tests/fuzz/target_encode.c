// SPDX-License-Identifier: Apache-2.0
// Records to batches. Input: sixteen bytes of options, then records. In addition to crashes:
//   - what was taken comes back from the decoder, field by field, CRC and all;
//   - a record that is refused leaves no trace, and no batch is larger than max_batch_bytes but for compression;
//   - what was decoded, taken out as Arrow in each layout and encoded again, makes the same bytes.
#include "arrow_export.h"
#include "checks.h"
#include "decode.h"
#include "encode.h"
#include "harness.h"
#include "scan.h"

enum { OPTIONS = 16, MOST_RECORDS = 48, MOST_HEADERS = 4, USED = 0x3f };

typedef struct {
    const uint8_t *at, *end;
} Bytes;

static uint8_t next_byte(Bytes *bytes) { return bytes->at < bytes->end ? *bytes->at++ : 0; }

static int64_t next_number(Bytes *bytes) {  // small ones mostly
    uint8_t kind = next_byte(bytes);
    if (kind < 200) return kind - 20;
    uint64_t value = 0;
    for (int byte = 0; byte < (kind & 7) + 1; byte++) value = value << 8 | next_byte(bytes);
    return (int64_t)(kind & 8 ? ~value : value);
}

// A field of as many bytes as there are, or null; `readable_end` says whether more may be read behind it.
static Payload next_payload(Bytes *bytes) {
    uint8_t kind = next_byte(bytes);
    if (kind == 0) return (Payload){NULL, PAYLOAD_NULL, NULL};
    int64_t left = bytes->end - bytes->at, size = kind < 32 ? kind - 1 : (kind - 31) * 3;
    if (size > left) size = left;
    Payload payload = {bytes->at, size, kind & 1 ? bytes->end : bytes->at + size};
    bytes->at += kind & 2 ? 0 : size;
    return payload;
}

typedef struct {
    RecordFields fields[MOST_RECORDS];
    HeaderField headers[MOST_RECORDS][MOST_HEADERS];
    int64_t count;
    int has_odd_names;  // not ASCII: Arrow may have to replace them
    int was_cut;        // a batch was ended for a record that was then refused: without it batches end elsewhere
} Records;

static int is_ascii(const Payload *name) {
    for (int64_t at = 0; at < name->length; at++)
        if (name->bytes[at] >= 0x80) return 0;
    return 1;
}

static RecordFields next_record(Bytes *bytes, Records *records) {
    uint8_t kind = next_byte(bytes);
    HeaderField *headers = records->headers[records->count];
    RecordFields record = {.has_offset = kind & 1, .timestamp = next_number(bytes), .headers = headers};
    if (record.has_offset) record.offset = next_number(bytes);
    record.key = next_payload(bytes);
    record.value = next_payload(bytes);
    record.headers_count = kind >> 1 & 3;
    for (int64_t at = 0; at < record.headers_count; at++) {
        headers[at].name = next_payload(bytes);
        headers[at].value = next_payload(bytes);
    }
    if (kind & 0x80 && record.value.length >= 0) {
        record.has_value_schema_id = 1;
        record.value_schema_id = (int32_t)next_number(bytes);
    }
    return record;
}

static int store(void *context, int codec, const uint8_t *data, int64_t size, Buffer *out, int64_t at, int64_t *length,
                 Fault *fault) {
    (void)context;
    if (codec != COMPRESSION_GZIP) return fault_set(fault, FAULT_COMPRESSED_BAD, "package", codec, 0);
    if (buffer_grow(out, (size_t)(at + size + 1), (size_t)at))
        return fault_set(fault, FAULT_NO_MEMORY, "package", 0, 0);
    out->data[at] = 0;  // harness_package: not damaged
    memcpy(out->data + at + 1, data, (size_t)size);
    *length = size + 1;
    return 0;
}

static BatchSettings read_settings(Bytes *bytes) {
    static const uint8_t codecs[4] = {COMPRESSION_NONE, COMPRESSION_SNAPPY, COMPRESSION_GZIP, COMPRESSION_NONE};
    uint8_t flags = next_byte(bytes), more = next_byte(bytes);
    uint8_t size = next_byte(bytes);
    BatchSettings settings = {.max_batch_bytes = (int64_t)64 << (size & 15), .compress = store,
                              .ends_at_gap = !(size & 0x10), .has_base_offset = flags & 1, .has_append_time = flags >> 1 & 1,
                              .any_timestamp = flags >> 2 & 1, .skip_useless_compression = flags >> 3 & 1};
    BatchHeader *header = &settings.header;
    header->attributes = (int16_t)(codecs[flags >> 4 & 3] | (settings.has_append_time ? ATTRIBUTE_LOG_APPEND_TIME : 0) |
                                   (flags & 0x40 ? ATTRIBUTE_TRANSACTIONAL : 0));
    header->base_offset = more & 0x7f;
    header->producer_id = flags & 0x80 ? 9001 : -1;
    header->producer_epoch = flags & 0x80 ? 3 : -1;
    header->base_sequence = flags & 0x80 ? (more & 0x80 ? INT32_MAX - 3 : 7) : -1;
    header->partition_leader_epoch = -1;
    settings.append_time = 1767225600000 + more;
    bytes->at += OPTIONS - 3;
    return settings;
}

// ---------------------------------------------------------------------------------------------------- records, once

static int take_record(BatchWriter *writer, RecordFields *record, Fault *fault) {
    AppendResult result = writer_append(writer, record, 0, fault);
    if (result == APPEND_FULL) {
        if (writer_finish_batch(writer, fault)) return -1;
        result = writer_append(writer, record, 0, fault);
        REQUIRE(result != APPEND_FULL);
    }
    return result == APPEND_DONE ? 0 : -1;
}

static void encode_records(BatchWriter *writer, Bytes *bytes, Records *records) {
    Fault fault;
    records->count = 0;
    while (bytes->at < bytes->end && records->count < MOST_RECORDS) {
        RecordFields record = next_record(bytes, records);
        int64_t before = writer->length, finished = writer->finished;
        if (take_record(writer, &record, &fault)) {
            REQUIRE(fault.code != FAULT_NO_MEMORY);
            if (writer->finished == finished && writer->is_open) REQUIRE(writer->length == before);
            records->was_cut |= writer->finished != finished;
            continue;
        }
        record.offset = writer->last_offset;
        if (writer->settings.has_append_time) record.timestamp = writer->settings.append_time;
        for (int64_t at = 0; at < record.headers_count; at++)
            records->has_odd_names |= !is_ascii(&records->headers[records->count][at].name);
        records->fields[records->count++] = record;
    }
}

// ----------------------------------------------------------------------------------------------------- and back again

static void decode_back(const uint8_t *data, int64_t size, int64_t largest, BinaryType type, DecodeSettings *settings,
                        DecodeRun *run, BatchTable *table) {
    *settings = (DecodeSettings){.layout = {.wanted = USED, .binary_type = type}, .limits = {1 << 26, 1 << 26},
                                 .check_crcs = 1,
                                 .start_offset = INT64_MIN, .end_offset = INT64_MAX, .limit = INT64_MAX,
                                 .max_rows = INT64_MAX, .package = harness_package};
    scan_begin(table);
    REQUIRE(scan_batches(data, size, 0, &settings->limits, 0, INT64_MAX, table) == 0);
    REQUIRE(table->done && table->corrupt < 0 && table->end == size && table->needed == 0);
    for (int64_t at = 0; at < table->count; at++) {
        const BatchHeader *header = &table_batches(table)[at];
        if (header_compression(header) == COMPRESSION_NONE) REQUIRE(header_size(header) <= largest);
        table_batches(table)[at].outcome = OUTCOME_DELIVER;
    }
    *run = (DecodeRun){.settings = settings, .data = data, .size = size, .table = table_batches(table), .corrupt = -1};
    REQUIRE(decode_range(run, 0, table->count) == 0 && decode_finish_chunk(run) == 0);
}

static void require_field(const BinaryColumn *column, int64_t row, const Payload *expected, int has_id, int32_t id) {
    const int32_t *ends = (const int32_t *)column->offsets.data;
    const uint8_t *bytes = column->data.data + ends[row];
    int64_t size = ends[row + 1] - ends[row];
    int is_null = column->validity.data && !bitmap_get(column->validity.data, row);
    REQUIRE(is_null == (expected->length < 0));
    if (is_null) return;
    if (has_id) {
        REQUIRE(size >= SCHEMA_ID_BYTES && bytes[0] == 0 && (int32_t)load_be32(bytes + 1) == id);
        bytes += SCHEMA_ID_BYTES;
        size -= SCHEMA_ID_BYTES;
    }
    REQUIRE(size == expected->length && (!size || memcmp(bytes, expected->bytes, (size_t)size) == 0));
}

static void require_records(const DecodeRun *run, const Records *records) {
    int64_t at = 0;
    for (int64_t number = 0; number < run->chunks.count; number++) {
        const Chunk *chunk = run->chunks.list[number].chunk;
        const int32_t *lists = (const int32_t *)chunk->header_lists.data;
        for (int64_t row = 0; row < chunk->rows; row++, at++) {
            REQUIRE(at < records->count);
            const RecordFields *record = &records->fields[at];
            REQUIRE(((const int64_t *)chunk->fixed[COLUMN_OFFSET].data)[row] == record->offset);
            REQUIRE(((const int64_t *)chunk->fixed[COLUMN_TIMESTAMP].data)[row] == record->timestamp);
            require_field(&chunk->key, row, &record->key, 0, 0);
            require_field(&chunk->value, row, &record->value, record->has_value_schema_id, record->value_schema_id);
            REQUIRE(lists[row + 1] - lists[row] == record->headers_count);
            for (int64_t header = 0; header < record->headers_count; header++) {
                require_field(&chunk->header_name, lists[row] + header, &records->headers[at][header].name, 0, 0);
                require_field(&chunk->header_value, lists[row] + header, &records->headers[at][header].value, 0, 0);
            }
        }
    }
    REQUIRE(at == records->count && run->counts.records == at);
}

static void append_chunk(BatchWriter *writer, const DecodeSettings *settings, Chunk *chunk) {
    static const ColumnOrder order = {
        .columns = {COLUMN_OFFSET, COLUMN_TIMESTAMP, COLUMN_KEY, COLUMN_VALUE, COLUMN_HEADERS}, .count = 5};
    struct ArrowSchema schema;
    struct ArrowArray array;
    RowsInput rows = {.rows = chunk->rows};
    Fault fault;
    REQUIRE(arrow_export_schema(&settings->layout, &order, &schema) == 0);
    REQUIRE(arrow_export_rows(chunk, &order, 0, chunk->rows, &array) == 0);
    REQUIRE(integer_input_bind(&rows.offset, schema.children[0], array.children[0]) == 0);
    REQUIRE(timestamp_input_bind(&rows.timestamp, schema.children[1], array.children[1]) == 0);
    REQUIRE(binary_input_bind(&rows.key, schema.children[2], array.children[2]) == 0);
    REQUIRE(binary_input_bind(&rows.value, schema.children[3], array.children[3]) == 0);
    REQUIRE(headers_input_bind(&rows.headers, schema.children[4], array.children[4]) == 0);
    REQUIRE(writer_append_rows(writer, &rows, 0, 0, &fault) == 0);
    array.release(&array);
    schema.release(&schema);
}

static void encode_again(const BatchWriter *first, BinaryType type) {
    DecodeSettings settings;
    DecodeRun run;
    BatchTable table = {0};
    BatchWriter again;
    Fault fault;
    decode_back(first->out.data, first->finished, first->settings.max_batch_bytes, type, &settings, &run, &table);
    writer_begin(&again, &first->settings);
    for (int64_t at = 0; at < run.chunks.count; at++) append_chunk(&again, &settings, run.chunks.list[at].chunk);
    REQUIRE(writer_finish_batch(&again, &fault) == 0);
    REQUIRE(again.finished == first->finished);
    if (again.finished) REQUIRE(memcmp(again.out.data, first->out.data, (size_t)again.finished) == 0);
    REQUIRE(again.records_count == first->records_count && again.next_offset == first->next_offset);
    writer_free(&again);
    decode_reset(&run);
    scan_free(&table);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t input_size) {
    static Records records;
    harness_initialise();
    if (input_size < OPTIONS) return 0;
    uint8_t *data = exact_copy(input, input_size);
    Bytes bytes = {data, data + input_size};
    BatchSettings settings = read_settings(&bytes);
    BatchWriter writer;
    Fault fault;
    writer_begin(&writer, &settings);
    records.has_odd_names = records.was_cut = 0;
    encode_records(&writer, &bytes, &records);
    int failed = writer_finish_batch(&writer, &fault);
    if (failed) {
        REQUIRE(fault.code == FAULT_ENCODE_OFFSET || fault.code == FAULT_ENCODE_TOO_LARGE);
    } else if (writer.finished) {
        DecodeSettings decode_settings;
        DecodeRun run;
        BatchTable table = {0};
        REQUIRE(writer.records_count == records.count);
        decode_back(writer.out.data, writer.finished, settings.max_batch_bytes, BINARY, &decode_settings, &run, &table);
        require_records(&run, &records);
        decode_reset(&run);
        scan_free(&table);
        // `encode`, which takes rows from Arrow and makes many batches, always ends a batch at a gap. Without this, a
        // record that is too far and too large is refused or begins a batch, as its size is estimated differently.
        int is_comparable = !records.has_odd_names && !records.was_cut && settings.ends_at_gap;
        for (int type = BINARY; type <= BINARY_VIEW && is_comparable; type++) encode_again(&writer, (BinaryType)type);
    }
    writer_free(&writer);
    harness_check_pool();
    exact_free(data, input_size);
    return 0;
}
