// SPDX-License-Identifier: Apache-2.0
// Records as text: the rows of a chunk through a template, a list of parts that are written one after the other for each
// row. JSON lines, the lines of `kcodec dump --records`, CSV and the formats of `kcodec cat` are templates.
//
// How bytes become text, without loss:
//   json     null; a string where the bytes are UTF-8; else {"base64": "..."}, which no string can be mistaken for
//   escaped  \N for null; UTF-8 as it is, but \\ \n \r \t, and \xNN for other control characters and for bytes that are none
//   csv      nothing for null; UTF-8 as it is, in quotes where RFC 4180 asks for them and where it is empty; else, and where
//            a text begins so itself, base64: and the bytes in base64
//   raw      the bytes themselves
// A header name is never null; a header is an object with key and value, as in Arrow.
#ifndef KCODEC_TEXT_H
#define KCODEC_TEXT_H

#include "columns.h"

typedef enum {
    TEXT_LITERAL,         // bytes
    TEXT_INTEGER,         // a fixed column, to `width` characters at least; bytes where it is null
    TEXT_BOOLEAN,         // true or false
    TEXT_TIME,            // of the timestamp: 2026-11-21T09:30:00.000Z, or the number where no such date is
    TEXT_TIMESTAMP_TYPE,  // CreateTime, LogAppendTime or, of magic 0, NoTimestampType
    TEXT_SIZE,            // bytes of key or value, -1 of null, to `width` characters at least
    TEXT_RAW,             // key or value; bytes where it is null; of a control record what it says
    TEXT_JSON,            // key, value or headers
    TEXT_ESCAPED,         // key, value or headers (bytes before them where there are any); of a control record what it says
    TEXT_CSV,             // key, value or headers (these as JSON)
    TEXT_PAIRS,           // headers: name=value,name=value, raw, as kcat's %h; bytes where a value is null
    TEXT_CONTROL_TYPE,    // of a control record its name (or number), as JSON: null of any other
    TEXT_COORDINATOR_EPOCH,  // of an end-transaction marker, null of any other
    TEXT_KIND_COUNT,
} TextKind;

typedef struct {
    TextKind kind;
    ColumnId column;
    int width;
    const uint8_t *bytes;  // borrowed
    int64_t length;
} TextPart;

typedef struct {           // a line that comes before the records of the batch at this position
    int64_t position;
    const uint8_t *bytes;  // borrowed
    int64_t length;
} TextLine;

typedef struct {
    Buffer buffer;
    int64_t length;
    int64_t second;        // whose date stands in `date`, so that it is worked out once
    char date[24];
} TextOutput;

void text_begin(TextOutput *out);
void text_free(TextOutput *out);
int text_append(TextOutput *out, const uint8_t *bytes, int64_t length);
// Rows [first, first + count) of a chunk. `lines` in order of positions; *next_line is moved past those that were
// written. -1: no memory, or more text than one buffer holds.
int text_rows(TextOutput *out, const Chunk *chunk, int64_t first, int64_t count, const TextPart *parts, int parts_count,
              const TextLine *lines, int64_t lines_count, int64_t *next_line);
const char *text_control_name(int control_type);  // NULL: not known here

#endif
