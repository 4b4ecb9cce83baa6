// SPDX-License-Identifier: Apache-2.0
// A chunk: the columns of many batches, each already an Arrow buffer. records.c appends to it, arrow_export.c exports it.
// Chunks are counted by reference, atomically, because Arrow may let go of one on any thread and without the GIL.
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
    COLUMN_KEY_SCHEMA_ID,    // these two with a framing alone
    COLUMN_VALUE_SCHEMA_ID,
    COLUMN_COUNT,
} ColumnId;

#define WANTS(wanted, column) (((wanted) >> (column)) & 1u)

typedef enum { BINARY, LARGE_BINARY, BINARY_VIEW } BinaryType;

enum {
    CHUNK_BYTES = 32 << 20,        // a chunk is closed once its output is this large
    CHUNK_MAX_BYTES = 0x7fffffbf,  // what int32 offsets of a binary column can reach, less slack
    // Columns that repeat one value do not cost a value per row. A batch of more records than CONSTANT_ROWS has a chunk
    // to itself, whose constant columns are as long as this; the topic is repeated up to TOPIC_MOST_BYTES, and a chunk
    // is closed once its topic column takes TOPIC_CUT_BYTES. Rows are exported in parts that are no longer.
    CONSTANT_ROWS = 1 << 18,
    TOPIC_CUT_BYTES = 8 << 20,
    TOPIC_MOST_BYTES = 16 << 20,
};

typedef struct {
    Buffer offsets;      // rows + 1 of int32 or int64; or rows of 16-byte views
    Buffer data;
    Buffer validity;     // one bit a row, 1 = not null; nothing held while there is no null
    int64_t length;      // bytes of data
    int64_t null_count;  // counted by chunk_finish
} BinaryColumn;

typedef struct {         // what Record views need to know of the batch a row came from
    int64_t first_row;
    int64_t base_offset;
    int64_t position;
    int32_t base_sequence;
    int32_t leader_epoch;
    int8_t timestamp_type;
    uint8_t is_control;
} BatchSpan;

typedef struct {         // bytes that views point into and that are not ours
    const uint8_t *base;
    int64_t length;
} ViewSource;

typedef struct {
    uint32_t wanted;                 // bit per ColumnId
    BinaryType binary_type;
    uint8_t timestamp_microseconds;  // Spark's unit; Kafka's milliseconds otherwise
    uint8_t null_empty_headers;      // Spark's rule: no headers is NULL, not an empty list
    uint8_t framing;                 // schema ids are split off keys and values: framing.c
} ChunkLayout;

typedef struct Chunk {
    atomic_int references;
    ChunkLayout layout;
    int64_t rows, row_capacity;
    int64_t payload, payload_capacity;  // bytes of records seen, and the least any variable column has room for
    int64_t row_bytes;               // of output a row, its variable bytes not counted
    Buffer fixed[COLUMN_COUNT];      // offset, timestamp and the columns that are constant in a batch
    Buffer control_type_validity;
    int64_t control_type_nulls;
    Buffer schema_id_validity[2];    // of key and value, made when the chunk is closed
    int64_t schema_id_nulls[2];
    uint8_t is_split;
    uint8_t holds_one_batch;         // of more than CONSTANT_ROWS records
    BinaryColumn key, value;
    Buffer header_lists;             // rows + 1 of int32
    Buffer header_list_validity;     // made when the chunk is closed, with null_empty_headers only
    int64_t header_list_nulls;
    int64_t header_count, header_capacity;
    BinaryColumn header_name, header_value;
    uint8_t has_invalid_names;
    BinaryColumn replaced_names;     // the names as Arrow strings, with U+FFFD, where some are not UTF-8
    Buffer spans;
    int64_t span_count;
    Buffer view_arena;               // decompressed payloads that views point into
    int64_t view_arena_length;
    ViewSource *view_sources;
    int view_source_count;
    void *owner;                     // keeps the bytes of view_sources alive
    void (*release_owner)(void *owner);
    const char *topic;               // owned copy, NULL: unknown
    int32_t topic_length, partition, has_partition;
    BinaryColumn topic_rows;         // the topic repeated for the rows of a part, made when the chunk is closed
    Buffer partition_validity;       // all null, where the partition is unknown
    int64_t output_bytes;            // for the cut rule
} Chunk;

typedef struct {                     // a chunk's state before a batch, to go back to if the batch is refused
    int64_t rows, key_length, value_length, header_count, name_length, header_value_length, span_count, view_arena_length, output_bytes, control_type_nulls;
} ChunkMark;

// Width in bytes of a fixed column's element; 0 for bit-packed booleans and for columns that are not fixed.
int column_width(ColumnId column);

static inline int column_is_constant(ColumnId column) {
    return column == COLUMN_TIMESTAMP_TYPE || column == COLUMN_BASE_OFFSET || column == COLUMN_PRODUCER_ID ||
           column == COLUMN_PRODUCER_EPOCH || column == COLUMN_PARTITION_LEADER_EPOCH || column == COLUMN_PARTITION;
}
// How many of `rows` elements a fixed column has, and which of them is the value of a row.
static inline int64_t chunk_fixed_rows(const Chunk *chunk, ColumnId column, int64_t rows) {
    return chunk->holds_one_batch && column_is_constant(column) && rows > CONSTANT_ROWS ? CONSTANT_ROWS : rows;
}
static inline int64_t chunk_fixed_row(const Chunk *chunk, ColumnId column, int64_t row) {
    return chunk->holds_one_batch && column_is_constant(column) ? 0 : row;
}
// The most rows that can be exported together, whatever row they begin with.
int64_t chunk_part_rows(const Chunk *chunk);
// Whether the chunk's topic column is so large that no further batch should be added.
int chunk_topic_is_full(const Chunk *chunk);

Chunk *chunk_new(const ChunkLayout *layout);
void chunk_retain(Chunk *chunk);
void chunk_release(Chunk *chunk);

// Room for `rows` more rows and `payload` more bytes in every variable column. -1: no memory.
int chunk_reserve_more(Chunk *chunk, int64_t rows, int64_t payload);
static inline int chunk_reserve(Chunk *chunk, int64_t rows, int64_t payload) {
    // no variable column can be longer than all payload that was reserved for so far
    chunk->payload += payload;
    if (chunk->rows + rows <= chunk->row_capacity && chunk->payload <= chunk->payload_capacity) return 0;
    return chunk_reserve_more(chunk, rows, payload);
}
// Bytes of output, by which a chunk is closed.
static inline int64_t chunk_output_bytes(const Chunk *chunk) {
    return chunk->rows * chunk->row_bytes + chunk->key.length + chunk->value.length + chunk->header_name.length +
           chunk->header_value.length + chunk->header_count * 8 + chunk->view_arena_length + chunk->output_bytes;
}
int64_t chunk_longest_column(const Chunk *chunk);  // bytes in the variable column that holds most
int chunk_reserve_headers(Chunk *chunk, int64_t headers);
// Of a fixed column: its validity bitmap, NULL where nothing can be null, and how many are.
const uint8_t *chunk_validity(const Chunk *chunk, ColumnId column, int64_t *nulls);
// A validity bitmap that says "nothing null", for as many rows as there is room for.
int chunk_begin_validity(Buffer *validity, int64_t capacity);
// Fills the columns that are constant within a batch for the rows from `first_row` on, and the span of the batch.
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
// Spark's unit for the rows from `first_row` on. On a fault, found is the timestamp, expected its offset.
int chunk_to_microseconds(Chunk *chunk, int64_t first_row, Fault *fault);
// What is left to do before a chunk is handed out: schema ids, header names as Arrow strings, Spark's NULL for no headers.
int chunk_finish(Chunk *chunk, Fault *fault);

static inline void bitmap_clear(uint8_t *bits, int64_t at) { bits[at >> 3] &= (uint8_t)~(1u << (at & 7)); }
static inline void bitmap_set(uint8_t *bits, int64_t at) { bits[at >> 3] |= (uint8_t)(1u << (at & 7)); }
static inline int bitmap_get(const uint8_t *bits, int64_t at) { return bits[at >> 3] >> (at & 7) & 1; }

static inline int element_size(BinaryType type) { return type == BINARY ? 4 : type == LARGE_BINARY ? 8 : 16; }

#endif
