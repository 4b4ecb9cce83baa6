// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets share. A target is one function over bytes that must hold its properties whatever they are; it
// ends the process where one does not hold.
#ifndef KCODEC_FUZZ_CHECKS_H
#define KCODEC_FUZZ_CHECKS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition)                                                                        \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);        \
            abort();                                                                              \
        }                                                                                         \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Exactly as many bytes as that, so that a sanitizer sees the first one past them.
static inline uint8_t *exact_copy(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);
    REQUIRE(copy);
    if (size) memcpy(copy, data, size);
    return size ? copy : copy + 1;
}
static inline void exact_free(uint8_t *copy, size_t size) { free(size ? copy : copy - 1); }

static inline uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 29;
}
static inline uint64_t mix_bytes(uint64_t hash, const uint8_t *data, int64_t size) {
    hash = mix(hash, (uint64_t)size);
    for (int64_t at = 0; at < size; at++) hash = mix(hash, data[at]);
    return hash;
}

#endif
