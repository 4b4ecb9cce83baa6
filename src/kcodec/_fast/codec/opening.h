// SPDX-License-Identifier: Apache-2.0
// Preparation of a batch for the parser of its records, and of the buffers that views refer to. For magic 2 this is in
// decode.c, inside the hot loop.
#ifndef KCODEC_OPENING_H
#define KCODEC_OPENING_H

#include "decode.h"
#include "records.h"

static inline const uint8_t *records_of(const uint8_t *data, int64_t origin, const BatchHeader *header) {
    return data + (header->position - origin) + BATCH_OVERHEAD;
}
// In magic 0 and 1 this is the size of the message without its fields offset and message_size; used for estimates only.
static inline int64_t records_length(const BatchHeader *header) {
    return header_size(header) - (header_is_legacy(header) ? LOG_OVERHEAD : BATCH_OVERHEAD);
}

// Makes the bytes of an uncompressed batch available as a buffer for views. Returns -1 if there is no memory.
int decode_view_source(Chunk *chunk, RecordsJob *job);
// For magic 0 and 1: sets job->records, length, readable_end and the fields for views to the message itself, or to the
// decompressed messages of a wrapper. Returns -1 with the fault if the messages cannot be decompressed.
int decode_open_messages(DecodeRun *run, Decompressor *decompressor, const BatchHeader *header, RecordsJob *job,
                         Fault *fault);

#endif
