// SPDX-License-Identifier: Apache-2.0
// Eight bytes in each step by eight tables ("slicing by 8"). It is not optimized further, because only old formats use
// it.
#include "crc32.h"

#include "bounds.h"

enum { SLICES = 8 };

// tables[n][byte]: what `byte` contributes to the remainder if n more bytes follow it in the step.
static uint32_t tables[SLICES][256];

void crc32_initialise(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t remainder = byte;
        for (int bit = 0; bit < 8; bit++) remainder = remainder >> 1 ^ (remainder & 1 ? 0xedb88320u : 0);
        tables[0][byte] = remainder;
    }
    for (int slice = 1; slice < SLICES; slice++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = tables[slice - 1][byte];
            tables[slice][byte] = before >> 8 ^ tables[0][before & 0xff];
        }
}

uint32_t crc32_ieee(uint32_t crc, const uint8_t *data, size_t size) {
    crc = ~crc;
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t low = load_le32(data) ^ crc, high = load_le32(data + 4);
        crc = tables[7][low & 0xff] ^ tables[6][low >> 8 & 0xff] ^ tables[5][low >> 16 & 0xff] ^ tables[4][low >> 24] ^
              tables[3][high & 0xff] ^ tables[2][high >> 8 & 0xff] ^ tables[1][high >> 16 & 0xff] ^ tables[0][high >> 24];
    }
    for (; size; data++, size--) crc = crc >> 8 ^ tables[0][(crc ^ *data) & 0xff];
    return ~crc;
}
