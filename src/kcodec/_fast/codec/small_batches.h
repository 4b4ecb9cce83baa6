// SPDX-License-Identifier: Apache-2.0
// Small batches, many in one go. To ask all that decode.c asks of a batch takes a third as long as decoding ten records.
// What is the same for all batches of a range is therefore asked once here, and of each batch only what shows that it is
// a usual one. What is unusual is left to decode.c, which decides about it and names faults.
#ifndef KCODEC_SMALL_BATCHES_H
#define KCODEC_SMALL_BATCHES_H

#include "decode.h"

enum { SMALL_BATCH_RECORDS = 128, SMALL_BATCH_BYTES = 8 << 10 };  // in larger ones the cost of a batch does not show

typedef enum {
    SMALL_ENDED,    // at the end, or before a batch whose header is unusual
    SMALL_ODD,      // before a batch that is unusual inside: it was decoded in vain
    SMALL_REFUSED,  // its stream cannot be decompressed, as the fault says
} SmallResult;

static inline int is_small_batch(const BatchHeader *header) {
    return header->batch_length <= SMALL_BATCH_BYTES && header->records_count <= SMALL_BATCH_RECORDS;
}

// Decodes the batches from table[*at] on, into the open chunk, and moves *at behind them. Of the batch it ends at nothing
// is left in the chunk.
SmallResult decode_small_batches(DecodeRun *run, Decompressor *decompressor, int64_t *at, int64_t end, Fault *fault);

#endif
