// SPDX-License-Identifier: Apache-2.0
// One table, codec id -> function. Snappy, lz4 and small gzip streams are ours. zstd and long gzip streams are the
// packages', called once a batch with the GIL taken only around that call, unless a library of zstd is called directly.
#ifndef KCODEC_DECOMPRESS_H
#define KCODEC_DECOMPRESS_H

#include "header.h"
#include "pool.h"
#include "zstd.h"

enum { SCRATCH_KEPT_BYTES = 8 << 20 };  // scratch above this is given back after the call that needed it

typedef struct Decompressor Decompressor;

// Decompresses by a Python package; called without the GIL. The bytes stay valid until the next call.
// `bound`: the most the stream can make if it is known, else -1. `frames`: zstd frames in it.
typedef int (*PackageFunction)(Decompressor *self, int codec, const uint8_t *data, int64_t size, int64_t bound,
                               int frames, int64_t limit, const uint8_t **out, int64_t *length, Fault *fault);

// A context; used by one thread at a time. Made by decompressor_acquire, kept and used again after _release.
struct Decompressor {
    Buffer scratch;
    int64_t scratch_used;
    void *zstd[ZSTD_LIBRARIES];  // a context of each library, NULL until needed
    struct Inflater *inflater;   // for small gzip streams, NULL until needed
    PackageFunction package;
    void (*forget)(Decompressor *self);  // lets go of bytes the package lent that are too large to be kept
    int64_t lent;           // how many the last call lent
    void *python;           // what the package function keeps between calls: contexts and the bytes it lent
    Decompressor *next;
};

typedef struct {
    const uint8_t *data;
    int64_t length;
    const uint8_t *readable_end;  // memory may be read up to here
} Decompressed;

enum { LZ4_OF_MAGIC_0 = COMPRESSION_COUNT };  // a codec id of ours: lz4 whose header checksum is not looked at

// Decompresses a batch's records. With an `arena` they go there, from byte `at` on; else into memory of the context,
// valid until its next call.
int decompress(Decompressor *self, int codec, const uint8_t *data, int64_t size, int64_t limit, Buffer *arena, int64_t at,
               Decompressed *out, Fault *fault);

Decompressor *decompressor_acquire(PackageFunction package);  // NULL: no memory
void decompressor_release(Decompressor *self);
void decompressor_initialise(void);

// How zstd is decompressed: by calls to the Python package, by the system's libzstd, or by the library of the package,
// called as C. The libraries have to be of version 1.5.6 at least, as older ones make other bytes than today's of some
// corrupt frames that carry no checksum, where today's and Java's refuse them.
typedef enum { ZSTD_BY_PACKAGE, ZSTD_BY_SYSTEM, ZSTD_BY_LIBRARY } ZstdWay;
enum {
    ZSTD_LEAST_VERSION = 10506,
    // Longer streams go to the package: its own copy of libzstd is a little faster, and what the call costs does not show.
    ZSTD_LIBRARY_MOST_INPUT = 16 << 10,
};
// Selects a way, and the package if the library is not there or too old; the way that is in use from now on. `path`: of
// the package's library, which is loaded once.
ZstdWay decompressor_use_zstd(ZstdWay way, unsigned least_version, const char *path);
ZstdWay decompressor_zstd_way(void);
// Whether a batch of this codec and size, as stored, needs the GIL while it is decompressed.
int decompressor_needs_gil(int codec, int64_t size);

#endif
