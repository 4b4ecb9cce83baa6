# SPDX-License-Identifier: Apache-2.0
# IoTurn: the waits of an I/O thread, and threads that send step aside while it has urgent work.
#
# A thread that only sends gives up the interpreter lock every 5 ms (sys.getswitchinterval), and the I/O thread needs it
# for each step: a wake-up, a response, the next request. With requests in flight this does no harm, and larger batches
# are cheaper. At the begin of a transaction nothing is in flight, and the broker is idle during each of these waits.

cdef extern from *:
    """
    enum { KC_TIMED_OUT, KC_HAPPENED, KC_CANNOT_WAIT };
    #ifdef _WIN32
    #include <windows.h>
    static int kc_wait(int fd, double seconds) { (void)fd; (void)seconds; return KC_CANNOT_WAIT; }
    static void kc_nap(void) { Sleep(1); }
    static void kc_store(int *flag, int value) { *(volatile int *)flag = value; }
    static int kc_load(int *flag) { return *(volatile int *)flag; }
    #else
    #include <errno.h>
    #include <time.h>
    #if defined(__APPLE__) || defined(__FreeBSD__) || defined(__OpenBSD__) || defined(__NetBSD__)
    // The selector is a kqueue, and poll() of macOS takes none (POLLNVAL). Its events are level-triggered: the selector
    // finds the one that is found here again.
    #include <sys/types.h>
    #include <sys/event.h>
    static int kc_found(int fd, const struct timespec *limit) {
        struct kevent one;
        return kevent(fd, NULL, 0, &one, 1, limit);
    }
    #else
    #include <poll.h>
    static int kc_found(int fd, const struct timespec *limit) {
        struct pollfd one = {fd, POLLIN, 0};
    #ifdef __linux__
        int found = ppoll(&one, 1, limit, NULL);
    #else
        int found = poll(&one, 1, limit ? (int)(limit->tv_sec * 1000 + (limit->tv_nsec + 999999) / 1000000) : -1);
    #endif
        if (found > 0 && one.revents & POLLNVAL) {
            errno = EBADF;
            return -1;
        }
        return found;
    }
    #endif
    // At most `seconds`; below 0: no limit.
    static int kc_wait(int fd, double seconds) {
        struct timespec limit = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
        int found = kc_found(fd, seconds < 0 ? NULL : &limit);
        if (found < 0) return errno == EINTR ? KC_HAPPENED : KC_CANNOT_WAIT;
        return found ? KC_HAPPENED : KC_TIMED_OUT;
    }
    static void kc_nap(void) {
        struct timespec pause = {0, 20000};
        nanosleep(&pause, NULL);
    }
    static void kc_store(int *flag, int value) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); }
    static int kc_load(int *flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }
    #endif
    """
    enum:
        KC_TIMED_OUT
        KC_HAPPENED
        KC_CANNOT_WAIT
    int kc_wait(int fd, double seconds) nogil
    void kc_nap() nogil
    void kc_store(int *flag, int value) nogil
    int kc_load(int *flag) nogil

# Naps of a thread that steps aside, about 80 us each: a turn of the I/O thread is shorter, unless a callback blocks.
cdef enum:
    _MOST_NAPS = 25
# A longer wait is cut, which is an event that no reader has; no timer is so far away.
cdef double _MOST_SECONDS = 1e6


@cython.final
cdef class IoTurn:
    """Whether the I/O thread of a client has urgent work. Internal.

    is_urgent: threads that send step aside while the I/O thread works. Only the I/O thread sets it.
    """

    cdef bint urgent, cannot_wait
    cdef int busy
    cdef unsigned long thread  # that of the last `wait`; 0 before

    @property
    def is_urgent(self):
        """Whether threads that send step aside."""
        return self.urgent

    @is_urgent.setter
    def is_urgent(self, bint value):
        if value != self.urgent:
            kc_store(&self.busy, value and not self.cannot_wait)
            self.urgent = value

    def wait(self, int fd, timeout):
        """On the I/O thread: wait until `fd`, that of a selector, has events, to the microsecond. Return False if the
        time is over without one, and None at once if the platform cannot wait for it. timeout: seconds; None: no
        limit."""
        cdef double seconds = -1.0 if timeout is None else min(max(<double>timeout, 0.0), _MOST_SECONDS)
        cdef int outcome
        self.thread = PyThread_get_thread_ident()
        kc_store(&self.busy, 0)
        with nogil:
            outcome = kc_wait(fd, seconds)
            if outcome != KC_CANNOT_WAIT:
                kc_store(&self.busy, 1)
        if outcome == KC_CANNOT_WAIT:
            self.cannot_wait = True  # no thread steps aside for a turn that does not end with a wait
            return None
        return outcome == KC_HAPPENED

    cdef inline void step_aside(self) noexcept:
        """Give up the interpreter lock until the I/O thread has ended its turn, or for too long."""
        if self.urgent and kc_load(&self.busy):
            self.nap()

    cdef void nap(self) noexcept:
        cdef int left = _MOST_NAPS
        if self.thread == PyThread_get_thread_ident():
            return  # a callback that sends: the I/O thread would wait for itself
        with nogil:
            while left and kc_load(&self.busy):
                kc_nap()
                left -= 1
            if not left:
                kc_store(&self.busy, 0)  # until its next turn it is not waited for again

    def __reduce__(self):
        raise TypeError("the turns of an I/O thread cannot be pickled")
