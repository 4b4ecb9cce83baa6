// SPDX-License-Identifier: Apache-2.0
// LZ4 frames, as Kafka's clients write them, all flags of the format but dictionaries.
#ifndef KCODEC_LZ4_H
#define KCODEC_LZ4_H

#include "bounds.h"
#include "pool.h"

// Decompresses the first frame into `out` from byte `at` on, growing it; *length is how many bytes came. No more than
// `limit`. Block and content checksums are verified, and that of the header but for magic 0, whose writers took it over the
// frame's magic, too (KAFKA-3160). What follows the end mark is ignored, as Java's reader does.
int lz4_decompress(const uint8_t *data, int64_t size, int of_magic_0, Buffer *out, int64_t at, int64_t limit,
                   int64_t *length, Fault *fault);

uint32_t xxh32(const uint8_t *data, int64_t size);  // seed 0

#endif
