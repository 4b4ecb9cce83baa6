// SPDX-License-Identifier: Apache-2.0
// Output memory that is used again. Arrow gives buffers back when the last array over them goes; they wait here, warm, for
// the next chunk. Fresh memory costs a page fault for every 4 KiB, up to ten times the decoding itself.
//
// Capacities are powers of two. Only pages once touched count against the cap: a large buffer barely used costs little.
// A chunk acquires in one order and releases in the reverse, so that a buffer comes back to the role it had.
#ifndef KCODEC_POOL_H
#define KCODEC_POOL_H

#include <stddef.h>
#include <stdint.h>

enum {
    BUFFER_SLACK = 64,                       // bytes past the capacity that may be written by over-copies
    POOL_MAX_RETAINED_BYTES = 96 << 20,      // touched bytes kept waiting; three 32 MB chunks
    POOL_MAX_BUFFER_BYTES = 64 << 20,        // trim rule: a buffer touched further than this is given back to the system
    POOL_DEPTH = 32,                         // buffers kept of one capacity
};

typedef struct {
    uint8_t *data;     // NULL: nothing held; aligned to 64 bytes
    size_t capacity;
    size_t touched;    // high-water mark of bytes written, over all its lives
} Buffer;

// At least `capacity` bytes, contents undefined. -1: no memory.
int buffer_acquire(Buffer *buffer, size_t capacity);
// Grows to `capacity`, keeping the first `keep` bytes; acquires if empty. -1: no memory, the buffer is as it was.
int buffer_grow(Buffer *buffer, size_t capacity, size_t keep);
// To the pool, or to the system by the trim rule. `used`: bytes that were written this time.
void buffer_release(Buffer *buffer, size_t used);

typedef struct {
    int64_t retained_bytes;
    int64_t retained_buffers;
    int64_t outstanding_buffers;
} PoolCounts;

void pool_counts(PoolCounts *counts);
void pool_trim(void);      // everything that waits goes back to the system
void pool_initialise(void);

#endif
