// SPDX-License-Identifier: Apache-2.0
// Compressed streams. Input: codec, limit, place in the arena, then the stream. In addition to crashes:
//   - snappy and lz4 make what a slow decoder makes, and refuse what it refuses;
//   - with the right CRC and size, inflate.c makes of small gzip streams what a slow decoder makes;
//   - the bound of zstd's block headers holds for what the system's libzstd makes;
//   - an arena keeps what lay before, and gets the same bytes as a context's own memory;
//   - bytes after the stream that may be read change nothing.
#include "checks.h"
#include "crc32.h"
#include "decompress.h"
#include "harness.h"
#include "inflate.h"
#include "slow_codecs.h"
#include "zstd.h"

enum { OPTIONS = 3, AHEAD = 64, ROOM = 1 << 20, ROOMY = 1 << 18 };

typedef struct {
    int codec;
    int64_t limit, size;
    const uint8_t *data;
} Question;

static void check_arena(const Question *question, int64_t at, int result, const ByteSpan *plain,
                        const Fault *fault) {
    Decompressor *decompressor = decompressor_acquire(harness_package);
    Buffer arena = {0};
    const ByteSpan stored = {question->data, question->size, question->data + question->size};
    ByteSpan out;
    Fault other;
    REQUIRE(decompressor && buffer_acquire(&arena, (size_t)at + 1) == 0);
    memset(arena.data, 0xa5, (size_t)at);
    int again = decompress(decompressor, question->codec, &stored, question->limit, &arena, at, &out, &other);
    REQUIRE(again == result);
    for (int64_t byte = 0; byte < at; byte++) REQUIRE(arena.data[byte] == 0xa5);
    if (result) {
        REQUIRE(other.code == fault->code && other.found == fault->found && other.expected == fault->expected);
    } else {
        REQUIRE(out.length == plain->length && memcmp(out.data, plain->data, (size_t)out.length) == 0);
        REQUIRE(question->codec == COMPRESSION_NONE || out.data == arena.data + at);
    }
    buffer_release(&arena, 0);
    decompressor_release(decompressor);
}

static void check_against_slow(const Question *question, int result, const ByteSpan *plain) {
    static uint8_t out[ROOM];
    int64_t made = question->codec == COMPRESSION_SNAPPY
                       ? slow_snappy(question->data, question->size, out, question->limit)
                       : slow_lz4(question->data, question->size, out, question->limit);
    REQUIRE((made < 0) == (result != 0));
    if (!result) REQUIRE(made == plain->length && memcmp(out, plain->data, (size_t)made) == 0);
}

static void check_zstd(const Question *question, int result, const ByteSpan *plain) {
    ZstdBound bound;
    Fault fault;
    if (zstd_bound(question->data, question->size, &bound, &fault)) {
        REQUIRE(result != 0);
        return;
    }
    REQUIRE(bound.bound >= 0 && bound.frames >= 0);
    if (!result) REQUIRE(plain->length <= bound.bound);
    if (decompressor_zstd_way() != ZSTD_BY_SYSTEM || bound.bound > ROOM - ROOMY) return;
    static uint8_t out[ROOM];
    static void *context;
    if (!context) context = zstd_context(ZSTD_OF_SYSTEM);
    REQUIRE(context);
    int64_t made[2];
    for (int roomy = 0; roomy < 2; roomy++)
        made[roomy] = zstd_decompress(ZSTD_OF_SYSTEM, context, out, bound.bound + roomy * ROOMY, question->data,
                                      question->size, ROOM, &fault);
    REQUIRE(made[0] == made[1]);
}

static void check_gzip(const Question *question) {
    enum { TRAILER = 8 };
    static uint8_t expected[ROOM];
    static Inflater *inflater;
    int64_t header = gzip_header_size(question->data, question->size), used, length;
    if (!header || question->size > INFLATE_MOST_INPUT) return;
    if (!inflater) inflater = inflate_new();
    REQUIRE(inflater);
    int64_t made = slow_inflate(question->data + header, question->size - header, expected, question->limit, &used);
    int64_t size = (made < 0 ? question->size : header + used) + TRAILER;
    uint8_t *member = exact_copy(question->data, (size_t)size - TRAILER);
    uint32_t sums[2] = {made < 0 ? 0 : crc32_ieee(0, expected, (size_t)made), made < 0 ? 0 : (uint32_t)made};
    member = realloc(member, (size_t)size);
    REQUIRE(member);
    for (int at = 0; at < TRAILER; at++) member[size - TRAILER + at] = (uint8_t)(sums[at / 4] >> 8 * (at % 4));
    Buffer out = {0};
    int result = inflate_small(inflater, member, size, &out, 0, question->limit, &length);
    REQUIRE((made < 0) == (result != 0));
    if (!result) REQUIRE(made == length && memcmp(out.data, expected, (size_t)made) == 0);
    buffer_release(&out, out.capacity);
    exact_free(member, (size_t)size);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t input_size) {
    static const int codecs[5] = {COMPRESSION_SNAPPY, COMPRESSION_LZ4, COMPRESSION_ZSTD, COMPRESSION_GZIP, 7};
    harness_initialise();
    if (input_size < OPTIONS) return 0;
    size_t size = input_size - OPTIONS;
    uint8_t *data = exact_copy(input + OPTIONS, size);
    Question question = {codecs[input[0] % 5], (int64_t)1 << input[1] % 21, (int64_t)size, data};
    Decompressor *decompressor = decompressor_acquire(harness_package);
    const size_t ahead = input[2] % (AHEAD + 1);
    uint8_t *padded = malloc(size + AHEAD);
    REQUIRE(padded);
    if (size) memcpy(padded, data, size);
    memset(padded + size, 0x5a, AHEAD);
    uint8_t *followed = exact_copy(padded, size + ahead);
    free(padded);
    const ByteSpan stored = {followed, (int64_t)size, followed + size + ahead};
    ByteSpan plain;
    Fault fault;
    REQUIRE(decompressor);
    int result = decompress(decompressor, question.codec, &stored, question.limit, NULL, 0, &plain, &fault);
    if (!result) {
        REQUIRE(0 <= plain.length && plain.length <= question.limit);
        REQUIRE(plain.readable_end >= plain.data + plain.length);
        mix_bytes(0, plain.data, plain.readable_end - plain.data);  // a sanitizer sees whether it may be read
    }
    if (question.codec == COMPRESSION_SNAPPY || question.codec == COMPRESSION_LZ4)
        check_against_slow(&question, result, &plain);
    if (question.codec == COMPRESSION_ZSTD) check_zstd(&question, result, &plain);
    if (question.codec == COMPRESSION_GZIP) check_gzip(&question);
    check_arena(&question, input[2], result, &plain, &fault);
    decompressor_release(decompressor);
    harness_check_pool();
    exact_free(followed, size + ahead);
    exact_free(data, size);
    return 0;
}
