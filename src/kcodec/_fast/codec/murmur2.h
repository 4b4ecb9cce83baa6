// SPDX-License-Identifier: Apache-2.0
// Partitions of keys, computed for whole columns: murmur2 as in Java's producer (Kafka: Utils.murmur2 and
// BuiltInPartitioner.partitionForKey). Austin Appleby placed MurmurHash2 in the public domain.
#ifndef KCODEC_MURMUR2_H
#define KCODEC_MURMUR2_H

#include "arrow_import.h"

uint32_t murmur2(const uint8_t *key, int64_t size);

// The number of partitions, and a constant that replaces the modulo operation by multiplications (Lemire, Kaser, Kurz:
// Faster remainder by direct computation, 2019).
typedef struct {
    uint32_t count;
    uint64_t inverse;
} PartitionCount;

enum { NO_PARTITION = -1 };  // for a null key, whose partition Kafka chooses by other rules

static inline PartitionCount partition_count(uint32_t count) {
    return (PartitionCount){count, UINT64_MAX / count + 1};
}

static inline int32_t partition_of(PartitionCount partitions, const uint8_t *key, int64_t size) {
    uint64_t fraction = partitions.inverse * (murmur2(key, size) & 0x7fffffffu);  // hash / count, modulo 1, times 2^64
    uint64_t low = (fraction & 0xffffffffu) * partitions.count >> 32;
    return (int32_t)(((fraction >> 32) * partitions.count + low) >> 32);
}

// Writes the partitions of rows [0, rows) of a column to `out`. Returns the number of null rows, or -1 - row if that
// row is invalid.
int64_t partition_rows(PartitionCount partitions, const BinaryInput *keys, int64_t rows, int32_t *out);

// Fills a bitmap of (count + 7) / 8 bytes whose bits are set for all partitions but NO_PARTITION.
void partition_validity(const int32_t *partitions, int64_t count, uint8_t *bitmap);

#endif
