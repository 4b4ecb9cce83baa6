# SPDX-License-Identifier: Apache-2.0
# Access to the bytes that a caller passed, and common checks of arguments.

# no_gc: when Cython clears a reference cycle, it sets view.obj to None without releasing the buffer, and the memoryview
# that exported the buffer would then crash the garbage collector. A _Source is not part of a reference cycle.
@cython.no_gc
cdef class _Source:
    """A bytes-like object and its exported buffer, which is released with this object."""

    cdef Py_buffer view
    cdef bint held
    cdef readonly object owner

    def __cinit__(self, data):
        if isinstance(data, str):
            raise TypeError("data must be bytes-like, not str")
        try:
            PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
        except BufferError as error:
            raise ValueError(f"data must be contiguous bytes: {error}") from None
        self.held = True
        self.owner = data

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)

    cdef inline const uint8_t *data(self) noexcept nogil:
        return <const uint8_t *>self.view.buf

    cdef inline int64_t size(self) noexcept nogil:
        return self.view.len


# Views point into the caller's bytes, so a chunk with views holds a reference to the _Source. Arrow may release it on
# any thread, and also after the interpreter has ended, when there are no reference counts any more.
cdef void _retain_object(void *owner) noexcept nogil:
    with gil:
        Py_INCREF(<object>owner)


cdef void _release_object(void *owner) noexcept nogil:
    if Py_IsInitialized():
        with gil:
            Py_DECREF(<object>owner)


cdef int _read_limits(object limits, Limits *out) except -1:
    if not isinstance(limits, DecodeLimits):
        raise TypeError(f"limits must be a DecodeLimits, not {type(limits).__name__}")
    out.max_batch_bytes = limits.max_batch_bytes
    out.max_decompressed_bytes = limits.max_decompressed_bytes
    return 0


cdef object _choice(str name, object value, dict choices):
    """Return choices[value]. Raise ValueError, with the possible values, if it does not exist."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")
    if value not in choices:
        raise _choice_error(name, value, list(choices))
    return choices[value]


cdef object _integer(object value):
    """Return an integer, maybe of numpy, as an int; None for a bool and for any other value."""
    return value if type(value) is int else as_integer(value)


cdef object _choice_error(str name, object value, choices):
    """Return a ValueError that suggests the closest possible value, or lists all if none is close."""
    import difflib

    found = value if isinstance(value, str) else shown(value)
    near = difflib.get_close_matches(str(found), [str(choice) for choice in choices], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; possible: {', '.join(str(choice) for choice in choices)}"
    return ValueError(f"unknown {name} {repr(value) if found is value else found}{hint}")


class _DefaultTrue(int):
    """True as a default value that can be distinguished from a True that is given, so that both names of one argument
    in one call are noticed.
    """

    __slots__ = ()

    def __repr__(self):
        return "True"


CHECK_CRCS = _DefaultTrue(1)
cdef object _CHECK_CRCS = CHECK_CRCS


cdef inline bint _checks_crcs(object check_crcs, object verify_crc) except -1:
    """Return the value of the argument check_crcs, or that of verify_crc, its deprecated name, if it is not None.

    The default of check_crcs must be CHECK_CRCS. Raise TypeError if both are given.
    """
    if verify_crc is None:
        if check_crcs is _CHECK_CRCS:
            return True
        return check_crcs
    return _checks_crcs_by_old_name(check_crcs, verify_crc)


cdef bint _checks_crcs_by_old_name(object check_crcs, object verify_crc) except -1:
    from kcodec.arguments import both_names_error, warn_renamed

    if check_crcs is not _CHECK_CRCS:
        raise both_names_error("verify_crc", "check_crcs")
    warn_renamed("verify_crc", "check_crcs")
    return verify_crc


def checks_crcs(check_crcs, verify_crc):
    """Return what check_crcs says, or verify_crc, its deprecated name. Internal."""
    return _checks_crcs(check_crcs, verify_crc)
