// SPDX-License-Identifier: Apache-2.0
// A block: 1 bit last, 2 bits type (0 stored, 1 fixed codes, 2 dynamic codes), all from the lowest bit of a byte on.
//   stored: skip to the byte boundary, length u16, its complement, bytes
//   dynamic codes: 5 bits literal codes - 257, 5 bits distance codes - 1, 4 bits code length codes - 4; 3 bits for the
//   length of each code length code, in the order of `order`; then the code lengths of both alphabets, encoded by these
//   codes (16: repeat the last length, 17 and 18: zeros)
//   symbols: 0..255 a literal, 256 the end, 257..285 a match: base length, extra bits, and a distance in the same form
#include "inflate.h"

#include <stdlib.h>

#include "crc32.h"

enum {
    LITERAL_CODES = 286, DISTANCE_CODES = 30, LENGTH_CODES = 19, MOST_CODES = LITERAL_CODES + DISTANCE_CODES,
    FIXED_CODES = 288, FIXED_DISTANCES = 32,  // the fixed codes have two more of each, which are not valid symbols
    LONGEST_REPEAT = 138,
    LITERAL_BITS = 9, DISTANCE_BITS = 7, LENGTH_BITS = 7,  // bits of the first lookup; longer codes use a second table
    LONGEST_CODE = 15,
    LITERAL_ENTRIES = 1024, DISTANCE_ENTRIES = 512,  // including second tables; codes that need more are not supported
    END_OF_BLOCK = 256,
    TRAILER = 8,             // CRC-32 and size, both u32
    PADDING = 32,            // zeros after the copy of the input
    BEST_RATIO = 1032,       // a match of 258 bytes takes at least two bits
    SLACK_WRITTEN = 32,      // maximum number of bytes written after the end of the output
};

// An entry of a table: bits 0-3 length of the code in this table, 4-7 number of extra bits, 8-11 kind, 16-31 value. The
// value is the literal, the base length or distance, or the index of the second table; in the last case the number of
// extra bits is the number of index bits of the second table.
enum { KIND_LITERAL = 1 << 8, KIND_MATCH = 2 << 8, KIND_END = 4 << 8, KIND_SECOND = 8 << 8 };
#define ENTRY(kind, extra, value) ((uint32_t)(kind) | (uint32_t)(extra) << 4 | (uint32_t)(value) << 16)
#define BITS_OF(entry) ((entry) & 15)
#define EXTRA_OF(entry) ((entry) >> 4 & 15)
#define VALUE_OF(entry) ((entry) >> 16)

typedef struct {
    uint32_t literals[LITERAL_ENTRIES];
    uint32_t distances[DISTANCE_ENTRIES];
} Tables;

struct Inflater {
    Tables fixed, own;
    uint32_t lengths[1 << LENGTH_BITS];
    uint8_t input[INFLATE_MOST_INPUT + PADDING];
};

typedef struct {
    const uint8_t *next, *end;  // next byte to load into `bits`; end of the blocks
    uint64_t bits;
    unsigned count;             // number of valid bits, from the lowest on
} Bits;

static uint32_t literal_entries[FIXED_CODES], distance_entries[FIXED_DISTANCES], length_entries[LENGTH_CODES];
static uint8_t reversed_bytes[256];

void inflate_initialise(void) {
    for (unsigned byte = 0; byte < 256; byte++)
        for (int bit = 0; bit < 8; bit++)
            if (byte >> bit & 1) reversed_bytes[byte] |= (uint8_t)(0x80 >> bit);
    for (unsigned literal = 0; literal < 256; literal++) literal_entries[literal] = ENTRY(KIND_LITERAL, 0, literal);
    literal_entries[END_OF_BLOCK] = ENTRY(KIND_END, 0, 0);
    // Match lengths: eight symbols without extra bits, then four symbols for each number of extra bits. Symbol 285 is
    // the longest match and has no extra bits.
    unsigned base = 3;
    for (unsigned symbol = 257; symbol < 285; symbol++) {
        unsigned extra = symbol < 265 ? 0 : (symbol - 261) / 4;
        literal_entries[symbol] = ENTRY(KIND_MATCH, extra, base);
        base += 1u << extra;
    }
    literal_entries[285] = ENTRY(KIND_MATCH, 0, 258);
    base = 1;
    for (unsigned symbol = 0; symbol < DISTANCE_CODES; symbol++) {
        unsigned extra = symbol < 4 ? 0 : symbol / 2 - 1;
        distance_entries[symbol] = ENTRY(KIND_MATCH, extra, base);
        base += 1u << extra;
    }
    for (unsigned symbol = 0; symbol < LENGTH_CODES; symbol++) length_entries[symbol] = ENTRY(KIND_LITERAL, 0, symbol);
}

static inline unsigned reversed(unsigned code, unsigned length) {
    return (unsigned)(reversed_bytes[code & 0xff] << 8 | reversed_bytes[code >> 8]) >> (16 - length);
}

// Tables of codes.

// Fills a table of 2^bits entries, and second tables after it, from the lengths of the codes. Their number `count` is a
// multiple of eight, padded with zeros. The set of codes must be complete; the one exception is a single code of one
// bit (RFC 1951, 3.2.7), whose other bit value has no entry. Returns -1 if the codes are invalid or need too large a
// table.
static int fill_table(uint32_t *table, unsigned bits, unsigned capacity, const uint8_t *lengths, unsigned count,
                      const uint32_t *entries) {
    // Most symbols of a small block have no code, so groups of eight without a code are skipped. Two arrays of counters
    // are used alternately, because reading a counter that was just written is slow.
    uint16_t counts[LONGEST_CODE + 1] = {0}, turns[2][LONGEST_CODE + 1] = {{0}}, starts[LONGEST_CODE + 2], sorted[FIXED_CODES + 1];
    for (unsigned symbol = 0; symbol < count; symbol += 8) {
        if (!load_le64(lengths + symbol)) continue;
        for (unsigned at = symbol; at < symbol + 8; at += 2) {
            turns[0][lengths[at]]++;
            turns[1][lengths[at + 1]]++;
        }
    }
    unsigned used = 0, longest = 0;
    starts[0] = starts[1] = 0;
    for (unsigned length = 1; length <= LONGEST_CODE; length++) {
        counts[length] = (uint16_t)(turns[0][length] + turns[1][length]);
        starts[length + 1] = (uint16_t)(starts[length] + counts[length]);
        used += (unsigned)counts[length] << (LONGEST_CODE - length);
        if (counts[length]) longest = length;
    }
    const unsigned codes = starts[LONGEST_CODE + 1], size = 1u << bits;
    if (used != 1u << LONGEST_CODE) {
        if (codes != 1 || longest != 1) return -1;
        memset(table, 0, size * sizeof *table);
    }
    uint16_t places[LONGEST_CODE + 1];
    memcpy(places, starts, sizeof places);
    places[0] = FIXED_CODES;  // symbols without a code are written to an element that is never read
    for (unsigned symbol = 0; symbol < count; symbol += 8) {
        if (!load_le64(lengths + symbol)) continue;
        for (unsigned at = symbol; at < symbol + 8; at++) {
            sorted[places[lengths[at]]] = (uint16_t)at;
            places[lengths[at]] = (uint16_t)(places[lengths[at]] + (lengths[at] != 0));
        }
    }
    // Short codes: with each bit of length the table doubles by a copy of itself.
    unsigned code = 0, at = 0, length = 1, filled = 1;
    for (; length <= bits; length++, code <<= 1) {
        memcpy(table + filled, table, filled * sizeof *table);
        filled *= 2;
        for (unsigned last = at + counts[length]; at < last; at++)
            table[reversed(code++, length)] = entries[sorted[at]] | length;
    }
    // Longer codes: those with the same first bits are consecutive and share a second table, which is large enough for
    // all of them.
    unsigned next = size, end = size, first = size;
    for (; length <= longest; length++, code <<= 1) {
        for (unsigned left = counts[length]; left; left--, at++, code++) {
            unsigned index = reversed(code, length), step = 1u << (length - bits);
            if ((index & (size - 1)) != first) {
                unsigned wide = length - bits, found = left;
                while (found < 1u << wide && bits + wide < LONGEST_CODE) {
                    wide++;
                    found = 2 * found + counts[bits + wide];
                }
                first = index & (size - 1);
                next = end;
                end += 1u << wide;
                if (end > capacity) return -1;
                table[first] = ENTRY(KIND_SECOND, wide, next) | bits;
            }
            for (unsigned place = next + (index >> bits); place < end; place += step)
                table[place] = entries[sorted[at]] | (length - bits);
        }
    }
    return 0;
}

// The bit reader.

// Fills `bits` to at least 56 bits. The copy of the input is followed by zeros, so that eight bytes can be read at
// every position up to its end. is_past_end reports a stream that reads more bits than the input has.
static inline void refill(Bits *in) {
    in->bits |= load_le64(in->next) << in->count;
    in->next += (63 - in->count) >> 3;
    in->count |= 56;
}
static inline int is_past_end(const Bits *in) { return in->next > in->end + 8; }

static inline unsigned take(Bits *in, unsigned count) {
    unsigned value = (unsigned)(in->bits & ((1u << count) - 1));
    in->bits >>= count;
    in->count -= count;
    return value;
}

static inline uint32_t look_up(Bits *in, const uint32_t *table, unsigned bits) {
    uint32_t entry = table[in->bits & ((1u << bits) - 1)];
    if (unlikely(entry & KIND_SECOND)) {
        take(in, BITS_OF(entry));
        entry = table[VALUE_OF(entry) + (in->bits & ((1u << EXTRA_OF(entry)) - 1))];
    }
    take(in, BITS_OF(entry));
    return entry;
}

// Blocks.

static int read_codes(Inflater *self, Bits *in) {
    static const uint8_t order[LENGTH_CODES] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    uint8_t lengths[MOST_CODES + LONGEST_REPEAT] = {0}, of_literals[FIXED_CODES] = {0}, of_distances[FIXED_DISTANCES] = {0};
    refill(in);
    unsigned literals = take(in, 5) + 257, distances = take(in, 5) + 1, of_lengths = take(in, 4) + 4;
    if (literals > LITERAL_CODES || distances > DISTANCE_CODES) return -1;
    for (unsigned at = 0; at < of_lengths; at++) {
        if (at % 8 == 0) refill(in);
        lengths[order[at]] = (uint8_t)take(in, 3);
    }
    if (fill_table(self->lengths, LENGTH_BITS, 1 << LENGTH_BITS, lengths, 24, length_entries)) return -1;
    const unsigned wanted = literals + distances;
    memset(lengths, 0, LENGTH_CODES);
    for (unsigned at = 0; at < wanted;) {
        if (in->count < 14) refill(in);
        if (unlikely(is_past_end(in))) return -1;
        uint32_t entry = look_up(in, self->lengths, LENGTH_BITS);
        unsigned symbol = VALUE_OF(entry);
        if (!(entry & KIND_LITERAL)) return -1;
        if (symbol < 16) {
            lengths[at++] = (uint8_t)symbol;
        } else if (symbol == 16) {
            if (!at) return -1;
            unsigned times = 3 + take(in, 2);
            memset(lengths + at, lengths[at - 1], times);
            at += times;
        } else {
            at += symbol == 17 ? 3 + take(in, 3) : 11 + take(in, 7);
        }
        if (at > wanted) return -1;
    }
    if (!lengths[END_OF_BLOCK]) return -1;
    memcpy(of_literals, lengths, literals);
    memcpy(of_distances, lengths + literals, distances);
    return fill_table(self->own.literals, LITERAL_BITS, LITERAL_ENTRIES, of_literals, FIXED_CODES, literal_entries) ||
           fill_table(self->own.distances, DISTANCE_BITS, DISTANCE_ENTRIES, of_distances, FIXED_DISTANCES,
                      distance_entries);
}

static int fill_fixed(Tables *fixed) {
    uint8_t lengths[FIXED_CODES];
    memset(lengths, 8, 144);
    memset(lengths + 144, 9, 112);
    memset(lengths + 256, 7, 24);
    memset(lengths + 280, 8, 8);
    if (fill_table(fixed->literals, LITERAL_BITS, LITERAL_ENTRIES, lengths, FIXED_CODES, literal_entries)) return -1;
    memset(lengths, 5, FIXED_DISTANCES);
    return fill_table(fixed->distances, DISTANCE_BITS, DISTANCE_ENTRIES, lengths, FIXED_DISTANCES, distance_entries);
}

// Copies a match. Up to 15 bytes after its end are written.
static inline void copy_match(uint8_t *to, unsigned distance, unsigned length) {
    const uint8_t *from = to - distance, *end = to + length;
    if (likely(distance >= 16)) {
        do {
            memcpy(to, from, 16);
            to += 16;
            from += 16;
        } while (to < end);
    } else {
        do *to++ = *from++; while (to < end);
    }
}

// Reads the symbols of a block up to its end. `out_end`: end of the output as the trailer declares it.
static int read_symbols(const Tables *tables, Bits *bits, const uint8_t *begin, uint8_t **place, const uint8_t *out_end) {
    Bits in = *bits;
    uint8_t *out = *place;
    for (;;) {
        refill(&in);  // enough bits for three literals, or for two literals and a length
        if (unlikely(is_past_end(&in) || out > out_end)) return -1;
        uint32_t entry = look_up(&in, tables->literals, LITERAL_BITS);
        if (entry & KIND_LITERAL) {
            *out++ = (uint8_t)VALUE_OF(entry);
            entry = look_up(&in, tables->literals, LITERAL_BITS);
            if (entry & KIND_LITERAL) {
                *out++ = (uint8_t)VALUE_OF(entry);
                entry = look_up(&in, tables->literals, LITERAL_BITS);
                if (entry & KIND_LITERAL) {
                    *out++ = (uint8_t)VALUE_OF(entry);
                    continue;
                }
            }
        }
        if (entry & KIND_END) break;
        if (unlikely(!(entry & KIND_MATCH))) return -1;
        unsigned length = VALUE_OF(entry) + take(&in, EXTRA_OF(entry));
        refill(&in);
        entry = look_up(&in, tables->distances, DISTANCE_BITS);
        if (unlikely(!(entry & KIND_MATCH))) return -1;
        unsigned distance = VALUE_OF(entry) + take(&in, EXTRA_OF(entry));
        if (unlikely((int64_t)distance > out - begin || (int64_t)length > out_end - out)) return -1;
        copy_match(out, distance, length);
        out += length;
    }
    *bits = in;
    *place = out;
    return 0;
}

static int read_stored(Bits *in, uint8_t **place, const uint8_t *out_end) {
    take(in, in->count & 7);
    in->next -= in->count >> 3;  // back to the first unused byte
    in->bits = in->count = 0;
    if (in->end - in->next < 4) return -1;
    unsigned length = load_le16(in->next);
    if (length != (load_le16(in->next + 2) ^ 0xffffu)) return -1;
    in->next += 4;
    if ((int64_t)length > in->end - in->next || (int64_t)length > out_end - *place) return -1;
    memcpy(*place, in->next, length);
    in->next += length;
    *place += length;
    return 0;
}

static int read_blocks(Inflater *self, Bits *in, const uint8_t *begin, uint8_t *out, const uint8_t *out_end) {
    unsigned is_last;
    do {
        refill(in);
        if (is_past_end(in)) return -1;
        is_last = take(in, 1);
        int failed;
        switch (take(in, 2)) {
            case 0: failed = read_stored(in, &out, out_end); break;
            case 1: failed = read_symbols(&self->fixed, in, begin, &out, out_end); break;
            case 2: failed = read_codes(self, in) || read_symbols(&self->own, in, begin, &out, out_end); break;
            default: return -1;
        }
        if (failed) return -1;
    } while (!is_last);
    return out == out_end && in->next - (in->count >> 3) == in->end ? 0 : -1;
}

// Gzip members.

int64_t gzip_header_size(const uint8_t *data, int64_t size) {
    enum { HEADER_CHECKSUM = 2, EXTRA_FIELD = 4, FIRST_TEXT = 8 };
    int64_t at = 10;
    if (size < at || data[0] != 0x1f || data[1] != 0x8b || data[2] != 8) return 0;
    int flags = data[3];
    if (flags & EXTRA_FIELD) {
        if (size < at + 2) return 0;
        at += 2 + load_le16(data + at);
    }
    for (int text = 0; text < 2; text++)  // file name and comment, each up to and including a zero byte
        if (flags & FIRST_TEXT << text) {
            while (at < size && data[at]) at++;
            at++;
        }
    if (flags & HEADER_CHECKSUM) {  // the low half of the CRC-32 of the header before it
        at += 2;
        if (at > size || (crc32_ieee(0, data, (size_t)at - 2) & 0xffff) != load_le16(data + at - 2)) return 0;
    }
    return at <= size ? at : 0;
}

Inflater *inflate_new(void) {
    Inflater *self = calloc(1, sizeof *self);
    if (self && fill_fixed(&self->fixed)) {
        free(self);
        return NULL;
    }
    return self;
}

void inflate_free(Inflater *self) { free(self); }

int inflate_small(Inflater *self, const uint8_t *data, int64_t size, Buffer *out, int64_t at, int64_t limit,
                  int64_t *length) {
    int64_t header = gzip_header_size(data, size), stored = size - header - TRAILER;
    if (!header || stored < 1 || stored > INFLATE_MOST_INPUT) return -1;
    const uint8_t *trailer = data + size - TRAILER;
    int64_t claimed = load_le32(trailer + 4);
    if (claimed > limit || claimed > stored * BEST_RATIO) return -1;
    if (buffer_grow(out, (size_t)(at + claimed) + SLACK_WRITTEN, (size_t)at)) return -1;
    memcpy(self->input, data + header, (size_t)stored);
    memset(self->input + stored, 0, PADDING);
    Bits in = {self->input, self->input + stored, 0, 0};
    uint8_t *begin = out->data + at;
    if (read_blocks(self, &in, begin, begin, begin + claimed)) return -1;
    if (crc32_ieee(0, begin, (size_t)claimed) != load_le32(trailer)) return -1;
    *length = claimed;
    return 0;
}
