// SPDX-License-Identifier: Apache-2.0
// Decides which batches a reader sees, by isolation level, offset range and control batches. It needs headers and
// markers only, so that other batches need not be decompressed first (Kafka: CompletedFetch; KIP-98).
#ifndef KCODEC_VISIBILITY_H
#define KCODEC_VISIBILITY_H

#include "header.h"

enum { NO_LAST_OFFSET = -1 };

typedef struct {
    int64_t producer_id, first_offset, last_offset;  // last_offset: of the ABORT marker, or NO_LAST_OFFSET
} Aborted;

// Aborted transactions as the caller passed them, in any order.
typedef struct {
    Aborted *intervals;      // those with a last offset, sorted by (producer_id, first_offset)
    int64_t *reach;          // for each interval: the greatest last_offset of its producer up to and including it
    int64_t interval_count;
    Aborted *open_ended;     // those without a last offset, sorted by first_offset
    int64_t open_ended_count;
} AbortedIndex;

int aborted_index_build(AbortedIndex *index, const Aborted *list, int64_t count);  // -1 if there is no memory
void aborted_index_free(AbortedIndex *index);

// A hash map from producer ids to numbers, with open addressing.
typedef struct {
    int64_t *keys, *values;
    uint8_t *used;
    int64_t capacity, count;
} ProducerMap;

int producer_map_put(ProducerMap *map, int64_t producer_id, int64_t value);  // -1 if there is no memory
int64_t producer_map_get(const ProducerMap *map, int64_t producer_id, int64_t otherwise);
void producer_map_free(ProducerMap *map);

typedef enum { READ_UNCOMMITTED, READ_COMMITTED_BY_LIST, READ_COMMITTED_BY_MARKERS } Isolation;

typedef struct {
    Isolation isolation;
    int include_control;
    int64_t start_offset, end_offset;   // INT64_MIN and INT64_MAX: no bound
    int64_t limit;                      // last stable offset: records from it on are not delivered; INT64_MAX: none
    const AbortedIndex *aborted;        // READ_COMMITTED_BY_LIST
    int64_t next_open_ended;            // first entry of aborted->open_ended that does not apply yet
    ProducerMap aborting;               // producers whose transaction is aborted at the current offset
} Visibility;

void visibility_initialise(void);  // must be called once, at start
void visibility_free(Visibility *visibility);

// Sets `outcome` of each batch. control_type of control batches must have been set. Batches with OUTCOME_SKIPPED keep
// it; under READ_COMMITTED_BY_MARKERS, transactions that are open at such a batch get OUTCOME_BEYOND_LIMIT, because it
// may have been their marker. Returns -1 if there is no memory.
int visibility_resolve(Visibility *visibility, BatchHeader *table, int64_t count);

#endif
