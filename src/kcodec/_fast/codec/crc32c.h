// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli), the checksum of record batches. The fastest way this processor has is chosen once, at start.
#ifndef KCODEC_CRC32C_H
#define KCODEC_CRC32C_H

#include <stddef.h>
#include <stdint.h>

typedef uint32_t (*Crc32cFunction)(uint32_t crc, const uint8_t *data, size_t size);

// Continues `crc` (0 to begin) over `size` bytes; finished values go in and come out. Set by crc32c_choose.
extern Crc32cFunction crc32c;

typedef struct {
    const char *name;
    Crc32cFunction function;
} Crc32cPath;

// The ways this processor can run, fastest first, ended by a null name.
const Crc32cPath *crc32c_paths(void);

// Chooses a path by name, or the fastest when name is null. -1 when this processor has no such path.
int crc32c_choose(const char *name);

#endif
