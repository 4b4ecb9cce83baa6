// SPDX-License-Identifier: Apache-2.0
// Each export is one block of memory with its whole tree of structures. Its reference count is the number of nodes that
// are not yet released, because a consumer may move a child out and release it after its parent, on any thread.
#include "arrow_export.h"

#include <stdlib.h>

enum { MOST_NODES = COLUMN_COUNT + 4 };  // the struct, its columns, and the struct, key and value below headers

static const char *const column_names[COLUMN_COUNT] = {
    "offset", "timestamp", "timestamp_type", "key", "value", "headers", "base_offset", "producer_id", "producer_epoch",
    "sequence", "partition_leader_epoch", "is_transactional", "is_control", "control_type", "topic", "partition",
    "key_schema_id", "value_schema_id",
};

const char *column_name(ColumnId column) { return column_names[column]; }

// Schemas.

typedef struct {
    atomic_int references;
    int used;
    struct ArrowSchema nodes[MOST_NODES];
    struct ArrowSchema *children[MOST_NODES];
    int children_used;
} SchemaBlock;

static void release_schema(struct ArrowSchema *schema) {
    SchemaBlock *block = schema->private_data;
    for (int64_t at = 0; at < schema->n_children; at++)
        if (schema->children[at]->release) schema->children[at]->release(schema->children[at]);
    schema->release = NULL;
    if (atomic_fetch_sub_explicit(&block->references, 1, memory_order_acq_rel) == 1) free(block);
}

static void set_schema(SchemaBlock *block, struct ArrowSchema *schema, const char *format, const char *name, int nullable) {
    *schema = (struct ArrowSchema){.format = format, .name = name, .flags = nullable ? ARROW_FLAG_NULLABLE : 0,
                                   .release = release_schema, .private_data = block};
    atomic_fetch_add_explicit(&block->references, 1, memory_order_relaxed);
}

static struct ArrowSchema *add_schema_child(SchemaBlock *block, struct ArrowSchema *parent) {
    struct ArrowSchema *child = &block->nodes[block->used++];
    if (!parent->children) parent->children = &block->children[block->children_used];
    block->children[block->children_used++] = child;
    parent->n_children++;
    return child;
}

static const char *column_format(const ChunkLayout *layout, ColumnId column) {
    static const char *const binaries[] = {"z", "Z", "vz"};
    switch (column) {
        case COLUMN_TIMESTAMP: return layout->timestamp_microseconds ? "tsu:UTC" : "tsm:UTC";
        case COLUMN_KEY:
        case COLUMN_VALUE: return binaries[layout->binary_type];
        case COLUMN_HEADERS: return "+l";
        case COLUMN_TOPIC: return "u";
        case COLUMN_IS_TRANSACTIONAL:
        case COLUMN_IS_CONTROL: return "b";
        default: {
            int width = column_width(column);
            return width == 8 ? "l" : width == 4 ? "i" : "s";
        }
    }
}

static int column_nullable(const ChunkLayout *layout, ColumnId column) {
    return column == COLUMN_KEY || column == COLUMN_VALUE || column == COLUMN_CONTROL_TYPE || column == COLUMN_TOPIC ||
           column == COLUMN_PARTITION || column == COLUMN_KEY_SCHEMA_ID || column == COLUMN_VALUE_SCHEMA_ID ||
           (column == COLUMN_HEADERS && layout->null_empty_headers);
}

static void fill_column_schema(SchemaBlock *block, struct ArrowSchema *schema, const ChunkLayout *layout, ColumnId column,
                               const char *name, int all_nullable) {
    set_schema(block, schema, column_format(layout, column), name, all_nullable || column_nullable(layout, column));
    if (column != COLUMN_HEADERS) return;
    struct ArrowSchema *item = add_schema_child(block, schema);
    set_schema(block, item, "+s", all_nullable ? "element" : "item", all_nullable);
    struct ArrowSchema *key = add_schema_child(block, item), *value = add_schema_child(block, item);
    set_schema(block, key, "u", "key", all_nullable);
    set_schema(block, value, "z", "value", 1);
}

// The root is the structure of the caller. The nodes of the block are its descendants.
int arrow_export_schema(const ChunkLayout *layout, const ColumnOrder *order, struct ArrowSchema *out) {
    SchemaBlock *block = calloc(1, sizeof *block);
    if (!block) return -1;
    set_schema(block, out, "+s", "", 0);
    struct ArrowSchema *children[COLUMN_COUNT];
    for (int at = 0; at < order->count; at++) children[at] = add_schema_child(block, out);
    for (int at = 0; at < order->count; at++) {
        ColumnId column = order->columns[at];
        fill_column_schema(block, children[at], layout, column, order->names[at] ? order->names[at] : column_names[column],
                           order->all_nullable);
    }
    return 0;
}

int arrow_export_column_schema(const ChunkLayout *layout, ColumnId column, int all_nullable, struct ArrowSchema *out) {
    SchemaBlock *block = calloc(1, sizeof *block);
    if (!block) return -1;
    fill_column_schema(block, out, layout, column, column_names[column], all_nullable);
    return 0;
}

// Arrays.

typedef struct {
    atomic_int references;
    Chunk *chunk;
    int used, children_used, buffers_used;
    struct ArrowArray nodes[MOST_NODES];
    struct ArrowArray *children[MOST_NODES];
    const void *buffers[3 * MOST_NODES];
    const void **view_buffers;   // for views: validity, views, arena, sources and lengths, once each for key and value
    int64_t *view_lengths;
} ArrayBlock;

static void drop_array_block(ArrayBlock *block) {
    if (atomic_fetch_sub_explicit(&block->references, 1, memory_order_acq_rel) != 1) return;
    chunk_release(block->chunk);
    free(block->view_buffers);
    free(block->view_lengths);
    free(block);
}

static void release_array(struct ArrowArray *array) {
    ArrayBlock *block = array->private_data;
    for (int64_t at = 0; at < array->n_children; at++)
        if (array->children[at]->release) array->children[at]->release(array->children[at]);
    array->release = NULL;
    drop_array_block(block);
}

static void set_array(ArrayBlock *block, struct ArrowArray *array, int64_t rows, int64_t row, int64_t nulls,
                      const uint8_t *validity, int buffers, const void *second, const void *third) {
    *array = (struct ArrowArray){.length = rows, .null_count = nulls, .offset = row, .n_buffers = buffers,
                                 .buffers = &block->buffers[block->buffers_used], .release = release_array,
                                 .private_data = block};
    block->buffers[block->buffers_used] = nulls ? validity : NULL;
    block->buffers[block->buffers_used + 1] = second;
    block->buffers[block->buffers_used + 2] = third;
    block->buffers_used += 3;
    atomic_fetch_add_explicit(&block->references, 1, memory_order_relaxed);
}

static struct ArrowArray *add_array_child(ArrayBlock *block, struct ArrowArray *parent) {
    struct ArrowArray *child = &block->nodes[block->used++];
    if (!parent->children) parent->children = &block->children[block->children_used];
    block->children[block->children_used++] = child;
    parent->n_children++;
    return child;
}

static int64_t nulls_of(const Chunk *chunk, int64_t null_count, int64_t rows) {
    return null_count == 0 || rows == chunk->rows ? null_count : -1;  // -1: the nulls of a slice are not counted
}

static void fill_views(ArrayBlock *block, struct ArrowArray *array, const BinaryColumn *column) {
    const Chunk *chunk = block->chunk;
    int sources = chunk->view_source_count, total = 2 + 1 + sources + 1;
    const void **buffers = block->view_buffers + (column == &chunk->key ? 0 : total);
    int64_t *lengths = block->view_lengths;
    static const uint8_t nothing[1];
    buffers[0] = array->buffers[0];
    buffers[1] = column->offsets.data;
    buffers[2] = chunk->view_arena.data ? chunk->view_arena.data : nothing;
    lengths[0] = chunk->view_arena_length;
    for (int at = 0; at < sources; at++) {
        buffers[3 + at] = chunk->view_sources[at].base;
        lengths[1 + at] = chunk->view_sources[at].length;
    }
    buffers[total - 1] = lengths;
    array->buffers = buffers;
    array->n_buffers = total;
}

static void fill_headers(ArrayBlock *block, struct ArrowArray *array, int64_t row, int64_t rows) {
    Chunk *chunk = block->chunk;
    const BinaryColumn *names = chunk->has_invalid_names ? &chunk->replaced_names : &chunk->header_name;
    const BinaryColumn *values = &chunk->header_value;
    int64_t headers = chunk->header_count;
    set_array(block, array, rows, row, nulls_of(chunk, chunk->header_list_nulls, rows), chunk->header_list_validity.data, 2,
              chunk->header_lists.data, NULL);
    struct ArrowArray *item = add_array_child(block, array);
    set_array(block, item, headers, 0, 0, NULL, 1, NULL, NULL);
    struct ArrowArray *key = add_array_child(block, item), *value = add_array_child(block, item);
    set_array(block, key, headers, 0, 0, NULL, 3, names->offsets.data, names->data.data);
    set_array(block, value, headers, 0, values->null_count, values->validity.data, 3, values->offsets.data,
              values->data.data);
}

static void fill_column(ArrayBlock *block, struct ArrowArray *array, ColumnId column, int64_t row, int64_t rows) {
    Chunk *chunk = block->chunk;
    if (column == COLUMN_HEADERS) {
        fill_headers(block, array, row, rows);
        return;
    }
    if (column == COLUMN_KEY || column == COLUMN_VALUE || column == COLUMN_TOPIC) {
        const BinaryColumn *binary = column == COLUMN_KEY     ? &chunk->key
                                     : column == COLUMN_VALUE ? &chunk->value
                                                              : &chunk->topic_rows;
        int64_t first = column == COLUMN_TOPIC ? 0 : row;  // the topic is the same in every row: see columns.h
        set_array(block, array, rows, first, nulls_of(chunk, binary->null_count, rows), binary->validity.data, 3,
                  binary->offsets.data, binary->data.data);
        if (column != COLUMN_TOPIC && chunk->layout.binary_type == BINARY_VIEW) fill_views(block, array, binary);
        return;
    }
    int64_t nulls;
    const uint8_t *validity = chunk_validity(chunk, column, &nulls);
    set_array(block, array, rows, chunk_fixed_row(chunk, column, row), nulls_of(chunk, nulls, rows), validity, 2,
              chunk->fixed[column].data, NULL);
}

static ArrayBlock *new_array_block(Chunk *chunk) {
    ArrayBlock *block = calloc(1, sizeof *block);
    if (!block) return NULL;
    if (chunk->layout.binary_type == BINARY_VIEW) {
        size_t entries = (size_t)chunk->view_source_count + 4;
        block->view_buffers = calloc(2 * entries, sizeof(void *));
        block->view_lengths = calloc(entries, sizeof(int64_t));
        if (!block->view_buffers || !block->view_lengths) {
            free(block->view_buffers);
            free(block->view_lengths);
            free(block);
            return NULL;
        }
    }
    chunk_retain(chunk);
    block->chunk = chunk;
    return block;
}

int arrow_export_rows(Chunk *chunk, const ColumnOrder *order, int64_t row, int64_t rows, struct ArrowArray *out) {
    ArrayBlock *block = new_array_block(chunk);
    if (!block) return -1;
    set_array(block, out, rows, 0, 0, NULL, 1, NULL, NULL);
    struct ArrowArray *children[COLUMN_COUNT];
    for (int at = 0; at < order->count; at++) children[at] = add_array_child(block, out);
    for (int at = 0; at < order->count; at++) fill_column(block, children[at], order->columns[at], row, rows);
    return 0;
}

int arrow_export_column(Chunk *chunk, ColumnId column, int64_t row, int64_t rows, struct ArrowArray *out) {
    ArrayBlock *block = new_array_block(chunk);
    if (!block) return -1;
    fill_column(block, out, column, row, rows);
    return 0;
}
