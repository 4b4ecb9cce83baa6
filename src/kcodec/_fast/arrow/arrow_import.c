// SPDX-License-Identifier: Apache-2.0
// Format strings of the Arrow C data interface: "z" binary, "u" string, "Z" and "U" their large variants, "vz" and "vu"
// views, "w:N" fixed size, "n" null; "c" "s" "i" "l" int8 to int64 (upper case: unsigned); "ts" unit ":" zone; "+l"
// list, "+L" large list, "+m" map, "+s" struct. The format of a dictionary column is that of its indices.
#include "arrow_import.h"

#include <stdlib.h>

static int integer_width(const char *format, int8_t *is_signed) {
    static const char letters[] = "csilCSIL";
    const char *found = format[0] && !format[1] ? strchr(letters, format[0]) : NULL;
    if (!found) return 0;
    int at = (int)(found - letters);
    *is_signed = at < 4;
    return 1 << (at & 3);
}

static const uint8_t *validity_of(const struct ArrowArray *array) {
    return array->null_count == 0 || array->n_buffers < 1 ? NULL : array->buffers[0];
}

// Returns whether the lengths are valid and the array has `buffers` buffers, of which the second is present if there
// are rows.
static int has_buffers(const struct ArrowArray *array, int64_t buffers) {
    if (array->length < 0 || array->offset < 0 || array->length > INT64_MAX - 1 - array->offset) return 0;
    if (array->n_buffers < buffers || (buffers && !array->buffers)) return 0;
    return !array->length || buffers < 2 || array->buffers[1];
}

static int bind_dictionary(BinaryInput *input, const struct ArrowSchema *schema, const struct ArrowArray *array) {
    input->index_width = (int8_t)integer_width(schema->format, &input->index_signed);
    if (!input->index_width) return BIND_TYPE;
    if (!array->dictionary || !has_buffers(array, 2)) return BIND_INVALID;
    input->values = calloc(1, sizeof *input->values);
    if (!input->values) return BIND_NO_MEMORY;
    int failed = binary_input_bind(input->values, schema->dictionary, array->dictionary);
    input->kind = input->values->kind;
    input->indices = array->buffers[1];
    input->values_length = array->dictionary->length;
    return failed;
}

int binary_input_bind(BinaryInput *input, const struct ArrowSchema *schema, const struct ArrowArray *array) {
    static const uint8_t nothing[1];
    memset(input, 0, sizeof *input);
    const char *format = schema->format;
    if (!has_buffers(array, 0)) return BIND_INVALID;
    input->first = array->offset;
    if (strcmp(format, "n") == 0) return 0;
    input->validity = validity_of(array);
    if (schema->dictionary) return bind_dictionary(input, schema, array);
    const char *view = format[0] == 'v' ? format + 1 : NULL;
    if (view && (strcmp(view, "z") == 0 || strcmp(view, "u") == 0)) {
        if (!has_buffers(array, 3)) return BIND_INVALID;
        input->kind = INPUT_BINARY_VIEW;
        input->offsets = array->buffers[1];
        // The buffers are validity, views, the data buffers, and the sizes of the data buffers.
        input->view_data = array->buffers + 2;
        input->view_data_count = array->n_buffers - 3;
        input->view_data_sizes = array->buffers[array->n_buffers - 1];
        return input->view_data_count && !input->view_data_sizes ? BIND_INVALID : 0;
    }
    if (format[0] == 'w' && format[1] == ':') {
        long width = strtol(format + 2, NULL, 10);
        if (width < 0 || width > INT32_MAX) return BIND_TYPE;
        if (!has_buffers(array, 2) && (width || !has_buffers(array, 0))) return BIND_INVALID;
        input->kind = INPUT_FIXED_SIZE;
        input->width = (int32_t)width;
        input->data = width ? array->buffers[1] : NULL;
        return 0;
    }
    if (strcmp(format, "z") == 0 || strcmp(format, "u") == 0)
        input->kind = INPUT_BINARY;
    else if (strcmp(format, "Z") == 0 || strcmp(format, "U") == 0)
        input->kind = INPUT_LARGE_BINARY;
    else
        return BIND_TYPE;
    if (!has_buffers(array, 3)) return BIND_INVALID;
    input->offsets = array->buffers[1];
    input->data = array->buffers[2];
    if (array->length) {  // an array without rows may have no offsets buffer
        int64_t last = input->first + array->length;
        input->data_length = input->kind == INPUT_BINARY ? ((const int32_t *)input->offsets)[last]
                                                         : ((const int64_t *)input->offsets)[last];
    }
    if (input->data_length < 0 || (input->data_length && !input->data)) return BIND_INVALID;
    if (!input->data) input->data = nothing;  // every value is empty
    input->data_end = input->data + input->data_length;
    return 0;
}

void binary_input_free(BinaryInput *input) {
    if (input->values) {
        binary_input_free(input->values);
        free(input->values);
    }
    memset(input, 0, sizeof *input);
}

static int64_t index_at(const BinaryInput *input, int64_t at) {
    const void *indices = input->indices;
    int is_signed = input->index_signed;
    switch (input->index_width) {
        case 1: return is_signed ? (int64_t)((const int8_t *)indices)[at] : (int64_t)((const uint8_t *)indices)[at];
        case 2: return is_signed ? (int64_t)((const int16_t *)indices)[at] : (int64_t)((const uint16_t *)indices)[at];
        case 4: return is_signed ? (int64_t)((const int32_t *)indices)[at] : (int64_t)((const uint32_t *)indices)[at];
        default: return ((const int64_t *)indices)[at];
    }
}

Payload binary_input_odd(const BinaryInput *input, int64_t row) {
    static const uint8_t nothing[1];
    Payload found = {0, PAYLOAD_NULL, 0};
    int64_t at = input->first + row;
    if (input_is_null(input->validity, at)) return found;
    if (input->index_width) {
        int64_t index = index_at(input, at);
        if (index < 0 || index >= input->values_length) {
            found.length = PAYLOAD_INVALID;
            return found;
        }
        return binary_input_get(input->values, index);
    }
    if (input->kind == INPUT_FIXED_SIZE) {
        found.bytes = input->width ? input->data + at * input->width : nothing;
        found.length = input->width;
        found.readable_end = found.bytes + input->width;
        return found;
    }
    int32_t words[4];
    const uint8_t *view = (const uint8_t *)input->offsets + 16 * at;
    memcpy(words, view, 16);
    found.length = words[0] < 0 ? PAYLOAD_INVALID : words[0];
    if (words[0] <= 12) {
        found.bytes = view + 4;
    } else if (words[2] < 0 || words[2] >= input->view_data_count || words[3] < 0 ||
               words[0] > input->view_data_sizes[words[2]] - words[3]) {
        found.length = PAYLOAD_INVALID;
    } else {
        found.bytes = (const uint8_t *)input->view_data[words[2]] + words[3];
    }
    found.readable_end = found.length < 0 ? NULL : found.bytes + found.length;
    return found;
}

int integer_input_bind(IntegerInput *input, const struct ArrowSchema *schema, const struct ArrowArray *array) {
    memset(input, 0, sizeof *input);
    int8_t is_signed = 0;
    int width = schema->dictionary ? 0 : integer_width(schema->format, &is_signed);
    if (!width || !is_signed) return BIND_TYPE;
    if (!has_buffers(array, 2)) return BIND_INVALID;
    *input = (IntegerInput){(int8_t)width, array->offset, validity_of(array), array->buffers[1], 1, 1};
    return 0;
}

int timestamp_input_bind(IntegerInput *input, const struct ArrowSchema *schema, const struct ArrowArray *array) {
    const char *format = schema->format;
    if (strncmp(format, "ts", 2) != 0 || !format[2] || format[3] != ':') {
        if (strcmp(format, "l") != 0) {
            memset(input, 0, sizeof *input);
            return BIND_TYPE;
        }
        return integer_input_bind(input, schema, array);
    }
    memset(input, 0, sizeof *input);
    if (!has_buffers(array, 2)) return BIND_INVALID;
    *input = (IntegerInput){8, array->offset, validity_of(array), array->buffers[1], 1, 1};
    switch (format[2]) {
        case 's': input->multiply = 1000; return 0;
        case 'm': return 0;
        case 'u': input->divide = 1000; return 0;
        case 'n': input->divide = 1000000; return 0;
        default: input->width = 0; return BIND_TYPE;
    }
}

static int is_named(const struct ArrowSchema *schema, const char *name) {
    return schema->name && strcmp(schema->name, name) == 0;
}

int headers_input_bind(HeadersInput *input, const struct ArrowSchema *schema, const struct ArrowArray *array) {
    memset(input, 0, sizeof *input);
    const char *format = schema->format;
    if (strcmp(format, "n") == 0) return 0;
    int large = strcmp(format, "+L") == 0;
    if (!large && strcmp(format, "+l") != 0 && strcmp(format, "+m") != 0) return BIND_TYPE;
    if (schema->dictionary || schema->n_children != 1) return BIND_TYPE;
    const struct ArrowSchema *entries = schema->children[0];
    if (strcmp(entries->format, "+s") != 0 || entries->n_children != 2) return BIND_TYPE;
    if (array->n_children != 1 || !has_buffers(array, 2)) return BIND_INVALID;
    const struct ArrowArray *entry_array = array->children[0];
    if (entry_array->n_children != 2 || !has_buffers(entry_array, 1)) return BIND_INVALID;
    for (int at = 0; at < 2; at++)
        if (entry_array->children[at]->length < entry_array->offset + entry_array->length) return BIND_INVALID;
    // The first field is the name and the second the value, unless one of them has the other one's name.
    int name = is_named(entries->children[0], "value") || is_named(entries->children[1], "key");
    if (name && (is_named(entries->children[0], "key") || is_named(entries->children[1], "value"))) return BIND_TYPE;
    int failed = binary_input_bind(&input->name, entries->children[name], entry_array->children[name]);
    if (!failed) failed = binary_input_bind(&input->value, entries->children[!name], entry_array->children[!name]);
    if (failed) return failed;
    input->width = large ? 8 : 4;
    input->first = array->offset;
    input->validity = validity_of(array);
    input->offsets = array->buffers[1];
    if (array->length == 0) input->width = 0;  // an array without rows may have no offsets buffer
    input->struct_length = entry_array->length;
    input->struct_first = entry_array->offset;
    input->struct_validity = validity_of(entry_array);
    return 0;
}

// Returns the first of `rows` rows whose offsets are invalid, or -1. A first loop without branches finds out, in a
// fraction of a nanosecond for each row, whether all offsets are valid.
#define CHECK_OFFSETS(type, ends, rows, most)                                                                     \
    do {                                                                                                          \
        int is_invalid = 0;                                                                                       \
        for (int64_t row = 0; row < rows; row++) is_invalid |= -(ends[row] > ends[row + 1]);                      \
        if (likely(!is_invalid && (!rows || (ends[0] >= 0 && ends[rows] <= most)))) return -1;                    \
        for (int64_t row = 0; row < rows; row++)                                                                  \
            if (ends[row] < 0 || ends[row + 1] < ends[row] || ends[row + 1] > most) return row;                   \
        return -1;                                                                                                \
    } while (0)

static int64_t check_offsets32(const int32_t *ends, int64_t rows, int64_t most) { CHECK_OFFSETS(int32_t, ends, rows, most); }
static int64_t check_offsets64(const int64_t *ends, int64_t rows, int64_t most) { CHECK_OFFSETS(int64_t, ends, rows, most); }

int64_t binary_input_check_from(const BinaryInput *input, int64_t first, int64_t rows) {
    int64_t at = input->first + first;
    if (rows <= 0) return -1;  // an array without rows may have no offsets buffer
    if (!input->index_width && (input->kind == INPUT_ABSENT || input->kind == INPUT_FIXED_SIZE)) return -1;
    if (!input->index_width && input->kind == INPUT_BINARY)
        return check_offsets32((const int32_t *)input->offsets + at, rows, input->data_length);
    if (!input->index_width && input->kind == INPUT_LARGE_BINARY)
        return check_offsets64((const int64_t *)input->offsets + at, rows, input->data_length);
    for (int64_t row = 0; row < rows; row++)
        if (binary_input_get(input, first + row).length == PAYLOAD_INVALID) return row;
    return -1;
}

int headers_input_range(const HeadersInput *input, int64_t row, int64_t rows, int64_t *first, int64_t *count) {
    *first = *count = 0;
    if (!input->width || rows <= 0) return 1;
    int64_t end;
    if (input->width == 4) {
        const int32_t *ends = (const int32_t *)input->offsets + input->first + row;
        if (check_offsets32(ends, rows, input->struct_length) >= 0) return 0;
        *first = ends[0];
        end = ends[rows];
    } else {
        const int64_t *ends = (const int64_t *)input->offsets + input->first + row;
        if (check_offsets64(ends, rows, input->struct_length) >= 0) return 0;
        *first = ends[0];
        end = ends[rows];
    }
    *count = end - *first;
    *first += input->struct_first;
    return 1;
}

int64_t headers_input_check(const HeadersInput *input, int64_t rows) {
    HeadersInput all = *input;
    int64_t first, count;
    if (!input->width) return -1;
    if (headers_input_range(input, 0, rows, &first, &count) && binary_input_check_from(&input->name, first, count) < 0 &&
        binary_input_check_from(&input->value, first, count) < 0)
        return -1;
    all.validity = NULL;  // the offsets of null lists are checked as well
    for (int64_t row = 0; row < rows; row++) {
        count = headers_input_count(&all, row, &first);
        if (count < 0 || binary_input_check_from(&input->name, first, count) >= 0 ||
            binary_input_check_from(&input->value, first, count) >= 0)
            return row;
    }
    return -1;
}
