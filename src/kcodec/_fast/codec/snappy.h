// SPDX-License-Identifier: Apache-2.0
// Snappy in the formats of Kafka's clients: the xerial stream of blocks, or one raw block (librdkafka, franz-go).
#ifndef KCODEC_SNAPPY_H
#define KCODEC_SNAPPY_H

#include "bounds.h"
#include "pool.h"

// Decompresses into `out` from byte `at` on, and grows it as needed. *length becomes the number of bytes, at most
// `limit`.
int snappy_decompress(const uint8_t *data, int64_t size, Buffer *out, int64_t at, int64_t limit, int64_t *length,
                      Fault *fault);


// Compresses to a xerial stream of blocks of 32 KiB, as Java's SnappyOutputStream writes it, into `out` after its first
// `at` bytes. Returns -1 if there is no memory.
int snappy_compress(const uint8_t *data, int64_t size, Buffer *out, int64_t at, int64_t *length);

#endif
