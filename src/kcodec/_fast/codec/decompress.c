// SPDX-License-Identifier: Apache-2.0
#include "decompress.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "inflate.h"
#include "lz4.h"
#include "platform.h"
#include "snappy.h"
#include "zstd.h"

static struct {
    Lock lock;
    Decompressor *waiting;
    atomic_int zstd_way;  // read without the GIL and without the lock
} contexts = {.lock = LOCK_INITIAL};

static void before_fork(void) { lock_take(&contexts.lock); }
static void after_fork(void) { lock_give(&contexts.lock); }

void decompressor_initialise(void) {
    static int done;
    if (done) return;
    done = 1;
    around_fork(before_fork, after_fork);
    inflate_initialise();
}

Decompressor *decompressor_acquire(PackageFunction package) {
    lock_take(&contexts.lock);
    Decompressor *self = contexts.waiting;
    if (self) {
        contexts.waiting = self->next;
    }
    lock_give(&contexts.lock);
    if (!self) self = calloc(1, sizeof *self);
    if (self) self->package = package;
    return self;
}

void decompressor_release(Decompressor *self) {
    if (!self) return;
    if (self->lent > SCRATCH_KEPT_BYTES && self->forget) self->forget(self);
    self->lent = 0;
    if (self->scratch.capacity > SCRATCH_KEPT_BYTES) buffer_release(&self->scratch, (size_t)self->scratch_used);
    self->scratch_used = 0;
    // A context is never freed, because its Python objects cannot be released here. The number of contexts is at most
    // the number of threads that decompressed at the same time.
    lock_take(&contexts.lock);
    self->next = contexts.waiting;
    contexts.waiting = self;
    lock_give(&contexts.lock);
}

ZstdWay decompressor_use_zstd(ZstdWay way, unsigned least_version, const char *path) {
    ZstdLibrary library = way == ZSTD_BY_SYSTEM ? ZSTD_OF_SYSTEM : ZSTD_OF_PACKAGE;
    int is_found = way == ZSTD_BY_PACKAGE || zstd_library_load(library, path) >= (least_version ? least_version : 1);
    if (!is_found) way = ZSTD_BY_PACKAGE;
    atomic_store(&contexts.zstd_way, (int)way);
    return way;
}

ZstdWay decompressor_zstd_way(void) { return (ZstdWay)atomic_load(&contexts.zstd_way); }

int decompressor_needs_gil(int codec, int64_t size) {
    if (codec == COMPRESSION_GZIP) return size > INFLATE_MOST_INPUT;
    if (codec != COMPRESSION_ZSTD) return 0;
    ZstdWay way = decompressor_zstd_way();
    return way == ZSTD_BY_PACKAGE || (way == ZSTD_BY_LIBRARY && size > ZSTD_LIBRARY_MOST_INPUT);
}

typedef struct {
    Decompressor *self;
    const ByteSpan *stored;
    int64_t limit;
    Buffer *out;
    int64_t at;
} Call;

static int by_snappy(Call *call, ByteSpan *out, Fault *fault) {
    const ByteSpan *stored = call->stored;
    return snappy_decompress(stored->data, stored->length, call->out, call->at, call->limit, &out->length, fault);
}

static int by_lz4(Call *call, int of_magic_0, ByteSpan *out, Fault *fault) {
    return lz4_decompress(call->stored, of_magic_0, call->out, call->at, call->limit, &out->length, fault);
}

static int by_zstd_library(Call *call, ZstdLibrary library, int64_t bound, ByteSpan *out, Fault *fault) {
    void **context = &call->self->zstd[library];
    int64_t capacity = bound < call->limit ? bound : call->limit;
    if (!*context && !(*context = zstd_context(library))) return fault_set(fault, FAULT_NO_MEMORY, "zstd", 0, 0);
    if (buffer_grow(call->out, (size_t)(call->at + capacity) + 1, (size_t)call->at))
        return fault_set(fault, FAULT_NO_MEMORY, "zstd", 0, 0);
    out->length = zstd_decompress(library, *context, call->out->data + call->at, capacity, call->stored->data,
                                  call->stored->length, call->limit, fault);
    return out->length < 0 ? -1 : 0;
}

// Points out->data at the bytes that the package returned, or copies them into the arena if there is one.
static int by_package(Call *call, int codec, int64_t bound, int frames, Buffer *arena, ByteSpan *out, Fault *fault) {
    Decompressor *self = call->self;
    const uint8_t *lent;
    if (self->package(self, codec, call->stored->data, call->stored->length, bound, frames, call->limit, &lent,
                      &out->length, fault))
        return -1;
    if (!arena) {
        out->data = lent;
        out->readable_end = lent + out->length;
        return 0;
    }
    if (buffer_grow(arena, (size_t)(call->at + out->length), (size_t)call->at))
        return fault_set(fault, FAULT_NO_MEMORY, "columns", 0, 0);
    memcpy(arena->data + call->at, lent, (size_t)out->length);
    if (self->lent > SCRATCH_KEPT_BYTES && self->forget) {  // releases large bytes at once, now that they are copied
        self->forget(self);
        self->lent = 0;
    }
    return 0;
}

static int by_gzip(Call *call, Buffer *arena, ByteSpan *out, Fault *fault) {
    Decompressor *self = call->self;
    const ByteSpan *stored = call->stored;
    if (stored->length <= INFLATE_MOST_INPUT && (self->inflater || (self->inflater = inflate_new())) &&
        !inflate_small(self->inflater, stored->data, stored->length, call->out, call->at, call->limit, &out->length))
        return 0;
    return by_package(call, COMPRESSION_GZIP, -1, 1, arena, out, fault);
}

static int by_zstd(Call *call, Buffer *arena, ByteSpan *out, Fault *fault) {
    ZstdBound bound;
    int corrupt = zstd_bound(call->stored->data, call->stored->length, &bound, fault);
    if (bound.claimed > call->limit)
        return fault_set(fault, FAULT_DECOMPRESSED_LIMIT, "zstd", bound.claimed, call->limit);
    if (corrupt) return -1;
    ZstdWay way = decompressor_zstd_way();
    if (way == ZSTD_BY_SYSTEM) return by_zstd_library(call, ZSTD_OF_SYSTEM, bound.bound, out, fault);
    if (way == ZSTD_BY_LIBRARY && call->stored->length <= ZSTD_LIBRARY_MOST_INPUT)
        return by_zstd_library(call, ZSTD_OF_PACKAGE, bound.bound, out, fault);
    return by_package(call, COMPRESSION_ZSTD, bound.bound, bound.frames, arena, out, fault);
}

int decompress(Decompressor *self, int codec, const ByteSpan *stored, int64_t limit, Buffer *arena, int64_t at,
               ByteSpan *out, Fault *fault) {
    Call call = {self, stored, limit, arena ? arena : &self->scratch, arena ? at : 0};
    int result;
    out->data = NULL;
    switch (codec) {
        case COMPRESSION_NONE:
            *out = *stored;
            return 0;
        case COMPRESSION_GZIP: result = by_gzip(&call, arena, out, fault); break;
        case COMPRESSION_SNAPPY: result = by_snappy(&call, out, fault); break;
        case COMPRESSION_LZ4: result = by_lz4(&call, 0, out, fault); break;
        case LZ4_OF_MAGIC_0: result = by_lz4(&call, 1, out, fault); break;
        case COMPRESSION_ZSTD: result = by_zstd(&call, arena, out, fault); break;
        default: return fault_set(fault, FAULT_COMPRESSION_ID, "compression", codec, COMPRESSION_COUNT - 1);
    }
    if (result) {  // the number of bytes written is unknown, so the whole capacity counts as touched
        if (call.out->data) call.out->touched = call.out->capacity;
        self->scratch_used = (int64_t)self->scratch.capacity;
        return result;
    }
    if (!out->data) {
        out->data = call.out->data + call.at;
        out->readable_end = out->data + out->length + BUFFER_SLACK;
        if (!arena && out->length > self->scratch_used) self->scratch_used = out->length;
    }
    return 0;
}
