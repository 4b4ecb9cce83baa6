// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

enum { LEAST_SHIFT = 12, CLASSES = 36, MAPPED_FROM = 1 << 20, PAGE = 4096, CLASSES_ABOVE = 4 };

static struct {
    pthread_mutex_t lock;
    Buffer waiting[CLASSES][POOL_DEPTH];
    int depth[CLASSES];
    PoolCounts counts;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void before_fork(void) { pthread_mutex_lock(&pool.lock); }
static void after_fork(void) { pthread_mutex_unlock(&pool.lock); }

void pool_initialise(void) {
    static int done;
    if (!done) pthread_atfork(before_fork, after_fork, after_fork);
    done = 1;
}

static int class_of(size_t capacity) {
    if (capacity <= (size_t)1 << LEAST_SHIFT) return 0;
    return 64 - __builtin_clzll(capacity - 1) - LEAST_SHIFT;
}

static size_t class_size(int class) { return (size_t)1 << (class + LEAST_SHIFT); }
static size_t mapped_size(size_t capacity) { return capacity + PAGE; }

static uint8_t *system_allocate(size_t capacity) {
    if (capacity >= MAPPED_FROM) {
        void *memory = mmap(NULL, mapped_size(capacity), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return memory == MAP_FAILED ? NULL : memory;
    }
    void *memory;
    return posix_memalign(&memory, 64, capacity + BUFFER_SLACK) ? NULL : memory;
}

static void system_free(const Buffer *buffer) {
    if (buffer->capacity >= MAPPED_FROM)
        munmap(buffer->data, mapped_size(buffer->capacity));
    else
        free(buffer->data);
}

int buffer_acquire(Buffer *buffer, size_t capacity) {
    int class = class_of(capacity);
    if (class >= CLASSES) return -1;
    int found = 0;
    pthread_mutex_lock(&pool.lock);
    // A buffer that has grown waits among larger ones: they do as well, capacity that is not touched costs nothing.
    int larger = class;
    while (larger < CLASSES - 1 && larger < class + CLASSES_ABOVE && !pool.depth[larger]) larger++;
    if (pool.depth[larger]) {
        *buffer = pool.waiting[larger][--pool.depth[larger]];
        pool.counts.retained_bytes -= (int64_t)buffer->touched;
        pool.counts.retained_buffers--;
        found = 1;
    }
    pool.counts.outstanding_buffers++;
    pthread_mutex_unlock(&pool.lock);
    if (found) return 0;
    buffer->capacity = class_size(class);
    buffer->touched = 0;
    buffer->data = system_allocate(buffer->capacity);
    if (buffer->data) return 0;
    buffer->capacity = 0;
    pthread_mutex_lock(&pool.lock);
    pool.counts.outstanding_buffers--;
    pthread_mutex_unlock(&pool.lock);
    return -1;
}

int buffer_grow(Buffer *buffer, size_t capacity, size_t keep) {
    if (buffer->data && capacity <= buffer->capacity) return 0;
    if (!buffer->data) return buffer_acquire(buffer, capacity);
    int class = class_of(capacity);
    if (class >= CLASSES) return -1;
    if (buffer->touched < keep) buffer->touched = keep;
    if (buffer->capacity >= MAPPED_FROM) {  // pages move, no byte is copied
        void *moved = mremap(buffer->data, mapped_size(buffer->capacity), mapped_size(class_size(class)), MREMAP_MAYMOVE);
        if (moved == MAP_FAILED) return -1;
        buffer->data = moved;
        buffer->capacity = class_size(class);
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
    pthread_mutex_lock(&pool.lock);
    pool.counts.outstanding_buffers--;
    if (pool.depth[class] < POOL_DEPTH && buffer->touched <= POOL_MAX_BUFFER_BYTES &&
        pool.counts.retained_bytes + (int64_t)buffer->touched <= POOL_MAX_RETAINED_BYTES) {
        pool.waiting[class][pool.depth[class]++] = *buffer;
        pool.counts.retained_bytes += (int64_t)buffer->touched;
        pool.counts.retained_buffers++;
        kept = 1;
    }
    pthread_mutex_unlock(&pool.lock);
    if (!kept) system_free(buffer);
    memset(buffer, 0, sizeof *buffer);
}

void pool_counts(PoolCounts *counts) {
    pthread_mutex_lock(&pool.lock);
    *counts = pool.counts;
    pthread_mutex_unlock(&pool.lock);
}

void pool_trim(void) {
    pthread_mutex_lock(&pool.lock);
    for (int class = 0; class < CLASSES; class++)
        while (pool.depth[class]) system_free(&pool.waiting[class][--pool.depth[class]]);
    pool.counts.retained_bytes = 0;
    pool.counts.retained_buffers = 0;
    pthread_mutex_unlock(&pool.lock);
#ifdef __GLIBC__
    malloc_trim(0);  // what was freed below MAPPED_FROM is the allocator's until it is told
#endif
}
