/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C floor of encoding: from columns in Arrow's layout to uncompressed batches of a given number of records, in
 * output memory that is reused. It makes one pass over the records, writes shortest varints, and computes the CRC-32C
 * of each batch as soon as it is written. There are no options, no checks of values and no limits. It is built together
 * with floor.c, whose CRC it uses.
 */
#include <stdint.h>
#include <string.h>

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define INLINE static inline __attribute__((always_inline))

enum { HEADER_SIZE = 61, LOG_OVERHEAD = 12, SHORT_COPY = 256 };

uint32_t floor_crc32c(const uint8_t *data, size_t size);

/* Columns of `records` rows. *_valid is NULL if nothing is null. 64 bytes after each buffer must be readable. */
struct input {
    int64_t records;
    const int64_t *timestamp;
    const int32_t *key_ends, *value_ends;
    const uint8_t *key, *value, *key_valid, *value_valid;
    const int32_t *lists, *name_ends, *content_ends; /* lists: NULL if there are no headers */
    const uint8_t *name, *content, *content_valid;
};

INLINE void put16(uint8_t *p, uint16_t v) { v = __builtin_bswap16(v), memcpy(p, &v, 2); }
INLINE void put32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v), memcpy(p, &v, 4); }
INLINE void put64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v), memcpy(p, &v, 8); }

INLINE uint8_t *put_varint(uint8_t *p, uint64_t raw) {
    if (LIKELY(raw < 0x80)) {
        *p = (uint8_t)raw;
        return p + 1;
    }
    if (LIKELY(raw < 0x4000)) {
        p[0] = (uint8_t)(raw | 0x80), p[1] = (uint8_t)(raw >> 7);
        return p + 2;
    }
    for (; raw >= 0x80; raw >>= 7) *p++ = (uint8_t)(raw | 0x80);
    *p = (uint8_t)raw;
    return p + 1;
}

INLINE int width(uint64_t raw) { return raw < 0x80 ? 1 : raw < 0x4000 ? 2 : raw < 0x200000 ? 3 : raw < 0x10000000 ? 4 : 5; }
INLINE uint64_t zigzag(int64_t v) { return (uint64_t)v << 1 ^ (uint64_t)(v >> 63); }
INLINE int is_null(const uint8_t *valid, int64_t i) { return valid && !(valid[i >> 3] >> (i & 7) & 1); }

INLINE uint8_t *put_field(uint8_t *restrict to, const uint8_t *restrict from, int64_t n) {
    if (n <= 16) {
        memcpy(to, from, 16);
    } else if (LIKELY(n <= SHORT_COPY)) {
        int64_t i = 0;
        do memcpy(to + i, from + i, 16), memcpy(to + i + 16, from + i + 16, 16); while ((i += 32) < n);
    } else memcpy(to, from, (size_t)n);
    return to + n;
}

INLINE uint8_t *put_nullable(uint8_t *p, const uint8_t *data, const int32_t *ends, const uint8_t *valid, int64_t i) {
    if (is_null(valid, i)) {
        *p = 1;
        return p + 1;
    }
    int64_t n = ends[i + 1] - ends[i];
    return put_field(put_varint(p, (uint64_t)n << 1), data + ends[i], n);
}

/* The varint length of a record precedes its body. The body is written after as many bytes as the previous record's
 * length took, and moved if that guess was wrong. */
INLINE uint8_t *put_record(const struct input *in, int64_t row, int64_t first, uint8_t *p, int *guess) {
    uint8_t *body = p + *guess, *q = body;
    *q++ = 0;
    q = put_varint(q, zigzag(in->timestamp[row] - in->timestamp[first]));
    q = put_varint(q, (uint64_t)(row - first) << 1);
    q = put_nullable(q, in->key, in->key_ends, in->key_valid, row);
    q = put_nullable(q, in->value, in->value_ends, in->value_valid, row);
    int64_t header = in->lists ? in->lists[row] : 0, last = in->lists ? in->lists[row + 1] : 0;
    q = put_varint(q, (uint64_t)(last - header) << 1);
    for (; header < last; header++) {
        int64_t n = in->name_ends[header + 1] - in->name_ends[header];
        q = put_field(put_varint(q, (uint64_t)n << 1), in->name + in->name_ends[header], n);
        q = put_nullable(q, in->content, in->content_ends, in->content_valid, header);
    }
    uint64_t size = (uint64_t)(q - body) << 1;
    int wide = width(size);
    if (wide != *guess) {
        memmove(p + wide, body, (size_t)(q - body));
        q += wide - *guess, *guess = wide;
    }
    put_varint(p, size);
    return q;
}

/* Encodes all rows into `out`, which must be large enough. Returns the number of bytes. */
int64_t floor_encode(const struct input *given, int64_t per_batch, uint8_t *out) {
    const struct input in = *given; /* a copy, which stores of bytes through pointers cannot alias */
    uint8_t *p = out;
    int guess = 1;
    for (int64_t first = 0; first < in.records; first += per_batch) {
        int64_t last = first + per_batch < in.records ? first + per_batch : in.records, most = -1;
        uint8_t *batch = p;
        p += HEADER_SIZE;
        for (int64_t row = first; row < last; row++) {
            p = put_record(&in, row, first, p, &guess);
            if (in.timestamp[row] > most) most = in.timestamp[row];
        }
        put64(batch, (uint64_t)first), put32(batch + 8, (uint32_t)(p - batch) - LOG_OVERHEAD), put32(batch + 12, ~0u);
        batch[16] = 2, put16(batch + 21, 0), put32(batch + 23, (uint32_t)(last - first - 1));
        put64(batch + 27, (uint64_t)in.timestamp[first]), put64(batch + 35, (uint64_t)most);
        memset(batch + 43, 0xff, 14), put32(batch + 57, (uint32_t)(last - first));
        put32(batch + 17, floor_crc32c(batch + 21, (size_t)(p - batch) - 21));
    }
    return p - out;
}
