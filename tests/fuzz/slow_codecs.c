// SPDX-License-Identifier: Apache-2.0
#include "slow_codecs.h"

#include <string.h>

#include "lz4.h"

// The input and the output so far; once something was wrong nothing moves any more.
typedef struct {
    const uint8_t *data;
    int64_t size, at;
    uint8_t *out;
    int64_t room, made;
    int wrong;
} Stream;

static uint64_t take(Stream *stream, int bytes) {  // little-endian
    uint64_t value = 0;
    if (stream->wrong || stream->size - stream->at < bytes) {
        stream->wrong = 1;
        return 0;
    }
    for (int byte = 0; byte < bytes; byte++) value |= (uint64_t)stream->data[stream->at++] << 8 * byte;
    return value;
}

static void put(Stream *stream, uint8_t byte) {
    if (stream->wrong || stream->made >= stream->room) stream->wrong = 1;
    else stream->out[stream->made++] = byte;
}

static void literals(Stream *stream, uint64_t count) {
    if (stream->wrong || (uint64_t)(stream->size - stream->at) < count) stream->wrong = 1;
    for (; count && !stream->wrong; count--) put(stream, stream->data[stream->at++]);
}

static void match(Stream *stream, int64_t back, uint64_t count, int64_t low) {
    if (back <= 0 || back > stream->made - low) stream->wrong = 1;
    for (; count && !stream->wrong; count--) put(stream, stream->out[stream->made - back]);
}

// ----------------------------------------------------------------------------------------------------- snappy

static void snappy_block(Stream *stream, int64_t end) {
    uint64_t claimed = 0, last = 0x80;
    int64_t low = stream->made;
    for (int shift = 0; last & 0x80; shift += 7) {
        if (shift == 35) stream->wrong = 1;
        last = take(stream, 1);
        if (stream->wrong) return;
        claimed |= (last & 0x7f) << shift;
    }
    if (claimed > UINT32_MAX || claimed > (uint64_t)(stream->room - stream->made)) stream->wrong = 1;
    while (!stream->wrong && stream->at < end) {
        uint64_t tag = take(stream, 1), upper = tag >> 2, back;
        switch (tag & 3) {
            case 0: literals(stream, (upper < 60 ? upper : take(stream, (int)upper - 59)) + 1); break;
            case 1:
                back = take(stream, 1) | tag >> 5 << 8;
                match(stream, (int64_t)back, (upper & 7) + 4, low);
                break;
            default:
                back = take(stream, (tag & 3) == 2 ? 2 : 4);
                match(stream, (int64_t)back, upper + 1, low);
        }
        if (stream->made - low > (int64_t)claimed) stream->wrong = 1;
    }
    if (stream->made - low != (int64_t)claimed) stream->wrong = 1;
}

int64_t slow_snappy(const uint8_t *data, int64_t size, uint8_t *out, int64_t room) {
    static const uint8_t magic[8] = {0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0};
    Stream stream = {.data = data, .size = size, .out = out, .room = room};
    int is_xerial = size >= 8 && memcmp(data, magic, 8) == 0;
    if (!is_xerial) {
        snappy_block(&stream, size);
        return stream.wrong ? -1 : stream.made;
    }
    while (!stream.wrong && stream.at < size) {
        if (size - stream.at >= 8 && memcmp(data + stream.at, magic, 8) == 0) {
            stream.at += 8;
            if (take(&stream, 4) == 0 || data[stream.at - 4] & 0x80) stream.wrong = 1;  // big-endian, at least 1
            take(&stream, 4);
            continue;
        }
        uint64_t raw = take(&stream, 4);
        int64_t length = (int32_t)__builtin_bswap32((uint32_t)raw);
        if (stream.wrong || length <= 0 || length > size - stream.at) return -1;
        stream.size = stream.at + length;  // a block cannot read what lies behind it
        snappy_block(&stream, stream.size);
        stream.size = size;
    }
    return stream.wrong ? -1 : stream.made;
}

// -------------------------------------------------------------------------------------------------------- lz4

static uint64_t lz4_length(Stream *stream, uint64_t length) {
    for (uint64_t more = 255; length >= 15 && more == 255 && !stream->wrong; length += more) more = take(stream, 1);
    return length;
}

static void lz4_block(Stream *stream, int64_t end, int64_t low) {
    if (stream->at == end) stream->wrong = 1;
    while (!stream->wrong) {
        uint64_t token = take(stream, 1);
        literals(stream, lz4_length(stream, token >> 4));
        if (stream->at == end) return;
        uint64_t back = take(stream, 2);
        match(stream, (int64_t)back, lz4_length(stream, token & 15) + 4, low);
        if (stream->at == end) stream->wrong = 1;  // the last sequence has no match
    }
}

static void lz4_frame(Stream *stream) {
    if (take(stream, 4) != 0x184d2204) stream->wrong = 1;
    uint64_t flags = take(stream, 1), block = take(stream, 1), size = flags & 8 ? take(stream, 8) : 0;
    if (flags >> 6 != 1 || flags & 3 || block & 0x8f || (block >> 4 & 7) < 4) stream->wrong = 1;
    int64_t described = flags & 8 ? 10 : 2;
    uint64_t checksum = take(stream, 1);
    if (stream->wrong || checksum != (xxh32(stream->data + 4, described) >> 8 & 0xff)) {
        stream->wrong = 1;
        return;
    }
    int64_t largest = (int64_t)1 << (8 + 2 * (block >> 4 & 7)), whole = stream->size;
    for (uint64_t word; !stream->wrong && (word = take(stream, 4)) != 0;) {
        int64_t length = (int64_t)(word & 0x7fffffff), before = stream->made, begin = stream->at;
        int64_t low = flags & 0x20 ? before : before > 65536 ? before - 65536 : 0;
        if (length > largest || length > whole - begin) stream->wrong = 1;
        if (stream->wrong) return;
        stream->size = begin + length;
        if (word >> 31) literals(stream, (uint64_t)length);
        else lz4_block(stream, stream->size, low);
        stream->size = whole;
        if (stream->made - before > largest) stream->wrong = 1;
        if (flags & 0x10 && take(stream, 4) != xxh32(stream->data + begin, length)) stream->wrong = 1;
    }
    if (flags & 8 && size != (uint64_t)stream->made) stream->wrong = 1;
    if (flags & 4 && take(stream, 4) != xxh32(stream->out, stream->made)) stream->wrong = 1;
}

int64_t slow_lz4(const uint8_t *data, int64_t size, uint8_t *out, int64_t room) {
    Stream stream = {.data = data, .size = size, .out = out, .room = room};
    lz4_frame(&stream);
    return stream.wrong ? -1 : stream.made;
}
