// SPDX-License-Identifier: Apache-2.0
// Access to the columns of other programs through the Arrow C data interface: the bytes, number or headers of each row.
// The interface has no buffer sizes except those of view buffers, so the lengths of arrays and the last offset of each
// column are trusted (pyarrow's validate() compares them with its buffers: see arrow_import.pxi). Everything else is
// checked for each row before it is read: offsets that are negative, decrease or exceed the last one, lists that exceed
// their child array, and views and indices that are out of bounds.
#ifndef KCODEC_ARROW_IMPORT_H
#define KCODEC_ARROW_IMPORT_H

#include "arrow_abi.h"
#include "bounds.h"

typedef enum {
    INPUT_ABSENT,        // no such column, or one of type null: every row is null
    INPUT_BINARY,        // binary, string: int32 offsets
    INPUT_LARGE_BINARY,  // large_binary, large_string: int64 offsets
    INPUT_BINARY_VIEW,   // binary_view, string_view
    INPUT_FIXED_SIZE,    // fixed_size_binary
} BinaryInputKind;

typedef struct BinaryInput {
    BinaryInputKind kind;
    int32_t width;             // INPUT_FIXED_SIZE: bytes of each row
    int64_t first;             // index of row 0 in the buffers
    const uint8_t *validity;   // NULL: nothing is null
    const void *offsets;       // in a view column: the views
    const uint8_t *data;
    int64_t data_length;       // the last offset, which no row may exceed
    const uint8_t *data_end;   // end of the data that may be read
    const void *const *view_data;
    const int64_t *view_data_sizes;
    int64_t view_data_count;
    // dictionary: rows are indices into `values`
    int8_t index_width;        // bytes, 0: no dictionary
    int8_t index_signed;
    const void *indices;
    struct BinaryInput *values;
    int64_t values_length;
} BinaryInput;

typedef struct {
    const uint8_t *bytes;
    int64_t length;            // or PAYLOAD_NULL, PAYLOAD_INVALID
    const uint8_t *readable_end;
} Payload;

enum { PAYLOAD_NULL = -1, PAYLOAD_INVALID = -2 };

typedef struct {               // integers and timestamps
    int8_t width;              // bytes, 0: no such column
    int64_t first;
    const uint8_t *validity;
    const void *data;
    int64_t multiply, divide;  // conversion of timestamps to milliseconds
} IntegerInput;

typedef struct {               // list<struct<key, value>>, large_list of such structs, or map<key, value>
    int8_t width;              // bytes of each list offset, 0: no such column
    int64_t first;
    const uint8_t *validity;
    const void *offsets;
    int64_t struct_length;     // number of structs, which no list offset may exceed
    int64_t struct_first;
    const uint8_t *struct_validity;
    BinaryInput name, value;
} HeadersInput;

// The functions below bind one column and return 0 or one of these errors. BIND_TYPE: the type is not supported.
// BIND_INVALID: lengths or buffers are inconsistent.
enum { BIND_TYPE = -1, BIND_NO_MEMORY = -2, BIND_INVALID = -3 };
int binary_input_bind(BinaryInput *input, const struct ArrowSchema *schema, const struct ArrowArray *array);
void binary_input_free(BinaryInput *input);
int integer_input_bind(IntegerInput *input, const struct ArrowSchema *schema, const struct ArrowArray *array);
int timestamp_input_bind(IntegerInput *input, const struct ArrowSchema *schema, const struct ArrowArray *array);
int headers_input_bind(HeadersInput *input, const struct ArrowSchema *schema, const struct ArrowArray *array);

static inline int input_is_null(const uint8_t *validity, int64_t at) {
    return validity && !(validity[at >> 3] >> (at & 7) & 1);
}

Payload binary_input_odd(const BinaryInput *input, int64_t row);  // views, fixed size, dictionaries
// The functions below return the first row with invalid offsets, even if it is null, or -1 if all are valid. For
// headers the names and values are checked as well.
int64_t binary_input_check_from(const BinaryInput *input, int64_t first, int64_t rows);
static inline int64_t binary_input_check(const BinaryInput *input, int64_t rows) {
    return binary_input_check_from(input, 0, rows);
}
// Returns whether the list offsets of `rows` rows from `row` on are valid, and sets *first and *count to the range of
// headers in these rows.
int headers_input_range(const HeadersInput *input, int64_t row, int64_t rows, int64_t *first, int64_t *count);
int64_t headers_input_check(const HeadersInput *input, int64_t rows);

// Returns a row of a column without a dictionary whose kind is INPUT_BINARY or INPUT_LARGE_BINARY. `has_nulls` is 0 if
// the caller knows that there are no nulls.
static inline __attribute__((always_inline)) Payload binary_input_plain(const BinaryInput *input, int64_t row,
                                                                        BinaryInputKind kind, int has_nulls) {
    Payload found = {0, PAYLOAD_NULL, input->data_end};
    int64_t at = input->first + row, begin, end;
    if (has_nulls && input_is_null(input->validity, at)) return found;
    if (kind == INPUT_BINARY) {
        begin = ((const int32_t *)input->offsets)[at];
        end = ((const int32_t *)input->offsets)[at + 1];
    } else {
        begin = ((const int64_t *)input->offsets)[at];
        end = ((const int64_t *)input->offsets)[at + 1];
    }
    // As unsigned numbers, negative offsets exceed all valid ones, so this tests 0 <= begin <= end <= data_length.
    if (unlikely((uint64_t)begin > (uint64_t)end || (uint64_t)end > (uint64_t)input->data_length)) {
        found.length = PAYLOAD_INVALID;
        return found;
    }
    found.bytes = input->data + begin;
    found.length = end - begin;
    return found;
}

static inline __attribute__((always_inline)) Payload binary_input_get(const BinaryInput *input, int64_t row) {
    if (input->kind == INPUT_ABSENT) return (Payload){0, PAYLOAD_NULL, input->data_end};
    if (unlikely(input->kind > INPUT_LARGE_BINARY || input->index_width)) return binary_input_odd(input, row);
    return binary_input_plain(input, row, input->kind, 1);
}

// Reads the integer of a row. Returns 1 if it is null, else 0. If it does not fit into int64 milliseconds, *overflow is
// set, and *value is the number of seconds in the column.
static inline __attribute__((always_inline)) int integer_input_get(const IntegerInput *input, int64_t row, int64_t *value,
                                                                   int *overflow) {
    int64_t at = input->first + row;
    if (input_is_null(input->validity, at)) return 1;
    int64_t number, product;
    switch (input->width) {
        case 8: number = ((const int64_t *)input->data)[at]; break;
        case 4: number = ((const int32_t *)input->data)[at]; break;
        case 2: number = ((const int16_t *)input->data)[at]; break;
        default: number = ((const int8_t *)input->data)[at]; break;
    }
    if (unlikely(input->multiply != 1)) {
        if (unlikely(__builtin_mul_overflow(number, input->multiply, &product))) *overflow = 1;
        else number = product;
    }
    if (unlikely(input->divide != 1)) number = number / input->divide - (number % input->divide < 0);
    *value = number;
    return 0;
}

// Returns the number of headers of a row, and sets *first to the index of the first one. Returns -1 if the offsets are
// invalid. A null list has no headers.
static inline __attribute__((always_inline)) int64_t headers_input_count(const HeadersInput *input, int64_t row,
                                                                         int64_t *first) {
    int64_t at = input->first + row, begin, end;
    if (input_is_null(input->validity, at)) return 0;
    if (input->width == 4) {
        begin = ((const int32_t *)input->offsets)[at];
        end = ((const int32_t *)input->offsets)[at + 1];
    } else {
        begin = ((const int64_t *)input->offsets)[at];
        end = ((const int64_t *)input->offsets)[at + 1];
    }
    if (unlikely((uint64_t)begin > (uint64_t)end || (uint64_t)end > (uint64_t)input->struct_length)) return -1;
    *first = begin + input->struct_first;
    return end - begin;
}

#endif
