# SPDX-License-Identifier: Apache-2.0
# EventQueue: the events of a client of kcodec.compat.confluent, whose callbacks run when the program calls poll().

from collections import deque as _deque

cdef extern from *:
    """
    // Counters that both the program's threads and the I/O thread change.
    #ifdef Py_GIL_DISABLED
    static int64_t kc_add(int64_t *to, int64_t value) { return __atomic_add_fetch(to, value, __ATOMIC_RELAXED); }
    static int64_t kc_take(int64_t *counter) { return __atomic_exchange_n(counter, 0, __ATOMIC_RELAXED); }
    #else
    static int64_t kc_add(int64_t *to, int64_t value) { return *to += value; }
    static int64_t kc_take(int64_t *counter) { int64_t taken = *counter; *counter = 0; return taken; }
    #endif
    """
    int64_t kc_add(int64_t *to, int64_t value) noexcept
    int64_t kc_take(int64_t *counter) noexcept


cdef class EventQueue:
    """What a program is to be called back for: functions and delivery reports, in order. Internal.

    is_awaited: a thread waits for an event; the next one calls `notify`. It is set before that thread looks for events.
    statistics_at: when the statistics are due, in ms since 1970; 0: never.
    """

    cdef object waiting
    cdef int64_t silent              # number of completed records without a callback
    cdef public bint is_awaited
    cdef public int64_t statistics_at

    def __cinit__(self):
        self.waiting = _deque()

    cdef inline bint is_due(self) except -1:
        """Return whether there are events, or statistics are due."""
        if len(self.waiting) or self.silent:
            return True
        return self.statistics_at != 0 and _now_in_ms() >= self.statistics_at

    @property
    def is_empty(self):
        """Whether no event waits."""
        return not (len(self.waiting) or self.silent)

    def __len__(self):
        return len(self.waiting) + self.silent

    def __bool__(self):
        return True

    def add(self, call):
        """Add a function to call; from any thread."""
        self.waiting.append(call)
        if self.is_awaited:
            self.notify()

    def notify(self):
        """Wake the threads that wait; for a subclass."""

    def serve(self):
        """Call what waits, and return how many events there were. An exception of a callback ends it, and the later
        ones stay."""
        cdef int64_t count = kc_take(&self.silent)
        cdef Py_ssize_t left = len(self.waiting)
        while left > 0:
            left -= 1
            try:
                call = self.waiting.popleft()
            except IndexError:  # another thread has taken the event
                break
            count += 1
            self.call(call)
        return count

    cdef int call(self, object event) except -1:
        event()
        return 0

    def __reduce__(self):
        raise TypeError("the events of a client cannot be pickled")
