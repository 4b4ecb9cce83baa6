/* SPDX-License-Identifier: Apache-2.0 */
/* The C parts by themselves, for processors that run them by emulation: every CRC path against a bitwise one, UTF-8
 * and murmur2 against known answers. Exit status 0 if all agree. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "murmur2.h"
#include "utf8.h"

static uint32_t bit_by_bit(uint32_t crc, const uint8_t *data, size_t size) {
    crc = ~crc;
    for (size_t at = 0; at < size; at++) {
        crc ^= data[at];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static int check_crc(const uint8_t *noise) {
    static const size_t sizes[] = {1000, 1024, 3071, 3072, 4096, 12288, 65535, 65536, 100000};
    int wrong = 0;
    for (const Crc32cPath *path = crc32c_paths(); path->name; path++) {
        int compared = 0;
        for (size_t size = 0; size < 600; size++)
            for (size_t start = 0; start < 9; start++, compared++)
                wrong += path->function(7, noise + start, size) != bit_by_bit(7, noise + start, size);
        for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++, compared++)
            wrong += path->function(0, noise, sizes[at]) != bit_by_bit(0, noise, sizes[at]);
        printf("crc32c %s: %d comparisons\n", path->name, compared);
    }
    return wrong;
}

static int check_utf8(void) {
    static const struct {
        const char *bytes, *text;
    } known[] = {
        {"\xed\xa0\x80", "\xef\xbf\xbd"},
        {"\xff\xfe", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xc3", "\xef\xbf\xbd"},
        {"plain", "plain"},
        {"\xe2\x82\x61", "\xef\xbf\xbd\x61"},
    };
    int wrong = 0;
    for (size_t at = 0; at < sizeof known / sizeof *known; at++) {
        uint8_t out[64];
        size_t made = utf8_replace((const uint8_t *)known[at].bytes, strlen(known[at].bytes), out);
        wrong += made != strlen(known[at].text) || memcmp(out, known[at].text, made) != 0;
    }
    return wrong;
}

static int check_murmur2(void) {
    static const struct {
        const char *key;
        int32_t hash;  // by Kafka's Utils.murmur2
    } known[] = {
        {"21", -973932308},
        {"abc", 479470107},
        {"foobar", -790332482},
        {"a-little-bit-long-string", -985981536},
        {"a-little-bit-longer-string", -1486304829},
    };
    int wrong = 0;
    for (size_t at = 0; at < sizeof known / sizeof *known; at++) {
        const uint8_t *key = (const uint8_t *)known[at].key;
        int64_t size = (int64_t)strlen(known[at].key);
        wrong += (int32_t)murmur2(key, size) != known[at].hash;
        uint32_t positive = (uint32_t)known[at].hash & 0x7fffffffu;
        for (uint32_t count = 1; count < 3000; count++)
            wrong += partition_of(partition_count(count), key, size) != (int32_t)(positive % count);
    }
    return wrong;
}

int main(void) {
    uint8_t *noise = malloc(100064);
    if (!noise) return 2;
    uint32_t state = 1;
    for (size_t at = 0; at < 100064; at++) {
        state = state * 1664525u + 1013904223u;
        noise[at] = (uint8_t)(state >> 24);
    }
    int wrong = check_crc(noise) + check_utf8() + check_murmur2();
    free(noise);
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
