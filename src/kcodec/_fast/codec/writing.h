// SPDX-License-Identifier: Apache-2.0
// Writing the parts of a record, the counterpart of bounds.h. The caller must have made buffer space: at least
// RECORD_ROOM for a record and HEADER_ROOM for a header, in addition to their bytes.
#ifndef KCODEC_WRITING_H
#define KCODEC_WRITING_H

#include "arrow_import.h"

enum {
    // Maximum size of a record without its key, value and headers: length, attributes, two deltas, two lengths, count.
    RECORD_ROOM = 5 + 1 + 10 + 5 + 5 + 5 + 5,
    HEADER_ROOM = 5 + 5,
    SCHEMA_ID_BYTES = 5,      // framing "confluent": a zero byte, the id as int32
    OVER_COPY = 32,           // maximum number of bytes that a copy of a short field reads after its end
};

static inline uint64_t zigzag_of64(int64_t v) { return ((uint64_t)v << 1) ^ (uint64_t)(v >> 63); }

static inline uint8_t *put_long(uint8_t *p, uint64_t raw) {
    for (; raw >= 0x80; raw >>= 7) *p++ = (uint8_t)(raw | 0x80);
    *p++ = (uint8_t)raw;
    return p;
}

// As ByteUtils.writeVarint and writeVarlong, for a value that is already zig-zag encoded.
static inline __attribute__((always_inline)) uint8_t *put_varint(uint8_t *p, uint64_t raw) {
    if (likely(raw < 0x80)) {
        *p = (uint8_t)raw;
        return p + 1;
    }
    if (likely(raw < 0x4000)) {
        p[0] = (uint8_t)(raw | 0x80);
        p[1] = (uint8_t)(raw >> 7);
        return p + 2;
    }
    return put_long(p, raw);
}

static inline int varint_width(uint64_t raw) {  // for lengths, which take at most five bytes
    return raw < 0x80 ? 1 : raw < 0x4000 ? 2 : raw < 0x200000 ? 3 : raw < 0x10000000 ? 4 : 5;
}

static inline __attribute__((always_inline)) void copy16(uint8_t *to, const uint8_t *from) { memcpy(to, from, 16); }

// Copies a field. A short field is copied 16 bytes at a time if OVER_COPY bytes after it can be read. The output always
// allows this (BUFFER_SLACK).
static inline __attribute__((always_inline)) uint8_t *put_bytes(uint8_t *restrict to, const Payload *payload) {
    const uint8_t *restrict from = payload->bytes;
    int64_t size = payload->length;
    if (likely(size <= 256 && payload->readable_end - from >= size + OVER_COPY)) {
        copy16(to, from);
        if (size > 16)
            for (int64_t at = 16; at < size; at += 32) {
                copy16(to + at, from + at);
                copy16(to + at + 16, from + at + 16);
            }
    } else if (size) {
        memcpy(to, from, (size_t)size);
    }
    return to + size;
}

static inline __attribute__((always_inline)) uint8_t *put_payload(uint8_t *p, const Payload *payload, int has_schema_id,
                                                                  int32_t schema_id) {
    if (payload->length < 0) {
        *p = 1;  // -1: null
        return p + 1;
    }
    if (unlikely(has_schema_id)) {
        p = put_varint(p, (uint64_t)(payload->length + SCHEMA_ID_BYTES) << 1);
        *p++ = 0;
        store_be32(p, (uint32_t)schema_id);
        return put_bytes(p + 4, payload);
    }
    return put_bytes(put_varint(p, (uint64_t)payload->length << 1), payload);
}

#endif
