// SPDX-License-Identifier: Apache-2.0
// Frame: magic 04 22 4d 18 | FLG | BD | [content size u64] | HC | blocks | end mark u32 0 | [content checksum]
//   FLG: 7-6 version 01, 5 independent blocks, 4 block checksums, 3 content size, 2 content checksum, 0 dictionary id
//   BD: 6-4 largest block, 4..7 = 64 KiB, 256 KiB, 1 MiB, 4 MiB. HC: second byte of xxh32(FLG .. content size).
//   block: size u32, highest bit = stored uncompressed | bytes | [checksum of these bytes]
// Block: sequences of a token (4 bits literal length, 4 bits match length - 4; after 15, bytes are added to the length,
//   up to and including the first that is not 255), literals, and a match offset u16. The last sequence has literals
//   only. All numbers are little-endian.
#include "lz4.h"

enum { FRAME_MAGIC = 0x184d2204, LEAST_MATCH = 4, LINKED_WINDOW = 64 << 10, BEST_RATIO = 256 };

static const char too_large[] = "a block is larger than its frame allows";

static int cut(Fault *fault) { return fault_set(fault, FAULT_COMPRESSED_CUT, "lz4", 0, 0); }
static int bad(Fault *fault, const char *what) { return fault_detail(fault, FAULT_COMPRESSED_BAD, "lz4", what); }

// Checksum xxh32.

static const uint32_t P1 = 2654435761u, P2 = 2246822519u, P3 = 3266489917u, P4 = 668265263u, P5 = 374761393u;

static inline uint32_t rotate(uint32_t value, int bits) { return value << bits | value >> (32 - bits); }
static inline uint32_t xxh_round(uint32_t lane, const uint8_t *p) { return rotate(lane + load_le32(p) * P2, 13) * P1; }

uint32_t xxh32(const uint8_t *data, int64_t size) {
    const uint8_t *p = data, *end = data + size;
    uint32_t hash = P5;
    if (size >= 16) {
        uint32_t a = P1 + P2, b = P2, c = 0, d = 0u - P1;
        for (; end - p >= 16; p += 16) {
            a = xxh_round(a, p);
            b = xxh_round(b, p + 4);
            c = xxh_round(c, p + 8);
            d = xxh_round(d, p + 12);
        }
        hash = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
    }
    hash += (uint32_t)size;
    for (; end - p >= 4; p += 4) hash = rotate(hash + load_le32(p) * P3, 17) * P4;
    for (; p < end; p++) hash = rotate(hash + *p * P5, 11) * P1;
    hash = (hash ^ hash >> 15) * P2;
    hash = (hash ^ hash >> 13) * P3;
    return hash ^ hash >> 16;
}

// Blocks.

static inline void copy8(uint8_t *to, const uint8_t *from) { memcpy(to, from, 8); }
static inline void copy16(uint8_t *to, const uint8_t *from) { memcpy(to, from, 16); }

// Reads the bytes that extend a length of 15 and returns the whole length. Returns -1 if the block ends before them.
static inline int64_t longer(const uint8_t **in, const uint8_t *end, int64_t length) {
    uint8_t byte;
    do {
        if (*in >= end) return -1;
        byte = *(*in)++;
        length += byte;
    } while (byte == 255);
    return length;
}

enum {
    // Bytes that must follow a token for its sequence to be read without further checks of the input, if both lengths
    // are in the token: 16 bytes are copied for at most 14 literals, and the offset follows the literals.
    SHORT_SEQUENCE = 16,
    // The most bytes that copy_by_32 reads and writes after those that it copies: 32 if it copies none. BUFFER_SLACK is
    // larger.
    COPIED_AHEAD = 32,
};

// Copies `length` bytes, and reads and writes up to COPIED_AHEAD bytes after them. The output may begin 16 bytes or more
// after its source, and overlap it: the second of two ordered copies of 16 bytes reads what the first wrote.
static inline void copy_by_32(uint8_t *to, const uint8_t *from, int64_t length) {
    const uint8_t *end = to + length;
    do {
        copy16(to, from);
        copy16(to + 16, from + 16);
        to += 32;
        from += 32;
    } while (to < end);
}

// Copies a match, which may overlap its own output.
static inline void copy_match(uint8_t *to, int64_t offset, int64_t length) {
    const uint8_t *from = to - offset;
    uint8_t *end = to + length;
    if (likely(offset >= 16)) {
        copy_by_32(to, from, length);
    } else if (offset >= 8) {
        for (; to < end; to += 8, from += 8) copy8(to, from);
    } else {
        // Copy the first bytes one by one. The pattern then repeats at a distance of at least 8.
        static const int8_t distance[8] = {0, 8, 8, 9, 8, 10, 12, 14};
        for (int at = 0; at < 8; at++) to[at] = from[at];
        int64_t apart = distance[offset];
        if (apart > 8)
            for (int at = 8; at < apart; at++) to[at] = from[at];
        for (uint8_t *next = to + apart; next < end; next += 8) copy8(next, next - apart);
    }
}

// Decodes one block into [to, to_end). A match must not begin before `low`, and memory can be read up to readable_end.
// Returns the number of bytes written, or -1 with the fault.
//
// In most sequences, both lengths are in the token. Their literals are not compared with the free output, because the
// check of the match does it: if literals end after to_end, every match is too large. Their matches are copied by 8
// bytes. Copies of 16 bytes take longer, because they often read what two recent copies wrote.
static int64_t decode_block(const uint8_t *in, int64_t size, const uint8_t *readable_end, uint8_t *to, uint8_t *to_end,
                            const uint8_t *low, Fault *fault) {
    const uint8_t *in_end = in + size, *in_short = in_end - SHORT_SEQUENCE, *in_copied = readable_end - COPIED_AHEAD;
    const uint8_t *begin = to, *from;
    int64_t literals, match, offset;
    for (;;) {
        if (unlikely(in >= in_end)) return cut(fault);
        uint32_t token = *in++;
        literals = token >> 4;
        match = token & 15;
        if (likely(literals < 15 && in <= in_short)) {
            copy16(to, in);
            in += literals;
            to += literals;
        } else {
            if (literals == 15 && (literals = longer(&in, in_end, literals)) < 0) return cut(fault);
            if (literals > in_end - in) return cut(fault);
            if (literals > to_end - to) return bad(fault, too_large);
            if (likely(in + literals <= in_copied))
                copy_by_32(to, in, literals);
            else if (literals)
                memcpy(to, in, (size_t)literals);
            in += literals;
            to += literals;
            if (in == in_end) return to - begin;
            if (in_end - in < 2) return cut(fault);
        }
        offset = load_le16(in);
        in += 2;
        from = to - offset;
        if (likely(match < 15)) {
            match += LEAST_MATCH;
            if (unlikely(match > to_end - to)) return bad(fault, too_large);
            if (likely(offset >= 8 && offset <= to - low)) {
                copy8(to, from);
                copy8(to + 8, from + 8);
                memcpy(to + 16, from + 16, 2);
                to += match;
                continue;
            }
        } else {
            if ((match = longer(&in, in_end, match)) < 0) return cut(fault);
            match += LEAST_MATCH;
        }
        if (unlikely(offset == 0 || offset > to - low)) return bad(fault, "match refers to bytes before the block");
        if (unlikely(match > to_end - to)) return bad(fault, too_large);
        copy_match(to, offset, match);
        to += match;
    }
}

// Frames.

typedef struct {
    int independent, block_checksums, content_checksum, has_content_size;
    int64_t content_size, largest_block;
} FrameHeader;

static int read_frame_header(Reader *reader, int of_magic_0, FrameHeader *frame, Fault *fault) {
    if (reader_left(reader) < 7) return cut(fault);
    if (load_le32(reader->pos) != FRAME_MAGIC) return bad(fault, "no lz4 frame begins here");
    const uint8_t *descriptor = reader->pos + 4;
    uint8_t flags = descriptor[0], block = descriptor[1];
    if (flags >> 6 != 1) return bad(fault, "frame version is not 1");
    if (flags & 2) return bad(fault, "a reserved flag bit is set");
    if (flags & 1) return bad(fault, "a dictionary is needed");
    if (block & 0x8f || (block >> 4 & 7) < 4) return bad(fault, "block descriptor is invalid");
    *frame = (FrameHeader){(flags & 0x20) != 0, (flags & 0x10) != 0, (flags & 4) != 0, (flags & 8) != 0, 0,
                           (int64_t)1 << (8 + 2 * (block >> 4 & 7))};
    int64_t described = 2;
    if (frame->has_content_size) {
        if (reader_left(reader) < 15) return cut(fault);
        uint64_t content_size = load_le64(descriptor + 2);
        frame->content_size = content_size > INT64_MAX ? INT64_MAX : (int64_t)content_size;
        described += 8;
    }
    if (!of_magic_0 && descriptor[described] != (uint8_t)(xxh32(descriptor, described) >> 8))
        return bad(fault, "header checksum is wrong");
    reader->pos = descriptor + described + 1;
    return 0;
}

// Decodes one block, whose size word has been read. `done` bytes of the frame are already in out->data from `at` on.
// Returns the decompressed length of the block, or -1 with the fault.
static int64_t read_block(Reader *reader, const FrameHeader *frame, const uint8_t *readable_end, uint32_t word,
                          Buffer *out, int64_t at, int64_t done, int64_t limit, Fault *fault) {
    int64_t size = word & 0x7fffffff, bytes;
    int stored = word >> 31;
    if (size > frame->largest_block) return bad(fault, too_large);
    if (size + (frame->block_checksums ? 4 : 0) > reader_left(reader)) return cut(fault);
    const uint8_t *data = reader->pos;
    reader->pos += size;
    if (frame->block_checksums) {
        if (load_le32(reader->pos) != xxh32(data, size)) return bad(fault, "block checksum is wrong");
        reader->pos += 4;
    }
    int64_t most = stored ? size : size * BEST_RATIO < frame->largest_block ? size * BEST_RATIO : frame->largest_block;
    int64_t room = most < limit - done ? most : limit - done;
    if (buffer_grow(out, (size_t)(at + done + room), (size_t)(at + done)))
        return fault_set(fault, FAULT_NO_MEMORY, "lz4", 0, 0);
    uint8_t *to = out->data + at + done;
    if (stored) {
        if (size > room) return fault_set(fault, FAULT_DECOMPRESSED_LIMIT, "lz4", done + size, limit);
        memcpy(to, data, (size_t)size);
        return size;
    }
    int64_t back = frame->independent ? 0 : done < LINKED_WINDOW ? done : LINKED_WINDOW;
    bytes = decode_block(data, size, readable_end, to, to + room, to - back, fault);
    if (bytes < 0 && room < most && fault->detail == too_large)  // the limit was reached, not the frame's block size
        return fault_set(fault, FAULT_DECOMPRESSED_LIMIT, "lz4", limit + 1, limit);
    return bytes;
}

int lz4_decompress(const ByteSpan *frames, int of_magic_0, Buffer *out, int64_t at, int64_t limit, int64_t *length,
                   Fault *fault) {
    Reader reader = {frames->data, frames->data + frames->length};
    FrameHeader frame;
    int64_t done = 0;
    if (read_frame_header(&reader, of_magic_0, &frame, fault)) return -1;
    if (frame.has_content_size && frame.content_size > limit)
        return fault_set(fault, FAULT_DECOMPRESSED_LIMIT, "lz4", frame.content_size, limit);
    if (buffer_grow(out, (size_t)at + 64, (size_t)at)) return fault_set(fault, FAULT_NO_MEMORY, "lz4", 0, 0);
    for (;;) {
        if (reader_left(&reader) < 4) return cut(fault);
        uint32_t word = load_le32(reader.pos);
        reader.pos += 4;
        if (word == 0) break;
        int64_t bytes = read_block(&reader, &frame, frames->readable_end, word, out, at, done, limit, fault);
        if (bytes < 0) return -1;
        done += bytes;
    }
    if (frame.has_content_size && frame.content_size != done) return bad(fault, "content size is wrong");
    if (frame.content_checksum) {
        if (reader_left(&reader) < 4) return cut(fault);
        if (load_le32(reader.pos) != xxh32(out->data + at, done)) return bad(fault, "content checksum is wrong");
    }
    *length = done;
    return 0;
}
