// SPDX-License-Identifier: Apache-2.0
#include "mutate.h"

#include "checks.h"

enum { PAIRS = 256, MOST_CHANGES = 6 };

// The operands of comparisons the code made lately: one stands in the input, the other is what would lead on.
typedef struct {
    uint64_t found, wanted;
    int width;
} Pair;
static Pair pairs[PAIRS];
static uint32_t next_pair;

static void remember(uint64_t a, uint64_t b, int width) {
    if (a == b) return;
    pairs[next_pair++ % PAIRS] = (Pair){a, b, width};
}

void __sanitizer_cov_trace_cmp1(uint8_t a, uint8_t b);
void __sanitizer_cov_trace_cmp2(uint16_t a, uint16_t b);
void __sanitizer_cov_trace_cmp4(uint32_t a, uint32_t b);
void __sanitizer_cov_trace_cmp8(uint64_t a, uint64_t b);
void __sanitizer_cov_trace_const_cmp1(uint8_t a, uint8_t b);
void __sanitizer_cov_trace_const_cmp2(uint16_t a, uint16_t b);
void __sanitizer_cov_trace_const_cmp4(uint32_t a, uint32_t b);
void __sanitizer_cov_trace_const_cmp8(uint64_t a, uint64_t b);
void __sanitizer_cov_trace_cmpf(float a, float b);
void __sanitizer_cov_trace_cmpd(double a, double b);
void __sanitizer_cov_trace_switch(uint64_t value, void *cases);
void __sanitizer_cov_trace_cmp1(uint8_t a, uint8_t b) { remember(a, b, 1); }
void __sanitizer_cov_trace_cmp2(uint16_t a, uint16_t b) { remember(a, b, 2); }
void __sanitizer_cov_trace_cmp4(uint32_t a, uint32_t b) { remember(a, b, 4); }
void __sanitizer_cov_trace_cmp8(uint64_t a, uint64_t b) { remember(a, b, 8); }
void __sanitizer_cov_trace_const_cmp1(uint8_t a, uint8_t b) { remember(b, a, 1); }
void __sanitizer_cov_trace_const_cmp2(uint16_t a, uint16_t b) { remember(b, a, 2); }
void __sanitizer_cov_trace_const_cmp4(uint32_t a, uint32_t b) { remember(b, a, 4); }
void __sanitizer_cov_trace_const_cmp8(uint64_t a, uint64_t b) { remember(b, a, 8); }
void __sanitizer_cov_trace_cmpf(float a, float b) { (void)a; (void)b; }
void __sanitizer_cov_trace_cmpd(double a, double b) { (void)a; (void)b; }
void __sanitizer_cov_trace_switch(uint64_t value, void *cases) {
    const uint64_t *words = cases;  // how many, their width in bits, then the values
    for (uint64_t at = 0; at < words[0] && at < 8; at++) remember(value, words[2 + at], (int)words[1] / 8);
}

// ----------------------------------------------------------------------------------------------------- random

static uint64_t state;

void mutate_seed(uint64_t seed) { state = seed * 2 + 1; }

static uint64_t random64(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545f4914f6cdd1dull;
}
static size_t below(size_t limit) { return limit ? (size_t)((random64() >> 16) % limit) : 0; }

void corpus_add(Corpus *corpus, const uint8_t *data, size_t size) {
    if (corpus->count == corpus->capacity) {
        corpus->capacity = corpus->capacity ? corpus->capacity * 2 : 64;
        corpus->inputs = realloc(corpus->inputs, (size_t)corpus->capacity * sizeof(Input));
        REQUIRE(corpus->inputs);
    }
    Input input = {malloc(size ? size : 1), size};
    REQUIRE(input.data);
    memcpy(input.data, data, size);
    corpus->inputs[corpus->count++] = input;
}

// ---------------------------------------------------------------------------------------------------- changes

static void store(uint8_t *to, uint64_t value, int width, int big) {
    for (int byte = 0; byte < width; byte++) to[byte] = (uint8_t)(value >> 8 * (big ? width - 1 - byte : byte));
}

static uint64_t load(const uint8_t *from, int width, int big) {
    uint64_t value = 0;
    for (int byte = 0; byte < width; byte++) value |= (uint64_t)from[byte] << 8 * (big ? width - 1 - byte : byte);
    return value;
}

static size_t set_number(uint8_t *data, size_t size) {
    static const int64_t odd[] = {0, 1, -1, 2, 7, 14, 49, 61, 64, 127, 128, 255, 256, 32767, 32768, 65535, 1 << 20,
                                  INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
    int width = 1 << below(4);
    if (size < (size_t)width) return size;
    store(data + below(size - (size_t)width + 1), (uint64_t)odd[below(sizeof odd / sizeof *odd)], width, below(3) != 0);
    return size;
}

static size_t add_number(uint8_t *data, size_t size) {
    int width = 1 << below(4), big = below(3) != 0;
    if (size < (size_t)width) return size;
    uint8_t *at = data + below(size - (size_t)width + 1);
    store(at, load(at, width, big) + below(71) - 35, width, big);
    return size;
}

// Where one side of a comparison stands in the input, the other side: as it is, and as a zig-zag varint has it.
static size_t satisfy(uint8_t *data, size_t size) {
    Pair pair = pairs[below(PAIRS)];
    int big = below(2) != 0, width = pair.width, shift = below(4) == 0;
    if (below(2)) pair = (Pair){pair.wanted, pair.found, width};
    if (shift) {
        pair.found <<= 1;
        pair.wanted <<= 1;
    }
    while (width > 1 && below(2)) width >>= 1;
    if (!width || size < (size_t)width) return size;
    size_t start = below(size);
    uint64_t mask = width == 8 ? UINT64_MAX : ((uint64_t)1 << 8 * width) - 1;
    for (size_t step = 0; step < size; step++) {
        size_t at = (start + step) % size;
        if (at + (size_t)width > size || load(data + at, width, big) != (pair.found & mask)) continue;
        store(data + at, pair.wanted, width, big);
        return size;
    }
    return size;
}

static size_t insert(uint8_t *data, size_t size, const uint8_t *from, size_t count, size_t longest) {
    size_t at = below(size + 1);
    if (count > longest - size) count = longest - size;
    memmove(data + at + count, data + at, size - at);
    memmove(data + at, from, count);
    return size + count;
}

static size_t insert_part(const Corpus *corpus, uint8_t *data, size_t size, size_t longest) {
    const Input *other = &corpus->inputs[below((size_t)corpus->count)];
    if (!other->size || size >= longest) return size;
    size_t begin = below(other->size), count = 1 + below(below(2) ? 16 : other->size - begin);
    if (count > other->size - begin) count = other->size - begin;
    if (below(2)) return insert(data, size, other->data + begin, count, longest);
    size_t at = below(size + 1);  // over what is there
    if (count > longest - at) count = longest - at;
    memcpy(data + at, other->data + begin, count);
    return at + count > size ? at + count : size;
}

static size_t insert_random(uint8_t *data, size_t size, size_t longest) {
    uint8_t bytes[16];
    size_t count = 1 + below(sizeof bytes);
    uint8_t fill = (uint8_t)random64();
    for (size_t at = 0; at < count; at++) bytes[at] = below(2) ? fill : (uint8_t)random64();
    return size < longest ? insert(data, size, bytes, count, longest) : size;
}

static size_t remove_part(uint8_t *data, size_t size) {
    if (size < 2) return size;
    size_t at = below(size), count = 1 + below(below(3) ? 8 : size - at);
    if (count > size - at) count = size - at;
    memmove(data + at, data + at + count, size - at - count);
    return size - count;
}

static size_t repeat_part(uint8_t *data, size_t size, size_t longest) {
    if (!size || size >= longest) return size;
    uint8_t copy[128];
    size_t at = below(size), count = 1 + below(sizeof copy);
    if (count > size - at) count = size - at;
    memcpy(copy, data + at, count);
    return insert(data, size, copy, count, longest);
}

static size_t change(const Corpus *corpus, uint8_t *data, size_t size, size_t longest) {
    switch (below(10)) {
        case 0:
            if (size) data[below(size)] ^= (uint8_t)(1u << below(8));
            return size;
        case 1:
            if (size) data[below(size)] = (uint8_t)random64();
            return size;
        case 2: return set_number(data, size);
        case 3: return add_number(data, size);
        case 4:
        case 5: return satisfy(data, size);
        case 6: return insert_part(corpus, data, size, longest);
        case 7: return insert_random(data, size, longest);
        case 8: return remove_part(data, size);
        default: return repeat_part(data, size, longest);
    }
}

size_t mutate(const Corpus *corpus, uint8_t *out, size_t longest) {
    // what was found last is looked at more often
    size_t count = (size_t)corpus->count, recent = count < 32 ? count : 32;
    const Input *input = &corpus->inputs[below(3) ? below(count) : count - 1 - below(recent)];
    size_t size = input->size < longest ? input->size : longest;
    memcpy(out, input->data, size);
    for (size_t changes = 1 + below(MOST_CHANGES); changes; changes--) size = change(corpus, out, size, longest);
    return size;
}
