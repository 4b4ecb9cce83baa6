# SPDX-License-Identifier: Apache-2.0
# Selection of processor-specific code and system libraries at start, and functions for tests of the memory pool.
# Environment variables:
#
#   KCODEC_CRC32C=avx512|sse42|arm64|portable     Implementation of CRC-32C to use instead of the fastest.
#   KCODEC_SYSTEM_ZSTD=0|1       0: only the zstandard package. 1: the system's libzstd, whatever its version. Default:
#                                the system's libzstd from version 1.5.6 on, else the libzstd inside the package, else
#                                the package.

def crc32c(data, value=0):
    """Return the CRC-32C of a bytes-like object, continuing `value`."""
    cdef _Source source = _Source(data)
    cdef uint32_t crc = value
    with nogil:
        crc = _crc32c(crc, source.data(), source.size())
    return crc


def crc32c_path_names():
    """Return the implementations of CRC-32C that this processor supports, fastest first."""
    names = []
    cdef const Crc32cPath *path = crc32c_paths()
    while path.name != NULL:
        names.append(path.name.decode("ascii"))
        path += 1
    return names


def crc32c_by(name, data, value=0):
    """Return the CRC-32C computed by the implementation of this name: for tests."""
    cdef _Source source = _Source(data)
    cdef const Crc32cPath *path = crc32c_paths()
    while path.name != NULL:
        if path.name.decode("ascii") == name:
            return path.function(value, source.data(), source.size())
        path += 1
    raise _choice_error("CRC-32C path", name, crc32c_path_names())


def use_zstd(way):
    """Select how zstd is decompressed. Return the way that is in use, "package" if the wanted one is not available.

    "package" calls the zstandard package, "system" the system's libzstd of whatever version, and "library" the libzstd
    that the package contains, without its Python objects.
    """
    global _may_use_zstd_library
    _may_use_zstd_library = False
    if way == "library":
        _use_zstd_library()
    elif way in ("package", "system"):
        decompressor_use_zstd(ZSTD_BY_SYSTEM if way == "system" else ZSTD_BY_PACKAGE, 0, NULL)
    else:
        raise _choice_error("way", way, ["package", "system", "library"])
    return zstd_way()


def zstd_way():
    """Return how zstd is decompressed: see use_zstd."""
    cdef ZstdWay way = decompressor_zstd_way()
    return "system" if way == ZSTD_BY_SYSTEM else "library" if way == ZSTD_BY_LIBRARY else "package"


def pool_state():
    """Return (bytes kept, buffers kept, buffers in use) of the pool of output memory."""
    cdef PoolCounts counts
    pool_counts(&counts)
    return counts.retained_bytes, counts.retained_buffers, counts.outstanding_buffers


def trim_pool():
    """Release all unused memory of the pool to the system."""
    pool_trim()


def find_provable(data, above_offset, limits=DEFAULT_LIMITS, budget=None):
    """Return the first position in `data` of a batch with a valid header and CRC and a base offset above
    `above_offset`.

    Return -1 if no such batch exists, and -2 if finding out would read more than `budget` bytes for CRCs."""
    cdef _Source source = _Source(data)
    cdef Limits bounds
    cdef BatchHeader header
    cdef Fault fault
    cdef int64_t at, above = above_offset, size = source.size(), found = -1, needed
    cdef int64_t left = INT64_MAX if budget is None else budget
    _read_limits(limits, &bounds)
    with nogil:
        for at in range(size - LEAST_SIZE_ANY_MAGIC + 1):
            if walk_batch(source.data(), size, at, 0, &bounds, &header, &needed, &fault) != WALK_BATCH:
                continue
            if header.base_offset <= above or header_check(&header, &fault):
                continue
            if header_is_legacy(&header) and not legacy_is_exact(source.data() + at):
                continue
            left -= needed
            if left < 0:
                found = -2
                break
            if header_is_provable(source.data(), size, at, above, &bounds, &header):
                found = at
                break
    return found


cdef int _start() except -1:
    import os

    crc32_initialise()
    pool_initialise()
    visibility_initialise()
    decompressor_initialise()
    chosen = os.environ.get("KCODEC_CRC32C")
    if chosen is None:
        crc32c_choose(NULL)
    elif crc32c_choose(chosen.encode()):
        raise _choice_error("KCODEC_CRC32C", chosen, crc32c_path_names())
    when = os.environ.get("KCODEC_SYSTEM_ZSTD")
    if when != "0":
        decompressor_use_zstd(ZSTD_BY_SYSTEM, 0 if when == "1" else ZSTD_LEAST_VERSION, NULL)
        global _may_use_zstd_library
        _may_use_zstd_library = when != "1" and decompressor_zstd_way() == ZSTD_BY_PACKAGE
    return 0


_start()
