// SPDX-License-Identifier: Apache-2.0
#include "header.h"

#include "legacy.h"

static WalkResult refuse(Fault *fault, int32_t code, const char *field, int64_t found, int64_t expected,
                         const BatchHeader *header) {
    fault_set(fault, code, field, found, expected);
    fault->position = header->position;
    fault->base_offset = header->base_offset;
    fault->has_base_offset = 1;
    return WALK_FAULT;
}

WalkResult walk_batch(const uint8_t *data, int64_t size, int64_t at, int64_t origin, const Limits *limits,
                      BatchHeader *header, int64_t *needed, Fault *fault) {
    int64_t left = size - at;
    const uint8_t *p = data + at;
    header->position = origin + at;
    *needed = left > 0 ? BATCH_OVERHEAD : 0;
    if (left < LOG_OVERHEAD) return WALK_CUT;
    header->base_offset = (int64_t)load_be64(p);
    int32_t length = (int32_t)load_be32(p + 8);
    if (length < LEAST_LENGTH_ANY_MAGIC)
        return refuse(fault, FAULT_BATCH_LENGTH_TOO_SMALL, "batch_length", length, LEAST_LENGTH_ANY_MAGIC, header);
    *needed = (int64_t)length + LOG_OVERHEAD;
    if (left < MAGIC_END) return WALK_CUT;
    int is_legacy = unlikely(p[16] != 2);
    int32_t least = is_legacy ? legacy_least_size(p[16]) : LEAST_LENGTH;
    if (is_legacy && p[16] > 2) return refuse(fault, FAULT_MAGIC, "magic", (int8_t)p[16], 2, header);
    if (length < least) return refuse(fault, FAULT_BATCH_LENGTH_TOO_SMALL, "batch_length", length, least, header);
    if (length > limits->max_batch_bytes)
        return refuse(fault, FAULT_BATCH_LENGTH_LIMIT, "batch_length", length, limits->max_batch_bytes, header);
    if (left < *needed) return WALK_CUT;
    if (is_legacy)
        legacy_header_parse(p, header);
    else
        header_parse_2(p, header);
    return WALK_BATCH;
}

void header_parse(const uint8_t *p, BatchHeader *header) {
    if (p[16] == 2)
        header_parse_2(p, header);
    else
        legacy_header_parse(p, header);
}

int header_check(const BatchHeader *header, Fault *fault) {
    int compression = header_compression(header), highest = header_highest_compression(header);
    if (unlikely(compression > highest))
        return fault_set(fault, FAULT_COMPRESSION_ID, "compression", compression, highest);
    if (unlikely(header->last_offset_delta < 0))
        return fault_set(fault, FAULT_FIELD_NEGATIVE, "last_offset_delta", header->last_offset_delta, 0);
    if (unlikely(header->records_count < 0))
        return fault_set(fault, FAULT_FIELD_NEGATIVE, "records_count", header->records_count, 0);
    if (unlikely(header->base_offset > INT64_MAX - header->last_offset_delta))
        return fault_set(fault, FAULT_OFFSET_OVERFLOW, "last_offset_delta", header->last_offset_delta, 0);
    return 0;
}

int header_is_provable(const uint8_t *data, int64_t size, int64_t at, int64_t above_offset, const Limits *limits,
                       BatchHeader *header) {
    int64_t needed;
    Fault fault;
    if (walk_batch(data, size, at, 0, limits, header, &needed, &fault) != WALK_BATCH) return 0;
    if (header->base_offset <= above_offset || header_check(header, &fault)) return 0;
    return header_computed_crc(header, data + at) == header->crc;
}
