# SPDX-License-Identifier: Apache-2.0
# Decoding of messages by a plan. Every read is checked against the remaining bytes, and no memory is allocated for more
# elements than the remaining bytes can hold.

cdef struct MessageReader:
    const uint8_t *start
    const uint8_t *pos
    # end of the frame, or of the tagged field being read
    const uint8_t *end
    int64_t elements_left, empty_elements_left, values_left, unknown_left
    int depth, tagged_depth
    MessageStep steps[DEEPEST]
    PyObject *title
    PyObject *data
    # a memoryview of the data, created for the first records field
    PyObject *view


cdef str _reading_place(MessageReader *reader):
    path = _message_path(reader.steps, reader.depth)
    return f"{<object>reader.title}, {path + ' ' if path else ''}at byte {reader.pos - reader.start}"


cdef int _message_fault(MessageReader *reader, str reason) except -1:
    raise DecodeError(f"{_reading_place(reader)}: {reason}")


cdef int _message_cut(MessageReader *reader, int64_t needed, str what) except -1:
    """Raise an error for a value that needs more bytes than remain: the frame is incomplete, or a length is wrong."""
    cdef int64_t available = reader.end - reader.pos
    place = _reading_place(reader)
    if reader.tagged_depth:
        raise DecodeError(f"{place}: {what} takes {needed} bytes, but {available} remain in the tagged field")
    raise TruncatedError(
        f"{place}: {what} takes {needed} bytes, but {available} remain", needed=needed, available=available
    )


cdef inline int _message_need(MessageReader *reader, int64_t needed) except -1:
    if unlikely(reader.end - reader.pos < needed):
        _message_cut(reader, needed, "a value")
    return 0


cdef int64_t _read_long_varint(MessageReader *reader) except -1:
    """Read an unsigned varint of at most 32 bits (ByteUtils.readUnsignedVarint)."""
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while shift < 35:
        _message_need(reader, 1)
        byte = reader.pos[0]
        reader.pos += 1
        value |= <uint64_t>(byte & 0x7f) << shift
        if byte < 0x80:
            if value > 0x7fffffff:
                _message_fault(reader, f"the length {value} exceeds 2147483647, the highest of 32 bits")
            return <int64_t>value
        shift += 7
    _message_fault(reader, "the varint has more than 5 bytes")


cdef inline int64_t _read_unsigned_varint(MessageReader *reader) except -1:
    cdef uint8_t byte
    if likely(reader.pos < reader.end and reader.pos[0] < 0x80):
        byte = reader.pos[0]
        reader.pos += 1
        return byte
    return _read_long_varint(reader)


cdef inline int64_t _read_length(MessageReader *reader, bint is_compact, int width) except -2:
    """Read the length of a string, of bytes or of an array; -1 means null."""
    cdef int64_t length
    if is_compact:
        return _read_unsigned_varint(reader) - 1
    _message_need(reader, width)
    if width == 2:
        length = <int16_t>load_be16(reader.pos)
    else:
        length = <int32_t>load_be32(reader.pos)
    reader.pos += width
    return length if length >= 0 else -1


cdef PyObject *_read_null(MessageReader *reader, const MessageOp *op) except NULL:
    if not op.is_nullable:
        _message_fault(reader, "the value is null, which this version does not allow")
    Py_INCREF(None)
    return <PyObject *>None


cdef PyObject *_read_string(MessageReader *reader, const MessageOp *op) except NULL:
    cdef int64_t size = _read_length(reader, op.is_compact, 2)
    cdef PyObject *text
    if size < 0:
        # An array of strings may be null, but its elements must not be.
        if op.is_array:
            _message_fault(reader, "an array of strings contains null")
        return _read_null(reader, op)
    if unlikely(size > reader.end - reader.pos):
        _message_cut(reader, size, "a string")
    if unlikely(size > 32767):
        _message_fault(reader, f"the string has {size} bytes, more than {LONGEST_STRING}")
    text = message_text(<const char *>reader.pos, size)
    if unlikely(text == NULL):
        text = _java_text(reader.pos, size)
    reader.pos += size
    return text


cdef PyObject *_java_text(const uint8_t *data, int64_t size) except NULL:
    """Return the text that Java decodes from bytes that are not valid UTF-8."""
    cdef uint8_t *out = <uint8_t *>malloc(3 * size)
    if out == NULL:
        raise MemoryError("no memory for a string")
    try:
        text = out[:utf8_replace(data, size, out)].decode("utf-8")
    finally:
        free(out)
    Py_INCREF(text)
    return <PyObject *>text


cdef PyObject *_read_sized_bytes(MessageReader *reader, const MessageOp *op) except NULL:
    """Read bytes, or records as a view of the frame."""
    cdef int64_t size = _read_length(reader, op.is_compact, 4)
    cdef object value
    if size < 0:
        if op.is_array:
            _message_fault(reader, "an array of bytes contains null")
        return _read_null(reader, op)
    if unlikely(size > reader.end - reader.pos):
        _message_cut(reader, size, "the value")
    if op.kind == KIND_RECORDS:
        if reader.view == NULL:
            view = memoryview(<object>reader.data)
            view = view if view.format == "B" and view.ndim == 1 else view.cast("B")
            Py_INCREF(view)
            reader.view = <PyObject *>view
        value = (<object>reader.view)[reader.pos - reader.start:reader.pos - reader.start + size]
    else:
        value = PyBytes_FromStringAndSize(<const char *>reader.pos, size)
    reader.pos += size
    Py_INCREF(value)
    return <PyObject *>value


cdef PyObject *_read_uuid(MessageReader *reader) except NULL:
    cdef uint64_t high = load_be64(reader.pos), low = load_be64(reader.pos + 8)
    cdef object number, made
    if high == 0 and low == 0:
        made = _ZERO_UUID
    else:
        number = (<object>high << 64) | low
        if _uuid_int < 0 or _uuid_is_safe < 0:
            made = _UUID(int=number)
        else:
            made = _UUID.__new__(_UUID)
            Py_INCREF(number)
            message_fill(<PyObject *>made, _uuid_int, <PyObject *>number)
            Py_INCREF(_UUID_SAFETY)
            message_fill(<PyObject *>made, _uuid_is_safe, <PyObject *>_UUID_SAFETY)
    Py_INCREF(made)
    return <PyObject *>made


cdef PyObject *_read_nullable_struct(MessageReader *reader, const MessageOp *op) except NULL:
    """Read a nullable struct. A byte before it, or a varint in a tagged field, says whether it is null
    (MessageDataGenerator)."""
    cdef bint is_null
    if op.place == PLACE_TAGGED:
        if _read_unsigned_varint(reader) == 0:
            return _read_null(reader, op)
    else:
        _message_need(reader, 1)
        is_null = reader.pos[0] >= 0x80
        reader.pos += 1
        if is_null:
            return _read_null(reader, op)
    return _read_struct(reader, <MessagePlan>op.plan)


cdef PyObject *_read_value(MessageReader *reader, const MessageOp *op) except NULL:
    """Read the value of a field, or one element of its array."""
    cdef int kind = op.kind
    cdef const uint8_t *at
    if kind == KIND_STRUCT:
        if op.is_nullable and not op.is_array:
            return _read_nullable_struct(reader, op)
        return _read_struct(reader, <MessagePlan>op.plan)
    if kind == KIND_STRING:
        return _read_string(reader, op)
    if kind == KIND_BYTES or kind == KIND_RECORDS:
        return _read_sized_bytes(reader, op)
    _message_need(reader, op.least)
    at = reader.pos
    if kind == KIND_UUID:
        made = _read_uuid(reader)
        reader.pos += 16
        return made
    reader.pos += op.least
    if kind == KIND_INT32:
        return message_long(<int32_t>load_be32(at))
    if kind == KIND_INT64:
        return message_long(<int64_t>load_be64(at))
    if kind == KIND_INT16:
        return message_long(<int16_t>load_be16(at))
    if kind == KIND_INT8:
        return message_long(<int8_t>at[0])
    if kind == KIND_BOOL:
        return message_bool(at[0])
    if kind == KIND_UINT16:
        return message_long(load_be16(at))
    if kind == KIND_UINT32:
        return message_long(load_be32(at))
    return message_float(message_double(load_be64(at)))


cdef int _check_count(MessageReader *reader, const MessageOp *op, int64_t count) except -1:
    """Check, before memory is allocated, that the remaining bytes can hold `count` elements."""
    cdef int64_t least = (<MessagePlan>op.plan).least if op.kind == KIND_STRUCT else op.least
    if count * least > reader.end - reader.pos:
        _message_cut(reader, count * least, f"an array of {count} elements")
    if op.kind == KIND_STRUCT:
        if least == 0:
            reader.empty_elements_left -= count
            if reader.empty_elements_left < 0:
                raise LimitExceededError(
                    f"{_reading_place(reader)}: more than {MOST_EMPTY_ELEMENTS} elements that take no bytes",
                    limit="MOST_EMPTY_ELEMENTS", value=MOST_EMPTY_ELEMENTS, claimed=count,
                )
        reader.elements_left -= count
        if reader.elements_left < 0:
            raise LimitExceededError(
                f"{_reading_place(reader)}: more than {MOST_ELEMENTS} elements of arrays in one message",
                limit="MOST_ELEMENTS", value=MOST_ELEMENTS, claimed=count,
            )
        return 0
    reader.values_left -= count
    if reader.values_left < 0:
        raise LimitExceededError(
            f"{_reading_place(reader)}: more than {MOST_VALUES} numbers, strings or bytes in the arrays of one message",
            limit="MOST_VALUES", value=MOST_VALUES, claimed=count,
        )
    return 0


cdef PyObject *_read_array(MessageReader *reader, const MessageOp *op) except NULL:
    cdef int64_t count = _read_length(reader, op.is_compact, 4)
    cdef int64_t index
    cdef MessageStep *step = &reader.steps[reader.depth - 1]
    cdef object made
    if count < 0:
        return _read_null(reader, op)
    _check_count(reader, op, count)
    made = message_list(count)
    if op.kind == KIND_INT32:
        for index in range(count):
            message_list_set(made, index, message_long(<int32_t>load_be32(reader.pos)))
            reader.pos += 4
    elif op.kind == KIND_STRUCT:
        for index in range(count):
            step.index = index
            message_list_set(made, index, _read_struct(reader, <MessagePlan>op.plan))
    else:
        for index in range(count):
            step.index = index
            message_list_set(made, index, _read_value(reader, op))
    step.index = -1
    Py_INCREF(made)
    return <PyObject *>made


cdef PyObject *_read_struct(MessageReader *reader, MessagePlan plan) except NULL:
    cdef object made = message_allocate(plan.message_class)
    cdef PyObject *target = <PyObject *>made
    cdef MessageStep *step = &reader.steps[reader.depth]
    cdef const MessageOp *op = plan.ops
    cdef const MessageOp *end = op + plan.count
    cdef PyObject *value
    Py_INCREF(_NO_TAGGED_FIELDS)
    message_fill(target, plan.unknown_offset, <PyObject *>_NO_TAGGED_FIELDS)
    reader.depth += 1
    step.index = -1
    while op < end:
        step.op = op
        if op.place != PLACE_IN_ORDER:
            value = _default_of(&op.default)
        elif op.is_array:
            value = _read_array(reader, op)
        else:
            value = _read_value(reader, op)
        message_fill(target, op.offset, value)
        op += 1
    if plan.is_flexible:
        step.op = NULL
        if likely(reader.pos < reader.end and reader.pos[0] == 0):
            reader.pos += 1
        else:
            _read_tagged_fields(reader, plan, target)
    reader.depth -= 1
    Py_INCREF(made)
    return target


cdef int _read_tagged_fields(MessageReader *reader, MessagePlan plan, PyObject *made) except -1:
    """Read tagged fields into their slots, and keep those of unknown tags. As in Kafka, they may be in any order, and
    the last one of a repeated tag is used."""
    cdef int64_t count = _read_unsigned_varint(reader), tag, size
    cdef MessageOp *op
    cdef list unknown = []
    cdef int64_t read = 0
    while read < count:
        read += 1
        tag = _read_unsigned_varint(reader)
        size = _read_unsigned_varint(reader)
        if size > reader.end - reader.pos:
            _message_cut(reader, size, f"the field of tag {tag}")
        op = _op_of_tag(plan, tag)
        if op != NULL:
            _read_tagged_field(reader, op, size, made)
        elif _is_tag_of_others(plan, tag):
            _message_fault(reader, f"the tag {tag} belongs to other versions of {plan.message_class.__name__}")
        else:
            reader.unknown_left -= 1
            if reader.unknown_left < 0:
                most = MOST_UNKNOWN_TAGGED_FIELDS
                raise LimitExceededError(
                    f"{_reading_place(reader)}: more than {most} unknown tagged fields in one message",
                    limit="MOST_UNKNOWN_TAGGED_FIELDS", value=most, claimed=count,
                )
            unknown.append((tag, PyBytes_FromStringAndSize(<const char *>reader.pos, size)))
            reader.pos += size
    if unknown:
        kept = tuple(unknown)
        Py_INCREF(kept)
        message_fill(made, plan.unknown_offset, <PyObject *>kept)
    return 0


cdef MessageOp *_op_of_tag(MessagePlan plan, int64_t tag):
    cdef int at
    for at in range(plan.tagged_count):
        if plan.tagged[at].tag == tag:
            return plan.tagged[at]
    return NULL


cdef bint _is_tag_of_others(MessagePlan plan, int64_t tag):
    """Return whether the message has a field with this tag in any version."""
    cdef int at
    for at in range(plan.count):
        if plan.ops[at].tag == tag:
            return True
    return False


cdef int _read_tagged_field(MessageReader *reader, MessageOp *op, int64_t size, PyObject *made) except -1:
    cdef const uint8_t *outer_end = reader.end
    cdef MessageStep *step = &reader.steps[reader.depth - 1]
    cdef PyObject *value
    step.op = op
    reader.end = reader.pos + size
    reader.tagged_depth += 1
    value = _read_array(reader, op) if op.is_array else _read_value(reader, op)
    message_fill(made, op.offset, value)
    if reader.pos != reader.end:
        _message_fault(reader, f"{reader.end - reader.pos} of the {size} bytes of the tagged field are left over")
    reader.end = outer_end
    reader.tagged_depth -= 1
    step.op = NULL
    return 0


def read_message(MessagePlan plan not None, data, Py_ssize_t position=0, bint is_whole=True):
    """Return the message at `position` of `data`, and its end. is_whole: it must end with the data. Internal."""
    cdef MessageReader reader
    cdef Py_buffer source
    cdef PyObject *made
    cdef int collector
    if isinstance(data, str):
        raise TypeError("data must be bytes-like, not str")
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    reader.view = NULL
    collector = message_collector_off()
    try:
        if not 0 <= position <= source.len:
            raise ValueError(f"position {position} is outside the {source.len} bytes of data")
        reader.start = <const uint8_t *>source.buf
        reader.pos = reader.start + position
        reader.end = reader.start + source.len
        reader.elements_left, reader.empty_elements_left = MOST_ELEMENTS, MOST_EMPTY_ELEMENTS
        reader.values_left, reader.unknown_left = MOST_VALUES, MOST_UNKNOWN_TAGGED_FIELDS
        reader.depth = reader.tagged_depth = 0
        reader.title, reader.data = <PyObject *>plan.title, <PyObject *>data
        made = _read_struct(&reader, plan)
        message = <object>made
        Py_XDECREF(made)
        if is_whole and reader.pos != reader.end:
            raise DecodeError(f"{plan.title}: {reader.end - reader.pos} bytes follow the message")
        return message, reader.pos - reader.start
    finally:
        message_collector_on(collector)
        Py_XDECREF(reader.view)
        PyBuffer_Release(&source)
