// SPDX-License-Identifier: Apache-2.0
#include "columns.h"

#include <stdlib.h>

#include "framing.h"
#include "utf8.h"

int column_width(ColumnId column) {
    switch (column) {
        case COLUMN_OFFSET:
        case COLUMN_TIMESTAMP:
        case COLUMN_BASE_OFFSET:
        case COLUMN_PRODUCER_ID:
            return 8;
        case COLUMN_TIMESTAMP_TYPE:
        case COLUMN_SEQUENCE:
        case COLUMN_PARTITION_LEADER_EPOCH:
        case COLUMN_PARTITION:
        case COLUMN_KEY_SCHEMA_ID:
        case COLUMN_VALUE_SCHEMA_ID:
            return 4;
        case COLUMN_PRODUCER_EPOCH:
        case COLUMN_CONTROL_TYPE:
            return 2;
        default:
            return 0;
    }
}

static int is_bits(ColumnId column) { return column == COLUMN_IS_TRANSACTIONAL || column == COLUMN_IS_CONTROL; }

Chunk *chunk_new(const ChunkLayout *layout) {
    Chunk *chunk = calloc(1, sizeof *chunk);
    if (!chunk) return NULL;
    atomic_init(&chunk->references, 1);
    chunk->layout = *layout;
    for (int column = 0; column < COLUMN_COUNT; column++)
        if (WANTS(layout->wanted, column))
            chunk->row_bytes += column_width(column) ? column_width(column) : element_size(layout->binary_type);
    return chunk;
}

void chunk_retain(Chunk *chunk) { atomic_fetch_add_explicit(&chunk->references, 1, memory_order_relaxed); }

static void binary_release(BinaryColumn *column, int64_t rows, BinaryType type) {
    buffer_release(&column->validity, (size_t)(rows + 7) / 8);
    buffer_release(&column->data, (size_t)column->length);
    buffer_release(&column->offsets, (size_t)(rows + 1) * (size_t)element_size(type));
}

// Releases buffers in the reverse order of chunk_reserve, so that the pool returns each of them for the same column.
static void chunk_free(Chunk *chunk) {
    int64_t rows = chunk->rows;
    for (int which = 1; which >= 0; which--) buffer_release(&chunk->schema_id_validity[which], (size_t)(rows + 7) / 8);
    buffer_release(&chunk->partition_validity, (size_t)(rows + 7) / 8);
    binary_release(&chunk->topic_rows, rows < chunk_part_rows(chunk) ? rows : chunk_part_rows(chunk), BINARY);
    buffer_release(&chunk->view_arena, (size_t)chunk->view_arena_length);
    binary_release(&chunk->replaced_names, chunk->header_count, BINARY);
    binary_release(&chunk->header_value, chunk->header_count, BINARY);
    binary_release(&chunk->header_name, chunk->header_count, BINARY);
    buffer_release(&chunk->header_list_validity, (size_t)(rows + 7) / 8);
    buffer_release(&chunk->header_lists, (size_t)(rows + 1) * 4);
    binary_release(&chunk->value, rows, chunk->layout.binary_type);
    binary_release(&chunk->key, rows, chunk->layout.binary_type);
    buffer_release(&chunk->control_type_validity, (size_t)(rows + 7) / 8);
    for (int column = COLUMN_COUNT - 1; column >= 0; column--)
        buffer_release(&chunk->fixed[column],
                       is_bits(column) ? (size_t)(rows + 7) / 8
                                       : (size_t)chunk_fixed_rows(chunk, column, rows) * (size_t)column_width(column));
    buffer_release(&chunk->spans, (size_t)chunk->span_count * sizeof(BatchSpan));
    if (chunk->release_owner) chunk->release_owner(chunk->owner);
    free(chunk->view_sources);
    free((void *)chunk->topic);
    free(chunk);
}

void chunk_release(Chunk *chunk) {
    if (chunk && atomic_fetch_sub_explicit(&chunk->references, 1, memory_order_acq_rel) == 1) chunk_free(chunk);
}

static int grow_validity(Buffer *validity, int64_t old_rows, int64_t rows) {
    if (!validity->data) return 0;
    size_t old_bytes = (size_t)(old_rows + 7) / 8, bytes = (size_t)(rows + 7) / 8;
    if (buffer_grow(validity, bytes, old_bytes)) return -1;
    memset(validity->data + old_bytes, 0xff, bytes - old_bytes);
    return 0;
}

int chunk_begin_validity(Buffer *validity, int64_t capacity) {
    size_t bytes = (size_t)(capacity + 7) / 8;
    if (buffer_acquire(validity, bytes)) return -1;
    memset(validity->data, 0xff, bytes);
    return 0;
}

static int grow_binary_rows(BinaryColumn *column, BinaryType type, int64_t old_rows, int64_t used_rows, int64_t rows) {
    int fresh = !column->offsets.data;
    size_t size = (size_t)element_size(type), extra = type == BINARY_VIEW ? 0 : 1;
    if (buffer_grow(&column->offsets, ((size_t)rows + extra) * size, ((size_t)used_rows + extra) * size)) return -1;
    if (fresh) memset(column->offsets.data, 0, size);
    return grow_validity(&column->validity, old_rows, rows);
}

static int grow_rows(Chunk *chunk, int64_t rows) {
    uint32_t wanted = chunk->layout.wanted;
    BinaryType type = chunk->layout.binary_type;
    int64_t used = chunk->rows, old = chunk->row_capacity;
    for (int column = 0; column < COLUMN_COUNT; column++) {
        if (!WANTS(wanted, column)) continue;
        size_t width = (size_t)column_width(column);
        if (width && buffer_grow(&chunk->fixed[column], (size_t)chunk_fixed_rows(chunk, column, rows) * width,
                                 (size_t)chunk_fixed_rows(chunk, column, used) * width))
            return -1;
        if (is_bits(column)) {
            if (buffer_grow(&chunk->fixed[column], (size_t)(rows + 7) / 8, (size_t)(old + 7) / 8)) return -1;
            memset(chunk->fixed[column].data + (old + 7) / 8, 0, (size_t)((rows + 7) / 8 - (old + 7) / 8));
        }
    }
    if (grow_validity(&chunk->control_type_validity, old, rows)) return -1;
    if (WANTS(wanted, COLUMN_KEY) && grow_binary_rows(&chunk->key, type, old, used, rows)) return -1;
    if (WANTS(wanted, COLUMN_VALUE) && grow_binary_rows(&chunk->value, type, old, used, rows)) return -1;
    if (WANTS(wanted, COLUMN_HEADERS)) {
        int fresh = !chunk->header_lists.data;
        if (buffer_grow(&chunk->header_lists, (size_t)(rows + 1) * 4, (size_t)(used + 1) * 4)) return -1;
        if (fresh) memset(chunk->header_lists.data, 0, 4);
    }
    chunk->row_capacity = rows;
    return 0;
}

static int grow_bytes(BinaryColumn *column, int64_t capacity, int64_t *least) {
    if (buffer_grow(&column->data, (size_t)capacity, (size_t)column->length)) return -1;
    if ((int64_t)column->data.capacity < *least) *least = (int64_t)column->data.capacity;
    return 0;
}

int64_t chunk_longest_column(const Chunk *chunk) {
    int64_t longest = chunk->key.length > chunk->value.length ? chunk->key.length : chunk->value.length;
    if (chunk->header_name.length > longest) longest = chunk->header_name.length;
    return chunk->header_value.length > longest ? chunk->header_value.length : longest;
}

int chunk_reserve_more(Chunk *chunk, int64_t rows, int64_t payload) {
    uint32_t wanted = chunk->layout.wanted;
    int64_t needed = chunk->rows + rows;
    if (needed > chunk->row_capacity) {
        // Grow by half, so that many small reservations cost little, but only as needed if the chunk is already large.
        int64_t roomy = chunk->row_capacity + (chunk->row_capacity >> 1);
        if (grow_rows(chunk, needed > roomy || needed > (4 << 20) ? needed : roomy)) return -1;
    }
    if (chunk->payload <= chunk->payload_capacity) return 0;
    // Before growing, replace the bytes reserved so far by those that the longest column uses: bytes of a value, for
    // example, were also reserved in the key column.
    chunk->payload = chunk_longest_column(chunk) + payload;
    if (chunk->payload <= chunk->payload_capacity) return 0;
    int64_t least = INT64_MAX;
    int copies = chunk->layout.binary_type != BINARY_VIEW;
    if (copies && WANTS(wanted, COLUMN_KEY) && grow_bytes(&chunk->key, chunk->payload, &least)) return -1;
    if (copies && WANTS(wanted, COLUMN_VALUE) && grow_bytes(&chunk->value, chunk->payload, &least)) return -1;
    if (WANTS(wanted, COLUMN_HEADERS)) {
        if (grow_bytes(&chunk->header_name, chunk->payload, &least) ||
            grow_bytes(&chunk->header_value, chunk->payload, &least))
            return -1;
        if (!chunk->header_capacity && chunk_reserve_headers(chunk, 1)) return -1;
    }
    chunk->payload_capacity = least;
    return 0;
}

int chunk_reserve_headers(Chunk *chunk, int64_t headers) {
    int64_t needed = chunk->header_count + headers, old = chunk->header_capacity;
    if (needed <= old) return 0;
    int64_t capacity = old ? old + (old >> 1) : 1000;
    if (capacity < needed) capacity = needed;
    if (grow_binary_rows(&chunk->header_name, BINARY, old, chunk->header_count, capacity) ||
        grow_binary_rows(&chunk->header_value, BINARY, old, chunk->header_count, capacity))
        return -1;
    chunk->header_capacity = capacity;
    return 0;
}

#define FILL(column, type, value)                                          \
    if (WANTS(wanted, column)) {                                           \
        type *out = (type *)chunk->fixed[column].data, fill = (type)(value); \
        int64_t end = chunk_fixed_rows(chunk, column, rows);               \
        for (int64_t row = first_row; row < end; row++) out[row] = fill;   \
    }

static void fill_bits(Chunk *chunk, ColumnId column, int value, int64_t first_row) {
    uint8_t *bits = chunk->fixed[column].data;
    for (int64_t row = first_row; row < chunk->rows; row++)
        if (value) bitmap_set(bits, row);
        else bitmap_clear(bits, row);
}

int chunk_fill_columns(Chunk *chunk, const BatchHeader *header, int64_t first_row) {
    uint32_t wanted = chunk->layout.wanted;
    int64_t rows = chunk->rows;
    FILL(COLUMN_TIMESTAMP_TYPE, int32_t, header_timestamp_type(header))
    FILL(COLUMN_BASE_OFFSET, int64_t, header->base_offset)
    FILL(COLUMN_PRODUCER_ID, int64_t, header->producer_id)
    FILL(COLUMN_PRODUCER_EPOCH, int16_t, header->producer_epoch)
    FILL(COLUMN_PARTITION_LEADER_EPOCH, int32_t, header->partition_leader_epoch)
    FILL(COLUMN_PARTITION, int32_t, chunk->partition)
    if (WANTS(wanted, COLUMN_IS_TRANSACTIONAL))
        fill_bits(chunk, COLUMN_IS_TRANSACTIONAL, header_is_transactional(header), first_row);
    if (WANTS(wanted, COLUMN_IS_CONTROL)) fill_bits(chunk, COLUMN_IS_CONTROL, header_is_control(header), first_row);
    if (WANTS(wanted, COLUMN_CONTROL_TYPE) && !header_is_control(header)) {
        if (rows > first_row && !chunk->control_type_validity.data &&
            chunk_begin_validity(&chunk->control_type_validity, chunk->row_capacity))
            return -1;
        int16_t *out = (int16_t *)chunk->fixed[COLUMN_CONTROL_TYPE].data;
        for (int64_t row = first_row; row < rows; row++) {
            out[row] = 0;
            bitmap_clear(chunk->control_type_validity.data, row);
        }
        chunk->control_type_nulls += rows - first_row;
    }
    return 0;
}

static void unclear(Buffer *validity, int64_t from, int64_t capacity) {
    if (!validity->data) return;
    for (; from < capacity && (from & 7); from++) bitmap_set(validity->data, from);
    if (from < capacity) memset(validity->data + from / 8, 0xff, (size_t)((capacity + 7) / 8 - from / 8));
}

static void note_touched(Buffer *buffer, int64_t bytes) {
    if (buffer->data && (size_t)bytes > buffer->touched)
        buffer->touched = (size_t)bytes < buffer->capacity ? (size_t)bytes : buffer->capacity;
}

static void note_binary_touched(BinaryColumn *column, int64_t rows, BinaryType type, int64_t under_way) {
    note_touched(&column->offsets, (rows + 1) * element_size(type));
    note_touched(&column->data, column->length + under_way);
    note_touched(&column->validity, (rows + 7) / 8);
}

// The high-water marks must include the bytes that a rejected batch has written.
static void note_all_touched(Chunk *chunk) {
    for (int column = 0; column < COLUMN_COUNT; column++)
        note_touched(&chunk->fixed[column], chunk->rows * column_width(column));
    int64_t under_way = chunk->payload;  // an upper bound of the bytes written
    note_binary_touched(&chunk->key, chunk->rows, chunk->layout.binary_type, under_way);
    note_binary_touched(&chunk->value, chunk->rows, chunk->layout.binary_type, under_way);
    note_touched(&chunk->header_lists, (chunk->rows + 1) * 4);
    note_binary_touched(&chunk->header_name, chunk->header_count, BINARY, under_way);
    note_binary_touched(&chunk->header_value, chunk->header_count, BINARY, under_way);
    note_touched(&chunk->view_arena, chunk->view_arena_length);
}

void chunk_rollback(Chunk *chunk, const ChunkMark *mark) {
    note_all_touched(chunk);
    chunk->rows = mark->rows;
    chunk->key.length = mark->key_length;
    chunk->value.length = mark->value_length;
    chunk->header_count = mark->header_count;
    chunk->header_name.length = mark->name_length;
    chunk->header_value.length = mark->header_value_length;
    chunk->span_count = mark->span_count;
    chunk->view_arena_length = mark->view_arena_length;
    chunk->output_bytes = mark->output_bytes;
    chunk->control_type_nulls = mark->control_type_nulls;
    unclear(&chunk->key.validity, mark->rows, chunk->row_capacity);
    unclear(&chunk->value.validity, mark->rows, chunk->row_capacity);
    unclear(&chunk->control_type_validity, mark->rows, chunk->row_capacity);
    unclear(&chunk->header_value.validity, mark->header_count, chunk->header_capacity);
}

static int replace_invalid_names(Chunk *chunk) {
    const int32_t *starts = (const int32_t *)chunk->header_name.offsets.data;
    const uint8_t *names = chunk->header_name.data.data;
    BinaryColumn *out = &chunk->replaced_names;
    if (chunk->header_name.length > CHUNK_MAX_BYTES / 3) return -1;
    if (buffer_acquire(&out->offsets, (size_t)(chunk->header_count + 1) * 4) ||
        buffer_acquire(&out->data, (size_t)chunk->header_name.length * 3))
        return -1;
    int32_t *ends = (int32_t *)out->offsets.data;
    ends[0] = 0;
    for (int64_t header = 0; header < chunk->header_count; header++) {
        size_t size = (size_t)(starts[header + 1] - starts[header]);
        size_t written = utf8_replace(names + starts[header], size, out->data.data + ends[header]);
        ends[header + 1] = ends[header] + (int32_t)written;
    }
    out->length = ends[chunk->header_count];
    chunk->has_invalid_names = 1;
    return 0;
}

// Each name must be valid by itself: adjacent names with two halves of a character are invalid.
static int names_are_valid(const Chunk *chunk) {
    const int32_t *starts = (const int32_t *)chunk->header_name.offsets.data;
    const uint8_t *names = chunk->header_name.data.data;
    if (utf8_is_ascii(names, (size_t)chunk->header_name.length)) return 1;
    for (int64_t header = 0; header < chunk->header_count; header++)
        if (!utf8_is_valid(names + starts[header], (size_t)(starts[header + 1] - starts[header]))) return 0;
    return 1;
}

static int null_empty_headers(Chunk *chunk) {
    const int32_t *lists = (const int32_t *)chunk->header_lists.data;
    if (chunk_begin_validity(&chunk->header_list_validity, chunk->rows)) return -1;
    if (!chunk->header_count) {
        memset(chunk->header_list_validity.data, 0, (size_t)(chunk->rows + 7) / 8);
        chunk->header_list_nulls = chunk->rows;
        return 0;
    }
    for (int64_t row = 0; row < chunk->rows; row++)
        if (lists[row] == lists[row + 1]) {
            bitmap_clear(chunk->header_list_validity.data, row);
            chunk->header_list_nulls++;
        }
    return 0;
}

int chunk_to_microseconds(Chunk *chunk, int64_t first_row, Fault *fault) {
    int64_t *timestamps = (int64_t *)chunk->fixed[COLUMN_TIMESTAMP].data;
    for (int64_t row = first_row; row < chunk->rows; row++) {
        int64_t product;
        if (__builtin_mul_overflow(timestamps[row], 1000, &product)) {
            int has_offset = WANTS(chunk->layout.wanted, COLUMN_OFFSET);
            int64_t offset = has_offset ? ((int64_t *)chunk->fixed[COLUMN_OFFSET].data)[row] : -1;
            fault_set(fault, FAULT_TIMESTAMP_OVERFLOW, "timestamp", timestamps[row], offset);
            fault->record = row - first_row;
            return -1;
        }
        timestamps[row] = product;
    }
    return 0;
}

static int64_t topic_bytes(const Chunk *chunk) { return (chunk->topic ? chunk->topic_length : 0) + (int64_t)sizeof(int32_t); }

int chunk_topic_is_full(const Chunk *chunk) {
    return WANTS(chunk->layout.wanted, COLUMN_TOPIC) && chunk->rows >= TOPIC_CUT_BYTES / topic_bytes(chunk);
}

int64_t chunk_part_rows(const Chunk *chunk) {
    int64_t most = chunk->holds_one_batch ? CONSTANT_ROWS : INT64_MAX;
    if (!WANTS(chunk->layout.wanted, COLUMN_TOPIC)) return most;
    int64_t repeated = TOPIC_MOST_BYTES / topic_bytes(chunk);
    if (repeated < 1) repeated = 1;
    return repeated < most ? repeated : most;
}

static int repeat_topic(Chunk *chunk) {
    BinaryColumn *column = &chunk->topic_rows;
    int64_t length = chunk->topic ? chunk->topic_length : 0;
    int64_t rows = chunk->rows < chunk_part_rows(chunk) ? chunk->rows : chunk_part_rows(chunk);
    if (buffer_acquire(&column->offsets, (size_t)(rows + 1) * 4) || buffer_acquire(&column->data, (size_t)(length * rows)))
        return -1;
    int32_t *ends = (int32_t *)column->offsets.data;
    for (int64_t row = 0; row <= rows; row++) ends[row] = (int32_t)(row * length);
    column->length = length * rows;
    if (column->length) memcpy(column->data.data, chunk->topic, (size_t)length);
    for (int64_t done = length; done && done < column->length;) {  // doubles the copied bytes in each step
        int64_t step = done < column->length - done ? done : column->length - done;
        memcpy(column->data.data + done, column->data.data, (size_t)step);
        done += step;
    }
    if (chunk->topic) return 0;
    column->null_count = chunk->rows;
    if (chunk_begin_validity(&column->validity, rows)) return -1;
    memset(column->validity.data, 0, (size_t)(rows + 7) / 8);
    return 0;
}

static int null_partition(Chunk *chunk) {
    if (chunk->has_partition) return 0;
    if (chunk_begin_validity(&chunk->partition_validity, chunk->rows)) return -1;
    memset(chunk->partition_validity.data, 0, (size_t)(chunk->rows + 7) / 8);
    return 0;
}

static void count_nulls(BinaryColumn *column, int64_t rows) {
    const uint8_t *bits = column->validity.data;
    column->null_count = 0;
    if (!bits) return;
    int64_t set = 0, at = 0;
    for (; at + 64 <= rows; at += 64) set += __builtin_popcountll(load_le64(bits + at / 8));
    for (; at < rows; at++) set += bitmap_get(bits, at);
    column->null_count = rows - set;
}

const uint8_t *chunk_validity(const Chunk *chunk, ColumnId column, int64_t *nulls) {
    *nulls = 0;
    switch (column) {
        case COLUMN_CONTROL_TYPE:
            *nulls = chunk->control_type_nulls;
            return chunk->control_type_validity.data;
        case COLUMN_PARTITION:
            *nulls = chunk->has_partition ? 0 : chunk->rows;
            return chunk->partition_validity.data;
        case COLUMN_KEY_SCHEMA_ID:
        case COLUMN_VALUE_SCHEMA_ID:
            *nulls = chunk->schema_id_nulls[column - COLUMN_KEY_SCHEMA_ID];
            return chunk->schema_id_validity[column - COLUMN_KEY_SCHEMA_ID].data;
        default:
            return NULL;
    }
}

int chunk_finish(Chunk *chunk, Fault *fault) {
    if (chunk->layout.framing && framing_split(chunk)) return fault_set(fault, FAULT_NO_MEMORY, "framing", 0, 0);
    count_nulls(&chunk->key, chunk->rows);
    count_nulls(&chunk->value, chunk->rows);
    count_nulls(&chunk->header_value, chunk->header_count);
    if (WANTS(chunk->layout.wanted, COLUMN_TOPIC) && repeat_topic(chunk))
        return fault_set(fault, FAULT_NO_MEMORY, "topic", 0, 0);
    if (WANTS(chunk->layout.wanted, COLUMN_PARTITION) && null_partition(chunk))
        return fault_set(fault, FAULT_NO_MEMORY, "partition", 0, 0);
    if (WANTS(chunk->layout.wanted, COLUMN_HEADERS) && chunk->row_capacity) {
        if (chunk->header_count && !names_are_valid(chunk) && replace_invalid_names(chunk))
            return fault_set(fault, FAULT_NO_MEMORY, "headers", 0, 0);
        if (chunk->layout.null_empty_headers && null_empty_headers(chunk))
            return fault_set(fault, FAULT_NO_MEMORY, "headers", 0, 0);
    }
    return 0;
}
