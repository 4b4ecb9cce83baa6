// SPDX-License-Identifier: Apache-2.0
// Chunks as Arrow: schemas and arrays by the C data interface. An array keeps its chunk alive; nothing is copied.
#ifndef KCODEC_ARROW_EXPORT_H
#define KCODEC_ARROW_EXPORT_H

#include "arrow_abi.h"
#include "columns.h"

typedef struct {
    uint8_t columns[COLUMN_COUNT];  // ColumnIds in the order they were asked for
    const char *names[COLUMN_COUNT];  // static strings, or NULL for the column's own name
    int count;
    int all_nullable;               // Spark's schema: every field may be null
} ColumnOrder;

const char *column_name(ColumnId column);

// A struct of all columns (a record batch), or one column by itself. -1: no memory.
int arrow_export_schema(const ChunkLayout *layout, const ColumnOrder *order, struct ArrowSchema *out);
int arrow_export_column_schema(const ChunkLayout *layout, ColumnId column, int all_nullable, struct ArrowSchema *out);
int arrow_export_rows(Chunk *chunk, const ColumnOrder *order, int64_t row, int64_t rows, struct ArrowArray *out);
int arrow_export_column(Chunk *chunk, ColumnId column, int64_t row, int64_t rows, struct ArrowArray *out);

#endif
