// SPDX-License-Identifier: Apache-2.0
// Two readers of the same format. append_fast runs while nothing is unusual: it reads ahead of its checks, inside room
// proved once a record, and gives up, changing nothing, at anything odd. append_checked reads that one record again with
// every byte checked, and is the one that decides and names faults. What they share is the chunk, never a decision.
#include "records.h"

#include "crc32c.h"

typedef struct {
    uint64_t value;
    const uint8_t *next;  // NULL: too long
} LongVarint;

// Three bytes and more. The caller has proved that ten can be read.
static __attribute__((noinline)) LongVarint long_varint(const uint8_t *p) {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        uint8_t byte = *p++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return (LongVarint){value, p};
    }
    return (LongVarint){0, NULL};
}

// Reads a zig-zag varint at q into `name` (raw, unsigned) and moves q; what needs more than `most` bytes ends the loop.
#define VARINT(name, most)                                  \
    uint64_t name = *q++;                                   \
    if (unlikely(name >= 0x80)) {                           \
        uint64_t second = *q++;                             \
        if (likely(second < 0x80)) {                        \
            name = (name & 0x7f) | second << 7;             \
        } else {                                            \
            LongVarint varint = long_varint(q - 2);         \
            if (!varint.next || varint.next - (q - 2) > (most)) goto odd; \
            name = varint.value;                            \
            q = varint.next;                                \
        }                                                   \
    }
#define VARINT32(name)        \
    VARINT(name##_raw, 5)     \
    int64_t name = zigzag32((uint32_t)name##_raw);
#define VARINT64(name)        \
    VARINT(name##_raw, 10)    \
    int64_t name = zigzag64(name##_raw);

static inline __attribute__((always_inline)) void copy16(uint8_t *to, const uint8_t *from) { memcpy(to, from, 16); }

// Copies in steps of 32 bytes, beyond the end: both sides have the room (READ_AHEAD, BUFFER_SLACK).
static inline __attribute__((always_inline)) void copy_over(uint8_t *to, const uint8_t *from, int64_t size) {
    copy16(to, from);
    copy16(to + 16, from + 16);
    if (size > 32) {
        if (likely(size <= 256)) {
            for (int64_t at = 32; at < size; at += 32) {
                copy16(to + at, from + at);
                copy16(to + at + 16, from + at + 16);
            }
        } else {
            memcpy(to + 32, from + 32, (size_t)size - 32);
        }
    }
}

// Arrow's view: length, then the bytes themselves up to 12, else 4 of them, the buffer's index and the place in it.
static inline void put_view(uint8_t *view, const uint8_t *bytes, int64_t size, int32_t buffer, int64_t place) {
    int32_t words[4] = {(int32_t)size, 0, 0, 0};
    if (size <= 12) {
        if (size > 0) memcpy(words + 1, bytes, (size_t)size);
    } else {
        memcpy(words + 1, bytes, 4);
        words[2] = buffer;
        words[3] = (int32_t)place;
    }
    memcpy(view, words, 16);
}

static inline void put_end(void *ends, BinaryType type, int64_t row, int64_t end) {
    if (type == BINARY)
        ((int32_t *)ends)[row + 1] = (int32_t)end;
    else
        ((int64_t *)ends)[row + 1] = end;
}

static int put_null(Buffer *validity, int64_t capacity, int64_t at, int64_t *null_count) {
    if (unlikely(!validity->data) && chunk_begin_validity(validity, capacity)) return -1;
    bitmap_clear(validity->data, at);
    ++*null_count;
    return 0;
}

static void advance_crc(RecordsJob *job, const uint8_t *to) {
    const uint8_t *end = job->records + job->length;
    while (job->crc_position < to) {
        int64_t step = end - job->crc_position < FUSE_STEP ? end - job->crc_position : FUSE_STEP;
        job->crc = crc32c(job->crc, job->crc_position, (size_t)step);
        job->crc_position += step;
    }
}

// ---------------------------------------------------------------------------------------------------- the checked way

typedef struct {
    const uint8_t *bytes;
    int32_t size;  // -1 null
} Field;

typedef struct {
    int64_t timestamp_delta, offset;
    Field key, value;
    int32_t headers;
    Reader header_reader;  // at the first header
} CheckedRecord;

static int check_header(Reader *reader, Field *name, Field *value, Fault *fault) {
    if (read_nullable_bytes(reader, &name->bytes, &name->size, "header name_length", fault)) return -1;
    if (name->size < 0) return fault_set(fault, FAULT_LENGTH_NEGATIVE, "header name_length", name->size, 0);
    return read_nullable_bytes(reader, &value->bytes, &value->size, "header value_length", fault);
}

// Reads and checks a whole record, headers included, without writing anything. `reader` ends where the record set ends.
static int check_record(Reader *reader, const BatchHeader *header, int64_t least_delta, CheckedRecord *record,
                        Fault *fault) {
    int32_t length, delta;
    if (read_varint(reader, &length, "record_length", fault)) return -1;
    if (length < 0) return fault_set(fault, FAULT_LENGTH_NEGATIVE, "record_length", length, 0);
    if (length > reader_left(reader))
        return fault_set(fault, FAULT_LENGTH_BEYOND, "record_length", length, reader_left(reader));
    Reader body = {reader->pos, reader->pos + length};
    if (length < 1) return fault_set(fault, FAULT_VARINT_CUT, "attributes", 0, 0);
    body.pos++;  // attributes: unused, not validated
    if (read_varlong(&body, &record->timestamp_delta, "timestamp_delta", fault)) return -1;
    if (read_varint(&body, &delta, "offset_delta", fault)) return -1;
    if (delta < 0 || delta > header->last_offset_delta)
        return fault_set(fault, FAULT_OFFSET_DELTA_RANGE, "offset_delta", delta, header->last_offset_delta);
    if (delta < least_delta) return fault_set(fault, FAULT_OFFSET_DELTA_ORDER, "offset_delta", delta, least_delta - 1);
    record->offset = header->base_offset + delta;
    if (read_nullable_bytes(&body, &record->key.bytes, &record->key.size, "key_length", fault)) return -1;
    if (read_nullable_bytes(&body, &record->value.bytes, &record->value.size, "value_length", fault)) return -1;
    if (read_varint(&body, &record->headers, "headers_count", fault)) return -1;
    if (record->headers < 0) return fault_set(fault, FAULT_LENGTH_NEGATIVE, "headers_count", record->headers, 0);
    if (record->headers > reader_left(&body))
        return fault_set(fault, FAULT_LENGTH_BEYOND, "headers_count", record->headers, reader_left(&body));
    record->header_reader = body;
    Field name, value;
    for (int32_t at = 0; at < record->headers; at++)
        if (check_header(&body, &name, &value, fault)) return -1;
    if (body.pos != body.end)
        return fault_set(fault, FAULT_RECORD_LENGTH_MISMATCH, "record_length", length, length - (body.end - body.pos));
    reader->pos = body.end;
    return 0;
}

static int put_field(Chunk *chunk, RecordsJob *job, BinaryColumn *column, const Field *field, int64_t row) {
    BinaryType type = chunk->layout.binary_type;
    if (type == BINARY_VIEW) {
        int64_t place = field->size > 12 ? job->view_base + (field->bytes - job->records) : 0;
        put_view(column->offsets.data + 16 * row, field->bytes, field->size < 0 ? 0 : field->size, job->view_buffer, place);
    } else {
        if (field->size > 0) {
            memcpy(column->data.data + column->length, field->bytes, (size_t)field->size);
            column->length += field->size;
        }
        put_end(column->offsets.data, type, row, column->length);
    }
    if (field->size < 0) return put_null(&column->validity, chunk->row_capacity, row, &column->null_count);
    if (column->validity.data) bitmap_set(column->validity.data, row);
    return 0;
}

static int put_headers(Chunk *chunk, CheckedRecord *record, Fault *fault) {
    if (chunk_reserve_headers(chunk, record->headers)) return -1;
    BinaryColumn *names = &chunk->header_name, *values = &chunk->header_value;
    for (int32_t at = 0; at < record->headers; at++) {
        Field name, value;
        if (check_header(&record->header_reader, &name, &value, fault)) return -1;
        memcpy(names->data.data + names->length, name.bytes, (size_t)name.size);
        names->length += name.size;
        int64_t row = chunk->header_count;
        put_end(names->offsets.data, BINARY, row, names->length);
        if (value.size > 0) {
            memcpy(values->data.data + values->length, value.bytes, (size_t)value.size);
            values->length += value.size;
        }
        put_end(values->offsets.data, BINARY, row, values->length);
        if (value.size < 0) {
            if (put_null(&values->validity, chunk->header_capacity, row, &values->null_count)) return -1;
        } else if (values->validity.data) {
            bitmap_set(values->validity.data, row);
        }
        chunk->header_count++;
    }
    ((int32_t *)chunk->header_lists.data)[chunk->rows + 1] = (int32_t)chunk->header_count;
    return 0;
}

int control_type_of(const uint8_t *key, int32_t key_length, int16_t *type, Fault *fault) {
    if (key_length < 4) return fault_set(fault, FAULT_CONTROL_KEY_SHORT, "control record key", key_length, 4);
    int16_t version = (int16_t)load_be16(key);
    if (version < 0) return fault_set(fault, FAULT_CONTROL_KEY_VERSION, "control record key version", version, 0);
    *type = (int16_t)load_be16(key + 2);
    return 0;
}

int control_batch_type(const uint8_t *records, int64_t length, int32_t records_count, int16_t *type, Fault *fault) {
    *type = CONTROL_NOT_A_MARKER;
    if (records_count <= 0) return 0;
    BatchHeader loose = {.last_offset_delta = INT32_MAX};
    Reader reader = {records, records + length};
    CheckedRecord record;
    if (check_record(&reader, &loose, 0, &record, fault) ||
        control_type_of(record.key.bytes, record.key.size, type, fault)) {
        fault->record = 0;
        return -1;
    }
    if (*type != CONTROL_ABORT && *type != CONTROL_COMMIT) *type = CONTROL_NOT_A_MARKER;
    return 0;
}

static int put_record(Chunk *chunk, RecordsJob *job, CheckedRecord *record, Fault *fault) {
    const BatchHeader *header = job->header;
    uint32_t wanted = chunk->layout.wanted;
    int64_t row = chunk->rows;
    if (WANTS(wanted, COLUMN_OFFSET)) ((int64_t *)chunk->fixed[COLUMN_OFFSET].data)[row] = record->offset;
    if (WANTS(wanted, COLUMN_TIMESTAMP)) {
        int appended = header->attributes & ATTRIBUTE_LOG_APPEND_TIME;
        int64_t created = (int64_t)((uint64_t)header->base_timestamp + (uint64_t)record->timestamp_delta);
        ((int64_t *)chunk->fixed[COLUMN_TIMESTAMP].data)[row] = appended ? header->max_timestamp : created;
    }
    if (WANTS(wanted, COLUMN_SEQUENCE))
        ((int32_t *)chunk->fixed[COLUMN_SEQUENCE].data)[row] =
            sequence_after(header->base_sequence, record->offset - header->base_offset);
    if (header_is_control(header)) {
        int16_t type;
        if (control_type_of(record->key.bytes, record->key.size, &type, fault)) return -1;
        if (WANTS(wanted, COLUMN_CONTROL_TYPE)) {
            ((int16_t *)chunk->fixed[COLUMN_CONTROL_TYPE].data)[row] = type;
            if (chunk->control_type_validity.data) bitmap_set(chunk->control_type_validity.data, row);
        }
    }
    if (WANTS(wanted, COLUMN_KEY) && put_field(chunk, job, &chunk->key, &record->key, row)) goto no_memory;
    if (WANTS(wanted, COLUMN_VALUE) && put_field(chunk, job, &chunk->value, &record->value, row)) goto no_memory;
    if (WANTS(wanted, COLUMN_HEADERS) && put_headers(chunk, record, fault)) goto no_memory;
    chunk->rows++;
    job->delivered++;
    return 0;
no_memory:
    return fault_set(fault, FAULT_NO_MEMORY, "columns", 0, 0);
}

static int append_checked(Chunk *chunk, RecordsJob *job, const uint8_t **position, int64_t *least_delta, Fault *fault) {
    Reader reader = {*position, job->records + job->length};
    CheckedRecord record;
    if (check_record(&reader, job->header, *least_delta, &record, fault)) return -1;
    *position = reader.pos;
    if (header_compression(job->header)) *least_delta = record.offset - job->header->base_offset + 1;
    if (record.offset >= job->limit) {
        job->undecided++;
    } else if (record.offset < job->start_offset || record.offset >= job->end_offset) {
        job->out_of_range++;
    } else {
        return put_record(chunk, job, &record, fault);
    }
    return 0;
}

// ------------------------------------------------------------------------------------------------- the optimistic way

// Appends records from *position on until one is odd or all are done; the index of the next. Written once for every
// layout: `wanted` and `type` are constants where it is called, so the compiler drops what a layout has no use for.
static inline __attribute__((always_inline)) int64_t append_fast(Chunk *chunk, RecordsJob *job, int64_t index,
                                                                 const uint8_t **position, int64_t *least_delta,
                                                                 const uint32_t wanted, const BinaryType type,
                                                                 const int fused) {
    const BatchHeader *header = job->header;
    const int64_t count = header->records_count;
    const uint8_t *p = *position;
    const uint8_t *end = job->records + job->length;
    const uint8_t *safe_end = job->readable_end - READ_AHEAD < end ? job->readable_end - READ_AHEAD : end;
    const int appended = (header->attributes & ATTRIBUTE_LOG_APPEND_TIME) != 0;
    const uint64_t base_timestamp = (uint64_t)(appended ? header->max_timestamp : header->base_timestamp);
    const uint64_t delta_mask = appended ? 0 : ~0ull;
    const int64_t order_mask = header_compression(header) ? ~0ll : 0;
    const uint32_t last_delta = (uint32_t)header->last_offset_delta;
    const int64_t base_offset = header->base_offset;
    int64_t least = *least_delta, row = chunk->rows;
    int64_t *restrict offsets = (int64_t *)chunk->fixed[COLUMN_OFFSET].data;
    int64_t *restrict timestamps = (int64_t *)chunk->fixed[COLUMN_TIMESTAMP].data;
    int32_t *restrict sequences = (int32_t *)chunk->fixed[COLUMN_SEQUENCE].data;
    int32_t *restrict lists = (int32_t *)chunk->header_lists.data;
    uint8_t *restrict key_data = chunk->key.data.data, *restrict value_data = chunk->value.data.data;
    void *restrict key_ends = chunk->key.offsets.data, *restrict value_ends = chunk->value.offsets.data;
    int64_t key_at = chunk->key.length, value_at = chunk->value.length;
    BinaryColumn *names = &chunk->header_name, *values = &chunk->header_value;
    uint8_t *restrict name_data = names->data.data, *restrict header_value_data = values->data.data;
    int64_t name_at = names->length, header_value_at = values->length, headers_at = chunk->header_count;

    for (; index < count; index++) {
        const uint8_t *q = p;
        if (unlikely(p >= safe_end)) break;
        VARINT32(length)
        if (unlikely((uint64_t)length > (uint64_t)(safe_end - q))) break;
        const uint8_t *record_end = q + length;
        if (fused && unlikely(job->crc_position < record_end)) advance_crc(job, record_end);
        q++;  // attributes: unused, not validated
        VARINT64(timestamp_delta)
        VARINT32(delta)
        if (unlikely((uint64_t)delta > last_delta || delta < least)) break;
        VARINT32(key_length)
        const uint8_t *key = q;
        if (key_length >= 0) {
            if (unlikely(key_length > record_end - q)) break;
            if (WANTS(wanted, COLUMN_KEY) && type != BINARY_VIEW) copy_over(key_data + key_at, q, key_length);
            q += key_length;
        }
        VARINT32(value_length)
        const uint8_t *value = q;
        if (likely(value_length >= 0)) {
            if (unlikely(value_length > record_end - q)) break;
            if (WANTS(wanted, COLUMN_VALUE) && type != BINARY_VIEW) copy_over(value_data + value_at, q, value_length);
            q += value_length;
        }
        VARINT32(headers)
        int64_t name_end = name_at, header_value_end = header_value_at, header_nulls = 0;
        if (headers) {
            if (unlikely((uint64_t)headers > (uint64_t)INT32_MAX || headers > record_end - q)) break;
            if (WANTS(wanted, COLUMN_HEADERS) && unlikely(headers_at + headers > chunk->header_capacity)) {
                chunk->header_count = headers_at;
                if (chunk_reserve_headers(chunk, headers)) break;  // the checked way reports it
            }
            int32_t *restrict name_ends = (int32_t *)names->offsets.data + headers_at;
            int32_t *restrict header_value_ends = (int32_t *)values->offsets.data + headers_at;
            for (int64_t at = 1; at <= headers; at++) {
                VARINT32(name_length)
                if (unlikely(name_length < 0 || name_length > record_end - q)) goto odd;
                if (WANTS(wanted, COLUMN_HEADERS)) {
                    copy_over(name_data + name_end, q, name_length);
                    name_end += name_length;
                    name_ends[at] = (int32_t)name_end;
                }
                q += name_length;
                VARINT32(header_value_length)
                if (likely(header_value_length >= 0)) {
                    if (unlikely(header_value_length > record_end - q)) goto odd;
                    if (WANTS(wanted, COLUMN_HEADERS)) {
                        copy_over(header_value_data + header_value_end, q, header_value_length);
                        header_value_end += header_value_length;
                    }
                    q += header_value_length;
                } else {
                    header_nulls++;
                }
                if (WANTS(wanted, COLUMN_HEADERS)) header_value_ends[at] = (int32_t)header_value_end;
            }
        }
        if (unlikely(q != record_end || header_nulls)) break;  // null header values are rare: the checked way does them
        // the record is whole: from here on it counts
        if (WANTS(wanted, COLUMN_OFFSET)) offsets[row] = base_offset + delta;
        if (WANTS(wanted, COLUMN_TIMESTAMP))
            timestamps[row] = (int64_t)(base_timestamp + ((uint64_t)timestamp_delta & delta_mask));
        if (WANTS(wanted, COLUMN_SEQUENCE)) sequences[row] = sequence_after(header->base_sequence, delta);
        if (WANTS(wanted, COLUMN_KEY)) {
            if (type == BINARY_VIEW) {
                put_view((uint8_t *)key_ends + 16 * row, key, key_length < 0 ? 0 : key_length, job->view_buffer,
                         job->view_base + (key - job->records));
            } else {
                key_at += key_length & ~(key_length >> 63);
                put_end(key_ends, type, row, key_at);
            }
            if (key_length < 0 && put_null(&chunk->key.validity, chunk->row_capacity, row, &chunk->key.null_count)) break;
        }
        if (WANTS(wanted, COLUMN_VALUE)) {
            if (type == BINARY_VIEW) {
                put_view((uint8_t *)value_ends + 16 * row, value, value_length < 0 ? 0 : value_length,
                         job->view_buffer, job->view_base + (value - job->records));
            } else {
                value_at += value_length & ~(value_length >> 63);
                put_end(value_ends, type, row, value_at);
            }
            if (unlikely(value_length < 0) &&
                put_null(&chunk->value.validity, chunk->row_capacity, row, &chunk->value.null_count))
                break;
        }
        if (WANTS(wanted, COLUMN_HEADERS)) {
            headers_at += headers;
            lists[row + 1] = (int32_t)headers_at;
            name_at = name_end;
            header_value_at = header_value_end;
        }
        row++;
        least = (delta + 1) & order_mask;
        p = record_end;
    }
odd:
    job->delivered += row - chunk->rows;
    chunk->rows = row;
    chunk->key.length = key_at;
    chunk->value.length = value_at;
    if (WANTS(wanted, COLUMN_HEADERS)) {
        chunk->header_count = headers_at;
        names->length = name_at;
        values->length = header_value_at;
    }
    *position = p;
    *least_delta = least;
    return index;
}

enum {
    USUAL = 1u << COLUMN_OFFSET | 1u << COLUMN_TIMESTAMP | 1u << COLUMN_KEY | 1u << COLUMN_VALUE | 1u << COLUMN_HEADERS,
    BUILT_PER_RECORD = USUAL | 1u << COLUMN_SEQUENCE,
};

#define INSTANCE(name, wanted_expression, type, fused)                                                              \
    static __attribute__((noinline)) int64_t name(Chunk *chunk, RecordsJob *job, int64_t index,                     \
                                                  const uint8_t **position, int64_t *least_delta) {                \
        return append_fast(chunk, job, index, position, least_delta, (wanted_expression), type, fused);            \
    }

INSTANCE(append_usual, USUAL, BINARY, 0)
INSTANCE(append_usual_fused, USUAL, BINARY, 1)
INSTANCE(append_binary, chunk->layout.wanted, BINARY, job->fuse_crc)
INSTANCE(append_large, chunk->layout.wanted, LARGE_BINARY, job->fuse_crc)
INSTANCE(append_views, chunk->layout.wanted, BINARY_VIEW, job->fuse_crc)

typedef int64_t (*AppendFunction)(Chunk *, RecordsJob *, int64_t, const uint8_t **, int64_t *);

static AppendFunction choose_append(const Chunk *chunk, const RecordsJob *job) {
    uint32_t per_record = chunk->layout.wanted & BUILT_PER_RECORD;
    if (chunk->layout.binary_type == LARGE_BINARY) return append_large;
    if (chunk->layout.binary_type == BINARY_VIEW) return append_views;
    if (per_record == USUAL) return job->fuse_crc ? append_usual_fused : append_usual;
    return append_binary;
}

int records_append(Chunk *chunk, RecordsJob *job, Fault *fault) {
    const BatchHeader *header = job->header;
    const uint8_t *position = job->records;
    int64_t index = 0, least_delta = 0, count = header->records_count, first_row = chunk->rows;
    if (count > job->length / LEAST_RECORD) {
        if (job->fuse_crc) advance_crc(job, job->records + job->length);
        return fault_set(fault, FAULT_COUNT_TOO_BIG, "records_count", count, job->length);
    }
    if (chunk_reserve(chunk, count, job->length)) return fault_set(fault, FAULT_NO_MEMORY, "columns", 0, 0);
    AppendFunction append = choose_append(chunk, job);
    int always_checked = job->is_filtered || header_is_control(header);
    int result = 0;
    while (index < count) {
        if (!always_checked) index = append(chunk, job, index, &position, &least_delta);
        if (index == count) break;
        if ((result = append_checked(chunk, job, &position, &least_delta, fault))) {
            fault->record = index;
            break;
        }
        index++;
    }
    if (job->fuse_crc) advance_crc(job, job->records + job->length);
    if (result) return result;
    int64_t left = job->records + job->length - position;
    if (left) return fault_set(fault, FAULT_BYTES_LEFT, "records_count", left, count);
    if (chunk_fill_constants(chunk, header, first_row)) return fault_set(fault, FAULT_NO_MEMORY, "columns", 0, 0);
    if (chunk->layout.timestamp_microseconds && WANTS(chunk->layout.wanted, COLUMN_TIMESTAMP))
        return chunk_to_microseconds(chunk, first_row, fault);
    return 0;
}
