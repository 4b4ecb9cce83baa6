// SPDX-License-Identifier: Apache-2.0
// Inputs and how they are changed at random.
#ifndef KCODEC_FUZZ_MUTATE_H
#define KCODEC_FUZZ_MUTATE_H

#include <stddef.h>
#include <stdint.h>

enum { LONGEST_INPUT = 1 << 18 };

typedef struct {
    uint8_t *data;
    size_t size;
} Input;

typedef struct {
    Input *inputs;
    int count, capacity;
} Corpus;

void corpus_add(Corpus *corpus, const uint8_t *data, size_t size);

void mutate_seed(uint64_t seed);
// A changed copy of one of the inputs in `out`, at most `longest` bytes; the new size.
size_t mutate(const Corpus *corpus, uint8_t *out, size_t longest);

#endif
