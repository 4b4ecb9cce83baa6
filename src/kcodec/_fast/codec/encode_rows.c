// SPDX-License-Identifier: Apache-2.0
// Encoding of Arrow rows to batches. There are two code paths, as in records.c: fast_rows appends usual rows, and
// append_odd_row appends any row and reports faults.
#include "encode.h"
#include "writing.h"

static int read_schema_id(const IntegerInput *input, int64_t row, int *has, int32_t *id, const char *field, Fault *fault,
                          int64_t named) {
    int64_t number;
    int overflow = 0;
    *has = input->width && !integer_input_get(input, row, &number, &overflow);
    if (!*has) return 0;
    if (number < INT32_MIN || number > INT32_MAX) return row_fault(fault, FAULT_ENCODE_INT32, field, number, INT32_MAX, named);
    *id = (int32_t)number;
    return 0;
}

static int schema_ids(const RowsInput *rows, int64_t row, RecordFields *record, int64_t named, Fault *fault) {
    if (read_schema_id(&rows->key_schema_id, row, &record->has_key_schema_id, &record->key_schema_id, "key_schema_id", fault,
                       named))
        return -1;
    return read_schema_id(&rows->value_schema_id, row, &record->has_value_schema_id, &record->value_schema_id,
                          "value_schema_id", fault, named);
}

// Returns whether a payload of this length, or a null payload (-1), can be part of a record.
static inline int is_writable(int64_t length) { return (uint64_t)length + 1 <= (uint64_t)INT32_MAX + 1; }

static int payload_fault(Fault *fault, const char *field, int64_t length, int64_t named) {
    if (length == PAYLOAD_INVALID) return row_fault(fault, FAULT_ENCODE_INVALID, field, 0, 0, named);
    return row_fault(fault, FAULT_ENCODE_LENGTH, field, length, INT32_MAX, named);
}

static int read_row(const RowsInput *rows, int64_t row, int64_t named,
                                                          RecordFields *record, HeaderSource *headers, Fault *fault) {
    int overflow = 0;
    record->timestamp = rows->default_timestamp;
    if (!rows->timestamp.width || integer_input_get(&rows->timestamp, row, &record->timestamp, &overflow)) {
        if (unlikely(!rows->has_timestamp)) return row_fault(fault, FAULT_ENCODE_NULL, "timestamp", 0, 0, named);
    }
    if (unlikely(overflow)) {
        int64_t most = INT64_MAX / rows->timestamp.multiply;
        return row_fault(fault, FAULT_ENCODE_SECONDS, "timestamp", record->timestamp, most, named);
    }
    if (rows->offset.width && integer_input_get(&rows->offset, row, &record->offset, &overflow))
        return row_fault(fault, FAULT_ENCODE_NULL, "offset", 0, 0, named);
    record->key = binary_input_get(&rows->key, row);
    record->value = binary_input_get(&rows->value, row);
    if (unlikely(!is_writable(record->key.length))) return payload_fault(fault, "key", record->key.length, named);
    if (unlikely(!is_writable(record->value.length))) return payload_fault(fault, "value", record->value.length, named);
    if (headers->input) {
        headers->count = headers_input_count(headers->input, row, &headers->first);
        if (unlikely(headers->count < 0)) return row_fault(fault, FAULT_ENCODE_INVALID, "headers", 0, 0, named);
        if (unlikely(headers->count > INT32_MAX))
            return row_fault(fault, FAULT_ENCODE_LENGTH, "headers", headers->count, INT32_MAX, named);
    }
    if (unlikely(rows->key_schema_id.width || rows->value_schema_id.width)) return schema_ids(rows, row, record, named, fault);
    return 0;
}

enum { ESTIMATE_MOST = 256 << 20 };  // maximum number of bytes reserved by unverified numbers of an exporter

static int64_t offset_at(const BinaryInput *column, int64_t at) {
    return column->kind == INPUT_BINARY ? ((const int32_t *)column->offsets)[at] : ((const int64_t *)column->offsets)[at];
}

// Returns the number of bytes of `count` rows of a column if two of its offsets determine that number, else 0.
static int64_t bytes_of(const BinaryInput *column, int64_t row, int64_t count) {
    int is_bytes = column->kind == INPUT_BINARY || column->kind == INPUT_LARGE_BINARY;
    if (column->index_width || !is_bytes || count <= 0 || column->data_end <= column->data) return 0;
    int64_t begin = offset_at(column, column->first + row), end = offset_at(column, column->first + row + count);
    if (begin < 0 || end < begin || end > column->data_length) return 0;  // the fault is reported when the row is read
    return end - begin < ESTIMATE_MOST ? end - begin : ESTIMATE_MOST;
}

static int64_t list_at(const HeadersInput *headers, int64_t row) {
    int64_t at = headers->first + row;
    return headers->width == 4 ? ((const int32_t *)headers->offsets)[at] : ((const int64_t *)headers->offsets)[at];
}

// Estimates the encoded size of the rows, so that the buffer is reserved once and need not grow. The estimate uses only
// the bytes of these rows, because the columns may contain many more, such as those of a slice.
static int64_t estimate(const RowsInput *rows) {
    const HeadersInput *headers = &rows->headers;
    int64_t bytes = rows->rows < ESTIMATE_MOST / 24 ? rows->rows * 24 : ESTIMATE_MOST;
    bytes += bytes_of(&rows->key, 0, rows->rows) + bytes_of(&rows->value, 0, rows->rows);
    if (headers->width && rows->rows) {
        int64_t first = list_at(headers, 0), end = list_at(headers, rows->rows);
        if (first >= 0 && end >= first && end <= headers->struct_length) {
            int64_t row = first + headers->struct_first;
            bytes += bytes_of(&headers->name, row, end - first) + bytes_of(&headers->value, row, end - first);
        }
    }
    return bytes < ESTIMATE_MOST ? bytes : ESTIMATE_MOST;
}

// Returns whether fast_rows supports the columns of these rows.
static int are_plain(const BatchWriter *writer, const RowsInput *rows) {
    if (writer->settings.has_append_time || rows->offset.width || rows->key_schema_id.width || rows->value_schema_id.width)
        return 0;
    return rows->timestamp.width == 8 && rows->timestamp.multiply == 1 && rows->timestamp.divide == 1;
}

enum { SHORT = 256 };          // fields of at most this size are copied 16 bytes at a time

// A column with int32 offsets and without a dictionary. If `ends` is NULL, every row is null.
typedef struct {
    const int32_t *ends;
    const uint8_t *data, *validity;
    int64_t first;
    int64_t safe_begin;          // a short field that begins here or before may be over-read by OVER_COPY bytes
} PlainColumn;

typedef struct {
    const uint8_t *bytes;
    int64_t length;              // -1: null
    int is_safe;
} PlainField;

static int plain_column(const BinaryInput *input, PlainColumn *column) {
    memset(column, 0, sizeof *column);
    if (input->kind == INPUT_ABSENT && !input->index_width) return 1;
    if (input->kind != INPUT_BINARY || input->index_width) return 0;
    *column = (PlainColumn){(const int32_t *)input->offsets + input->first, input->data, input->validity, input->first,
                            input->data_length - SHORT - OVER_COPY};
    return 1;
}

static inline __attribute__((always_inline)) PlainField plain_get(const PlainColumn *column, int64_t row, int has_nulls) {
    if (has_nulls && (!column->ends || input_is_null(column->validity, column->first + row)))
        return (PlainField){0, PAYLOAD_NULL, 0};
    int64_t begin = column->ends[row], length = column->ends[row + 1] - begin;
    return (PlainField){column->data + begin, length, begin <= column->safe_begin};
}

static inline __attribute__((always_inline)) uint8_t *put_plain(uint8_t *restrict to, const PlainField *field) {
    const uint8_t *restrict from = field->bytes;
    int64_t size = field->length;
    if (unlikely(!field->is_safe)) {
        if (size) memcpy(to, from, (size_t)size);
    } else if (size <= 16) {
        copy16(to, from);
    } else if (likely(size <= SHORT)) {
        int64_t at = 0;
        do {
            copy16(to + at, from + at);
            copy16(to + at + 16, from + at + 16);
        } while ((at += 32) < size);
    } else {
        memcpy(to, from, (size_t)size);
    }
    return to + size;
}

static inline __attribute__((always_inline)) uint8_t *put_nullable(uint8_t *p, const PlainField *field, int has_nulls) {
    if (has_nulls && field->length < 0) {
        *p = 1;
        return p + 1;
    }
    return put_plain(put_varint(p, (uint64_t)field->length << 1), field);
}

// Copies of the variables that the loop below reads. The loop stores through pointers to bytes, which may alias any
// object, so the compiler would otherwise reload all of these variables after every store.
typedef struct {
    const int64_t *timestamps;
    const uint8_t *timestamp_validity;
    int64_t timestamp_first, end;    // end: the row after the last one that has been checked
    PlainColumn key, value, name, content;
    const int32_t *lists;            // NULL: no headers
    const uint8_t *list_validity;
    int64_t list_first, struct_first;
    int has_nulls;                   // whether any column may contain nulls
} PlainRows;

// Returns whether the data of `rows` rows from `row` on is inside the buffers of their columns, so that the loop below
// need not check it. This is one pass over the offsets without branches. If a row is invalid, append_odd_row reads all
// of these rows and reports it.
static int are_inside(const RowsInput *input, int64_t row, int64_t rows) {
    int64_t first, count;
    if (binary_input_check_from(&input->key, row, rows) >= 0 || binary_input_check_from(&input->value, row, rows) >= 0)
        return 0;
    if (!input->headers.width) return 1;
    return headers_input_range(&input->headers, row, rows, &first, &count) &&
           binary_input_check_from(&input->headers.name, first, count) < 0 &&
           binary_input_check_from(&input->headers.value, first, count) < 0;
}

static int may_have_nulls(const PlainRows *rows) {
    if (rows->timestamp_validity || !rows->key.ends || rows->key.validity || !rows->value.ends || rows->value.validity) return 1;
    return rows->lists && (rows->list_validity || !rows->name.ends || rows->name.validity || !rows->content.ends ||
                           rows->content.validity);
}

static int plain_rows(const BatchWriter *writer, const RowsInput *input, PlainRows *plain) {
    const HeadersInput *headers = &input->headers;
    memset(plain, 0, sizeof *plain);
    if (!are_plain(writer, input) || !plain_column(&input->key, &plain->key) || !plain_column(&input->value, &plain->value))
        return 0;
    plain->timestamps = (const int64_t *)input->timestamp.data + input->timestamp.first;
    plain->timestamp_validity = input->timestamp.validity;
    plain->timestamp_first = input->timestamp.first;
    plain->has_nulls = may_have_nulls(plain);
    if (!headers->width) return 1;
    if (headers->width != 4 || headers->struct_validity || !plain_column(&headers->name, &plain->name) ||
        !plain_column(&headers->value, &plain->content))
        return 0;
    plain->lists = (const int32_t *)headers->offsets + headers->first;
    plain->list_validity = headers->validity;
    plain->list_first = headers->first;
    plain->struct_first = headers->struct_first;
    plain->has_nulls = may_have_nulls(plain);
    return 1;
}

static inline __attribute__((always_inline)) int64_t plain_timestamp(const PlainRows *rows, int64_t row, int has_nulls) {
    return has_nulls && input_is_null(rows->timestamp_validity, rows->timestamp_first + row) ? INT64_MIN : rows->timestamps[row];
}

// Writes the headers of a row at q. Returns NULL if a name is null, or if they may not fit before `end`.
static inline __attribute__((always_inline)) uint8_t *fast_headers(const PlainRows *rows, int64_t row, uint8_t *q,
                                                                   const uint8_t *end, int has_nulls) {
    int64_t at = 0, last = 0;
    if (!has_nulls || !input_is_null(rows->list_validity, rows->list_first + row)) {
        at = rows->lists[row] + rows->struct_first;
        last = rows->lists[row + 1] + rows->struct_first;
    }
    q = put_varint(q, (uint64_t)(last - at) << 1);
    for (; at < last; at++) {
        PlainField name = plain_get(&rows->name, at, has_nulls), content = plain_get(&rows->content, at, has_nulls);
        if (unlikely((name.length | (end - q - name.length - content.length - HEADER_ROOM)) < 0))
            return NULL;
        q = put_plain(put_varint(q, (uint64_t)name.length << 1), &name);
        q = put_nullable(q, &content, has_nulls);
    }
    return q;
}

// Appends the checked rows from `row` on to the open batch, up to a row that needs append_odd_row or does not fit.
// Returns the first row that was not appended. *is_full is set if that row does not fit into the batch.
static inline __attribute__((always_inline)) int64_t fast_batch(BatchWriter *writer, const PlainRows *rows, int64_t row,
                                                                int *is_full, int has_nulls, int has_headers) {
    const int64_t base_timestamp = writer->base_timestamp, first_row = row, most = writer->settings.max_batch_bytes;
    int64_t begin, max_timestamp = writer->max_timestamp, delta = writer->last_offset - writer->base_offset + 1;
    Buffer *buffer = writer_open_buffer(writer, &begin);
    const int64_t left = INT64_MAX - 1 - writer->base_offset, most_delta = left < INT32_MAX ? left : INT32_MAX;
    uint8_t *batch = buffer->data + begin, *p = batch + writer->length, *end = buffer->data + buffer->capacity;
    int guess = writer->length_width;
    for (; row < rows->end; row++, delta++) {
        int64_t timestamp = plain_timestamp(rows, row, has_nulls);
        PlainField key = plain_get(&rows->key, row, has_nulls), value = plain_get(&rows->value, row, has_nulls);
        // Both a timestamp below -1 and a delta that is too large set the sign bit, so one test detects either.
        if (unlikely(((int64_t)((uint64_t)timestamp + 1) | (most_delta - delta)) < 0)) break;
        if (unlikely(end - p < key.length + value.length + RECORD_ROOM)) break;
        uint8_t *body = p + guess, *q = body;
        *q++ = 0;
        q = put_varint(q, zigzag_of64((int64_t)((uint64_t)timestamp - (uint64_t)base_timestamp)));
        q = put_varint(q, (uint64_t)delta << 1);
        q = put_nullable(q, &key, has_nulls);
        q = put_nullable(q, &value, has_nulls);
        if (has_headers) {
            q = fast_headers(rows, row, q, end, has_nulls);
            if (unlikely(!q)) break;
        } else {
            *q++ = 0;
        }
        uint64_t size = (uint64_t)(q - body) << 1;
        int width = varint_width(size);
        if (unlikely(width != guess)) {
            if (q + width > end) break;
            memmove(p + width, body, (size_t)(q - body));
            q += width - guess;
            guess = width;
        }
        put_varint(p, size);
        if (unlikely(q - batch > most)) {
            *is_full = delta > 0;
            break;
        }
        p = q;
        if (timestamp > max_timestamp) max_timestamp = timestamp;
    }
    writer->length = p - batch;
    writer->last_offset = (int64_t)((uint64_t)writer->base_offset + (uint64_t)(delta - 1));
    writer->max_timestamp = max_timestamp;
    writer->count += row - first_row;
    writer->length_width = guess;
    return row;
}

// Appends rows, batch after batch, up to a row that needs append_odd_row, which decides, grows memory and names faults.
// Returns the first row that was not appended, or -1 with the fault.
static int64_t fast_rows(BatchWriter *writer, const PlainRows *input, int64_t row, int one_batch, Fault *fault) {
    const PlainRows rows = *input;  // a local copy whose address is never passed on, so that stores cannot alias it
    for (;;) {
        int is_full = 0;
        if (!writer->is_open) {
            int64_t timestamp = plain_timestamp(&rows, row, 1);
            if (timestamp < -1) return row;
            if (writer_begin_batch(writer, writer->next_offset, timestamp, fault)) return -1;
        }
        // fast_batch is inlined with constant arguments, so each loop contains only the tests that its columns need.
        if (rows.has_nulls) row = fast_batch(writer, &rows, row, &is_full, 1, rows.lists != NULL);
        else if (rows.lists) row = fast_batch(writer, &rows, row, &is_full, 0, 1);
        else row = fast_batch(writer, &rows, row, &is_full, 0, 0);
        if (!is_full || one_batch) return row;
        if (writer_finish_batch(writer, fault)) return -1;
    }
}

static int append_odd_row(BatchWriter *writer, const RowsInput *rows, int64_t row, int64_t named, int one_batch,
                          Fault *fault) {
    RecordFields record = {.has_offset = rows->offset.width != 0};
    HeaderSource headers = {rows->headers.width ? &rows->headers : NULL, 0, 0, NULL};
    if (read_row(rows, row, named, &record, &headers, fault)) return -1;
    AppendResult result = writer_append_from(writer, &record, &headers, named, fault);
    if (result == APPEND_FULL && one_batch)
        return row_fault(fault, FAULT_ENCODE_TOO_LARGE, "batch", writer->length, writer->settings.max_batch_bytes, named);
    if (result == APPEND_FULL) {
        if (writer_finish_batch(writer, fault)) return -1;
        result = writer_append_from(writer, &record, &headers, named, fault);
    }
    return result == APPEND_FAULT ? -1 : 0;
}

// Number of rows whose offsets are checked at a time, so that the offsets are still in the L1 cache when they are read.
enum { CHECKED_ROWS = 512 };

int writer_append_rows(BatchWriter *writer, const RowsInput *rows, int64_t first_row, int one_batch, Fault *fault) {
    PlainRows plain;
    int is_plain = plain_rows(writer, rows, &plain);
    if (!writer_compresses(writer) && writer_make_room(writer, writer->length, estimate(rows), fault)) return -1;
    for (int64_t row = 0, end; row < rows->rows; row = end) {
        end = rows->rows - row < CHECKED_ROWS ? rows->rows : row + CHECKED_ROWS;
        int is_checked = is_plain && are_inside(rows, row, end - row);
        plain.end = end;
        for (; row < end; row++) {
            // append_odd_row appends the very first row, because base_offset may differ from the offset of that row.
            if (is_checked && writer->has_begun && (row = fast_rows(writer, &plain, row, one_batch, fault)) < 0) return -1;
            if (row < end && append_odd_row(writer, rows, row, first_row + row, one_batch, fault)) return -1;
        }
    }
    return 0;
}
