# SPDX-License-Identifier: Apache-2.0
# SendLock: the lock that `send` takes for every record.
#
# The GIL protects the fields, so a free lock is taken without a system call. A released lock is free, and a thread that
# waited for it is woken. It takes the lock if it is still free once the thread has the GIL. If the thread got the lock
# before the GIL, the thread that has the GIL would have to wait for it at its next record, and each record would take
# two switches of threads. If another thread was faster, the lock is reserved for the woken thread when it is released
# next. So no thread waits for long.

cdef extern from "pythread.h" nogil:
    ctypedef void *PyThread_type_lock
    ctypedef enum PyLockStatus:
        PY_LOCK_FAILURE
        PY_LOCK_ACQUIRED
        PY_LOCK_INTR
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock lock)
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int intr_flag)
    void PyThread_release_lock(PyThread_type_lock lock)

cdef str _REENTERED = (
    "this thread is inside another call of the same client, which a signal handler or a finalizer has interrupted:"
    " set a flag there, and make this call after the other one has ended"
)


# The owner while the lock is reserved for the thread that is woken. No thread has this number.
cdef unsigned long _RESERVED = <unsigned long>-1


@cython.final
cdef class SendLock:
    """A lock as `threading.Lock`, which compiled code takes without a Python call. Ctrl-C interrupts a wait for it.

    A thread that holds it cannot wait for it: the call raises RuntimeError.
    """

    cdef PyThread_type_lock wake_lock  # held, except while a wake-up is under way
    cdef unsigned long owner  # the thread that holds the lock, or _RESERVED; 0: none. No thread has this number.
    cdef int waiting  # number of threads that wait
    cdef bint is_waking  # whether `wake_lock` was released and no thread has taken it yet
    cdef bint is_missed  # whether a thread that was woken did not get the lock

    def __cinit__(self):
        self.make_wake_lock()

    cdef int make_wake_lock(self) except -1:
        self.wake_lock = PyThread_allocate_lock()
        if self.wake_lock == NULL:
            raise MemoryError("no memory for a lock")
        PyThread_acquire_lock_timed(self.wake_lock, 0, 0)
        return 0

    def __dealloc__(self):
        if self.wake_lock != NULL:
            if not self.is_waking:
                PyThread_release_lock(self.wake_lock)
            PyThread_free_lock(self.wake_lock)

    cdef inline int take(self) except -1:
        if self.owner:
            self.wait()
        self.owner = PyThread_get_thread_ident()
        return 0

    cdef int wait(self) except -1:
        cdef PyLockStatus status
        self.refuse_owner()
        self.waiting += 1
        try:
            while True:
                with nogil:
                    status = PyThread_acquire_lock_timed(self.wake_lock, -1, 1)
                if status != PY_LOCK_ACQUIRED:
                    PyErr_CheckSignals()
                    if self.owner == 0:
                        return 0
                    continue
                self.is_waking = False
                if self.owner == 0 or self.owner == _RESERVED:
                    return 0
                self.is_missed = True
        finally:
            if self.waiting:  # a signal handler may have forked, and this is the child
                self.waiting -= 1
            if not self.waiting:
                self.is_missed = False
                if self.owner == _RESERVED:
                    self.owner = 0

    cdef inline void give(self) noexcept:
        self.owner = 0
        if self.waiting:
            if self.is_missed:
                self.is_missed = False
                self.owner = _RESERVED
            if not self.is_waking:
                self.is_waking = True
                PyThread_release_lock(self.wake_lock)

    def acquire(self, blocking=True):
        """Take the lock; return False if it is held and `blocking` is false."""
        if blocking:
            self.take()
            return True
        if self.owner:
            return False
        self.owner = PyThread_get_thread_ident()
        return True

    def release(self):
        """Release the lock. Raise RuntimeError if it is not held."""
        if not self.owner:
            raise RuntimeError("release of a lock that is not held")
        self.give()

    def forget_threads(self):
        """In a forked child: release the lock, whichever thread held it, and forget the threads that waited."""
        self.owner = 0
        self.waiting = 0
        self.is_waking = self.is_missed = False
        self.make_wake_lock()  # the old one is not freed, as its state at the fork is unknown

    def locked(self):
        """Return whether the lock is held."""
        return self.owner != 0

    cpdef int refuse_owner(self) except -1:
        """Raise RuntimeError if the calling thread holds the lock: what it is about to wait for may need the lock."""
        if self.owner == PyThread_get_thread_ident():
            raise RuntimeError(_REENTERED)
        return 0

    def __enter__(self):
        self.take()
        return True

    def __exit__(self, kind, error, traceback):
        self.release()

    def __reduce__(self):
        raise TypeError("a lock cannot be pickled")
