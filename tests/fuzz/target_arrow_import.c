// SPDX-License-Identifier: Apache-2.0
// Arrow columns that another program made. Input: a shape, then bytes for it. Columns are well-formed except for what the
// importer checks: offsets that are negative, that decrease or that exceed the last one, views and indices outside. Each row
// is compared with what was put in, the checks of whole columns with the rows, and then all rows are encoded: that must fail
// exactly where a row is invalid, and must not crash.
#include "checks.h"
#include "encode.h"
#include "harness.h"

enum { MOST_ROWS = 24, ROOM = 4096, PADDING = 3 };

typedef struct {
    const uint8_t *at, *end;
} Bytes;

static uint8_t next_byte(Bytes *bytes) { return bytes->at < bytes->end ? *bytes->at++ : 0; }

// A column, the memory behind it, and what a reader is to find in its rows.
typedef struct Column {
    struct ArrowSchema schema;
    struct ArrowArray array;
    struct Column *dictionary;
    const void *buffers[5];
    uint8_t *memory[5];
    size_t sizes[5];
    char format[12];
    int64_t rows;
    Payload expected[MOST_ROWS + PADDING];  // of the rows behind the array's offset
    uint8_t is_invalid[MOST_ROWS + PADDING];  // what the check of the whole column is to find, which looks at null rows, too
} Column;

static void *keep(Column *column, int at, const void *data, size_t size) {
    column->memory[at] = exact_copy(data, size);
    column->sizes[at] = size;
    column->buffers[at] = column->memory[at];
    return column->memory[at];
}

static void begin_column(Column *column, const char *format, int64_t rows, int64_t offset, int buffers) {
    memset(column, 0, sizeof *column);
    snprintf(column->format, sizeof column->format, "%s", format);
    column->rows = rows;
    column->schema = (struct ArrowSchema){.format = column->format, .name = "", .flags = ARROW_FLAG_NULLABLE};
    column->array = (struct ArrowArray){.length = rows, .null_count = -1, .offset = offset, .n_buffers = buffers,
                                        .buffers = column->buffers};
}

// `expected` has been filled for all rows that are not null; here some become null. Only offsets are checked where the row
// is null: a view or an index of such a row is not read.
static void make_validity(Column *column, Bytes *bytes, int64_t all, int64_t offset) {
    int has_offsets = !column->dictionary && strchr("zuZU", column->format[0]) != NULL;
    for (int64_t row = 0; row < column->rows; row++)
        column->is_invalid[row] = column->expected[row].length == PAYLOAD_INVALID;
    uint8_t bits[(MOST_ROWS + PADDING + 7) / 8];
    int has_nulls = next_byte(bytes) & 1;
    column->array.null_count = has_nulls ? -1 : 0;
    if (!has_nulls) return;
    size_t size = (size_t)(all + 7) / 8;
    for (size_t at = 0; at < size; at++) bits[at] = (uint8_t)~next_byte(bytes);
    keep(column, 0, bits, size);
    for (int64_t row = 0; row < column->rows; row++) {
        if (bits[(row + offset) >> 3] >> ((row + offset) & 7) & 1) continue;
        column->expected[row].length = PAYLOAD_NULL;
        column->is_invalid[row] &= has_offsets;
    }
}

// An offset that cannot be, for the steps that ask for one. The last one of a column is always possible: it says how much
// memory there is.
static int64_t odd_offset(uint8_t step, int64_t level, int is_last) {
    if (is_last) return level;
    return step == 254 ? -1 - level : step == 253 ? level + 5000 : level;
}

static void make_offsets(Column *column, Bytes *bytes, int64_t rows, int64_t offset, int is_large) {
    int32_t narrow[MOST_ROWS + PADDING + 1] = {0};
    int64_t wide[MOST_ROWS + PADDING + 1] = {0}, all = rows + offset, level = 0;
    uint8_t data[ROOM];
    for (int64_t row = 0; row < all; row++) {
        uint8_t step = next_byte(bytes);
        level = step == 255 ? level / 2 : level + step % 40;  // 255: an end before its beginning, and rows behind the last end
        wide[row + 1] = odd_offset(step, level, row + 1 == all);
        narrow[row + 1] = (int32_t)wide[row + 1];
    }
    int64_t last = wide[all];
    for (int64_t at = 0; at < last; at++) data[at] = next_byte(bytes);
    if (is_large) keep(column, 1, wide, (size_t)(all + 1) * 8);
    else keep(column, 1, narrow, (size_t)(all + 1) * 4);
    const uint8_t *kept = keep(column, 2, data, (size_t)last);
    for (int64_t row = 0; row < rows; row++) {
        int64_t begin = wide[row + offset], end = wide[row + offset + 1];
        int is_valid = 0 <= begin && begin <= end && end <= last;
        column->expected[row] = is_valid ? (Payload){kept + begin, end - begin, NULL} : (Payload){NULL, PAYLOAD_INVALID, NULL};
    }
}

static void make_fixed(Column *column, Bytes *bytes, int64_t rows, int64_t offset, int width) {
    uint8_t data[ROOM];
    size_t size = (size_t)((rows + offset) * width);
    for (size_t at = 0; at < size; at++) data[at] = next_byte(bytes);
    const uint8_t *kept = keep(column, 1, data, size);
    for (int64_t row = 0; row < rows; row++)
        column->expected[row] = (Payload){kept + (row + offset) * width, width, NULL};
}

static void make_views(Column *column, Bytes *bytes, int64_t rows, int64_t offset) {
    enum { LONG_DATA = 64 };
    uint8_t data[LONG_DATA], views[16 * (MOST_ROWS + PADDING)];
    static const int64_t lengths[1] = {LONG_DATA};
    for (int at = 0; at < LONG_DATA; at++) data[at] = (uint8_t)(at * 7 + next_byte(bytes) % 3);
    const uint8_t *kept = keep(column, 2, data, LONG_DATA);
    int64_t all = rows + offset;
    for (int64_t row = 0; row < all; row++) {
        uint8_t kind = next_byte(bytes);
        int32_t words[4] = {kind % 48, 0, 0, 0};
        if (words[0] > 12) {
            words[3] = next_byte(bytes) % (LONG_DATA - words[0] + 1);
            memcpy(words + 1, data + words[3], 4);
            if (kind > 240) words[2] = kind & 1 ? 1 : -1;
            if (kind == 238) words[3] = LONG_DATA - 1;
        } else {
            memcpy(words + 1, data, (size_t)words[0]);
        }
        if (kind == 239) words[0] = -5;
        memcpy(views + 16 * row, words, 16);
        if (row < offset) continue;
        int is_bad = words[0] < 0 || (words[0] > 12 && (words[2] != 0 || words[3] + words[0] > LONG_DATA));
        const uint8_t *from = words[0] > 12 ? kept + words[3] : kept;
        column->expected[row - offset] = (Payload){from, is_bad ? PAYLOAD_INVALID : words[0], NULL};
    }
    keep(column, 1, views, (size_t)all * 16);
    column->buffers[3] = lengths;
}

static void make_plain(Column *column, Bytes *bytes, int kind, int64_t rows, int64_t offset) {
    static const char *const formats[] = {"z", "Z", "vz", "w:3", "u", "U", "vu", "w:0"};
    begin_column(column, formats[kind], rows, offset, kind % 4 == 2 ? 4 : kind % 4 == 3 ? 2 : 3);
    if (kind % 4 == 0) make_offsets(column, bytes, rows, offset, 0);
    if (kind % 4 == 1) make_offsets(column, bytes, rows, offset, 1);
    if (kind % 4 == 2) make_views(column, bytes, rows, offset);
    if (kind % 4 == 3) make_fixed(column, bytes, rows, offset, kind == 3 ? 3 : 0);
    make_validity(column, bytes, rows + offset, offset);
}

static void make_dictionary(Column *column, Bytes *bytes, int64_t rows, int64_t offset) {
    static const char *const formats[] = {"c", "C", "s", "l"};
    static const int widths[] = {1, 1, 2, 8};
    int kind = next_byte(bytes) & 3, width = widths[kind];
    int64_t values = next_byte(bytes) % 6;
    begin_column(column, formats[kind], rows, offset, 2);
    column->dictionary = malloc(sizeof(Column));
    REQUIRE(column->dictionary);
    make_plain(column->dictionary, bytes, next_byte(bytes) & 7, values, next_byte(bytes) % PADDING);
    uint8_t indices[8 * (MOST_ROWS + PADDING)];
    for (int64_t row = 0; row < rows + offset; row++) {
        int64_t index = (int8_t)next_byte(bytes) % 8;
        if (kind == 1 && index < 0) index = 255;
        memcpy(indices + row * width, &index, (size_t)width);
        if (row < offset) continue;
        int is_there = index >= 0 && index < values;
        Payload outside = {NULL, PAYLOAD_INVALID, NULL};
        column->expected[row - offset] = is_there ? column->dictionary->expected[index] : outside;
    }
    keep(column, 1, indices, (size_t)((rows + offset) * width));
    column->schema.dictionary = &column->dictionary->schema;
    column->array.dictionary = &column->dictionary->array;
    make_validity(column, bytes, rows + offset, offset);
}

static void make_column(Column *column, Bytes *bytes, int64_t rows) {
    int kind = next_byte(bytes) % 10;
    int64_t offset = next_byte(bytes) % (PADDING + 1);
    if (kind < 8) make_plain(column, bytes, kind, rows, offset);
    else if (kind == 8) make_dictionary(column, bytes, rows, offset);
    else {
        begin_column(column, "n", rows, offset, 0);
        for (int64_t row = 0; row < rows; row++) column->expected[row].length = PAYLOAD_NULL;
    }
}

static void free_column(Column *column) {
    for (int at = 0; at < 5; at++)
        if (column->memory[at]) exact_free(column->memory[at], column->sizes[at]);
    if (column->dictionary) {
        free_column(column->dictionary);
        free(column->dictionary);
    }
}

static int64_t first_invalid(const Column *column, int64_t first, int64_t rows) {
    for (int64_t row = 0; row < rows; row++)
        if (column->is_invalid[first + row]) return row;
    return -1;
}

// The rows one by one, and every range of them checked at once.
static void require_rows(const BinaryInput *input, const Column *column) {
    REQUIRE(binary_input_check(input, column->rows) == first_invalid(column, 0, column->rows));
    for (int64_t first = 0; first < column->rows; first++)
        for (int64_t rows = 0; rows <= column->rows - first; rows++)
            REQUIRE(binary_input_check_from(input, first, rows) == first_invalid(column, first, rows));
    for (int64_t row = 0; row < column->rows; row++) {
        Payload found = binary_input_get(input, row);
        const Payload *expected = &column->expected[row];
        REQUIRE(found.length == expected->length);
        if (found.length <= 0) continue;
        REQUIRE(memcmp(found.bytes, expected->bytes, (size_t)found.length) == 0);
    }
}

// ------------------------------------------------------------------------------------------------------------- headers

typedef struct {
    Column list, entries, name, value;
    struct ArrowSchema *schema_children[3], *list_schema[1];
    struct ArrowArray *array_children[3], *list_array[1];
    int64_t begins[MOST_ROWS + PADDING + 1], offset, shift, total;
} Headers;

static void make_headers(Headers *headers, Bytes *bytes, int64_t rows) {
    int is_large = next_byte(bytes) & 1;
    int64_t offset = next_byte(bytes) % (PADDING + 1), shift = next_byte(bytes) % PADDING, total = 0;
    int32_t narrow[MOST_ROWS + PADDING + 1] = {0};
    for (int64_t row = 0; row < rows + offset; row++) {
        uint8_t step = next_byte(bytes);
        int64_t most = MOST_ROWS - PADDING - total;
        total += step % 4 < most ? step % 4 : most > 0 ? most : 0;
        headers->begins[row + 1] = step == 255 ? total / 2 : odd_offset(step, total, 0);
        narrow[row + 1] = (int32_t)headers->begins[row + 1];
    }
    headers->offset = offset;
    headers->shift = shift;
    headers->total = total;
    begin_column(&headers->list, is_large ? "+L" : next_byte(bytes) & 1 ? "+m" : "+l", rows, offset, 2);
    if (is_large) keep(&headers->list, 1, headers->begins, (size_t)(rows + offset + 1) * 8);
    else keep(&headers->list, 1, narrow, (size_t)(rows + offset + 1) * 4);
    make_validity(&headers->list, bytes, rows + offset, offset);
    begin_column(&headers->entries, "+s", total, shift, 1);
    headers->entries.array.null_count = 0;
    make_column(&headers->name, bytes, total + shift);
    make_column(&headers->value, bytes, total + shift);
    headers->schema_children[0] = &headers->name.schema;
    headers->schema_children[1] = &headers->value.schema;
    headers->array_children[0] = &headers->name.array;
    headers->array_children[1] = &headers->value.array;
    headers->entries.schema.n_children = headers->entries.array.n_children = 2;
    headers->entries.schema.children = headers->schema_children;
    headers->entries.array.children = headers->array_children;
    headers->list_schema[0] = &headers->entries.schema;
    headers->list_array[0] = &headers->entries.array;
    headers->list.schema.n_children = headers->list.array.n_children = 1;
    headers->list.schema.children = headers->list_schema;
    headers->list.array.children = headers->list_array;
}

// Whether the list of a row cannot be read, or one of its entries is bad.
static int has_bad_list(const Headers *headers, int64_t row, int (*entry_is_bad)(const Headers *, int64_t)) {
    int64_t begin = headers->begins[row + headers->offset], end = headers->begins[row + headers->offset + 1];
    if (begin < 0 || end < begin || end > headers->total) return 1;
    for (int64_t at = begin + headers->shift; at < end + headers->shift; at++)
        if (entry_is_bad(headers, at)) return 1;
    return 0;
}

static int entry_is_invalid(const Headers *headers, int64_t at) {
    return headers->name.is_invalid[at] || headers->value.is_invalid[at];
}

static int entry_is_refused(const Headers *headers, int64_t at) {  // a name must not be null
    return headers->name.expected[at].length < 0 || headers->value.expected[at].length == PAYLOAD_INVALID;
}

static void require_headers(const HeadersInput *input, const Headers *headers) {
    int64_t first_bad = -1;
    for (int64_t row = headers->list.rows - 1; row >= 0; row--)
        if (has_bad_list(headers, row, entry_is_invalid)) first_bad = row;
    REQUIRE(headers_input_check(input, headers->list.rows) == first_bad);
}

// The first row that cannot be encoded, -1: no such row exists. The offsets of a list that is null are not read.
static int64_t first_refused(const Column *key, const Column *value, const Headers *headers) {
    for (int64_t row = 0; row < key->rows; row++) {
        if (key->expected[row].length == PAYLOAD_INVALID || value->expected[row].length == PAYLOAD_INVALID) return row;
        if (headers && headers->list.expected[row].length != PAYLOAD_NULL && has_bad_list(headers, row, entry_is_refused))
            return row;
    }
    return -1;
}

static void free_headers(Headers *headers) {
    free_column(&headers->list);
    free_column(&headers->entries);
    free_column(&headers->name);
    free_column(&headers->value);
}

// ------------------------------------------------------------------------------------------------------------- at work

static void encode(RowsInput *rows, int compression, int64_t refused) {
    BatchSettings settings = {.max_batch_bytes = 1 << 20};
    settings.header.attributes = (int16_t)compression;
    settings.header.producer_id = settings.header.producer_epoch = settings.header.base_sequence = -1;
    BatchWriter writer;
    Fault fault;
    writer_begin(&writer, &settings);
    if (writer_append_rows(&writer, rows, 0, 0, &fault) == 0) {
        REQUIRE(refused < 0);
        REQUIRE(writer_finish_batch(&writer, &fault) == 0);
        REQUIRE(writer.records_count == rows->rows);
    } else {
        REQUIRE(fault.record == refused);
    }
    writer_free(&writer);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
    static Column key, value;
    static Headers headers;
    harness_initialise();
    if (size < 4) return 0;
    Bytes bytes = {input, input + size};
    uint8_t shape = next_byte(&bytes);
    RowsInput rows = {.rows = next_byte(&bytes) % MOST_ROWS, .has_timestamp = 1, .default_timestamp = 1767225600000};
    int compression = shape & 1 ? COMPRESSION_SNAPPY : COMPRESSION_NONE;
    make_column(&key, &bytes, rows.rows);
    make_column(&value, &bytes, rows.rows);
    REQUIRE(binary_input_bind(&rows.key, &key.schema, &key.array) == 0);
    REQUIRE(binary_input_bind(&rows.value, &value.schema, &value.array) == 0);
    require_rows(&rows.key, &key);
    require_rows(&rows.value, &value);
    if (shape & 2) {
        memset(&headers, 0, sizeof headers);
        make_headers(&headers, &bytes, rows.rows);
        REQUIRE(headers_input_bind(&rows.headers, &headers.list.schema, &headers.list.array) == 0);
        require_headers(&rows.headers, &headers);
    }
    uint8_t *timestamps = NULL;
    if (!(shape & 4)) {  // a column of timestamps: without one no row takes the fast way
        int64_t times[MOST_ROWS];
        for (int64_t row = 0; row < rows.rows; row++) times[row] = rows.default_timestamp + 100 * row;
        timestamps = exact_copy((const uint8_t *)times, (size_t)rows.rows * 8);
        rows.timestamp = (IntegerInput){.width = 8, .data = timestamps, .multiply = 1, .divide = 1};
    }
    encode(&rows, compression, first_refused(&key, &value, shape & 2 ? &headers : NULL));
    if (timestamps) exact_free(timestamps, (size_t)rows.rows * 8);
    binary_input_free(&rows.key);
    binary_input_free(&rows.value);
    binary_input_free(&rows.headers.name);
    binary_input_free(&rows.headers.value);
    if (shape & 2) free_headers(&headers);
    free_column(&key);
    free_column(&value);
    harness_check_pool();
    return 0;
}
