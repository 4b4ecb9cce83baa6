# SPDX-License-Identifier: Apache-2.0
# Messages of Kafka's protocol: the base class of message objects, and the plan of one class in one version.
# kcodec.protocol.schema declares classes and compiles plans; message_reader.pxi and message_writer.pxi execute them.

from cpython.ref cimport PyObject, Py_XDECREF
from libc.stdint cimport uint16_t

cdef extern from "_fast/wire/message_object.h":
    Py_ssize_t message_slot_offset(object descriptor)
    object message_allocate(object message_class)
    object message_list(Py_ssize_t size)
    void message_list_set(object items, Py_ssize_t index, PyObject *value)
    PyObject *message_long(long long value) except NULL
    PyObject *message_bool(int value) except NULL
    PyObject *message_float(double value) except NULL
    PyObject *message_text(const char *data, Py_ssize_t size) except? NULL
    void message_fill(PyObject *message, Py_ssize_t offset, PyObject *value)
    PyObject *message_value(PyObject *message, Py_ssize_t offset, PyObject *name)
    int message_collector_off()
    void message_collector_on(int was_on)
    double message_double(uint64_t bits)
    uint64_t message_double_bits(double value)

cdef extern from "_fast/codec/bounds.h" nogil:
    bint likely(bint condition)
    bint unlikely(bint condition)
    uint16_t load_be16(const uint8_t *p)
    uint32_t load_be32(const uint8_t *p)
    uint64_t load_be64(const uint8_t *p)
    void store_be16(uint8_t *p, uint16_t v)
    void store_be32(uint8_t *p, uint32_t v)
    void store_be64(uint8_t *p, uint64_t v)

cdef extern from "Python.h":
    PyObject *PyDict_GetItemWithError(object mapping, object key) except? NULL
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1

cdef extern from "string.h" nogil:
    void *memmove(void *to, const void *source, size_t size)

cdef extern from "_fast/codec/utf8.h" nogil:
    size_t utf8_replace(const uint8_t *data, size_t size, uint8_t *out)

# kinds of values on the wire
cdef enum:
    KIND_BOOL
    KIND_INT8
    KIND_INT16
    KIND_UINT16
    KIND_INT32
    KIND_UINT32
    KIND_INT64
    KIND_FLOAT64
    KIND_UUID
    KIND_STRING
    KIND_BYTES
    KIND_RECORDS
    KIND_STRUCT

_KINDS = {
    "bool": KIND_BOOL, "int8": KIND_INT8, "int16": KIND_INT16, "uint16": KIND_UINT16, "int32": KIND_INT32,
    "uint32": KIND_UINT32, "int64": KIND_INT64, "float64": KIND_FLOAT64, "uuid": KIND_UUID, "string": KIND_STRING,
    "bytes": KIND_BYTES, "records": KIND_RECORDS, "struct": KIND_STRUCT,
}
# Number of bytes of each fixed-width kind, indexed by its number.
_FIXED_BYTES = (1, 1, 2, 2, 4, 4, 8, 8, 16)

# Where a version has a field: in the order of declaration, as a tagged field, or not at all.
cdef enum:
    PLACE_IN_ORDER
    PLACE_TAGGED
    PLACE_ABSENT

_PLACES = {"in order": PLACE_IN_ORDER, "tagged": PLACE_TAGGED, "absent": PLACE_ABSENT}

# Longest string that Kafka's writer accepts, whose length takes two bytes. Its reader rejects longer strings, even
# where the length is a varint.
LONGEST_STRING = 32767
# Maximum depth of nested structs. Kafka's deepest message has five levels.
DEEPEST_MESSAGE = 16
# Maximum number of array elements in a message that are structs. Kafka's largest messages list some hundred thousand
# partitions.
MOST_ELEMENTS = 1 << 22
# Maximum number of array elements in a message that are numbers, strings or bytes, such as the replicas of partitions.
MOST_VALUES = 1 << 23
# Maximum number of tagged fields in a message with unknown tags. Each becomes a tuple of about 200 bytes.
MOST_UNKNOWN_TAGGED_FIELDS = 1 << 20
# Maximum number of array elements in a message that take no bytes. The size of the message does not limit their number.
MOST_EMPTY_ELEMENTS = 1024

cdef enum:
    DEEPEST = 16

# the default of a field: the object itself, a new list, or a new struct of the shape in `value`
cdef enum:
    DEFAULT_SHARED
    DEFAULT_LIST
    DEFAULT_STRUCT

cdef struct MessageDefault:
    int kind
    PyObject *value

cdef struct MessageSlot:
    Py_ssize_t offset
    MessageDefault default

cdef struct MessageOp:
    int32_t kind, place, tag
    # the minimum number of bytes of one value, or of one element of an array
    int32_t least
    bint is_array, is_nullable, is_compact, is_ignorable, is_secret
    Py_ssize_t offset
    # The references below are borrowed from the plan.
    MessageDefault default
    PyObject *name
    PyObject *plan

# the position of a reader or writer: the field at each depth, and the index of its element (-1: no array)
cdef struct MessageStep:
    const MessageOp *op
    Py_ssize_t index


cdef tuple _NO_TAGGED_FIELDS = ()

cdef object _ZERO_UUID = None
cdef object _UUID = None
cdef Py_ssize_t _uuid_int = -1
cdef Py_ssize_t _uuid_is_safe = -1
cdef object _UUID_SAFETY = None


cdef int _load_uuid() except -1:
    """Import uuid for the first plan that needs it. Slots of UUIDs are set directly, because UUID.__init__ takes 1.5
    us."""
    global _UUID, _ZERO_UUID, _uuid_int, _uuid_is_safe, _UUID_SAFETY
    if _UUID is not None:
        return 0
    import uuid
    _uuid_int = message_slot_offset(vars(uuid.UUID).get("int"))
    _uuid_is_safe = message_slot_offset(vars(uuid.UUID).get("is_safe"))
    _UUID_SAFETY = uuid.SafeUUID.unknown
    _ZERO_UUID = uuid.UUID(int=0)
    _UUID = uuid.UUID
    return 0


@cython.final
cdef class MessagePlan:
    """The layout of a message class in one version. Internal; created by kcodec.protocol.schema.

    fields: (name, kind, place, tag, is_array, is_nullable, is_compact, is_ignorable, is_secret, default, plan of the
    struct or None), in order of their declaration.
    """

    cdef readonly object message_class
    cdef readonly str title
    cdef readonly bint is_flexible
    cdef readonly int least
    cdef int depth, count, tagged_count
    cdef MessageOp *ops
    # the tagged ones by tag, ascending
    cdef MessageOp **tagged
    cdef tuple fields
    cdef list held
    cdef Py_ssize_t unknown_offset

    def __cinit__(self, message_class, str title, bint is_flexible, fields):
        if not issubclass(message_class, MessageObject):
            raise TypeError(f"{message_class.__name__} is not a message class")
        self.message_class = message_class
        self.title = title
        self.is_flexible = is_flexible
        self.fields = tuple(map(tuple, fields))
        self.count = len(self.fields)
        self.ops = <MessageOp *>calloc(max(self.count, 1), sizeof(MessageOp))
        self.tagged = <MessageOp **>calloc(max(self.count, 1), sizeof(MessageOp *))
        if self.ops == NULL or self.tagged == NULL:
            raise MemoryError("no memory for a message plan")
        self.held = []
        self.unknown_offset = _offset_of(message_class, "unknown_tagged_fields")
        self.depth = 1
        self.least = 1 if is_flexible else 0
        for index in range(self.count):
            self._add(index)
        self._sort_tagged()

    def __dealloc__(self):
        free(self.ops)
        free(self.tagged)

    cdef int _add(self, int index) except -1:
        cdef MessageOp *op = &self.ops[index]
        name, kind, place, tag, is_array, is_nullable, is_compact, is_ignorable, is_secret, default, plan = \
            self.fields[index]
        op.kind, op.place, op.tag = _KINDS[kind], _PLACES[place], tag
        op.is_array, op.is_nullable, op.is_compact = is_array, is_nullable, is_compact
        op.is_ignorable, op.is_secret = is_ignorable, is_secret
        op.offset = _offset_of(self.message_class, name)
        # self.fields keeps the names and plans alive.
        op.name = <PyObject *>name
        self.held.append(_set_default(&op.default, default))
        op.least = self._least_of(op, plan)
        if op.kind == KIND_UUID:
            _load_uuid()
        if op.place == PLACE_IN_ORDER:
            self.least += (1 if is_compact else 4) if is_array else 1 if plan is not None and is_nullable else op.least
        elif op.place == PLACE_TAGGED:
            self.tagged[self.tagged_count] = op
            self.tagged_count += 1
        return 0

    cdef int _least_of(self, MessageOp *op, object plan) except -1:
        cdef MessagePlan inner
        if op.kind <= KIND_UUID:
            return _FIXED_BYTES[op.kind]
        if op.kind != KIND_STRUCT:
            return 1 if op.is_compact else 2 if op.kind == KIND_STRING else 4
        inner = plan
        op.plan = <PyObject *>inner
        self.depth = max(self.depth, inner.depth + 1)
        if self.depth > DEEPEST:
            raise TypeError(f"{self.title} is nested deeper than {DEEPEST_MESSAGE} levels")
        return inner.least

    cdef int _sort_tagged(self) except -1:
        cdef int at, to
        cdef MessageOp *op
        for at in range(1, self.tagged_count):
            op, to = self.tagged[at], at
            while to and self.tagged[to - 1].tag > op.tag:
                self.tagged[to] = self.tagged[to - 1]
                to -= 1
            self.tagged[to] = op
        for at in range(1, self.tagged_count):
            if self.tagged[at].tag == self.tagged[at - 1].tag:
                raise TypeError(f"{self.title} has two fields with tag {self.tagged[at].tag}")
        return 0


cdef PyObject *_default_of(const MessageDefault *default) except NULL:
    """Return a new reference to the default of a field: a new list or struct, or the shared value."""
    cdef object made
    if default.kind == DEFAULT_SHARED:
        made = <object>default.value
    elif default.kind == DEFAULT_LIST:
        made = []
    else:
        made = _made_of_defaults(<MessageShape>default.value)
    Py_INCREF(made)
    return <PyObject *>made


cdef object _made_of_defaults(MessageShape shape):
    """Return a message with all defaults."""
    cdef object made = message_allocate(shape.message_class)
    cdef Py_ssize_t index
    Py_INCREF(_NO_TAGGED_FIELDS)
    message_fill(<PyObject *>made, shape.unknown_offset, <PyObject *>_NO_TAGGED_FIELDS)
    for index in range(shape.count):
        message_fill(<PyObject *>made, shape.slots[index].offset, _default_of(&shape.slots[index].default))
    return made


cdef bint _is_default(const MessageDefault *default, object value) except -1:
    """Return whether a value is the default of its field, as Kafka compares it."""
    if default.kind == DEFAULT_SHARED:
        return value is <object>default.value or value == <object>default.value
    if default.kind == DEFAULT_LIST:
        return isinstance(value, (list, tuple)) and len(value) == 0
    return _has_defaults(<MessageShape>default.value, value)


cdef bint _has_defaults(MessageShape shape, object message) except -1:
    cdef Py_ssize_t index
    if type(message) is not shape.message_class or message.unknown_tagged_fields != ():
        return False
    for index in range(shape.count):
        if not _is_default(&shape.slots[index].default, _slot_of(message, shape, index)):
            return False
    return True


cdef object _slot_of(object message, MessageShape shape, Py_ssize_t index):
    """Return the value of a slot. Raise AttributeError if it was deleted."""
    cdef PyObject *value = message_value(<PyObject *>message, shape.slots[index].offset, <PyObject *>shape.names[index])
    if value == NULL:
        raise AttributeError(shape.names[index])
    held = <object>value
    Py_XDECREF(value)
    return held


@cython.final
cdef class MessageShape:
    """The fields of a message class: positions of the slots, and their defaults. Internal."""

    cdef readonly tuple names
    cdef object message_class
    # keeps the objects alive that the slots point to
    cdef list held
    cdef MessageSlot *slots
    cdef Py_ssize_t count, unknown_offset

    def __cinit__(self, message_class, names, defaults):
        self.message_class = message_class
        self.names = tuple(names)
        self.held = []
        self.slots = <MessageSlot *>calloc(max(len(self.names), 1), sizeof(MessageSlot))
        if self.slots == NULL:
            raise MemoryError("no memory for a message class")
        self.unknown_offset = _offset_of(message_class, "unknown_tagged_fields")
        for name, default in zip(self.names, defaults, strict=True):
            self.slots[self.count].offset = _offset_of(message_class, name)
            self.held.append(_set_default(&self.slots[self.count].default, default))
            self.count += 1

    def __dealloc__(self):
        free(self.slots)


cdef Py_ssize_t _offset_of(message_class, str name) except -1:
    cdef Py_ssize_t offset = message_slot_offset(getattr(message_class, name))
    if offset < 0:
        raise TypeError(f"{message_class.__name__}.{name} is not a slot")
    return offset


cdef object _set_default(MessageDefault *default, object value):
    """Set a default, and return the object that must be kept alive for it."""
    if isinstance(value, list):
        default.kind = DEFAULT_LIST
    elif isinstance(value, MessageObject):
        default.kind, value = DEFAULT_STRUCT, <MessageShape>type(value)._shape
    else:
        default.kind = DEFAULT_SHARED
    default.value = <PyObject *>value
    return value


cdef class MessageObject:
    """The base of all protocol messages: slots that are set by keyword, and equality. Internal.

    Derived classes have a slot for each field, and unknown_tagged_fields: ((tag, bytes), ...), the tagged fields that
    the version does not define, in order.
    """

    def __init__(self, **fields):
        cdef MessageShape shape = type(self)._shape
        cdef Py_ssize_t index, used = 0
        cdef PyObject *value
        if not isinstance(self, shape.message_class):
            base = shape.message_class.__name__
            raise TypeError(f"{type(self).__name__} has the fields of {base}, which is not its base")
        self.unknown_tagged_fields = _NO_TAGGED_FIELDS
        for index in range(shape.count):
            value = PyDict_GetItemWithError(fields, shape.names[index])
            if value != NULL:
                Py_INCREF(<object>value)
                used += 1
            else:
                value = _default_of(&shape.slots[index].default)
            message_fill(<PyObject *>self, shape.slots[index].offset, value)
        if used != len(fields):
            self._take_others(shape, fields)

    cdef int _take_others(self, MessageShape shape, dict fields) except -1:
        for name, value in fields.items():
            if name == "unknown_tagged_fields":
                self.unknown_tagged_fields = value
            elif name not in shape.names:
                raise TypeError(f"{type(self).__name__} has no field {name!r}; it has {', '.join(shape.names)}")
        return 0

    def __eq__(self, other):
        cdef MessageShape shape
        cdef Py_ssize_t index
        if type(self) is not type(other):
            return NotImplemented
        shape = type(self)._shape
        for index in range(shape.count):
            ours, theirs = _slot_of(self, shape, index), _slot_of(other, shape, index)
            if ours is not theirs and ours != theirs:
                return False
        return self.unknown_tagged_fields == other.unknown_tagged_fields

    __hash__ = None


cdef str _message_path(const MessageStep *steps, int depth):
    """Return the path of the current field of a reader or writer, such as topics[3].partitions[0].index."""
    parts = []
    for level in range(depth):
        if steps[level].op == NULL:
            break
        name = <object>steps[level].op.name
        parts.append(name if steps[level].index < 0 else f"{name}[{steps[level].index}]")
    return ".".join(parts)
