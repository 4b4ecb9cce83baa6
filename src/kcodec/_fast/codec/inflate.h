// SPDX-License-Identifier: Apache-2.0
// Small gzip streams (RFC 1951, RFC 1952): what a batch of a few records holds. The isal package is faster on long ones,
// but to call it takes as long as to decode a small one, and it takes the GIL. This reader decides about good streams
// alone: one member that ends where the data ends, with the right CRC and size. Whatever is unusual or wrong it leaves to
// the package, which names faults.
#ifndef KCODEC_INFLATE_H
#define KCODEC_INFLATE_H

#include "bounds.h"
#include "pool.h"

enum { INFLATE_MOST_INPUT = 4 << 10 };

typedef struct Inflater Inflater;

void inflate_initialise(void);  // once, at start
Inflater *inflate_new(void);    // tables; used by one thread at a time. NULL: no memory
void inflate_free(Inflater *self);
// Bytes of the member header at data (RFC 1952), 0 where none is complete. Java regards the same as the end.
int64_t gzip_header_size(const uint8_t *data, int64_t size);
// Decompresses into `out`, from byte `at` on; 0 and the length, or -1: not decided.
int inflate_small(Inflater *self, const uint8_t *data, int64_t size, Buffer *out, int64_t at, int64_t limit,
                  int64_t *length);

#endif
