// SPDX-License-Identifier: Apache-2.0
#include "visibility.h"

#include <stdlib.h>

#include "platform.h"

// The list of aborted transactions.

static int by_producer_then_first(const void *left, const void *right) {
    const Aborted *a = left, *b = right;
    if (a->producer_id != b->producer_id) return a->producer_id < b->producer_id ? -1 : 1;
    return a->first_offset < b->first_offset ? -1 : a->first_offset > b->first_offset;
}

static int by_first(const void *left, const void *right) {
    const Aborted *a = left, *b = right;
    return a->first_offset < b->first_offset ? -1 : a->first_offset > b->first_offset;
}

int aborted_index_build(AbortedIndex *index, const Aborted *list, int64_t count) {
    memset(index, 0, sizeof *index);
    index->intervals = malloc((size_t)(count + 1) * sizeof(Aborted));
    index->open_ended = malloc((size_t)(count + 1) * sizeof(Aborted));
    index->reach = malloc((size_t)(count + 1) * sizeof(int64_t));
    if (!index->intervals || !index->open_ended || !index->reach) {
        aborted_index_free(index);
        return -1;
    }
    for (int64_t at = 0; at < count; at++)
        if (list[at].last_offset == NO_LAST_OFFSET)
            index->open_ended[index->open_ended_count++] = list[at];
        else
            index->intervals[index->interval_count++] = list[at];
    qsort(index->intervals, (size_t)index->interval_count, sizeof(Aborted), by_producer_then_first);
    qsort(index->open_ended, (size_t)index->open_ended_count, sizeof(Aborted), by_first);
    for (int64_t at = 0; at < index->interval_count; at++) {
        index->reach[at] = index->intervals[at].last_offset;
        if (at && index->intervals[at - 1].producer_id == index->intervals[at].producer_id &&
            index->reach[at - 1] > index->reach[at])
            index->reach[at] = index->reach[at - 1];
    }
    return 0;
}

void aborted_index_free(AbortedIndex *index) {
    free(index->intervals);
    free(index->open_ended);
    free(index->reach);
    memset(index, 0, sizeof *index);
}

// Returns whether a batch overlaps an aborted interval of its producer.
static int in_an_interval(const AbortedIndex *index, int64_t producer_id, int64_t base_offset, int64_t last_offset) {
    int64_t low = 0, high = index->interval_count;  // binary search of the first entry above (producer_id, last_offset)
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const Aborted *entry = &index->intervals[middle];
        if (entry->producer_id < producer_id || (entry->producer_id == producer_id && entry->first_offset <= last_offset))
            low = middle + 1;
        else
            high = middle;
    }
    return low && index->intervals[low - 1].producer_id == producer_id && index->reach[low - 1] >= base_offset;
}

// The map of producer ids.

// Random, so that an attacker cannot choose producer ids that all fall into one slot.
static uint64_t seed;

void visibility_initialise(void) { random_bytes(&seed, sizeof seed); }

static int64_t slot_of(const ProducerMap *map, int64_t producer_id) {
    uint64_t hash = ((uint64_t)producer_id ^ seed) * 0x9e3779b97f4a7c15ull;
    hash = (hash ^ hash >> 32) * 0x9e3779b97f4a7c15ull;
    int64_t slot = (int64_t)(hash >> 29) & (map->capacity - 1);
    while (map->used[slot] && map->keys[slot] != producer_id) slot = (slot + 1) & (map->capacity - 1);
    return slot;
}

static int producer_map_grow(ProducerMap *map) {
    ProducerMap larger = {.capacity = map->capacity ? map->capacity * 2 : 16};
    larger.keys = malloc((size_t)larger.capacity * sizeof(int64_t));
    larger.values = malloc((size_t)larger.capacity * sizeof(int64_t));
    larger.used = calloc((size_t)larger.capacity, 1);
    if (!larger.keys || !larger.values || !larger.used) {
        producer_map_free(&larger);
        return -1;
    }
    for (int64_t at = 0; at < map->capacity; at++)
        if (map->used[at]) {
            int64_t slot = slot_of(&larger, map->keys[at]);
            larger.used[slot] = 1;
            larger.keys[slot] = map->keys[at];
            larger.values[slot] = map->values[at];
        }
    larger.count = map->count;
    producer_map_free(map);
    *map = larger;
    return 0;
}

int producer_map_put(ProducerMap *map, int64_t producer_id, int64_t value) {
    if (map->count * 2 >= map->capacity && producer_map_grow(map)) return -1;
    int64_t slot = slot_of(map, producer_id);
    map->count += !map->used[slot];
    map->used[slot] = 1;
    map->keys[slot] = producer_id;
    map->values[slot] = value;
    return 0;
}

int64_t producer_map_get(const ProducerMap *map, int64_t producer_id, int64_t otherwise) {
    if (!map->capacity) return otherwise;
    int64_t slot = slot_of(map, producer_id);
    return map->used[slot] ? map->values[slot] : otherwise;
}

void producer_map_free(ProducerMap *map) {
    free(map->keys);
    free(map->values);
    free(map->used);
    memset(map, 0, sizeof *map);
}

void visibility_free(Visibility *visibility) { producer_map_free(&visibility->aborting); }

// Outcomes of batches.

static int is_marker(const BatchHeader *header) {
    return header_is_control(header) && header->producer_id > -1 &&
           (header->control_type == CONTROL_ABORT || header->control_type == CONTROL_COMMIT);
}

// Returns whether a batch has records of a transaction: it has a producer id and the transactional bit, and is not a
// control batch.
static int is_of_transaction(const BatchHeader *header) {
    return header_is_transactional(header) && header->producer_id > -1 && !header_is_control(header);
}

static uint8_t outcome_of(const Visibility *visibility, const BatchHeader *header, int is_aborted) {
    if (header->outcome == OUTCOME_SKIPPED) return OUTCOME_SKIPPED;
    if (header_is_wrapper(header)) return OUTCOME_DELIVER;  // the offsets inside are known only after decompression
    if (at_or_past(header->base_offset, visibility->limit)) return OUTCOME_BEYOND_LIMIT;
    if (header_last_offset(header) < visibility->start_offset || at_or_past(header->base_offset, visibility->end_offset))
        return OUTCOME_OUT_OF_RANGE;
    if (header_is_control(header)) return visibility->include_control ? OUTCOME_DELIVER : OUTCOME_CONTROL;
    return is_aborted ? OUTCOME_ABORTED : OUTCOME_DELIVER;
}

// Entries without a last offset apply as in Java: from their first offset to the producer's next ABORT marker. Entries
// with a last offset apply to their interval of offsets.
static int resolve_by_list(Visibility *visibility, BatchHeader *table, int64_t count) {
    const AbortedIndex *index = visibility->aborted;
    for (int64_t at = 0; at < count; at++) {
        BatchHeader *header = &table[at];
        int is_aborted = 0;
        if (header->outcome != OUTCOME_SKIPPED && header->producer_id > -1) {
            int64_t last_offset = header_last_offset(header);
            for (; visibility->next_open_ended < index->open_ended_count &&
                   index->open_ended[visibility->next_open_ended].first_offset <= last_offset;
                 visibility->next_open_ended++)
                if (producer_map_put(&visibility->aborting,
                                     index->open_ended[visibility->next_open_ended].producer_id, 1))
                    return -1;
            if (is_marker(header)) {
                if (header->control_type == CONTROL_ABORT && visibility->aborting.count &&
                    producer_map_put(&visibility->aborting, header->producer_id, 0))
                    return -1;
            } else if (is_of_transaction(header)) {
                is_aborted = producer_map_get(&visibility->aborting, header->producer_id, 0) ||
                             in_an_interval(index, header->producer_id, header->base_offset, last_offset);
            }
        }
        header->outcome = outcome_of(visibility, header, is_aborted);
    }
    return 0;
}

typedef struct {
    int64_t first_offset;
    int64_t corruptions;    // number of corrupt batches before it began
    uint8_t outcome;      // OUTCOME_DELIVER (committed), OUTCOME_ABORTED or OUTCOME_BEYOND_LIMIT
    uint8_t is_open, lost;  // lost: it was open at a corrupt batch, which may have been its marker
} Resolved;

typedef struct {
    Resolved *list;
    int64_t count, capacity;
} ResolvedList;

static int64_t resolved_add(ResolvedList *resolved, int64_t first_offset, int64_t corruptions) {
    if (resolved->count == resolved->capacity) {
        int64_t capacity = resolved->capacity ? resolved->capacity * 2 : 64;
        Resolved *larger = realloc(resolved->list, (size_t)capacity * sizeof(Resolved));
        if (!larger) return -1;
        resolved->list = larger;
        resolved->capacity = capacity;
    }
    resolved->list[resolved->count] = (Resolved){first_offset, corruptions, OUTCOME_BEYOND_LIMIT, 1, 0};
    return resolved->count++;
}

// Assigns each batch of a transaction the number of its transaction, and each transaction its outcome.
static int join_transactions(BatchHeader *table, int64_t count, ResolvedList *resolved, ProducerMap *open, int64_t *corruptions) {
    for (int64_t at = 0; at < count; at++) {
        BatchHeader *header = &table[at];
        header->transaction = -1;
        if (header->outcome == OUTCOME_SKIPPED) {
            ++*corruptions;
        } else if (is_marker(header)) {
            int64_t number = producer_map_get(open, header->producer_id, -1);
            if (number < 0) continue;  // a marker without data is valid
            Resolved *transaction = &resolved->list[number];
            transaction->is_open = 0;
            transaction->lost = transaction->corruptions != *corruptions;
            if (!transaction->lost)
                transaction->outcome = header->control_type == CONTROL_ABORT ? OUTCOME_ABORTED : OUTCOME_DELIVER;
            if (producer_map_put(open, header->producer_id, -1)) return -1;
        } else if (is_of_transaction(header) && header->records_count != 0) {
            // An empty batch does not begin a transaction: compaction may keep it after its marker was removed.
            int64_t number = producer_map_get(open, header->producer_id, -1);
            if (number < 0) {
                if ((number = resolved_add(resolved, header->base_offset, *corruptions)) < 0) return -1;
                if (producer_map_put(open, header->producer_id, number)) return -1;
            }
            header->transaction = (int32_t)number;
        }
    }
    return 0;
}

static int resolve_by_markers(Visibility *visibility, BatchHeader *table, int64_t count) {
    ResolvedList resolved = {0};
    ProducerMap open = {0};
    int64_t corruptions = 0;
    int result = join_transactions(table, count, &resolved, &open, &corruptions);
    for (int64_t at = 0; at < resolved.count; at++) {
        Resolved *transaction = &resolved.list[at];
        if (transaction->is_open && transaction->corruptions != corruptions) transaction->lost = 1;
        if (transaction->is_open && !transaction->lost && transaction->first_offset < visibility->limit)
            visibility->limit = transaction->first_offset;
    }
    for (int64_t at = 0; at < count && !result; at++) {
        BatchHeader *header = &table[at];
        const Resolved *transaction = header->transaction < 0 ? NULL : &resolved.list[header->transaction];
        header->outcome = outcome_of(visibility, header, transaction && transaction->outcome == OUTCOME_ABORTED);
        if (transaction && transaction->lost && header->outcome != OUTCOME_SKIPPED) header->outcome = OUTCOME_BEYOND_LIMIT;
    }
    producer_map_free(&open);
    free(resolved.list);
    return result;
}

int visibility_resolve(Visibility *visibility, BatchHeader *table, int64_t count) {
    if (visibility->isolation == READ_COMMITTED_BY_MARKERS) return resolve_by_markers(visibility, table, count);
    if (visibility->isolation == READ_COMMITTED_BY_LIST) return resolve_by_list(visibility, table, count);
    for (int64_t at = 0; at < count; at++) table[at].outcome = outcome_of(visibility, &table[at], 0);
    return 0;
}
