# SPDX-License-Identifier: Apache-2.0
# Compression by Python packages and the standard library, in the framing of Kafka's own writer (Compression, KIP-390).
# Snappy is in snappy.c. C code calls _package_compress without the GIL, which only this function acquires.

# codec: (Kafka's default level, minimum, maximum); the other codecs have no levels
cdef dict _LEVELS = {COMPRESSION_GZIP: (-1, -1, 9), COMPRESSION_LZ4: (9, 1, 17), COMPRESSION_ZSTD: (3, -131072, 22)}

cdef enum:
    LZ4_BLOCK = 64 << 10
    LZ4_FAST_LEVEL = 9    # Kafka's default level, which is the fast compressor; all others are the high compressor


cdef int _compression_level(object codec, object level) except? -1000000:
    """Return the compression level to use. Raise ValueError if the codec does not have this level."""
    number = int(codec)
    if number not in _LEVELS:
        if level is not None:
            raise ValueError(f"compression {str(codec)!r} has no levels: omit compression_level")
        return 0
    default, least, most = _LEVELS[number]
    if level is None:
        return default
    given = _integer(level)
    if given is None:
        raise TypeError(f"compression_level must be an int, not {type(level).__name__}")
    if not least <= given <= most or (number == COMPRESSION_GZIP and given == 0):
        possible = "1 to 9, or -1" if number == COMPRESSION_GZIP else f"{least} to {most}"
        raise ValueError(f"compression_level of {str(codec)!r} must be {possible}, not {shown(given)}")
    return given


# Unused zstd compressors by level. They are used again, because a new one costs more than compressing a small batch.
# Each is used by one thread at a time.
cdef dict _waiting_zstd = {}


cdef class _Compressor:
    """Compresses the batches of one writer at one level."""

    cdef int level
    cdef object zstd, compress_block

    def __cinit__(self, int level):
        self.level = level

    cdef int into(self, int codec, object view, Buffer *out, int64_t at, int64_t *length) except -1:
        if codec == COMPRESSION_LZ4:
            return self._lz4(view, out, at, length)
        if codec == COMPRESSION_ZSTD:
            return _append_bytes(self._zstd(view), out, at, length)
        return _append_bytes(self._gzip(view), out, at, length)

    cdef bytes _zstd(self, object view):
        """Compress to one frame without content size, as a streaming compressor does."""
        waiting = _waiting_zstd.setdefault(self.level, [])
        try:
            compressor = waiting.pop()
        except IndexError:
            import zstandard

            compressor = zstandard.ZstdCompressor(level=self.level, write_content_size=False)
        compressed = compressor.compress(view)
        waiting.append(compressor)
        return compressed

    cdef bytes _gzip(self, object view):
        """Compress to one member, with the header that Java writes: no time, no flags, operating system unknown."""
        import zlib

        deflate = zlib.compressobj(self.level, zlib.DEFLATED, -zlib.MAX_WBITS)
        body = deflate.compress(view)
        rest = deflate.flush()
        ends = zlib.crc32(view).to_bytes(4, "little") + (len(view) & 0xFFFFFFFF).to_bytes(4, "little")
        return b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff" + body + rest + ends

    cdef int _lz4(self, object view, Buffer *out, int64_t at, int64_t *length) except -1:
        """Compress to a frame of independent blocks of 64 KiB, without content size and checksums of blocks and content
        (Lz4BlockOutputStream)."""
        cdef int64_t size = len(view), place, block, made = 7
        cdef const uint8_t *source
        cdef bytes compressed
        if self.compress_block is None:
            import lz4.block

            self.compress_block = lz4.block.compress
        # A block that compression does not make smaller is stored uncompressed.
        if buffer_grow(out, at + 7 + size + 4 * (size // LZ4_BLOCK + 1) + 4, at):
            raise MemoryError("no memory for encoded batches")
        memcpy(out.data + at, b"\x04\x22\x4d\x18\x60\x40\x82", 7)
        for place in range(0, size, LZ4_BLOCK):
            block = min(size - place, <int64_t>LZ4_BLOCK)
            plain = view[place : place + block]
            if self.level == LZ4_FAST_LEVEL:
                compressed = self.compress_block(plain, store_size=False)
            else:
                compressed = self.compress_block(plain, mode="high_compression", compression=min(self.level, 16),
                                                 store_size=False)
            if PyBytes_GET_SIZE(compressed) < block:
                store_le32(out.data + at + made, <uint32_t>PyBytes_GET_SIZE(compressed))
                memcpy(out.data + at + made + 4, PyBytes_AS_STRING(compressed), PyBytes_GET_SIZE(compressed))
                made += 4 + PyBytes_GET_SIZE(compressed)
            else:
                store_le32(out.data + at + made, <uint32_t>block | 0x80000000u)
                source = _first_byte(plain)
                memcpy(out.data + at + made + 4, source, block)
                made += 4 + block
        store_le32(out.data + at + made, 0)
        length[0] = made + 4
        return 0


cdef void store_le32(uint8_t *to, uint32_t value) noexcept nogil:
    memcpy(to, &value, 4)  # bounds.h requires a little-endian machine


cdef const uint8_t *_first_byte(object view) except NULL:
    cdef const uint8_t[::1] typed = view
    return &typed[0]


cdef int _append_bytes(bytes compressed, Buffer *out, int64_t at, int64_t *length) except -1:
    cdef int64_t size = PyBytes_GET_SIZE(compressed)
    if buffer_grow(out, at + size, at):
        raise MemoryError("no memory for encoded batches")
    memcpy(out.data + at, PyBytes_AS_STRING(compressed), size)
    length[0] = size
    return 0


cdef int _package_compress(void *context, int codec, const uint8_t *data, int64_t size, Buffer *out, int64_t at,
                           int64_t *length, Fault *fault) noexcept nogil:
    with gil:
        try:
            (<_Compressor>context).into(codec, PyMemoryView_FromMemory(<char *>data, size, PyBUF_READ), out, at, length)
            return 0
        except BaseException as error:  # noqa: BLE001  stored until the C code has returned and raised by _error_of
            _keep_python_error(fault, b"compression", error)
            return -1
