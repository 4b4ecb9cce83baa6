# SPDX-License-Identifier: Apache-2.0
# Export of results by the Arrow PyCapsule interface, which does not need pyarrow.

cdef extern from "Python.h":
    int PyThreadState_SetAsyncExc(unsigned long thread, PyObject *exception)
    unsigned long PyThread_get_thread_ident()

cdef void _free_schema_capsule(object capsule) noexcept:
    cdef ArrowSchema *schema = <ArrowSchema *>PyCapsule_GetPointer(capsule, b"arrow_schema")
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef void _free_array_capsule(object capsule) noexcept:
    cdef ArrowArray *array = <ArrowArray *>PyCapsule_GetPointer(capsule, b"arrow_array")
    if array.release != NULL:
        array.release(array)
    free(array)


cdef void _free_stream_capsule(object capsule) noexcept:
    cdef ArrowArrayStream *stream = <ArrowArrayStream *>PyCapsule_GetPointer(capsule, b"arrow_array_stream")
    if stream.release != NULL:
        stream.release(stream)
    free(stream)


cdef object _schema_capsule(_Layout layout):
    cdef ArrowSchema *schema = <ArrowSchema *>calloc(1, sizeof(ArrowSchema))
    if schema == NULL or arrow_export_schema(&layout.chunk, &layout.order, schema):
        free(schema)
        raise MemoryError("no memory for an Arrow schema")
    return PyCapsule_New(schema, b"arrow_schema", _free_schema_capsule)


cdef object _column_schema_capsule(_Layout layout, int column):
    cdef ArrowSchema *schema = <ArrowSchema *>calloc(1, sizeof(ArrowSchema))
    if schema == NULL or arrow_export_column_schema(&layout.chunk, column, layout.order.all_nullable, schema):
        free(schema)
        raise MemoryError("no memory for an Arrow schema")
    return PyCapsule_New(schema, b"arrow_schema", _free_schema_capsule)


cdef object _array_capsule(_Layout layout, _Rows rows):
    cdef ArrowArray *array = <ArrowArray *>calloc(1, sizeof(ArrowArray))
    if array == NULL or arrow_export_rows(rows.chunk, &layout.order, rows.first, rows.count, array):
        free(array)
        raise MemoryError("no memory for an Arrow array")
    return PyCapsule_New(array, b"arrow_array", _free_array_capsule)


cdef class _Stream:
    """An Arrow C stream over an iterator of _Rows or DecodedRecords."""

    cdef _Layout layout
    cdef object source
    cdef int column           # -1: all columns, as a struct
    cdef list waiting
    cdef bytes error

    cdef int next_array(self, ArrowArray *out) except -1:
        cdef _Rows rows
        while not self.waiting:
            item = next(self.source, None)
            if item is None:
                return 0  # an array of zeros, without a release function, marks the end
            self.waiting = list((<DecodedRecords>item)._parts) if isinstance(item, DecodedRecords) else [item]
        rows = self.waiting.pop(0)
        cdef int failed
        if self.column < 0:
            failed = arrow_export_rows(rows.chunk, &self.layout.order, rows.first, rows.count, out)
        else:
            failed = arrow_export_column(rows.chunk, self.column, rows.first, rows.count, out)
        if failed:
            raise MemoryError("no memory for an Arrow array")
        return 0


cdef enum:
    _EINVAL = 22
    _ENOMEM = 12


cdef int _stream_get_schema(ArrowArrayStream *stream, ArrowSchema *out) noexcept nogil:
    cdef int failed
    with gil:
        state = <_Stream>stream.private_data
        if state.column < 0:
            failed = arrow_export_schema(&state.layout.chunk, &state.layout.order, out)
        else:
            failed = arrow_export_column_schema(&state.layout.chunk, state.column, state.layout.order.all_nullable, out)
    return _ENOMEM if failed else 0


cdef int _stream_get_next(ArrowArrayStream *stream, ArrowArray *out) noexcept nogil:
    with gil:
        state = <_Stream>stream.private_data
        memset(out, 0, sizeof(ArrowArray))
        try:
            state.next_array(out)
            return 0
        except BaseException as error:  # noqa: BLE001  the C interface can only return an error number and a text
            state.error = (str(error) or type(error).__name__).encode("utf-8", "replace")
            is_interrupt = isinstance(error, KeyboardInterrupt)
        if is_interrupt:
            # The Arrow library raises its own exception for the error number, which `except Exception` catches. The
            # interrupt is therefore set again for this thread, and Python raises it when the library's call has
            # returned. This does not call the program's signal handler again. The source is dropped first, because
            # an exception raised in its finalizer would be lost.
            state.source = iter(())
            PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), <PyObject *>KeyboardInterrupt)
        return _EINVAL


cdef const char *_stream_get_last_error(ArrowArrayStream *stream) noexcept nogil:
    with gil:
        state = <_Stream>stream.private_data
        if state.error is None:
            return NULL
        return PyBytes_AS_STRING(state.error)


cdef void _stream_release(ArrowArrayStream *stream) noexcept nogil:
    stream.release = NULL
    if Py_IsInitialized():
        with gil:
            Py_DECREF(<object>stream.private_data)


cdef object _stream_capsule(_Layout layout, object source, int column):
    cdef _Stream state = _Stream.__new__(_Stream)
    state.layout = layout
    state.source = source
    state.column = column
    state.waiting = []
    cdef ArrowArrayStream *stream = <ArrowArrayStream *>calloc(1, sizeof(ArrowArrayStream))
    if stream == NULL:
        raise MemoryError("no memory for an Arrow stream")
    stream.get_schema = _stream_get_schema
    stream.get_next = _stream_get_next
    stream.get_last_error = _stream_get_last_error
    stream.release = _stream_release
    Py_INCREF(state)
    stream.private_data = <void *>state
    return PyCapsule_New(stream, b"arrow_array_stream", _free_stream_capsule)


def stream_capsule(columns, binary_type, iterator, spark_layout=False, framing=None):
    """Return an ``arrow_array_stream`` capsule over an iterator of DecodedRecords, which is read as the consumer
    requests.

    An exception of the iterator becomes the error of the stream, with its text. After KeyboardInterrupt Python raises
    that again as soon as the consumer's call has returned.
    """
    return _stream_capsule(_Layout(columns, binary_type, spark_layout, True, framing), iter(iterator), -1)


def schema_of(columns, binary_type="binary", spark_layout=False, framing=None):
    """Return the schema of results with these columns."""
    return ColumnsSchema(_Layout(columns, binary_type, spark_layout, True, framing))
