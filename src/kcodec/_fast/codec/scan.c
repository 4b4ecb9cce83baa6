// SPDX-License-Identifier: Apache-2.0
#include "scan.h"

static int room_for_one(BatchTable *table) {
    size_t used = (size_t)table->count * sizeof(BatchHeader);
    if (used + sizeof(BatchHeader) <= table->memory.capacity) return 0;
    return buffer_grow(&table->memory, used + sizeof(BatchHeader), used);
}

// Returns the position after a batch with an invalid header, as its length field gives it, if a batch with a valid
// header and CRC begins there; else -1.
static int64_t provable_behind(const uint8_t *data, int64_t size, int64_t at, const Limits *limits,
                               const BatchTable *table) {
    int32_t length = (int32_t)load_be32(data + at + 8);
    int64_t next = at + LOG_OVERHEAD + length;
    BatchHeader header;
    if (length < 0 || next > size) return -1;
    return header_is_provable(data, size, next, table->above, limits, &header) ? next : -1;
}

void scan_begin(BatchTable *table) {
    table->count = table->end = table->needed = 0;
    table->done = 0;
    table->corrupt = -1;
    table->above = INT64_MIN;
}

// Reads the usual batches from `at` on, which are complete, of magic 2 and within the size limit, as long as the table
// has free capacity. Returns the position after them. All other batches are left to walk_batch.
static int64_t scan_usual(const uint8_t *data, int64_t size, int64_t at, int64_t origin, const Limits *limits,
                          int64_t *most, BatchTable *table) {
    BatchHeader *header = &table_batches(table)[table->count];
    int64_t room = (int64_t)(table->memory.capacity / sizeof(BatchHeader)) - table->count;
    int64_t count = 0, left = *most < room ? *most : room;
    for (; count < left && size - at >= BATCH_OVERHEAD && data[at + 16] == 2; count++) {
        int64_t length = (int32_t)load_be32(data + at + 8), next = at + LOG_OVERHEAD + length;
        if (length < LEAST_LENGTH || length > limits->max_batch_bytes || next > size) break;
        header->position = origin + at;
        header_parse_2(data + at, header++);
        at = next;
        __builtin_prefetch(data + at + length);  // start of the batch after next if all batches have the same size
    }
    if (count) table->above = header_last_offset(header - 1);
    table->count += count;
    *most -= count;
    return at;
}

int scan_batches(const uint8_t *data, int64_t size, int64_t origin, const Limits *limits, int skip, int64_t most,
                 BatchTable *table) {
    int64_t at = table->end;
    for (; most > 0; most--) {
        if (table->memory.data) at = scan_usual(data, size, at, origin, limits, &most, table);
        if (!most) break;
        if (room_for_one(table)) return -1;
        Fault fault;
        BatchHeader *header = &table_batches(table)[table->count];
        WalkResult result = walk_batch(data, size, at, origin, limits, header, &table->needed, &fault);
        if (result == WALK_BATCH) {
            table->count++;
            table->above = header_last_offset(header);
            at += header_size(header);
            continue;
        }
        if (result == WALK_FAULT) {
            table->needed = 0;
            if (table->corrupt < 0) {
                table->corrupt = table->count;
                table->fault = fault;
            }
            int64_t next = skip ? provable_behind(data, size, at, limits, table) : -1;
            if (next >= 0) {
                header->last_offset_delta = header->records_count = 0;
                header->batch_length = (int32_t)(next - at - LOG_OVERHEAD);
                header->attributes = 0;
                header->producer_id = -1;
                header->control_type = CONTROL_NOT_A_MARKER;
                header->outcome = OUTCOME_SKIPPED;
                header->magic = MAGIC_UNREADABLE;
                table->count++;
                at = next;
                continue;
            }
        }
        table->done = 1;
        break;
    }
    table->end = at;
    return 0;
}

void scan_free(BatchTable *table) { buffer_release(&table->memory, (size_t)table->count * sizeof(BatchHeader)); }
