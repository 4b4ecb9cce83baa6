# SPDX-License-Identifier: Apache-2.0
# Decompression of zstd and gzip by the packages zstandard and isal. C code calls _package_decompress without the GIL,
# which only this function acquires. The bytes object whose memory C code uses is kept in the context until its next
# call.

cdef enum:
    GZIP_STEP = 1 << 20  # maximum output of one call; without it, a stream could make the package allocate too much
    # The package copies the input that a call does not use, so each call gets a slice: a small one at the beginning of
    # a member, then larger ones. The time is then proportional to the size, for small members and for large ones.
    GZIP_FIRST_INPUT = 512
    GZIP_MOST_INPUT = 64 << 10


# The wheels of zstandard contain libzstd twice: in the default backend, which does not export its functions, and in the
# backend for cffi, which does. Calling these functions directly needs no GIL and no Python objects, which saves a
# quarter of the time for a batch of ten records.
cdef bint _may_use_zstd_library = False


cdef object _zstd_library_path():
    """Return the file of the zstandard package that exports libzstd, or None."""
    import importlib.machinery
    import os

    import zstandard

    folder = os.path.dirname(zstandard.__file__)
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = os.path.join(folder, "_cffi" + suffix)
        if os.path.exists(path):
            return os.fsencode(path)
    return None


cdef ZstdWay _use_zstd_library() except *:
    path = _zstd_library_path()
    return ZSTD_BY_PACKAGE if path is None else decompressor_use_zstd(ZSTD_BY_LIBRARY, ZSTD_LEAST_VERSION, path)


cdef int _use_zstd_library_from_now_on() except -1:
    """Look for the library once, at the first batch that needs the package, so that zstandard is not imported
    earlier."""
    global _may_use_zstd_library
    if _may_use_zstd_library:
        _may_use_zstd_library = False
        _use_zstd_library()
    return 0


cdef class _PackageState:
    """The state of one context between calls: its zstd decompressor, which only one thread may use at a time, and the
    bytes it returned."""

    cdef object zstandard, zstd, decompress_frame   # the package, a decompressor, its method
    cdef object isal_zlib, member_of                # the package, its decompressobj
    cdef bytes lent

    cdef int decompress_zstd(self, const uint8_t *data, int64_t size, int64_t bound, int frames, int64_t limit,
                             Fault *fault) except -1:
        if self.zstd is None:
            import zstandard

            _use_zstd_library_from_now_on()
            self.zstandard = zstandard
            self.zstd = zstandard.ZstdDecompressor()
            self.decompress_frame = self.zstd.decompress
        view = PyMemoryView_FromMemory(<char *>data, size, PyBUF_READ)
        cdef int64_t capacity = min(bound, limit)
        if frames == 0:
            self.lent = b""
            return 0
        if frames == 1:
            try:
                # max_output_size, read_across_frames, allow_extra_data
                self.lent = self.decompress_frame(view, max(capacity, 1), False, False)
            except self.zstandard.ZstdError:
                # Skippable frames, a size above the limit, or corruption: streaming decompression distinguishes them.
                return self._stream_zstd(view, limit, fault)
            if len(self.lent) > limit:
                return self._over(b"zstd", len(self.lent), limit, fault)
            return 0
        return self._stream_zstd(view, limit, fault)

    cdef int _stream_zstd(self, object view, int64_t limit, Fault *fault) except -1:
        parts = []
        cdef int64_t total = 0
        try:
            with self.zstd.stream_reader(view, read_across_frames=True) as reader:
                while part := reader.read(min(GZIP_STEP, limit + 1 - total)):
                    parts.append(part)
                    total += len(part)
                    if total > limit:
                        return self._over(b"zstd", total, limit, fault)
        except self.zstandard.ZstdError:
            fault_detail(fault, FAULT_COMPRESSED_BAD, b"zstd", b"stream is corrupt")
            return 1
        self.lent = b"".join(parts)
        return 0

    cdef int decompress_gzip(self, const uint8_t *data, int64_t size, int64_t limit, Fault *fault) except -1:
        """Decompress all members. Bytes after a member that are not a gzip header are ignored, as in Java."""
        cdef int64_t at = 0, total = 0, header = gzip_header_size(data, size), begin, end, step
        if self.isal_zlib is None:
            from isal import isal_zlib

            self.isal_zlib = isal_zlib
            self.member_of = isal_zlib.decompressobj
        parts = []
        if header == 0:
            if size < 2:
                fault_set(fault, FAULT_COMPRESSED_CUT, b"gzip", 0, 0)
            else:
                fault_detail(fault, FAULT_COMPRESSED_BAD, b"gzip", b"no gzip member begins here")
            return 1
        while header:
            member = self.member_of(31)
            step = GZIP_FIRST_INPUT
            end = min(at + header + step, size)
            pending = PyMemoryView_FromMemory(<char *>data + at, end - at, PyBUF_READ)
            try:
                while True:
                    part = <bytes>member.decompress(pending, min(<int64_t>GZIP_STEP, limit + 1 - total))
                    if PyBytes_GET_SIZE(part):
                        parts.append(part)
                        total += PyBytes_GET_SIZE(part)
                        if total > limit:
                            return self._over(b"gzip", total, limit, fault)
                    if member.eof:
                        break
                    pending = member.unconsumed_tail
                    if pending:
                        continue
                    if end < size:
                        begin = end
                        step = min(2 * step, <int64_t>GZIP_MOST_INPUT)
                        end = min(begin + step, size)
                        pending = PyMemoryView_FromMemory(<char *>data + begin, end - begin, PyBUF_READ)
                    elif not PyBytes_GET_SIZE(part):
                        fault_set(fault, FAULT_COMPRESSED_CUT, b"gzip", 0, 0)
                        return 1
            except self.isal_zlib.error:
                fault_detail(fault, FAULT_COMPRESSED_BAD, b"gzip", b"stream is corrupt")
                return 1
            at = end - len(member.unused_data)
            header = gzip_header_size(data + at, size - at)
            PyErr_CheckSignals()
        self.lent = <bytes>parts[0] if len(parts) == 1 else b"".join(parts)
        return 0

    cdef int _over(self, const char *codec, int64_t found, int64_t limit, Fault *fault):
        fault_set(fault, FAULT_DECOMPRESSED_LIMIT, codec, found, limit)
        return 1


# Exceptions that were raised during a call without the GIL, by the number that a FAULT_PYTHON has in `found`. If
# several threads of one call fail, only one exception is raised; newer entries replace those of the other threads.
cdef enum:
    MOST_PYTHON_ERRORS = 256
cdef dict _python_errors = {}
cdef object _next_python_error = itertools.count(1)


cdef int _keep_python_error(Fault *fault, const char *during, object error) except -1:
    cdef int64_t number = next(_next_python_error)
    while len(_python_errors) >= MOST_PYTHON_ERRORS:
        _python_errors.pop(next(iter(_python_errors)), None)
    _python_errors[number] = error
    fault_set(fault, FAULT_PYTHON, during, number, 0)
    return 0


cdef void _forget_lent(Decompressor *self) noexcept nogil:
    with gil:
        (<_PackageState>self.python).lent = None


cdef int _package_decompress(Decompressor *self, int codec, const uint8_t *data, int64_t size, int64_t bound,
                             int frames, int64_t limit, const uint8_t **out, int64_t *length,
                             Fault *fault) noexcept nogil:
    cdef int result = -1
    with gil:
        try:
            if self.python == NULL:
                made = _PackageState()
                Py_INCREF(made)  # the context keeps this reference, and contexts are never freed
                self.python = <void *>made
                self.forget = _forget_lent
            state = <_PackageState>self.python
            state.lent = None  # released first, so that the next result can use this memory, which is still cached
            if codec == COMPRESSION_ZSTD:
                result = state.decompress_zstd(data, size, bound, frames, limit, fault)
            else:
                result = state.decompress_gzip(data, size, limit, fault)
            if result == 0:
                out[0] = <const uint8_t *>PyBytes_AS_STRING(state.lent)
                length[0] = PyBytes_GET_SIZE(state.lent)
                self.lent = max(self.lent, length[0])
        except BaseException as error:  # noqa: BLE001  stored until the C code has returned and raised by _error_of
            _keep_python_error(fault, b"decompression", error)
    return -1 if result else 0
