# SPDX-License-Identifier: Apache-2.0
# Iteration over the records of a consumer by `for` and `async for`. kcodec.consumer.delivery describes the rules.

cdef extern from "_fast/codec/awaiting.h":
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    ctypedef PySendResult (*sendfunc)(PyObject *, PyObject *, PyObject **) except PYGEN_ERROR
    void awaiting_set(PyTypeObject *type, sendfunc send) noexcept

cdef extern from "Python.h":
    PySendResult PyIter_Send(object iterator, object value, PyObject **result) noexcept


@cython.final
cdef class Delivery:
    """The response to one request for records by an iteration.

    is_over: request again before the next record is taken: the consumer was sought, paused, rebalanced or closed, or
             another request was made.
    records: an iterator over the records, shared by all that deliver from the same chunk.
    """

    cdef public bint is_over
    cdef public object records

    def __init__(self):
        self.is_over = False
        self.records = iter(())

    cdef object taken(self):
        """Return the next record, or None at the end."""
        return next(self.records, None)


cdef Delivery _delivery_before_the_first():
    cdef Delivery delivery = Delivery()
    delivery.is_over = True
    return delivery


@cython.final
cdef class RecordIterator:
    """The iterator of `for`.

    request: a function that waits for the next Delivery and returns it.
    """

    cdef Delivery delivery
    cdef object request

    def __init__(self, request):
        self.request = request
        self.delivery = _delivery_before_the_first()

    def __reduce__(self):
        raise TypeError("an iterator over a consumer cannot be pickled")

    def __iter__(self):
        return self

    def __next__(self):
        record = None if self.delivery.is_over else self.delivery.taken()
        while record is None:
            self.delivery = self.request()
            record = self.delivery.taken()
        return record

    def close(self):
        """Do nothing: the consumer holds all state. Here for callers that close their generators."""


@cython.final
cdef class AsyncRecordIterator:
    """The iterator of `async for`. It is also the awaitable of each step, so that a record that has already arrived
    needs no further object and no coroutine.

    request: a coroutine function that returns the next Delivery.
    """

    cdef Delivery delivery
    cdef object request
    #: The coroutine of the request in progress, and whether it is executing right now. CPython 3.11 may crash if a
    #: coroutine that is executing is closed or an exception is thrown into it (_PyGen_yf).
    cdef object waiting
    cdef bint is_running

    def __init__(self, request):
        self.request = request
        self.delivery = _delivery_before_the_first()
        self.waiting = None
        self.is_running = False

    cdef int check_not_running(self) except -1:
        if self.is_running:
            raise RuntimeError("the request for records is already executing")
        return 0

    def __reduce__(self):
        raise TypeError("an iterator over a consumer cannot be pickled")

    def __aiter__(self):
        return self

    def __anext__(self):
        return self

    def __await__(self):
        if self.waiting is not None:
            raise RuntimeError("poll() is running: only one task may poll a consumer, and callbacks may not")
        return self

    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration(None)  # never called: awaiting_set replaces this slot by awaiting_next

    cdef PySendResult advance(self, object value, PyObject **result) except PYGEN_ERROR:
        """Return a record that has already arrived; else continue the request for more records."""
        cdef PySendResult outcome
        cdef PyObject *got = NULL
        record = None
        self.check_not_running()
        if self.waiting is None and not self.delivery.is_over:
            record = self.delivery.taken()
        while record is None:
            if self.waiting is None:
                self.waiting = self.request()
            waiting = self.waiting
            self.is_running = True
            outcome = PyIter_Send(waiting, value, &got)
            self.is_running = False
            if outcome == PYGEN_NEXT:
                result[0] = got
                return PYGEN_NEXT
            self.waiting = None
            if outcome == PYGEN_ERROR:
                return PYGEN_ERROR
            delivery = <object>got
            Py_DECREF(delivery)
            record = self.received(delivery)
        Py_INCREF(record)
        result[0] = <PyObject *>record
        return PYGEN_RETURN

    cdef object received(self, Delivery delivery):
        self.delivery = delivery
        return delivery.taken()

    def send(self, value):
        """Continue, as the coroutine of a request would."""
        cdef PyObject *got = NULL
        cdef PySendResult outcome = self.advance(value, &got)
        found = <object>got
        Py_DECREF(found)
        if outcome == PYGEN_RETURN:
            raise StopIteration(found)
        return found

    def throw(self, *error):
        """Raise an error in the request under way, such as the cancellation of the task."""
        self.check_not_running()
        waiting = self.waiting
        if waiting is None:
            raise error[1] if len(error) > 1 and error[1] is not None else error[0]
        self.is_running = True
        try:
            return waiting.throw(*error)
        except StopIteration as ended:
            # The request ignored the error and has returned. Its records are kept for the next await.
            self.waiting = None
            self.delivery = ended.value
            raise RuntimeError("the awaited request for records ignored an exception that was thrown into it") from None
        except BaseException:  # including a cancellation: the request has ended, and the next await begins a new one
            self.waiting = None
            raise
        finally:
            self.is_running = False

    def close(self):
        """Give the request under way up."""
        self.check_not_running()
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.close()

    async def aclose(self):
        """Do nothing: the consumer holds all state. Here for callers that close their asynchronous generators."""


cdef PySendResult _send_record(PyObject *self, PyObject *value, PyObject **result) except PYGEN_ERROR:
    return (<AsyncRecordIterator>self).advance(<object>value, result)


awaiting_set(<PyTypeObject *>AsyncRecordIterator, _send_record)
