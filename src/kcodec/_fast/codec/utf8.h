// SPDX-License-Identifier: Apache-2.0
// UTF-8 of header names. Kafka stores whatever bytes a client sent; an Arrow string must be valid UTF-8, and Java shows
// U+FFFD for what is not. Both rules live here.
#ifndef KCODEC_UTF8_H
#define KCODEC_UTF8_H

#include <stddef.h>
#include <stdint.h>

int utf8_is_ascii(const uint8_t *data, size_t size);
// The bytes of the well-formed character at data, or 0. size: of what is there, at least 1.
size_t utf8_character_size(const uint8_t *data, size_t size);
int utf8_is_valid(const uint8_t *data, size_t size);

// Replaces each malformed sequence by U+FFFD exactly as Java's `new String(bytes, UTF_8)` does (a surrogate such as
// `ed a0 80` is one replacement). `out` has room for 3 * size bytes. The number of bytes written.
size_t utf8_replace(const uint8_t *data, size_t size, uint8_t *out);

#endif
