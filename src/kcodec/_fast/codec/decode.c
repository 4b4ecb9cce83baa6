// SPDX-License-Identifier: Apache-2.0
#include "decode.h"

#include <stdlib.h>

#include "crc32c.h"
#include "legacy.h"
#include "opening.h"
#include "platform.h"
#include "records.h"
#include "small_batches.h"

enum {
    COMPRESSED_GROWS = 4,          // assumed decompression ratio, for reserving memory
    ESTIMATE_MOST_ROWS = 4 << 20,  // maximum number of rows for which memory is reserved by an estimate
    MOST_THREADS = 64,
    MOST_TAKEN = 64,               // maximum number of batches that a thread takes from its range at a time
    MOST_PAUSE = 63,               // maximum number of batches decoded one by one after decode_small_batches gave up
    WORTH_THREADS = 4 << 20,       // less work, about 0.4 ms, does not repay the cost of a second thread
    GIL_SMALL_BATCH = 64 << 10,    // decompressed bytes; smaller batches that need the GIL are decoded by one thread
};

static void place_fault(Fault *fault, const BatchHeader *header) {
    fault->position = header->position;
    fault->base_offset = header->base_offset;
    fault->has_base_offset = 1;
}

static int check_crc(const uint8_t *data, int64_t origin, const BatchHeader *header, Fault *fault) {
    uint32_t computed = header_computed_crc(header, data + (header->position - origin));
    return unlikely(computed != header->crc) ? fault_set(fault, FAULT_CRC, "crc", header->crc, computed) : 0;
}

int decode_check_batch(const uint8_t *data, int64_t origin, const BatchHeader *header, int check_crcs, Fault *fault) {
    if ((check_crcs && check_crc(data, origin, header, fault)) || header_check(header, fault)) {
        place_fault(fault, header);
        return -1;
    }
    return 0;
}

// Control batches.

static int read_control_type(Decompressor *decompressor, const DecodeSettings *settings, const uint8_t *data,
                             int64_t origin, const BatchHeader *header, int16_t *type, Fault *fault) {
    const uint8_t *bytes = records_of(data, origin, header);
    const ByteSpan stored = {bytes, records_length(header), bytes + records_length(header)};
    ByteSpan records;
    *type = CONTROL_NOT_A_MARKER;
    if (header->records_count <= 0) return 0;
    if (decompress(decompressor, header_compression(header), &stored, settings->limits.max_decompressed_bytes, NULL, 0,
                   &records, fault))
        return -1;
    return control_batch_type(records.data, records.length, header->records_count, type, fault);
}

int decode_control_types(const DecodeSettings *settings, const uint8_t *data, int64_t origin, BatchHeader *table,
                         int64_t count) {
    Decompressor *decompressor = NULL;
    for (int64_t at = 0; at < count; at++) {
        BatchHeader *header = &table[at];
        Fault fault;
        if (!header_is_control(header) || header->producer_id < 0 || header->outcome == OUTCOME_SKIPPED) continue;
        if (header_check(header, &fault)) continue;  // the fault is reported when the batch is decoded
        if (!decompressor && !(decompressor = decompressor_acquire(settings->package))) return -1;
        if (read_control_type(decompressor, settings, data, origin, header, &header->control_type, &fault))
            header->control_type = CONTROL_UNREADABLE;
    }
    decompressor_release(decompressor);
    return 0;
}

// Chunks.

// Returns an estimate of the bytes of the records in table[begin..end) and in the data after the table (run->ahead),
// and sets *rows to an estimate of their number.
static int64_t estimate(const DecodeRun *run, int64_t begin, int64_t end, int64_t *rows) {
    int64_t bytes = 0, stored = 0;
    *rows = 0;
    for (int64_t at = begin; at < end && bytes < CHUNK_BYTES && *rows < ESTIMATE_MOST_ROWS; at++) {
        const BatchHeader *header = &run->table[at];
        stored += header_size(header);
        if (header->outcome != OUTCOME_DELIVER || header->records_count < 0) continue;
        int64_t grown = records_length(header) * (header_compression(header) ? COMPRESSED_GROWS : 1);
        bytes += grown;
        *rows += header->records_count < grown / LEAST_RECORD ? header->records_count : grown / LEAST_RECORD;
    }
    if (run->ahead && stored) {
        double more = 1.0 + (double)run->ahead / (double)stored;
        bytes = bytes * more < CHUNK_BYTES ? (int64_t)(bytes * more) : CHUNK_BYTES;
        *rows = *rows * more < ESTIMATE_MOST_ROWS ? (int64_t)(*rows * more) : ESTIMATE_MOST_ROWS;
        if (*rows > bytes / LEAST_RECORD) *rows = bytes / LEAST_RECORD;
    }
    return bytes;
}

// Returns whether a batch is decoded into a separate chunk because of its number of records.
static int is_large(const BatchHeader *header) { return header->magic == 2 && header->records_count > CONSTANT_ROWS; }

static Chunk *open_chunk(DecodeRun *run, int64_t at, int64_t end) {
    const DecodeSettings *settings = run->settings;
    Chunk *chunk = chunk_new(&settings->layout);
    if (!chunk) return NULL;
    if (settings->topic && WANTS(settings->layout.wanted, COLUMN_TOPIC)) {
        char *topic = malloc((size_t)settings->topic_length + 1);
        if (!topic) {
            chunk_release(chunk);
            return NULL;
        }
        memcpy(topic, settings->topic, (size_t)settings->topic_length);
        chunk->topic = topic;
        chunk->topic_length = settings->topic_length;
    }
    chunk->holds_one_batch = is_large(&run->table[at]);
    chunk->partition = settings->partition;
    chunk->has_partition = settings->has_partition;
    if (settings->layout.binary_type == BINARY_VIEW && settings->owner) {
        settings->retain_owner(settings->owner);
        chunk->owner = settings->owner;
        chunk->release_owner = settings->release_owner;
    }
    int64_t rows, bytes = estimate(run, at, end, &rows);
    if (run->last_rows > rows) rows = run->last_rows;
    if (run->last_bytes > bytes) bytes = run->last_bytes;
    if (rows > settings->max_rows) rows = settings->max_rows;
    if (chunk_reserve(chunk, rows + 1, bytes + 1)) {  // Arrow requires buffers even if there are no rows
        chunk_release(chunk);
        return NULL;
    }
    run->open_first_batch = at;
    return chunk;
}

int decode_finish_chunk(DecodeRun *run) {
    Chunk *chunk = run->open;
    if (!chunk) return 0;
    run->open = NULL;
    run->finished_bytes += chunk_output_bytes(chunk);
    run->last_rows = chunk->rows;
    run->last_bytes = chunk_longest_column(chunk);
    ChunkList *chunks = &run->chunks;
    if (chunk_finish(chunk, &run->fault)) {
        chunk_release(chunk);
        return -1;
    }
    if (chunks->count == chunks->capacity) {
        int64_t capacity = chunks->capacity ? chunks->capacity * 2 : 8;
        ChunkEntry *larger = realloc(chunks->list, (size_t)capacity * sizeof(ChunkEntry));
        if (!larger) {
            chunk_release(chunk);
            return fault_set(&run->fault, FAULT_NO_MEMORY, "chunks", 0, 0);
        }
        chunks->list = larger;
        chunks->capacity = capacity;
    }
    chunks->list[chunks->count++] = (ChunkEntry){chunk, run->open_first_batch, run->position};
    return 0;
}

void decode_reset(DecodeRun *run) {
    for (int64_t at = 0; at < run->chunks.count; at++) chunk_release(run->chunks.list[at].chunk);
    free(run->chunks.list);
    memset(&run->chunks, 0, sizeof run->chunks);
    chunk_release(run->open);
    run->open = NULL;
    memset(&run->counts, 0, sizeof run->counts);
    run->corrupt = -1;
}

// Decoding of one batch.

static int chunk_has_room(const DecodeRun *run, const BatchHeader *header) {
    Chunk *chunk = run->open;
    if (!chunk->rows) {
        if (is_large(header)) chunk->holds_one_batch = 1;
        return 1;
    }
    if (chunk->holds_one_batch || is_large(header) || chunk_topic_is_full(chunk)) return 0;
    if (chunk->rows + header->records_count > run->settings->max_rows) return 0;
    if (chunk_output_bytes(chunk) >= CHUNK_BYTES) return 0;
    // No column may grow beyond the range of int32 offsets, even if the batch decompresses to its limit. A batch that
    // would exceed this begins a new chunk, into which it always fits.
    int64_t most = header_compression(header) ? run->settings->limits.max_decompressed_bytes : records_length(header);
    int64_t longest = chunk_longest_column(chunk);
    if (chunk->view_arena_length > longest) longest = chunk->view_arena_length;
    return longest + most <= CHUNK_MAX_BYTES;
}

static int open_records(DecodeRun *run, Decompressor *decompressor, const BatchHeader *header, RecordsJob *job,
                        Fault *fault) {
    Chunk *chunk = run->open;
    int views = chunk->layout.binary_type == BINARY_VIEW;
    int codec = header_compression(header);
    const ByteSpan stored = {records_of(run->data, run->origin, header), records_length(header), run->data + run->size};
    ByteSpan records = stored;
    if (header->records_count == 0) {
        if (stored.length) return fault_set(fault, FAULT_BYTES_LEFT, "records_count", stored.length, 0);
        codec = COMPRESSION_NONE;
    }
    if (codec != COMPRESSION_NONE &&
        decompress(decompressor, codec, &stored, run->settings->limits.max_decompressed_bytes,
                   views ? &chunk->view_arena : NULL, chunk->view_arena_length, &records, fault))
        return -1;
    job->records = records.data;
    job->length = records.length;
    job->readable_end = records.readable_end;
    if (!views) return 0;
    if (codec) {
        job->view_buffer = 0;
        job->view_base = chunk->view_arena_length;
        chunk->view_arena_length += records.length;
    } else {
        if (decode_view_source(chunk, job)) return fault_set(fault, FAULT_NO_MEMORY, "columns", 0, 0);
        chunk->output_bytes += records.length;
    }
    return 0;
}

static int deliver(DecodeRun *run, Decompressor *decompressor, BatchHeader *header, int fuse, Fault *fault) {
    const DecodeSettings *settings = run->settings;
    int64_t last_offset = header_last_offset(header), start_offset = settings->start_offset;
    if (settings->keep_position && run->position > start_offset) start_offset = run->position;
    ChunkMark mark;
    RecordsJob job = {
        .header = header,
        .start_offset = start_offset,
        .end_offset = settings->end_offset,
        .limit = settings->limit,
        .keep_position = settings->keep_position,
        .is_filtered = header->base_offset < start_offset || at_or_past(last_offset, settings->end_offset) ||
                       at_or_past(last_offset, settings->limit),
        .fuse_crc = fuse,
    };
    chunk_mark(run->open, &mark);
    int result;
    if (header_is_legacy(header)) {
        result = decode_open_messages(run, decompressor, header, &job, fault);
        if (!result) result = legacy_append(run->open, &job, settings->check_crcs, &header->reached_offset, fault);
    } else if (!(result = open_records(run, decompressor, header, &job, fault))) {
        if (fuse) {
            job.crc = crc32c(0, job.records - BATCH_OVERHEAD + ATTRIBUTES_POSITION, BATCH_OVERHEAD - ATTRIBUTES_POSITION);
            job.crc_position = job.records;
        }
        result = records_append(run->open, &job, fault);
        const int out_of_memory = result && fault->code == FAULT_NO_MEMORY;
        if (fuse && !out_of_memory && job.crc != header->crc)
            result = fault_set(fault, FAULT_CRC, "crc", header->crc, job.crc);
    }
    if (result) {
        chunk_rollback(run->open, &mark);
        return -1;
    }
    if (!job.delivered) {  // no view refers to the decompressed bytes, so they can be overwritten
        run->open->view_arena_length = mark.view_arena_length;
        run->open->output_bytes = mark.output_bytes;
    }
    run->counts.records += job.delivered;
    run->counts.undecided += job.undecided;
    run->counts.out_of_range += job.out_of_range;
    return 0;
}

static int is_fused(const DecodeSettings *settings, const BatchHeader *header) {
    return settings->check_crcs && header->outcome == OUTCOME_DELIVER && !header_compression(header) && header->magic == 2 &&
           header->records_count > 0 && records_length(header) >= (int64_t)FUSE_CRC_FROM * header->records_count;
}

static int check_rising(const DecodeRun *run, const BatchHeader *header, Fault *fault) {
    if (likely(!run->settings->rising || header->base_offset > run->last_offset)) return 0;
    return fault_set(fault, FAULT_BASE_OFFSET_ORDER, "base_offset", header->base_offset, run->last_offset);
}

static int decode_one(DecodeRun *run, Decompressor *decompressor, int64_t at, int64_t end, Fault *fault) {
    const DecodeSettings *settings = run->settings;
    BatchHeader *header = &run->table[at];
    if (header->outcome == OUTCOME_SKIPPED) {
        run->counts.batches++;
        run->counts.skipped_batches++;
        return 0;
    }
    int fuse = is_fused(settings, header);
    if (settings->check_crcs && !fuse && check_crc(run->data, run->origin, header, fault)) return -1;
    if (header_check(header, fault) || check_rising(run, header, fault)) {
        Fault crc_fault;
        if (fuse && check_crc(run->data, run->origin, header, &crc_fault)) *fault = crc_fault;
        return -1;
    }
    if (header->control_type == CONTROL_UNREADABLE) {
        int16_t type;
        if (read_control_type(decompressor, settings, run->data, run->origin, header, &type, fault)) return -1;
    }
    switch (header->outcome) {
        case OUTCOME_BEYOND_LIMIT: run->counts.undecided += header->records_count; break;
        case OUTCOME_OUT_OF_RANGE: run->counts.out_of_range += header->records_count; break;
        case OUTCOME_CONTROL: run->counts.control += header->records_count; break;
        case OUTCOME_ABORTED: run->counts.aborted += header->records_count; break;
        default:
            if (run->open && !chunk_has_room(run, header)) {
                if (decode_finish_chunk(run)) {
                    *fault = run->fault;
                    return -1;
                }
            }
            if (!run->open && !(run->open = open_chunk(run, at, end)))
                return fault_set(fault, FAULT_NO_MEMORY, "columns", 0, 0);
            if (deliver(run, decompressor, header, fuse, fault)) return -1;
    }
    run->counts.batches++;
    if (header_is_legacy(header)) {
        if (header->reached_offset < run->last_offset) header->reached_offset = run->last_offset;
        run->last_offset = header->reached_offset;
    } else {
        run->last_offset = header_last_offset(header);
    }
    if (run->position <= run->last_offset && run->last_offset < INT64_MAX) run->position = run->last_offset + 1;
    return 0;
}

// Decodes table[*at], and with it those of the following batches before `stop` that decode_small_batches can decode.
// *at becomes the index of the last decoded batch, or of the batch with the fault. `end`: end of the batches that will
// probably be in the same chunk; it is used for estimates only.
static int decode_some(DecodeRun *run, Decompressor *decompressor, int64_t *at, int64_t stop, int64_t end, Fault *fault) {
    if (is_small_batch(&run->table[*at]) && --run->small_wait < 0) {
        SmallResult result = decode_small_batches(run, decompressor, at, stop, fault);
        if (result == SMALL_REFUSED) return -1;
        if (result == SMALL_ODD) {  // wait longer after each such batch, so that decoding batches twice stays rare
            run->small_pause = run->small_pause < MOST_PAUSE ? 2 * run->small_pause + 1 : MOST_PAUSE;
            run->small_wait = run->small_pause;
        }
        if (*at == stop) {
            --*at;
            return 0;
        }
    }
    return decode_one(run, decompressor, *at, end, fault);
}

int decode_range(DecodeRun *run, int64_t begin, int64_t end) {
    Decompressor *decompressor = decompressor_acquire(run->settings->package);
    run->corrupt = -1;
    if (!decompressor) return fault_set(&run->fault, FAULT_NO_MEMORY, "context", 0, 0);
    int result = 0;
    int64_t at = begin, stop = run->stop_at_bytes ? run->finished_bytes + run->stop_at_bytes : INT64_MAX;
    for (; at < end && !result && run->finished_bytes < stop; at++) {
        result = decode_some(run, decompressor, &at, end, end, &run->fault);
        if (result) {
            place_fault(&run->fault, &run->table[at]);
            run->corrupt = at;
        }
    }
    run->done = at;
    decompressor_release(decompressor);
    return result;
}

// Threads. Each thread owns a range of batches and takes batches from its front. A thread whose range is empty takes
// the upper half of the largest remaining range of another thread, or all of it if it is a single batch, even if that
// thread could not be started. It opens a new chunk for that range, so that each chunk holds consecutive batches and no
// chunks have to be merged. Threads end with the call, so none has to survive a fork.

typedef struct {
    _Atomic uint64_t range;  // index of the next batch in the upper 32 bits, end of the range in the lower 32 bits
    DecodeRun run;
    struct Team *team;
    Thread thread;
} Worker;

typedef struct Team {
    Worker *workers;
    int count;
    atomic_int failed;
} Team;

static uint64_t pack_range(uint64_t next, uint64_t end) { return next << 32 | end; }

// Takes batches [*at, *stop) from the front of the thread's range. The number is a fraction of the remaining batches,
// so that some are left for other threads. Returns 0 if the range is empty.
static int take_front(Worker *worker, int64_t *at, int64_t *stop, int64_t *end) {
    uint64_t range = atomic_load(&worker->range), some;
    do {
        uint64_t next = range >> 32, last = range & 0xffffffff;
        if (next >= last) return 0;
        some = (last - next) / 16;
        some = some < 1 ? 1 : some > MOST_TAKEN ? MOST_TAKEN : some;
    } while (!atomic_compare_exchange_weak(&worker->range, &range, range + (some << 32)));
    *at = (int64_t)(range >> 32);
    *stop = *at + (int64_t)some;
    *end = (int64_t)(range & 0xffffffff);
    return 1;
}

static int take_half_of_another(Worker *worker) {
    for (;;) {
        Worker *richest = NULL;
        uint64_t most = 0, found = 0;
        for (int other = 0; other < worker->team->count; other++) {
            uint64_t range = atomic_load(&worker->team->workers[other].range);
            uint64_t next = range >> 32, end = range & 0xffffffff;
            if (next < end && end - next > most) {
                most = end - next;
                richest = &worker->team->workers[other];
                found = range;
            }
        }
        if (!richest) return 0;
        uint64_t next = found >> 32, end = found & 0xffffffff, middle = next + (end - next) / 2;
        if (atomic_compare_exchange_strong(&richest->range, &found, pack_range(next, middle))) {
            atomic_store(&worker->range, pack_range(middle, end));
            return 1;
        }
    }
}

static void *work(void *argument) {
    Worker *worker = argument;
    DecodeRun *run = &worker->run;
    Decompressor *decompressor = decompressor_acquire(run->settings->package);
    if (!decompressor) atomic_store(&worker->team->failed, 1);
    while (decompressor && !atomic_load_explicit(&worker->team->failed, memory_order_relaxed)) {
        int64_t at, stop, end;
        if (take_front(worker, &at, &stop, &end)) {
            run->last_offset = INT64_MIN;  // ranges of other threads are not taken in the order of offsets
            for (int failed = 0; at < stop && !failed; at++)
                if ((failed = decode_some(run, decompressor, &at, stop, end, &run->fault)))
                    atomic_store(&worker->team->failed, 1);
        } else {
            if (decode_finish_chunk(run)) atomic_store(&worker->team->failed, 1);
            if (!take_half_of_another(worker)) break;
        }
    }
    if (decode_finish_chunk(run)) atomic_store(&worker->team->failed, 1);
    decompressor_release(decompressor);
    return NULL;
}

static int by_first_batch(const void *left, const void *right) {
    const ChunkEntry *a = left, *b = right;
    return a->first_batch < b->first_batch ? -1 : a->first_batch > b->first_batch;
}

static void add_counts(Counts *to, const Counts *from) {
    to->batches += from->batches;
    to->skipped_batches += from->skipped_batches;
    to->records += from->records;
    to->aborted += from->aborted;
    to->control += from->control;
    to->undecided += from->undecided;
    to->out_of_range += from->out_of_range;
}

static int gather(DecodeRun *run, Team *team) {
    int64_t chunks = 0;
    for (int at = 0; at < team->count; at++) chunks += team->workers[at].run.chunks.count;
    run->chunks.list = malloc((size_t)(chunks + 1) * sizeof(ChunkEntry));
    if (!run->chunks.list) return -1;
    run->chunks.capacity = chunks + 1;
    for (int at = 0; at < team->count; at++) {
        DecodeRun *part = &team->workers[at].run;
        if (part->chunks.count)
            memcpy(run->chunks.list + run->chunks.count, part->chunks.list, (size_t)part->chunks.count * sizeof(ChunkEntry));
        run->chunks.count += part->chunks.count;
        part->chunks.count = 0;
        add_counts(&run->counts, &part->counts);
    }
    qsort(run->chunks.list, (size_t)chunks, sizeof(ChunkEntry), by_first_batch);
    return 0;
}

int decode_worth_threads(const BatchHeader *table, int64_t count) {
    // Estimated work for each byte of output, by codec. The unit is the work for one byte of an uncompressed batch.
    static const int64_t work_of[8] = {1, 9, 3, 3, 7};
    int64_t work = 0, batches = 0, small = 0;
    for (int64_t at = 0; at < count; at++) {
        const BatchHeader *header = &table[at];
        if (header->outcome != OUTCOME_DELIVER || header->records_count < 0) continue;
        int64_t grown = records_length(header) * (header_compression(header) ? COMPRESSED_GROWS : 1);
        work += grown * work_of[header_compression(header)];
        batches++;
        small += grown < GIL_SMALL_BATCH &&
                 decompressor_needs_gil(header_compression(header), records_length(header));
    }
    return batches > 1 && work >= WORTH_THREADS && small * 2 < batches;
}

int decode_parallel(DecodeRun *run, int64_t count, int threads) {
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    Team team = {.count = threads};
    team.workers = calloc((size_t)threads, sizeof(Worker));
    run->corrupt = -1;
    if (!team.workers) return fault_set(&run->fault, FAULT_NO_MEMORY, "threads", 0, 0);
    run->fault.code = FAULT_NONE;
    for (int at = 0; at < threads; at++) {
        Worker *worker = &team.workers[at];
        worker->team = &team;
        worker->run = *run;
        worker->run.open = NULL;
        memset(&worker->run.chunks, 0, sizeof worker->run.chunks);
        memset(&worker->run.counts, 0, sizeof worker->run.counts);
        atomic_init(&worker->range, pack_range((uint64_t)(count * at / threads), (uint64_t)(count * (at + 1) / threads)));
    }
    int started = 1;
    while (started < threads && !thread_start(&team.workers[started].thread, work, &team.workers[started])) started++;
    work(&team.workers[0]);  // also takes the ranges of threads that could not be started
    for (int at = 1; at < started; at++) thread_join(&team.workers[at].thread);
    int result = atomic_load(&team.failed) ? -1 : gather(run, &team);
    for (int at = 0; at < threads; at++) {
        DecodeRun *part = &team.workers[at].run;
        if (result && part->fault.code == FAULT_PYTHON) run->fault = part->fault;
        decode_reset(part);
    }
    free(team.workers);
    return result;
}
