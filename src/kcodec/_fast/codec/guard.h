// SPDX-License-Identifier: Apache-2.0
// One caller at a time, whatever threads and reentrant calls do. An object that holds raw pointers while it lets go of the
// GIL, or while it runs code that is not ours, begins its use first and refuses a second caller. With a GIL the flag is
// only touched while it is held; without one it is atomic. Included from the Cython module, so behind Python.h.
#ifndef KCODEC_GUARD_H
#define KCODEC_GUARD_H

// Whether other threads run while a function of this module does that neither lets go of the GIL nor runs other code.
#ifdef Py_GIL_DISABLED
enum { THREADS_RUN_AT_ONCE = 1 };
#else
enum { THREADS_RUN_AT_ONCE = 0 };
#endif

// 0: it is in use already.
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
