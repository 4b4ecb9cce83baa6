// SPDX-License-Identifier: Apache-2.0
// Decodes a table of batches whose outcome is known: checks the CRC of every batch, and decompresses those that are
// delivered into columns. It runs without the GIL, on one thread or on several that share the batches.
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
    int64_t max_rows;                 // of a chunk; INT64_MAX: chunks are limited by their bytes only
    int keep_position;                // leave out records below run->position, as Java's consumer does
    int rising;                       // report a fault if a base offset is not above run->last_offset
    PackageFunction package;
    const char *topic;                // copied into chunks with the column topic; NULL: unknown
    int32_t topic_length, partition, has_partition;
    void *owner;                      // owner of the data, which chunks with views retain
    void (*retain_owner)(void *owner);
    void (*release_owner)(void *owner);
} DecodeSettings;

typedef struct {
    int64_t batches, skipped_batches, records, aborted, control, undecided, out_of_range;
} Counts;

typedef struct {
    Chunk *chunk;
    int64_t first_batch;
    int64_t position;                 // run->position when the chunk was finished: after all of its batches
} ChunkEntry;

typedef struct {
    ChunkEntry *list;
    int64_t count, capacity;
} ChunkList;

typedef struct {
    const DecodeSettings *settings;
    const uint8_t *data;
    int64_t size, origin;             // origin: position of data[0] in the input or file
    int64_t ahead;                    // bytes of data after the batches of the table; used for estimates only
    BatchHeader *table;
    ChunkList chunks;                 // finished chunks, in the order of batches
    Chunk *open;                      // the chunk being filled, or NULL
    int64_t open_first_batch;
    int64_t last_rows, last_bytes;    // size of the chunk finished last, which is an estimate for the next one
    Counts counts;
    int64_t position, last_offset;    // next offset to be delivered; last offset of the last decoded batch
    int small_wait, small_pause;      // number of batches not to try as small ones: now, and after the next odd one
    int64_t finished_bytes;           // output bytes of the finished chunks
    int64_t stop_at_bytes;            // decode_range returns when finished_bytes reaches this, to bound memory
    int64_t done;                     // decode_range: index of the first batch that was not decoded
    int64_t corrupt;                  // index of the batch with the fault, -1: none
    Fault fault;
} DecodeRun;

// Decodes table[begin..end), or fewer batches if stop_at_bytes is reached. At the first corrupt batch it returns -1;
// all batches before it have been delivered.
int decode_range(DecodeRun *run, int64_t begin, int64_t end);
// Decodes the batches on `threads` threads. If a batch is corrupt, it resets the run, delivers nothing and returns -1.
// The caller then decodes again on one thread, unless run->fault is a Python exception such as an interrupt, which it
// raises.
int decode_parallel(DecodeRun *run, int64_t count, int threads);
// Finishes the open chunk. Returns -1 with the fault, whose `record` is a row of the chunk.
int decode_finish_chunk(DecodeRun *run);
void decode_reset(DecodeRun *run);    // releases all chunks and resets the counts

// Checks the CRC and the header fields of one batch. Every batch must pass these checks, whatever its outcome is.
int decode_check_batch(const uint8_t *data, int64_t origin, const BatchHeader *header, int check_crcs, Fault *fault);

// Reads the type of every control batch that has a producer id. Returns -1 if there is no memory.
int decode_control_types(const DecodeSettings *settings, const uint8_t *data, int64_t origin, BatchHeader *table,
                         int64_t count);

// Returns whether the records to be delivered from table[0..count) are enough work for several threads.
int decode_worth_threads(const BatchHeader *table, int64_t count);

#endif
