// SPDX-License-Identifier: Apache-2.0
// LZ4 frames with all features of the format except dictionaries.
#ifndef KCODEC_LZ4_H
#define KCODEC_LZ4_H

#include "bounds.h"
#include "pool.h"

// Decompresses the first frame into `out` from byte `at` on, and grows it as needed. *length becomes the number of
// bytes, at most `limit`. Checksums of blocks, content and header are verified; that of the header not in magic 0,
// whose writers computed it over the frame's magic as well (KAFKA-3160). Bytes after the end mark are ignored, as by
// Java's reader.
int lz4_decompress(const ByteSpan *frames, int of_magic_0, Buffer *out, int64_t at, int64_t limit, int64_t *length,
                   Fault *fault);

uint32_t xxh32(const uint8_t *data, int64_t size);  // seed 0

#endif
