// SPDX-License-Identifier: Apache-2.0
#include "opening.h"

#include <stdlib.h>

#include "legacy.h"

// Extends the view buffer of the previous batch if 31-bit positions in it can reach this batch, too. Else adds a new
// one.
int decode_view_source(Chunk *chunk, RecordsJob *job) {
    ViewSource *source = chunk->view_source_count ? &chunk->view_sources[chunk->view_source_count - 1] : NULL;
    const uint8_t *end = job->records + job->length;
    if (!source || job->records < source->base || end - source->base > CHUNK_MAX_BYTES) {
        source = realloc(chunk->view_sources, (size_t)(chunk->view_source_count + 1) * sizeof *source);
        if (!source) return -1;
        chunk->view_sources = source;
        source += chunk->view_source_count++;
        *source = (ViewSource){job->records, 0};
    }
    source->length = end - source->base;
    job->view_buffer = chunk->view_source_count;  // buffer 0 is the arena
    job->view_base = job->records - source->base;
    return 0;
}

int decode_open_messages(DecodeRun *run, Decompressor *decompressor, const BatchHeader *header, RecordsJob *job,
                         Fault *fault) {
    Chunk *chunk = run->open;
    int views = chunk->layout.binary_type == BINARY_VIEW;
    int codec = header_compression(header);
    job->records = run->data + (header->position - run->origin);
    job->length = header_size(header);
    job->readable_end = run->data + run->size;
    if (codec == COMPRESSION_NONE) {
        if (!views) return 0;
        chunk->output_bytes += job->length;
        return decode_view_source(chunk, job) ? fault_set(fault, FAULT_NO_MEMORY, "columns", 0, 0) : 0;
    }
    Field value;
    ByteSpan messages;
    if (legacy_wrapper_value(job->records, job->length, &value, fault)) return -1;
    if (codec == COMPRESSION_LZ4 && header->magic == 0) codec = LZ4_OF_MAGIC_0;
    const ByteSpan stored = {value.bytes, value.size, job->readable_end};
    if (decompress(decompressor, codec, &stored, run->settings->limits.max_decompressed_bytes,
                   views ? &chunk->view_arena : NULL, chunk->view_arena_length, &messages, fault))
        return -1;
    job->records = messages.data;
    job->length = messages.length;
    job->readable_end = messages.readable_end;
    job->view_buffer = 0;
    job->view_base = chunk->view_arena_length;
    if (views) chunk->view_arena_length += messages.length;
    return 0;
}
