# SPDX-License-Identifier: Apache-2.0
# Record, the Python object of one record, and the headers of records.

cdef extern from "Python.h":
    object PyUnicode_DecodeUTF8(const char *data, Py_ssize_t size, const char *errors)

cdef enum:
    NAMES_KEPT = 8       # header names are cached for the first headers of a record, up to this number
    PAIR_BYTES = 16      # maximum length of a header value that is cached
    PAIR_SLOTS = 128     # cached header pairs for each header of a record; a power of two
    PAIR_HIT = 4         # score of a cache hit; creating a pair takes about five times as long as a lookup
    PAIR_SCORE_MOST = 256

_RECORD_FIELDS = ("offset", "timestamp", "timestamp_type", "key", "value", "headers", "sequence", "control_type",
                  "coordinator_epoch", "key_schema_id", "value_schema_id", "topic", "partition", "leader_epoch")

_OPTIONAL_FIELDS = ("control_type", "coordinator_epoch", "key_schema_id", "value_schema_id", "topic", "partition",
                    "leader_epoch")

cdef object _ABSENT = object()
# Absent values that depend on both the key and the value: these say which of the two is absent.
cdef object _ABSENT_KEY = object()
cdef object _ABSENT_VALUE = object()

cdef tuple _ABSENCES = (_ABSENT, _ABSENT_KEY, _ABSENT_VALUE)


cdef bint _is_absent(object value):
    return value is _ABSENT or value is _ABSENT_KEY or value is _ABSENT_VALUE


cdef object _control_type_of(object key):
    """Return the type in the key of a control record: a ControlType, or a number if the type is unknown."""
    number = int.from_bytes(key[2:4], "big", signed=True)
    try:
        return ControlType(number)
    except ValueError:
        return number


cdef object _coordinator_epoch_of(object control_type, object value):
    """Return the coordinator epoch in the value of an end-transaction marker (version i16, coordinator epoch i32), or
    None."""
    if control_type not in (0, 1) or value is None or len(value) < 6 or value[0] & 0x80:
        return None
    return int.from_bytes(value[2:6], "big", signed=True)


# no_gc: the garbage collector does not track records, which makes reading them faster by a fifth. The bytes, numbers
# and strings of a record cannot refer to it. If a deserializer returns an object and the application stores the record
# in it, that reference cycle is never collected.
@cython.no_gc
cdef class Record:
    """A record of a batch. Immutable.

    Columns that decode() was not requested to build raise AttributeError. topic, partition and leader_epoch are set for
    records of a consumer and None elsewhere; control_type and coordinator_epoch are set for control records.
    """

    cdef object _offset, _timestamp, _timestamp_type, _key, _value, _headers, _sequence, _control_type
    cdef object _coordinator_epoch, _key_schema_id, _value_schema_id, _topic, _partition, _leader_epoch
    cdef int is_made

    def __init__(self, offset, timestamp, timestamp_type, key, value, headers=(), sequence=-1, control_type=None,
                 coordinator_epoch=None, key_schema_id=None, value_schema_id=None, topic=None, partition=None,
                 leader_epoch=None):
        # encode() reads these fields without holding references, so they must not change once they are set. Code of the
        # application (such as __int__) therefore runs before the first field is set.
        offset, timestamp, sequence, headers = int(offset), int(timestamp), int(sequence), tuple(headers)
        timestamp_type = TimestampType(timestamp_type)
        if self._offset is not None:  # also true for a decoded record, whose __init__ was not called
            raise TypeError("a Record is immutable: its __init__ cannot be called a second time")
        _make_once(&self.is_made, self)
        self._offset = offset
        self._timestamp = timestamp
        self._timestamp_type = timestamp_type
        self._key = key
        self._value = value
        self._headers = headers
        self._sequence = sequence
        self._control_type = control_type
        self._coordinator_epoch = coordinator_epoch
        self._key_schema_id = key_schema_id
        self._value_schema_id = value_schema_id
        self._topic = topic
        self._partition = partition
        self._leader_epoch = leader_epoch

    cdef object _get(self, object value, str name):
        if value is _ABSENT_KEY:
            name = "key"
        elif value is _ABSENT_VALUE:
            name = "value"
        elif value is not _ABSENT:
            return value
        raise AttributeError(f"{name} is not available: its column was not requested; add it to columns=")

    @property
    def offset(self):
        """Offset of the record in its partition."""
        return self._get(self._offset, "offset")

    @property
    def timestamp(self):
        """Milliseconds since 1970; -1 if the record has no timestamp."""
        return self._get(self._timestamp, "timestamp")

    @property
    def timestamp_type(self):
        """Whether the producer (CreateTime) or the broker (LogAppendTime) set the timestamp."""
        return self._get(self._timestamp_type, "offset")

    @property
    def key(self):
        """bytes or None."""
        return self._get(self._key, "key")

    @property
    def value(self):
        """bytes or None."""
        return self._get(self._value, "value")

    @property
    def headers(self):
        """Headers as (name, value) pairs in order, duplicates included; a value is bytes or None.

        Bytes of a name that are not UTF-8 are kept by the error handler surrogateescape.
        """
        return self._get(self._headers, "headers")

    @property
    def sequence(self):
        """Sequence number of an idempotent producer; -1 without one."""
        return self._get(self._sequence, "offset")

    @property
    def control_type(self):
        """ControlType of a control record, or the number of an unknown type; None for other records."""
        return self._get(self._control_type, "key")

    @property
    def coordinator_epoch(self):
        """Coordinator epoch of an end-transaction marker; None for other records."""
        return self._get(self._coordinator_epoch, "value")

    @property
    def key_schema_id(self):
        """Schema id of the key, with framing="confluent"; None if the key has no such prefix."""
        return self._key_schema_id

    @property
    def value_schema_id(self):
        """Schema id of the value, with framing="confluent"; None if the value has no such prefix."""
        return self._value_schema_id

    @property
    def topic(self):
        """Topic that the record was read from; None if it is unknown."""
        return self._topic

    @property
    def partition(self):
        """Partition that the record was read from; None if it is unknown."""
        return self._partition

    @property
    def leader_epoch(self):
        """Epoch of the leader that wrote the batch (KIP-320); None if it is unknown."""
        return self._leader_epoch

    cdef tuple _fields(self):
        return (self._offset, self._timestamp, self._timestamp_type, self._key, self._value, self._headers,
                self._sequence, self._control_type, self._coordinator_epoch, self._key_schema_id,
                self._value_schema_id, self._topic, self._partition, self._leader_epoch)

    def __eq__(self, other):
        return self._fields() == (<Record>other)._fields() if isinstance(other, Record) else NotImplemented

    def __hash__(self):
        return hash(self._fields())

    def __repr__(self):
        parts = []
        for name, value in zip(_RECORD_FIELDS, self._fields()):
            if _is_absent(value) or (name in _OPTIONAL_FIELDS and value is None):
                continue
            shown = repr(value)
            parts.append(f"{name}={shown if len(shown) <= 64 else shown[:60] + '...'}")
        return f"Record({', '.join(parts)})"

    def __reduce__(self):
        fields = self._fields()
        absent = {at: _ABSENCES.index(value) for at, value in enumerate(fields) if _is_absent(value)}
        return _rebuild_record, (tuple(None if _is_absent(value) else value for value in fields), absent)


def _rebuild_record(fields, absent):
    """Undo Record.__reduce__."""
    cdef Record record = Record.__new__(Record)
    values = [_ABSENCES[absent[at]] if at in absent else value for at, value in enumerate(fields)]
    (record._offset, record._timestamp, record._timestamp_type, record._key, record._value, record._headers,
     record._sequence, record._control_type, record._coordinator_epoch, record._key_schema_id,
     record._value_schema_id, record._topic, record._partition, record._leader_epoch) = values
    return record


cdef inline object _bytes_at(const BinaryColumn *column, const ChunkLayout *layout, const Chunk *chunk, int64_t row):
    """Return the bytes, or None, in a row of a key or value column."""
    cdef int64_t begin, end
    cdef const uint8_t *view
    cdef int32_t words[4]
    if column.null_count and not bitmap_get(column.validity.data, row):
        return None
    if layout.binary_type == BINARY:
        begin = (<const int32_t *>column.offsets.data)[row]
        end = (<const int32_t *>column.offsets.data)[row + 1]
    elif layout.binary_type == LARGE_BINARY:
        begin = (<const int64_t *>column.offsets.data)[row]
        end = (<const int64_t *>column.offsets.data)[row + 1]
    else:
        view = column.offsets.data + 16 * row
        memcpy(words, view, 16)
        if words[0] <= 12:
            return PyBytes_FromStringAndSize(<const char *>view + 4, words[0])
        if words[2] == 0:
            return PyBytes_FromStringAndSize(<const char *>chunk.view_arena.data + words[3], words[0])
        return PyBytes_FromStringAndSize(<const char *>chunk.view_sources[words[2] - 1].base + words[3], words[0])
    return PyBytes_FromStringAndSize(<const char *>column.data.data + begin, end - begin)


cdef struct _KnownPair:
    PyObject *pair               # (name, value), or NULL; the slot owns this reference
    PyObject *name               # name of the pair, which keeps it alive
    uint64_t front, back         # first and last eight bytes of the value, which together contain all of it
    int32_t length


cdef inline uint64_t _few_bytes(const char *bytes, int32_t length) noexcept nogil:
    """Return up to seven bytes as a number. Different values of the same length give different numbers."""
    cdef uint32_t front, back
    if length >= 4:
        memcpy(&front, bytes, 4)
        memcpy(&back, bytes + length - 4, 4)
        return <uint64_t>back << 32 | front
    if length == 0:
        return 0
    return <uint8_t>bytes[0] | <uint64_t><uint8_t>bytes[length >> 1] << 8 | <uint64_t><uint8_t>bytes[length - 1] << 16


cdef inline bint _same_bytes(const char *one, const char *other, int64_t length) noexcept nogil:
    """Compare in steps of eight bytes, which is faster than memcmp for short strings."""
    cdef uint64_t left, right
    cdef int64_t at = 0
    if length < 8:
        return memcmp(one, other, length) == 0
    while at + 8 < length:
        memcpy(&left, one + at, 8)
        memcpy(&right, other + at, 8)
        if left != right:
            return False
        at += 8
    memcpy(&left, one + length - 8, 8)
    memcpy(&right, other + length - 8, 8)
    return left == right


@cython.final
cdef class _HeaderNames:
    """Creates the headers of the rows of one chunk, with a cache of names and of pairs.

    The position of a header in its record is called its place. Names are cached by place, because most records have the
    same names in the same order: all names of a record are found by one comparison with those of the previous record.

    Pairs of a name and a short value are cached by place as well, because values such as a content type, a schema id or
    an event type repeat. A pair is immutable and shared by the records. A place whose values rarely repeat is not
    cached any more.
    """

    cdef const char *names_at[NAMES_KEPT]
    cdef int32_t names_length[NAMES_KEPT]
    cdef list names
    cdef _KnownPair *pairs[NAMES_KEPT]  # a table of PAIR_SLOTS pairs for each place
    cdef int32_t scores[NAMES_KEPT]     # negative: pairs of this place are no longer cached
    # Names of the last row whose names were looked up one by one; they are also in `names`. changes: number of such
    # rows. An allocation below may start the garbage collector, which may run code that reads another row.
    cdef const char *row_names
    cdef int32_t row_ends[NAMES_KEPT]
    cdef int64_t row_count, changes

    def __cinit__(self):
        cdef int64_t place
        for place in range(NAMES_KEPT):
            self.scores[place] = PAIR_SLOTS
        self.row_count = -1

    def __dealloc__(self):
        cdef int64_t place, slot
        for place in range(NAMES_KEPT):
            if self.pairs[place] != NULL:
                for slot in range(PAIR_SLOTS):
                    Py_XDECREF(self.pairs[place][slot].pair)
                free(self.pairs[place])

    def __reduce__(self):
        raise TypeError("the header names of a chunk cannot be pickled")

    cdef object name_of(self, int64_t place, const char *name, int32_t length):
        if place >= NAMES_KEPT:
            return PyUnicode_DecodeUTF8(name, length, "surrogateescape")
        if self.names_at[place] != NULL and self.names_length[place] == length and (
            memcmp(self.names_at[place], name, length) == 0
        ):
            return self.names[place]
        found = PyUnicode_DecodeUTF8(name, length, "surrogateescape")
        if self.names is None:
            self.names = [None] * NAMES_KEPT
        self.names[place] = found
        self.names_at[place] = name
        self.names_length[place] = length
        return found

    cdef tuple header_at(self, const Chunk *chunk, int64_t place, int64_t at):
        """Return (name, value) of header `at` of the chunk, which has this place in its record."""
        cdef const int32_t *name_ends = <const int32_t *>chunk.header_name.offsets.data
        cdef const int32_t *value_ends = <const int32_t *>chunk.header_value.offsets.data
        cdef const char *names = <const char *>chunk.header_name.data.data
        cdef const char *values = <const char *>chunk.header_value.data.data
        cdef const char *value
        cdef int32_t length
        name = self.name_of(place, names + name_ends[at], name_ends[at + 1] - name_ends[at])
        if chunk.header_value.null_count and not bitmap_get(chunk.header_value.validity.data, at):
            return (name, None)
        value = values + value_ends[at]
        length = value_ends[at + 1] - value_ends[at]
        if length <= PAIR_BYTES and place < NAMES_KEPT and self.scores[place] >= 0:
            return self.pair_of(place, name, value, length)
        return (name, PyBytes_FromStringAndSize(value, length))

    cdef inline bint has_names_of(self, const Chunk *chunk, int64_t first, int64_t count) noexcept:
        """Return whether the names of a row are those of the last row passed to note_names_of."""
        cdef const int32_t *ends = <const int32_t *>chunk.header_name.offsets.data + first
        cdef int64_t at
        if count != self.row_count:
            return False
        for at in range(count):
            if ends[at + 1] - ends[0] != self.row_ends[at]:
                return False
        return _same_bytes(<const char *>chunk.header_name.data.data + ends[0], self.row_names, ends[count] - ends[0])

    cdef inline void note_names_of(self, const Chunk *chunk, int64_t first, int64_t count, int64_t changes) noexcept:
        cdef const int32_t *ends = <const int32_t *>chunk.header_name.offsets.data + first
        cdef int64_t at
        is_kept = 0 < count <= NAMES_KEPT and self.changes == changes
        self.changes += 1
        self.row_count = count if is_kept else -1
        if is_kept:
            self.row_names = <const char *>chunk.header_name.data.data + ends[0]
            for at in range(count):
                self.row_ends[at] = ends[at + 1] - ends[0]

    cdef inline tuple known_at(self, const Chunk *chunk, int64_t place, int64_t at):
        """As header_at, for a row whose names are in `names`."""
        cdef const int32_t *ends = <const int32_t *>chunk.header_value.offsets.data
        cdef const char *value = <const char *>chunk.header_value.data.data + ends[at]
        cdef int32_t length = ends[at + 1] - ends[at]
        name = <object>PyList_GET_ITEM(self.names, place)
        if chunk.header_value.null_count and not bitmap_get(chunk.header_value.validity.data, at):
            return (name, None)
        if length <= PAIR_BYTES and self.scores[place] >= 0:
            return self.pair_of(place, name, value, length)
        return (name, PyBytes_FromStringAndSize(value, length))

    cdef tuple pair_of(self, int64_t place, object name, const char *value, int32_t length):
        cdef uint64_t front, back = 0
        cdef _KnownPair *slot
        cdef PyObject *before
        if self.pairs[place] == NULL:
            self.pairs[place] = <_KnownPair *>calloc(PAIR_SLOTS, sizeof(_KnownPair))
            if self.pairs[place] == NULL:
                raise MemoryError("no memory for headers")
        if length >= 8:
            memcpy(&front, value, 8)
            memcpy(&back, value + length - 8, 8)
        else:
            front = _few_bytes(value, length)
        slot = self.pairs[place] + (
            ((front ^ (back << 32 | back >> 32)) + <uint64_t>length) * 0x9E3779B97F4A7C15U >> 40 & (PAIR_SLOTS - 1)
        )
        if slot.name == <PyObject *>name and slot.front == front and slot.back == back and slot.length == length:
            self.scores[place] = min(self.scores[place] + PAIR_HIT, PAIR_SCORE_MOST)
            return <tuple>slot.pair
        self.scores[place] -= 1
        pair = (name, PyBytes_FromStringAndSize(value, length))  # may start the garbage collector and so reenter this
        before = slot.pair
        Py_INCREF(pair)
        slot.pair = <PyObject *>pair
        slot.name = <PyObject *>name
        slot.front = front
        slot.back = back
        slot.length = length
        Py_XDECREF(before)
        return pair

    cdef list headers_at(self, const Chunk *chunk, int64_t row):
        cdef const int32_t *lists = <const int32_t *>chunk.header_lists.data
        cdef int64_t at, first = lists[row], count = lists[row + 1] - lists[row], changes = self.changes
        cdef list headers = PyList_New(count)
        cdef bint is_known = self.has_names_of(chunk, first, count)
        for at in range(count):
            if is_known and self.changes == changes:
                pair = self.known_at(chunk, at, first + at)
            else:
                self.row_count = -1  # `names` is incomplete until the loop ends; no row may match it before
                pair = self.header_at(chunk, at, first + at)
            Py_INCREF(pair)  # the next line steals a reference
            PyList_SET_ITEM(headers, at, pair)
        if not is_known:
            self.note_names_of(chunk, first, count, changes)
        return headers

    cdef tuple header_tuple_at(self, const Chunk *chunk, int64_t row):
        """Return the headers of a row as a tuple, without creating a list first."""
        cdef const int32_t *lists = <const int32_t *>chunk.header_lists.data
        cdef int64_t at, first = lists[row], count = lists[row + 1] - lists[row], changes = self.changes
        cdef tuple headers = PyTuple_New(count)
        cdef bint is_known = self.has_names_of(chunk, first, count)
        for at in range(count):
            if is_known and self.changes == changes:
                pair = self.known_at(chunk, at, first + at)
            else:
                self.row_count = -1  # `names` is incomplete until the loop ends; no row may match it before
                pair = self.header_at(chunk, at, first + at)
            Py_INCREF(pair)  # the next line steals a reference
            PyTuple_SET_ITEM(headers, at, pair)
        if not is_known:
            self.note_names_of(chunk, first, count, changes)
        return headers


cdef inline bint _has_headers(const Chunk *chunk, int64_t row):
    cdef const int32_t *lists = <const int32_t *>chunk.header_lists.data
    return lists[row] != lists[row + 1]
