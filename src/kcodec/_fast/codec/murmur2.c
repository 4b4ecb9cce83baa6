// SPDX-License-Identifier: Apache-2.0
#include "murmur2.h"

enum { SEED = (int32_t)0x9747b28c, MULTIPLIER = 0x5bd1e995, SHIFT = 24 };

uint32_t murmur2(const uint8_t *key, int64_t size) {
    const uint32_t m = MULTIPLIER;
    uint32_t hash = (uint32_t)SEED ^ (uint32_t)size;
    const uint8_t *end = key + (size & ~(int64_t)3);
    for (; key < end; key += 4) {
        uint32_t word = load_le32(key) * m;
        word ^= word >> SHIFT;
        hash = (hash * m) ^ (word * m);
    }
    switch (size & 3) {
        case 3: hash ^= (uint32_t)key[2] << 16;  // fall through
        case 2: hash ^= (uint32_t)key[1] << 8;   // fall through
        case 1: hash = (hash ^ key[0]) * m;
    }
    hash ^= hash >> 13;
    hash *= m;
    return hash ^ (hash >> 15);
}

// `kind`: kind of the column if it is a constant, so that it is not tested for each row; INPUT_ABSENT for any column.
static inline __attribute__((always_inline)) int64_t rows_of(PartitionCount partitions, const BinaryInput *keys, int64_t rows,
                                                             int32_t *restrict out, BinaryInputKind kind, int has_nulls) {
    int64_t nulls = 0;
    for (int64_t row = 0; row < rows; row++) {
        Payload key = kind == INPUT_ABSENT ? binary_input_get(keys, row) : binary_input_plain(keys, row, kind, has_nulls);
        if (likely(key.length >= 0)) {
            out[row] = partition_of(partitions, key.bytes, key.length);
        } else if (key.length == PAYLOAD_NULL) {
            out[row] = NO_PARTITION;
            nulls++;
        } else {
            return -1 - row;
        }
    }
    return nulls;
}

int64_t partition_rows(PartitionCount partitions, const BinaryInput *keys, int64_t rows, int32_t *out) {
    BinaryInputKind kind = keys->index_width ? INPUT_ABSENT : keys->kind;
    if (kind == INPUT_BINARY && keys->validity) return rows_of(partitions, keys, rows, out, INPUT_BINARY, 1);
    if (kind == INPUT_BINARY) return rows_of(partitions, keys, rows, out, INPUT_BINARY, 0);
    if (kind == INPUT_LARGE_BINARY) return rows_of(partitions, keys, rows, out, INPUT_LARGE_BINARY, 1);
    return rows_of(partitions, keys, rows, out, INPUT_ABSENT, 1);
}

void partition_validity(const int32_t *partitions, int64_t count, uint8_t *bitmap) {
    memset(bitmap, 0, (size_t)(count + 7) / 8);
    for (int64_t at = 0; at < count; at++) bitmap[at >> 3] |= (uint8_t)((partitions[at] >= 0) << (at & 7));
}
