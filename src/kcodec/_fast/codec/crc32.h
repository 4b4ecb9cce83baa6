// SPDX-License-Identifier: Apache-2.0
// CRC-32 (IEEE 802.3, reflected 0xedb88320): the checksum of messages of magic 0 and 1, and of gzip headers.
#ifndef KCODEC_CRC32_H
#define KCODEC_CRC32_H

#include <stddef.h>
#include <stdint.h>

void crc32_initialise(void);  // must be called once, at start
uint32_t crc32_ieee(uint32_t crc, const uint8_t *data, size_t size);  // continues `crc`; begin with 0

#endif
