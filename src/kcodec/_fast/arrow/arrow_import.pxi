# SPDX-License-Identifier: Apache-2.0
# Import of Arrow data by the PyCapsule interface, from any object with __arrow_c_stream__ or __arrow_c_array__.
#
# The interface has no buffer sizes, and pyarrow does not validate data that it reads from IPC files. Objects of pyarrow
# are therefore validated before they are exported, which compares the last offset of each column with its buffer. All
# other offsets are checked in C for each row. For objects of other libraries the last offset is trusted.

cdef enum:  # kinds of pyarrow objects
    PYARROW_TABLE = 1   # or a record batch
    PYARROW_ARRAY = 2   # or a chunked array
    PYARROW_READER = 3
    HAS_STREAM = 4      # a flag that is added to the kind: the object has __arrow_c_stream__

# The classes (tables and batches, arrays, readers), once the program has imported pyarrow; this code never imports it.
cdef tuple _pyarrow_kinds = None
cdef dict _pyarrow_types = {}  # exact type -> kind, of the types of pyarrow that have been seen


cdef int _kind_of(object source) except -1:
    """Return the kind of a pyarrow object; 0 for other objects."""
    known = _pyarrow_types.get(type(source))
    return _kind_of_new(source) if known is None else <int>known


cdef int _kind_of_new(object source) except -1:
    global _pyarrow_kinds
    cdef int kind = 0
    if _pyarrow_kinds is None:
        pyarrow = sys.modules.get("pyarrow")
        try:
            _pyarrow_kinds = ((pyarrow.Table, pyarrow.RecordBatch), (pyarrow.Array, pyarrow.ChunkedArray),
                              (pyarrow.RecordBatchReader,))
        except AttributeError:  # not imported, or another thread is importing it
            return 0
    for number, types in enumerate(_pyarrow_kinds, 1):
        if isinstance(source, types):
            kind = number
            break
    if kind and hasattr(source, "__arrow_c_stream__"):
        kind |= HAS_STREAM
    if kind and type(source).__module__ == "pyarrow.lib":  # subclasses elsewhere may be numerous and short-lived
        _pyarrow_types[type(source)] = kind
    return kind


cdef int _validate_pyarrow(object source, int kind, object columns) except -1:
    """Raise EncodeError unless the columns of these names are valid, as far as pyarrow checks without reading all
    rows."""
    if kind & ~HAS_STREAM == PYARROW_TABLE:
        try:
            source.validate()
        except ValueError:  # pyarrow.ArrowInvalid: find the column, and ignore it if it is not one of `columns`
            for index in range(source.num_columns):
                field = source.schema.field(index)
                if field.name in columns:
                    _validate_column(source.column(index), field.name)
    elif kind & ~HAS_STREAM == PYARROW_ARRAY:
        _validate_column(source, None)
    return 0


cdef int _validate_column(object column, object name) except -1:
    try:
        column.validate()
    except ValueError as error:  # pyarrow.ArrowInvalid
        place = "the Arrow data" if name is None else f"column {name!r}"
        raise EncodeError(f"{place} is invalid: {error}; check the program that created it, or drop the column",
                          field=name, value=None) from error
    return 0


cdef _ArrowSource _arrow_source_of(object source, object columns):
    """Return an iterator over the arrays of an Arrow object. The columns of these names are validated if it is an
    object of pyarrow."""
    cdef _ArrowSource found = _ArrowSource.__new__(_ArrowSource)
    cdef int kind = _kind_of(source)
    if kind & ~HAS_STREAM == PYARROW_READER:
        found.reader = source
        found.columns = columns
        found.capsules = source.schema.__arrow_c_schema__()
        found.schema = <ImportedSchema *>PyCapsule_GetPointer(found.capsules, b"arrow_schema")
        return found
    if kind:
        _validate_pyarrow(source, kind, columns)
        found.in_memory = True
        found.open(source, kind & HAS_STREAM)
    else:
        found.open(source, hasattr(source, "__arrow_c_stream__"))
    return found


cdef class _ArrowSource:
    """An iterator over the arrays of an Arrow object: each next_array() sets `array`, whose type is `schema`."""

    cdef ImportedSchema own_schema
    cdef ImportedArray own_array
    cdef ImportedSchema *schema
    cdef ImportedArray *array
    cdef ImportedStream *stream
    cdef object capsules        # the exporter's capsules, which keep their contents alive
    cdef bint has_single, in_memory   # in_memory: the next array of the stream is available without waiting
    cdef object reader          # a pyarrow.RecordBatchReader, whose batches are validated one by one
    cdef object columns, batch

    cdef int open(self, object source, bint has_stream) except -1:
        if has_stream:
            self.capsules = source.__arrow_c_stream__()
            self.stream = <ImportedStream *>PyCapsule_GetPointer(self.capsules, b"arrow_array_stream")
            if self.stream.release == NULL:  # another consumer has already taken the stream
                raise ValueError("the Arrow stream was read before: it can be read only once")
            if self.stream.get_schema(self.stream, &self.own_schema):
                raise self._stream_error()
            self.schema = &self.own_schema
        else:
            self.capsules = source.__arrow_c_array__()
            self.schema = <ImportedSchema *>PyCapsule_GetPointer(self.capsules[0], b"arrow_schema")
            self.array = <ImportedArray *>PyCapsule_GetPointer(self.capsules[1], b"arrow_array")
            if self.schema.release == NULL or self.array.release == NULL:
                raise ValueError("the Arrow array was read before: its capsules can be read only once")
            self.has_single = True
        return 0

    def __dealloc__(self):
        if self.own_array.release != NULL:
            self.own_array.release(&self.own_array)
        if self.own_schema.release != NULL:
            self.own_schema.release(&self.own_schema)

    cdef object _stream_error(self):
        cdef const char *text = self.stream.get_last_error(self.stream)
        why = "it gives no reason" if text == NULL else text.decode("utf-8", "replace")
        return ValueError(f"the Arrow stream failed: {why}")

    cdef bint next_of_reader(self) except -1:
        self.array = NULL
        try:
            batch = self.reader.read_next_batch()
        except StopIteration:
            self.batch = None
            return False
        except Exception as error:
            raise ValueError(f"the Arrow stream failed: {error}") from error
        _validate_pyarrow(batch, PYARROW_TABLE, self.columns)
        self.batch = batch.__arrow_c_array__()
        self.array = <ImportedArray *>PyCapsule_GetPointer(self.batch[1], b"arrow_array")
        return True

    cdef bint next_array(self) except -1:
        """Go to the next array. Return False at the end."""
        if self.reader is not None:
            return self.next_of_reader()
        if self.stream == NULL:
            one_more = self.has_single
            self.has_single = False
            return one_more
        if self.own_array.release != NULL:
            self.own_array.release(&self.own_array)
        cdef int failed
        if self.in_memory:
            failed = self.stream.get_next(self.stream, &self.own_array)
        else:
            with nogil:  # the exporter may have to wait for data or compute it
                failed = self.stream.get_next(self.stream, &self.own_array)
        if failed:
            raise self._stream_error()
        self.array = &self.own_array
        return self.own_array.release != NULL


cdef object _contradiction(str what, str field):
    reason = "invalid Arrow data: lengths, buffers and last offset contradict each other; check what created it"
    return EncodeError(f"{what} {reason}", field=field, value=None)


# The names of Arrow's types in errors, by their format in the C data interface, and the types that a column can have.
_TYPE_NAMES = {
    "n": "null", "b": "bool", "c": "int8", "C": "uint8", "s": "int16", "S": "uint16", "i": "int32", "I": "uint32",
    "l": "int64", "L": "uint64", "e": "float16", "f": "float", "g": "double", "z": "binary", "Z": "large_binary",
    "vz": "binary_view", "u": "string", "U": "large_string", "vu": "string_view", "tdD": "date32", "tdm": "date64",
    "tts": "time32[s]", "ttm": "time32[ms]", "ttu": "time64[us]", "ttn": "time64[ns]", "tDs": "duration[s]",
    "tDm": "duration[ms]", "tDu": "duration[us]", "tDn": "duration[ns]", "tiM": "month_interval",
    "tiD": "day_time_interval", "tin": "month_day_nano_interval", "+l": "list", "+L": "large_list", "+vl": "list_view",
    "+vL": "large_list_view", "+s": "struct", "+m": "map", "+r": "run_end_encoded",
}
# The same for formats with parameters, which follow a colon.
_TYPE_PREFIXES = {
    "tss": "timestamp[s]", "tsm": "timestamp[ms]", "tsu": "timestamp[us]", "tsn": "timestamp[ns]",
    "w": "fixed_size_binary", "d": "decimal", "+w": "fixed_size_list", "+ud": "dense_union", "+us": "sparse_union",
}
cdef enum:
    SHOWN_DEPTH = 4      # types that are nested in another one
    SHOWN_CHILDREN = 8   # fields of a struct


cdef str _arrow_type(ImportedSchema *schema, int depth=0):
    """Return the name of an Arrow type and of its child types, in a short form of pyarrow's notation, such as
    `list<int64>`."""
    cdef int64_t at
    if schema.dictionary != NULL:
        return f"dictionary of {_arrow_type(schema.dictionary, depth + 1)}"
    format = schema.format.decode("utf-8", "replace")
    name = _TYPE_NAMES.get(format) or _TYPE_PREFIXES.get(format.partition(":")[0])
    if name is None:
        return f"unknown ({format!r} in the C data interface)"
    if not format.startswith("+") or depth == SHOWN_DEPTH or not schema.n_children:
        return name
    fields = []
    for at in range(min(schema.n_children, SHOWN_CHILDREN)):
        child = schema.children[at]
        label = "" if child.name == NULL or format != "+s" else child.name.decode("utf-8", "replace") + ": "
        fields.append(label + _arrow_type(child, depth + 1))
    more = ", ..." if schema.n_children > SHOWN_CHILDREN else ""
    return f"{name}<{', '.join(fields)}{more}>"


_BYTES_TYPES = "binary or string"
_INTEGER_TYPES = "a signed integer"
_COLUMN_TYPES = {
    "key": _BYTES_TYPES, "value": _BYTES_TYPES, "headers": "list<struct<key: string, value: binary>>",
    "timestamp": "timestamp, or int64 with milliseconds", "offset": _INTEGER_TYPES,
    "key_schema_id": _INTEGER_TYPES, "value_schema_id": _INTEGER_TYPES,
}


cdef object _wrong_type(str name, ImportedSchema *schema):
    expected = _COLUMN_TYPES[name]
    return ValueError(f"column {name!r} cannot have the Arrow type {_arrow_type(schema)}; expected {expected}: cast it")


cdef object _invalid_row(str field, int64_t row):
    return EncodeError(_ENCODE_TEXTS[FAULT_ENCODE_INVALID].format(field=field), field=field, value=None, row=row)


cdef bint _is_arrow(object source):
    return _kind_of(source) or hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")


# Columns that results of decode() and of Spark also have. They are not written, because the batch or topic determines
# them.
_IGNORED_COLUMNS = frozenset((*COLUMNS, "timestampType"))


cdef bint _is_pandas_index(str name):
    """Return whether a column is the index of a pandas DataFrame without a name, such as the one after a filter."""
    return name.startswith("__index_level_") and name.endswith("__")


cdef enum:
    INPUT_COLUMNS = 7

# The columns that are encoded; the last two only with framing.
cdef int[INPUT_COLUMNS] _input_columns = [
    COLUMN_OFFSET, COLUMN_TIMESTAMP, COLUMN_KEY, COLUMN_VALUE, COLUMN_HEADERS,
    COLUMN_KEY_SCHEMA_ID, COLUMN_VALUE_SCHEMA_ID,
]
cdef tuple _INPUT_NAMES = DEFAULT_COLUMNS + FRAMING_COLUMNS
cdef tuple _CHECKED_NAMES = _INPUT_NAMES + ("is_control", "control_type")


cdef double _number_at(const uint8_t *values, char kind, int64_t at):
    """Return a number of a column. kind: its format, which is one of bcCsSiIlLfg."""
    if kind == 98:  # b: a boolean is one bit
        return 0 if input_is_null(values, at) else 1
    if kind == 99 or kind == 67:  # c, C
        return values[at]
    if kind == 115 or kind == 83:  # s, S
        return (<const int16_t *>values)[at]
    if kind == 105 or kind == 73:  # i, I
        return (<const int32_t *>values)[at]
    if kind == 108 or kind == 76:  # l, L
        return (<const int64_t *>values)[at]
    return (<const float *>values)[at] if kind == 102 else (<const double *>values)[at]  # f, g


cdef int64_t _first_set(ImportedSchema *schema, ImportedArray *column, ImportedArray *table, bint is_flag):
    """Return the first row whose value in a column is set; -1 without one, -2 if the type of the column has no meaning
    here. A boolean is set if it is true. A number is set if it is not null, and not 0 if `is_flag`: databases without
    booleans have numbers in their place. pandas makes numbers with NaN of numbers with null."""
    cdef const uint8_t *validity = NULL
    cdef const uint8_t *values
    cdef int64_t row, at
    cdef char kind = schema.format[0]
    cdef double number
    if strcmp(schema.format, b"n") == 0:  # only nulls
        return -1
    if schema.dictionary != NULL or schema.format[1] != 0 or strchr(b"bcCsSiIlLfg", kind) == NULL:
        return -2
    if (column.n_buffers < 2 or column.buffers[1] == NULL or column.offset < 0
            or column.length < table.offset + table.length):
        return -1
    if column.null_count != 0:
        validity = <const uint8_t *>column.buffers[0]
    values = <const uint8_t *>column.buffers[1]
    for row in range(table.length):
        at = column.offset + table.offset + row
        if input_is_null(validity, at):
            continue
        number = _number_at(values, kind, at)
        if number != number or (number == 0 and (is_flag or kind == 98)):
            continue
        return row
    return -1


cdef class _ArrowRows:
    """The columns of an Arrow source that are encoded."""

    cdef RowsInput input
    cdef object default_timestamp
    cdef int64_t places[COLUMN_COUNT]  # index of the child array of each column; -1: the column is missing
    cdef int64_t is_control, control_type  # the same of two columns that are not encoded, see refuse_control
    cdef bint framed

    def __cinit__(self, default_timestamp, bint framed):
        self.default_timestamp = default_timestamp
        self.framed = framed
        memset(self.places, 0xFF, sizeof(self.places))
        self.is_control = self.control_type = -1

    def __dealloc__(self):
        self.release()

    cdef void release(self):
        binary_input_free(&self.input.key)
        binary_input_free(&self.input.value)
        binary_input_free(&self.input.headers.name)
        binary_input_free(&self.input.headers.value)

    cdef int check_schema(self, _ArrowSource source) except -1:
        """Find the child array of each column. Raise ValueError for an unknown column, or if a required one is
        missing."""
        cdef int64_t at
        if strcmp(source.schema.format, b"+s") != 0:
            raise ValueError(f"expected an Arrow table or struct array, got {_arrow_type(source.schema)}")
        for at in range(source.schema.n_children):
            self.check_column(source.schema.children[at].name, at)
        if self.places[COLUMN_KEY] < 0 and self.places[COLUMN_VALUE] < 0:
            raise ValueError("the Arrow data has neither a column 'key' nor a column 'value'")
        if self.places[COLUMN_TIMESTAMP] < 0 and self.default_timestamp is None:
            raise EncodeError("the Arrow data has no column 'timestamp': add it, or pass timestamp= for all records",
                              field="timestamp", value=None)
        return 0

    cdef int check_column(self, const char *name, int64_t at) except -1:
        cdef int column
        cdef int number
        for number in range(INPUT_COLUMNS if self.framed else INPUT_COLUMNS - 2):
            column = _input_columns[number]
            if name != NULL and strcmp(name, column_name(column)) == 0:
                if self.places[column] >= 0:
                    raise ValueError(f"column {_static_text(name)!r} occurs twice")
                self.places[column] = at
                return 0
        found = "" if name == NULL else name.decode("utf-8", "replace")
        if found == "is_control":
            self.is_control = at
        elif found == "control_type":
            self.control_type = at
        if found not in _IGNORED_COLUMNS and not _is_pandas_index(found):
            raise _choice_error("column", found, _INPUT_NAMES if self.framed else DEFAULT_COLUMNS)
        return 0

    cdef int bind(self, _ArrowSource source) except -1:
        """Set the input to the current arrays of the source."""
        cdef int column
        cdef int number
        self.release()
        memset(&self.input, 0, sizeof(RowsInput))
        self.check_rows(source)
        self.input.rows = source.array.length
        if self.default_timestamp is not None:
            self.input.has_timestamp = True
            self.input.default_timestamp = self.default_timestamp
        for number in range(INPUT_COLUMNS):
            column = _input_columns[number]
            if self.places[column] >= 0:
                self.bind_column(source, column, self.places[column])
        return 0

    cdef int check_rows(self, _ArrowSource source) except -1:
        """Raise ValueError if a row is null as a whole, or if a column is shorter than the array."""
        cdef ImportedArray *array = source.array
        cdef int column
        cdef int64_t at
        cdef int number
        if array.length < 0 or array.offset < 0 or array.length > INT64_MAX - array.offset:
            raise ValueError(f"the Arrow array is invalid: it has {array.length} rows from row {array.offset} on")
        if array.n_children != source.schema.n_children:
            raise ValueError(f"the Arrow array has {array.n_children} columns, the schema {source.schema.n_children}")
        if array.null_count != 0 and array.n_buffers > 0 and array.buffers[0] != NULL:  # -1: not counted
            for at in range(array.offset, array.offset + array.length):
                if input_is_null(<const uint8_t *>array.buffers[0], at):
                    row = at - array.offset
                    raise ValueError(f"row {row} of the Arrow table is null: fill or drop it")
        for number in range(INPUT_COLUMNS):
            column = _input_columns[number]
            at = self.places[column]
            if at >= 0 and array.children[at].length < array.offset + array.length:
                found = array.children[at].length - array.offset
                name = _static_text(column_name(column))
                raise ValueError(f"column {name!r} has {found} rows, but the Arrow table has {array.length}")
        return 0

    cdef int refuse_control(self, _ArrowSource source, int64_t first_row) except -1:
        """Raise EncodeError if a row is a control record, as far as the columns of decode() say so. Raise TypeError if
        such a column has another type."""
        cdef int64_t row, at
        for name, at in (("is_control", self.is_control), ("control_type", self.control_type)):
            if at < 0:
                continue
            row = _first_set(source.schema.children[at], source.array.children[at], source.array,
                             at == self.is_control)
            if row >= 0:
                raise EncodeError(_CONTROL_REASON, field="record", value=None, row=first_row + row)
            if row == -2:
                raise TypeError(f"column {name!r}: expected booleans or numbers, as decode() returns them; drop the "
                                "column if the table has no control records")
        return 0

    cdef int bind_column(self, _ArrowSource source, int column, int64_t at) except -1:
        cdef ImportedSchema *schema = source.schema.children[at]
        cdef ImportedArray *array = source.array.children[at]
        cdef int64_t shift = source.array.offset
        cdef int failed
        if column == COLUMN_KEY:
            failed = binary_input_bind(&self.input.key, schema, array)
            self.input.key.first += shift
        elif column == COLUMN_VALUE:
            failed = binary_input_bind(&self.input.value, schema, array)
            self.input.value.first += shift
        elif column == COLUMN_HEADERS:
            failed = headers_input_bind(&self.input.headers, schema, array)
            self.input.headers.first += shift
        else:
            failed = self.bind_number(column, schema, array, shift)
        if not failed:
            return 0
        if failed == BIND_NO_MEMORY:
            raise MemoryError("no memory for a dictionary")
        name = _static_text(column_name(column))
        if failed == BIND_INVALID:
            raise _contradiction(f"column {name!r} holds", name)
        raise _wrong_type(name, schema)

    cdef int bind_number(self, int column, ImportedSchema *schema, ImportedArray *array, int64_t shift):
        cdef IntegerInput *input
        cdef int failed
        if column == COLUMN_TIMESTAMP:
            input = &self.input.timestamp
        elif column == COLUMN_OFFSET:
            input = &self.input.offset
        else:
            is_key = column == COLUMN_KEY_SCHEMA_ID
            input = &self.input.key_schema_id if is_key else &self.input.value_schema_id
        if strcmp(schema.format, b"n") == 0:
            return 0  # a column of type null is treated as if it were missing
        if column == COLUMN_TIMESTAMP:
            failed = timestamp_input_bind(input, schema, array)
        else:
            failed = integer_input_bind(input, schema, array)
        input.first += shift
        return failed


def check_arrow_columns(source, columns):
    """Raise EncodeError, with column and row, if an offset of a row points outside of its column. Internal.

    source: A table or stream. columns: Names among key, value and headers. For code that passes rows of a table on
    before encode() checks them.
    """
    cdef _ArrowSource arrow = _arrow_source_of(source, columns)
    cdef BinaryInput binary
    cdef HeadersInput headers
    cdef ImportedSchema *schema
    cdef int64_t at, rows, first_row = 0, wrong
    cdef int failed
    while arrow.next_array():
        for at in range(arrow.schema.n_children):
            schema = arrow.schema.children[at]
            name = "" if schema.name == NULL else schema.name.decode("utf-8", "replace")
            if name not in columns:
                continue
            rows, wrong = arrow.array.children[at].length, -1
            if name == "headers":
                failed = headers_input_bind(&headers, schema, arrow.array.children[at])
                if not failed:
                    with nogil:
                        wrong = headers_input_check(&headers, rows)
                binary_input_free(&headers.name)
                binary_input_free(&headers.value)
            else:
                failed = binary_input_bind(&binary, schema, arrow.array.children[at])
                if not failed:
                    with nogil:
                        wrong = binary_input_check(&binary, rows)
                binary_input_free(&binary)
            if failed == BIND_NO_MEMORY:
                raise MemoryError("no memory for a dictionary")
            if failed and failed != BIND_INVALID and name != "key":  # partition_for() reports the type of a key
                raise _wrong_type(name, schema)
            if failed == BIND_INVALID:
                raise _contradiction(f"column {name!r} holds", name)
            if wrong >= 0:
                raise _invalid_row(name, first_row + wrong - arrow.array.offset)
        first_row += arrow.array.length
