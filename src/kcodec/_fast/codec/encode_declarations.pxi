# SPDX-License-Identifier: Apache-2.0
# Declarations of the C code for encoding records, for Cython. The comments are in the C headers.

cdef extern from "_fast/arrow/arrow_abi.h" nogil:
    # The same structures as in declarations.pxi, with the fields that an importer reads.
    struct ImportedSchema "ArrowSchema":
        const char *format
        const char *name
        int64_t n_children
        ImportedSchema **children
        ImportedSchema *dictionary
        void (*release)(ImportedSchema *schema) noexcept nogil

    struct ImportedArray "ArrowArray":
        int64_t length, null_count, offset, n_buffers, n_children
        const void **buffers
        ImportedArray **children
        ImportedArray *dictionary
        void (*release)(ImportedArray *array) noexcept nogil

    struct ImportedStream "ArrowArrayStream":
        int (*get_schema)(ImportedStream *stream, ImportedSchema *out) noexcept nogil
        int (*get_next)(ImportedStream *stream, ImportedArray *out) noexcept nogil
        const char *(*get_last_error)(ImportedStream *stream) noexcept nogil
        void (*release)(ImportedStream *stream) noexcept nogil

cdef extern from "_fast/arrow/arrow_import.h" nogil:
    enum:
        PAYLOAD_NULL
        BIND_NO_MEMORY
        BIND_INVALID

    ctypedef struct BinaryInput:
        int64_t first

    ctypedef struct Payload:
        const uint8_t *bytes
        int64_t length
        const uint8_t *readable_end

    ctypedef struct IntegerInput:
        int width
        int64_t first

    ctypedef struct HeadersInput:
        int width
        int64_t first
        BinaryInput name, value

    bint input_is_null(const uint8_t *validity, int64_t at)
    int binary_input_bind(BinaryInput *input, const ImportedSchema *schema, const ImportedArray *array)
    void binary_input_free(BinaryInput *input)
    int integer_input_bind(IntegerInput *input, const ImportedSchema *schema, const ImportedArray *array)
    int timestamp_input_bind(IntegerInput *input, const ImportedSchema *schema, const ImportedArray *array)
    int headers_input_bind(HeadersInput *input, const ImportedSchema *schema, const ImportedArray *array)
    Payload binary_input_get(const BinaryInput *input, int64_t row)
    int64_t binary_input_check(const BinaryInput *input, int64_t rows)
    int64_t headers_input_check(const HeadersInput *input, int64_t rows)

cdef extern from "_fast/codec/encode.h" nogil:
    enum:
        RECORD_ROOM
        HEADER_ROOM
        SCHEMA_ID_BYTES

    ctypedef int (*CompressFunction)(void *context, int codec, const uint8_t *data, int64_t size, Buffer *out,
                                     int64_t at, int64_t *length, Fault *fault) noexcept nogil

    ctypedef struct StoredTime:
        int64_t offset, timestamp

    ctypedef struct BatchSettings:
        BatchHeader header
        int64_t max_batch_bytes
        int has_base_offset, has_base_timestamp, has_max_timestamp, has_last_offset, any_timestamp, has_append_time
        int ends_at_gap
        int64_t append_time
        const StoredTime *stored_times
        int64_t stored_times_count
        int skip_useless_compression
        CompressFunction compress
        void *compress_context

    ctypedef struct HeaderField:
        Payload name, value

    ctypedef struct RecordFields:
        int64_t offset, timestamp
        Payload key, value
        int has_offset, has_key_schema_id, has_value_schema_id
        int32_t key_schema_id, value_schema_id
        int64_t headers_count
        const HeaderField *headers

    ctypedef struct BatchWriter:
        BatchSettings settings
        Buffer out
        int64_t finished
        int is_open
        int64_t length, base_offset, last_offset, base_timestamp, count
        int32_t base_sequence
        int64_t next_offset, records_count

    ctypedef struct RowsInput:
        BinaryInput key, value
        HeadersInput headers
        IntegerInput offset, timestamp, key_schema_id, value_schema_id
        int has_timestamp
        int64_t default_timestamp, rows

    ctypedef enum AppendResult:
        APPEND_DONE
        APPEND_FULL
        APPEND_FAULT

    void writer_begin(BatchWriter *writer, const BatchSettings *settings)
    void writer_free(BatchWriter *writer)
    bint writer_compresses(const BatchWriter *writer) nogil
    AppendResult writer_append(BatchWriter *writer, RecordFields *record, int64_t row, Fault *fault)
    int writer_finish_batch(BatchWriter *writer, Fault *fault)
    int writer_empty_batch(BatchWriter *writer, Fault *fault)
    int writer_append_rows(BatchWriter *writer, const RowsInput *rows, int64_t first_row, int one_batch, Fault *fault)
