# SPDX-License-Identifier: Apache-2.0
# Aborted transactions, as a broker or a scan of end-transaction markers reports them.

cdef int64_t _int64(object value, str name) except? -1:
    number = _integer(value)
    if number is None:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not INT64_MIN <= number <= INT64_MAX:
        raise ValueError(f"{name} must be a 64-bit number, not {shown(number)}")
    return number


cdef class AbortedTransaction:
    """AbortedTransaction(producer_id, first_offset, last_offset=None)
    --

    A transaction that was aborted, as a Fetch response names it (KIP-98). Frozen.

    producer_id, first_offset: of the transaction's first record, as the response has them.
    last_offset:               of its ABORT marker, where it is known (a log on disk); None from a broker.
    """

    cdef readonly int64_t producer_id
    cdef readonly int64_t first_offset
    cdef readonly object last_offset

    def __init__(self, producer_id, first_offset, last_offset=None):
        self.producer_id = _int64(producer_id, "producer_id")
        self.first_offset = _int64(first_offset, "first_offset")
        self.last_offset = None if last_offset is None else _int64(last_offset, "last_offset")

    def __iter__(self):
        return iter((self.producer_id, self.first_offset, self.last_offset))

    def __eq__(self, other):
        return tuple(self) == tuple(other) if isinstance(other, AbortedTransaction) else NotImplemented

    def __hash__(self):
        return hash(tuple(self))

    def __repr__(self):
        last = "" if self.last_offset is None else f", last_offset={self.last_offset}"
        return f"AbortedTransaction(producer_id={self.producer_id}, first_offset={self.first_offset}{last})"

    def __reduce__(self):
        return AbortedTransaction, tuple(self)


def _aborted_of(entry):
    """Return an entry of AbortedTransactions as an AbortedTransaction."""
    if isinstance(entry, AbortedTransaction):
        return entry
    if hasattr(entry, "producer_id") and hasattr(entry, "first_offset"):
        return AbortedTransaction(entry.producer_id, entry.first_offset, getattr(entry, "last_offset", None))
    return AbortedTransaction(*entry)


cdef class AbortedTransactions:
    """Aborted transactions, sorted once: for a Decoder that reads several chunks of a file.

    entries: AbortedTransaction values, other objects with producer_id and first_offset, such as those of a
             FetchResponse, or (producer_id, first_offset[, last_offset]) tuples, in any order.
    """

    cdef AbortedIndex index
    cdef readonly tuple entries

    def __cinit__(self, entries=()):
        try:
            self.entries = tuple(map(_aborted_of, entries))
        except TypeError as error:
            raise TypeError(f"aborted_transactions must hold AbortedTransaction values: {error}") from None
        cdef Py_ssize_t count = len(self.entries), at
        cdef Aborted *values = <Aborted *>malloc((count + 1) * sizeof(Aborted))
        cdef AbortedTransaction entry
        if values == NULL:
            raise MemoryError("no memory for aborted transactions")
        for at in range(count):
            entry = self.entries[at]
            values[at].producer_id = entry.producer_id
            values[at].first_offset = entry.first_offset
            values[at].last_offset = NO_LAST_OFFSET if entry.last_offset is None else <int64_t>entry.last_offset
        cdef int failed = aborted_index_build(&self.index, values, count)
        free(values)
        if failed:
            raise MemoryError("no memory for aborted transactions")

    def __dealloc__(self):
        aborted_index_free(&self.index)

    def __len__(self):
        return len(self.entries)

    def __iter__(self):
        return iter(self.entries)

    def __eq__(self, other):
        return self.entries == other.entries if isinstance(other, AbortedTransactions) else NotImplemented

    def __hash__(self):
        return hash(self.entries)

    def __repr__(self):
        return f"AbortedTransactions({list(self.entries)!r})"

    def __reduce__(self):
        return AbortedTransactions, (self.entries,)


cdef AbortedTransactions _as_aborted(object value):
    return value if isinstance(value, AbortedTransactions) else AbortedTransactions(value)
