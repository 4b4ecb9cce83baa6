// SPDX-License-Identifier: Apache-2.0
// Four implementations:
//   avx512    folds 4 x 512 bit with carry-less multiplication; about twice as fast as sse42
//   sse42     three parallel crc32q streams, joined by carry-less multiplication
//   arm64     three parallel crc32cx streams, joined by the tables below
//   portable  eight bytes in each step, by tables
// The constants are powers of x modulo the polynomial. They are computed at start by repeated multiplication by x.
// The bit order is reflected: in an n-bit register bit i represents x^(n-1-i).
#include "crc32c.h"

#include <string.h>

enum { STREAM = 1024, SHORT_STREAM = 64 };  // bytes of each of the three streams of one round

static uint32_t tables[8][256];

static uint32_t times_x(uint32_t value) { return (value >> 1) ^ ((value & 1) ? 0x82f63b78u : 0u); }

static uint32_t power_of_x(unsigned exponent) {
    uint32_t value = 0x80000000u;
    while (exponent--) value = times_x(value);
    return value;
}

static uint32_t crc32c_portable(uint32_t crc, const uint8_t *data, size_t size) {
    crc = ~crc;
    while (size >= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        word ^= crc;
        crc = 0;
        for (int byte = 0; byte < 8; byte++) crc ^= tables[7 - byte][word >> (8 * byte) & 0xff];
        data += 8;
        size -= 8;
    }
    while (size--) crc = tables[0][(crc ^ *data++) & 0xff] ^ (crc >> 8);
    return ~crc;
}

static void make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = times_x(crc);
        tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = tables[table - 1][byte];
            tables[table][byte] = tables[0][crc & 0xff] ^ (crc >> 8);
        }
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define SSE42 __attribute__((target("sse4.2,crc32,pclmul")))
#define AVX512 __attribute__((target("sse4.2,crc32,pclmul,avx512f,avx512vl,avx512dq,avx512bw,vpclmulqdq")))

// x^(8 * length - 33), where `length` is that of one stream in the low half and that of two streams in the high half.
static uint64_t join_long, join_short;

SSE42 static inline uint64_t read64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }

SSE42 static uint32_t crc32q_tail(uint64_t crc, const uint8_t *data, size_t size) {
    while (size >= 8) {
        crc = _mm_crc32_u64(crc, read64(data));
        data += 8;
        size -= 8;
    }
    if (size & 4) {
        uint32_t v;
        memcpy(&v, data, 4);
        crc = _mm_crc32_u32((uint32_t)crc, v);
        data += 4;
    }
    if (size & 2) {
        uint16_t v;
        memcpy(&v, data, 2);
        crc = _mm_crc32_u16((uint32_t)crc, v);
        data += 2;
    }
    if (size & 1) crc = _mm_crc32_u8((uint32_t)crc, *data);
    return (uint32_t)crc;
}

// Returns crc * x^n in the form that crc32q reduces. The exponents are lower by 33 because the reflected product is
// shifted by one bit and crc32q multiplies by x^32.
SSE42 static inline uint64_t advance(uint32_t crc, uint32_t power) {
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(crc), _mm_cvtsi64_si128(power), 0);
    return (uint64_t)_mm_cvtsi128_si64(product);
}

SSE42 static uint64_t three_streams(uint64_t crc, const uint8_t *data, size_t stream, uint64_t join) {
    uint64_t second = 0, third = 0;
    for (size_t at = 0; at < stream; at += 8) {
        crc = _mm_crc32_u64(crc, read64(data + at));
        second = _mm_crc32_u64(second, read64(data + stream + at));
        third = _mm_crc32_u64(third, read64(data + 2 * stream + at));
    }
    // One more crc32q reduces the advanced values. It must do so before the result of the third stream is added.
    uint64_t moved = advance((uint32_t)crc, (uint32_t)(join >> 32)) ^ advance((uint32_t)second, (uint32_t)join);
    return _mm_crc32_u64(0, moved) ^ third;
}

SSE42 static uint32_t crc32c_sse42(uint32_t crc, const uint8_t *data, size_t size) {
    uint64_t state = ~crc;
    for (; size >= 3 * STREAM; data += 3 * STREAM, size -= 3 * STREAM) state = three_streams(state, data, STREAM, join_long);
    if (size >= 256)
        for (; size >= 3 * SHORT_STREAM; data += 3 * SHORT_STREAM, size -= 3 * SHORT_STREAM)
            state = three_streams(state, data, SHORT_STREAM, join_short);
    return ~crc32q_tail(state, data, size);
}

// A 128-bit lane is advanced over D bits by multiplying its low half, which has the high powers, by x^(D+31) and its
// high half by x^(D-33).
typedef struct { uint64_t low, high; } FoldConstants;
static FoldConstants fold_blocks[7], fold_lane[3];  // for 0 to 6 blocks of 512 bits; for 384, 256 and 128 bits

static FoldConstants fold_constants(unsigned bits) {
    FoldConstants constants = {power_of_x(bits + 31), power_of_x(bits - 33)};
    return constants;
}

AVX512 static inline __m512i load512(const uint8_t *p) { return _mm512_loadu_si512((const void *)p); }
AVX512 static inline __m512i spread(FoldConstants constants) {
    return _mm512_broadcast_i32x4(_mm_set_epi64x((long long)constants.high, (long long)constants.low));
}
AVX512 static inline __m512i fold(__m512i value, __m512i constants, __m512i next) {
    __m512i low = _mm512_clmulepi64_epi128(value, constants, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(value, constants, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96);
}
AVX512 static inline __m128i fold_lane_by(__m128i lane, FoldConstants constants) {
    __m128i c = _mm_set_epi64x((long long)constants.high, (long long)constants.low);
    return _mm_xor_si128(_mm_clmulepi64_si128(lane, c, 0x00), _mm_clmulepi64_si128(lane, c, 0x11));
}

AVX512 static uint32_t crc32c_avx512(uint32_t crc, const uint8_t *data, size_t size) {
    uint64_t state = ~crc;
    if (size < 256) return ~crc32q_tail(state, data, size);
    __m512i a = _mm512_xor_si512(load512(data), _mm512_zextsi128_si512(_mm_cvtsi64_si128((long long)state)));
    __m512i b = load512(data + 64), c = load512(data + 128), d = load512(data + 192);
    data += 256;
    size -= 256;
    __m512i by = spread(fold_blocks[4]);
    for (; size >= 256; data += 256, size -= 256) {
        a = fold(a, by, load512(data));
        b = fold(b, by, load512(data + 64));
        c = fold(c, by, load512(data + 128));
        d = fold(d, by, load512(data + 192));
    }
    // Each of the four accumulators and the remaining blocks is advanced directly to the last block: these
    // multiplications do not depend on each other.
    size_t left = size / 64;
    __m512i last = left ? load512(data + 64 * (left - 1)) : d;
    if (left) last = fold(d, spread(fold_blocks[left]), last);
    last = fold(c, spread(fold_blocks[left + 1]), last);
    last = fold(b, spread(fold_blocks[left + 2]), last);
    last = fold(a, spread(fold_blocks[left + 3]), last);
    if (left > 1) last = fold(load512(data + 64 * (left - 2)), spread(fold_blocks[1]), last);
    if (left > 2) last = fold(load512(data), spread(fold_blocks[2]), last);
    data += 64 * left;
    size -= 64 * left;
    d = last;
    __m128i lane = _mm512_extracti32x4_epi32(d, 3);
    lane = _mm_xor_si128(lane, fold_lane_by(_mm512_extracti32x4_epi32(d, 0), fold_lane[0]));
    lane = _mm_xor_si128(lane, fold_lane_by(_mm512_extracti32x4_epi32(d, 1), fold_lane[1]));
    lane = _mm_xor_si128(lane, fold_lane_by(_mm512_extracti32x4_epi32(d, 2), fold_lane[2]));
    state = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(lane));
    state = _mm_crc32_u64(state, (uint64_t)_mm_extract_epi64(lane, 1));
    return ~crc32q_tail(state, data, size);
}

// Finds the instruction sets that the processor has and whose registers the operating system saves. The processor is
// queried directly, because the compilers' built-in query needs a run-time library that is not linked everywhere.
typedef struct { int sse42, avx512; } Abilities;

static Abilities find_abilities(void) {
    enum { PCLMUL = 1 << 1, SSE42_BIT = 1 << 20, XSAVE_USED = 1 << 27 };
    enum { AVX512F = 1 << 16, AVX512DQ = 1 << 17, AVX512BW = 1 << 30, VPCLMULQDQ = 1 << 10, SAVED = 0xe6 };
    const unsigned AVX512VL = 1u << 31, all = AVX512F | AVX512DQ | AVX512BW | AVX512VL;
    unsigned a, b, c, d, saved = 0;
    Abilities found = {0, 0};
    if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
    found.sse42 = (c & SSE42_BIT) && (c & PCLMUL);
    if (c & XSAVE_USED) __asm__("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
    found.avx512 = found.sse42 && (saved & SAVED) == SAVED && (b & all) == all && (c & VPCLMULQDQ);
    return found;
}

static Crc32cPath paths[4];

static void find_paths(void) {
    int count = 0;
    Abilities abilities = find_abilities();
    if (abilities.sse42) {
        join_long = (uint64_t)power_of_x(2 * 8 * STREAM - 33) << 32 | power_of_x(8 * STREAM - 33);
        join_short = (uint64_t)power_of_x(2 * 8 * SHORT_STREAM - 33) << 32 | power_of_x(8 * SHORT_STREAM - 33);
        if (abilities.avx512) {
            for (unsigned blocks = 1; blocks < 7; blocks++) fold_blocks[blocks] = fold_constants(512 * blocks);
            for (int lane = 0; lane < 3; lane++) fold_lane[lane] = fold_constants(128u * (3 - (unsigned)lane));
            paths[count++] = (Crc32cPath){"avx512", crc32c_avx512};
        }
        paths[count++] = (Crc32cPath){"sse42", crc32c_sse42};
    }
    paths[count++] = (Crc32cPath){"portable", crc32c_portable};
    paths[count] = (Crc32cPath){NULL, NULL};
}

#elif defined(__aarch64__)
#ifdef __linux__
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
static int has_crc(void) { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#else
static int has_crc(void) { return 1; }  // all ARM64 machines with macOS or Windows have the instructions
#endif

#ifdef __clang__
#define ARM_CRC __attribute__((target("crc")))
#define crc32cx __builtin_arm_crc32cd
#define crc32cb __builtin_arm_crc32cb
#else
#define ARM_CRC __attribute__((target("+crc")))
#define crc32cx __builtin_aarch64_crc32cx
#define crc32cb __builtin_aarch64_crc32cb
#endif

ARM_CRC static inline uint32_t step64(uint32_t crc, const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return crc32cx(crc, v);
}

static uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (int bit = 31; bit >= 0; bit--) {
        if (a >> bit & 1) product ^= b;
        b = times_x(b);
    }
    return product;
}

static uint32_t advance_tables[4][256];  // a CRC advanced over STREAM zero bytes: one table for each of its bytes

static uint32_t advance(uint32_t crc) {
    return advance_tables[0][crc & 0xff] ^ advance_tables[1][crc >> 8 & 0xff] ^ advance_tables[2][crc >> 16 & 0xff] ^
           advance_tables[3][crc >> 24];
}

static void make_advance_tables(void) {
    uint32_t power = power_of_x(8 * STREAM);
    for (int byte = 0; byte < 4; byte++)
        for (uint32_t value = 0; value < 256; value++) advance_tables[byte][value] = multiply(value << (8 * byte), power);
}

ARM_CRC static uint32_t crc32c_arm64(uint32_t crc, const uint8_t *data, size_t size) {
    crc = ~crc;
    for (; size >= 3 * STREAM; data += 3 * STREAM, size -= 3 * STREAM) {
        uint32_t second = 0, third = 0;
        for (size_t at = 0; at < STREAM; at += 8) {
            crc = step64(crc, data + at);
            second = step64(second, data + STREAM + at);
            third = step64(third, data + 2 * STREAM + at);
        }
        crc = advance(advance(crc) ^ second) ^ third;
    }
    for (; size >= 8; data += 8, size -= 8) crc = step64(crc, data);
    while (size--) crc = crc32cb(crc, *data++);
    return ~crc;
}

static Crc32cPath paths[3];

static void find_paths(void) {
    int count = 0;
    if (has_crc()) {
        make_advance_tables();
        paths[count++] = (Crc32cPath){"arm64", crc32c_arm64};
    }
    paths[count++] = (Crc32cPath){"portable", crc32c_portable};
    paths[count] = (Crc32cPath){NULL, NULL};
}

#else

static Crc32cPath paths[2];

static void find_paths(void) {
    paths[0] = (Crc32cPath){"portable", crc32c_portable};
    paths[1] = (Crc32cPath){NULL, NULL};
}
#endif

Crc32cFunction crc32c = crc32c_portable;

const Crc32cPath *crc32c_paths(void) {
    if (!paths[0].name) {
        make_tables();
        find_paths();
    }
    return paths;
}

int crc32c_choose(const char *name) {
    for (const Crc32cPath *path = crc32c_paths(); path->name; path++)
        if (!name || strcmp(name, path->name) == 0) {
            crc32c = path->function;
            return 0;
        }
    return -1;
}
