// SPDX-License-Identifier: Apache-2.0
#include "arrow_walk.h"

#include "checks.h"
#include "utf8.h"

static uint64_t value_at(const struct ArrowSchema *schema, const struct ArrowArray *array, int64_t row);

static int is_null(const struct ArrowArray *array, int64_t row) {
    const uint8_t *validity = array->n_buffers ? array->buffers[0] : NULL;
    int64_t place = array->offset + row;
    return validity && !(validity[place >> 3] >> (place & 7) & 1);
}

static uint64_t fixed_value(const struct ArrowArray *array, int64_t place, size_t width) {
    return mix_bytes(1, (const uint8_t *)array->buffers[1] + (size_t)place * width, (int64_t)width);
}

static void check_text(const char *format, const uint8_t *bytes, int64_t size) {
    if (format[0] == 'u' || format[0] == 'U') REQUIRE(utf8_is_valid(bytes, (size_t)size));
}

static uint64_t binary_value(const char *format, const struct ArrowArray *array, int64_t place) {
    int is_large = format[0] == 'Z' || format[0] == 'U';
    int64_t begin, end;
    if (is_large) {
        begin = ((const int64_t *)array->buffers[1])[place];
        end = ((const int64_t *)array->buffers[1])[place + 1];
    } else {
        begin = ((const int32_t *)array->buffers[1])[place];
        end = ((const int32_t *)array->buffers[1])[place + 1];
    }
    REQUIRE(0 <= begin && begin <= end);
    const uint8_t *bytes = array->buffers[2];
    if (begin == end) return mix_bytes(2, NULL, 0);
    check_text(format, bytes + begin, end - begin);
    return mix_bytes(2, bytes + begin, end - begin);
}

static uint64_t view_value(const struct ArrowArray *array, int64_t place) {
    const uint8_t *view = (const uint8_t *)array->buffers[1] + 16 * place;
    int32_t words[4];
    memcpy(words, view, 16);
    REQUIRE(words[0] >= 0);
    if (words[0] <= 12) return mix_bytes(2, view + 4, words[0]);
    int64_t sources = array->n_buffers - 3;
    const int64_t *lengths = array->buffers[array->n_buffers - 1];
    REQUIRE(0 <= words[2] && words[2] < sources);
    REQUIRE(0 <= words[3] && (int64_t)words[3] + words[0] <= lengths[words[2]]);
    const uint8_t *bytes = (const uint8_t *)array->buffers[2 + words[2]] + words[3];
    REQUIRE(memcmp(bytes, view + 4, 4) == 0);
    return mix_bytes(2, bytes, words[0]);
}

static uint64_t list_value(const struct ArrowSchema *schema, const struct ArrowArray *array, int64_t place) {
    const int32_t *ends = array->buffers[1];
    REQUIRE(0 <= ends[place] && ends[place] <= ends[place + 1] && ends[place + 1] <= array->children[0]->length);
    uint64_t hash = mix(3, (uint64_t)(ends[place + 1] - ends[place]));
    for (int64_t row = ends[place]; row < ends[place + 1]; row++)
        hash = mix(hash, value_at(schema->children[0], array->children[0], row));
    return hash;
}

static uint64_t value_at(const struct ArrowSchema *schema, const struct ArrowArray *array, int64_t row) {
    int64_t place = array->offset + row;
    if (is_null(array, row)) {
        REQUIRE(schema->flags & ARROW_FLAG_NULLABLE);
        return 5;
    }
    switch (schema->format[0]) {
        case 'l': return fixed_value(array, place, 8);
        case 't': return fixed_value(array, place, 8);
        case 'i': return fixed_value(array, place, 4);
        case 's': return fixed_value(array, place, 2);
        case 'b': return mix(4, ((const uint8_t *)array->buffers[1])[place >> 3] >> (place & 7) & 1);
        case 'z':
        case 'Z':
        case 'u':
        case 'U': return binary_value(schema->format, array, place);
        case 'v': return view_value(array, place);
        default: break;
    }
    if (strcmp(schema->format, "+l") == 0) return list_value(schema, array, place);
    REQUIRE(strcmp(schema->format, "+s") == 0);
    uint64_t hash = 6;
    for (int64_t child = 0; child < array->n_children; child++) {
        REQUIRE(array->children[child]->length >= array->offset + array->length);
        hash = mix(hash, value_at(schema->children[child], array->children[child], place));
    }
    return hash;
}

static void check_nulls(const struct ArrowSchema *schema, const struct ArrowArray *array) {
    int64_t nulls = 0;
    for (int64_t row = 0; row < array->length; row++) nulls += is_null(array, row);
    REQUIRE(array->null_count == nulls || array->null_count == -1);
    REQUIRE(array->n_children == schema->n_children);
    for (int64_t child = 0; child < array->n_children; child++)
        check_nulls(schema->children[child], array->children[child]);
}

uint64_t arrow_walk(uint64_t hash, const struct ArrowSchema *schema, const struct ArrowArray *array) {
    check_nulls(schema, array);
    for (int64_t row = 0; row < array->length; row++) hash = mix(hash, value_at(schema, array, row));
    return hash;
}
