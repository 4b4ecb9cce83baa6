// SPDX-License-Identifier: Apache-2.0
// Snappy, as Kafka's clients write it: the xerial stream of blocks, or one raw block (librdkafka, franz-go).
#ifndef KCODEC_SNAPPY_H
#define KCODEC_SNAPPY_H

#include "bounds.h"
#include "pool.h"

// Decompresses into `out` from byte `at` on, growing it; *length is how many bytes came. No more than `limit`.
int snappy_decompress(const uint8_t *data, int64_t size, Buffer *out, int64_t at, int64_t limit, int64_t *length,
                      Fault *fault);


// A xerial stream of blocks of 32 KiB, as Java's SnappyOutputStream writes it, behind the first `at` bytes of `out`. -1: no
// memory.
int snappy_compress(const uint8_t *data, int64_t size, Buffer *out, int64_t at, int64_t *length);

#endif
