// SPDX-License-Identifier: Apache-2.0
// The 61-byte header of a record batch of magic 2, and the walk over a sequence of batches of any magic.
//
// Layout (Kafka: DefaultRecordBatch), big-endian; that of magic 0 and 1 is in legacy.h:
//   off size field                    off size field
//     0   8  base_offset               27   8  base_timestamp (bit 6: the delete horizon in ms)
//     8   4  batch_length (after it)   35   8  max_timestamp
//    12   4  partition_leader_epoch    43   8  producer_id
//    16   1  magic                     51   2  producer_epoch
//    17   4  crc (CRC-32C of 21..end)  53   4  base_sequence
//    21   2  attributes                57   4  records_count
//    23   4  last_offset_delta         61      records, plain or one compressed stream
//   attributes: 0-2 compression, 3 timestamp type, 4 transactional, 5 control batch, 6 delete horizon; the rest unused.
#ifndef KCODEC_HEADER_H
#define KCODEC_HEADER_H

#include "bounds.h"
#include "crc32c.h"

enum {
    LOG_OVERHEAD = 12,           // base_offset and batch_length
    MAGIC_END = 17,              // bytes needed to know the magic
    CRC_POSITION = 17,
    ATTRIBUTES_POSITION = 21,    // the CRC covers from here to the end
    BATCH_OVERHEAD = 61,
    LEAST_LENGTH_ANY_MAGIC = 14, // batch_length of an empty magic 0 message
    LEAST_SIZE_ANY_MAGIC = LOG_OVERHEAD + LEAST_LENGTH_ANY_MAGIC,  // also the bytes of a header of magic 0 or 1
    LEAST_LENGTH = BATCH_OVERHEAD - LOG_OVERHEAD,
    LEAST_RECORD = 7,            // the smallest record: seven fields of one byte each
};

enum {
    ATTRIBUTE_COMPRESSION = 0x07,
    ATTRIBUTE_LOG_APPEND_TIME = 0x08,
    ATTRIBUTE_TRANSACTIONAL = 0x10,
    ATTRIBUTE_CONTROL = 0x20,
    ATTRIBUTE_DELETE_HORIZON = 0x40,
};

enum { COMPRESSION_NONE, COMPRESSION_GZIP, COMPRESSION_SNAPPY, COMPRESSION_LZ4, COMPRESSION_ZSTD, COMPRESSION_COUNT };

// What a reader does with a batch. visibility.c decides this before records are decompressed.
enum {
    OUTCOME_DELIVER = 0,
    OUTCOME_BEYOND_LIMIT,      // at or after the limit, or of a transaction whose marker may be lost
    OUTCOME_OUT_OF_RANGE,
    OUTCOME_CONTROL,        // a control batch, and control records were not requested
    OUTCOME_ABORTED,
    OUTCOME_SKIPPED,        // corrupt, and skipped because of on_error="skip"
};

enum { MAGIC_UNREADABLE = 0xff };  // marks a skipped batch whose header is invalid, so that it is always skipped

enum { CONTROL_ABORT = 0, CONTROL_COMMIT = 1, CONTROL_NOT_A_MARKER = -1, CONTROL_UNREADABLE = -2 };

typedef struct {
    int64_t position;            // position of its first byte in the input or file
    int64_t base_offset;
    union {
        int64_t base_timestamp;  // the field as stored
        int64_t reached_offset;  // in magic 0 and 1 instead: see header_reached
    };
    int64_t max_timestamp;       // in magic 1 the timestamp of the message, in magic 0 -1
    int64_t producer_id;
    uint32_t crc;
    int32_t batch_length;
    int32_t partition_leader_epoch;
    int32_t last_offset_delta;
    int32_t base_sequence;
    int32_t records_count;
    int32_t transaction;         // index of its transaction while markers are matched; -1: none
    int16_t attributes;
    int16_t producer_epoch;
    int16_t control_type;        // CONTROL_ABORT or CONTROL_COMMIT for a marker, else one of the other two constants
    uint8_t magic;               // 0, 1, 2, or MAGIC_UNREADABLE
    uint8_t outcome;
    uint8_t message_attributes;  // in magic 0 and 1 the stored byte; `attributes` has only the defined bits
} BatchHeader;

typedef struct {
    int64_t max_batch_bytes;
    int64_t max_decompressed_bytes;
} Limits;

// Returns whether an offset is at or after an exclusive bound. The bound INT64_MAX means that there is no bound,
// because a record may have that offset.
static inline int at_or_past(int64_t offset, int64_t bound) { return offset >= bound && bound != INT64_MAX; }

static inline int64_t header_size(const BatchHeader *header) { return (int64_t)header->batch_length + LOG_OVERHEAD; }
static inline int64_t header_last_offset(const BatchHeader *header) {
    return (int64_t)((uint64_t)header->base_offset + (uint64_t)(int64_t)header->last_offset_delta);
}
static inline int header_compression(const BatchHeader *header) { return header->attributes & ATTRIBUTE_COMPRESSION; }
static inline int header_is_control(const BatchHeader *header) { return (header->attributes & ATTRIBUTE_CONTROL) != 0; }
static inline int header_is_transactional(const BatchHeader *header) {
    return (header->attributes & ATTRIBUTE_TRANSACTIONAL) != 0;
}

// In magic 0 and 1 every message is a batch, and a compressed message contains messages. The format stores only the
// offset of the last record: base_offset is that offset, last_offset_delta is 0, and records_count of a compressed
// message is an estimate.
static inline int header_is_legacy(const BatchHeader *header) { return unlikely(header->magic < 2); }
static inline int header_is_wrapper(const BatchHeader *header) {
    return header_is_legacy(header) && header_compression(header) != COMPRESSION_NONE;
}
static inline int header_highest_compression(const BatchHeader *header) {
    return header_is_legacy(header) ? COMPRESSION_LZ4 : COMPRESSION_ZSTD;
}
// Returns 0 for CreateTime, 1 for LogAppendTime, and -1 for magic 0, which has no timestamps.
static inline int header_timestamp_type(const BatchHeader *header) {
    if (unlikely(header->magic == 0)) return -1;
    return header->attributes & ATTRIBUTE_LOG_APPEND_TIME ? 1 : 0;
}
// Returns the last offset that a reader has read after this batch. It never decreases: a compressed message of magic 0
// or 1 may have offset 0 if its offset was unknown (old producers), although the messages inside have other offsets.
// After decoding, reached_offset is therefore the greatest of all previous offsets, of the message's offset and of
// those inside.
static inline int64_t header_reached(const BatchHeader *header) {
    return header_is_legacy(header) ? header->reached_offset : header_last_offset(header);
}

static inline void header_parse_2(const uint8_t *p, BatchHeader *header) {
    header->base_offset = (int64_t)load_be64(p);
    header->batch_length = (int32_t)load_be32(p + 8);
    header->partition_leader_epoch = (int32_t)load_be32(p + 12);
    header->magic = p[16];
    header->crc = load_be32(p + 17);
    header->attributes = (int16_t)load_be16(p + 21);
    header->last_offset_delta = (int32_t)load_be32(p + 23);
    header->base_timestamp = (int64_t)load_be64(p + 27);
    header->max_timestamp = (int64_t)load_be64(p + 35);
    header->producer_id = (int64_t)load_be64(p + 43);
    header->producer_epoch = (int16_t)load_be16(p + 51);
    header->base_sequence = (int32_t)load_be32(p + 53);
    header->records_count = (int32_t)load_be32(p + 57);
    header->transaction = -1;
    header->control_type = CONTROL_NOT_A_MARKER;
    header->outcome = OUTCOME_DELIVER;
}

// Writes the 61 bytes of the header. The CRC is written from its field and not computed.
static inline void header_write(uint8_t *p, const BatchHeader *header) {
    store_be64(p, (uint64_t)header->base_offset);
    store_be32(p + 8, (uint32_t)header->batch_length);
    store_be32(p + 12, (uint32_t)header->partition_leader_epoch);
    p[16] = header->magic;
    store_be32(p + 17, header->crc);
    store_be16(p + 21, (uint16_t)header->attributes);
    store_be32(p + 23, (uint32_t)header->last_offset_delta);
    store_be64(p + 27, (uint64_t)header->base_timestamp);
    store_be64(p + 35, (uint64_t)header->max_timestamp);
    store_be64(p + 43, (uint64_t)header->producer_id);
    store_be16(p + 51, (uint16_t)header->producer_epoch);
    store_be32(p + 53, (uint32_t)header->base_sequence);
    store_be32(p + 57, (uint32_t)header->records_count);
}

// Reads a header of magic 0, 1 or 2. The caller must have checked that the bytes of the header are available.
void header_parse(const uint8_t *p, BatchHeader *header);

typedef enum { WALK_BATCH, WALK_CUT, WALK_FAULT } WalkResult;

// Reads the header of the batch that begins at data[at]. WALK_CUT: the data ends before the batch does, and *needed is
// the size of the whole batch as far as it is known. WALK_FAULT: the header is invalid. `origin` is the position of
// data[0] in the input or file, which is added to positions.
WalkResult walk_batch(const uint8_t *data, int64_t size, int64_t at, int64_t origin, const Limits *limits,
                      BatchHeader *header, int64_t *needed, Fault *fault);

// Returns the number of bytes of the header at p, whose magic walk_batch has accepted.
static inline int64_t header_bytes(const uint8_t *p) { return p[16] < 2 ? LEAST_SIZE_ANY_MAGIC : BATCH_OVERHEAD; }

// Computes the CRC of a whole batch: CRC-32C in magic 2, CRC-32 in magic 0 and 1.
uint32_t legacy_computed_crc(const BatchHeader *header, const uint8_t *batch);
static inline uint32_t header_computed_crc(const BatchHeader *header, const uint8_t *batch) {
    if (header_is_legacy(header)) return legacy_computed_crc(header, batch);
    return crc32c(0, batch + ATTRIBUTES_POSITION, (size_t)(header_size(header) - ATTRIBUTES_POSITION));
}

// Checks fields that must be plausible only if the CRC is right. Called after the CRC check, for every batch, whether
// it is decompressed or not.
int header_check(const BatchHeader *header, Fault *fault);

// Returns whether a batch with a valid header and CRC and a base offset above `above_offset` begins at data[at]. Used
// by on_error="skip" and by the search for batches after an incomplete write, where the data before it is corrupt.
int header_is_provable(const uint8_t *data, int64_t size, int64_t at, int64_t above_offset, const Limits *limits,
                       BatchHeader *header);

// Returns the sequence number `delta` records after base_sequence, where 0 follows 2147483647
// (DefaultRecordBatch.incrementSequence). Returns -1 if there are no sequence numbers.
static inline int32_t sequence_after(int32_t base_sequence, int64_t delta) {
    if (base_sequence < 0) return -1;
    return (int32_t)(((uint64_t)base_sequence + (uint64_t)delta) & 0x7fffffffu);
}

#endif
