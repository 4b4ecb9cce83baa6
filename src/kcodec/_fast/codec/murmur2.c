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

int64_t partition_rows(PartitionCount partitions, const BinaryInput *keys, int64_t rows, int32_t *out) {
    int64_t nulls = 0;
    for (int64_t row = 0; row < rows; row++) {
        Payload key = binary_input_get(keys, row);
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

void partition_validity(const int32_t *partitions, int64_t count, uint8_t *bitmap) {
    memset(bitmap, 0, (size_t)(count + 7) / 8);
    for (int64_t at = 0; at < count; at++) bitmap[at >> 3] |= (uint8_t)((partitions[at] >= 0) << (at & 7));
}
