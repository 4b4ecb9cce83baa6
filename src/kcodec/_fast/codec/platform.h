// SPDX-License-Identifier: Apache-2.0
// What systems do differently: locks, threads, fork, memory by the page, libraries at run time, randomness. POSIX and
// Windows. The compiler is gcc or clang on all of them (on Windows clang-cl or mingw's gcc): the core uses their builtins.
#ifndef KCODEC_PLATFORM_H
#define KCODEC_PLATFORM_H

#include <stddef.h>

#ifdef _WIN32

typedef struct { void *opaque; } Lock;  // an SRWLOCK, whose first state is zero
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

// The thread is not moved while it runs. Non-zero: none was started.
int thread_start(Thread *thread, void *(*work)(void *), void *argument);
void thread_join(Thread *thread);

// Calls `before` ahead of each fork, `after` on both sides behind it; nothing where there is no fork.
void around_fork(void (*before)(void), void (*after)(void));

// Aligned to 64 bytes; NULL: no memory.
void *aligned_get(size_t size);
void aligned_drop(void *memory);

// Pages of zeros that cost nothing until they are touched. pages_grow keeps what they hold, without a copy where the
// system can; NULL: no memory, the old ones are as they were.
void *pages_get(size_t size);
void *pages_grow(void *pages, size_t old_size, size_t size);
void pages_drop(void *pages, size_t size);

// Makes the allocator give back to the system what is free, where it supports that.
void allocator_trim(void);

// A library of the system; NULL if it is missing. Windows looks for libraries in folders that others may write to: there the
// answer is always NULL.
void *library_open_zstd(void);
void *library_open(const char *path);
void *library_symbol(void *library, const char *name);
// Whether the process has another symbol of this name that all libraries see, and that this one would call, too.
int library_is_shadowed(void *library, const char *name);

// Unpredictable bytes; at least such as differ from process to process.
void random_bytes(void *out, size_t size);

#endif
