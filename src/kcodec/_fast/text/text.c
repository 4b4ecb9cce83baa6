// SPDX-License-Identifier: Apache-2.0
#include "text.h"

#include <stdlib.h>

#include "bounds.h"
#include "utf8.h"

enum {
    SLICE = 4096,          // number of bytes escaped between two checks of the free buffer space
    MOST_A_BYTE = 6,       // maximum number of characters for one byte: \u00NN
    INTEGER_ROOM = 32,     // maximum number of characters of an integer, including padding
    FIRST_ROOM = 1 << 20,
};

typedef struct {
    const uint8_t *bytes;
    int64_t size;          // -1: null
} Bytes;

void text_begin(TextOutput *out) {
    memset(out, 0, sizeof *out);
    out->second = INT64_MIN;
}

void text_free(TextOutput *out) {
    if (out->buffer.data) buffer_release(&out->buffer, (size_t)out->length);
    out->buffer.data = NULL;
    out->length = 0;
}

static int make_room(TextOutput *out, int64_t more) {
    size_t needed = (size_t)(out->length + more), roomy = out->buffer.capacity * 2;
    if (!out->buffer.data) return buffer_acquire(&out->buffer, needed < FIRST_ROOM ? FIRST_ROOM : needed);
    return buffer_grow(&out->buffer, needed > roomy ? needed : roomy, (size_t)out->length);
}

static inline int room(TextOutput *out, int64_t more) {
    if (likely(out->length + more <= (int64_t)out->buffer.capacity)) return 0;
    return make_room(out, more);
}

static inline uint8_t *end_of(TextOutput *out) { return out->buffer.data + out->length; }

int text_append(TextOutput *out, const uint8_t *bytes, int64_t length) {
    if (room(out, length)) return -1;
    memcpy(end_of(out), bytes, (size_t)length);
    out->length += length;
    return 0;
}

static inline int append_string(TextOutput *out, const char *text) {
    return text_append(out, (const uint8_t *)text, (int64_t)strlen(text));
}

// Numbers.

static const char DIGITS[201] =
    "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
    "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";

// Writes the digits so that they end before `end`, and returns their beginning.
static inline uint8_t *put_digits(uint8_t *end, uint64_t number) {
    while (number >= 100) {
        memcpy(end -= 2, DIGITS + number % 100 * 2, 2);
        number /= 100;
    }
    if (number >= 10) {
        memcpy(end -= 2, DIGITS + number * 2, 2);
    } else {
        *--end = (uint8_t)('0' + number);
    }
    return end;
}

static int append_integer(TextOutput *out, int64_t number, int width) {
    uint8_t digits[24], *end = digits + sizeof digits;
    uint8_t *begin = put_digits(end, number < 0 ? 0 - (uint64_t)number : (uint64_t)number);
    if (number < 0) *--begin = '-';
    int64_t length = end - begin, padding = width > length ? width - length : 0;
    if (room(out, length + padding)) return -1;
    uint8_t *p = end_of(out);
    memset(p, ' ', (size_t)padding);
    memcpy(p + padding, begin, (size_t)length);
    out->length += length + padding;
    return 0;
}

// Appends a date for years 0001 to 9999 of the proleptic Gregorian calendar; else, and for -1 (no timestamp), the
// number.
static int append_time(TextOutput *out, int64_t timestamp) {
    const int64_t least = -62135596800000, most = 253402300799999;
    if (timestamp == -1 || timestamp < least || timestamp > most) return append_integer(out, timestamp, 24);
    int64_t milliseconds = timestamp % 1000, second = timestamp / 1000;
    if (milliseconds < 0) milliseconds += 1000, second--;
    if (second != out->second) {
        int64_t day = second / 86400, rest = second % 86400;
        if (rest < 0) rest += 86400, day--;
        int64_t shifted = day + 719468, era = (shifted >= 0 ? shifted : shifted - 146096) / 146097;
        int64_t of_era = shifted - era * 146097;
        int64_t year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
        int64_t of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        int64_t shifted_month = (5 * of_year + 2) / 153;
        int64_t month = shifted_month < 10 ? shifted_month + 3 : shifted_month - 9;
        int64_t year = year_of_era + era * 400 + (month <= 2);
        int64_t of_month = of_year - (153 * shifted_month + 2) / 5 + 1;
        memcpy(out->date, DIGITS + year / 100 * 2, 2);
        memcpy(out->date + 2, DIGITS + year % 100 * 2, 2);
        memcpy(out->date + 4, "-MM-DDThh:mm:ss.", 16);
        memcpy(out->date + 5, DIGITS + month * 2, 2);
        memcpy(out->date + 8, DIGITS + of_month * 2, 2);
        memcpy(out->date + 11, DIGITS + rest / 3600 * 2, 2);
        memcpy(out->date + 14, DIGITS + rest / 60 % 60 * 2, 2);
        memcpy(out->date + 17, DIGITS + rest % 60 * 2, 2);
        out->second = second;
    }
    if (room(out, 24)) return -1;
    uint8_t *p = end_of(out);
    memcpy(p, out->date, 20);
    p[20] = (uint8_t)('0' + milliseconds / 100);
    memcpy(p + 21, DIGITS + milliseconds % 100 * 2, 2);
    p[23] = 'Z';
    out->length += 24;
    return 0;
}

// Bytes.

static int append_base64(TextOutput *out, Bytes bytes) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if (room(out, (bytes.size + 2) / 3 * 4)) return -1;
    uint8_t *p = end_of(out);
    for (int64_t at = 0; at < bytes.size; at += 3) {
        int64_t left = bytes.size - at;
        uint32_t group = (uint32_t)bytes.bytes[at] << 16 | (left > 1 ? (uint32_t)bytes.bytes[at + 1] << 8 : 0) |
                         (left > 2 ? (uint32_t)bytes.bytes[at + 2] : 0);
        *p++ = (uint8_t)letters[group >> 18];
        *p++ = (uint8_t)letters[group >> 12 & 63];
        *p++ = left > 1 ? (uint8_t)letters[group >> 6 & 63] : '=';
        *p++ = left > 2 ? (uint8_t)letters[group & 63] : '=';
    }
    out->length = p - out->buffer.data;
    return 0;
}

static inline int is_text(Bytes bytes) {
    return utf8_is_ascii(bytes.bytes, (size_t)bytes.size) || utf8_is_valid(bytes.bytes, (size_t)bytes.size);
}

static const char HEX[] = "0123456789abcdef";

// The character after the backslash in the escape sequence of a JSON string: 0 if none is needed, 'u' for \u00NN.
static const uint8_t JSON_ESCAPES[256] = {
    [0 ... 7] = 'u', ['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', [0x0b] = 'u', ['\f'] = 'f', ['\r'] = 'r', [0x0e ... 0x1f] = 'u',
    ['"'] = '"', ['\\'] = '\\',
};

// Values that are JSON themselves contain many quotes, and a branch for them would often be mispredicted. A backslash
// is therefore always written, and the byte is written over it or after it.
static int append_json_string(TextOutput *out, Bytes bytes) {
    const uint8_t *p = bytes.bytes, *end = p + bytes.size;
    if (text_append(out, (const uint8_t *)"\"", 1)) return -1;
    while (p < end) {
        const uint8_t *stop = end - p > SLICE ? p + SLICE : end;
        if (room(out, MOST_A_BYTE * (stop - p) + 16)) return -1;
        uint8_t *q = end_of(out);
        while (p < stop) {
            uint8_t byte = *p++, escape = JSON_ESCAPES[byte], is_escaped = escape != 0;
            q[0] = '\\';
            q[is_escaped] = (uint8_t)(escape | (byte & (is_escaped - 1)));
            q += 1 + is_escaped;
            if (likely(escape != 'u')) continue;
            const uint8_t code[4] = {'0', '0', (uint8_t)HEX[byte >> 4], (uint8_t)HEX[byte & 15]};
            memcpy(q, code, 4);
            q += 4;
        }
        out->length = q - out->buffer.data;
    }
    return text_append(out, (const uint8_t *)"\"", 1);
}

static int append_json(TextOutput *out, Bytes bytes) {
    if (bytes.size < 0) return append_string(out, "null");
    if (likely(is_text(bytes))) return append_json_string(out, bytes);
    return append_string(out, "{\"base64\":\"") || append_base64(out, bytes) || append_string(out, "\"}");
}

static inline int is_plain(uint8_t byte) { return byte >= 0x20 && byte < 0x7f && byte != '\\'; }

// Returns the number of plain bytes at p before the first other byte, at most eight.
static inline int plain_bytes(const uint8_t *p) {
    const uint64_t ones = 0x0101010101010101ull, highs = ones << 7;
    uint64_t word = load_le64(p), backslash = word ^ ones * '\\', delete = word ^ ones * 0x7f;
    uint64_t odd = (word | ((word - ones * 0x20) & ~word) | ((backslash - ones) & ~backslash) |
                    ((delete - ones) & ~delete)) & highs;
    return odd ? __builtin_ctzll(odd) / 8 : 8;
}

static inline uint8_t *put_escaped_byte(uint8_t *q, uint8_t byte) {
    const char *named = byte == '\\' ? "\\\\" : byte == '\n' ? "\\n" : byte == '\r' ? "\\r" : byte == '\t' ? "\\t" : NULL;
    if (named) {
        memcpy(q, named, 2);
        return q + 2;
    }
    const uint8_t code[4] = {'\\', 'x', (uint8_t)HEX[byte >> 4], (uint8_t)HEX[byte & 15]};
    memcpy(q, code, 4);
    return q + 4;
}

// `separators`: bytes that have a meaning in the surrounding text and are therefore escaped.
static int append_escaped(TextOutput *out, Bytes bytes, const char *separators) {
    if (bytes.size < 0) return append_string(out, "\\N");
    const uint8_t *p = bytes.bytes, *end = p + bytes.size;
    while (p < end) {
        const uint8_t *stop = end - p > SLICE ? p + SLICE : end;
        if (room(out, MOST_A_BYTE * (stop - p) + 16)) return -1;
        uint8_t *q = end_of(out);
        while (p < stop) {
            if (!separators && stop - p >= 8) {
                int plain = plain_bytes(p);
                memcpy(q, p, 8);
                q += plain;
                p += plain;
                if (likely(plain == 8)) continue;
            }
            if (likely(is_plain(*p)) && (!separators || !strchr(separators, *p))) {
                *q++ = *p++;
                continue;
            }
            size_t size = *p < 0x80 ? 0 : utf8_character_size(p, (size_t)(end - p));
            // C1 control characters (c2 80 to c2 9f) can control a terminal, as C0 control characters can.
            if (size && !(p[0] == 0xc2 && p[1] < 0xa0)) {
                memcpy(q, p, size);
                q += size;
                p += size;
            } else {
                q = put_escaped_byte(q, *p++);
            }
        }
        out->length = q - out->buffer.data;
    }
    return 0;
}

static int needs_quotes(Bytes bytes) {
    for (int64_t at = 0; at < bytes.size; at++) {
        uint8_t byte = bytes.bytes[at];
        if (byte == '"' || byte == ',' || byte == '\n' || byte == '\r') return 1;
    }
    return bytes.size == 0;
}

// Encloses the output from `begin` on in quotes, and doubles the quotes inside.
static int quote_from(TextOutput *out, int64_t begin) {
    int64_t quotes = 2;
    for (int64_t at = begin; at < out->length; at++) quotes += out->buffer.data[at] == '"';
    if (room(out, quotes)) return -1;
    uint8_t *data = out->buffer.data;
    int64_t to = out->length + quotes;
    int64_t from = out->length;
    out->length = to;
    data[--to] = '"';
    while (from > begin) {
        uint8_t byte = data[--from];
        data[--to] = byte;
        if (byte == '"') data[--to] = '"';
    }
    data[--to] = '"';
    return 0;
}

static int append_csv(TextOutput *out, Bytes bytes) {
    if (bytes.size < 0) return 0;
    int64_t begin = out->length;
    if (!is_text(bytes) || (bytes.size >= 7 && !memcmp(bytes.bytes, "base64:", 7)))
        return append_string(out, "base64:") || append_base64(out, bytes);
    if (text_append(out, bytes.bytes, bytes.size)) return -1;
    return needs_quotes(bytes) ? quote_from(out, begin) : 0;
}

// Columns.

static inline Bytes bytes_at(const BinaryColumn *column, BinaryType type, const Chunk *chunk, int64_t row) {
    if (column->null_count && !bitmap_get(column->validity.data, row)) return (Bytes){NULL, -1};
    if (type == BINARY) {
        const int32_t *ends = (const int32_t *)column->offsets.data;
        return (Bytes){column->data.data + ends[row], ends[row + 1] - ends[row]};
    }
    if (type == LARGE_BINARY) {
        const int64_t *ends = (const int64_t *)column->offsets.data;
        return (Bytes){column->data.data + ends[row], ends[row + 1] - ends[row]};
    }
    const uint8_t *view = column->offsets.data + 16 * row;
    int32_t words[4];
    memcpy(words, view, 16);
    if (words[0] <= 12) return (Bytes){view + 4, words[0]};
    const uint8_t *base = words[2] == 0 ? chunk->view_arena.data : chunk->view_sources[words[2] - 1].base;
    return (Bytes){base + words[3], words[0]};
}

static inline Bytes field_at(const Chunk *chunk, ColumnId column, int64_t row) {
    return bytes_at(column == COLUMN_KEY ? &chunk->key : &chunk->value, chunk->layout.binary_type, chunk, row);
}

static int append_headers(TextOutput *out, const Chunk *chunk, const TextPart *part, int64_t row) {
    const int32_t *lists = (const int32_t *)chunk->header_lists.data;
    int is_json = part->kind == TEXT_JSON || part->kind == TEXT_CSV;
    int64_t begin = out->length;
    if (is_json && append_string(out, "[")) return -1;
    if (part->kind == TEXT_ESCAPED && lists[row] < lists[row + 1] && text_append(out, part->bytes, part->length)) return -1;
    for (int64_t at = lists[row]; at < lists[row + 1]; at++) {
        Bytes name = bytes_at(&chunk->header_name, BINARY, chunk, at);
        Bytes value = bytes_at(&chunk->header_value, BINARY, chunk, at);
        int failed = at > lists[row] && append_string(out, ",");
        if (is_json) {
            failed = failed || append_string(out, "{\"key\":") || append_json(out, name) ||
                     append_string(out, ",\"value\":") || append_json(out, value) || append_string(out, "}");
        } else if (part->kind == TEXT_ESCAPED) {
            failed = failed || append_escaped(out, name, "=,") || append_string(out, "=") ||
                     append_escaped(out, value, "=,");
        } else {
            failed = failed || text_append(out, name.bytes, name.size) || append_string(out, "=") ||
                     (value.size < 0 ? text_append(out, part->bytes, part->length)
                                     : text_append(out, value.bytes, value.size));
        }
        if (failed) return -1;
    }
    if (is_json && append_string(out, "]")) return -1;
    return part->kind == TEXT_CSV ? quote_from(out, begin) : 0;
}

static int append_fixed(TextOutput *out, const Chunk *chunk, const TextPart *part, int64_t row) {
    const uint8_t *data = chunk->fixed[part->column].data;
    int64_t at = chunk_fixed_row(chunk, part->column, row);
    int is_null = (part->column == COLUMN_PARTITION && !chunk->has_partition) ||
                  (part->column == COLUMN_CONTROL_TYPE && chunk->control_type_nulls &&
                   !bitmap_get(chunk->control_type_validity.data, row));
    if (is_null) return text_append(out, part->bytes, part->length);
    switch (column_width(part->column)) {
        case 8: return append_integer(out, ((const int64_t *)data)[at], part->width);
        case 4: return append_integer(out, ((const int32_t *)data)[at], part->width);
        default: return append_integer(out, ((const int16_t *)data)[at], part->width);
    }
}

// Control records.

const char *text_control_name(int control_type) {
    static const char *const names[] = {"ABORT",           "COMMIT",       "LEADER_CHANGE", "SNAPSHOT_HEADER",
                                        "SNAPSHOT_FOOTER", "KRAFT_VERSION", "KRAFT_VOTERS"};
    return control_type < 0 || control_type > 6 ? NULL : names[control_type];
}

// Reads the type in a control record's key (ControlRecordType: version i16, type i16). Decoding reports shorter keys as
// faults.
static int control_type_at(const Chunk *chunk, int64_t row) {
    Bytes key = field_at(chunk, COLUMN_KEY, row);
    return key.size < 4 ? -1 : (int16_t)load_be16(key.bytes + 2);
}

// Reads the coordinator epoch of an end-transaction marker (version i16, coordinator epoch i32). Returns 0 if the
// record is not a marker.
static int coordinator_epoch_at(const Chunk *chunk, int64_t row, int32_t *epoch) {
    int type = control_type_at(chunk, row);
    Bytes value = field_at(chunk, COLUMN_VALUE, row);
    if ((type != CONTROL_ABORT && type != CONTROL_COMMIT) || value.size < 6 || value.bytes[0] & 0x80) return 0;
    *epoch = (int32_t)load_be32(value.bytes + 2);
    return 1;
}

static int append_control_type(TextOutput *out, const Chunk *chunk, int64_t row, const char *quote) {
    int type = control_type_at(chunk, row);
    const char *name = text_control_name(type);
    if (!name) return append_integer(out, type, 0);
    return append_string(out, quote) || append_string(out, name) || append_string(out, quote);
}

static int append_control_field(TextOutput *out, const Chunk *chunk, ColumnId column, int64_t row) {
    int32_t epoch;
    if (column == COLUMN_KEY) return append_control_type(out, chunk, row, "");
    if (!coordinator_epoch_at(chunk, row, &epoch)) return append_escaped(out, field_at(chunk, column, row), NULL);
    return append_string(out, "coordinator_epoch=") || append_integer(out, epoch, 0);
}

// Rows.

static const char *timestamp_type_name(int timestamp_type) {
    return timestamp_type == 0 ? "CreateTime" : timestamp_type == 1 ? "LogAppendTime" : "NoTimestampType";
}

static int append_part(TextOutput *out, const Chunk *chunk, const BatchSpan *span, const TextPart *part, int64_t row) {
    int32_t epoch;
    switch (part->kind) {
        case TEXT_LITERAL: return text_append(out, part->bytes, part->length);
        case TEXT_INTEGER: return append_fixed(out, chunk, part, row);
        case TEXT_BOOLEAN: return append_string(out, bitmap_get(chunk->fixed[part->column].data, row) ? "true" : "false");
        case TEXT_TIME: return append_time(out, ((const int64_t *)chunk->fixed[COLUMN_TIMESTAMP].data)[row]);
        case TEXT_TIMESTAMP_TYPE: return append_string(out, timestamp_type_name(span->timestamp_type));
        case TEXT_SIZE: return append_integer(out, field_at(chunk, part->column, row).size, part->width);
        case TEXT_CONTROL_TYPE:
            return span->is_control ? append_control_type(out, chunk, row, "\"") : append_string(out, "null");
        case TEXT_COORDINATOR_EPOCH:
            if (!span->is_control || !coordinator_epoch_at(chunk, row, &epoch)) return append_string(out, "null");
            return append_integer(out, epoch, 0);
        default: break;
    }
    if (part->column == COLUMN_HEADERS) return append_headers(out, chunk, part, row);
    Bytes bytes = field_at(chunk, part->column, row);
    switch (part->kind) {
        case TEXT_JSON: return append_json(out, bytes);
        case TEXT_CSV: return append_csv(out, bytes);
        default: break;
    }
    if (span->is_control) return append_control_field(out, chunk, part->column, row);
    if (part->kind == TEXT_ESCAPED) return append_escaped(out, bytes, NULL);
    return bytes.size < 0 ? text_append(out, part->bytes, part->length) : text_append(out, bytes.bytes, bytes.size);
}

// Reserves approximately the size of the rows, so that the buffer rarely has to grow, which costs a copy and new pages.
static int reserve_rows(TextOutput *out, const Chunk *chunk, int64_t rows, const TextPart *parts, int parts_count) {
    int64_t row_bytes = 0, payload = 0;
    for (int at = 0; at < parts_count; at++) {
        row_bytes += parts[at].kind == TEXT_LITERAL ? parts[at].length : parts[at].width + 14;
        if (parts[at].column == COLUMN_KEY) payload += chunk->key.length;
        if (parts[at].column == COLUMN_VALUE) payload += chunk->value.length;
        if (parts[at].column == COLUMN_HEADERS)
            payload += chunk->header_name.length + chunk->header_value.length + 20 * chunk->header_count;
    }
    return room(out, rows * row_bytes + (chunk->rows ? (int64_t)((double)payload * (double)rows / (double)chunk->rows * 1.25) : 0));
}

int text_rows(TextOutput *out, const Chunk *chunk, int64_t first, int64_t count, const TextPart *parts, int parts_count,
              const TextLine *lines, int64_t lines_count, int64_t *next_line) {
    const BatchSpan *spans = (const BatchSpan *)chunk->spans.data;
    int64_t span = 0;
    if (reserve_rows(out, chunk, count, parts, parts_count)) return -1;
    for (int64_t row = first; row < first + count; row++) {
        while (span + 1 < chunk->span_count && spans[span + 1].first_row <= row) span++;
        for (; *next_line < lines_count && lines[*next_line].position <= spans[span].position; ++*next_line)
            if (text_append(out, lines[*next_line].bytes, lines[*next_line].length)) return -1;
        for (int part = 0; part < parts_count; part++)
            if (append_part(out, chunk, &spans[span], &parts[part], row)) return -1;
    }
    return 0;
}
