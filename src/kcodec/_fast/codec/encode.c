// SPDX-License-Identifier: Apache-2.0
#include "encode.h"

#include "crc32c.h"
#include "snappy.h"
#include "writing.h"

// The batch writer.

void writer_begin(BatchWriter *writer, const BatchSettings *settings) {
    memset(writer, 0, sizeof *writer);
    writer->settings = *settings;
    writer->next_offset = settings->header.base_offset;
    writer->base_sequence = settings->header.base_sequence;
    writer->length_width = 1;
}

// Records in the buffer's high-water mark that `length` bytes of the open batch were written. The pool uses this mark
// to decide whether to keep the buffer.
static void note_touched(BatchWriter *writer, int64_t length) {
    int64_t begin;
    Buffer *buffer = writer_open_buffer(writer, &begin);
    size_t end = (size_t)(begin + length) < buffer->capacity ? (size_t)(begin + length) : buffer->capacity;
    if (end > buffer->touched) buffer->touched = end;
}

void writer_free(BatchWriter *writer) {
    if (writer->is_open) note_touched(writer, writer->length);
    buffer_release(&writer->scratch, 0);
    buffer_release(&writer->out, (size_t)writer->finished);
}

// Grows the buffer by half of its used bytes more than needed, so that it rarely has to grow again.
int writer_make_room(BatchWriter *writer, int64_t length, int64_t bytes, Fault *fault) {
    int64_t begin;
    Buffer *buffer = writer_open_buffer(writer, &begin);
    int64_t used = begin + length, wanted = used + bytes;
    if (buffer->data && wanted <= (int64_t)buffer->capacity) return 0;
    if (buffer_grow(buffer, (size_t)(wanted + used / 2), (size_t)used))
        return fault_set(fault, FAULT_NO_MEMORY, "encoded batches", 0, 0);
    return 0;
}

int writer_begin_batch(BatchWriter *writer, int64_t offset, int64_t timestamp, Fault *fault) {
    const BatchSettings *settings = &writer->settings;
    writer->is_open = 1;
    writer->base_offset = offset;
    writer->last_offset = offset - 1;
    writer->count = 0;
    writer->length = BATCH_OVERHEAD;
    writer->base_timestamp = settings->has_base_timestamp ? settings->header.base_timestamp : timestamp;
    writer->max_timestamp = -1;
    return writer_make_room(writer, 0, BATCH_OVERHEAD + RECORD_ROOM, fault);
}

int row_fault(Fault *fault, int32_t code, const char *field, int64_t found, int64_t expected, int64_t row) {
    fault_set(fault, code, field, found, expected);
    fault->record = row;
    return -1;
}

// Returns the base offset of a batch whose first record has this offset.
static int64_t base_for(const BatchWriter *writer, int64_t offset) {
    return writer->settings.has_base_offset && !writer->has_begun ? writer->settings.header.base_offset : offset;
}

// Checks whether a record with this offset and timestamp can be appended. Returns 0, or -1 with the fault.
static inline int check_place(const BatchWriter *writer, int64_t offset, int64_t timestamp, int64_t row, Fault *fault) {
    if (unlikely(timestamp < -1 && !writer->settings.any_timestamp))
        return row_fault(fault, FAULT_ENCODE_TIMESTAMP, "timestamp", timestamp, 0, row);
    if (unlikely(offset < 0 || offset == INT64_MAX)) return row_fault(fault, FAULT_ENCODE_OFFSET, "offset", offset, 0, row);
    if (unlikely(!writer->is_open)) {
        if (offset < base_for(writer, offset))
            return row_fault(fault, FAULT_ENCODE_OFFSET_BASE, "offset", offset, base_for(writer, offset), row);
        if (offset < writer->next_offset && writer->has_begun)
            return row_fault(fault, FAULT_ENCODE_OFFSET_ORDER, "offset", offset, writer->next_offset - 1, row);
    } else if (unlikely(offset <= writer->last_offset)) {
        return row_fault(fault, FAULT_ENCODE_OFFSET_ORDER, "offset", offset, writer->last_offset, row);
    }
    return 0;
}

static int header_at(const HeaderSource *source, int64_t at, HeaderField *header, int64_t row, Fault *fault) {
    if (source->fields) {
        *header = source->fields[at];
    } else {
        const HeadersInput *input = source->input;
        int64_t place = source->first + at;
        header->name = input_is_null(input->struct_validity, place) ? (Payload){0, PAYLOAD_NULL, 0}
                                                                    : binary_input_get(&input->name, place);
        header->value = binary_input_get(&input->value, place);
    }
    if (unlikely(header->name.length == PAYLOAD_INVALID || header->value.length == PAYLOAD_INVALID))
        return row_fault(fault, FAULT_ENCODE_INVALID, "headers", 0, 0, row);
    if (unlikely(header->name.length < 0)) return row_fault(fault, FAULT_ENCODE_NULL, "headers.key", 0, 0, row);
    if (unlikely(header->name.length > INT32_MAX || header->value.length > INT32_MAX))
        return row_fault(fault, FAULT_ENCODE_LENGTH, "headers", header->value.length, INT32_MAX, row);
    return 0;
}

// Returns the length of the open batch with a record of this size, which does not include its varint length.
static int64_t length_with(const BatchWriter *writer, int64_t size) {
    return writer->length + varint_width((uint64_t)size << 1) + size;
}

// Returns the number of bytes that the headers from `at` on take, or -1 with the fault.
static __attribute__((noinline)) int64_t headers_size(const HeaderSource *source, int64_t at, int64_t row, Fault *fault) {
    int64_t size = 0;
    for (; at < source->count; at++) {
        HeaderField header;
        if (header_at(source, at, &header, row, fault)) return -1;
        int64_t name = header.name.length, value = header.value.length;
        size += varint_width((uint64_t)name << 1) + name;
        size += value < 0 ? 1 : varint_width((uint64_t)value << 1) + value;
    }
    return size;
}

// Writes the headers of a record at `p`. `body` is the position of the record's body in the buffer, which may be
// reallocated. Returns the position after the headers, or NULL with the fault.
//
// A record that already exceeds the limit is cut: the rest of it is not written, because a dictionary column can make a
// small input expand to a record that would exhaust the memory. *unwritten is then the size of the rest, otherwise 0.
static __attribute__((noinline)) uint8_t *put_headers(BatchWriter *writer, const HeaderSource *source, int64_t body,
                                                      uint8_t *p, int64_t row, int64_t *unwritten, Fault *fault) {
    int64_t begin, most = writer->settings.max_batch_bytes;
    Buffer *buffer = writer_open_buffer(writer, &begin);
    for (int64_t at = 0; at < source->count; at++) {
        HeaderField header;
        if (header_at(source, at, &header, row, fault)) return NULL;
        int64_t room = header.name.length + (header.value.length > 0 ? header.value.length : 0) + HEADER_ROOM;
        int64_t used = p - buffer->data;
        if (unlikely(used + room > (int64_t)buffer->capacity)) {
            if (writer_make_room(writer, used - begin, room, fault)) return NULL;
            p = buffer->data + used;
        }
        p = put_bytes(put_varint(p, (uint64_t)header.name.length << 1), &header.name);
        p = put_payload(p, &header.value, 0, 0);
        used = p - buffer->data;
        // The second test is the exact one: the place of the body in the buffer depends on a guess (see move_body).
        if (unlikely(used - begin > most) && length_with(writer, used - body) > most) {
            *unwritten = headers_size(source, at + 1, row, fault);
            return *unwritten < 0 ? NULL : p;
        }
    }
    return p;
}

// The varint length of a record precedes its body but is known only after the body was written. The body is therefore
// written after as many bytes as the previous record's length took, or, for a large record, as its key and value and
// FEW_BYTES for the rest of it suggest. If that guess was wrong, this function moves the body.
enum { MOVABLE_BYTES = 4096, FEW_BYTES = 16 };

static __attribute__((noinline)) void move_body(uint8_t *body, uint8_t *end, int *guess) {
    int64_t size = end - body;
    int width = varint_width((uint64_t)size << 1);
    memmove(body + width - *guess, body, (size_t)size);
    *guess = width;
}

// Returns the number of bytes of a field; 0 for null.
static inline int64_t payload_bytes(const Payload *payload) {
    return payload->length > 0 ? payload->length : 0;
}

// Writes one record to the open batch. The caller has checked everything but the sizes. *length becomes the length of
// the batch with the record. If that exceeds max_batch_bytes, the record may have been written only in part.
static inline __attribute__((always_inline)) int put_record(BatchWriter *writer, const RecordFields *record,
                                                            const HeaderSource *headers, int64_t row, int64_t *length,
                                                            Fault *fault) {
    int64_t begin;
    Buffer *buffer = writer_open_buffer(writer, &begin);
    int64_t payload = payload_bytes(&record->key) + payload_bytes(&record->value);
    int64_t at = begin + writer->length;
    if (unlikely(payload > INT32_MAX - RECORD_ROOM - 2 * SCHEMA_ID_BYTES))
        return row_fault(fault, FAULT_ENCODE_LENGTH, "record", payload, INT32_MAX, row);
    if (unlikely(at + payload + RECORD_ROOM + 2 * SCHEMA_ID_BYTES > (int64_t)buffer->capacity) &&
        writer_make_room(writer, writer->length, payload + RECORD_ROOM + 2 * SCHEMA_ID_BYTES, fault))
        return -1;
    int64_t delta = record->offset - writer->base_offset;
    if (unlikely(delta > INT32_MAX))
        return row_fault(fault, FAULT_ENCODE_OFFSET_DELTA, "offset", record->offset, writer->base_offset, row);
    if (unlikely(payload > MOVABLE_BYTES)) writer->length_width = varint_width((uint64_t)(payload + FEW_BYTES) << 1);
    int guess = writer->length_width;
    uint8_t *body = buffer->data + at + guess, *p = body;
    *p++ = 0;  // attributes: unused
    p = put_varint(p, zigzag_of64((int64_t)((uint64_t)record->timestamp - (uint64_t)writer->base_timestamp)));
    p = put_varint(p, (uint64_t)delta << 1);
    p = put_payload(p, &record->key, record->has_key_schema_id, record->key_schema_id);
    p = put_payload(p, &record->value, record->has_value_schema_id, record->value_schema_id);
    p = put_varint(p, (uint64_t)headers->count << 1);
    if (headers->count) {
        int64_t body_at = body - buffer->data, unwritten = 0;
        p = put_headers(writer, headers, body_at, p, row, &unwritten, fault);
        if (unlikely(!p)) return -1;
        body = buffer->data + body_at;
        if (unlikely(unwritten)) {
            *length = length_with(writer, p - body + unwritten);
            return 0;
        }
        if (unlikely(p - body > INT32_MAX)) return row_fault(fault, FAULT_ENCODE_LENGTH, "record", p - body, INT32_MAX, row);
    }
    uint64_t size = (uint64_t)(p - body) << 1;
    if (unlikely(varint_width(size) != guess)) {
        int wider = varint_width(size) - guess;  // at most 4 bytes, which fit into the buffer's slack
        move_body(body, p, &writer->length_width);
        p += wider;
    }
    put_varint(buffer->data + at, size);
    *length = p - buffer->data - begin;
    return 0;
}

static __attribute__((noinline)) AppendResult refuse(BatchWriter *writer) {
    int64_t begin;
    Buffer *buffer = writer_open_buffer(writer, &begin);
    buffer->touched = buffer->capacity;  // the number of bytes written is unknown
    if (!writer->count) writer->is_open = 0;  // discards the base offset and timestamp that the invalid record set
    return APPEND_FAULT;
}

// Returns a lower bound of the encoded size of a record.
static inline int64_t least_bytes(const RecordFields *record, const HeaderSource *headers) {
    int64_t bytes = payload_bytes(&record->key) + payload_bytes(&record->value);
    for (int64_t at = 0; headers->fields && at < headers->count; at++)
        bytes += payload_bytes(&headers->fields[at].name) + payload_bytes(&headers->fields[at].value);
    return bytes;
}

// Sets the timestamp of a record whose offset is in stored_times.
static __attribute__((noinline)) void restore_timestamp(const BatchSettings *settings, RecordFields *record) {
    int64_t low = 0, high = settings->stored_times_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (settings->stored_times[middle].offset < record->offset)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < settings->stored_times_count && settings->stored_times[low].offset == record->offset)
        record->timestamp = settings->stored_times[low].timestamp;
}

AppendResult writer_append_from(BatchWriter *writer, RecordFields *record, const HeaderSource *headers, int64_t row,
                                Fault *fault) {
    if (writer->settings.has_append_time) record->timestamp = writer->settings.append_time;
    if (unlikely(writer->settings.stored_times_count) && record->has_offset) restore_timestamp(&writer->settings, record);
    if (!record->has_offset) record->offset = writer->is_open ? writer->last_offset + 1 : writer->next_offset;
    if (unlikely(check_place(writer, record->offset, record->timestamp, row, fault))) return APPEND_FAULT;
    if (unlikely(record->offset - writer->base_offset > INT32_MAX) && writer->settings.ends_at_gap && writer->is_open &&
        writer->count)
        return APPEND_FULL;
    // Check a lower bound before copying: a large record that does not fit would otherwise enlarge the buffer until the
    // batch ends.
    int64_t most = writer->settings.max_batch_bytes;
    if (writer->is_open && writer->count && unlikely(writer->length + least_bytes(record, headers) > most)) return APPEND_FULL;
    if (unlikely(!writer->is_open) && writer_begin_batch(writer, base_for(writer, record->offset), record->timestamp, fault))
        return refuse(writer);
    int64_t length = 0;
    if (unlikely(put_record(writer, record, headers, row, &length, fault))) return refuse(writer);
    if (unlikely(length > most)) {
        note_touched(writer, length);
        if (writer->count) return APPEND_FULL;
        row_fault(fault, FAULT_ENCODE_TOO_LARGE, "record", length, most, row);
        return refuse(writer);
    }
    writer->length = length;
    writer->last_offset = record->offset;
    if (record->timestamp > writer->max_timestamp) writer->max_timestamp = record->timestamp;
    writer->count++;
    writer->has_begun = 1;
    return APPEND_DONE;
}

AppendResult writer_append(BatchWriter *writer, RecordFields *record, int64_t row, Fault *fault) {
    int64_t key = record->key.length, value = record->value.length;
    if (unlikely(key > INT32_MAX || value > INT32_MAX || record->headers_count > INT32_MAX)) {
        row_fault(fault, FAULT_ENCODE_LENGTH, "record", key > INT32_MAX ? key : value, INT32_MAX, row);
        return APPEND_FAULT;
    }
    HeaderSource headers = {NULL, 0, record->headers_count, record->headers};
    return writer_append_from(writer, record, &headers, row, fault);
}

// Finishing a batch.

static int compress_batch(BatchWriter *writer, int codec, int64_t *length, Fault *fault) {
    const uint8_t *records = writer->scratch.data + BATCH_OVERHEAD;
    int64_t size = writer->length - BATCH_OVERHEAD, at = writer->finished + BATCH_OVERHEAD, made;
    if (codec == COMPRESSION_SNAPPY) {
        if (snappy_compress(records, size, &writer->out, at, &made))
            return fault_set(fault, FAULT_NO_MEMORY, "encoded batches", 0, 0);
    } else if (writer->settings.compress(writer->settings.compress_context, codec, records, size, &writer->out, at, &made,
                                         fault)) {
        return -1;
    }
    *length = BATCH_OVERHEAD + made;
    return 0;
}

static int store_as_it_is(BatchWriter *writer, Fault *fault) {
    if (buffer_grow(&writer->out, (size_t)(writer->finished + writer->length), (size_t)writer->finished))
        return fault_set(fault, FAULT_NO_MEMORY, "encoded batches", 0, 0);
    memcpy(writer->out.data + writer->finished + BATCH_OVERHEAD, writer->scratch.data + BATCH_OVERHEAD,
           (size_t)(writer->length - BATCH_OVERHEAD));
    return 0;
}

static int write_header(BatchWriter *writer, BatchHeader *header, int64_t length, Fault *fault) {
    if (length - LOG_OVERHEAD > INT32_MAX)
        return fault_set(fault, FAULT_ENCODE_TOO_LARGE, "batch", length, INT32_MAX);
    header->batch_length = (int32_t)(length - LOG_OVERHEAD);
    header->magic = 2;
    uint8_t *batch = writer->out.data + writer->finished;
    header_write(batch, header);
    store_be32(batch + CRC_POSITION, crc32c(0, batch + ATTRIBUTES_POSITION, (size_t)(length - ATTRIBUTES_POSITION)));
    writer->finished += length;
    writer->is_open = 0;
    writer->length = 0;
    return 0;
}

int writer_finish_batch(BatchWriter *writer, Fault *fault) {
    if (!writer->is_open) return 0;
    const BatchSettings *settings = &writer->settings;
    BatchHeader header = settings->header;
    note_touched(writer, writer->length);
    int64_t delta = writer->last_offset - writer->base_offset, length = writer->length;
    if (settings->has_last_offset && header.last_offset_delta > delta) delta = header.last_offset_delta;
    if (delta > INT64_MAX - 1 - writer->base_offset)
        return fault_set(fault, FAULT_ENCODE_LAST_OFFSET, "last_offset", writer->base_offset, delta);
    if (writer_compresses(writer)) {
        if (compress_batch(writer, header_compression(&header), &length, fault)) return -1;
        if (settings->skip_useless_compression && length >= writer->length) {
            length = writer->length;
            if (store_as_it_is(writer, fault)) return -1;
            header.attributes &= (int16_t)~ATTRIBUTE_COMPRESSION;
        }
    }
    header.base_offset = writer->base_offset;
    header.last_offset_delta = (int32_t)delta;
    header.base_timestamp = writer->base_timestamp;
    if (!settings->has_max_timestamp) header.max_timestamp = writer->max_timestamp;
    header.base_sequence = writer->base_sequence;
    header.records_count = (int32_t)writer->count;
    if (write_header(writer, &header, length, fault)) return -1;
    writer->records_count += writer->count;
    writer->next_offset = writer->base_offset + delta + 1;
    writer->base_sequence = sequence_after(writer->base_sequence, delta + 1);
    return 0;
}

int writer_empty_batch(BatchWriter *writer, Fault *fault) {
    BatchHeader header = writer->settings.header;
    if (buffer_grow(&writer->out, (size_t)(writer->finished + BATCH_OVERHEAD), (size_t)writer->finished))
        return fault_set(fault, FAULT_NO_MEMORY, "encoded batches", 0, 0);
    header.records_count = 0;
    if (!writer->settings.has_base_timestamp) header.base_timestamp = -1;
    if (!writer->settings.has_max_timestamp) header.max_timestamp = -1;
    return write_header(writer, &header, BATCH_OVERHEAD, fault);
}
