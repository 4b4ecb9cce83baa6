// SPDX-License-Identifier: Apache-2.0
// A faster path for many small batches. The checks of decode.c for one batch take a third as long as decoding ten
// records. This file therefore checks once what is the same for all batches of a range, and for each batch only whether
// it is a usual one. Unusual batches are left to decode.c, which handles them and reports faults.
#ifndef KCODEC_SMALL_BATCHES_H
#define KCODEC_SMALL_BATCHES_H

#include "decode.h"

enum { SMALL_BATCH_RECORDS = 128, SMALL_BATCH_BYTES = 8 << 10 };  // in larger batches the fixed cost is negligible

typedef enum {
    SMALL_ENDED,    // stopped at the end, or before a batch with an unusual header or a wrong CRC
    SMALL_ODD,      // stopped before a batch with an unusual record, which must be decoded again
    SMALL_REFUSED,  // stopped at a batch that cannot be decompressed, with the fault
} SmallResult;

static inline int is_small_batch(const BatchHeader *header) {
    return header->batch_length <= SMALL_BATCH_BYTES && header->records_count <= SMALL_BATCH_RECORDS;
}

// Decodes the batches from table[*at] on into the open chunk, and sets *at to the first batch that was not decoded. The
// chunk then contains nothing of that batch.
SmallResult decode_small_batches(DecodeRun *run, Decompressor *decompressor, int64_t *at, int64_t end, Fault *fault);

#endif
