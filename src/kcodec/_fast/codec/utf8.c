// SPDX-License-Identifier: Apache-2.0
#include "utf8.h"

#include <string.h>

int utf8_is_ascii(const uint8_t *data, size_t size) {
    uint64_t seen = 0, word;
    for (; size >= 8; data += 8, size -= 8) {
        memcpy(&word, data, 8);
        seen |= word;
    }
    while (size--) seen |= *data++;
    return (seen & 0x8080808080808080ull) == 0;
}

static int is_continuation(uint8_t byte) { return (byte & 0xc0) == 0x80; }

size_t utf8_character_size(const uint8_t *data, size_t size) {
    uint8_t first = data[0];
    if (first < 0x80) return 1;
    if (first >= 0xc2 && first <= 0xdf) return size >= 2 && is_continuation(data[1]) ? 2 : 0;
    if (first >= 0xe0 && first <= 0xef) {
        if (size < 3 || !is_continuation(data[1]) || !is_continuation(data[2])) return 0;
        if (first == 0xe0 && data[1] < 0xa0) return 0;
        if (first == 0xed && data[1] > 0x9f) return 0;
        return 3;
    }
    if (first >= 0xf0 && first <= 0xf4) {
        if (size < 4 || !is_continuation(data[1]) || !is_continuation(data[2]) || !is_continuation(data[3])) return 0;
        if (first == 0xf0 && data[1] < 0x90) return 0;
        if (first == 0xf4 && data[1] > 0x8f) return 0;
        return 4;
    }
    return 0;
}

int utf8_is_valid(const uint8_t *data, size_t size) {
    for (size_t at = 0; at < size;) {
        size_t character = utf8_character_size(data + at, size - at);
        if (!character) return 0;
        at += character;
    }
    return 1;
}

static int bad_second_of_four(uint8_t first, uint8_t second) {
    return (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f) || !is_continuation(second);
}

// Returns the number of bytes of a malformed sequence that Java's decoder replaces by one replacement character. If the
// text ends inside a sequence that is valid so far, Java replaces all remaining bytes by one replacement character.
static size_t malformed_size(const uint8_t *data, size_t size) {
    uint8_t first = data[0];
    if (first >= 0xc2 && first <= 0xdf) return 1;
    if (first >= 0xe0 && first <= 0xef) {
        if (size == 1) return 1;
        if ((first == 0xe0 && data[1] < 0xa0) || !is_continuation(data[1])) return 1;
        if (size == 2 || !is_continuation(data[2])) return 2;
        return 3;  // a complete surrogate
    }
    if (first >= 0xf0 && first <= 0xf4) {
        if (size == 1) return 1;
        if (bad_second_of_four(first, data[1])) return 1;
        if (size == 2 || !is_continuation(data[2])) return 2;
        return 3;
    }
    return 1;
}

size_t utf8_replace(const uint8_t *data, size_t size, uint8_t *out) {
    static const uint8_t replacement[3] = {0xef, 0xbf, 0xbd};
    uint8_t *begin = out;
    for (size_t at = 0; at < size;) {
        size_t character = utf8_character_size(data + at, size - at);
        if (character) {
            memcpy(out, data + at, character);
            out += character;
            at += character;
        } else {
            memcpy(out, replacement, 3);
            out += 3;
            at += malformed_size(data + at, size - at);
        }
    }
    return (size_t)(out - begin);
}
