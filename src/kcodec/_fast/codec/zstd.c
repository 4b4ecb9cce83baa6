// SPDX-License-Identifier: Apache-2.0
#include "zstd.h"

#include "platform.h"

enum {
    MAGIC = 0xfd2fb528,
    SKIPPABLE_MAGIC = 0x184d2a50,  // the first of sixteen consecutive values
    LARGEST_BLOCK = 128 << 10,
    ERROR_DESTINATION_TOO_SMALL = 70,
    ERROR_SOURCE_WRONG = 72,
};

static int cut(Fault *fault) { return fault_set(fault, FAULT_COMPRESSED_CUT, "zstd", 0, 0); }
static int bad(Fault *fault, const char *what) { return fault_detail(fault, FAULT_COMPRESSED_BAD, "zstd", what); }

// Reads the frame header after the magic: descriptor, [window], [dictionary id], [content size].
static int frame_header(Reader *reader, int64_t *content_size, int *checksum, Fault *fault) {
    static const int dictionary_bytes[4] = {0, 1, 2, 4};
    if (reader_left(reader) < 1) return cut(fault);
    uint8_t descriptor = *reader->pos++;
    int size_flag = descriptor >> 6, single_segment = descriptor >> 5 & 1;
    int size_bytes = size_flag ? 1 << size_flag : single_segment;
    int skip = (single_segment ? 0 : 1) + dictionary_bytes[descriptor & 3];
    *checksum = descriptor >> 2 & 1;
    if (descriptor & 8) return bad(fault, "a reserved bit of the frame header is set");
    if (reader_left(reader) < skip + size_bytes) return cut(fault);
    const uint8_t *p = reader->pos + skip;
    uint64_t size = 0;
    for (int byte = 0; byte < size_bytes; byte++) size |= (uint64_t)p[byte] << (8 * byte);
    if (size_bytes == 2) size += 256;
    *content_size = size_bytes == 0 ? -1 : size > INT64_MAX ? INT64_MAX : (int64_t)size;
    reader->pos += skip + size_bytes;
    return 0;
}

// Walks the blocks of one frame. *most becomes their maximum decompressed size.
static int frame_blocks(Reader *reader, int64_t *most, Fault *fault) {
    *most = 0;
    for (;;) {
        if (reader_left(reader) < 3) return cut(fault);
        uint32_t word = reader->pos[0] | (uint32_t)reader->pos[1] << 8 | (uint32_t)reader->pos[2] << 16;
        int64_t size = word >> 3, type = word >> 1 & 3;
        reader->pos += 3;
        if (type == 3) return bad(fault, "block type is reserved");
        if (size > LARGEST_BLOCK) return bad(fault, "a block is larger than 128 KiB");
        int64_t stored = type == 1 ? 1 : size;
        if (reader_left(reader) < stored) return cut(fault);
        reader->pos += stored;
        *most += type == 2 ? LARGEST_BLOCK : size;
        if (word & 1) return 0;
    }
}

int zstd_bound(const uint8_t *data, int64_t size, ZstdBound *bound, Fault *fault) {
    Reader reader = {data, data + size};
    *bound = (ZstdBound){0, 0, 0};
    if (size == 0) return cut(fault);
    while (reader_left(&reader)) {
        if (reader_left(&reader) < 4) return cut(fault);
        uint32_t magic = load_le32(reader.pos);
        reader.pos += 4;
        if ((magic & ~15u) == SKIPPABLE_MAGIC) {
            if (reader_left(&reader) < 4) return cut(fault);
            int64_t skip = load_le32(reader.pos);
            reader.pos += 4;
            if (skip > reader_left(&reader)) return cut(fault);
            reader.pos += skip;
            continue;
        }
        if (magic != (uint32_t)MAGIC) return bad(fault, "no zstd frame begins here");
        int64_t content_size, most;
        int checksum;
        if (frame_header(&reader, &content_size, &checksum, fault)) return -1;
        if (content_size > 0)
            bound->claimed = content_size > INT64_MAX - bound->claimed ? INT64_MAX : bound->claimed + content_size;
        if (frame_blocks(&reader, &most, fault)) return -1;
        if (reader_left(&reader) < 4 * checksum) return cut(fault);
        reader.pos += 4 * checksum;
        if (content_size > most) return bad(fault, "content size is larger than the blocks can hold");
        bound->bound += content_size < 0 ? most : content_size;
        bound->frames++;
    }
    return 0;
}

typedef struct {
    void *library;
    void *(*create)(void);
    size_t (*destroy)(void *);
    size_t (*decompress)(void *, void *, size_t, const void *, size_t);
    unsigned (*is_error)(size_t);
    int (*error_code)(size_t);
    unsigned (*version)(void);  // set last: if it is not NULL, all other functions were found
} Library;

static Library libraries[ZSTD_LIBRARIES];

static unsigned load_symbols(Library *from) {
#define LOAD(field, name) (*(void **)&from->field = library_symbol(from->library, name))
    if (!LOAD(create, "ZSTD_createDCtx") || !LOAD(destroy, "ZSTD_freeDCtx") || !LOAD(decompress, "ZSTD_decompressDCtx") ||
        !LOAD(is_error, "ZSTD_isError") || !LOAD(error_code, "ZSTD_getErrorCode"))
        return 0;
    return LOAD(version, "ZSTD_versionNumber") ? from->version() : 0;
#undef LOAD
}

// Returns whether the process exports another libzstd globally, as a program that is linked with one does. Functions of
// the package's library would then call functions of that other libzstd, which expects objects of another layout.
static int is_shadowed(const Library *from) {
    return library_is_shadowed(from->library, "ZSTD_decompressDCtx") ||
           library_is_shadowed(from->library, "ZSTD_versionNumber");
}

unsigned zstd_library_load(ZstdLibrary which, const char *path) {
    Library *from = &libraries[which];
    if (from->version) return from->version();
    if (!from->library) from->library = which == ZSTD_OF_SYSTEM ? library_open_zstd() : path ? library_open(path) : NULL;
    return from->library && !(which == ZSTD_OF_PACKAGE && is_shadowed(from)) ? load_symbols(from) : 0;
}

void *zstd_context(ZstdLibrary which) { return libraries[which].create(); }
void zstd_context_free(ZstdLibrary which, void *context) { libraries[which].destroy(context); }

int64_t zstd_decompress(ZstdLibrary which, void *context, uint8_t *out, int64_t capacity, const uint8_t *data,
                        int64_t size, int64_t limit, Fault *fault) {
    const Library *by = &libraries[which];
    size_t made = by->decompress(context, out, (size_t)capacity, data, (size_t)size);
    if (!by->is_error(made)) return (int64_t)made;
    int code = by->error_code(made);
    if (code == ERROR_DESTINATION_TOO_SMALL && capacity >= limit)
        return fault_set(fault, FAULT_DECOMPRESSED_LIMIT, "zstd", limit + 1, limit);
    if (code == ERROR_SOURCE_WRONG) return cut(fault);
    return bad(fault, "stream is corrupt");
}
