// SPDX-License-Identifier: Apache-2.0
#include "legacy.h"

#include "crc32.h"

typedef struct {
    int64_t offset;  // as stored: relative to the wrapper's base inside a wrapper of magic 1
    int64_t timestamp;
    const uint8_t *begin;
    int64_t size;    // including the fields offset and message_size
    uint8_t magic, attributes;
    Field key, value;
} Message;

void legacy_header_parse(const uint8_t *p, BatchHeader *header) {
    uint8_t magic = p[16], attributes = p[17];
    header->base_offset = header->reached_offset = (int64_t)load_be64(p);
    header->batch_length = (int32_t)load_be32(p + 8);
    header->crc = load_be32(p + 12);
    header->magic = magic;
    header->message_attributes = attributes;
    header->attributes = attributes & (ATTRIBUTE_COMPRESSION | (magic ? ATTRIBUTE_LOG_APPEND_TIME : 0));
    header->max_timestamp = magic ? (int64_t)load_be64(p + 18) : -1;
    header->last_offset_delta = 0;
    header->records_count = header_compression(header) ? 1 + header->batch_length / LEGACY_LEAST_SIZE_1 : 1;
    header->producer_id = -1;
    header->producer_epoch = -1;
    header->base_sequence = -1;
    header->partition_leader_epoch = -1;
    header->transaction = -1;
    header->control_type = CONTROL_NOT_A_MARKER;
    header->outcome = OUTCOME_DELIVER;
}

uint32_t legacy_computed_crc(const BatchHeader *header, const uint8_t *batch) {
    return crc32_ieee(0, batch + LEGACY_CRC_FROM, (size_t)(header_size(header) - LEGACY_CRC_FROM));
}

static int read_sized(Reader *reader, const char *name, Field *field, Fault *fault) {
    if (reader_left(reader) < 4) return fault_set(fault, FAULT_LENGTH_BEYOND, name, 4, reader_left(reader));
    field->size = (int32_t)load_be32(reader->pos);
    field->bytes = reader->pos += 4;
    if (field->size < 0) {
        field->size = -1;
        return 0;
    }
    if (field->size > reader_left(reader))
        return fault_set(fault, FAULT_LENGTH_BEYOND, name, field->size, reader_left(reader));
    reader->pos += field->size;
    return 0;
}

// Reads a whole message. Its magic must be 0 or 1, and its size at least the minimum of that magic.
static int read_message(const uint8_t *p, int64_t size, Message *message, Fault *fault) {
    message->begin = p;
    message->size = size;
    message->offset = (int64_t)load_be64(p);
    message->magic = p[16];
    message->attributes = p[17];
    message->timestamp = p[16] ? (int64_t)load_be64(p + 18) : -1;
    Reader reader = {p + (p[16] ? 26 : 18), p + size};
    return read_sized(&reader, "key_size", &message->key, fault) ||
                   read_sized(&reader, "value_size", &message->value, fault)
               ? -1
               : 0;
}

int legacy_is_exact(const uint8_t *p) {
    Message message;
    Fault ignored;
    int64_t size = (int64_t)load_be32(p + 8) + LOG_OVERHEAD;
    if (read_message(p, size, &message, &ignored)) return 0;
    const uint8_t *end = message.value.bytes + (message.value.size > 0 ? message.value.size : 0);
    return end == p + size;
}

int legacy_wrapper_value(const uint8_t *message, int64_t size, Field *value, Fault *fault) {
    Message wrapper;
    if (read_message(message, size, &wrapper, fault)) return -1;
    *value = wrapper.value;
    return value->size < 0 ? fault_set(fault, FAULT_WRAPPER_NULL, "value_size", -1, 0) : 0;
}

// Returns the size of the message at p inside a wrapper, or -1 with the fault. Returns 0 at the end of the messages and
// at an incomplete message, which ends them without an error as in Kafka
// (AbstractLegacyRecordBatch.DataLogInputStream).
static int64_t message_inside(const uint8_t *p, const uint8_t *end, Fault *fault) {
    if (end - p < LOG_OVERHEAD) return 0;
    int32_t size = (int32_t)load_be32(p + 8);
    if (size < LEGACY_LEAST_SIZE_0)
        return fault_set(fault, FAULT_MESSAGE_TOO_SMALL, "message_size", size, LEGACY_LEAST_SIZE_0);
    if (size > end - p - LOG_OVERHEAD) return 0;
    if (p[16] > 1) return fault_set(fault, FAULT_MESSAGE_MAGIC, "magic", (int8_t)p[16], 1);
    if (size < legacy_least_size(p[16]))
        return fault_set(fault, FAULT_MESSAGE_TOO_SMALL, "message_size", size, legacy_least_size(p[16]));
    return (int64_t)size + LOG_OVERHEAD;
}

// Counts the whole messages in a wrapper's stream and finds what their stored offsets are relative to.
static int measure(const RecordsJob *job, int64_t *count, int64_t *relative_to, Fault *fault) {
    const uint8_t *p = job->records, *end = p + job->length;
    int64_t size, last = 0;
    for (*count = 0; (size = message_inside(p, end, fault)) > 0; p += size, ++*count) last = (int64_t)load_be64(p);
    if (size < 0) {
        fault->record = *count;
        return -1;
    }
    if (!*count) return fault_set(fault, FAULT_WRAPPER_EMPTY, "value_size", job->length, 0);
    *relative_to = 0;
    int64_t offset = job->header->base_offset;
    // Magic 0 stores absolute offsets. A wrapper of offset 0 does not know its offset, and its messages begin at 0.
    if (job->header->magic == 0 || offset == 0) return 0;
    if (offset < last) return fault_set(fault, FAULT_WRAPPER_OFFSET, "offset", offset, last);
    *relative_to = (int64_t)((uint64_t)offset - (uint64_t)last);
    return 0;
}

// Returns the timestamp of a message: its own, or the wrapper's if the wrapper has LogAppendTime. Magic 0 has none.
static int64_t timestamp_of(const Message *message, const BatchHeader *header) {
    return message->magic && header_timestamp_type(header) > 0 ? header->max_timestamp : message->timestamp;
}

static int put_message(Chunk *chunk, RecordsJob *job, const Message *message, int64_t offset, int64_t timestamp) {
    uint32_t wanted = chunk->layout.wanted;
    int64_t row = chunk->rows;
    if (WANTS(wanted, COLUMN_OFFSET)) ((int64_t *)chunk->fixed[COLUMN_OFFSET].data)[row] = offset;
    if (WANTS(wanted, COLUMN_TIMESTAMP)) ((int64_t *)chunk->fixed[COLUMN_TIMESTAMP].data)[row] = timestamp;
    if (WANTS(wanted, COLUMN_SEQUENCE)) ((int32_t *)chunk->fixed[COLUMN_SEQUENCE].data)[row] = -1;
    if (WANTS(wanted, COLUMN_KEY) && records_put_field(chunk, job, &chunk->key, &message->key, row)) return -1;
    if (WANTS(wanted, COLUMN_VALUE) && records_put_field(chunk, job, &chunk->value, &message->value, row)) return -1;
    if (WANTS(wanted, COLUMN_HEADERS)) ((int32_t *)chunk->header_lists.data)[row + 1] = (int32_t)chunk->header_count;
    chunk->rows++;
    job->delivered++;
    return 0;
}

static int is_delivered(RecordsJob *job, int64_t offset) {
    if (at_or_past(offset, job->limit)) {
        job->undecided++;
        return 0;
    }
    if (offset < job->start_offset || at_or_past(offset, job->end_offset)) {
        job->out_of_range++;
        return 0;
    }
    if (job->keep_position) job->start_offset = offset < INT64_MAX ? offset + 1 : offset;
    return 1;
}

static int check_inside(const Message *message, int check_crcs, Fault *fault) {
    int compression = message->attributes & ATTRIBUTE_COMPRESSION;
    if (compression) return fault_set(fault, FAULT_MESSAGE_COMPRESSED, "compression", compression, 0);
    if (!check_crcs) return 0;
    uint32_t stored = load_be32(message->begin + 12);
    uint32_t computed = crc32_ieee(0, message->begin + LEGACY_CRC_FROM, (size_t)(message->size - LEGACY_CRC_FROM));
    return stored == computed ? 0 : fault_set(fault, FAULT_MESSAGE_CRC, "crc", stored, computed);
}

// Every record has the timestamp type of the wrapper, even if the message inside has another magic, as in Kafka's
// consumer (CompletedFetch.parseRecord uses the timestamp type of the batch).
int legacy_append(Chunk *chunk, RecordsJob *job, int check_crcs, int64_t *reached, Fault *fault) {
    BatchHeader header = *job->header;
    const int is_wrapper = header_is_wrapper(&header);
    const uint8_t *p = job->records;
    int64_t count = 1, relative_to = 0, first_row = chunk->rows;
    if (is_wrapper && measure(job, &count, &relative_to, fault)) return -1;
    if (chunk_reserve(chunk, count, job->length)) return fault_set(fault, FAULT_NO_MEMORY, "columns", 0, 0);
    *reached = header.base_offset;
    for (int64_t index = 0; index < count; index++) {
        Message message;
        int64_t size = (int64_t)load_be32(p + 8) + LOG_OVERHEAD;
        if (read_message(p, size, &message, fault) || (is_wrapper && check_inside(&message, check_crcs, fault))) {
            fault->record = index;
            return -1;
        }
        p += size;
        int64_t offset = (int64_t)((uint64_t)message.offset + (uint64_t)relative_to);
        if (index == 0) header.base_offset = offset;  // as in Kafka, the offset of the first message that is present
        if (offset > *reached) *reached = offset;
        if (is_delivered(job, offset) && put_message(chunk, job, &message, offset, timestamp_of(&message, &header)))
            return fault_set(fault, FAULT_NO_MEMORY, "columns", 0, 0);
    }
    if (chunk_fill_constants(chunk, &header, first_row)) return fault_set(fault, FAULT_NO_MEMORY, "columns", 0, 0);
    if (chunk->layout.timestamp_microseconds && WANTS(chunk->layout.wanted, COLUMN_TIMESTAMP))
        return chunk_to_microseconds(chunk, first_row, fault);
    return 0;
}
