// SPDX-License-Identifier: Apache-2.0
#include "validate.h"

// As LogValidator.recordHasInvalidTimestamp, including the overflow of Java's arithmetic.
static int is_out_of_range(const RecordRules *rules, int64_t timestamp) {
    int64_t difference = (int64_t)((uint64_t)rules->now - (uint64_t)timestamp);
    int64_t ahead = (int64_t)(0 - (uint64_t)difference);
    return difference > rules->before_max_ms || ahead > rules->after_max_ms;
}

// A topic with CreateTime accepts a timestamp within bounds, even if the batch has the attribute LogAppendTime. In a
// topic with LogAppendTime, and for a record without a timestamp, a batch with that attribute is invalid.
static int has_wrong_time(const RecordRules *rules, int64_t timestamp) {
    if (rules->is_create_time && timestamp != -1) return is_out_of_range(rules, timestamp);
    return (rules->header->attributes & ATTRIBUTE_LOG_APPEND_TIME) != 0;
}

static void name_record(RecordRules *rules, int64_t index) {
    if (rules->named < MAX_RECORD_INDEXES) rules->indexes[rules->named++] = (int32_t)index;
}

static void look_at(RecordRules *rules, const CheckedRecord *record, int64_t index) {
    const BatchHeader *header = rules->header;
    int64_t created = (int64_t)((uint64_t)header->base_timestamp + (uint64_t)record->timestamp_delta);
    int64_t timestamp = header->attributes & ATTRIBUTE_LOG_APPEND_TIME ? header->max_timestamp : created;
    if (rules->is_compacted && record->key.size < 0) {
        rules->without_key++;
        name_record(rules, index);
    } else if (has_wrong_time(rules, timestamp)) {
        rules->wrong_time++;
        name_record(rules, index);
    }
    rules->is_sequential &= record->offset_delta == index;
    rules->has_negative_time |= timestamp < -1;
}

int validate_records(RecordRules *rules, Decompressor *decompressor, const uint8_t *stored, int64_t limit, Fault *fault) {
    const BatchHeader *header = rules->header;
    const int64_t length = header_size(header) - BATCH_OVERHEAD;
    ByteSpan plain;
    rules->is_sequential = 1;
    if (header->records_count < 0)
        return fault_set(fault, FAULT_FIELD_NEGATIVE, "records_count", header->records_count, 0);
    if (header->records_count == 0) return 0;  // bytes after the header are not examined
    rules->is_stream_fault = 1;
    if (decompress(decompressor, header_compression(header), &(ByteSpan){stored, length, stored + length}, limit, NULL, 0,
                   &plain, fault))
        return -1;
    rules->is_stream_fault = 0;
    Reader reader = {plain.data, plain.data + plain.length};
    for (int64_t index = 0; index < header->records_count; index++) {
        CheckedRecord record;
        if (check_record(&reader, &record, fault)) {
            fault->record = index;
            return -1;
        }
        look_at(rules, &record, index);
    }
    if (reader_left(&reader))
        return fault_set(fault, FAULT_BYTES_LEFT, "records_count", reader_left(&reader), header->records_count);
    return 0;
}
