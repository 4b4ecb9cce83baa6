# SPDX-License-Identifier: Apache-2.0
# Memory for the bytes that a connection receives, from the same pool as output memory.

cdef class FrameBuffer:
    """FrameBuffer(size)
    --

    A buffer of `size` bytes with undefined contents. They return to the pool when the last view of them is released:
    fresh memory costs a page fault for every 4 KiB, which is more than decoding what is received into it.
    """

    cdef Buffer buffer
    cdef Py_ssize_t size

    def __cinit__(self, size):
        self.size = _int64(size, "size")
        if self.size < 0:
            raise ValueError(f"size must be at least 0, not {size}")
        if buffer_acquire(&self.buffer, self.size + 1):
            raise MemoryError(f"no memory for a frame of {size} bytes")

    def __dealloc__(self):
        buffer_release(&self.buffer, self.size)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.buffer.data, self.size, 0, flags)

    def __reduce__(self):
        raise TypeError("a FrameBuffer cannot be pickled: take its bytes")
