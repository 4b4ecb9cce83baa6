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

// ---------------------------------------------------------------------------------------------------- DEFLATE

typedef struct {
    Stream stream;
    unsigned byte;
    int left;  // bits of it
} BitStream;

static unsigned take_bits(BitStream *in, int count) {  // from the lowest bit of a byte on
    unsigned value = 0;
    for (int bit = 0; bit < count; bit++, in->byte >>= 1, in->left--) {
        if (!in->left) {
            in->byte = (unsigned)take(&in->stream, 1);
            in->left = 8;
        }
        value |= (in->byte & 1) << bit;
    }
    return value;
}

enum { LONGEST_CODE = 15, MOST_SYMBOLS = 288 };

typedef struct {
    int counts[LONGEST_CODE + 1];  // codes of each length
    int symbols[MOST_SYMBOLS];     // in the order of their codes
} Code;

// Complete, or a single code of one bit where that is allowed. zlib accepts an alphabet without codes, too; inflate.c
// leaves it to the package.
static int make_code(Code *code, const uint8_t *lengths, int count, int may_be_single) {
    int used = 0, left = 1;
    memset(code, 0, sizeof *code);
    for (int length = 1; length <= LONGEST_CODE; length++) {
        for (int symbol = 0; symbol < count; symbol++)
            if (lengths[symbol] == length) {
                code->symbols[used++] = symbol;
                code->counts[length]++;
            }
        left = 2 * left - code->counts[length];
        if (left < 0) return 0;
    }
    return !left || (may_be_single && used == 1 && code->counts[1] == 1);
}

static int take_symbol(BitStream *in, const Code *code) {
    int value = 0, first = 0, before = 0;
    for (int length = 1; length <= LONGEST_CODE; length++) {
        value = 2 * value + (int)take_bits(in, 1);
        first *= 2;
        if (value - first < code->counts[length]) return code->symbols[before + value - first];
        first += code->counts[length];
        before += code->counts[length];
    }
    in->stream.wrong = 1;
    return 0;
}

static int take_codes(BitStream *in, Code *literals, Code *distances) {
    static const uint8_t order[] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    uint8_t lengths[320] = {0}, of_lengths[19] = {0};
    int literal_count = (int)take_bits(in, 5) + 257, count = literal_count + (int)take_bits(in, 5) + 1;
    int length_count = (int)take_bits(in, 4) + 4;
    if (literal_count > 286 || count - literal_count > 30) return 0;
    for (int at = 0; at < length_count; at++) of_lengths[order[at]] = (uint8_t)take_bits(in, 3);
    if (!make_code(literals, of_lengths, 19, 0)) return 0;
    for (int at = 0; at < count && !in->stream.wrong;) {
        int symbol = take_symbol(in, literals), times = 1, length = symbol;
        if (symbol == 16) {
            if (!at) return 0;
            length = lengths[at - 1];
            times = 3 + (int)take_bits(in, 2);
        } else if (symbol > 16) {
            length = 0;
            times = symbol == 17 ? 3 + (int)take_bits(in, 3) : 11 + (int)take_bits(in, 7);
        }
        if (times > count - at) return 0;
        while (times--) lengths[at++] = (uint8_t)length;
    }
    return lengths[256] && make_code(literals, lengths, literal_count, 1) &&
           make_code(distances, lengths + literal_count, count - literal_count, 1);
}

static void take_fixed(Code *literals, Code *distances) {
    uint8_t lengths[MOST_SYMBOLS];
    for (int symbol = 0; symbol < MOST_SYMBOLS; symbol++)
        lengths[symbol] = symbol < 144 ? 8 : symbol < 256 ? 9 : symbol < 280 ? 7 : 8;
    make_code(literals, lengths, MOST_SYMBOLS, 0);
    memset(lengths, 5, 32);
    make_code(distances, lengths, 32, 0);
}

static void symbols(BitStream *in, const Code *literals, const Code *distances) {
    static const int lengths[] = {3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27,
                                  31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    static const int backs[] = {1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129,
                                193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
    while (!in->stream.wrong) {
        int symbol = take_symbol(in, literals);
        if (symbol == 256) return;
        if (symbol < 256) {
            put(&in->stream, (uint8_t)symbol);
        } else if (symbol > 285) {
            in->stream.wrong = 1;
        } else {
            int extra = symbol < 265 || symbol == 285 ? 0 : (symbol - 261) / 4;
            int length = lengths[symbol - 257] + (int)take_bits(in, extra), back = take_symbol(in, distances);
            if (back > 29) in->stream.wrong = 1;
            else match(&in->stream, backs[back] + (int)take_bits(in, back < 4 ? 0 : back / 2 - 1), (uint64_t)length, 0);
        }
    }
}

int64_t slow_inflate(const uint8_t *data, int64_t size, uint8_t *out, int64_t room, int64_t *used) {
    BitStream in = {{.data = data, .size = size, .out = out, .room = room}, 0, 0};
    unsigned is_last = 0;
    while (!is_last && !in.stream.wrong) {
        Code of_literals, of_distances;
        is_last = take_bits(&in, 1);
        unsigned kind = take_bits(&in, 2);
        if (kind == 0) {
            in.left = 0;
            uint64_t length = take(&in.stream, 2);
            if (take(&in.stream, 2) != (length ^ 0xffff)) in.stream.wrong = 1;
            literals(&in.stream, length);
        } else {
            if (kind == 1) take_fixed(&of_literals, &of_distances);
            else if (kind == 3 || !take_codes(&in, &of_literals, &of_distances)) in.stream.wrong = 1;
            symbols(&in, &of_literals, &of_distances);
        }
    }
    *used = in.stream.at;
    return in.stream.wrong ? -1 : in.stream.made;
}
