// SPDX-License-Identifier: Apache-2.0
// Messages of magic 0 and 1. Input: four bytes of options, then messages. In addition to crashes:
//   - rows are those of a slow reader, in offsets, timestamps, keys and values, up to the message that it refuses, too;
//   - the three binary layouts give the same rows, and those that a range leaves are among them.
// "gzip" wrappers hold their messages as they are, behind one byte: so CRCs inside can be made right.
#include "checks.h"
#include "crc32.h"
#include "decode.h"
#include "harness.h"
#include "legacy.h"
#include "lz4.h"
#include "scan.h"

enum { OPTIONS = 4, MOST_ROWS = 4096, DECOMPRESSED = 1 << 18, LARGEST = 1 << 26, USED = 0x3f };

typedef struct {
    int64_t offset, timestamp, key_size, value_size;
    const uint8_t *key, *value;
} Row;

typedef struct {
    Row rows[MOST_ROWS];
    int64_t count;
    int failed;
} Rows;

typedef struct {
    int64_t offset, timestamp, size;
    int magic, codec;
    const uint8_t *crc_from;
    uint32_t crc;
    Row row;  // its key and value
} Message;

// --------------------------------------------------------------------------------------------------- the slow reader

static uint64_t big(const uint8_t *from, int bytes) {
    uint64_t value = 0;
    while (bytes--) value = value << 8 | *from++;
    return value;
}

static int read_field(const uint8_t *p, int64_t *at, int64_t end, const uint8_t **bytes, int64_t *size) {
    if (end - *at < 4) return -1;
    *size = (int32_t)big(p + *at, 4);
    *at += 4;
    *bytes = p + *at;
    if (*size < 0) *size = -1;
    if (*size > end - *at) return -1;
    if (*size > 0) *at += *size;
    return 0;
}

// 1: a message; 0: none is whole; -1: one that breaks the format. Inside a wrapper a cut message is not looked at.
static int read_message(const uint8_t *p, int64_t left, int is_inside, Message *message) {
    if (left < 12) return 0;
    int64_t size = (int32_t)big(p + 8, 4);
    if (size < 14) return -1;
    if (left < 17 || (is_inside && left - 12 < size)) return 0;
    message->magic = p[16];
    if (message->magic > 1 || size < (message->magic ? 22 : 14) || (!is_inside && size > LARGEST)) return -1;
    if (left - 12 < size) return 0;
    message->size = size + 12;
    message->offset = (int64_t)big(p, 8);
    message->crc = (uint32_t)big(p + 12, 4);
    message->crc_from = p + 16;
    message->codec = p[17] & 7;
    message->timestamp = message->magic ? (int64_t)big(p + 18, 8) : -1;
    int64_t at = message->magic ? 26 : 18;
    Row *row = &message->row;
    if (read_field(p, &at, message->size, &row->key, &row->key_size)) return -1;
    return read_field(p, &at, message->size, &row->value, &row->value_size) ? -1 : 1;
}

static int crc_is_wrong(const Message *message) {
    return crc32_ieee(0, message->crc_from, (size_t)(message->size - 16)) != message->crc;
}

static void add_row(Rows *rows, const Row *fields, int64_t offset, int64_t timestamp) {
    if (rows->count == MOST_ROWS) return;
    Row *row = &rows->rows[rows->count++];
    *row = *fields;
    row->offset = offset;
    row->timestamp = timestamp;
}

static int slow_wrapper(const Message *wrapper, int is_appended, int check_crcs, Rows *rows, uint8_t *room) {
    Decompressor *decompressor = decompressor_acquire(harness_package);
    const ByteSpan value = {wrapper->row.value, wrapper->row.value_size, wrapper->row.value + wrapper->row.value_size};
    ByteSpan inside;
    Fault fault;
    int codec = wrapper->codec == COMPRESSION_LZ4 && wrapper->magic == 0 ? LZ4_OF_MAGIC_0 : wrapper->codec;
    int failed = wrapper->row.value_size < 0 ||
                 decompress(decompressor, codec, &value, DECOMPRESSED, NULL, 0, &inside, &fault);
    if (!failed) memcpy(room, inside.data, (size_t)inside.length);
    decompressor_release(decompressor);
    if (failed) return -1;
    Message message;
    int64_t at = 0, count = 0, last = 0, begin = rows->count;
    int state;
    while ((state = read_message(room + at, inside.length - at, 1, &message)) > 0) {
        if (message.codec || (check_crcs && crc_is_wrong(&message))) return -1;
        int is_own = message.magic == 0 || !is_appended;
        add_row(rows, &message.row, message.offset, is_own ? message.timestamp : wrapper->timestamp);
        last = message.offset;
        at += message.size;
        count++;
    }
    if (state < 0 || !count) return -1;
    if (wrapper->magic == 0 || wrapper->offset == 0) return 0;
    if (wrapper->offset < last) return -1;
    uint64_t shift = (uint64_t)wrapper->offset - (uint64_t)last;
    for (int64_t row = begin; row < rows->count; row++)
        rows->rows[row].offset = (int64_t)((uint64_t)rows->rows[row].offset + shift);
    return 0;
}

static void slow_read(const uint8_t *data, int64_t size, int check_crcs, Rows *rows, uint8_t *room) {
    Message message;
    int64_t at = 0;
    rows->count = rows->failed = 0;
    while (!rows->failed) {
        if (size - at >= 17 && data[at + 16] > 1) return;  // of another magic: the end of what is asked here
        int state = read_message(data + at, size - at, 0, &message);
        if (state <= 0) {  // a header that lies about its size ends the walk; a field that does is its message's fault
            rows->failed = state < 0;
            return;
        }
        int64_t before = rows->count;
        int is_wrong = (check_crcs && crc_is_wrong(&message)) || message.codec > COMPRESSION_LZ4;
        if (!is_wrong && !message.codec) add_row(rows, &message.row, message.offset, message.timestamp);
        if (!is_wrong && message.codec) {
            int is_appended = message.magic && data[at + 17] & 8;
            is_wrong = slow_wrapper(&message, is_appended, check_crcs, rows, room) != 0;
            room += DECOMPRESSED;
        }
        if (is_wrong) {
            rows->count = before;
            rows->failed = 1;
        }
        at += message.size;
    }
}

// ----------------------------------------------------------------------------------------------------- kcodec's reader

static void put_crc(uint8_t *p, int64_t size) {
    uint32_t crc = crc32_ieee(0, p + 16, (size_t)(size - 16));
    for (int byte = 0; byte < 4; byte++) p[12 + byte] = (uint8_t)(crc >> (24 - 8 * byte));
}

static void repair(uint8_t *data, int64_t size, int depth) {
    Message message;
    for (int64_t at = 0; at < size && read_message(data + at, size - at, depth, &message) > 0; at += message.size) {
        int64_t value = message.row.value - data;
        if (!depth && message.codec == COMPRESSION_GZIP && message.row.value_size > 1)
            repair(data + value + 1, message.row.value_size - 1, 1);
        put_crc(data + at, message.size);
    }
}

static void require_bytes(const Chunk *chunk, const BinaryColumn *column, int64_t row, const uint8_t *bytes,
                          int64_t size) {
    int is_null = column->validity.data && !bitmap_get(column->validity.data, row);
    REQUIRE(is_null == (size < 0));
    if (is_null) return;
    if (chunk->layout.binary_type == BINARY_VIEW) {
        int32_t words[4];
        memcpy(words, column->offsets.data + 16 * row, 16);
        REQUIRE(words[0] == size);
        const uint8_t *found = column->offsets.data + 16 * row + 4;
        if (size > 12) found = (words[2] ? chunk->view_sources[words[2] - 1].base : chunk->view_arena.data) + words[3];
        REQUIRE(memcmp(found, bytes, (size_t)size) == 0);
        return;
    }
    const int32_t *narrow = (const int32_t *)column->offsets.data;
    const int64_t *wide = (const int64_t *)column->offsets.data;
    int is_narrow = chunk->layout.binary_type == BINARY;
    int64_t begin = is_narrow ? narrow[row] : wide[row], end = is_narrow ? narrow[row + 1] : wide[row + 1];
    REQUIRE(end - begin == size && (!size || memcmp(column->data.data + begin, bytes, (size_t)size) == 0));
}

static void require_rows(const DecodeRun *run, const Rows *rows, int64_t start, int64_t end) {
    int64_t at = 0;
    for (int64_t number = 0; number < run->chunks.count; number++) {
        const Chunk *chunk = run->chunks.list[number].chunk;
        for (int64_t row = 0; row < chunk->rows; row++, at++) {
            while (at < rows->count && (rows->rows[at].offset < start || at_or_past(rows->rows[at].offset, end))) at++;
            REQUIRE(at < rows->count);
            const Row *expected = &rows->rows[at];
            REQUIRE(((const int64_t *)chunk->fixed[COLUMN_OFFSET].data)[row] == expected->offset);
            REQUIRE(((const int64_t *)chunk->fixed[COLUMN_TIMESTAMP].data)[row] == expected->timestamp);
            require_bytes(chunk, &chunk->key, row, expected->key, expected->key_size);
            require_bytes(chunk, &chunk->value, row, expected->value, expected->value_size);
        }
    }
    while (at < rows->count && (rows->rows[at].offset < start || at_or_past(rows->rows[at].offset, end))) at++;
    REQUIRE(at == rows->count);
}

// Where the walk over messages ends: at another magic, or behind them all.
static int64_t end_of_legacy(const uint8_t *data, int64_t size) {
    Message message;
    int64_t at = 0;
    while (size - at >= 17 && data[at + 16] <= 1 && read_message(data + at, size - at, 0, &message) > 0)
        at += message.size;
    return size - at >= 17 && data[at + 16] > 1 ? at : size;
}

static void decode_and_compare(const uint8_t *data, int64_t size, int check_crcs, BinaryType type, const Rows *rows,
                               int64_t start, int64_t end) {
    DecodeSettings settings = {.layout = {.wanted = USED, .binary_type = type}, .limits = {LARGEST, DECOMPRESSED},
                               .check_crcs = check_crcs, .start_offset = start, .end_offset = end,
                               .limit = INT64_MAX, .max_rows = INT64_MAX, .package = harness_package};
    Visibility visibility = {.isolation = READ_UNCOMMITTED, .start_offset = start, .end_offset = end,
                             .limit = INT64_MAX};
    BatchTable table = {0};
    scan_begin(&table);
    REQUIRE(scan_batches(data, size, 0, &settings.limits, 0, INT64_MAX, &table) == 0);
    REQUIRE(visibility_resolve(&visibility, table_batches(&table), table.count) == 0);
    DecodeRun run = {.settings = &settings, .data = data, .size = size, .table = table_batches(&table), .corrupt = -1,
                     .position = INT64_MIN, .last_offset = INT64_MIN};
    int failed = decode_range(&run, 0, table.count) != 0;
    REQUIRE(decode_finish_chunk(&run) == 0);
    int is_filtered = start != INT64_MIN || end != INT64_MAX;
    if (!is_filtered) REQUIRE((failed || table.corrupt >= 0) == rows->failed);
    // what a range rules out by its header is not opened, so damage there is not found
    if (!is_filtered || (!rows->failed && !failed)) require_rows(&run, rows, start, end);
    decode_reset(&run);
    scan_free(&table);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t input_size) {
    static Rows rows;
    harness_initialise();
    if (input_size < OPTIONS) return 0;
    int64_t whole = (int64_t)(input_size - OPTIONS);
    uint8_t *copy = exact_copy(input + OPTIONS, (size_t)whole);
    if (input[0] & 1) repair(copy, whole, 0);
    int64_t size = end_of_legacy(copy, whole);
    uint8_t *data = exact_copy(copy, (size_t)size);
    exact_free(copy, (size_t)whole);
    uint8_t *room = malloc((size_t)(size / 26 + 2) * DECOMPRESSED);
    REQUIRE(room);
    int check_crcs = input[0] >> 1 & 1;
    slow_read(data, size, check_crcs, &rows, room);
    if (rows.count < MOST_ROWS) {
        for (int type = BINARY; type <= BINARY_VIEW; type++)
            decode_and_compare(data, size, check_crcs, (BinaryType)type, &rows, INT64_MIN, INT64_MAX);
        decode_and_compare(data, size, check_crcs, BINARY, &rows, input[1] - 4, input[2]);
    }
    free(room);
    harness_check_pool();
    exact_free(data, (size_t)size);
    return 0;
}
