// SPDX-License-Identifier: Apache-2.0
// Messages of magic 0 and 1, read only (Kafka: LegacyRecord, AbstractLegacyRecordBatch). Every message is a batch; the
// value of a compressed one, the wrapper, is a stream of messages. Layout, big-endian:
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

// Whether sizes of key and value fill the message, as every writer makes it. A reader does not ask for as much; a
// search for a batch among any bytes does, before it takes a CRC. The message is whole at p.
int legacy_is_exact(const uint8_t *p);

// The value of a wrapper: what is to be decompressed.
int legacy_wrapper_value(const uint8_t *message, int64_t size, Field *value, Fault *fault);

// Appends the messages in job->records: one as it lies in the data, or those a wrapper (job->header) held. The CRC of
// those inside is checked with `check_crcs`. *reached: the greatest offset among them. After a fault roll back.
int legacy_append(Chunk *chunk, RecordsJob *job, int check_crcs, int64_t *reached, Fault *fault);

#endif
