// SPDX-License-Identifier: Apache-2.0
// Small things by themselves: UTF-8, varints, checksums. Input: which of them, then the bytes.
#include "bounds.h"
#include "checks.h"
#include "crc32c.h"
#include "harness.h"
#include "utf8.h"

// What was valid is left alone, what comes out is valid, and a valid beginning does not change what follows it.
static void check_text(const uint8_t *data, size_t size) {
    uint8_t *out = malloc(3 * size + 1), *again = malloc(9 * size + 1);
    REQUIRE(out && again);
    size_t made = utf8_replace(data, size, out);
    int is_valid = utf8_is_valid(data, size);
    REQUIRE(made <= 3 * size && utf8_is_valid(out, made));
    REQUIRE(is_valid == (made == size && memcmp(out, data, size) == 0));
    REQUIRE(utf8_replace(out, made, again) == made && memcmp(out, again, made) == 0);
    int is_ascii = 1;
    for (size_t at = 0; at < size; at++) is_ascii &= data[at] < 0x80;
    REQUIRE(utf8_is_ascii(data, size) == is_ascii);
    REQUIRE(!is_ascii || is_valid);
    for (size_t at = 0; at < size; at++) {
        if (!utf8_is_valid(data, at)) continue;
        size_t rest = utf8_replace(data + at, size - at, again);
        REQUIRE(rest + at == made && memcmp(again, out + at, rest) == 0);
    }
    free(out);
    free(again);
}

static void check_varints(const uint8_t *data, size_t size) {
    for (int most = 5; most <= 10; most += 5) {
        uint64_t raw = 0;
        int used = 0, ended = 0;
        while (used < most && (size_t)used < size && !ended) {
            ended = data[used] < 0x80;
            raw |= (uint64_t)(data[used] & 0x7f) << 7 * used;
            used++;
        }
        Reader reader = {data, data + size};
        Fault fault;
        int32_t narrow = 0;
        int64_t wide = 0, expected;
        int failed = most == 5 ? read_varint(&reader, &narrow, "value", &fault)
                               : read_varlong(&reader, &wide, "value", &fault);
        REQUIRE((failed != 0) == !ended);
        if (failed) {
            REQUIRE(fault.code == (used == most ? FAULT_VARINT_LONG : FAULT_VARINT_CUT));
            continue;
        }
        if (most == 5) raw = (uint32_t)raw;
        expected = (int64_t)(raw / 2);
        if (raw & 1) expected = -expected - 1;
        REQUIRE(reader.pos == data + used && (most == 5 ? narrow : wide) == expected);
    }
}

static uint32_t bitwise_crc(const uint8_t *data, size_t size) {
    uint32_t crc = ~0u;
    for (size_t at = 0; at < size; at++) {
        crc ^= data[at];
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static void check_crc(const uint8_t *data, size_t size, size_t cut) {
    uint32_t expected = bitwise_crc(data, size);
    if (cut > size) cut = size;
    for (const Crc32cPath *path = crc32c_paths(); path->name; path++) {
        REQUIRE(path->function(0, data, size) == expected);
        REQUIRE(path->function(path->function(0, data, cut), data + cut, size - cut) == expected);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t input_size) {
    harness_initialise();
    if (input_size < 2) return 0;
    size_t size = input_size - 2;
    uint8_t *data = exact_copy(input + 2, size);
    if (input[0] % 3 == 0) check_text(data, size);
    else if (input[0] % 3 == 1) check_varints(data, size);
    else check_crc(data, size, input[1] * 3u);
    exact_free(data, size);
    return 0;
}
