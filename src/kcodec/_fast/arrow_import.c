// SPDX-License-Identifier: Apache-2.0
// Formats as the Arrow C data interface spells them: "z" binary, "u" string, "Z" "U" the large ones, "vz" "vu" views,
// "w:N" fixed size, "n" null; "c" "s" "i" "l" int8 to int64 (upper case: unsigned); "ts" unit ":" zone; "+l" "+L" lists,
// "+m" map, "+s" struct. A dictionary's own format is that of its indices.
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

static int bind_dictionary(BinaryInput *input, const struct ArrowSchema *schema, const struct ArrowArray *array) {
    input->index_width = (int8_t)integer_width(schema->format, &input->index_signed);
    if (!input->index_width || !array->dictionary) return -1;
    input->values = calloc(1, sizeof *input->values);
    if (!input->values) return -2;
    int failed = binary_input_bind(input->values, schema->dictionary, array->dictionary);
    input->kind = input->values->kind;
    input->indices = array->buffers[1];
    input->values_length = array->dictionary->length;
    return failed;
}

int binary_input_bind(BinaryInput *input, const struct ArrowSchema *schema, const struct ArrowArray *array) {
    memset(input, 0, sizeof *input);
    const char *format = schema->format;
    input->first = array->offset;
    if (strcmp(format, "n") == 0) return 0;
    input->validity = validity_of(array);
    if (schema->dictionary) return bind_dictionary(input, schema, array);
    const char *view = format[0] == 'v' ? format + 1 : NULL;
    if (view && (strcmp(view, "z") == 0 || strcmp(view, "u") == 0)) {
        input->kind = INPUT_BINARY_VIEW;
        input->offsets = array->buffers[1];
        // behind validity and views come the data buffers, and last the buffer of their sizes
        input->view_data = array->buffers + 2;
        input->view_data_count = array->n_buffers - 3;
        input->view_data_sizes = array->n_buffers < 3 ? NULL : array->buffers[array->n_buffers - 1];
        return array->n_buffers < 3 ? -1 : 0;
    }
    if (format[0] == 'w' && format[1] == ':') {
        input->kind = INPUT_FIXED_SIZE;
        input->width = (int32_t)strtol(format + 2, NULL, 10);
        input->data = array->buffers[1];
        return input->width < 0 ? -1 : 0;
    }
    if (strcmp(format, "z") == 0 || strcmp(format, "u") == 0)
        input->kind = INPUT_BINARY;
    else if (strcmp(format, "Z") == 0 || strcmp(format, "U") == 0)
        input->kind = INPUT_LARGE_BINARY;
    else
        return -1;
    input->offsets = array->buffers[1];
    input->data = array->buffers[2];
    if (array->length == 0) {  // then there may be no offsets at all
        input->data_end = input->data;
        return 0;
    }
    int64_t last = input->first + array->length;
    input->data_end = input->data + (input->kind == INPUT_BINARY ? ((const int32_t *)input->offsets)[last]
                                                                 : ((const int64_t *)input->offsets)[last]);
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
    if (!width || !is_signed) return -1;
    *input = (IntegerInput){(int8_t)width, array->offset, validity_of(array), array->buffers[1], 1, 1};
    return 0;
}

int timestamp_input_bind(IntegerInput *input, const struct ArrowSchema *schema, const struct ArrowArray *array) {
    const char *format = schema->format;
    if (strncmp(format, "ts", 2) != 0 || !format[2] || format[3] != ':') {
        if (strcmp(format, "l") != 0) {
            memset(input, 0, sizeof *input);
            return -1;
        }
        return integer_input_bind(input, schema, array);
    }
    *input = (IntegerInput){8, array->offset, validity_of(array), array->buffers[1], 1, 1};
    switch (format[2]) {
        case 's': input->multiply = 1000; return 0;
        case 'm': return 0;
        case 'u': input->divide = 1000; return 0;
        case 'n': input->divide = 1000000; return 0;
        default: input->width = 0; return -1;
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
    if (!large && strcmp(format, "+l") != 0 && strcmp(format, "+m") != 0) return -1;
    if (schema->dictionary || schema->n_children != 1 || array->n_children != 1) return -1;
    const struct ArrowSchema *entries = schema->children[0];
    const struct ArrowArray *entry_array = array->children[0];
    if (strcmp(entries->format, "+s") != 0 || entries->n_children != 2 || entry_array->n_children != 2) return -1;
    // by place, whatever they are called; but what says itself that it is the other way round is believed
    int name = is_named(entries->children[0], "value") && is_named(entries->children[1], "key");
    int failed = binary_input_bind(&input->name, entries->children[name], entry_array->children[name]);
    if (!failed) failed = binary_input_bind(&input->value, entries->children[!name], entry_array->children[!name]);
    if (failed) return failed;
    input->width = large ? 8 : 4;
    input->first = array->offset;
    input->validity = validity_of(array);
    input->offsets = array->buffers[1];
    if (array->length == 0) input->width = 0;  // then there may be no offsets at all
    input->struct_first = entry_array->offset;
    input->struct_validity = validity_of(entry_array);
    return 0;
}
