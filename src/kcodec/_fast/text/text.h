// SPDX-License-Identifier: Apache-2.0
// Formatting of records as text. A template is a list of parts, which are written one after the other for each row.
// JSON lines, the lines of `kcodec dump --records`, CSV and the formats of `kcodec cat` are templates.
//
// Bytes are converted to text without loss:
//   json     null, a string if the bytes are UTF-8, else {"base64": "..."}, which differs from every string
//   escaped  \N for null; UTF-8 unchanged, except for \\ \n \r \t; \xNN for other control characters and invalid bytes
//   csv      nothing for null; UTF-8 unchanged, in quotes if RFC 4180 requires them or if it is empty; "base64:" and
//            the bytes in base64 if they are not UTF-8, or if the text itself begins with "base64:"
//   raw      the bytes themselves
// A header name is never null. A header is an object with the fields key and value, as in Arrow.
#ifndef KCODEC_TEXT_H
#define KCODEC_TEXT_H

#include "columns.h"

typedef enum {
    TEXT_LITERAL,         // bytes
    TEXT_INTEGER,         // a fixed-width column, at least `width` characters; `bytes` if it is null
    TEXT_BOOLEAN,         // true or false
    TEXT_TIME,            // the timestamp as 2026-11-21T09:30:00.000Z, or the number if it has no such date
    TEXT_TIMESTAMP_TYPE,  // CreateTime, LogAppendTime or, in magic 0, NoTimestampType
    TEXT_SIZE,            // size of key or value, -1 for null, at least `width` characters
    TEXT_RAW,             // key or value, `bytes` if it is null; a description for a control record
    TEXT_JSON,            // key, value or headers
    TEXT_ESCAPED,         // key, value or headers (with `bytes` before headers); a description for a control record
    TEXT_CSV,             // key, value or headers (headers as JSON)
    TEXT_PAIRS,           // headers as name=value,name=value, raw, as kcat's %h; `bytes` for a null value
    TEXT_CONTROL_TYPE,    // name or number of a control record's type, as JSON; null for other records
    TEXT_COORDINATOR_EPOCH,  // coordinator epoch of an end-transaction marker; null for other records
    TEXT_KIND_COUNT,
} TextKind;

typedef struct {
    TextKind kind;
    ColumnId column;
    int width;
    const uint8_t *bytes;  // borrowed
    int64_t length;
} TextPart;

typedef struct {           // a line that is written before the records of the batch at this position
    int64_t position;
    const uint8_t *bytes;  // borrowed
    int64_t length;
} TextLine;

typedef struct {
    Buffer buffer;
    int64_t length;
    int64_t second;        // the second whose date is in `date`, so that equal dates are computed once
    char date[24];
} TextOutput;

void text_begin(TextOutput *out);
void text_free(TextOutput *out);
int text_append(TextOutput *out, const uint8_t *bytes, int64_t length);
// Appends rows [first, first + count) of a chunk. `lines` must be in the order of positions; *next_line is advanced
// past those that were written. Returns -1 if there is no memory, or if the text is too large for one buffer.
int text_rows(TextOutput *out, const Chunk *chunk, int64_t first, int64_t count, const TextPart *parts, int parts_count,
              const TextLine *lines, int64_t lines_count, int64_t *next_line);
const char *text_control_name(int control_type);  // NULL for an unknown type

#endif
