// SPDX-License-Identifier: Apache-2.0
// Raw block: the uncompressed length as a varint, then elements. The low two bits of a tag byte:
//   0 literal, length - 1 in the upper six bits; if these are 60..63: in the next 1..4 bytes, little-endian
//   1 copy, length 4 + bits 2-4, offset 11 bits: bits 5-7 and the next byte
//   2 copy, length 1 + bits 2-7, offset in the next 2 bytes         3 the same, offset in the next 4 bytes
// Xerial stream: 82 'SNAPPY' 00, version i32, compatible i32, then blocks: length i32 (big-endian), raw block.
#include "snappy.h"

static const uint8_t xerial_magic[8] = {0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0};

enum { XERIAL_HEADER = 16, BEST_RATIO = 22 };  // a copy element of three bytes produces at most 64 bytes

static int cut(Fault *fault) { return fault_set(fault, FAULT_COMPRESSED_CUT, "snappy", 0, 0); }
static int bad(Fault *fault, const char *what) { return fault_detail(fault, FAULT_COMPRESSED_BAD, "snappy", what); }

static inline void copy16(uint8_t *to, const uint8_t *from) { memcpy(to, from, 16); }

// Copies a match, whose source may overlap its target. BUFFER_SLACK bytes after the end of the block can be written.
static inline void copy_match(uint8_t *to, int64_t offset, int64_t length) {
    const uint8_t *from = to - offset;
    if (likely(offset >= 16)) {
        copy16(to, from);
        for (int64_t at = 16; at < length; at += 16) copy16(to + at, from + at);
    } else if (offset >= 8) {
        for (int64_t at = 0; at < length; at += 8) memcpy(to + at, from + at, 8);
    } else {
        for (int64_t at = 0; at < length; at++) to[at] = from[at];
    }
}

static int raw_block_length(const uint8_t **data, const uint8_t *end, int64_t *length, Fault *fault) {
    uint64_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        if (*data >= end) return cut(fault);
        uint8_t byte = *(*data)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *length = (int64_t)value;
            return value > UINT32_MAX ? bad(fault, "block length exceeds 32 bits") : 0;
        }
    }
    return bad(fault, "block length is a varint of more than 5 bytes");
}

static int raw_block(const uint8_t *data, int64_t size, Buffer *out, int64_t at, int64_t limit, int64_t *length,
                     Fault *fault) {
    const uint8_t *in = data, *in_end = data + size;
    int64_t claimed;
    if (raw_block_length(&in, in_end, &claimed, fault)) return -1;
    if (claimed > limit) return fault_set(fault, FAULT_DECOMPRESSED_LIMIT, "snappy", claimed, limit);
    if (claimed > (in_end - in) * BEST_RATIO) return bad(fault, "block length is larger than the compressed bytes can hold");
    if (buffer_grow(out, (size_t)(at + claimed), (size_t)at)) return fault_set(fault, FAULT_NO_MEMORY, "snappy", 0, 0);
    uint8_t *begin = out->data + at, *to = begin, *to_end = begin + claimed;
    while (in < in_end) {
        uint32_t tag = *in++;
        int64_t bytes, offset;
        if ((tag & 3) == 0) {
            bytes = (tag >> 2) + 1;
            if (likely(bytes <= 16 && in_end - in >= 16 && to_end - to >= bytes)) {
                copy16(to, in);
                to += bytes;
                in += bytes;
                continue;
            }
            if (bytes > 60) {
                int64_t wide = bytes - 60;
                if (in_end - in < wide) return cut(fault);
                uint32_t more = 0;
                for (int64_t byte = 0; byte < wide; byte++) more |= (uint32_t)in[byte] << (8 * byte);
                bytes = (int64_t)more + 1;
                in += wide;
            }
            if (bytes > in_end - in) return cut(fault);
            if (bytes > to_end - to) return bad(fault, "block has more bytes than its length says");
            memcpy(to, in, (size_t)bytes);
            to += bytes;
            in += bytes;
            continue;
        }
        if ((tag & 3) == 1) {
            if (in >= in_end) return cut(fault);
            bytes = 4 + (tag >> 2 & 7);
            offset = (int64_t)(tag >> 5) << 8 | *in++;
        } else if ((tag & 3) == 2) {
            if (in_end - in < 2) return cut(fault);
            bytes = (tag >> 2) + 1;
            offset = load_le16(in);
            in += 2;
        } else {
            if (in_end - in < 4) return cut(fault);
            bytes = (tag >> 2) + 1;
            offset = load_le32(in);
            in += 4;
        }
        if (unlikely(offset == 0 || offset > to - begin)) return bad(fault, "copy refers to bytes before the block");
        if (unlikely(bytes > to_end - to)) return bad(fault, "block has more bytes than its length says");
        copy_match(to, offset, bytes);
        to += bytes;
    }
    if (to != to_end) return bad(fault, "block has fewer bytes than its length says");
    *length = claimed;
    return 0;
}

int snappy_decompress(const uint8_t *data, int64_t size, Buffer *out, int64_t at, int64_t limit, int64_t *length,
                      Fault *fault) {
    if (size < 8 || memcmp(data, xerial_magic, 8) != 0) return raw_block(data, size, out, at, limit, length, fault);
    int64_t place = 0, total = 0;
    while (place < size) {
        if (size - place >= 8 && memcmp(data + place, xerial_magic, 8) == 0) {  // streams may be concatenated
            if (size - place < XERIAL_HEADER) return cut(fault);
            if ((int32_t)load_be32(data + place + 8) < 1) return bad(fault, "xerial version is below 1");
            place += XERIAL_HEADER;
            continue;
        }
        if (size - place < 4) return cut(fault);
        int32_t block = (int32_t)load_be32(data + place);
        place += 4;
        if (block <= 0) return bad(fault, "xerial block length is not positive");
        if (block > size - place) return cut(fault);
        int64_t bytes;
        if (raw_block(data + place, block, out, at + total, limit - total, &bytes, fault)) {
            if (fault->code == FAULT_DECOMPRESSED_LIMIT) {
                fault->found += total;
                fault->expected = limit;
            }
            return -1;
        }
        total += bytes;
        place += block;
    }
    *length = total;
    return 0;
}

// Compression.

enum {
    XERIAL_BLOCK = 32 << 10,
    HASH_BITS = 13,
    LEAST_MATCH = 4,
    TAIL = 16,               // no match begins in the last bytes of a block, so that reads ahead stay inside of it
    SKIP_SHIFT = 5,          // after 2^5 misses every second position is tried, after 2^5 more every third, and so on
};

static inline uint32_t hash_of(uint32_t four) { return four * 0x9e3779b1u >> (32 - HASH_BITS); }

static uint8_t *put_literal(uint8_t *to, const uint8_t *from, int64_t size) {
    uint32_t most = (uint32_t)(size - 1);
    if (most < 60) {
        *to++ = (uint8_t)(most << 2);
    } else if (most < 256) {
        *to++ = 60 << 2;
        *to++ = (uint8_t)most;
    } else {
        *to++ = 61 << 2;
        *to++ = (uint8_t)most;
        *to++ = (uint8_t)(most >> 8);
    }
    memcpy(to, from, (size_t)size);
    return to + size;
}

static uint8_t *put_copy_of(uint8_t *to, uint32_t offset, uint32_t size) {
    if (size < 12 && offset < 2048) {
        *to++ = (uint8_t)(offset >> 8 << 5 | (size - 4) << 2 | 1);
        *to++ = (uint8_t)offset;
    } else {
        *to++ = (uint8_t)((size - 1) << 2 | 2);
        *to++ = (uint8_t)offset;
        *to++ = (uint8_t)(offset >> 8);
    }
    return to;
}

static uint8_t *put_copy(uint8_t *to, uint32_t offset, uint32_t size) {
    for (; size >= 68; size -= 64) to = put_copy_of(to, offset, 64);
    if (size > 64) {  // the rest must be at least as long as the shortest copy
        to = put_copy_of(to, offset, 60);
        size -= 60;
    }
    return put_copy_of(to, offset, size);
}

static uint32_t match_length(const uint8_t *a, const uint8_t *b, const uint8_t *b_end) {
    const uint8_t *begin = b;
    while (b_end - b >= 8) {
        uint64_t difference = load_le64(a) ^ load_le64(b);
        if (difference) return (uint32_t)(b - begin) + (uint32_t)(__builtin_ctzll(difference) >> 3);
        a += 8;
        b += 8;
    }
    while (b < b_end && *a == *b) a++, b++;
    return (uint32_t)(b - begin);
}

// Compresses at most XERIAL_BLOCK bytes to one raw block. Returns the position after it.
static uint8_t *compress_block(const uint8_t *data, uint32_t size, uint8_t *to, uint16_t *table) {
    const uint8_t *in = data, *end = data + size, *literal = data;
    for (uint32_t claim = size;; claim >>= 7) {
        *to++ = (uint8_t)(claim < 0x80 ? claim : claim | 0x80);
        if (claim < 0x80) break;
    }
    memset(table, 0, sizeof(uint16_t) << HASH_BITS);  // 0 refers to the first byte of the block, a valid candidate
    const uint8_t *last = size > TAIL ? end - TAIL : data;
    uint32_t misses = 1u << SKIP_SHIFT;
    for (in++; in < last;) {
        uint32_t four = load_le32(in), hash = hash_of(four);
        const uint8_t *candidate = data + table[hash];
        table[hash] = (uint16_t)(in - data);
        if (load_le32(candidate) != four) {
            in += misses++ >> SKIP_SHIFT;
            continue;
        }
        while (in > literal && candidate > data && in[-1] == candidate[-1]) in--, candidate--;
        if (in > literal) to = put_literal(to, literal, in - literal);
        uint32_t length = LEAST_MATCH + match_length(candidate + LEAST_MATCH, in + LEAST_MATCH, end);
        to = put_copy(to, (uint32_t)(in - candidate), length);
        in += length;
        literal = in;
        misses = 1u << SKIP_SHIFT;
        if (in < last) table[hash_of(load_le32(in - 1))] = (uint16_t)(in - 1 - data);
    }
    return literal < end ? put_literal(to, literal, end - literal) : to;
}

int snappy_compress(const uint8_t *data, int64_t size, Buffer *out, int64_t at, int64_t *length) {
    uint16_t table[1 << HASH_BITS];
    int64_t blocks = (size + XERIAL_BLOCK - 1) / XERIAL_BLOCK;
    // A literal adds at most 3 bytes in a block of 32 KiB to its own, and a match is never longer than the bytes it
    // replaces.
    if (buffer_grow(out, (size_t)(at + XERIAL_HEADER + size + size / 6 + blocks * 32), (size_t)at)) return -1;
    uint8_t *begin = out->data + at, *to = begin;
    memcpy(to, xerial_magic, 8);
    store_be32(to + 8, 1);   // version, followed by the lowest compatible version
    store_be32(to + 12, 1);
    to += XERIAL_HEADER;
    for (int64_t place = 0; place < size; place += XERIAL_BLOCK) {
        uint32_t block = (uint32_t)(size - place < XERIAL_BLOCK ? size - place : XERIAL_BLOCK);
        uint8_t *end = compress_block(data + place, block, to + 4, table);
        store_be32(to, (uint32_t)(end - to - 4));
        to = end;
    }
    *length = to - begin;
    return 0;
}
