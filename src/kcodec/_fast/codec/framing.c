// SPDX-License-Identifier: Apache-2.0
#include "framing.h"

static inline int64_t end_of(const BinaryColumn *column, BinaryType type, int64_t row) {
    const uint8_t *ends = column->offsets.data;
    return type == BINARY ? ((const int32_t *)ends)[row + 1] : ((const int64_t *)ends)[row + 1];
}

static inline void set_end(BinaryColumn *column, BinaryType type, int64_t row, int64_t end) {
    if (type == BINARY)
        ((int32_t *)column->offsets.data)[row + 1] = (int32_t)end;
    else
        ((int64_t *)column->offsets.data)[row + 1] = end;
}

static inline int is_framed(const uint8_t *payload, int64_t size) { return size >= FRAME_BYTES && payload[0] == 0; }

typedef struct {
    Chunk *chunk;
    BinaryColumn *column;
    int32_t *ids;       // NULL: not requested
    uint8_t *validity;
    int64_t *nulls;
    int64_t begin, end; // types with offsets: old and new position of the next payload in the column's data
} Split;

static inline void note_id(Split *split, int64_t row, const uint8_t *payload) {
    if (!split->ids) return;
    split->ids[row] = (int32_t)load_be32(payload + 1);
    bitmap_set(split->validity, row);
    --*split->nulls;
}

static void split_row(Split *split, int64_t row, int may_be_framed) {
    BinaryType type = split->chunk->layout.binary_type;
    uint8_t *data = split->column->data.data;
    int64_t behind = end_of(split->column, type, row), size = behind - split->begin, taken = 0;
    if (may_be_framed && is_framed(data + split->begin, size)) {
        note_id(split, row, data + split->begin);
        taken = FRAME_BYTES;
    }
    if (size > taken && split->begin + taken != split->end)
        memmove(data + split->end, data + split->begin + taken, (size_t)(size - taken));
    split->end += size - taken;
    split->begin = behind;
    set_end(split->column, type, row, split->end);
}

// Splits the schema id from a view. A view is a length, followed by the payload itself if it has at most 12 bytes, else
// by its first four bytes, the index of the buffer and the position in it.
static void split_view(Split *split, int64_t row, int may_be_framed) {
    uint8_t *view = split->column->offsets.data + 16 * row;
    int32_t words[4], shorter[4] = {0};
    memcpy(words, view, 16);
    const uint8_t *payload = view + 4;
    if (words[0] > 12)
        payload = (words[2] ? split->chunk->view_sources[words[2] - 1].base : split->chunk->view_arena.data) + words[3];
    if (!may_be_framed || !is_framed(payload, words[0])) return;
    note_id(split, row, payload);
    shorter[0] = words[0] - FRAME_BYTES;
    if (shorter[0] > 12) {
        memcpy(shorter + 1, payload + FRAME_BYTES, 4);
        shorter[2] = words[2];
        shorter[3] = words[3] + FRAME_BYTES;
    } else {
        memcpy(shorter + 1, payload + FRAME_BYTES, (size_t)shorter[0]);
    }
    memcpy(view, shorter, 16);
}

static int split_column(Chunk *chunk, BinaryColumn *column, ColumnId ids, int which) {
    Split split = {.chunk = chunk, .column = column, .nulls = &chunk->schema_id_nulls[which]};
    int64_t rows = chunk->rows, old_length = column->length;
    if (WANTS(chunk->layout.wanted, ids)) {
        Buffer *validity = &chunk->schema_id_validity[which];
        if (chunk_begin_validity(validity, rows)) return -1;
        memset(validity->data, 0, (size_t)(rows + 7) / 8);
        if (rows) memset(chunk->fixed[ids].data, 0, (size_t)rows * sizeof(int32_t));
        split.validity = validity->data;
        split.ids = (int32_t *)chunk->fixed[ids].data;
        *split.nulls = rows;
    }
    const BatchSpan *spans = (const BatchSpan *)chunk->spans.data;
    int is_view = chunk->layout.binary_type == BINARY_VIEW;
    for (int64_t at = 0; at < chunk->span_count; at++) {
        int64_t end = at + 1 < chunk->span_count ? spans[at + 1].first_row : rows;
        for (int64_t row = spans[at].first_row; row < end; row++) {
            int is_null = column->validity.data && !bitmap_get(column->validity.data, row);
            int may_be_framed = !is_null && !spans[at].is_control;
            if (is_view)
                split_view(&split, row, may_be_framed);
            else
                split_row(&split, row, may_be_framed);
        }
    }
    if (is_view) return 0;
    column->length = split.end;
    // The high-water mark must include the bytes that are no longer part of the column.
    if ((int64_t)column->data.touched < old_length) column->data.touched = (size_t)old_length;
    return 0;
}

int framing_split(Chunk *chunk) {
    if (chunk->is_split) return 0;
    chunk->is_split = 1;
    uint32_t wanted = chunk->layout.wanted;
    if (WANTS(wanted, COLUMN_KEY) && split_column(chunk, &chunk->key, COLUMN_KEY_SCHEMA_ID, 0)) return -1;
    return WANTS(wanted, COLUMN_VALUE) && split_column(chunk, &chunk->value, COLUMN_VALUE_SCHEMA_ID, 1) ? -1 : 0;
}
