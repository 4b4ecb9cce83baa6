// SPDX-License-Identifier: Apache-2.0
// Snappy, lz4 and DEFLATE byte by byte, from their format descriptions: slow, and nothing is read or written ahead of a check.
#ifndef KCODEC_FUZZ_SLOW_CODECS_H
#define KCODEC_FUZZ_SLOW_CODECS_H

#include <stdint.h>

// The number of bytes made in out[0..room), or -1: the stream is damaged, or makes more than `room`.
int64_t slow_snappy(const uint8_t *data, int64_t size, uint8_t *out, int64_t room);
int64_t slow_lz4(const uint8_t *data, int64_t size, uint8_t *out, int64_t room);
// The blocks inside a gzip member; *used: the bytes they take.
int64_t slow_inflate(const uint8_t *data, int64_t size, uint8_t *out, int64_t room, int64_t *used);

#endif
