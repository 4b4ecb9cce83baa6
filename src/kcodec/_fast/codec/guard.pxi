# SPDX-License-Identifier: Apache-2.0
# One caller at a time: what every object that holds raw pointers over a call does with its flag.

cdef extern from "_fast/codec/guard.h" nogil:
    enum:
        THREADS_RUN_AT_ONCE

    bint use_begin(int *in_use)
    void use_end(int *in_use)


cdef inline int _enter(int *in_use, object user) except -1:
    """Begin a use; use_end() is due. RuntimeError if there is one already."""
    if not use_begin(in_use):
        raise RuntimeError(f"the {type(user).__name__} is in use by another thread or by a call that has not returned; "
                           "create one for each thread")
    return 0


cdef inline int _make_once(int *is_made, object user) except -1:
    """For an __init__ that may run once only. TypeError if it has run before."""
    if not use_begin(is_made):
        raise TypeError(f"{type(user).__name__}.__init__ cannot be called a second time")
    return 0
