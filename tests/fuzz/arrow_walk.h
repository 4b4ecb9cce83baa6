// SPDX-License-Identifier: Apache-2.0
// Arrow data as a consumer reads it: every value visited, every rule of the format checked on the way.
#ifndef KCODEC_FUZZ_ARROW_WALK_H
#define KCODEC_FUZZ_ARROW_WALK_H

#include "arrow_abi.h"

// Continues `hash` over all values, row by row: it depends on nothing else, not the layout, nor where chunks are cut.
// Ends the process at an array that breaks a rule: offsets that fall, a view outside its buffers, a wrong null count.
uint64_t arrow_walk(uint64_t hash, const struct ArrowSchema *schema, const struct ArrowArray *array);

#endif
