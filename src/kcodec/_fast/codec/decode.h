// SPDX-License-Identifier: Apache-2.0
// Decodes a table of batches whose outcome is known: checks the CRC of every batch, and decompresses those that are
// delivered into columns. Runs without the GIL, on one thread or on several that take batches from each other.
#ifndef KCODEC_DECODE_H
#define KCODEC_DECODE_H

#include "columns.h"
#include "decompress.h"
#include "visibility.h"

typedef struct {
    ChunkLayout layout;
    Limits limits;
    int check_crcs;
    int64_t start_offset, end_offset, limit;
    int64_t max_rows;                 // of a chunk; INT64_MAX: by bytes alone
    int keep_position;                // pass over records below run->position, as Java's consumer does
    int rising;                       // refuse a base offset that is not above run->last_offset
    PackageFunction package;
    const char *topic;                // copied into chunks that want it; NULL: unknown
    int32_t topic_length, partition, has_partition;
    void *owner;                      // of the data, for views
    void (*retain_owner)(void *owner);
    void (*release_owner)(void *owner);
} DecodeSettings;

typedef struct {
    int64_t batches, skipped_batches, records, aborted, control, undecided, out_of_range;
} Counts;

typedef struct {
    Chunk *chunk;
    int64_t first_batch;
    int64_t position;                 // the run's when the chunk was closed: behind all it holds, and what was passed over
} ChunkEntry;

typedef struct {
    ChunkEntry *list;
    int64_t count, capacity;
} ChunkList;

typedef struct {
    const DecodeSettings *settings;
    const uint8_t *data;
    int64_t size, origin;             // origin: position of data[0] in the input or file
    int64_t ahead;                    // bytes of data behind those the table covers: for estimates alone
    BatchHeader *table;
    ChunkList chunks;                 // finished ones, in the order of batches
    Chunk *open;                      // the chunk being filled, NULL: none
    int64_t open_first_batch;
    int64_t last_rows, last_bytes;    // of the chunk closed last: what the next one is likely to need
    Counts counts;
    int64_t position, last_offset;    // next offset to be delivered; of the batches walked
    int small_wait, small_pause;      // batches that are not tried as small ones now, and after the next odd one
    int64_t finished_bytes;           // output of the chunks finished so far
    int64_t stop_at_bytes;            // decode_range returns once it has finished as many: input may grow a hundredfold
    int64_t done;                     // decode_range: the batch it would have gone on with
    int64_t corrupt;                  // index of the batch that was refused, -1: none
    Fault fault;                      // why
} DecodeRun;

// Decodes table[begin..end), or as far as stop_at_bytes lets it. Stops at the first corrupt batch with -1, everything before it delivered.
int decode_range(DecodeRun *run, int64_t begin, int64_t end);
// The same on `threads` threads. After corruption the run is reset and nothing is delivered: the caller runs it again on one,
// unless run->fault is a Python exception, such as an interrupt, which the caller raises.
int decode_parallel(DecodeRun *run, int64_t count, int threads);
// Closes the open chunk. -1: fault (record is a row of the chunk's).
int decode_finish_chunk(DecodeRun *run);
void decode_reset(DecodeRun *run);    // drops all chunks and counts

// CRC and header fields of one batch; what every batch has to pass, whatever its outcome.
int decode_check_batch(const uint8_t *data, int64_t origin, const BatchHeader *header, int check_crcs, Fault *fault);

// Reads the type of every control batch that has a producer id. -1: no memory.
int decode_control_types(const DecodeSettings *settings, const uint8_t *data, int64_t origin, BatchHeader *table,
                         int64_t count);

// Whether threads are worth while for what is to be delivered of table[0..count).
int decode_worth_threads(const BatchHeader *table, int64_t count);

#endif
