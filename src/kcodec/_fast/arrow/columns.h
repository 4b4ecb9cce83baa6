// SPDX-License-Identifier: Apache-2.0
// A chunk contains the columns of many batches as Arrow buffers. records.c appends to it, and arrow_export.c exports
// it. Its reference count is atomic, because Arrow may release a chunk on any thread and without the GIL.
#ifndef KCODEC_COLUMNS_H
#define KCODEC_COLUMNS_H

#include <stdatomic.h>

#include "header.h"
#include "pool.h"

typedef enum {
    COLUMN_OFFSET,
    COLUMN_TIMESTAMP,
    COLUMN_TIMESTAMP_TYPE,
    COLUMN_KEY,
    COLUMN_VALUE,
    COLUMN_HEADERS,
    COLUMN_BASE_OFFSET,
    COLUMN_PRODUCER_ID,
    COLUMN_PRODUCER_EPOCH,
    COLUMN_SEQUENCE,
    COLUMN_PARTITION_LEADER_EPOCH,
    COLUMN_IS_TRANSACTIONAL,
    COLUMN_IS_CONTROL,
    COLUMN_CONTROL_TYPE,
    COLUMN_TOPIC,
    COLUMN_PARTITION,
    COLUMN_KEY_SCHEMA_ID,    // this and the next column only with framing
    COLUMN_VALUE_SCHEMA_ID,
    COLUMN_COUNT,
} ColumnId;

#define WANTS(wanted, column) (((wanted) >> (column)) & 1u)

typedef enum { BINARY, LARGE_BINARY, BINARY_VIEW } BinaryType;

enum {
    CHUNK_BYTES = 32 << 20,        // a chunk is finished when its output reaches this size
    CHUNK_MAX_BYTES = 0x7fffffbf,  // largest int32 offset of a binary column, minus slack
    // Columns that repeat one value do not need memory for each row of a large chunk. A batch of more than
    // CONSTANT_ROWS records has a separate chunk, whose constant columns have CONSTANT_ROWS elements. The topic column
    // repeats the topic up to TOPIC_MOST_BYTES, and a chunk is finished when it would need TOPIC_CUT_BYTES. Rows are
    // exported in parts that are not longer than these columns.
    CONSTANT_ROWS = 1 << 18,
    TOPIC_CUT_BYTES = 8 << 20,
    TOPIC_MOST_BYTES = 16 << 20,
};

typedef struct {
    Buffer offsets;      // rows + 1 offsets of int32 or int64, or one view of 16 bytes for each row
    Buffer data;
    Buffer validity;     // one bit for each row, 1 = not null; without memory as long as there is no null
    int64_t length;      // bytes of data
    int64_t null_count;  // counted by chunk_finish
} BinaryColumn;

typedef struct {         // the rows of one batch, with the header fields that records need
    int64_t first_row;
    int64_t base_offset;
    int64_t position;
    int32_t base_sequence;
    int32_t leader_epoch;
    int8_t timestamp_type;
    uint8_t is_control;
} BatchSpan;

typedef struct {         // bytes of the caller that views point into
    const uint8_t *base;
    int64_t length;
} ViewSource;

typedef struct {
    uint32_t wanted;                 // the requested columns, one bit for each ColumnId
    BinaryType binary_type;
    uint8_t timestamp_microseconds;  // timestamps in microseconds, as in Spark, instead of milliseconds
    uint8_t null_empty_headers;      // a record without headers has NULL, as in Spark, instead of an empty list
    uint8_t framing;                 // schema ids are removed from keys and values: see framing.c
} ChunkLayout;

typedef struct Chunk {
    atomic_int references;
    ChunkLayout layout;
    int64_t rows, row_capacity;
    int64_t payload, payload_capacity;  // reserved bytes of records, and smallest capacity of a variable-width column
    int64_t row_bytes;               // output bytes of each row in fixed-width columns and offsets
    Buffer fixed[COLUMN_COUNT];      // fixed-width columns
    Buffer control_type_validity;
    int64_t control_type_nulls;
    Buffer schema_id_validity[2];    // of key and value, created when the chunk is finished
    int64_t schema_id_nulls[2];
    uint8_t is_split;
    uint8_t holds_one_batch;         // the chunk is only for one batch of more than CONSTANT_ROWS records
    BinaryColumn key, value;
    Buffer header_lists;             // rows + 1 offsets of int32
    Buffer header_list_validity;     // created when the chunk is finished, only with null_empty_headers
    int64_t header_list_nulls;
    int64_t header_count, header_capacity;
    BinaryColumn header_name, header_value;
    uint8_t has_invalid_names;
    BinaryColumn replaced_names;     // names with U+FFFD instead of invalid bytes, if some names are not valid UTF-8
    Buffer spans;
    int64_t span_count;
    Buffer view_arena;               // decompressed payloads that views point into
    int64_t view_arena_length;
    ViewSource *view_sources;
    int view_source_count;
    void *owner;                     // keeps the bytes of view_sources alive
    void (*release_owner)(void *owner);
    const char *topic;               // a copy that the chunk owns, NULL: unknown
    int32_t topic_length, partition, has_partition;
    BinaryColumn topic_rows;         // the topic repeated for the rows of a part, created when the chunk is finished
    Buffer partition_validity;       // all null, only if the partition is unknown
    int64_t output_bytes;            // input bytes that views refer to, which count as output (chunk_output_bytes)
} Chunk;

typedef struct {                     // the state of a chunk before a batch, for rolling back after a fault
    int64_t rows, key_length, value_length, header_count, name_length, header_value_length, span_count;
    int64_t view_arena_length, output_bytes, control_type_nulls;
} ChunkMark;

// Width in bytes of a fixed column's element; 0 for bit-packed booleans and for columns that are not fixed.
int column_width(ColumnId column);

static inline int column_is_constant(ColumnId column) {
    return column == COLUMN_TIMESTAMP_TYPE || column == COLUMN_BASE_OFFSET || column == COLUMN_PRODUCER_ID ||
           column == COLUMN_PRODUCER_EPOCH || column == COLUMN_PARTITION_LEADER_EPOCH || column == COLUMN_PARTITION;
}
// The number of elements that a fixed-width column has for `rows` rows, and the index of the element of a row.
static inline int64_t chunk_fixed_rows(const Chunk *chunk, ColumnId column, int64_t rows) {
    return chunk->holds_one_batch && column_is_constant(column) && rows > CONSTANT_ROWS ? CONSTANT_ROWS : rows;
}
static inline int64_t chunk_fixed_row(const Chunk *chunk, ColumnId column, int64_t row) {
    return chunk->holds_one_batch && column_is_constant(column) ? 0 : row;
}
// Returns the maximum number of rows that can be exported together.
int64_t chunk_part_rows(const Chunk *chunk);
// Returns whether the topic column is so large that no further batch should be added to the chunk.
int chunk_topic_is_full(const Chunk *chunk);

Chunk *chunk_new(const ChunkLayout *layout);
void chunk_retain(Chunk *chunk);
void chunk_release(Chunk *chunk);

// Reserves memory for `rows` more rows and `payload` more bytes in each variable-width column. Returns -1 if there is
// no memory.
int chunk_reserve_more(Chunk *chunk, int64_t rows, int64_t payload);
static inline int chunk_reserve(Chunk *chunk, int64_t rows, int64_t payload) {
    // No variable-width column is longer than the sum of the reserved payload.
    chunk->payload += payload;
    if (chunk->rows + rows <= chunk->row_capacity && chunk->payload <= chunk->payload_capacity) return 0;
    return chunk_reserve_more(chunk, rows, payload);
}
// Returns the number of output bytes, which decides when a chunk is finished.
static inline int64_t chunk_output_bytes(const Chunk *chunk) {
    return chunk->rows * chunk->row_bytes + chunk->key.length + chunk->value.length + chunk->header_name.length +
           chunk->header_value.length + chunk->header_count * 8 + chunk->view_arena_length + chunk->output_bytes;
}
int64_t chunk_longest_column(const Chunk *chunk);  // number of bytes in the longest variable-width column
int chunk_reserve_headers(Chunk *chunk, int64_t headers);
// Returns the validity bitmap of a fixed-width column, or NULL if it cannot contain nulls, and sets *nulls to their
// number.
const uint8_t *chunk_validity(const Chunk *chunk, ColumnId column, int64_t *nulls);
// Creates a validity bitmap for `capacity` rows in which no row is null.
int chunk_begin_validity(Buffer *validity, int64_t capacity);
// Fills the columns that are constant within a batch for the rows from `first_row` on, and adds the span of the batch.
int chunk_fill_columns(Chunk *chunk, const BatchHeader *header, int64_t first_row);
static inline int chunk_fill_constants(Chunk *chunk, const BatchHeader *header, int64_t first_row) {
    const uint32_t of_records = 1u << COLUMN_OFFSET | 1u << COLUMN_TIMESTAMP | 1u << COLUMN_KEY | 1u << COLUMN_VALUE |
                                1u << COLUMN_HEADERS;
    if ((size_t)(chunk->span_count + 1) * sizeof(BatchSpan) > chunk->spans.capacity &&
        buffer_grow(&chunk->spans, (size_t)(chunk->span_count + 1) * sizeof(BatchSpan),
                    (size_t)chunk->span_count * sizeof(BatchSpan)))
        return -1;
    ((BatchSpan *)chunk->spans.data)[chunk->span_count++] = (BatchSpan){
        .first_row = first_row,
        .base_offset = header->base_offset,
        .position = header->position,
        .base_sequence = header->base_sequence,
        .leader_epoch = header->partition_leader_epoch,
        .timestamp_type = (int8_t)header_timestamp_type(header),
        .is_control = (uint8_t)header_is_control(header),
    };
    return chunk->layout.wanted & ~of_records ? chunk_fill_columns(chunk, header, first_row) : 0;
}
static inline void chunk_mark(const Chunk *chunk, ChunkMark *mark) {
    *mark = (ChunkMark){chunk->rows, chunk->key.length, chunk->value.length, chunk->header_count,
                        chunk->header_name.length, chunk->header_value.length, chunk->span_count,
                        chunk->view_arena_length, chunk->output_bytes, chunk->control_type_nulls};
}
void chunk_rollback(Chunk *chunk, const ChunkMark *mark);
// Converts the timestamps from `first_row` on to microseconds. In a fault, `found` is the timestamp and `expected` the
// offset of its record.
int chunk_to_microseconds(Chunk *chunk, int64_t first_row, Fault *fault);
// Completes a chunk before it is returned: removes schema ids, makes header names valid UTF-8, and sets NULL for
// records without headers if the layout requires it.
int chunk_finish(Chunk *chunk, Fault *fault);

static inline void bitmap_clear(uint8_t *bits, int64_t at) { bits[at >> 3] &= (uint8_t)~(1u << (at & 7)); }
static inline void bitmap_set(uint8_t *bits, int64_t at) { bits[at >> 3] |= (uint8_t)(1u << (at & 7)); }
static inline int bitmap_get(const uint8_t *bits, int64_t at) { return bits[at >> 3] >> (at & 7) & 1; }

static inline int element_size(BinaryType type) { return type == BINARY ? 4 : type == LARGE_BINARY ? 8 : 16; }

#endif
