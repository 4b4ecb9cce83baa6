// SPDX-License-Identifier: Apache-2.0
// From a batch to what the parser takes, and what views refer to. That of magic 2 is in decode.c, inside the hot loop.
#ifndef KCODEC_OPENING_H
#define KCODEC_OPENING_H

#include "decode.h"
#include "records.h"

static inline const uint8_t *records_of(const uint8_t *data, int64_t origin, const BatchHeader *header) {
    return data + (header->position - origin) + BATCH_OVERHEAD;
}
// Of magic 0 and 1 the message but its offset and size: for estimates alone.
static inline int64_t records_length(const BatchHeader *header) {
    return header_size(header) - (header_is_legacy(header) ? LOG_OVERHEAD : BATCH_OVERHEAD);
}

// The bytes of an uncompressed batch as a view's buffer. -1: no memory.
int decode_view_source(Chunk *chunk, RecordsJob *job);
// Of magic 0 and 1: fills job->records, length, readable_end and what views need with the message itself, or with the
// messages inside a wrapper. -1: the stream cannot be opened.
int decode_open_messages(DecodeRun *run, Decompressor *decompressor, const BatchHeader *header, RecordsJob *job,
                         Fault *fault);

#endif
