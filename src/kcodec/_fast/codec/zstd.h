// SPDX-License-Identifier: Apache-2.0
// The sizes in the headers of zstd frames, checked before decompression, and the system's libzstd if there is one.
#ifndef KCODEC_ZSTD_H
#define KCODEC_ZSTD_H

#include "bounds.h"

typedef struct {
    int64_t bound;   // bytes that all frames together can make at most
    int frames;      // frames that hold data
    int64_t claimed; // the content sizes they declare, also of a frame that proves corrupt
} ZstdBound;

// Walks the block headers of all frames (RFC 8878): nothing is decompressed, a few nanoseconds a block. A declared size
// above what the blocks can make is not believed: `bound` is the lesser of the two.
int zstd_bound(const uint8_t *data, int64_t size, ZstdBound *bound, Fault *fault);

// Two libraries may be there: the system's libzstd, and the one that the Python package zstandard brings along for its
// other backend. A context belongs to the library that made it.
typedef enum { ZSTD_OF_SYSTEM, ZSTD_OF_PACKAGE, ZSTD_LIBRARIES } ZstdLibrary;

// Finds a library at run time: its version number (10506 for 1.5.6), 0 when it is not there. Once it is found its other
// functions may be called, without the GIL. `path`: the file of the package's.
unsigned zstd_library_load(ZstdLibrary which, const char *path);
void *zstd_context(ZstdLibrary which);  // one a thread; NULL: no memory
void zstd_context_free(ZstdLibrary which, void *context);
// The number of bytes, or -1 with the fault. `capacity` is the lesser of the bound and the limit.
int64_t zstd_decompress(ZstdLibrary which, void *context, uint8_t *out, int64_t capacity, const uint8_t *data,
                        int64_t size, int64_t limit, Fault *fault);

#endif
