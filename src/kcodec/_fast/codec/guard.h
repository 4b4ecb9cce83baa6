// SPDX-License-Identifier: Apache-2.0
// Protection of an object against a second use by another thread or by a reentrant call. An object that holds raw
// pointers while it releases the GIL, or while it runs code of the application, calls use_begin first, which fails
// during another use. With a GIL the flag is only accessed while the GIL is held; in a free-threaded build it is
// atomic. This file is included by the Cython module after Python.h.
#ifndef KCODEC_GUARD_H
#define KCODEC_GUARD_H

// Whether other threads can run during a function of this module that neither releases the GIL nor runs other code.
#ifdef Py_GIL_DISABLED
enum { THREADS_RUN_AT_ONCE = 1 };
#else
enum { THREADS_RUN_AT_ONCE = 0 };
#endif

// Returns 0 if the object is already in use.
static inline int use_begin(int *in_use) {
#ifdef Py_GIL_DISABLED
    return !__atomic_exchange_n(in_use, 1, __ATOMIC_ACQUIRE);
#else
    int before = *in_use;
    *in_use = 1;
    return !before;
#endif
}

static inline void use_end(int *in_use) {
#ifdef Py_GIL_DISABLED
    __atomic_store_n(in_use, 0, __ATOMIC_RELEASE);
#else
    *in_use = 0;
#endif
}

#endif
