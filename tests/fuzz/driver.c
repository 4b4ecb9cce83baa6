// SPDX-License-Identifier: Apache-2.0
// A coverage-guided driver for the targets that needs gcc alone (-fsanitize-coverage=trace-pc,trace-cmp), and replay.
//
//   target --replay PATH...                                       every file, or every file of a folder, once
//   target --seconds N --seed N --longest N --finds FOLDER PATH...  changes inputs at random, keeps those that reach
//                                                                  something new, and writes them into FOLDER
//   target --shrink FOLDER PATH...                                 copies a small set that reaches all that PATH reach
//
// The input at work lies in FOLDER/at-work, which is left where a sanitizer or a check ends the process. An input that
// takes ten seconds is a hang and ends it, too.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "checks.h"
#include "mutate.h"

enum { MAP = 1 << 16, HANG_SECONDS = 10, PATH_LENGTH = 4096 };

static uint8_t hits[MAP], seen[MAP];
static _Thread_local uintptr_t before;
static uint8_t *at_work;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) {
    uintptr_t here = (uintptr_t)__builtin_return_address(0);
    uintptr_t place = (here ^ before) * 0x9e3779b97f4a7c15ull >> 48;
    before = here << 1;
    hits[place] += hits[place] != 255;
}

// How often, in steps: once, twice, three times, 4.., 8.., 16.., 32.., 128..; a bit each.
static uint8_t step_of(uint8_t count) {
    if (count <= 3) return (uint8_t)(count ? 1 << (count - 1) : 0);
    return (uint8_t)(count < 8 ? 8 : count < 16 ? 16 : count < 32 ? 32 : count < 128 ? 64 : 128);
}

static void run_one(const uint8_t *data, size_t size) {
    memset(hits, 0, sizeof hits);
    before = 0;
    alarm(HANG_SECONDS);
    LLVMFuzzerTestOneInput(data, size);
    alarm(0);
}

// Whether the last run reached what none before it did; `seen` then knows it. `count`: how many places.
static int is_new(int *count) {
    int found = 0;
    for (int place = 0; place < MAP; place++) {
        if (!hits[place]) continue;
        uint8_t step = step_of(hits[place]);
        *count += !seen[place];
        if (seen[place] & step) continue;
        seen[place] |= step;
        found = 1;
    }
    return found;
}

static void on_alarm(int signal) {
    static const char text[] = "hang: ten seconds in one input\n";
    (void)signal;
    if (write(2, text, sizeof text - 1) < 0) _exit(3);
    abort();
}

// ------------------------------------------------------------------------------------------------------ files

static Corpus corpus;

static void read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    REQUIRE(file);
    static uint8_t bytes[LONGEST_INPUT];
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    corpus_add(&corpus, bytes, size);
}

static void read_path(const char *path) {
    struct stat about;
    REQUIRE(stat(path, &about) == 0);
    if (!S_ISDIR(about.st_mode)) {
        read_file(path);
        return;
    }
    struct dirent **names;
    int count = scandir(path, &names, NULL, alphasort);
    REQUIRE(count >= 0);
    for (int at = 0; at < count; at++) {
        char below[PATH_LENGTH];
        snprintf(below, sizeof below, "%s/%s", path, names[at]->d_name);
        REQUIRE(stat(below, &about) == 0);
        if (S_ISREG(about.st_mode)) read_file(below);
        free(names[at]);
    }
    free(names);
}

static void write_find(const char *folder, const uint8_t *data, size_t size) {
    char path[PATH_LENGTH];
    snprintf(path, sizeof path, "%s/%016llx", folder, (unsigned long long)mix_bytes(0, data, (int64_t)size));
    FILE *file = fopen(path, "wb");
    REQUIRE(file && fwrite(data, 1, size, file) == size);
    fclose(file);
}

// The input is there before it runs: its size in the first four bytes, then it.
static void open_at_work(const char *folder) {
    char path[PATH_LENGTH];
    snprintf(path, sizeof path, "%s/at-work", folder);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    REQUIRE(file >= 0 && ftruncate(file, LONGEST_INPUT + 4) == 0);
    at_work = mmap(NULL, LONGEST_INPUT + 4, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    REQUIRE(at_work != MAP_FAILED);
    close(file);
}

static void run_at_work(const uint8_t *data, size_t size) {
    uint32_t length = (uint32_t)size;
    memcpy(at_work, &length, 4);
    memcpy(at_work + 4, data, size);
    run_one(data, size);
}

// ------------------------------------------------------------------------------------------------------ modes

static int replay(void) {
    for (int at = 0; at < corpus.count; at++) run_one(corpus.inputs[at].data, corpus.inputs[at].size);
    printf("%d inputs replayed\n", corpus.count);
    return 0;
}

static int by_size(const void *a, const void *b) {
    const Input *left = a, *right = b;
    return left->size < right->size ? -1 : left->size > right->size;
}

static int shrink(const char *folder) {
    int kept = 0, places = 0;
    qsort(corpus.inputs, (size_t)corpus.count, sizeof(Input), by_size);
    for (int at = 0; at < corpus.count; at++) {
        int before_it = places;
        run_one(corpus.inputs[at].data, corpus.inputs[at].size);
        is_new(&places);
        if (places == before_it) continue;  // that it went round a loop more often is not worth a file
        write_find(folder, corpus.inputs[at].data, corpus.inputs[at].size);
        kept++;
    }
    printf("%d of %d inputs kept, %d places\n", kept, corpus.count, places);
    return 0;
}

static int hunt(const char *folder, int seconds, uint64_t seed, size_t longest) {
    static uint8_t bytes[LONGEST_INPUT];
    int places = 0, finds = 0;
    time_t end = time(NULL) + seconds;
    long long runs = 0;
    open_at_work(folder);
    for (int at = 0; at < corpus.count; at++, runs++) {
        run_at_work(corpus.inputs[at].data, corpus.inputs[at].size);
        is_new(&places);
    }
    if (!corpus.count) corpus_add(&corpus, bytes, 64);
    mutate_seed(seed);
    while (time(NULL) < end) {
        size_t size = mutate(&corpus, bytes, longest);
        run_at_work(bytes, size);
        runs++;
        if (!is_new(&places)) continue;
        corpus_add(&corpus, bytes, size);
        write_find(folder, bytes, size);
        finds++;
    }
    printf("%lld inputs, %d of them new, %d places reached, nothing found\n", runs, finds, places);
    return 0;
}

int main(int count, char **words) {
    const char *folder = NULL, *mode = "--replay";
    long long seconds = 0, seed = 1, longest = 4096;
    signal(SIGALRM, on_alarm);
    for (int at = 1; at < count; at++) {
        int has_value = at + 1 < count;
        if (strcmp(words[at], "--replay") == 0) continue;
        if (words[at][0] != '-') read_path(words[at]);
        else if (has_value && strcmp(words[at], "--seconds") == 0) seconds = atoll(words[++at]);
        else if (has_value && strcmp(words[at], "--seed") == 0) seed = atoll(words[++at]);
        else if (has_value && strcmp(words[at], "--longest") == 0) longest = atoll(words[++at]);
        else if (has_value && strcmp(words[at], "--finds") == 0) mode = "--finds", folder = words[++at];
        else if (has_value && strcmp(words[at], "--shrink") == 0) mode = "--shrink", folder = words[++at];
        else return fprintf(stderr, "what is %s?\n", words[at]), 2;
    }
    if (strcmp(mode, "--shrink") == 0) return shrink(folder);
    if (strcmp(mode, "--finds") == 0)
        return hunt(folder, (int)seconds, (uint64_t)seed, longest < LONGEST_INPUT ? (size_t)longest : LONGEST_INPUT);
    return replay();
}
