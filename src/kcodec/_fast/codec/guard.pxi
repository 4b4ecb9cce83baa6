# SPDX-License-Identifier: Apache-2.0
# Protection of objects that hold raw pointers during a call against a second use at the same time. See guard.h.

cdef extern from "_fast/codec/guard.h" nogil:
    enum:
        THREADS_RUN_AT_ONCE

    bint use_begin(int *in_use)
    void use_end(int *in_use)


cdef inline int _enter(int *in_use, object user) except -1:
    """Begin a use, which the caller ends with use_end(). Raise RuntimeError if another use has not ended."""
    if not use_begin(in_use):
        raise RuntimeError(f"the {type(user).__name__} is in use by another thread or by a call that has not returned; "
                           "create one for each thread")
    return 0


cdef inline int _make_once(int *is_made, object user) except -1:
    """Mark an object as initialized. Raise TypeError if its __init__ has run before."""
    if not use_begin(is_made):
        raise TypeError(f"{type(user).__name__}.__init__ cannot be called a second time")
    return 0
