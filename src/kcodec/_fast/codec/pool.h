// SPDX-License-Identifier: Apache-2.0
// A pool of buffers for output. A buffer that Arrow has released is kept for the next chunk. New memory would cost a
// page fault for every 4 KiB, which can take ten times as long as the decoding itself.
//
// Capacities are powers of two. Only touched bytes count against the limit, because untouched pages use no memory. A
// chunk releases its buffers in the reverse order in which it acquires them, so that each buffer is used again for the
// same column.
#ifndef KCODEC_POOL_H
#define KCODEC_POOL_H

#include <stddef.h>
#include <stdint.h>

enum {
    BUFFER_SLACK = 64,                       // bytes after the capacity that copies may write
    POOL_MAX_RETAINED_BYTES = 96 << 20,      // limit of touched bytes in the pool: three chunks of 32 MB
    POOL_MAX_BUFFER_BYTES = 64 << 20,        // a buffer with more touched bytes is released to the system
    POOL_DEPTH = 32,                         // maximum number of buffers kept of each capacity
};

typedef struct {
    uint8_t *data;     // aligned to 64 bytes; NULL if the buffer has no memory
    size_t capacity;
    size_t touched;    // high-water mark of bytes written since the memory was allocated
} Buffer;

// Acquires at least `capacity` bytes with undefined contents. Returns -1 if there is no memory.
int buffer_acquire(Buffer *buffer, size_t capacity);
// Grows the buffer to `capacity` and keeps its first `keep` bytes; acquires memory if it has none. Returns -1 if there
// is no memory; the buffer is then unchanged.
int buffer_grow(Buffer *buffer, size_t capacity, size_t keep);
// Returns the memory to the pool, or to the system if one of the limits above is exceeded. `used`: number of bytes
// written.
void buffer_release(Buffer *buffer, size_t used);

typedef struct {
    int64_t retained_bytes;
    int64_t retained_buffers;
    int64_t outstanding_buffers;
} PoolCounts;

void pool_counts(PoolCounts *counts);
void pool_trim(void);      // releases all buffers of the pool to the system
void pool_initialise(void);

#endif
