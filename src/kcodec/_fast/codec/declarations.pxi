# SPDX-License-Identifier: Apache-2.0
# Declarations of the C code for Cython. The comments are in the C headers.

cdef extern from "Python.h" nogil:
    int Py_IsInitialized()

cdef extern from "_fast/codec/fault.h" nogil:
    ctypedef enum FaultCode:
        FAULT_NONE
        FAULT_BATCH_LENGTH_TOO_SMALL
        FAULT_BATCH_LENGTH_LIMIT
        FAULT_MAGIC
        FAULT_CRC
        FAULT_COMPRESSION_ID
        FAULT_FIELD_NEGATIVE
        FAULT_OFFSET_OVERFLOW
        FAULT_BASE_OFFSET_ORDER
        FAULT_COUNT_TOO_BIG
        FAULT_BYTES_LEFT
        FAULT_RECORD_MISSING
        FAULT_VARINT_CUT
        FAULT_VARINT_LONG
        FAULT_LENGTH_BEYOND
        FAULT_LENGTH_NEGATIVE
        FAULT_RECORD_LENGTH_MISMATCH
        FAULT_OFFSET_DELTA_RANGE
        FAULT_OFFSET_DELTA_ORDER
        FAULT_MESSAGE_TOO_SMALL
        FAULT_MESSAGE_MAGIC
        FAULT_MESSAGE_CRC
        FAULT_MESSAGE_COMPRESSED
        FAULT_WRAPPER_NULL
        FAULT_WRAPPER_EMPTY
        FAULT_WRAPPER_OFFSET
        FAULT_CONTROL_KEY_SHORT
        FAULT_CONTROL_KEY_VERSION
        FAULT_TIMESTAMP_OVERFLOW
        FAULT_COMPRESSED_CUT
        FAULT_COMPRESSED_BAD
        FAULT_DECOMPRESSED_LIMIT
        FAULT_ENCODE_NULL
        FAULT_ENCODE_TIMESTAMP
        FAULT_ENCODE_SECONDS
        FAULT_ENCODE_OFFSET
        FAULT_ENCODE_LAST_OFFSET
        FAULT_ENCODE_OFFSET_BASE
        FAULT_ENCODE_OFFSET_ORDER
        FAULT_ENCODE_OFFSET_DELTA
        FAULT_ENCODE_INT32
        FAULT_ENCODE_LENGTH
        FAULT_ENCODE_INVALID
        FAULT_ENCODE_TOO_LARGE
        FAULT_NO_MEMORY
        FAULT_PYTHON

    ctypedef struct Fault:
        int32_t code, has_base_offset
        int64_t position, base_offset, record, found, expected
        const char *field
        const char *detail

    int fault_set(Fault *fault, int32_t code, const char *field, int64_t found, int64_t expected)
    int fault_detail(Fault *fault, int32_t code, const char *field, const char *detail)

cdef extern from "_fast/codec/pool.h" nogil:
    ctypedef struct Buffer:
        uint8_t *data
        size_t capacity, touched

    ctypedef struct PoolCounts:
        int64_t retained_bytes, retained_buffers, outstanding_buffers

    int buffer_acquire(Buffer *buffer, size_t capacity)
    int buffer_grow(Buffer *buffer, size_t capacity, size_t keep)
    void buffer_release(Buffer *buffer, size_t used)
    void pool_counts(PoolCounts *counts)
    void pool_trim()
    void pool_initialise()

cdef extern from "_fast/codec/header.h" nogil:
    enum:
        LOG_OVERHEAD
        ATTRIBUTES_POSITION
        BATCH_OVERHEAD
        LEAST_SIZE_ANY_MAGIC
        MAGIC_UNREADABLE
        ATTRIBUTE_LOG_APPEND_TIME
        ATTRIBUTE_TRANSACTIONAL
        ATTRIBUTE_CONTROL
        ATTRIBUTE_DELETE_HORIZON
        OUTCOME_DELIVER
        OUTCOME_SKIPPED
        CONTROL_ABORT
        CONTROL_COMMIT
        CONTROL_UNREADABLE
        COMPRESSION_GZIP
        COMPRESSION_LZ4
        COMPRESSION_ZSTD

    ctypedef struct BatchHeader:
        int64_t position, base_offset, base_timestamp, reached_offset, max_timestamp, producer_id
        uint32_t crc
        int32_t batch_length, partition_leader_epoch, last_offset_delta, base_sequence, records_count, transaction
        int16_t attributes, producer_epoch, control_type
        uint8_t magic, outcome, message_attributes

    ctypedef struct Limits:
        int64_t max_batch_bytes, max_decompressed_bytes

    ctypedef enum WalkResult:
        WALK_BATCH
        WALK_CUT
        WALK_FAULT

    int64_t header_size(const BatchHeader *header)
    int64_t header_last_offset(const BatchHeader *header)
    int header_compression(const BatchHeader *header)
    int header_is_control(const BatchHeader *header)
    int header_is_transactional(const BatchHeader *header)
    int header_is_legacy(const BatchHeader *header)
    int header_is_wrapper(const BatchHeader *header)
    int header_highest_compression(const BatchHeader *header)
    int header_timestamp_type(const BatchHeader *header)
    int64_t header_reached(const BatchHeader *header)
    int64_t header_bytes(const uint8_t *p)
    uint32_t header_computed_crc(const BatchHeader *header, const uint8_t *batch)
    void header_parse(const uint8_t *p, BatchHeader *header)
    WalkResult walk_batch(const uint8_t *data, int64_t size, int64_t at, int64_t origin, const Limits *limits,
                          BatchHeader *header, int64_t *needed, Fault *fault)
    int header_check(const BatchHeader *header, Fault *fault)
    int header_is_provable(const uint8_t *data, int64_t size, int64_t at, int64_t above_offset, const Limits *limits,
                           BatchHeader *header)
    int32_t sequence_after(int32_t base_sequence, int64_t delta)

cdef extern from "_fast/codec/legacy.h" nogil:
    int legacy_is_exact(const uint8_t *p)

cdef extern from "_fast/codec/crc32.h" nogil:
    void crc32_initialise()
    uint32_t crc32_ieee(uint32_t crc, const uint8_t *data, size_t size)

cdef extern from "_fast/codec/scan.h" nogil:
    ctypedef struct BatchTable:
        Buffer memory
        int64_t count, end, needed, corrupt
        int done
        Fault fault

    BatchHeader *table_batches(const BatchTable *table)
    void scan_begin(BatchTable *table)
    int scan_batches(const uint8_t *data, int64_t size, int64_t origin, const Limits *limits, int skip, int64_t most,
                     BatchTable *table)
    void scan_free(BatchTable *table)

cdef extern from "_fast/codec/crc32c.h" nogil:
    ctypedef uint32_t (*Crc32cFunction)(uint32_t crc, const uint8_t *data, size_t size) noexcept nogil
    ctypedef struct Crc32cPath:
        const char *name
        Crc32cFunction function
    uint32_t _crc32c "crc32c"(uint32_t crc, const uint8_t *data, size_t size)
    const Crc32cPath *crc32c_paths()
    int crc32c_choose(const char *name)

cdef extern from "_fast/arrow/columns.h" nogil:
    enum:
        COLUMN_OFFSET
        COLUMN_TIMESTAMP
        COLUMN_TIMESTAMP_TYPE
        COLUMN_KEY
        COLUMN_VALUE
        COLUMN_HEADERS
        COLUMN_PARTITION_LEADER_EPOCH
        COLUMN_IS_TRANSACTIONAL
        COLUMN_IS_CONTROL
        COLUMN_CONTROL_TYPE
        COLUMN_TOPIC
        COLUMN_PARTITION
        COLUMN_KEY_SCHEMA_ID
        COLUMN_VALUE_SCHEMA_ID
        COLUMN_COUNT
        CHUNK_BYTES

    ctypedef enum BinaryType:
        BINARY
        LARGE_BINARY
        BINARY_VIEW

    ctypedef struct BinaryColumn:
        Buffer offsets, data, validity
        int64_t length, null_count

    ctypedef struct BatchSpan:
        int64_t first_row, base_offset, position
        int32_t base_sequence, leader_epoch
        int8_t timestamp_type
        uint8_t is_control

    ctypedef struct ViewSource:
        const uint8_t *base
        int64_t length

    ctypedef struct ChunkLayout:
        uint32_t wanted
        BinaryType binary_type
        uint8_t timestamp_microseconds, null_empty_headers, framing

    ctypedef struct Chunk:
        ChunkLayout layout
        int64_t rows, row_capacity
        Buffer fixed[18]
        Buffer control_type_validity
        int64_t control_type_nulls
        Buffer schema_id_validity[2]
        int64_t schema_id_nulls[2]
        uint8_t is_split, holds_one_batch
        BinaryColumn key, value
        Buffer header_lists
        Buffer header_list_validity
        int64_t header_list_nulls
        int64_t header_count, header_capacity
        BinaryColumn header_name, header_value
        uint8_t has_invalid_names
        BinaryColumn replaced_names
        Buffer spans
        int64_t span_count
        Buffer view_arena
        int64_t view_arena_length
        ViewSource *view_sources
        int view_source_count
        void *owner
        void (*release_owner)(void *owner) noexcept nogil
        const char *topic
        int32_t topic_length, partition, has_partition
        BinaryColumn topic_rows
        Buffer partition_validity

    int column_width(int column)
    bint column_is_constant(int column)
    int64_t chunk_fixed_rows(const Chunk *chunk, int column, int64_t rows)
    int64_t chunk_fixed_row(const Chunk *chunk, int column, int64_t row)
    int64_t chunk_part_rows(const Chunk *chunk)
    Chunk *chunk_new(const ChunkLayout *layout)
    void chunk_retain(Chunk *chunk)
    void chunk_release(Chunk *chunk)
    int chunk_reserve(Chunk *chunk, int64_t rows, int64_t payload)
    const uint8_t *chunk_validity(const Chunk *chunk, int column, int64_t *nulls)
    int chunk_finish(Chunk *chunk, Fault *fault)
    int bitmap_get(const uint8_t *bits, int64_t at)

cdef extern from "_fast/text/text.h" nogil:
    ctypedef enum TextKind:
        TEXT_LITERAL
        TEXT_INTEGER
        TEXT_BOOLEAN
        TEXT_TIME
        TEXT_TIMESTAMP_TYPE
        TEXT_SIZE
        TEXT_RAW
        TEXT_JSON
        TEXT_ESCAPED
        TEXT_CSV
        TEXT_PAIRS
        TEXT_CONTROL_TYPE
        TEXT_COORDINATOR_EPOCH

    ctypedef struct TextPart:
        TextKind kind
        int column, width
        const uint8_t *bytes
        int64_t length

    ctypedef struct TextLine:
        int64_t position
        const uint8_t *bytes
        int64_t length

    ctypedef struct TextOutput:
        Buffer buffer
        int64_t length

    void text_begin(TextOutput *out)
    void text_free(TextOutput *out)
    int text_append(TextOutput *out, const uint8_t *bytes, int64_t length)
    int text_rows(TextOutput *out, const Chunk *chunk, int64_t first, int64_t count, const TextPart *parts,
                  int parts_count, const TextLine *lines, int64_t lines_count, int64_t *next_line)

cdef extern from "_fast/codec/decompress.h" nogil:
    ctypedef struct Decompressor:
        void *python
        void (*forget)(Decompressor *self) noexcept nogil
        int64_t lent
    ctypedef int (*PackageFunction)(Decompressor *self, int codec, const uint8_t *data, int64_t size, int64_t bound,
                                    int frames, int64_t limit, const uint8_t **out, int64_t *length,
                                    Fault *fault) noexcept nogil
    void decompressor_initialise()
    ctypedef enum ZstdWay:
        ZSTD_BY_PACKAGE
        ZSTD_BY_SYSTEM
        ZSTD_BY_LIBRARY
    enum:
        ZSTD_LEAST_VERSION
    ZstdWay decompressor_use_zstd(ZstdWay way, unsigned int least_version, const char *path)
    ZstdWay decompressor_zstd_way()

cdef extern from "_fast/codec/inflate.h" nogil:
    int64_t gzip_header_size(const uint8_t *data, int64_t size)

cdef extern from "_fast/codec/visibility.h" nogil:
    enum:
        NO_LAST_OFFSET

    ctypedef struct Aborted:
        int64_t producer_id, first_offset, last_offset

    ctypedef struct AbortedIndex:
        Aborted *intervals
        int64_t interval_count
        Aborted *open_ended
        int64_t open_ended_count

    ctypedef struct ProducerMap:
        int64_t count

    ctypedef enum Isolation:
        READ_UNCOMMITTED
        READ_COMMITTED_BY_LIST
        READ_COMMITTED_BY_MARKERS

    ctypedef struct Visibility:
        Isolation isolation
        int include_control
        int64_t start_offset, end_offset, limit
        const AbortedIndex *aborted
        int64_t next_open_ended
        ProducerMap aborting

    int aborted_index_build(AbortedIndex *index, const Aborted *list, int64_t count)
    void aborted_index_free(AbortedIndex *index)
    void visibility_initialise()
    void visibility_free(Visibility *visibility)
    int visibility_resolve(Visibility *visibility, BatchHeader *table, int64_t count)

cdef extern from "_fast/codec/decode.h" nogil:
    # The Python class is named Counts, so the C structure of this name is declared under another name.
    ctypedef struct CCounts "Counts":
        int64_t batches, skipped_batches, records, aborted, control, undecided, out_of_range

    ctypedef struct DecodeSettings:
        ChunkLayout layout
        Limits limits
        int check_crcs
        int64_t start_offset, end_offset, limit, max_rows
        int keep_position, rising
        PackageFunction package
        const char *topic
        int32_t topic_length, partition, has_partition
        void *owner
        void (*retain_owner)(void *owner) noexcept nogil
        void (*release_owner)(void *owner) noexcept nogil

    ctypedef struct ChunkEntry:
        Chunk *chunk
        int64_t first_batch, position

    ctypedef struct ChunkList:
        ChunkEntry *list
        int64_t count, capacity

    ctypedef struct DecodeRun:
        const DecodeSettings *settings
        const uint8_t *data
        int64_t size, origin, ahead
        BatchHeader *table
        ChunkList chunks
        Chunk *open
        int64_t open_first_batch, last_rows, last_bytes
        CCounts counts
        int64_t position, last_offset
        int64_t stop_at_bytes, done, corrupt
        Fault fault

    int decode_range(DecodeRun *run, int64_t begin, int64_t end)
    int decode_parallel(DecodeRun *run, int64_t count, int threads)
    int decode_finish_chunk(DecodeRun *run)
    void decode_reset(DecodeRun *run)
    int decode_check_batch(const uint8_t *data, int64_t origin, const BatchHeader *header, int check_crcs, Fault *fault)
    int decode_control_types(const DecodeSettings *settings, const uint8_t *data, int64_t origin, BatchHeader *table,
                             int64_t count)
    int decode_worth_threads(const BatchHeader *table, int64_t count)

cdef extern from "_fast/arrow/arrow_export.h" nogil:
    enum:
        ARROW_FLAG_NULLABLE

    struct ArrowSchema:
        const char *format
        const char *name
        int64_t flags
        void (*release)(ArrowSchema *schema) noexcept nogil
        void *private_data

    struct ArrowArray:
        int64_t length, null_count, n_buffers
        const void **buffers
        void (*release)(ArrowArray *array) noexcept nogil
        void *private_data

    struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream *stream, ArrowSchema *out) noexcept nogil
        int (*get_next)(ArrowArrayStream *stream, ArrowArray *out) noexcept nogil
        const char *(*get_last_error)(ArrowArrayStream *stream) noexcept nogil
        void (*release)(ArrowArrayStream *stream) noexcept nogil
        void *private_data

    ctypedef struct ColumnOrder:
        uint8_t columns[18]
        const char *names[18]
        int count, all_nullable

    const char *column_name(int column)
    int arrow_export_schema(const ChunkLayout *layout, const ColumnOrder *order, ArrowSchema *out)
    int arrow_export_column_schema(const ChunkLayout *layout, int column, int all_nullable, ArrowSchema *out)
    int arrow_export_rows(Chunk *chunk, const ColumnOrder *order, int64_t row, int64_t rows, ArrowArray *out)
    int arrow_export_column(Chunk *chunk, int column, int64_t row, int64_t rows, ArrowArray *out)
