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


@cython.final
cdef class SendLock:
    """A lock as `threading.Lock`, which compiled code takes without a Python call. Ctrl-C interrupts a wait for it."""

    cdef PyThread_type_lock lock
    cdef bint is_held

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError("no memory for a lock")

    def __dealloc__(self):
        if self.lock != NULL:
            if self.is_held:
                PyThread_release_lock(self.lock)
            PyThread_free_lock(self.lock)

    cdef inline int take(self) except -1:
        if PyThread_acquire_lock_timed(self.lock, 0, 0) != PY_LOCK_ACQUIRED:
            self.wait()
        self.is_held = True
        return 0

    cdef int wait(self) except -1:
        cdef PyLockStatus status
        while True:
            with nogil:
                status = PyThread_acquire_lock_timed(self.lock, -1, 1)
            if status == PY_LOCK_ACQUIRED:
                return 0
            PyErr_CheckSignals()

    cdef inline void give(self) noexcept:
        self.is_held = False
        PyThread_release_lock(self.lock)

    def acquire(self, blocking=True):
        """Take the lock; return False if it is held and `blocking` is false."""
        if blocking:
            self.take()
            return True
        if PyThread_acquire_lock_timed(self.lock, 0, 0) != PY_LOCK_ACQUIRED:
            return False
        self.is_held = True
        return True

    def release(self):
        """Release the lock. Raise RuntimeError if it is not held."""
        if not self.is_held:
            raise RuntimeError("release of a lock that is not held")
        self.give()

    def locked(self):
        """Return whether the lock is held."""
        return self.is_held

    def __enter__(self):
        self.take()
        return True

    def __exit__(self, kind, error, traceback):
        self.release()

    def __reduce__(self):
        raise TypeError("a lock cannot be pickled")
