// SPDX-License-Identifier: Apache-2.0
#include "small_batches.h"

#include "opening.h"
#include "records.h"

static int is_usual_run(const DecodeRun *run) {
    const DecodeSettings *settings = run->settings;
    const Chunk *chunk = run->open;
    return chunk && chunk->rows && !chunk->holds_one_batch && settings->layout.binary_type != BINARY_VIEW &&
           settings->limits.max_decompressed_bytes <= CHUNK_MAX_BYTES - CHUNK_BYTES;
}

// Returns whether a batch is a usual one by its header: small, of magic 2, to be delivered, and with all of its records
// in [start_offset, end_offset).
static inline int is_usual_batch(const BatchHeader *header, int64_t start_offset, int64_t end_offset) {
    return is_small_batch(header) && header->magic == 2 && header->outcome == OUTCOME_DELIVER &&
           !header_is_control(header) && header_compression(header) <= COMPRESSION_ZSTD && header->records_count > 0 &&
           header->last_offset_delta >= 0 && header->base_offset >= start_offset &&
           header->base_offset <= INT64_MAX - header->last_offset_delta && header_last_offset(header) < end_offset;
}

// Returns an upper bound of what a batch adds to chunk_output_bytes. A record header takes at least two bytes of the
// batch and adds eight bytes of offsets to the output, hence four for each byte, and one for the byte itself.
static inline int64_t most_output(const Chunk *chunk, int64_t count, int64_t length) {
    return count * chunk->row_bytes + 5 * length;
}

static inline int wants_microseconds(const Chunk *chunk) {
    return chunk->layout.timestamp_microseconds && WANTS(chunk->layout.wanted, COLUMN_TIMESTAMP);
}

// Appends all records of a batch, or none.
static inline int append_usual_batch(Chunk *chunk, RecordsJob *job, AppendFunction append) {
    const uint8_t *position = job->records;
    Fault fault;
    int64_t least_delta = 0, count = job->header->records_count, first_row = chunk->rows;
    if (count > job->length / LEAST_RECORD || chunk_reserve(chunk, count, job->length)) return -1;
    ChunkMark mark;
    chunk_mark(chunk, &mark);
    if (likely(append(chunk, job, 0, &position, &least_delta) == count && position == job->records + job->length &&
               !chunk_fill_constants(chunk, job->header, first_row) &&
               !(wants_microseconds(chunk) && chunk_to_microseconds(chunk, first_row, &fault))))
        return 0;
    chunk_rollback(chunk, &mark);
    return -1;
}

SmallResult decode_small_batches(DecodeRun *run, Decompressor *decompressor, int64_t *at, int64_t end, Fault *fault) {
    if (!is_usual_run(run)) return SMALL_ENDED;
    const DecodeSettings *settings = run->settings;
    Chunk *chunk = run->open;
    const int64_t begin = *at, rows = chunk->rows;
    const int64_t end_offset = settings->end_offset < settings->limit ? settings->end_offset : settings->limit;
    int64_t start_offset = settings->start_offset, budget = 0;
    const AppendFunction plain = records_choose_append(chunk, 0, settings->keep_position);
    const AppendFunction ordered = records_choose_append(chunk, 0, 1);
    RecordsJob job = {.keep_position = settings->keep_position};
    SmallResult result = SMALL_ENDED;
    for (; *at < end; ++*at) {
        const BatchHeader *header = &run->table[*at];
        const uint8_t *batch = run->data + (header->position - run->origin);
        if (settings->keep_position && run->position > start_offset) start_offset = run->position;
        if (unlikely(!is_usual_batch(header, start_offset, end_offset))) break;
        if (unlikely(settings->rising && header->base_offset <= run->last_offset)) break;
        if (unlikely(budget <= 0) && (budget = CHUNK_BYTES - chunk_output_bytes(chunk)) <= 0) break;
        if (unlikely(chunk->rows + header->records_count > settings->max_rows || chunk_topic_is_full(chunk))) break;
        if (settings->check_crcs && unlikely(header_computed_crc(header, batch) != header->crc)) break;
        job.header = header;
        job.records = batch + BATCH_OVERHEAD;
        job.length = records_length(header);
        job.readable_end = run->data + run->size;
        int codec = header_compression(header);
        if (codec) {
            const ByteSpan stored = {job.records, job.length, job.readable_end};
            ByteSpan records;
            if (unlikely(decompress(decompressor, codec, &stored, settings->limits.max_decompressed_bytes, NULL, 0,
                                    &records, fault))) {
                result = SMALL_REFUSED;
                break;
            }
            job.records = records.data;
            job.length = records.length;
            job.readable_end = records.readable_end;
        }
        if (unlikely(append_usual_batch(chunk, &job, codec ? ordered : plain))) {
            result = SMALL_ODD;
            break;
        }
        budget -= most_output(chunk, header->records_count, job.length);
        run->last_offset = header_last_offset(header);
        if (run->position <= run->last_offset) run->position = run->last_offset + 1;
    }
    run->counts.batches += *at - begin;
    run->counts.records += chunk->rows - rows;
    return result;
}
