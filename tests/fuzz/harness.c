// SPDX-License-Identifier: Apache-2.0
#include "harness.h"

#include "checks.h"
#include "crc32.h"
#include "crc32c.h"
#include "visibility.h"

enum { MOST_CONTEXTS = 8 };  // threads at one time, with room: each context keeps a buffer

void harness_initialise(void) {
    static int done;
    if (done) return;
    done = 1;
    REQUIRE(crc32c_choose(NULL) == 0);
    crc32_initialise();
    pool_initialise();
    decompressor_initialise();
    visibility_initialise();
    decompressor_use_zstd(ZSTD_BY_SYSTEM, 0, NULL);
}

static void forget(Decompressor *self) {
    free(self->python);
    self->python = NULL;
}

int harness_package(Decompressor *self, int codec, const uint8_t *data, int64_t size, int64_t bound, int frames,
                    int64_t limit, const uint8_t **out, int64_t *length, Fault *fault) {
    (void)bound;
    (void)frames;
    forget(self);
    if (codec != COMPRESSION_GZIP || size < 1) return fault_detail(fault, FAULT_COMPRESSED_BAD, "package", "none here");
    if (size - 1 > limit) return fault_set(fault, FAULT_DECOMPRESSED_LIMIT, "package", size - 1, limit);
    if (data[0] && data[0] < size) return fault_set(fault, FAULT_COMPRESSED_CUT, "package", 0, 0);
    self->forget = forget;
    self->lent = *length = size - 1;
    self->python = malloc(size > 1 ? (size_t)size - 1 : 1);  // exactly: a sanitizer sees what reads past it
    REQUIRE(self->python);
    memcpy(self->python, data + 1, (size_t)size - 1);
    *out = self->python;
    return 0;
}

void harness_check_pool(void) {
    PoolCounts counts;
    pool_counts(&counts);
    REQUIRE(counts.outstanding_buffers >= 0 && counts.outstanding_buffers <= MOST_CONTEXTS);
}
