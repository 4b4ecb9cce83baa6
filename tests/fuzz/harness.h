// SPDX-License-Identifier: Apache-2.0
// What Python does for the core, done without Python: start-up, and the function that stands for the packages.
#ifndef KCODEC_FUZZ_HARNESS_H
#define KCODEC_FUZZ_HARNESS_H

#include "decompress.h"

void harness_initialise(void);

// Stands for zstandard and isal: "gzip" is stored bytes behind one byte that says after how many it is damaged; zstd,
// where there is no system library, is refused.
int harness_package(Decompressor *self, int codec, const uint8_t *data, int64_t size, int64_t bound, int frames,
                    int64_t limit, const uint8_t **out, int64_t *length, Fault *fault);

// No buffer may still be out but those that contexts keep for their next call.
void harness_check_pool(void);

#endif
