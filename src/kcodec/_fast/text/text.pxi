# SPDX-License-Identifier: Apache-2.0
# Formatting of records as text, for kcodec.text. text.h describes how bytes are converted to text.

cdef dict _TEXT_KINDS = {
    "integer": TEXT_INTEGER, "boolean": TEXT_BOOLEAN, "time": TEXT_TIME, "timestamp_type": TEXT_TIMESTAMP_TYPE,
    "size": TEXT_SIZE, "raw": TEXT_RAW, "json": TEXT_JSON, "escaped": TEXT_ESCAPED, "csv": TEXT_CSV,
    "pairs": TEXT_PAIRS, "control_type": TEXT_CONTROL_TYPE, "coordinator_epoch": TEXT_COORDINATOR_EPOCH,
}
# The columns that each kind accepts. The kinds below them accept no column and read these columns themselves.
cdef dict _TEXT_COLUMNS = {
    "integer": tuple(name for column, name in enumerate(COLUMNS) if column_width(column)),
    "boolean": ("is_transactional", "is_control"),
    "size": ("key", "value"), "raw": ("key", "value"), "json": ("key", "value", "headers"),
    "escaped": ("key", "value", "headers"), "csv": ("key", "value", "headers"), "pairs": ("headers",),
}
cdef dict _TEXT_OWN_COLUMNS = {
    "time": ("timestamp",), "timestamp_type": (), "control_type": ("key",), "coordinator_epoch": ("key", "value"),
}
cdef enum:
    MOST_TEXT_WIDTH = 1000


cdef class TextBytes:
    """Text of records (`rows` of them), a read-only buffer. Its memory is reused when its last view is released."""

    cdef TextOutput out
    cdef readonly int64_t rows

    def __init__(self):
        raise TypeError("TextBytes cannot be created directly: call TextTemplate.format()")

    def __cinit__(self):
        text_begin(&self.out)

    def __dealloc__(self):
        text_free(&self.out)

    def __len__(self):
        return self.out.length

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        cdef void *data = self.out.buffer.data
        PyBuffer_FillInfo(buffer, self, data if data != NULL else <void *>&self.rows, self.out.length, 1, flags)

    def __repr__(self):
        return f"<TextBytes {self.out.length} bytes of {self.rows} rows>"


cdef class TextTemplate:
    """The format in which each record is written, and the columns it needs. Immutable.

    parts: Bytes, which are written as they are, and tuples (kind, column, width, null), whose last elements may be
    missing. width is the minimum number of characters of a number, null the bytes written for a missing value. text.h
    lists the kinds.

    Raise ValueError if a kind is unknown or does not accept the column.
    """

    cdef readonly tuple parts, columns
    cdef TextPart *list
    cdef int count

    def __cinit__(self, parts):
        self.parts = tuple(parts)
        self.list = <TextPart *>calloc(len(self.parts) + 1, sizeof(TextPart))
        if self.list == NULL:
            raise MemoryError("no memory for a template")
        needed, kept = {"offset": None}, []
        for part in self.parts:
            kept.append(self._add(part, needed))
        self.parts = tuple(kept)
        self.columns = tuple(needed)

    def __dealloc__(self):
        free(self.list)

    cdef object _add(self, object part, dict needed):
        cdef TextPart *out = &self.list[self.count]
        if isinstance(part, bytes):
            kind, name, width, null = "literal", None, 0, part
            out.kind = TEXT_LITERAL
        else:
            given = tuple(part)
            if not 1 <= len(given) <= 4:
                raise ValueError(f"a part must be bytes or (kind, column, width, null), not {part!r}")
            kind, name, width, null = given + (None, 0, b"")[len(given) - 1 :]
            out.kind = _choice("kind of text", kind, _TEXT_KINDS)
            if kind in _TEXT_COLUMNS:
                if name not in _TEXT_COLUMNS[kind]:
                    raise _choice_error("column", name, _TEXT_COLUMNS[kind])
                out.column = _COLUMN_IDS[name]
                needed[name] = None
            needed.update(dict.fromkeys(_TEXT_OWN_COLUMNS.get(kind, ())))
        if not 0 <= width <= MOST_TEXT_WIDTH:
            raise ValueError(f"width must be between 0 and {MOST_TEXT_WIDTH}, not {width}")
        out.width = width
        kept = bytes(null)
        out.bytes = <const uint8_t *><const char *>kept
        out.length = len(kept)
        self.count += 1
        return kept if kind == "literal" else (kind, name, width, kept)

    def format(self, DecodedRecords decoded not None, most=None, lines=()):
        """Return the records in `decoded` as TextBytes: all, or the first `most` of them.

        lines: (position, bytes) pairs in order of positions. Each is written before the records of the batch that
               begins at its position, or of the next batch; the remaining ones are written last.

        Raise ValueError if a column is missing.
        """
        cdef TextBytes text = TextBytes.__new__(TextBytes)
        cdef int64_t left = INT64_MAX if most is None else most, rows, next_line = 0, count = len(lines), at
        cdef _Rows part
        cdef int failed = 0
        for name in self.columns:
            if name not in decoded._layout.columns:
                raise ValueError(f"column {name!r} is missing: the template needs {', '.join(self.columns)}")
        cdef TextLine *sorted_lines = <TextLine *>calloc(count + 1, sizeof(TextLine))
        if sorted_lines == NULL:
            raise MemoryError("no memory for lines")
        kept = []  # keeps the bytes of the lines alive
        try:
            for at in range(count):
                position, line = lines[at]
                kept.append(<bytes?>line)
                sorted_lines[at].position = position
                sorted_lines[at].bytes = <const uint8_t *>PyBytes_AS_STRING(line)
                sorted_lines[at].length = PyBytes_GET_SIZE(line)
            for part in decoded._parts:
                rows = min(part.count, left)
                with nogil:
                    failed = text_rows(&text.out, part.chunk, part.first, rows, self.list, self.count, sorted_lines,
                                       count, &next_line)
                if failed:
                    raise MemoryError("no memory for text")
                left -= rows
                text.rows += rows
            while next_line < count:
                if text_append(&text.out, sorted_lines[next_line].bytes, sorted_lines[next_line].length):
                    raise MemoryError("no memory for text")
                next_line += 1
        finally:
            free(sorted_lines)
        return text

    def __repr__(self):
        return f"<TextTemplate of {', '.join(self.columns)}>"

    def __reduce__(self):
        return TextTemplate, (self.parts,)
