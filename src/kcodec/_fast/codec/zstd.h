// SPDX-License-Identifier: Apache-2.0
// Sizes in the headers of zstd frames, which are checked before decompression, and libzstd loaded at run time.
#ifndef KCODEC_ZSTD_H
#define KCODEC_ZSTD_H

#include "bounds.h"

typedef struct {
    int64_t bound;   // maximum decompressed size of all frames together
    int frames;      // number of frames that hold data
    int64_t claimed; // sum of the declared content sizes, including that of a frame that turns out to be corrupt
} ZstdBound;

// Walks the block headers of all frames (RFC 8878) without decompressing anything, which takes a few nanoseconds for
// each block. A declared content size that is larger than the blocks can hold is a fault.
int zstd_bound(const uint8_t *data, int64_t size, ZstdBound *bound, Fault *fault);

// Two libraries may be available: the system's libzstd, and the one that the Python package zstandard contains for its
// cffi backend. A context belongs to the library that created it.
typedef enum { ZSTD_OF_SYSTEM, ZSTD_OF_PACKAGE, ZSTD_LIBRARIES } ZstdLibrary;

// Loads a library at run time and returns its version number (10506 for 1.5.6), or 0 if it is not available. Once it is
// loaded, the functions below may be called, also without the GIL. `path`: file of the package's library.
unsigned zstd_library_load(ZstdLibrary which, const char *path);
void *zstd_context(ZstdLibrary which);  // used by one thread at a time; NULL if there is no memory
void zstd_context_free(ZstdLibrary which, void *context);
// Returns the number of decompressed bytes, or -1 with the fault. `capacity` is the smaller of the bound and the limit.
int64_t zstd_decompress(ZstdLibrary which, void *context, uint8_t *out, int64_t capacity, const uint8_t *data,
                        int64_t size, int64_t limit, Fault *fault);

#endif
