// SPDX-License-Identifier: Apache-2.0
// Two readers of the same format. append_fast reads usual records. It reads ahead of its checks, but only inside memory
// that it has proved once for each record to be readable. At an unusual record it stops without appending it.
// append_checked then reads that record again and checks every read; only it decides whether a record is valid, and
// reports faults. The two functions share the chunk but no decision.
#include "records.h"

#include "crc32c.h"

typedef struct {
    const uint8_t *next;  // NULL if the varint is too long
    uint64_t value;       // before zig-zag
} LongVarint;

// Reads a varint of three or more bytes. The caller has proved that ten bytes can be read. The result is returned by
// value, because passing the address of a variable would keep the hot loop's variables in memory.
static __attribute__((noinline)) LongVarint long_varint(const uint8_t *p, int most) {
    uint64_t raw = 0;
    for (int at = 0; at < most; at++) {
        raw |= (uint64_t)(p[at] & 0x7f) << (7 * at);
        if (p[at] < 0x80) return (LongVarint){p + at + 1, most == 5 ? (uint32_t)raw : raw};
    }
    return (LongVarint){NULL, 0};
}

// Reads the varint at q into a new variable `raw` without zig-zag decoding, so that an odd value is negative, and
// advances q.
#define VARINT(raw, most)                                       \
    uint64_t raw = q[0];                                        \
    if (likely(raw < 0x80)) {                                   \
        q += 1;                                                 \
    } else if (likely(q[1] < 0x80)) {                           \
        raw = (raw & 0x7f) | (uint64_t)q[1] << 7;               \
        q += 2;                                                 \
    } else {                                                    \
        LongVarint varint = long_varint(q, most);               \
        if (!varint.next) goto odd;                             \
        raw = varint.value;                                      \
        q = varint.next;                                        \
    }

static inline __attribute__((always_inline)) void copy16(uint8_t *to, const uint8_t *from) { memcpy(to, from, 16); }

// Copies a field and up to 31 bytes after it, which the input (READ_AHEAD) and the output (BUFFER_SLACK) allow. It uses
// two moves of 16 bytes instead of one of 32 bytes, which would need AVX and is slower for short fields.
static inline __attribute__((always_inline)) void copy_over(uint8_t *restrict to, const uint8_t *restrict from,
                                                            uint64_t size) {
    if (size <= 16) {
        copy16(to, from);
    } else if (likely(size <= 256)) {
        uint64_t at = 0;
        do {
            copy16(to + at, from + at);
            copy16(to + at + 16, from + at + 16);
        } while ((at += 32) < size);
    } else {
        memcpy(to, from, size);
    }
}

// Writes an Arrow view: the length, followed by the bytes themselves if there are at most 12, else by the first 4
// bytes, the index of the buffer and the position in it.
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

static inline int64_t get_end(const void *ends, BinaryType type, int64_t row) {
    return type == BINARY ? ((const int32_t *)ends)[row] : ((const int64_t *)ends)[row];
}

// Marks a row as null. Nulls are counted when the chunk is finished.
static inline int put_null(Buffer *validity, int64_t capacity, int64_t at) {
    if (unlikely(!validity->data) && chunk_begin_validity(validity, capacity)) return -1;
    bitmap_clear(validity->data, at);
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

// The reader that checks every read.

static int check_header(Reader *reader, Field *name, Field *value, Fault *fault) {
    if (read_nullable_bytes(reader, &name->bytes, &name->size, "header name_length", fault)) return -1;
    if (name->size < 0) return fault_set(fault, FAULT_LENGTH_NEGATIVE, "header name_length", name->size, 0);
    return read_nullable_bytes(reader, &value->bytes, &value->size, "header value_length", fault);
}

int check_record(Reader *reader, CheckedRecord *record, Fault *fault) {
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
    record->offset_delta = delta;
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

int records_put_field(Chunk *chunk, const RecordsJob *job, BinaryColumn *column, const Field *field, int64_t row) {
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
    if (field->size < 0) return put_null(&column->validity, chunk->row_capacity, row);
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
            if (put_null(&values->validity, chunk->header_capacity, row)) return -1;
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
    Reader reader = {records, records + length};
    CheckedRecord record;
    if (check_record(&reader, &record, fault) || control_type_of(record.key.bytes, record.key.size, type, fault)) {
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
    if (WANTS(wanted, COLUMN_KEY) && records_put_field(chunk, job, &chunk->key, &record->key, row)) goto no_memory;
    if (WANTS(wanted, COLUMN_VALUE) && records_put_field(chunk, job, &chunk->value, &record->value, row)) goto no_memory;
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
    const BatchHeader *header = job->header;
    if (check_record(&reader, &record, fault)) return -1;
    *position = reader.pos;
    int64_t delta = record.offset_delta;
    if (delta < 0 || delta > header->last_offset_delta)
        return fault_set(fault, FAULT_OFFSET_DELTA_RANGE, "offset_delta", delta, header->last_offset_delta);
    // In a compressed batch an offset that is not above the previous one is a fault. In an uncompressed batch it is
    // allowed, and with keep_position the record is left out.
    int is_refused = header_compression(header) != COMPRESSION_NONE;
    int is_passed = delta < *least_delta;
    if (is_passed && is_refused)
        return fault_set(fault, FAULT_OFFSET_DELTA_ORDER, "offset_delta", delta, *least_delta - 1);
    if (!is_passed && (is_refused || job->keep_position)) *least_delta = delta + 1;
    record.offset = header->base_offset + delta;
    if (at_or_past(record.offset, job->limit)) {
        job->undecided++;
    } else if (is_passed || record.offset < job->start_offset || at_or_past(record.offset, job->end_offset)) {
        job->out_of_range++;
    } else {
        return put_record(chunk, job, &record, fault);
    }
    return 0;
}

// The fast reader of usual records.

// Appends the field at q, whose raw length is `raw` (odd: null), to a column, and advances q. A field whose column was
// not requested is skipped. Data written for a record that turns out to be unusual is after the valid rows and is
// overwritten.
#define FIELD(raw, column_id, column, data, to, ends)                                                              \
    do {                                                                                                           \
        if (likely(!(raw & 1))) {                                                                                  \
            uint64_t size = raw >> 1;                                                                              \
            if (unlikely((int64_t)size > record_end - q)) goto odd;                                                \
            if (WANTS(wanted, column_id)) {                                                                        \
                if (type == BINARY_VIEW) {                                                                         \
                    put_view((uint8_t *)ends + 16 * row, q, (int64_t)size, job->view_buffer,                       \
                             job->view_base + (q - job->records));                                                 \
                } else {                                                                                           \
                    copy_over(to, q, size);                                                                        \
                    to += size;                                                                                    \
                }                                                                                                  \
            }                                                                                                      \
            q += size;                                                                                             \
        } else if (WANTS(wanted, column_id)) {                                                                     \
            if (type == BINARY_VIEW) memset((uint8_t *)ends + 16 * row, 0, 16);                                    \
            if (put_null(&chunk->column.validity, chunk->row_capacity, row)) goto odd;                             \
        }                                                                                                          \
        if (WANTS(wanted, column_id) && type != BINARY_VIEW) put_end(ends, type, row, to - data);                  \
    } while (0)

// See AppendFunction. This function is written once for all layouts: `wanted`, `type`, `fused` and `ordered` (offsets
// must rise) are constants in its callers, so the compiler removes the code that a layout does not need. A record
// counts as appended once `row` was incremented. After an unusual record, the lengths of the columns are restored from
// the ends of the last valid row.
static inline __attribute__((always_inline)) int64_t append_fast(Chunk *chunk, RecordsJob *job, int64_t index,
                                                                 const uint8_t **position, int64_t *least_delta,
                                                                 const uint32_t wanted, const BinaryType type,
                                                                 const int fused, const int ordered) {
    const BatchHeader *header = job->header;
    const uint8_t *p = *position;
    const uint8_t *end = job->records + job->length;
    const uint8_t *safe_end = job->readable_end - READ_AHEAD < end ? job->readable_end - READ_AHEAD : end;
    const int64_t base_offset = header->base_offset, base_timestamp = header->base_timestamp;
    const uint64_t last_delta = 2 * (uint64_t)header->last_offset_delta;  // in the form of a raw varint
    const int64_t first_row = chunk->rows, last_row = first_row + header->records_count - index;
    int64_t row = first_row;
    uint64_t least = 2 * (uint64_t)*least_delta;
    int64_t *restrict offsets = (int64_t *)chunk->fixed[COLUMN_OFFSET].data;
    int64_t *restrict timestamps = (int64_t *)chunk->fixed[COLUMN_TIMESTAMP].data;
    int32_t *restrict sequences = (int32_t *)chunk->fixed[COLUMN_SEQUENCE].data;
    int32_t *restrict lists = (int32_t *)chunk->header_lists.data;
    void *restrict key_ends = chunk->key.offsets.data, *restrict value_ends = chunk->value.offsets.data;
    uint8_t *key_data = chunk->key.data.data, *value_data = chunk->value.data.data;
    uint8_t *key_to = key_data + chunk->key.length, *value_to = value_data + chunk->value.length;
    uint8_t *restrict name_data = chunk->header_name.data.data;
    uint8_t *restrict header_value_data = chunk->header_value.data.data;
    int32_t *restrict name_ends = (int32_t *)chunk->header_name.offsets.data;
    int32_t *restrict header_value_ends = (int32_t *)chunk->header_value.offsets.data;
    int64_t name_at = chunk->header_name.length, header_value_at = chunk->header_value.length;
    int64_t headers_at = chunk->header_count;

    while (row < last_row) {
        const uint8_t *q = p;
        if (unlikely(p >= safe_end)) break;
        VARINT(length, 5)
        if (unlikely(length & 1 || (int64_t)(length >> 1) > safe_end - q)) break;
        const uint8_t *record_end = q + (length >> 1);
        if (fused && unlikely(job->crc_position < record_end)) advance_crc(job, record_end);
        q++;  // attributes: unused, not validated
        VARINT(timestamp_delta, 10)
        if (WANTS(wanted, COLUMN_TIMESTAMP))
            timestamps[row] = (int64_t)((uint64_t)base_timestamp + (uint64_t)zigzag64(timestamp_delta));
        VARINT(delta, 5)
        if (unlikely(delta & 1 || delta > last_delta || (ordered && delta < least))) break;
        if (WANTS(wanted, COLUMN_OFFSET)) offsets[row] = base_offset + (int64_t)(delta >> 1);
        if (WANTS(wanted, COLUMN_SEQUENCE)) sequences[row] = sequence_after(header->base_sequence, (int64_t)(delta >> 1));
        VARINT(key, 5)
        FIELD(key, COLUMN_KEY, key, key_data, key_to, key_ends);
        VARINT(value, 5)
        FIELD(value, COLUMN_VALUE, value, value_data, value_to, value_ends);
        VARINT(headers, 5)
        if (headers) {
            int64_t count = (int64_t)(headers >> 1);
            if (unlikely(headers & 1 || count > record_end - q)) break;
            if (WANTS(wanted, COLUMN_HEADERS) && unlikely(headers_at + count > chunk->header_capacity)) {
                chunk->header_count = headers_at;
                if (chunk_reserve_headers(chunk, count)) break;  // append_checked reports the fault
                name_ends = (int32_t *)chunk->header_name.offsets.data;
                header_value_ends = (int32_t *)chunk->header_value.offsets.data;
            }
            do {
                VARINT(name, 5)
                uint64_t size = name >> 1;
                if (unlikely(name & 1 || (int64_t)size > record_end - q)) goto odd;
                if (WANTS(wanted, COLUMN_HEADERS)) {
                    copy_over(name_data + name_at, q, size);
                    name_at += (int64_t)size;
                    name_ends[headers_at + 1] = (int32_t)name_at;
                }
                q += size;
                VARINT(header_value, 5)
                size = header_value >> 1;  // a null value is rare and left to append_checked
                if (unlikely(header_value & 1 || (int64_t)size > record_end - q)) goto odd;
                if (WANTS(wanted, COLUMN_HEADERS)) {
                    copy_over(header_value_data + header_value_at, q, size);
                    header_value_at += (int64_t)size;
                    header_value_ends[headers_at + 1] = (int32_t)header_value_at;
                }
                q += size;
                headers_at++;
            } while (--count);
        }
        if (WANTS(wanted, COLUMN_HEADERS)) lists[row + 1] = (int32_t)headers_at;
        if (unlikely(q != record_end)) break;
        row++;  // the record is complete and counts from here on
        if (ordered) least = delta + 2;
        p = record_end;  // not q, so that the processor can begin the next record before it knows this record's fields
    }
odd:
    if (header->attributes & ATTRIBUTE_LOG_APPEND_TIME && WANTS(wanted, COLUMN_TIMESTAMP))
        for (int64_t at = first_row; at < row; at++) timestamps[at] = header->max_timestamp;
    chunk->rows = row;
    if (WANTS(wanted, COLUMN_KEY) && type != BINARY_VIEW) chunk->key.length = get_end(key_ends, type, row);
    if (WANTS(wanted, COLUMN_VALUE) && type != BINARY_VIEW) chunk->value.length = get_end(value_ends, type, row);
    if (WANTS(wanted, COLUMN_HEADERS)) {
        chunk->header_count = lists[row];
        chunk->header_name.length = name_ends[chunk->header_count];
        chunk->header_value.length = header_value_ends[chunk->header_count];
    }
    job->delivered += row - first_row;
    *position = p;
    *least_delta = (int64_t)(least >> 1);
    return index + (row - first_row);
}

enum {
    USUAL = 1u << COLUMN_OFFSET | 1u << COLUMN_TIMESTAMP | 1u << COLUMN_KEY | 1u << COLUMN_VALUE | 1u << COLUMN_HEADERS,
    BUILT_PER_RECORD = USUAL | 1u << COLUMN_SEQUENCE,
};

#define INSTANCE(name, wanted_expression, type, fused, ordered)                                                      \
    static __attribute__((noinline)) int64_t name(Chunk *chunk, RecordsJob *job, int64_t index,                     \
                                                  const uint8_t **position, int64_t *least_delta) {                \
        return append_fast(chunk, job, index, position, least_delta, (wanted_expression), type, fused, ordered);   \
    }

#define IS_ORDERED (job->keep_position || header_compression(job->header) != COMPRESSION_NONE)

INSTANCE(append_usual, USUAL, BINARY, 0, 0)
INSTANCE(append_usual_ordered, USUAL, BINARY, 0, 1)
INSTANCE(append_usual_fused, USUAL, BINARY, 1, job->keep_position)
INSTANCE(append_binary, chunk->layout.wanted, BINARY, job->fuse_crc, IS_ORDERED)
INSTANCE(append_large, chunk->layout.wanted, LARGE_BINARY, job->fuse_crc, IS_ORDERED)
INSTANCE(append_usual_views, USUAL, BINARY_VIEW, 0, 1)
INSTANCE(append_usual_views_fused, USUAL, BINARY_VIEW, 1, 0)
INSTANCE(append_views, chunk->layout.wanted, BINARY_VIEW, job->fuse_crc, IS_ORDERED)

AppendFunction records_choose_append(const Chunk *chunk, int fused, int ordered) {
    uint32_t per_record = chunk->layout.wanted & BUILT_PER_RECORD;
    if (chunk->layout.binary_type == LARGE_BINARY) return append_large;
    int is_view = chunk->layout.binary_type == BINARY_VIEW;
    if (per_record != USUAL) return is_view ? append_views : append_binary;
    if (is_view && fused && !ordered) return append_usual_views_fused;
    if (is_view) return ordered && !fused ? append_usual_views : append_views;
    return fused ? append_usual_fused : ordered ? append_usual_ordered : append_usual;
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
    AppendFunction append = records_choose_append(chunk, job->fuse_crc, IS_ORDERED);
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
