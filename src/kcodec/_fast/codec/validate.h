// SPDX-License-Identifier: Apache-2.0
// Validation of the records of a produced batch, as a leader does it (Kafka: LogValidator.validateRecord).
#ifndef KCODEC_VALIDATE_H
#define KCODEC_VALIDATE_H

#include "decompress.h"
#include "records.h"

enum { MAX_RECORD_INDEXES = 1000 };  // maximum number of invalid records that are listed; a batch can hold 19 million

typedef struct {
    const BatchHeader *header;
    int is_compacted;             // a record must have a key
    int is_create_time;           // the topic has CreateTime: timestamps must be in the range around `now`
    int64_t now, before_max_ms, after_max_ms;
    // results
    int64_t without_key, wrong_time;
    int64_t named;
    int32_t indexes[MAX_RECORD_INDEXES];
    int is_sequential;            // offset deltas are 0, 1, 2 ...
    int has_negative_time;        // a timestamp is below -1, which a batch writer rejects
    int is_stream_fault;          // the fault occurred during decompression
} RecordRules;

// Checks all records. Returns -1 with the fault if a record is malformed, whose index is then fault->record, or if the
// records cannot be decompressed.
int validate_records(RecordRules *rules, Decompressor *decompressor, const uint8_t *stored, int64_t limit, Fault *fault);

#endif
