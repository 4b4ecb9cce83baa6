// SPDX-License-Identifier: Apache-2.0
// Which batches a reader sees: isolation, offset range, control batches. Found by headers and markers alone, before
// anything is decompressed (Kafka: CompletedFetch; KIP-98).
#ifndef KCODEC_VISIBILITY_H
#define KCODEC_VISIBILITY_H

#include "header.h"

enum { NO_LAST_OFFSET = -1 };

typedef struct {
    int64_t producer_id, first_offset, last_offset;  // last_offset: of the ABORT marker, or NO_LAST_OFFSET
} Aborted;

// Aborted transactions as the caller passed them, in any order.
typedef struct {
    Aborted *intervals;      // those with a last offset, by (producer_id, first_offset)
    int64_t *reach;          // the greatest last_offset of that producer up to here
    int64_t interval_count;
    Aborted *open_ended;     // those without, by first_offset
    int64_t open_ended_count;
} AbortedIndex;

int aborted_index_build(AbortedIndex *index, const Aborted *list, int64_t count);  // -1: no memory
void aborted_index_free(AbortedIndex *index);

// Producer id -> number, by open addressing.
typedef struct {
    int64_t *keys, *values;
    uint8_t *used;
    int64_t capacity, count;
} ProducerMap;

int producer_map_put(ProducerMap *map, int64_t producer_id, int64_t value);  // -1: no memory
int64_t producer_map_get(const ProducerMap *map, int64_t producer_id, int64_t otherwise);
void producer_map_free(ProducerMap *map);

typedef enum { READ_UNCOMMITTED, READ_COMMITTED_BY_LIST, READ_COMMITTED_BY_MARKERS } Isolation;

typedef struct {
    Isolation isolation;
    int include_control;
    int64_t start_offset, end_offset;   // INT64_MIN, INT64_MAX: not given
    int64_t limit;                      // records from here on are undecided; INT64_MAX: none
    const AbortedIndex *aborted;        // READ_COMMITTED_BY_LIST
    int64_t next_open_ended;            // how far the list has been taken up, and who is aborted now: Java's
    ProducerMap aborting;               // queue and set, carried over a call's batches
} Visibility;

void visibility_initialise(void);  // once, at start
void visibility_free(Visibility *visibility);

// Sets `outcome` of each batch (control_type of control batches is known by now). Batches marked OUTCOME_SKIPPED stay so; under
// READ_COMMITTED_BY_MARKERS they make the transactions open there unsettled. -1: no memory.
int visibility_resolve(Visibility *visibility, BatchHeader *table, int64_t count);

#endif
