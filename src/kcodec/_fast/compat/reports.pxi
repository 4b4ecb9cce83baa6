# SPDX-License-Identifier: Apache-2.0
# produce() of kcodec.compat.confluent, and its delivery reports, which are queued until the program calls poll().

cdef extern from "Python.h":
    int PyObject_GC_IsTracked(PyObject *found)
    void PyObject_GC_Track(void *found)
    void PyObject_GC_UnTrack(void *found)


cdef inline int64_t _now_in_us() noexcept:
    cdef timespec now
    timespec_get(&now, TIME_UTC)
    return <int64_t>now.tv_sec * 1000000 + now.tv_nsec // 1000


@cython.final
cdef class _EndedBatch:
    """The outcome of a batch, which the consecutive reports of its records share."""

    cdef object batch, topic, partition, error, append_time
    cdef int64_t base_offset
    cdef bint is_loss_noted


cdef enum:
    BY_MURMUR2                       # RecordAppender computes the partition of a key
    BY_CRC32                         # librdkafka's consistent_random
    BY_OTHER                         # Python code chooses the partition


cdef class DeliveryReport(ConfluentMessage)


cdef class ReportQueue(EventQueue):
    """The events of a producer. Internal.

    send: appends a record that takes more than a look, and returns its RecordDelivery.
    error_of: returns the KafkaError of a record that has failed.
    note_lost: called with the topic and the KafkaError of a batch with a record that has failed and has no callback.
    most_messages, most_bytes: the limits of records that have not ended, or whose callback waits for poll().
    only_errors: call back for failed records only. on_delivery: the callback of records without one.
    closing_thread: the only thread that may produce records, as it closes the producer; 0: all may.
    """

    cdef RecordAppender appender
    cdef object send, error_of, note_lost, on_delivery, ending
    cdef object timestamp            # the last timestamp taken from the clock for a record
    cdef int64_t messages, bytes_held, most_messages, most_bytes
    cdef bint only_errors
    cdef int partitioning
    cdef _EndedBatch ended
    cdef int64_t reports             # number of reports that are queued for poll()
    cdef public unsigned long closing_thread

    def __init__(self, error_of, note_lost, most_messages, most_bytes, only_errors, on_delivery):
        self.error_of = error_of
        self.note_lost = note_lost
        self.most_messages, self.most_bytes = most_messages, most_bytes
        self.only_errors = only_errors
        self.on_delivery = on_delivery

    def end_report(self, DeliveryReport report not None, /):
        """On the I/O thread: the record of the report has ended. Queue it for poll()."""
        report.end()

    def attach(self, RecordAppender appender not None, send, partitioner):
        """Set the buffer of a new producer, its method `send`, and its partitioner."""
        self.appender = appender
        self.send = send
        self.ending = self.end_report
        self.partitioning = BY_OTHER
        if partitioner == "murmur2_random":
            self.partitioning = BY_MURMUR2
        elif partitioner == "consistent_random":
            self.partitioning = BY_CRC32

    def detach(self):
        """Refuse records from now on."""
        self.appender = self.send = self.ending = None

    @property
    def unreported(self):
        """Records that have not ended, or whose callback was not called."""
        return self.messages

    def __len__(self):
        return self.messages + self.silent + max(len(self.waiting) - self.reports, 0)

    cdef int call(self, object event) except -1:
        if type(event) is DeliveryReport:
            return (<DeliveryReport>event).report()
        event()
        return 0

    cdef bint append_at_once(self, object topic, object value, object key, tuple headers, object partition,
                             DeliveryReport report) except -1:
        """Append a record that an open batch has space for, with its report. False for any other record."""
        cdef RecordAppender appender = self.appender
        if appender is None:  # closed meanwhile
            raise _closed_producer()
        cdef SendLock lock = appender.own_lock
        cdef TopicSlot slot
        cdef PyObject *found
        if lock is None or (partition is None and self.partitioning == BY_OTHER):
            return False
        if appender.turn is not None:
            appender.turn.step_aside()
        lock.take()
        try:
            if partition is None and self.partitioning == BY_CRC32 and key is not None and PyBytes_GET_SIZE(key):
                found = PyDict_GetItem(appender.topics, topic)
                if found == NULL:
                    return False
                slot = <TopicSlot?><object>found
                if not len(slot.queues):
                    return False
                partition = crc32_ieee(0, <const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) % (
                    <uint32_t>len(slot.queues))
            batch = appender.place(topic, key, value, headers, partition, report.held_timestamp, &report.index)
            if batch is None:
                return False
            report.batch = batch
            (<list?>batch.functions).append(self.ending)
            (<list?>batch.deliveries).append(report)
        finally:
            lock.give()
        return True


# Reports are tracked by the garbage collector, unlike other messages: a callback often refers to its producer, whose
# queue holds the report. A report is tracked only once it is queued for poll(), because tracking all records in flight
# would take a third more time.
@cython.final
cdef class DeliveryReport(ConfluentMessage):
    """The message of a record of a producer, and the function that the record calls when it has ended. Internal."""

    cdef ReportQueue queue
    cdef object callback, batch
    cdef int64_t index, size, begun

    def _where(self):
        """Return the batch of the record and its index there, also after the batch was split."""
        batch, index = self.batch, self.index
        while batch.pieces:
            batch, index = batch.place_of(index)
        return batch, index

    def __call__(self, RecordDelivery delivery not None):
        """Queue the report. Called on the I/O thread when a record that was appended by Python code has completed."""
        self.batch = delivery._batch
        self.index = delivery._index
        self.end()

    cdef int end(self) except -1:
        cdef ReportQueue queue = self.queue
        cdef _EndedBatch ended = queue.ended
        cdef int64_t index = self.index
        batch, self.batch = self.batch, None
        if ended is None or ended.batch is not batch:
            here = batch
            while here.pieces:
                here, place = here.place_of(index)
                index = place
            ended = _ended_batch(queue, here)
            if here is batch:
                queue.ended = ended
        if self.callback is None or (ended.error is None and queue.only_errors):
            self.callback = None
            if ended.error is not None and not ended.is_loss_noted:
                ended.is_loss_noted = True
                queue.note_lost(ended.topic, ended.error)
            kc_add(&queue.messages, -1)
            kc_add(&queue.bytes_held, -self.size)
            kc_add(&queue.silent, 1)
        else:
            self.held_topic = ended.topic
            if ended.partition is not None:  # otherwise the partition that the program chose stays, if it chose one
                self.held_partition = ended.partition
            self.held_error = ended.error
            self.latency_us = max(_now_in_us() - self.begun, 0)
            if ended.error is not None:
                self.held_timestamp = None
            else:
                self.held_kind = 0
                if ended.append_time is not None:
                    self.held_timestamp, self.held_kind = ended.append_time, 1
                self.held_offset = ended.base_offset + index if ended.base_offset >= 0 else -1
            if not PyObject_GC_IsTracked(<PyObject *>self):
                PyObject_GC_Track(<PyObject *>self)
            queue.waiting.append(self)
            kc_add(&queue.reports, 1)
        if queue.is_awaited:
            queue.notify()
        return 0

    cdef int report(self) except -1:
        """Call the callback, on the thread of the program."""
        cdef ReportQueue queue = self.queue
        callback, self.callback = self.callback, None
        self.queue = None
        kc_add(&queue.reports, -1)
        kc_add(&queue.messages, -1)
        kc_add(&queue.bytes_held, -self.size)
        callback(self.held_error, self)
        return 0


cdef _EndedBatch _ended_batch(ReportQueue queue, object batch):
    cdef _EndedBatch ended = _EndedBatch.__new__(_EndedBatch)
    outcome = batch.outcome
    ended.batch = batch
    ended.topic = batch.topic
    ended.partition = batch.partition if batch.partition >= 0 else None
    ended.base_offset = outcome[0]
    ended.append_time = outcome[1] if outcome[1] >= 0 else None
    ended.error = None if outcome[2] is None else queue.error_of(outcome[2])
    return ended


cdef object _closed_producer():
    return RuntimeError("Producer has been closed")


cdef inline object _encoded(object value, str name):
    """Return a key or value as bytes. Raise TypeError if it is neither str nor bytes-like."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return (<str>value).encode()
    if not PyObject_CheckBuffer(value):
        raise TypeError(f"{name} must be bytes, str or None, not {type(value).__name__}: encode it, "
                        f"as by str({name}).encode()")
    return bytes(memoryview(value))


cdef tuple _encoded_headers(object headers):
    """Return headers, which are a list of pairs or a dict, as a tuple of pairs with values as bytes. Raise TypeError if
    they are invalid."""
    cdef list found = []
    for one in headers.items() if isinstance(headers, dict) else headers:
        if not isinstance(one, tuple) or len(<tuple>one) != 2:
            raise TypeError(f"expected headers as a dict or a list of (name, value) tuples, found {one!r}")
        name, value = <tuple>one
        if isinstance(value, str):
            one = (name, (<str>value).encode())
        elif value is not None and not isinstance(value, bytes):
            raise TypeError(f"expected header value to be None, binary, or unicode string, not {type(value).__name__}")
        found.append(one)
    return tuple(found)


@cython.binding(True)
def produce_message(self, topic, value=None, key=None, partition=-1, callback=None, on_delivery=None, timestamp=0,
                    headers=None):
    """Append a record to the buffer. `poll` and `flush` call callback(error, message), also named on_delivery.

    Raise BufferError if queue.buffering.max.messages or queue.buffering.max.kbytes is reached, KafkaException for a
    record that cannot be sent, TypeError for values that are neither text nor bytes.
    """
    cdef ReportQueue queue = self._events
    cdef DeliveryReport report
    cdef RecordDelivery delivery
    cdef int64_t now, size = 0
    cdef tuple pairs = ()
    if queue is None or queue.appender is None:
        raise _closed_producer()
    if queue.closing_thread and queue.closing_thread != PyThread_get_thread_ident():
        raise _closed_producer()
    if not isinstance(topic, str):
        raise TypeError(f"argument 1 must be str, not {type(topic).__name__}")
    if callback is None:
        callback = on_delivery if on_delivery is not None else queue.on_delivery
    if callback is not None and not callable(callback):
        raise TypeError(f"on_delivery must be a function, not {type(callback).__name__}")
    value, key = _encoded(value, "value"), _encoded(key, "key")
    if value is not None:
        size = PyBytes_GET_SIZE(value)
    if key is not None:
        size += PyBytes_GET_SIZE(key)
    if queue.messages >= queue.most_messages or queue.bytes_held + size > queue.most_bytes:
        raise BufferError("Local: Queue full")
    if headers:
        pairs = _encoded_headers(headers)
    now = _now_in_us()
    if timestamp == 0:
        timestamp = queue.timestamp
        if timestamp is None or <int64_t>timestamp != now // 1000:
            timestamp = queue.timestamp = now // 1000
    if type(partition) is int and <int>partition == -1:
        partition = None
    report = DeliveryReport.__new__(DeliveryReport)
    PyObject_GC_UnTrack(<PyObject *>report)
    report.queue = queue
    report.size = size
    report.begun = now
    report.held_timestamp = timestamp
    if callback is not None:
        report.callback = callback
        report.held_key = key
        report.held_value = value
        if type(partition) is int:
            report.held_partition = partition
    kc_add(&queue.messages, 1)
    kc_add(&queue.bytes_held, size)
    try:
        if not queue.append_at_once(topic, value, key, pairs, partition, report):
            send = queue.send
            if send is None:  # closed meanwhile
                raise _closed_producer()
            delivery = send(topic, value, key, pairs, partition, timestamp)
            if not delivery._register(report):
                report(delivery)
    except BaseException:  # including KeyboardInterrupt: a record that was not accepted must not count
        kc_add(&queue.messages, -1)
        kc_add(&queue.bytes_held, -size)
        raise


@cython.binding(True)
def poll_reports(self, timeout=-1.0):
    """Call the callbacks of what has happened, and return their number; wait up to `timeout` seconds for one.

    A negative timeout waits without a limit.
    """
    cdef ReportQueue queue = self._events
    if timeout == 0 and queue is not None and queue.appender is not None and not queue.is_due():
        return 0
    return self._poll(timeout)
