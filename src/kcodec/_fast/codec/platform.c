// SPDX-License-Identifier: Apache-2.0
#if defined(__linux__)
#define _GNU_SOURCE  // mremap, RTLD_DEFAULT
#elif defined(_WIN32)
#define _CRT_RAND_S  // rand_s
#define WIN32_LEAN_AND_MEAN
#endif
#include "platform.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

#ifdef _WIN32
#include <windows.h>

#include <malloc.h>
#include <process.h>

_Static_assert(sizeof(Lock) == sizeof(SRWLOCK), "a Lock holds an SRWLOCK");

void lock_take(Lock *lock) { AcquireSRWLockExclusive((SRWLOCK *)lock); }
void lock_give(Lock *lock) { ReleaseSRWLockExclusive((SRWLOCK *)lock); }

static unsigned __stdcall run_thread(void *argument) {
    Thread *thread = argument;
    thread->work(thread->argument);
    return 0;
}

int thread_start(Thread *thread, void *(*work)(void *), void *argument) {
    thread->work = work;
    thread->argument = argument;
    thread->handle = (void *)_beginthreadex(NULL, 0, run_thread, thread, 0, NULL);
    return thread->handle ? 0 : -1;
}

void thread_join(Thread *thread) {
    WaitForSingleObject(thread->handle, INFINITE);
    CloseHandle(thread->handle);
}

void around_fork(void (*before)(void), void (*after)(void)) {
    (void)before;
    (void)after;
}

void *aligned_get(size_t size) { return _aligned_malloc(size, ALIGNMENT); }
void aligned_drop(void *memory) { _aligned_free(memory); }

void *pages_get(size_t size) { return VirtualAlloc(NULL, size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE); }
void pages_drop(void *pages, size_t size) {
    (void)size;
    VirtualFree(pages, 0, MEM_RELEASE);
}

void allocator_trim(void) {}
void *library_open_zstd(void) { return NULL; }
void *library_open(const char *path) {
    (void)path;
    return NULL;
}
void *library_symbol(void *library, const char *name) {
    (void)library;
    (void)name;
    return NULL;
}
int library_is_shadowed(void *library, const char *name) {
    (void)library;
    (void)name;
    return 0;
}

static int system_random(void *out, size_t size) {
    unsigned value;
    for (size_t at = 0; at < size; at += sizeof value) {
        if (rand_s(&value)) return -1;
        memcpy((char *)out + at, &value, size - at < sizeof value ? size - at : sizeof value);
    }
    return 0;
}

#else
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __APPLE__
#include <sys/random.h>
#endif
#ifdef __GLIBC__
#include <malloc.h>
#endif

int thread_start(Thread *thread, void *(*work)(void *), void *argument) {
    return pthread_create(thread, NULL, work, argument);
}

void thread_join(Thread *thread) { pthread_join(*thread, NULL); }

void around_fork(void (*before)(void), void (*after)(void)) { pthread_atfork(before, after, after); }

void *aligned_get(size_t size) {
    void *memory;
    return posix_memalign(&memory, ALIGNMENT, size) ? NULL : memory;
}
void aligned_drop(void *memory) { free(memory); }

void *pages_get(size_t size) {
    void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}
void pages_drop(void *pages, size_t size) { munmap(pages, size); }

void allocator_trim(void) {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

#ifdef __APPLE__
#define LIBZSTD "libzstd.1.dylib"
#else
#define LIBZSTD "libzstd.so.1"
#endif

void *library_open_zstd(void) { return dlopen(LIBZSTD, RTLD_NOW | RTLD_LOCAL); }
void *library_open(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }
void *library_symbol(void *library, const char *name) { return dlsym(library, name); }
int library_is_shadowed(void *library, const char *name) {
    void *of_process = dlsym(RTLD_DEFAULT, name);
    return of_process && of_process != dlsym(library, name);
}

static int system_random(void *out, size_t size) { return getentropy(out, size); }

#endif

#if defined(__linux__)
void *pages_grow(void *pages, size_t old_size, size_t size) {  // remaps the pages without copying bytes
    void *moved = mremap(pages, old_size, size, MREMAP_MAYMOVE);
    return moved == MAP_FAILED ? NULL : moved;
}
#else
void *pages_grow(void *pages, size_t old_size, size_t size) {
    void *larger = pages_get(size);
    if (!larger) return NULL;
    memcpy(larger, pages, old_size < size ? old_size : size);
    pages_drop(pages, old_size);
    return larger;
}
#endif

void random_bytes(void *out, size_t size) {
    if (system_random(out, size) == 0) return;
    // Addresses differ from process to process.
    uint64_t value = (uint64_t)(uintptr_t)out ^ (uint64_t)(uintptr_t)&value;
    for (size_t at = 0; at < size; at++) ((uint8_t *)out)[at] = (uint8_t)(value >> 8 * (at % 8));
}
