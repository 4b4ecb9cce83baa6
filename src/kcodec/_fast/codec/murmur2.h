// SPDX-License-Identifier: Apache-2.0
// Which partition a key goes to: murmur2, as Java's producer hashes it (Kafka: Utils.murmur2 and
// BuiltInPartitioner.partitionForKey), over whole columns. Austin Appleby put MurmurHash2 into the public domain.
#ifndef KCODEC_MURMUR2_H
#define KCODEC_MURMUR2_H

#include "arrow_import.h"

uint32_t murmur2(const uint8_t *key, int64_t size);

// The number of partitions, and what makes a division by it two multiplications (Lemire, Kaser, Kurz: Faster remainder by
// direct computation, 2019).
typedef struct {
    uint32_t count;
    uint64_t inverse;
} PartitionCount;

enum { NO_PARTITION = -1 };  // of a null key: Kafka chooses one for it by other rules

static inline PartitionCount partition_count(uint32_t count) {
    return (PartitionCount){count, UINT64_MAX / count + 1};
}

static inline int32_t partition_of(PartitionCount partitions, const uint8_t *key, int64_t size) {
    uint64_t fraction = partitions.inverse * (murmur2(key, size) & 0x7fffffffu);  // of 2^64
    uint64_t low = (fraction & 0xffffffffu) * partitions.count >> 32;
    return (int32_t)(((fraction >> 32) * partitions.count + low) >> 32);
}

// The partitions of rows [0, rows) of a column into `out`. Answers how many rows are null, -1 - row where a row is invalid.
int64_t partition_rows(PartitionCount partitions, const BinaryInput *keys, int64_t rows, int32_t *out);

// A bitmap of which are not NO_PARTITION, of (count + 7) / 8 bytes.
void partition_validity(const int32_t *partitions, int64_t count, uint8_t *bitmap);

#endif
