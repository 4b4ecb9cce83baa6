# SPDX-License-Identifier: Apache-2.0
# Partitions of keys, computed as by Java's producer.

cdef extern from "_fast/codec/murmur2.h" nogil:
    enum:
        NO_PARTITION

    ctypedef struct PartitionCount:
        uint32_t count

    PartitionCount partition_count(uint32_t count)
    int32_t partition_of(PartitionCount partitions, const uint8_t *key, int64_t size)
    int64_t partition_rows(PartitionCount partitions, const BinaryInput *keys, int64_t rows, int32_t *out)
    void partition_validity(const int32_t *partitions, int64_t count, uint8_t *bitmap)

cdef class Partitions:
    """The partition of each key, in order. Immutable.

    A sequence of int, with None for null keys, whose number is null_count. It is also an Arrow array of int32
    (``pyarrow.array(it)``, ``table.append_column("partition", it)``) and a read-only buffer of int32
    (``numpy.asarray(it)``), where -1 is a null key. Neither copies.
    """

    cdef Buffer values, validity
    cdef int64_t count, capacity
    cdef readonly int64_t null_count
    cdef const void *buffers[2]
    cdef Py_ssize_t shape[1]

    def __init__(self):
        raise TypeError("Partitions cannot be created directly: call kcodec.partition_for()")

    def __dealloc__(self):
        buffer_release(&self.validity, self.count // 8 + 1)
        buffer_release(&self.values, 4 * self.count)

    cdef int reserve(self, int64_t more) except -1:
        """Make buffer space for `more` keys."""
        cdef int64_t wanted = self.count + more
        if wanted <= self.capacity:
            return 0
        wanted = max(wanted, 2 * self.count, 16)
        if buffer_grow(&self.values, 4 * wanted, 4 * self.count):
            raise MemoryError("no memory for partitions")
        self.capacity = wanted
        return 0

    cdef inline int32_t *at(self, int64_t index) noexcept nogil:
        return <int32_t *>self.values.data + index

    cdef int finish(self) except -1:
        """Complete the object after the last key was added."""
        self.reserve(1)  # an empty buffer must have an address, too
        self.shape[0] = self.count
        if self.null_count:
            if buffer_acquire(&self.validity, self.count // 8 + 1):
                raise MemoryError("no memory for partitions")
            partition_validity(self.at(0), self.count, self.validity.data)
        self.buffers[0] = self.validity.data
        self.buffers[1] = self.values.data
        return 0

    def __len__(self):
        return self.count

    cdef object cell(self, int64_t index):
        cdef int32_t value = self.at(index)[0]
        return None if value == NO_PARTITION else value

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self.cell(at) for at in range(*index.indices(self.count))]
        place = _index(index)
        if place < 0:
            place += self.count
        if not 0 <= place < self.count:
            raise IndexError(f"index {index} is out of range: there are {self.count} keys")
        return self.cell(place)

    def __iter__(self):
        cdef int64_t index
        for index in range(self.count):
            yield self.cell(index)

    cdef bytes packed(self):
        return PyBytes_FromStringAndSize(<const char *>self.values.data, 4 * self.count)

    def __eq__(self, other):
        return self.packed() == (<Partitions>other).packed() if isinstance(other, Partitions) else NotImplemented

    __hash__ = None

    def __repr__(self):
        shown = ", ".join(map(str, self[:8])) + (", ..." if self.count > 8 else "")
        return f"<Partitions [{shown}] of {self.count} keys>"

    def __reduce__(self):
        return _rebuild_partitions, (self.packed(), self.null_count)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if flags & PyBUF_WRITABLE:
            raise BufferError("the buffer of Partitions is read-only: copy it to change it")
        view.obj = self
        view.buf = self.values.data
        view.len = 4 * self.count
        view.itemsize = 4
        view.readonly = 1
        view.ndim = 1
        view.format = <char *>b"i" if flags & PyBUF_FORMAT else NULL
        view.shape = self.shape if flags & PyBUF_ND else NULL
        view.strides = &view.itemsize if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        view.suboffsets = NULL
        view.internal = NULL

    def __arrow_c_schema__(self):
        cdef ArrowSchema *schema = <ArrowSchema *>calloc(1, sizeof(ArrowSchema))
        if schema == NULL:
            raise MemoryError("no memory for an Arrow schema")
        schema.format = b"i"
        schema.name = b"partition"
        schema.flags = ARROW_FLAG_NULLABLE
        schema.release = _forget_schema
        return PyCapsule_New(schema, b"arrow_schema", _free_schema_capsule)

    def __arrow_c_array__(self, requested_schema=None):
        cdef ArrowArray *array = <ArrowArray *>calloc(1, sizeof(ArrowArray))
        if array == NULL:
            raise MemoryError("no memory for an Arrow array")
        array.length = self.count
        array.null_count = self.null_count
        array.n_buffers = 2
        array.buffers = self.buffers
        array.release = _forget_partitions
        Py_INCREF(self)
        array.private_data = <void *>self
        return self.__arrow_c_schema__(), PyCapsule_New(array, b"arrow_array", _free_array_capsule)


cdef void _forget_schema(ArrowSchema *schema) noexcept nogil:
    schema.release = NULL


cdef void _forget_partitions(ArrowArray *array) noexcept nogil:
    array.release = NULL
    _release_object(array.private_data)


def _rebuild_partitions(bytes packed, null_count):
    """Undo Partitions.__reduce__."""
    cdef Partitions made = Partitions.__new__(Partitions)
    cdef int64_t count = len(packed) // 4
    made.reserve(count + 1)  # allocates memory even if there are no keys
    memcpy(made.values.data, PyBytes_AS_STRING(packed), 4 * count)
    made.count = count
    made.null_count = null_count
    made.finish()
    return made


cdef enum:
    FEW_KEYS = 1000  # for fewer keys, releasing the GIL may take longer than hashing


cdef int _hash_arrow(Partitions found, PartitionCount partitions, object column) except -1:
    """Add the partitions of the keys of an Arrow column, in one or more arrays."""
    cdef _ArrowSource source = _arrow_source_of(column, ())
    cdef BinaryInput keys
    cdef int64_t nulls = 0, rows
    cdef int failed
    while source.next_array():
        rows = source.array.length
        if rows < 0 or rows > (INT64_MAX >> 4) - found.count:
            raise ValueError(f"the Arrow array of the keys has an invalid length, {rows}")
        found.reserve(rows)
        failed = binary_input_bind(&keys, source.schema, source.array)
        if not failed and rows < FEW_KEYS:
            nulls = partition_rows(partitions, &keys, rows, found.at(found.count))
        elif not failed:
            with nogil:
                nulls = partition_rows(partitions, &keys, rows, found.at(found.count))
        binary_input_free(&keys)
        if failed == BIND_NO_MEMORY:
            raise MemoryError("no memory for keys")
        if failed == BIND_INVALID:
            raise _contradiction("the keys hold", "key")
        if failed:
            raise TypeError("keys must be a binary or string column, not of the Arrow type "
                            f"{_arrow_type(source.schema)}")
        if nulls < 0:
            raise _invalid_row("key", found.count - nulls - 1)
        found.count += rows
        found.null_count += nulls
    return 0


cdef int _hash_objects(Partitions found, PartitionCount partitions, object keys) except -1:
    """Add the partitions of the keys of an iterable of bytes-like objects and None."""
    cdef Py_buffer view
    for key in keys:
        found.reserve(1)
        if key is None:
            found.at(found.count)[0] = NO_PARTITION
            found.null_count += 1
        elif isinstance(key, bytes):
            found.at(found.count)[0] = partition_of(partitions, <const uint8_t *>PyBytes_AS_STRING(key),
                                                    PyBytes_GET_SIZE(key))
        else:
            if isinstance(key, (str, int)):
                raise TypeError(f"key {found.count} must be bytes-like or None, not {type(key).__name__}: pass "
                                "the bytes that the producer's serializer returns")
            try:
                PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
            except (BufferError, ValueError) as error:
                raise EncodeError(f"the bytes of key {found.count} are not contiguous ({error}): pass a copy, such "
                                  "as bytes(key)", field="key", value=None, row=found.count) from error
            found.at(found.count)[0] = partition_of(partitions, <const uint8_t *>view.buf, view.len)
            PyBuffer_Release(&view)
        found.count += 1
    return 0


def partition_for(keys, partitions):
    """Return the partition to which Java's producer sends each key: its murmur2 hash modulo `partitions`.

    keys:       An Arrow column (an object with ``__arrow_c_array__`` or ``__arrow_c_stream__``, of a binary, string or
                null type, or a dictionary of one), or an iterable of bytes-like objects and None.
    partitions: Number of partitions of the topic, at least 1.

    Return Partitions. A null key has no partition (None): a producer chooses one, and Java's fills a batch for one
    partition before it changes to another. An empty key is a key.

    The result equals BuiltInPartitioner.partitionForKey, and librdkafka's partitioner ``murmur2``; librdkafka's default
    is a different one, ``consistent_random``. Raise TypeError or ValueError if an argument is invalid, and EncodeError
    for invalid Arrow data and for a key whose bytes are not contiguous.

    >>> partition_for([b"order-1", b"order-2", None], 12)
    <Partitions [10, 3, None] of 3 keys>
    """
    number = _integer(partitions)
    if number is None:
        raise TypeError(f"partitions must be an int, not {type(partitions).__name__}")
    if not 1 <= number <= INT32_MAX:
        raise ValueError(f"partitions must be between 1 and {INT32_MAX}, not {shown(number)}")
    cdef PartitionCount count = partition_count(number)
    cdef Partitions found = Partitions.__new__(Partitions)
    if _is_arrow(keys):
        _hash_arrow(found, count, keys)
    elif isinstance(keys, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"keys must be a column or an iterable of keys, not a single {type(keys).__name__}")
    else:
        _refuse_lazy_frame(keys, "keys")
        _hash_objects(found, count, keys)
    found.finish()
    return found
