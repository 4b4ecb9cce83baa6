// SPDX-License-Identifier: Apache-2.0
// What has to be known of zstd frames before a decompressor sees them, and the system's libzstd where there is one.
#ifndef KCODEC_ZSTD_H
#define KCODEC_ZSTD_H

#include "bounds.h"

typedef struct {
    int64_t bound;   // bytes that all frames together can make at most
    int frames;      // frames that hold data
    int64_t claimed; // the content sizes they declare, also of a frame that proves corrupt
} ZstdBound;

// Walks the block headers of all frames (RFC 8878): nothing is decompressed, a few nanoseconds a block. A declared size
// above what the blocks can make is not believed: `bound` is the lesser of the two.
int zstd_bound(const uint8_t *data, int64_t size, ZstdBound *bound, Fault *fault);

// Finds the system's libzstd at run time: its version number (10506 for 1.5.6), 0 when it is not there. Once it is found
// zstd_system_decompress may be called, without the GIL.
unsigned zstd_system_load(void);
void *zstd_system_context(void);  // one a thread; NULL: no memory
void zstd_system_free(void *context);
// The number of bytes, or -1 with the fault. `capacity` is the lesser of the bound and the limit.
int64_t zstd_system_decompress(void *context, uint8_t *out, int64_t capacity, const uint8_t *data, int64_t size,
                               int64_t limit, Fault *fault);

#endif
