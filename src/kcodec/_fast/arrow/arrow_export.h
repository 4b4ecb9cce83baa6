// SPDX-License-Identifier: Apache-2.0
// Export of chunks by the Arrow C data interface. An exported array keeps its chunk alive, so nothing is copied.
#ifndef KCODEC_ARROW_EXPORT_H
#define KCODEC_ARROW_EXPORT_H

#include "arrow_abi.h"
#include "columns.h"

typedef struct {
    uint8_t columns[COLUMN_COUNT];  // ColumnIds in the order requested
    const char *names[COLUMN_COUNT];  // static strings, or NULL for the standard name of the column
    int count;
    int all_nullable;               // every field is nullable, as in Spark's schema
} ColumnOrder;

const char *column_name(ColumnId column);

// Export a struct of all columns (a record batch), or one column. Return -1 if there is no memory.
int arrow_export_schema(const ChunkLayout *layout, const ColumnOrder *order, struct ArrowSchema *out);
int arrow_export_column_schema(const ChunkLayout *layout, ColumnId column, int all_nullable, struct ArrowSchema *out);
int arrow_export_rows(Chunk *chunk, const ColumnOrder *order, int64_t row, int64_t rows, struct ArrowArray *out);
int arrow_export_column(Chunk *chunk, ColumnId column, int64_t row, int64_t rows, struct ArrowArray *out);

#endif
