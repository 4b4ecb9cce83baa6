# SPDX-License-Identifier: Apache-2.0
# Encoding of messages by a plan: one pass into memory of the pool, which grows as needed, and one copy of the result.

from cpython.unicode cimport PyUnicode_AsUTF8AndSize

# The size of a tagged field precedes it. This number of bytes is left free for it, and the field is moved if it needs
# more.
cdef enum:
    SIZE_BYTES_GUESSED = 1
    LEAST_ROOM = 4096

cdef struct MessageWriter:
    Buffer content
    uint8_t *base
    Py_ssize_t at, capacity
    int depth, tagged_depth
    MessageStep steps[DEEPEST]
    PyObject *title
    # [(position, memoryview), ...] for records of at least least_part bytes, which are not copied; NULL: copy all
    # records
    PyObject *parts
    Py_ssize_t least_part, parts_size

_INTEGERS = {
    KIND_INT8: (-(1 << 7), (1 << 7) - 1), KIND_INT16: (-(1 << 15), (1 << 15) - 1), KIND_UINT16: (0, (1 << 16) - 1),
    KIND_INT32: (-(1 << 31), (1 << 31) - 1), KIND_UINT32: (0, (1 << 32) - 1), KIND_INT64: (-(1 << 63), (1 << 63) - 1),
}


cdef int _refuse(MessageWriter *writer, const MessageOp *op, object value, str reason) except -1:
    """Raise an EncodeError that names the field and its value; the value of a secret is left out.

    Call it outside of `except` blocks, as the exception that is handled there may contain the secret. A value that is
    not a number, text or bytes is stored in the error as its repr, because it may not be picklable.
    """
    path = _message_path(writer.steps, writer.depth)
    if op != NULL and op.is_secret:
        raise EncodeError(f"{<object>writer.title}: {path} {reason}", field=path)
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:76] + " ..."
    value = value if value is None or isinstance(value, (int, float, str, bytes)) else shown
    raise EncodeError(f"{<object>writer.title}: {path} = {shown} {reason}", field=path, value=value)


cdef int _grow(MessageWriter *writer, Py_ssize_t needed) except -1:
    if buffer_grow(&writer.content, max(writer.at + needed, writer.at + writer.at // 2), writer.at):
        raise MemoryError("no memory for a message")
    writer.base = writer.content.data
    writer.capacity = writer.content.capacity
    return 0


cdef inline int _make_room(MessageWriter *writer, Py_ssize_t needed) except -1:
    if unlikely(writer.capacity - writer.at < needed):
        _grow(writer, needed)
    return 0


cdef int _write_unsigned_varint(MessageWriter *writer, uint64_t value) except -1:
    _make_room(writer, 5)
    while value >= 0x80:
        writer.base[writer.at] = <uint8_t>(value | 0x80)
        writer.at += 1
        value >>= 7
    writer.base[writer.at] = <uint8_t>value
    writer.at += 1
    return 0


cdef int _write_length(MessageWriter *writer, const MessageOp *op, int64_t length, int width) except -1:
    """Write the length of a string, of bytes or of an array; -1 means null."""
    if length > INT32_MAX - 1:
        _refuse(writer, op, length, "bytes or elements are more than a message can hold")
    if op.is_compact:
        return _write_unsigned_varint(writer, length + 1)
    _make_room(writer, width)
    if width == 2:
        store_be16(writer.base + writer.at, <uint16_t>length)
    else:
        store_be32(writer.base + writer.at, <uint32_t>length)
    writer.at += width
    return 0


cdef int _write_content(MessageWriter *writer, const void *data, Py_ssize_t size) except -1:
    _make_room(writer, size)
    memcpy(writer.base + writer.at, data, size)
    writer.at += size
    return 0


cdef int64_t _integer_of(MessageWriter *writer, const MessageOp *op, object value) except? -1:
    """Return the value as a number. Raise EncodeError if it is not an integer in the range of its kind."""
    cdef int64_t number = 0
    reason = ""
    try:
        number = value.__index__()
    except (AttributeError, TypeError):
        reason = "is not an integer"
    except OverflowError:
        low, high = _INTEGERS[op.kind]
        reason = f"is outside {low}..{high}"
    if reason:
        _refuse(writer, op, value, reason)
    return number


cdef int _write_integer(MessageWriter *writer, const MessageOp *op, object value) except -1:
    cdef int overflow = 0
    cdef int64_t number
    cdef int kind = op.kind
    cdef bint fits
    if likely(isinstance(value, int)):
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if unlikely(overflow):
            number = _integer_of(writer, op, value)
    else:
        number = _integer_of(writer, op, value)
    if kind == KIND_INT32:
        fits = number == <int32_t>number
        store_be32(writer.base + writer.at, <uint32_t>number)
    elif kind == KIND_INT64:
        fits = True
        store_be64(writer.base + writer.at, <uint64_t>number)
    elif kind == KIND_INT16:
        fits = number == <int16_t>number
        store_be16(writer.base + writer.at, <uint16_t>number)
    elif kind == KIND_INT8:
        fits = number == <int8_t>number
        writer.base[writer.at] = <uint8_t>number
    elif kind == KIND_UINT16:
        fits = number == <uint16_t>number
        store_be16(writer.base + writer.at, <uint16_t>number)
    else:
        fits = number == <uint32_t>number
        store_be32(writer.base + writer.at, <uint32_t>number)
    if unlikely(not fits):
        low, high = _INTEGERS[kind]
        _refuse(writer, op, value, f"is outside {low}..{high}")
    writer.at += op.least
    return 0


cdef int _write_fixed(MessageWriter *writer, const MessageOp *op, object value) except -1:
    _make_room(writer, 16)
    if op.kind == KIND_BOOL:
        if value is not True and value is not False:
            _refuse(writer, op, value, "is not a bool")
        writer.base[writer.at] = value is True
    elif op.kind == KIND_FLOAT64:
        if not isinstance(value, float):
            _refuse(writer, op, value, "is not a float")
        store_be64(writer.base + writer.at, message_double_bits(value))
    elif op.kind == KIND_UUID:
        if not isinstance(value, _UUID):
            _refuse(writer, op, value, "is not a uuid.UUID")
        if value is _ZERO_UUID:
            memset(writer.base + writer.at, 0, 16)
        else:
            number = value.int
            store_be64(writer.base + writer.at, <uint64_t>(number >> 64))
            store_be64(writer.base + writer.at + 8, <uint64_t>(number & 0xffffffffffffffff))
    else:
        return _write_integer(writer, op, value)
    writer.at += op.least
    return 0


cdef int _write_string(MessageWriter *writer, const MessageOp *op, object value) except -1:
    cdef Py_ssize_t size = 0
    cdef const char *content = NULL
    if not isinstance(value, str):
        _refuse(writer, op, value, "is not a str")
    try:
        content = PyUnicode_AsUTF8AndSize(value, &size)
    except UnicodeEncodeError:
        size = -1
    if size < 0:
        _refuse(writer, op, value, "contains a surrogate, which UTF-8 cannot encode")
    if size > 32767:
        _refuse(writer, op, value, f"takes {size} bytes, more than {LONGEST_STRING}")
    _write_length(writer, op, size, 2)
    return _write_content(writer, content, size)


cdef int _write_sized_bytes(MessageWriter *writer, const MessageOp *op, object value) except -1:
    cdef Py_buffer source
    if isinstance(value, str):
        _refuse(writer, op, value, "is not bytes-like")
    is_buffer = True
    try:
        PyObject_GetBuffer(value, &source, PyBUF_SIMPLE)
    except (TypeError, ValueError, BufferError):  # ValueError: a memoryview that was released
        is_buffer = False
    if not is_buffer:
        _refuse(writer, op, value, "is not bytes-like and contiguous")
    try:
        _write_length(writer, op, source.len, 4)
        if op.kind == KIND_RECORDS and writer.parts != NULL and source.len >= writer.least_part \
                and not writer.tagged_depth:
            view = memoryview(value)
            view = view if view.format == "B" and view.ndim == 1 else view.cast("B")
            (<list>writer.parts).append((writer.at, view))
            writer.parts_size += source.len
        else:
            _write_content(writer, source.buf, source.len)
    finally:
        PyBuffer_Release(&source)
    return 0


cdef int _write_value(MessageWriter *writer, const MessageOp *op, object value) except -1:
    """Write the value of a field, or one element of its array."""
    if op.kind == KIND_STRUCT:
        return _write_struct(writer, <MessagePlan>op.plan, value)
    if op.kind == KIND_STRING:
        return _write_string(writer, op, value)
    if op.kind == KIND_BYTES or op.kind == KIND_RECORDS:
        return _write_sized_bytes(writer, op, value)
    return _write_fixed(writer, op, value)


cdef int _write_null(MessageWriter *writer, const MessageOp *op) except -1:
    if not op.is_nullable:
        _refuse(writer, op, None, "must not be null in this version")
    if op.is_array:
        return _write_length(writer, op, -1, 4)
    if op.kind == KIND_STRING:
        return _write_length(writer, op, -1, 2)
    if op.kind != KIND_STRUCT:
        return _write_length(writer, op, -1, 4)
    _make_room(writer, 1)
    # A null struct; see _read_nullable_struct.
    writer.base[writer.at] = 0 if op.place == PLACE_TAGGED else 0xff
    writer.at += 1
    return 0


cdef int _write_array(MessageWriter *writer, const MessageOp *op, object value) except -1:
    cdef Py_ssize_t index, count
    cdef MessageStep *step = &writer.steps[writer.depth - 1]
    cdef list items
    if type(value) is list:
        items = value
    elif isinstance(value, (list, tuple)):
        items = list(value)
    else:
        _refuse(writer, op, value, "is not a list")
    count = len(items)
    _write_length(writer, op, count, 4)
    for index in range(count):
        step.index = index
        if index >= len(items):
            _refuse(writer, op, None, "is gone: the list changed while it was encoded")
        item = items[index]
        if item is None:
            _refuse(writer, op, None, "must not be null")
        _write_value(writer, op, item)
    step.index = -1
    return 0


cdef int _write_field(MessageWriter *writer, const MessageOp *op, object value) except -1:
    if value is None:
        return _write_null(writer, op)
    if op.is_array:
        return _write_array(writer, op, value)
    if op.kind == KIND_STRUCT and op.is_nullable:
        _make_room(writer, 1)
        writer.base[writer.at] = 1
        writer.at += 1
    return _write_value(writer, op, value)


cdef object _field_of(MessageWriter *writer, object message, const MessageOp *op):
    cdef PyObject *value = message_value(<PyObject *>message, op.offset, op.name)
    if value == NULL:
        path = _message_path(writer.steps, writer.depth)
        raise EncodeError(f"{<object>writer.title}: {path} is not set", field=path)
    held = <object>value
    Py_XDECREF(value)
    return held


cdef int _write_struct(MessageWriter *writer, MessagePlan plan, object message) except -1:
    cdef MessageStep *step = &writer.steps[writer.depth]
    cdef const MessageOp *op = plan.ops
    cdef const MessageOp *end = op + plan.count
    if not isinstance(message, plan.message_class):
        _refuse(writer, writer.steps[writer.depth - 1].op if writer.depth else NULL, message,
                f"is not a {plan.message_class.__name__}")
    writer.depth += 1
    step.index = -1
    while op < end:
        step.op = op
        value = _field_of(writer, message, op)
        if op.place == PLACE_IN_ORDER:
            _write_field(writer, op, value)
        elif op.place == PLACE_ABSENT and not op.is_ignorable and not _is_default(&op.default, value):
            _refuse(writer, op, value, "is not part of this version, so only its default can be sent")
        op += 1
    step.op = NULL
    unknown = _unknown_fields_of(writer, message)
    if plan.is_flexible:
        if plan.tagged_count or unknown:
            _write_tagged_fields(writer, plan, message, unknown)
        else:
            _make_room(writer, 1)
            writer.base[writer.at] = 0
            writer.at += 1
    elif unknown:
        _refuse_unknown(writer, unknown, "cannot be sent: this version has no tagged fields")
    writer.depth -= 1
    return 0


cdef tuple _unknown_fields_of(MessageWriter *writer, object message):
    unknown = getattr(message, "unknown_tagged_fields", None)
    if not isinstance(unknown, tuple):
        _refuse_unknown(writer, unknown, "must be a tuple")
    return unknown


cdef int _refuse_unknown(MessageWriter *writer, object unknown, str reason) except -1:
    path = _message_path(writer.steps, writer.depth)
    path = f"{path}.unknown_tagged_fields" if path else "unknown_tagged_fields"
    raise EncodeError(f"{<object>writer.title}: {path} {reason}", field=path, value=repr(unknown))


cdef int _check_unknown(MessageWriter *writer, MessagePlan plan, tuple unknown) except -1:
    """Raise EncodeError unless the tags are ascending and unknown to the message (RawTaggedFieldWriter)."""
    last = -1
    for entry in unknown:
        if not (isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], int)
                and isinstance(entry[1], bytes)):
            _refuse_unknown(writer, unknown, "must be (tag, bytes) pairs")
        if not last < entry[0] < INT32_MAX:
            _refuse_unknown(writer, unknown, f"must have ascending tags, but {entry[0]} comes after {last}")
        if _is_tag_of_others(plan, entry[0]):
            _refuse_unknown(writer, unknown, f"have the tag {entry[0]}, which {plan.message_class.__name__} knows")
        last = entry[0]
    return 0


cdef int _write_tagged_fields(MessageWriter *writer, MessagePlan plan, object message, object unknown) except -1:
    cdef int at
    cdef list known = []
    cdef MessageStep *step = &writer.steps[writer.depth - 1]
    for at in range(plan.tagged_count):
        step.op = plan.tagged[at]
        value = _field_of(writer, message, step.op)
        if not _is_default(&step.op.default, value):
            known.append((at, value))
    step.op = NULL
    if unknown:
        _check_unknown(writer, plan, unknown)
    _write_unsigned_varint(writer, len(known) + len(unknown))
    rest = list(unknown)
    for number, value in known:
        at = number
        while rest and rest[0][0] < plan.tagged[at].tag:
            _write_unknown(writer, rest.pop(0))
        step.op = plan.tagged[at]
        _write_tagged_field(writer, step.op, value)
        step.op = NULL
    for entry in rest:
        _write_unknown(writer, entry)
    return 0


cdef int _write_unknown(MessageWriter *writer, tuple entry) except -1:
    cdef bytes content = entry[1]
    _write_unsigned_varint(writer, entry[0])
    _write_unsigned_varint(writer, len(content))
    return _write_content(writer, PyBytes_AS_STRING(content), len(content))


cdef int _write_tagged_field(MessageWriter *writer, const MessageOp *op, object value) except -1:
    cdef Py_ssize_t begin, size, size_bytes
    _write_unsigned_varint(writer, op.tag)
    _make_room(writer, SIZE_BYTES_GUESSED)
    writer.at += SIZE_BYTES_GUESSED
    begin = writer.at
    writer.tagged_depth += 1
    _write_field(writer, op, value)
    writer.tagged_depth -= 1
    size = writer.at - begin
    size_bytes = 1 if size < 0x80 else 2 if size < 0x4000 else 3 if size < 0x200000 else 4 if size < 0x10000000 else 5
    if size_bytes > SIZE_BYTES_GUESSED:
        _make_room(writer, size_bytes)
        memmove(writer.base + begin - SIZE_BYTES_GUESSED + size_bytes, writer.base + begin, size)
    writer.at = begin - SIZE_BYTES_GUESSED
    _write_unsigned_varint(writer, size)
    writer.at += size
    return 0


cdef object _write_message(MessagePlan plan, object message, bytes before, bint is_frame, list parts,
                           Py_ssize_t least_part):
    """Return the bytes of a message without those of `parts`, which belong at the positions given there."""
    cdef MessageWriter writer
    cdef int64_t total
    memset(&writer.content, 0, sizeof(Buffer))
    writer.title = <PyObject *>plan.title
    writer.parts = <PyObject *>parts if parts is not None else NULL
    writer.least_part, writer.parts_size = least_part, 0
    writer.depth = writer.tagged_depth = 0
    writer.at = writer.capacity = 0
    try:
        _make_room(&writer, LEAST_ROOM)
        writer.at = 4 if is_frame else 0
        if len(before):
            _write_content(&writer, PyBytes_AS_STRING(before), len(before))
        _write_struct(&writer, plan, message)
        if is_frame:
            total = writer.at + writer.parts_size - 4
            if total > INT32_MAX:
                raise EncodeError(f"{plan.title}: the frame has {total} bytes, more than its length field can hold")
            store_be32(writer.base, <uint32_t>total)
        return PyBytes_FromStringAndSize(<char *>writer.base, writer.at)
    finally:
        buffer_release(&writer.content, max(writer.at, 0))


def write_message(MessagePlan plan not None, message, bytes before=b"", bint is_frame=False):
    """Return `before` and the bytes of a message. is_frame: their length comes first. Internal."""
    return _write_message(plan, message, before, is_frame, None, 0)


def write_message_parts(MessagePlan plan not None, message, bytes before=b"", bint is_frame=False,
                        Py_ssize_t least_part=0):
    """Return the same as a list of buffers. Records of at least `least_part` bytes are the caller's own. Internal."""
    cdef list records = []
    cdef Py_ssize_t at = 0
    whole = memoryview(_write_message(plan, message, before, is_frame, records, least_part))
    found = []
    for position, view in records:
        found.append(whole[at:position])
        found.append(view)
        at = position
    if at < len(whole):
        found.append(whole[at:])
    return found
