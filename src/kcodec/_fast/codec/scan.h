// SPDX-License-Identifier: Apache-2.0
// From bytes to a table of batches: one walk over the headers, nothing copied, nothing decompressed.
#ifndef KCODEC_SCAN_H
#define KCODEC_SCAN_H

#include "header.h"
#include "pool.h"

typedef struct {
    Buffer memory;            // of BatchHeaders
    int64_t count;
    int64_t end;              // bytes of the whole batches walked: where the cut tail or the corruption begins
    int64_t needed;           // size of the cut batch at the end, as far as it is known; 0: nothing is cut
    int done;                 // the data has been walked to its end, or to the corruption
    int64_t corrupt;          // index the first corrupt header would have, -1: none
    Fault fault;              // why
    int64_t above;            // last offset of the last batch that was read
    int stopped;              // the walk ended at corruption, not at the end of the data; there the batch claims to begin at
    int64_t stopped_base_offset;
} BatchTable;

static inline BatchHeader *table_batches(const BatchTable *table) { return (BatchHeader *)table->memory.data; }

// Walks on from table->end, `most` batches at most, through data[0..size); begin with a table of zeros. With `skip`, a header that cannot be read is passed over (an entry of OUTCOME_SKIPPED) if its own
// length leads to a provable one. -1: no memory. Corruption is no failure of the walk: it ends there and says so.
int scan_batches(const uint8_t *data, int64_t size, int64_t origin, const Limits *limits, int skip, int64_t most,
                 BatchTable *table);
void scan_begin(BatchTable *table);  // empties it; its memory is kept
void scan_free(BatchTable *table);

#endif
