# SPDX-License-Identifier: Apache-2.0
# Conversion of rows of Python objects, one at a time, for encode() and RecordBatchBuilder.

_ROW_FIELDS = ("key", "value", "headers", "timestamp")
_ROW_NAMES = (*_ROW_FIELDS, "offset")
_FRAMED_ROW_NAMES = (*_ROW_NAMES, "key_schema_id", "value_schema_id")


cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL


cdef object _shown(object value):
    text = repr(value)
    return text if len(text) <= 80 else text[:76] + "..."


cdef inline void _bytes_payload(bytes field, Payload *out) noexcept:
    out.bytes = <const uint8_t *>PyBytes_AS_STRING(field)
    out.length = PyBytes_GET_SIZE(field)
    out.readable_end = out.bytes + out.length


cdef class _RowReader:
    """Fills RecordFields from a row.

    The objects that the fields point to stay alive until the next row or forget(). An immutable row holds them itself.
    Others are held in `kept`, because reading headers and numbers may run code of the application that changes the row.
    """

    cdef RecordFields fields
    cdef HeaderField *header_fields
    cdef int64_t header_capacity, row
    cdef list kept
    cdef object default_timestamp
    cdef bint framed, is_control   # is_control: the rows are written to a control batch

    def __cinit__(self, default_timestamp, bint framed):
        self.default_timestamp = default_timestamp
        self.framed = framed
        self.kept = []
        self.row = -1

    def __dealloc__(self):
        free(self.header_fields)

    cdef void forget(self):
        self.kept.clear()
        memset(&self.fields, 0, sizeof(RecordFields))

    cdef int read(self, object row) except -1:
        """Read a row. Raise EncodeError, which has the row and the field, if it cannot be a record."""
        self.forget()
        self.row += 1
        kind = type(row)
        if kind is tuple:
            return self._tuple(row)
        if kind is Record:
            return self._record(<Record>row)
        if isinstance(row, dict):
            return self._mapping(row)
        if isinstance(row, tuple):  # a namedtuple or a Row of Spark has names; another subclass is a plain tuple
            names = getattr(row, "_fields", None) or getattr(row, "__fields__", None)
            return self._tuple(row) if names is None else self._mapping(dict(zip(names, row, strict=True)))
        raise self.error(f"a record must be a Record, a dict or a tuple, not {kind.__name__}", "record", row)

    cdef object error(self, str reason, str field, object value):
        return EncodeError(reason, field=field, value=value, row=self.row if self.row >= 0 else None)

    cdef int _tuple(self, tuple row) except -1:
        cdef Py_ssize_t size = len(row)
        if not 1 <= size <= 4:
            raise self.error(f"a tuple has {size} fields; expected (key, value, headers, timestamp)", "record", row)
        self.take(row[0], row[1] if size > 1 else None, row[2] if size > 2 else (), row[3] if size > 3 else None, None)
        return 0

    cdef int _record(self, Record row) except -1:
        if row._control_type is not None and not self.is_control and not _is_absent(row._control_type):
            raise self.error(_CONTROL_REASON, "record", row)
        if _is_absent(row._key) and _is_absent(row._value):
            raise self.error("the Record has neither key nor value: decode it with one of these columns", "record", row)
        self.take(
            None if _is_absent(row._key) else row._key, None if _is_absent(row._value) else row._value,
            () if _is_absent(row._headers) else row._headers, None if _is_absent(row._timestamp) else row._timestamp,
            None if _is_absent(row._offset) else row._offset,
        )
        if self.framed:
            self.take_schema_ids(row._key_schema_id, row._value_schema_id)
        elif row._key_schema_id is not None or row._value_schema_id is not None:
            name = "value_schema_id" if row._key_schema_id is None else "key_schema_id"
            raise self.error(f'{name} of a Record would be lost: pass framing="confluent"', name,
                             row.value_schema_id if row._key_schema_id is None else row._key_schema_id)
        return 0

    cdef int _mapping(self, dict row) except -1:
        names = _FRAMED_ROW_NAMES if self.framed else _ROW_NAMES
        for name in row:
            if name not in names:
                raise self.error(str(_choice_error("field", name, names)), str(name), row[name])
        key, value, headers = row.get("key"), row.get("value"), row.get("headers")
        self.kept.append(key)
        self.kept.append(value)
        self.kept.append(headers)
        self.take(key, value, headers, row.get("timestamp"), row.get("offset"))
        if self.framed:
            self.take_schema_ids(row.get("key_schema_id"), row.get("value_schema_id"))
        return 0

    cdef int take(self, object key, object value, object headers, object timestamp, object offset) except -1:
        self.payload(key, "key", &self.fields.key)
        self.payload(value, "value", &self.fields.value)
        if headers is not None and (type(headers) is not tuple or len(<tuple>headers)):
            self.take_headers(headers)
        if timestamp is None:
            timestamp = self.default_timestamp
            if timestamp is None:
                raise self.error("timestamp is missing: give each record one, or pass timestamp= for all records",
                                 "timestamp", None)
        self.fields.timestamp = self.integer(timestamp, "timestamp")
        self.fields.has_offset = offset is not None
        if offset is not None:
            self.fields.offset = self.integer(offset, "offset")
        return 0

    cdef int take_schema_ids(self, object key_schema_id, object value_schema_id) except -1:
        self.fields.has_key_schema_id = key_schema_id is not None
        self.fields.has_value_schema_id = value_schema_id is not None
        if key_schema_id is not None:
            self.fields.key_schema_id = self.int32(key_schema_id, "key_schema_id")
        if value_schema_id is not None:
            self.fields.value_schema_id = self.int32(value_schema_id, "value_schema_id")
        return 0

    cdef int64_t integer(self, object value, str field) except? -1:
        number = _integer(value)
        if number is None:
            remedy = "; in milliseconds since 1970" if field == "timestamp" else ""
            raise self.error(f"{field} must be an int, not {type(value).__name__}{remedy}", field, value)
        if not INT64_MIN <= number <= INT64_MAX:
            raise self.error(f"{field} {shown(number)} does not fit into 64 bits", field, value)
        return number

    cdef int32_t int32(self, object value, str field) except? -1:
        cdef int64_t number = self.integer(value, field)
        if not -0x80000000 <= number <= 0x7FFFFFFF:
            raise self.error(f"{field} {number} does not fit into 32 bits", field, value)
        return <int32_t>number

    cdef int payload(self, object value, str field, Payload *out, str what=None) except -1:
        """Set *out to the bytes of a key, value or header value. `what`: description of the value in errors, if it is
        not the field."""
        cdef _Source source
        if value is None:
            out.length = PAYLOAD_NULL
            return 0
        if type(value) is bytes:
            out.bytes = <const uint8_t *>PyBytes_AS_STRING(value)
            out.length = PyBytes_GET_SIZE(value)
        else:
            if isinstance(value, str):
                what = what or field
                raise self.error(f"{what} must be bytes or None, not str: encode it, as by .encode()", field, value)
            try:
                source = _Source(value)
            except (TypeError, ValueError) as error:
                message = f"{what or field} must be bytes or None, not {type(value).__name__}"
                if isinstance(value, memoryview):
                    message = (
                        f"{what or field} must be a contiguous memoryview that is not released: pass a copy, bytes(...)"
                    )
                raise self.error(message, field, value) from error
            out.bytes = source.data()
            out.length = source.size()
            self.kept.append(source)
        out.readable_end = out.bytes + out.length
        return 0

    cdef int take_headers(self, object headers) except -1:
        if type(headers) is not tuple:  # a subclass of tuple may define its own iteration
            if isinstance(headers, dict):
                headers = headers.items()
            elif isinstance(headers, (str, bytes)):
                raise self.no_pairs(headers)
            try:
                each = iter(headers)
            except TypeError:
                raise self.no_pairs(headers) from None
            headers = tuple(each)  # outside of the try block, so that its own TypeError is raised unchanged
            self.kept.append(headers)
        return self.take_pairs(<tuple>headers)

    cdef int take_pairs(self, tuple pairs) except -1:
        cdef HeaderField *larger
        cdef Py_ssize_t at, count = len(pairs)
        if count > self.header_capacity:
            larger = <HeaderField *>realloc(self.header_fields, count * sizeof(HeaderField))
            if larger == NULL:
                raise MemoryError("no memory for headers")
            self.header_fields = larger
            self.header_capacity = count
        for at in range(count):
            pair = pairs[at]
            if type(pair) is not tuple or len(<tuple>pair) != 2:
                pair = self.pair_of(at, pair)
                self.kept.append(pair)
            self.header_name((<tuple>pair)[0], at, pair, &self.header_fields[at].name)
            value = (<tuple>pair)[1]
            if value is None or type(value) is bytes:
                self.payload(value, "headers", &self.header_fields[at].value)
            else:
                what = f"the value of header {at} ({_shown((<tuple>pair)[0])})"
                self.payload(value, "headers", &self.header_fields[at].value, what)
        self.fields.headers = self.header_fields
        self.fields.headers_count = count
        return 0

    cdef object no_pairs(self, object headers):
        message = f"headers must be pairs of name and value, not {type(headers).__name__}"
        return self.error(message, "headers", headers)

    cdef tuple pair_of(self, Py_ssize_t at, object pair):
        if isinstance(pair, dict) and set(pair) == {"key", "value"}:  # an Arrow struct converted to Python
            return pair["key"], pair["value"]
        if isinstance(pair, (str, bytes)) or not hasattr(pair, "__len__") or len(pair) != 2:
            raise self.error(f"header {at} is not a pair of name and value: {_shown(pair)}", "headers", pair)
        made = tuple(pair)
        if len(made) != 2:
            raise self.error(f"header {at} is not a pair of name and value: {_shown(pair)}", "headers", pair)
        return made

    cdef bytes encoded_name(self, object name, Py_ssize_t at, object pair):
        """Return the bytes of a name. Raise EncodeError for a lone surrogate; those of "surrogateescape" are bytes."""
        try:
            return name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            message = (
                f"the name of header {at}, {_shown(name)}, has the lone surrogate U+{ord(name[error.start]):04X} at "
                f"index {error.start}, which UTF-8 cannot encode; expected text without surrogates, or bytes"
            )
            raise self.error(message, "headers", pair) from error

    cdef int header_name(self, object name, Py_ssize_t at, object pair, Payload *out) except -1:
        cdef Py_ssize_t size
        if type(name) is str and PyUnicode_IS_ASCII(name):
            out.bytes = <const uint8_t *>PyUnicode_AsUTF8AndSize(name, &size)
            out.length = size
            out.readable_end = out.bytes + size
            return 0
        if name is None:
            raise self.error(f"header {at} has no name", "headers", pair)
        if isinstance(name, str):
            name = self.encoded_name(name, at, pair)
            self.kept.append(name)
        try:
            return self.payload(name, "headers", out)
        except EncodeError as error:
            message = f"the name of header {at} must be str, not {type(name).__name__}"
            raise self.error(message, "headers", pair) from error
