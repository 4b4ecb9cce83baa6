// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli), the checksum of record batches. The fastest implementation for this processor is chosen at
// start.
#ifndef KCODEC_CRC32C_H
#define KCODEC_CRC32C_H

#include <stddef.h>
#include <stdint.h>

typedef uint32_t (*Crc32cFunction)(uint32_t crc, const uint8_t *data, size_t size);

// Returns the CRC of the bytes that `crc` covers, followed by these `size` bytes; begin with 0. `crc` and the result
// are finished values, not internal states. The pointer is set by crc32c_choose.
extern Crc32cFunction crc32c;

typedef struct {
    const char *name;
    Crc32cFunction function;
} Crc32cPath;

// Returns the implementations that this processor supports, fastest first. An entry with a null name ends the list.
const Crc32cPath *crc32c_paths(void);

// Selects an implementation by name, or the fastest if `name` is NULL. Returns -1 if this processor does not support
// it.
int crc32c_choose(const char *name);

#endif
