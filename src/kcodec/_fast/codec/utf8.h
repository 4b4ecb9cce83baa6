// SPDX-License-Identifier: Apache-2.0
// UTF-8 of header names. Kafka stores the bytes of a name unchanged, valid or not. An Arrow string must be valid UTF-8,
// and Java replaces invalid bytes by U+FFFD. This file implements both rules.
#ifndef KCODEC_UTF8_H
#define KCODEC_UTF8_H

#include <stddef.h>
#include <stdint.h>

int utf8_is_ascii(const uint8_t *data, size_t size);
// Returns the number of bytes of the well-formed character at `data`, or 0. `size`: number of bytes available, at least
// 1.
size_t utf8_character_size(const uint8_t *data, size_t size);
int utf8_is_valid(const uint8_t *data, size_t size);

// Replaces each malformed sequence by U+FFFD exactly as Java's `new String(bytes, UTF_8)` does (a surrogate such as
// `ed a0 80` becomes one replacement). `out` must have space for 3 * size bytes. Returns the number of bytes written.
size_t utf8_replace(const uint8_t *data, size_t size, uint8_t *out);

#endif
