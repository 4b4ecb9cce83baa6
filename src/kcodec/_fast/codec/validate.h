// SPDX-License-Identifier: Apache-2.0
// The records of a produced batch, as a leader looks at them (Kafka: LogValidator.validateRecord).
#ifndef KCODEC_VALIDATE_H
#define KCODEC_VALIDATE_H

#include "decompress.h"
#include "records.h"

enum { MAX_RECORD_INDEXES = 1000 };  // of refused records that are named; a batch can hold 19 million

typedef struct {
    const BatchHeader *header;
    int is_compacted;             // a record must have a key
    int is_create_time;           // of the topic: timestamps must lie around `now`
    int64_t now, before_max_ms, after_max_ms;
    // what is found
    int64_t without_key, wrong_time;
    int64_t named;
    int32_t indexes[MAX_RECORD_INDEXES];
    int is_sequential;            // offset deltas are 0, 1, 2 ...
    int has_negative_time;        // below -1: nothing a writer writes again
    int is_stream_fault;          // the fault is one of decompression
} RecordRules;

// Checks all records. -1: a record is invalid, or they cannot be decompressed; fault->record names the record.
int validate_records(RecordRules *rules, Decompressor *decompressor, const uint8_t *stored, int64_t limit, Fault *fault);

#endif
