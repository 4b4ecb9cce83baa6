// SPDX-License-Identifier: Apache-2.0
#include "pool.h"

#include <string.h>

#include "platform.h"

enum { LEAST_SHIFT = 12, CLASSES = 36, PAGE = 4096, CLASSES_ABOVE = 4 };

#ifdef KCODEC_EXACT_BUFFERS  // for sanitizers, which then detect every access after the requested size or after release
enum { EXACT = 1 };
static const size_t MAPPED_FROM = SIZE_MAX;
#else
enum { EXACT = 0, MAPPED_FROM = 1 << 20 };
#endif

static struct {
    Lock lock;
    Buffer waiting[CLASSES][POOL_DEPTH];
    int depth[CLASSES];
    PoolCounts counts;
} pool = {.lock = LOCK_INITIAL};

static void before_fork(void) { lock_take(&pool.lock); }
static void after_fork(void) { lock_give(&pool.lock); }

void pool_initialise(void) {
    static int done;
    if (!done) around_fork(before_fork, after_fork);
    done = 1;
}

static int class_of(size_t capacity) {
    if (capacity <= (size_t)1 << LEAST_SHIFT) return 0;
    return 64 - __builtin_clzll(capacity - 1) - LEAST_SHIFT;
}

static size_t rounded(size_t capacity) {
    return EXACT ? capacity : (size_t)1 << (class_of(capacity) + LEAST_SHIFT);
}
static size_t mapped_size(size_t capacity) { return capacity + PAGE; }

static uint8_t *system_allocate(size_t capacity) {
    return capacity >= MAPPED_FROM ? pages_get(mapped_size(capacity)) : aligned_get(capacity + BUFFER_SLACK);
}

static void system_free(const Buffer *buffer) {
    if (buffer->capacity >= MAPPED_FROM)
        pages_drop(buffer->data, mapped_size(buffer->capacity));
    else
        aligned_drop(buffer->data);
}

int buffer_acquire(Buffer *buffer, size_t capacity) {
    int class = class_of(capacity);
    if (class >= CLASSES) return -1;
    int found = 0;
    lock_take(&pool.lock);
    // A buffer that has grown was returned to a larger class, so larger classes are searched as well. Capacity that is
    // not touched uses no memory.
    int larger = class;
    while (larger < CLASSES - 1 && larger < class + CLASSES_ABOVE && !pool.depth[larger]) larger++;
    if (pool.depth[larger]) {
        *buffer = pool.waiting[larger][--pool.depth[larger]];
        pool.counts.retained_bytes -= (int64_t)buffer->touched;
        pool.counts.retained_buffers--;
        found = 1;
    }
    pool.counts.outstanding_buffers++;
    lock_give(&pool.lock);
    if (found) return 0;
    buffer->capacity = rounded(capacity);
    buffer->touched = 0;
    buffer->data = system_allocate(buffer->capacity);
    if (buffer->data) return 0;
    buffer->capacity = 0;
    lock_take(&pool.lock);
    pool.counts.outstanding_buffers--;
    lock_give(&pool.lock);
    return -1;
}

int buffer_grow(Buffer *buffer, size_t capacity, size_t keep) {
    if (buffer->data && capacity <= buffer->capacity) return 0;
    if (!buffer->data) return buffer_acquire(buffer, capacity);
    if (class_of(capacity) >= CLASSES) return -1;
    if (buffer->touched < keep) buffer->touched = keep;
    if (buffer->capacity >= MAPPED_FROM) {
        void *grown = pages_grow(buffer->data, mapped_size(buffer->capacity), mapped_size(rounded(capacity)));
        if (!grown) return -1;
        buffer->data = grown;
        buffer->capacity = rounded(capacity);
        return 0;
    }
    Buffer larger;
    if (buffer_acquire(&larger, capacity)) return -1;
    memcpy(larger.data, buffer->data, keep);
    buffer_release(buffer, keep);
    *buffer = larger;
    return 0;
}

void buffer_release(Buffer *buffer, size_t used) {
    if (!buffer->data) return;
    if (used > buffer->touched) buffer->touched = used;
    int class = class_of(buffer->capacity);
    int kept = 0;
    lock_take(&pool.lock);
    pool.counts.outstanding_buffers--;
    if (!EXACT && pool.depth[class] < POOL_DEPTH && buffer->touched <= POOL_MAX_BUFFER_BYTES &&
        pool.counts.retained_bytes + (int64_t)buffer->touched <= POOL_MAX_RETAINED_BYTES) {
        pool.waiting[class][pool.depth[class]++] = *buffer;
        pool.counts.retained_bytes += (int64_t)buffer->touched;
        pool.counts.retained_buffers++;
        kept = 1;
    }
    lock_give(&pool.lock);
    if (!kept) system_free(buffer);
    memset(buffer, 0, sizeof *buffer);
}

void pool_counts(PoolCounts *counts) {
    lock_take(&pool.lock);
    *counts = pool.counts;
    lock_give(&pool.lock);
}

void pool_trim(void) {
    lock_take(&pool.lock);
    for (int class = 0; class < CLASSES; class++)
        while (pool.depth[class]) system_free(&pool.waiting[class][--pool.depth[class]]);
    pool.counts.retained_bytes = 0;
    pool.counts.retained_buffers = 0;
    lock_give(&pool.lock);
    allocator_trim();  // freed buffers below MAPPED_FROM stay with the allocator until it is trimmed
}
