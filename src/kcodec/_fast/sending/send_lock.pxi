# SPDX-License-Identifier: Apache-2.0
# SendLock: the lock that `send` takes for every record.

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


@cython.final
cdef class SendLock:
    """A lock as `threading.Lock`, which compiled code takes without a Python call. Ctrl-C interrupts a wait for it.

    A thread that holds it cannot wait for it: the call raises RuntimeError.
    """

    cdef PyThread_type_lock lock
    cdef unsigned long owner  # the thread that holds it; 0: none. No thread has this number.

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError("no memory for a lock")

    def __dealloc__(self):
        if self.lock != NULL:
            if self.owner:
                PyThread_release_lock(self.lock)
            PyThread_free_lock(self.lock)

    cdef inline int take(self) except -1:
        if PyThread_acquire_lock_timed(self.lock, 0, 0) != PY_LOCK_ACQUIRED:
            self.wait()
        self.owner = PyThread_get_thread_ident()
        return 0

    cdef int wait(self) except -1:
        cdef PyLockStatus status
        self.refuse_owner()
        while True:
            with nogil:
                status = PyThread_acquire_lock_timed(self.lock, -1, 1)
            if status == PY_LOCK_ACQUIRED:
                return 0
            PyErr_CheckSignals()

    cdef inline void give(self) noexcept:
        self.owner = 0
        PyThread_release_lock(self.lock)

    def acquire(self, blocking=True):
        """Take the lock; return False if it is held and `blocking` is false."""
        if blocking:
            self.take()
            return True
        if PyThread_acquire_lock_timed(self.lock, 0, 0) != PY_LOCK_ACQUIRED:
            return False
        self.owner = PyThread_get_thread_ident()
        return True

    def release(self):
        """Release the lock. Raise RuntimeError if it is not held."""
        if not self.owner:
            raise RuntimeError("release of a lock that is not held")
        self.give()

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
