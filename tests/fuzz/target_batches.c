// SPDX-License-Identifier: Apache-2.0
// Record batches, from bytes to Arrow. Input: eight bytes of options, then the batches. In addition to crashes:
//   - the optimistic reader and the checked one give the same rows, or the same fault;
//   - the three binary layouts, and several threads, give the same values;
//   - the counts are those of the rows that came out.
#include "arrow_export.h"
#include "arrow_walk.h"
#include "checks.h"
#include "crc32c.h"
#include "decode.h"
#include "harness.h"
#include "records.h"
#include "scan.h"

enum { OPTIONS = 8, MOST_ABORTED = 4, SLAB = 5, ALL_COLUMNS = (1 << COLUMN_COUNT) - 1 };

typedef struct {
    int check_crcs, repair, skip, keep_position, rising, spark, threads, include_control, framing;
    Isolation isolation;
    uint32_t wanted;
    int64_t start_offset, end_offset, limit, max_rows, aborted_count, aborted_reach;
    Limits limits;
} Options;

static Options read_options(const uint8_t *p) {
    const uint32_t ids = 1u << COLUMN_KEY_SCHEMA_ID | 1u << COLUMN_VALUE_SCHEMA_ID;
    static const uint32_t wanted[4] = {ALL_COLUMNS, 0x3f, 1u << COLUMN_VALUE, ALL_COLUMNS & ~(1u << COLUMN_HEADERS)};
    Options options = {
        .check_crcs = p[0] & 1, .repair = p[0] >> 1 & 1, .skip = p[0] >> 2 & 1, .keep_position = p[0] >> 3 & 1,
        .rising = p[0] >> 4 & 1, .spark = p[0] >> 5 & 1, .threads = p[0] >> 6 & 1 ? 2 : 1, .include_control = p[0] >> 7,
        .isolation = (Isolation)(p[1] % 3), .wanted = wanted[p[1] >> 4 & 3],
        .start_offset = p[2] < 128 ? INT64_MIN : p[2] - 130, .end_offset = p[3] < 128 ? INT64_MAX : p[3] - 130,
        .limit = p[6] < 200 ? INT64_MAX : p[6] - 200, .max_rows = p[1] >> 6 ? p[1] >> 6 : INT64_MAX,
        .aborted_count = p[5] % (MOST_ABORTED + 1), .aborted_reach = p[7] < 128 ? NO_LAST_OFFSET : p[7] - 128,
        .limits = {1 << 20, (int64_t)61 << (p[4] & 15)},
    };
    options.framing = p[6] & 1;
    if (!options.framing) options.wanted &= ~ids;
    return options;
}

// Makes every CRC right, as far as batches can be walked.
static void repair_crcs(uint8_t *data, int64_t size) {
    int64_t at = 0;
    while (size - at >= BATCH_OVERHEAD && data[at + 16] == 2) {
        int32_t length = (int32_t)load_be32(data + at + 8);
        if (length < LEAST_LENGTH || length > size - at - LOG_OVERHEAD) return;
        size_t covered = (size_t)(length + LOG_OVERHEAD - ATTRIBUTES_POSITION);
        uint32_t crc = crc32c(0, data + at + ATTRIBUTES_POSITION, covered);
        for (int byte = 0; byte < 4; byte++) data[at + CRC_POSITION + byte] = (uint8_t)(crc >> (24 - 8 * byte));
        at += length + LOG_OVERHEAD;
    }
}

// --------------------------------------------------------------------------------------------------------- a whole run

typedef struct {
    int failed;
    Fault fault;
    Counts counts;
    uint64_t values;
} Answer;

static int64_t last_aborted(const Options *options, const BatchHeader *header) {
    int64_t last;
    if (options->aborted_reach < 0) return NO_LAST_OFFSET;
    return __builtin_add_overflow(header->base_offset, options->aborted_reach, &last) ? INT64_MAX : last;
}

static void settle(const Options *options, const DecodeSettings *settings, const uint8_t *data, BatchTable *table,
                   Visibility *visibility) {
    BatchHeader *batches = table_batches(table);
    Aborted list[MOST_ABORTED];
    AbortedIndex index = {0};
    int64_t count = 0;
    for (int64_t at = 0; at < table->count && count < options->aborted_count; at++)
        list[count++] = (Aborted){batches[at].producer_id, batches[at].base_offset,
                                  last_aborted(options, &batches[at])};
    *visibility = (Visibility){.isolation = options->isolation, .include_control = options->include_control,
                               .start_offset = options->start_offset, .end_offset = options->end_offset,
                               .limit = options->limit, .aborted = &index};
    REQUIRE(aborted_index_build(&index, list, count) == 0);
    if (options->isolation != READ_UNCOMMITTED)
        REQUIRE(decode_control_types(settings, data, 0, batches, table->count) == 0);
    REQUIRE(visibility_resolve(visibility, batches, table->count) == 0);
    visibility_free(visibility);
    aborted_index_free(&index);
}

static uint64_t walk_chunk(uint64_t hash, const DecodeSettings *settings, Chunk *chunk, int64_t row, int64_t rows) {
    ColumnOrder order = {.all_nullable = settings->layout.null_empty_headers};
    for (int column = 0; column < COLUMN_COUNT; column++)
        if (WANTS(settings->layout.wanted, column)) order.columns[order.count++] = (uint8_t)column;
    struct ArrowSchema schema;
    struct ArrowArray array;
    REQUIRE(arrow_export_schema(&settings->layout, &order, &schema) == 0);
    REQUIRE(arrow_export_rows(chunk, &order, row, rows, &array) == 0);
    hash = arrow_walk(hash, &schema, &array);
    struct ArrowArray moved = *array.children[0];  // a consumer may take a child away and release it after its parent
    array.children[0]->release = NULL;
    array.release(&array);
    arrow_walk(0, schema.children[0], &moved);
    moved.release(&moved);
    schema.release(&schema);
    return hash;
}

static void finish(DecodeRun *run, Answer *answer) {
    if (decode_finish_chunk(run)) {
        answer->failed = 1;
        answer->fault = run->fault;
    }
    int64_t rows = 0;
    answer->values = 0;
    for (int64_t at = 0; at < run->chunks.count; at++) {
        Chunk *chunk = run->chunks.list[at].chunk;
        int64_t half = chunk->rows / 2;
        uint64_t values = walk_chunk(answer->values, run->settings, chunk, 0, half);
        values = walk_chunk(values, run->settings, chunk, half, chunk->rows - half);
        REQUIRE(values == walk_chunk(answer->values, run->settings, chunk, 0, chunk->rows));
        answer->values = values;
        rows += chunk->rows;
    }
    answer->counts = run->counts;
    if (!answer->failed) REQUIRE(rows == run->counts.records);
    decode_reset(run);
}

static Answer decode_all(const Options *options, BinaryType type, int threads, const uint8_t *data, int64_t size) {
    DecodeSettings settings = {
        .layout = {.wanted = options->wanted, .binary_type = type, .timestamp_microseconds = (uint8_t)options->spark,
                   .null_empty_headers = (uint8_t)options->spark, .framing = (uint8_t)options->framing},
        .limits = options->limits,
        .check_crcs = options->check_crcs, .start_offset = options->start_offset, .end_offset = options->end_offset,
        .max_rows = options->max_rows, .keep_position = options->keep_position, .rising = options->rising,
        .package = harness_package, .topic = "topic", .topic_length = 5, .partition = 7,
        .has_partition = !options->spark,
    };
    BatchTable table = {0};
    Visibility visibility;
    scan_begin(&table);
    while (!table.done) REQUIRE(scan_batches(data, size, 0, &options->limits, options->skip, SLAB, &table) == 0);
    REQUIRE(table.end <= size && table.count <= size / LOG_OVERHEAD);
    settle(options, &settings, data, &table, &visibility);
    settings.limit = visibility.limit;
    DecodeRun run = {.settings = &settings, .data = data, .size = size, .table = table_batches(&table), .corrupt = -1,
                     .position = INT64_MIN, .last_offset = INT64_MIN};
    Answer answer = {0};
    if (threads > 1 && decode_parallel(&run, table.count, threads)) {
        decode_reset(&run);
        threads = 1;
    }
    if (threads == 1) {
        answer.failed = decode_range(&run, 0, table.count) != 0;
        answer.fault = run.fault;
    }
    finish(&run, &answer);
    scan_free(&table);
    return answer;
}

static void require_same_fault(const Fault *a, const Fault *b) {
    REQUIRE(a->code == b->code && a->field == b->field && a->record == b->record);
    REQUIRE(a->found == b->found && a->expected == b->expected);
}

static void require_same(const Answer *a, const Answer *b) {
    REQUIRE(a->failed == b->failed);
    if (a->failed) require_same_fault(&a->fault, &b->fault);
    REQUIRE(a->values == b->values);
    REQUIRE(memcmp(&a->counts, &b->counts, sizeof a->counts) == 0);
}

// ----------------------------------------------------------------------------------------------------- the two readers

static Answer read_records(const Options *options, const RecordsJob *like, int checked) {
    ChunkLayout layout = {.wanted = options->wanted, .timestamp_microseconds = (uint8_t)options->spark,
                          .framing = (uint8_t)options->framing};
    DecodeSettings settings = {.layout = layout};
    RecordsJob job = *like;
    Answer answer = {0};
    Chunk *chunk = chunk_new(&layout);
    REQUIRE(chunk && chunk_reserve(chunk, 1, 1) == 0);
    job.is_filtered = checked;
    answer.failed = records_append(chunk, &job, &answer.fault) != 0;
    answer.counts.records = job.delivered;
    if (!answer.failed) {
        REQUIRE(chunk_finish(chunk, &answer.fault) == 0 && chunk->rows == job.delivered);
        answer.values = walk_chunk(0, &settings, chunk, 0, chunk->rows);
    }
    chunk_release(chunk);
    return answer;
}

static void compare_readers(const Options *options, const uint8_t *data, int64_t size, const BatchHeader *header) {
    Decompressor *decompressor = decompressor_acquire(harness_package);
    ByteSpan records;
    Fault fault;
    REQUIRE(decompressor);
    const ByteSpan stored = {data + header->position + BATCH_OVERHEAD, header_size(header) - BATCH_OVERHEAD, data + size};
    int64_t most = options->limits.max_decompressed_bytes;
    if (!decompress(decompressor, header_compression(header), &stored, most, NULL, 0, &records, &fault)) {
        RecordsJob job = {.header = header, .records = records.data, .length = records.length,
                          .readable_end = records.readable_end, .start_offset = INT64_MIN,
                          .end_offset = INT64_MAX, .limit = INT64_MAX, .keep_position = options->keep_position};
        Answer fast = read_records(options, &job, 0), checked = read_records(options, &job, 1);
        require_same(&fast, &checked);
    }
    decompressor_release(decompressor);
}

static void compare_readers_of_all(const Options *options, const uint8_t *data, int64_t size) {
    BatchTable table = {0};
    Fault fault;
    scan_begin(&table);
    REQUIRE(scan_batches(data, size, 0, &options->limits, 0, INT64_MAX, &table) == 0);
    for (int64_t at = 0; at < table.count; at++) {
        const BatchHeader *header = &table_batches(&table)[at];
        if (!header_is_legacy(header) && !header_check(header, &fault)) compare_readers(options, data, size, header);
    }
    scan_free(&table);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t input_size) {
    harness_initialise();
    if (input_size < OPTIONS) return 0;
    Options options = read_options(input);
    int64_t size = (int64_t)(input_size - OPTIONS);
    uint8_t *data = exact_copy(input + OPTIONS, (size_t)size);
    if (options.repair) repair_crcs(data, size);
    Answer plain = decode_all(&options, BINARY, 1, data, size);
    Answer large = decode_all(&options, LARGE_BINARY, 1, data, size);
    Answer views = decode_all(&options, BINARY_VIEW, 1, data, size);
    require_same(&plain, &large);
    require_same(&plain, &views);
    if (options.threads > 1 && !options.keep_position && !options.rising && !plain.failed) {
        Answer threaded = decode_all(&options, BINARY, options.threads, data, size);
        require_same(&plain, &threaded);
    }
    compare_readers_of_all(&options, data, size);
    harness_check_pool();
    exact_free(data, (size_t)size);
    return 0;
}
