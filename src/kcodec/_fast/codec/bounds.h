// SPDX-License-Identifier: Apache-2.0
// Reading untrusted bytes: big-endian loads, and the Reader, which checks every read against its end. The fast loop of
// records.c reads ahead of its checks, but only inside memory that it has proved to be readable. It reads any unusual
// record again through this Reader, which decides whether the record is valid and reports the fault.
#ifndef KCODEC_BOUNDS_H
#define KCODEC_BOUNDS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "fault.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

static inline uint16_t load_be16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
static inline uint32_t load_be32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t load_be64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
static inline uint16_t load_le16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static inline uint32_t load_le32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint64_t load_le64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }

static inline void store_be16(uint8_t *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }
static inline void store_be32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
static inline void store_be64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "kcodec is written for little-endian machines (x86-64, ARM64)"
#endif

static inline int32_t zigzag32(uint32_t v) { return (int32_t)((v >> 1) ^ (0u - (v & 1))); }
static inline int64_t zigzag64(uint64_t v) { return (int64_t)((v >> 1) ^ (0ull - (v & 1))); }

// `length` bytes at `data`. Memory may be read up to readable_end; the bytes after the first `length` have no meaning.
typedef struct {
    const uint8_t *data;
    int64_t length;
    const uint8_t *readable_end;
} ByteSpan;

typedef struct {
    const uint8_t *pos;
    const uint8_t *end;
} Reader;

static inline int64_t reader_left(const Reader *reader) { return reader->end - reader->pos; }

// As ByteUtils.readVarint: at most 5 bytes. A continuation bit in the fifth byte is an error, and the bits of the fifth
// byte that exceed 32 bits are dropped.
static inline int read_varint(Reader *reader, int32_t *value, const char *field, Fault *fault) {
    uint32_t result = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        if (reader->pos >= reader->end) return fault_set(fault, FAULT_VARINT_CUT, field, 0, 0);
        uint8_t byte = *reader->pos++;
        result |= (uint32_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *value = zigzag32(result);
            return 0;
        }
    }
    return fault_set(fault, FAULT_VARINT_LONG, field, 5, 5);
}

// As ByteUtils.readVarlong: at most 10 bytes, with the same rules for the tenth.
static inline int read_varlong(Reader *reader, int64_t *value, const char *field, Fault *fault) {
    uint64_t result = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (reader->pos >= reader->end) return fault_set(fault, FAULT_VARINT_CUT, field, 0, 0);
        uint8_t byte = *reader->pos++;
        result |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *value = zigzag64(result);
            return 0;
        }
    }
    return fault_set(fault, FAULT_VARINT_LONG, field, 10, 10);
}

// Reads a length and that number of bytes. Any negative length means null (DefaultRecord.readFrom).
static inline int read_nullable_bytes(Reader *reader, const uint8_t **bytes, int32_t *length, const char *field,
                                      Fault *fault) {
    if (read_varint(reader, length, field, fault)) return -1;
    *bytes = reader->pos;
    if (*length < 0) {
        *length = -1;
        return 0;
    }
    if (*length > reader_left(reader)) return fault_set(fault, FAULT_LENGTH_BEYOND, field, *length, reader_left(reader));
    reader->pos += *length;
    return 0;
}

#endif
