// SPDX-License-Identifier: Apache-2.0
// Messages of magic 0 and 1, which are read but never written (Kafka: LegacyRecord, AbstractLegacyRecordBatch). Every
// message is a batch. The value of a compressed message, called the wrapper, is a stream of messages.
// Layout, big-endian:
//   off size field                       off size field
//     0   8  offset                       17   1  attributes: 0-2 compression, magic 1: 3 timestamp type; no other
//     8   4  message_size (after it)      18   8  timestamp, magic 1 only
//    12   4  crc (CRC-32 of 16..end)    18/26  4  key_size, key: any negative size is null
//    16   1  magic                             4  value_size, value: likewise; what follows the value is ignored
#ifndef KCODEC_LEGACY_H
#define KCODEC_LEGACY_H

#include "records.h"

enum {
    LEGACY_CRC_FROM = 16,
    LEGACY_LEAST_SIZE_0 = 14,  // message_size of a message of nulls
    LEGACY_LEAST_SIZE_1 = 22,
};

void legacy_header_parse(const uint8_t *p, BatchHeader *header);
static inline int32_t legacy_least_size(uint8_t magic) { return magic ? LEGACY_LEAST_SIZE_1 : LEGACY_LEAST_SIZE_0; }

// Returns whether key and value end exactly where the message ends, as in every message that a client writes. Reading a
// message does not require this. A search for a batch in arbitrary bytes does, because this check costs less than a
// CRC. The whole message must be available at p.
int legacy_is_exact(const uint8_t *p);

// Sets *value to the compressed value of a wrapper.
int legacy_wrapper_value(const uint8_t *message, int64_t size, Field *value, Fault *fault);

// Appends the messages in job->records: a single uncompressed message, or the decompressed messages of a wrapper
// (job->header). With `check_crcs` the CRCs of the messages inside a wrapper are checked. *reached becomes the greatest
// offset among the messages. After a fault the caller must roll the chunk back.
int legacy_append(Chunk *chunk, RecordsJob *job, int check_crcs, int64_t *reached, Fault *fault);

#endif
