// SPDX-License-Identifier: Apache-2.0
// Decompression of small gzip streams (RFC 1951, RFC 1952), such as those of batches of a few records. The isal package
// is faster for long streams, but it needs the GIL, and calling it takes as long as decoding a small stream. This
// decoder supports only usual streams: one member that ends where the data ends, with the right CRC and size. All other
// streams, including corrupt ones, are left to the package, which reports faults.
#ifndef KCODEC_INFLATE_H
#define KCODEC_INFLATE_H

#include "bounds.h"
#include "pool.h"

enum { INFLATE_MOST_INPUT = 4 << 10 };

typedef struct Inflater Inflater;

void inflate_initialise(void);  // must be called once, at start
Inflater *inflate_new(void);    // decoding tables, used by one thread at a time; NULL if there is no memory
void inflate_free(Inflater *self);
// Returns the size of the member header at `data` (RFC 1952), or 0 if there is no complete one. After the first member,
// Java treats such bytes as the end of the stream.
int64_t gzip_header_size(const uint8_t *data, int64_t size);
// Decompresses into `out` from byte `at` on. Returns 0 and sets *length, or returns -1 if the stream is left to the
// package.
int inflate_small(Inflater *self, const uint8_t *data, int64_t size, Buffer *out, int64_t at, int64_t limit,
                  int64_t *length);

#endif
