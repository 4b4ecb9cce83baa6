// SPDX-License-Identifier: Apache-2.0
// Functions that depend on the operating system, for POSIX and Windows: locks, threads, fork, memory pages, libraries
// loaded at run time, random bytes. The compiler must be gcc or clang (on Windows clang-cl or mingw's gcc), because the
// core uses their builtins.
#ifndef KCODEC_PLATFORM_H
#define KCODEC_PLATFORM_H

#include <stddef.h>

#ifdef _WIN32

typedef struct { void *opaque; } Lock;  // an SRWLOCK, whose initial state is zero
#define LOCK_INITIAL {NULL}
void lock_take(Lock *lock);
void lock_give(Lock *lock);

typedef struct {
    void *handle;
    void *(*work)(void *);
    void *argument;
} Thread;

#else
#include <pthread.h>

typedef pthread_mutex_t Lock;
#define LOCK_INITIAL PTHREAD_MUTEX_INITIALIZER
static inline void lock_take(Lock *lock) { pthread_mutex_lock(lock); }
static inline void lock_give(Lock *lock) { pthread_mutex_unlock(lock); }

typedef pthread_t Thread;

#endif

// Starts a thread. `thread` must not be moved while the thread runs. Returns non-zero if no thread was started.
int thread_start(Thread *thread, void *(*work)(void *), void *argument);
void thread_join(Thread *thread);

// Registers functions to be called before each fork, and after it in both processes. Does nothing on systems without
// fork.
void around_fork(void (*before)(void), void (*after)(void));

// Returns memory aligned to 64 bytes, or NULL if it cannot be allocated.
void *aligned_get(size_t size);
void aligned_drop(void *memory);

// pages_get returns pages of zeros, which use no memory until they are touched. pages_grow keeps their contents,
// without a copy if the system supports that. It returns NULL if there is no memory; the old pages are then unchanged.
void *pages_get(size_t size);
void *pages_grow(void *pages, size_t old_size, size_t size);
void pages_drop(void *pages, size_t size);

// Makes the allocator return free memory to the system, if it supports that.
void allocator_trim(void);

// Returns the system's libzstd, or NULL if it is missing. It is always NULL on Windows, which searches for libraries in
// folders that other users may be able to write to.
void *library_open_zstd(void);
void *library_open(const char *path);
void *library_symbol(void *library, const char *name);
// Returns whether the process exports another symbol of this name globally, which functions of this library would call,
// too.
int library_is_shadowed(void *library, const char *name);

// Fills `out` with unpredictable bytes. If the system has no random source, they only differ from process to process.
void random_bytes(void *out, size_t size);

#endif
