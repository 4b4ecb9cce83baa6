# SPDX-License-Identifier: Apache-2.0
# RecordAppender: appends a record that is sent to the open batch of its partition. kcodec.producer has the rest of
# these classes in Python; this file has the code that runs for every record.

from cpython.dict cimport PyDict_GetItem
from libc.time cimport time_t

cdef extern from "<time.h>" nogil:
    struct timespec:
        time_t tv_sec
        long tv_nsec
    enum:
        TIME_UTC
    int timespec_get(timespec *to, int base)


cdef inline int64_t _now_in_ms() noexcept:
    cdef timespec now
    timespec_get(&now, TIME_UTC)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000


cdef class RecordDelivery:
    """The batch of a record, and the index of the record there: what `send` returns of it. Internal."""

    cdef readonly object _batch, _timestamp  # the timestamp is not checked yet if the record has no partition
    cdef readonly int64_t _index

    def __init__(self, batch, index, timestamp):
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    def _register(self, callback):
        """Add a callback to the batch, unless it has ended; return whether it was added. The error of a record with a
        callback counts as retrieved."""
        cdef object lock = self._batch.lock
        if type(lock) is SendLock:
            (<SendLock>lock).take()
            try:
                return self.add_to_batch(callback)
            finally:
                (<SendLock>lock).give()
        with lock:
            return self.add_to_batch(callback)

    def _stored(self, kind):
        """Return (topic, partition, offset, timestamp) as `kind`, a named tuple, once the record is acknowledged; None
        if it failed, or is under way."""
        cdef int64_t offset, log_append_time
        batch, index = self._batch, self._index
        while batch.pieces:
            batch, index = batch.place_of(index)
        outcome = batch.outcome
        if not isinstance(outcome, tuple):  # None while the batch is in progress
            return None
        if (<tuple>outcome)[2] is not None:
            return None
        offset, log_append_time = (<tuple>outcome)[0], (<tuple>outcome)[1]
        return tuple.__new__(kind, (
            batch.topic, batch.partition, offset + <int64_t>index if offset >= 0 else -1,
            self._timestamp if log_append_time < 0 else log_append_time,
        ))

    cdef bint add_to_batch(self, object callback) except -1:
        batch, index = self._batch, self._index
        while batch.pieces:
            batch, index = batch.place_of(index)
        if batch.outcome is None:
            (<list?>batch.functions).append(callback)
            (<list?>batch.deliveries).append(self)
            return True
        if batch.failed is not None:
            batch.failed.retrieve(index)
        return False

    def __reduce__(self):
        raise TypeError("a Delivery cannot be copied or pickled: result() returns where the record is stored")


cdef class PartitionSlot:
    """The last batch of a partition, if records may still be appended to it. Internal."""

    cdef object open_batch
    cdef RecordBatchBuilder builder

    @property
    def open(self):
        """The open batch, which has a builder; None without one."""
        return self.open_batch

    @open.setter
    def open(self, batch):
        self.builder = None if batch is None else batch.builder
        self.open_batch = batch


cdef class TopicSlot:
    """The partitions of a topic, as PartitionSlot, and the one for records without a key. Internal."""

    cdef public list queues
    cdef public object sticky_queue
    cdef PartitionCount divisor

    def __cinit__(self):
        self.queues = []


cdef class RecordAppender:
    """Appends records to the open batches of their partitions. Internal.

    topics: TopicSlot by name. refusal: what `append` raises while it is set. turn: that of the I/O thread, if any.
    owner_thread: identifier (threading.get_ident) of the only thread whose records are appended here; 0: of any thread.

    A record without an open batch that takes it is passed on to `append_slowly`, and so is one that takes more than a
    look: without metadata, of an unusual type, invalid, from another thread. The caller holds the lock, except of
    `send`.
    """

    cdef readonly dict topics
    cdef public object refusal
    cdef public IoTurn turn
    cdef public unsigned long owner_thread
    cdef readonly object lock
    cdef SendLock own_lock
    cdef object delivery_type
    cdef bint ignore_keys

    def __init__(self, lock, delivery_type, ignore_keys):
        if not isinstance(delivery_type, type) or not issubclass(delivery_type, RecordDelivery):
            raise TypeError("delivery_type must be a subclass of RecordDelivery")
        self.topics = {}
        self.refusal = None
        self.lock = lock
        self.own_lock = lock if type(lock) is SendLock else None
        self.delivery_type = delivery_type
        self.ignore_keys = ignore_keys

    def append(self, topic, key, value, headers, partition, timestamp):
        """Append a record to its partition's open batch. Return None if `buffer_memory` has no free capacity for it
        now. headers: a tuple of pairs; timestamp: ms, or None for now. Raise as `append_slowly` does."""
        if timestamp is None:
            timestamp = _now_in_ms()
        delivery = self.put(topic, key, value, headers, partition, timestamp)
        return delivery if delivery is not None else \
            self.append_slowly(topic, key, value, headers, partition, timestamp)

    def send(self, topic, key, value, headers, partition, timestamp):
        """Append a record as `append` does; take the lock for it, a SendLock."""
        cdef SendLock lock = self.own_lock
        if lock is None:
            raise TypeError("send needs a SendLock: create the buffer with one, or call append")
        if timestamp is None:
            timestamp = _now_in_ms()
        if self.turn is not None:
            self.turn.step_aside()
        lock.take()
        try:
            delivery = self.put(topic, key, value, headers, partition, timestamp)
            if delivery is None:
                delivery = self.append_slowly(topic, key, value, headers, partition, timestamp)
        finally:
            lock.give()
        return delivery

    cdef object put(self, object topic, object key, object value, object headers, object partition, object timestamp):
        """Append a record to an open batch and return its delivery. Return None if `append_slowly` must be called."""
        cdef RecordDelivery delivery
        cdef int64_t index = 0
        batch = self.place(topic, key, value, headers, partition, timestamp, &index)
        if batch is None:
            return None
        delivery = <RecordDelivery>(<PyTypeObject *>self.delivery_type).tp_new(self.delivery_type, <PyObject *>(), NULL)
        delivery._batch = batch
        delivery._index = index
        delivery._timestamp = timestamp
        return delivery

    cdef object place(self, object topic, object key, object value, object headers, object partition,
                      object timestamp, int64_t *place):
        """Append a record to an open batch, set *place to its index there and return the batch. Return None if
        `append_slowly` must be called."""
        cdef TopicSlot slot
        cdef PartitionSlot queue
        cdef RecordBatchBuilder builder
        cdef PyObject *found
        cdef Py_ssize_t count
        cdef int64_t number, index, milliseconds
        cdef int overflow = 0
        if self.refusal is not None or type(topic) is not str or type(timestamp) is not int:
            return None
        if self.owner_thread != 0 and self.owner_thread != PyThread_get_thread_ident():
            return None
        if (key is not None and type(key) is not bytes) or (value is not None and type(value) is not bytes):
            return None
        milliseconds = PyLong_AsLongLongAndOverflow(timestamp, &overflow)
        found = PyDict_GetItem(self.topics, topic)
        if found == NULL or overflow or type(headers) is not tuple:
            return None
        slot = <TopicSlot?><object>found
        count = len(slot.queues)
        if count == 0:
            return None
        if partition is not None:
            if type(partition) is not int:
                return None
            number = PyLong_AsLongLongAndOverflow(partition, &overflow)
            if overflow or not 0 <= number < count:
                return None
            queue = <PartitionSlot?>slot.queues[number]
        elif key is None or self.ignore_keys:
            queue = <PartitionSlot?>slot.sticky_queue
        else:
            if slot.divisor.count != <uint32_t>count:
                slot.divisor = partition_count(<uint32_t>count)
            number = partition_of(slot.divisor, <const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
            queue = <PartitionSlot?>slot.queues[number]
        builder = queue.builder
        if builder is None:
            return None
        batch = queue.open_batch  # read before `put`, in which an allocation may run a finalizer that changes it
        index = builder.put(<bytes>key, <bytes>value, <tuple>headers, milliseconds)
        if index < 0:
            return None
        place[0] = index
        return batch

    def __reduce__(self):
        raise TypeError("the buffer of a producer cannot be pickled")
