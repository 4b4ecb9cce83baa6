// SPDX-License-Identifier: Apache-2.0
// Builds a table of batch headers by one pass over the data. No records are copied or decompressed.
#ifndef KCODEC_SCAN_H
#define KCODEC_SCAN_H

#include "header.h"
#include "pool.h"

typedef struct {
    Buffer memory;            // of BatchHeaders
    int64_t count;
    int64_t end;              // position after the last whole batch: start of an incomplete or corrupt batch
    int64_t needed;           // size of the incomplete batch at the end, as far as it is known; 0 without one
    int done;                 // the data has been read to its end, or to the corruption
    int64_t corrupt;          // index that the first batch with an invalid header has or would have, -1: none
    Fault fault;              // the fault of that header
    int64_t above;            // last offset of the last batch that was read
} BatchTable;

static inline BatchHeader *table_batches(const BatchTable *table) { return (BatchHeader *)table->memory.data; }

// Reads at most `most` further batches of data[0..size) from table->end on. With `skip`, a batch with an invalid header
// becomes an entry of OUTCOME_SKIPPED if its length leads to a batch with a valid header and CRC. Returns -1 if there
// is no memory. Corruption is not an error of this function: reading ends there, and the table has the fault.
int scan_batches(const uint8_t *data, int64_t size, int64_t origin, const Limits *limits, int skip, int64_t most,
                 BatchTable *table);
void scan_begin(BatchTable *table);  // empties the table and keeps its memory; a new table must be all zeros
void scan_free(BatchTable *table);

#endif
