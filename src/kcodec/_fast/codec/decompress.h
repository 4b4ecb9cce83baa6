// SPDX-License-Identifier: Apache-2.0
// Decompression by codec id. Snappy, lz4 and small gzip streams are decompressed by this module. Long gzip streams are
// decompressed by a Python package, and zstd by a Python package or by a libzstd that is called directly. A package is
// called once for each batch, and the GIL is held only during that call.
#ifndef KCODEC_DECOMPRESS_H
#define KCODEC_DECOMPRESS_H

#include "header.h"
#include "pool.h"
#include "zstd.h"

enum { SCRATCH_KEPT_BYTES = 8 << 20 };  // larger scratch memory is released after the call that needed it

typedef struct Decompressor Decompressor;

// Decompresses by a Python package. It is called without the GIL. The bytes stay valid until the next call.
// `bound`: the maximum decompressed size if it is known, else -1. `frames`: the number of zstd frames in the data.
typedef int (*PackageFunction)(Decompressor *self, int codec, const uint8_t *data, int64_t size, int64_t bound,
                               int frames, int64_t limit, const uint8_t **out, int64_t *length, Fault *fault);

// A context, used by one thread at a time. decompressor_acquire returns one, and decompressor_release keeps it for
// reuse.
struct Decompressor {
    Buffer scratch;
    int64_t scratch_used;
    void *zstd[ZSTD_LIBRARIES];  // one context for each library, NULL until needed
    struct Inflater *inflater;   // for small gzip streams, NULL until needed
    PackageFunction package;
    void (*forget)(Decompressor *self);  // releases bytes of the package that are too large to be kept
    int64_t lent;           // largest number of bytes that the package returned since acquire or forget
    void *python;           // state of the package function between calls: its contexts and the bytes it returned
    Decompressor *next;
};

enum { LZ4_OF_MAGIC_0 = COMPRESSION_COUNT };  // an internal codec id: lz4 without verification of the header checksum

// Decompresses the records of a batch into `arena` from byte `at` on. Without an arena they go into memory of the
// context, which stays valid until its next call.
int decompress(Decompressor *self, int codec, const ByteSpan *stored, int64_t limit, Buffer *arena, int64_t at,
               ByteSpan *out, Fault *fault);

Decompressor *decompressor_acquire(PackageFunction package);  // NULL if there is no memory
void decompressor_release(Decompressor *self);
void decompressor_initialise(void);

// How zstd is decompressed: by the Python package, by the system's libzstd, or by the libzstd inside the package,
// called from C. A library must be at least version 1.5.6: older versions decompress some corrupt frames without a
// checksum to wrong bytes, where newer versions and Java report an error.
typedef enum { ZSTD_BY_PACKAGE, ZSTD_BY_SYSTEM, ZSTD_BY_LIBRARY } ZstdWay;
enum {
    ZSTD_LEAST_VERSION = 10506,
    // Longer streams are decompressed by the package: its own copy of libzstd is slightly faster, and for them the cost
    // of the call is negligible.
    ZSTD_LIBRARY_MOST_INPUT = 16 << 10,
};
// Selects how zstd is decompressed and returns the selection, which is the package if the library is missing or older
// than `least_version`. `path`: file of the package's library, which is loaded once.
ZstdWay decompressor_use_zstd(ZstdWay way, unsigned least_version, const char *path);
ZstdWay decompressor_zstd_way(void);
// Returns whether decompressing a batch of this codec and stored size needs the GIL.
int decompressor_needs_gil(int codec, int64_t size);

#endif
