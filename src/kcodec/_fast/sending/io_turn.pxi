# SPDX-License-Identifier: Apache-2.0
# IoTurn: the waits of an I/O thread. While it has urgent work, other threads that send pause for a moment.
#
# A thread that sends continuously releases the GIL only every 5 ms (sys.getswitchinterval), and the I/O thread needs
# the GIL for each step: a wake-up, a response, the next request. While the broker has requests to process, and may get
# more, this delay does no harm, and it makes batches larger. Otherwise the broker would be idle during each delay: at
# the beginning of a transaction, or if only a response permits the next request (Sender._take_turns).

cdef extern from *:
    """
    enum { KC_READ = 1, KC_WRITE = 2, KC_MOST_EVENTS = 64, KC_CANNOT_WAIT = -1 };
    typedef struct { int fd, kinds; } KcEvent;
    #ifdef _WIN32
    #include <windows.h>
    static int kc_wait(int fd, double seconds, KcEvent *found) {
        (void)fd; (void)seconds; (void)found;
        return KC_CANNOT_WAIT;
    }
    static void kc_nap(void) { Sleep(1); }
    static void kc_store(int *flag, int value) { *(volatile int *)flag = value; }
    static int kc_load(int *flag) { return *(volatile int *)flag; }
    #else
    #include <errno.h>
    #include <stdint.h>
    #include <time.h>
    // Both return the number of events of a selector, or -1 with errno, and wait for at most `limit`; NULL: no limit.
    #if defined(__APPLE__) || defined(__FreeBSD__) || defined(__OpenBSD__) || defined(__NetBSD__)
    #include <sys/types.h>
    #include <sys/event.h>
    static int kc_events(int fd, const struct timespec *limit, KcEvent *found) {
        struct kevent events[KC_MOST_EVENTS];
        int count = kevent(fd, NULL, 0, events, KC_MOST_EVENTS, limit);
        for (int at = 0; at < count; at++) {
            found[at] = (KcEvent){(int)events[at].ident, events[at].filter == EVFILT_WRITE ? KC_WRITE : KC_READ};
        }
        return count;
    }
    #elif defined(__linux__)
    #include <poll.h>
    #include <sys/epoll.h>
    // epoll_wait counts milliseconds, so ppoll waits first. An error of a socket counts as both kinds, as in Python's
    // selectors.
    static int kc_events(int fd, const struct timespec *limit, KcEvent *found) {
        struct epoll_event events[KC_MOST_EVENTS];
        struct pollfd one = {fd, POLLIN, 0};
        if (ppoll(&one, 1, limit, NULL) < 0) return -1;
        int count = one.revents ? epoll_wait(fd, events, KC_MOST_EVENTS, 0) : 0;
        for (int at = 0; at < count; at++) {
            uint32_t bits = events[at].events;
            int kinds = (bits & ~(uint32_t)EPOLLOUT ? KC_READ : 0) | (bits & ~(uint32_t)EPOLLIN ? KC_WRITE : 0);
            found[at] = (KcEvent){events[at].data.fd, kinds};
        }
        return count;
    }
    #else
    static int kc_events(int fd, const struct timespec *limit, KcEvent *found) {
        (void)fd; (void)limit; (void)found;
        return -1;
    }
    #endif
    // Waits for at most `seconds`; without a limit if it is negative.
    static int kc_wait(int fd, double seconds, KcEvent *found) {
        struct timespec limit = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
        errno = 0;
        int count = kc_events(fd, seconds < 0 ? NULL : &limit, found);
        return count >= 0 ? count : errno == EINTR ? 0 : KC_CANNOT_WAIT;
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
        KC_MOST_EVENTS
        KC_CANNOT_WAIT
    ctypedef struct KcEvent:
        int fd, kinds
    int kc_wait(int fd, double seconds, KcEvent *found) nogil
    void kc_nap() nogil
    void kc_store(int *flag, int value) nogil
    int kc_load(int *flag) nogil

# Maximum number of sleeps, of about 80 us each, of a thread that pauses for the I/O thread. The I/O thread usually
# needs less time, unless a callback blocks it.
cdef enum:
    _MOST_NAPS = 25
# Maximum time of one wait in seconds. The I/O thread then waits again.
cdef double _MOST_SECONDS = 1e6


@cython.final
cdef class IoTurn:
    """Whether the I/O thread of a client has urgent work. Internal.

    is_urgent: threads that send pause while the I/O thread works. The I/O thread sets it, and a thread that sends the
        first record to a topic.
    helpers: number of threads whose results the I/O thread waits for. It counts as working while there is one.
    cannot_wait: whether the I/O thread cannot wait with `wait`, so that the end of its work is unknown. No thread then
        pauses.
    """

    cdef bint urgent
    cdef public bint cannot_wait
    cdef int busy
    cdef public int helpers
    cdef unsigned long thread  # id of the thread that last called `wait`; 0 before the first call

    @property
    def is_urgent(self):
        """Whether threads that send pause."""
        return self.urgent

    @is_urgent.setter
    def is_urgent(self, bint value):
        if value != self.urgent:
            kc_store(&self.busy, value and not self.cannot_wait)
            self.urgent = value

    def wait(self, int fd, timeout):
        """On the I/O thread: wait until `fd`, that of a selector, has events, to the microsecond. Return the events, as
        pairs of a file descriptor and the bits of `selectors`, or an empty list if the time is over. Return None at
        once if the platform cannot wait for it. timeout: seconds; None: no limit."""
        cdef double seconds = -1.0 if timeout is None else min(max(<double>timeout, 0.0), _MOST_SECONDS)
        cdef KcEvent[KC_MOST_EVENTS] found
        cdef int count, at
        self.thread = PyThread_get_thread_ident()
        kc_store(&self.busy, self.helpers > 0)
        with nogil:
            count = kc_wait(fd, seconds, found)
            if count != KC_CANNOT_WAIT:
                kc_store(&self.busy, 1)
        if count == KC_CANNOT_WAIT:
            self.cannot_wait = True
            kc_store(&self.busy, 0)
            return None
        return [(found[at].fd, found[at].kinds) for at in range(count)]

    cdef inline void step_aside(self) noexcept:
        """If the I/O thread has urgent work, release the GIL until it waits again, for at most _MOST_NAPS sleeps."""
        if self.urgent and kc_load(&self.busy):
            self.nap()

    cdef void nap(self) noexcept:
        cdef int left = _MOST_NAPS
        if self.thread == PyThread_get_thread_ident():
            return  # this is the I/O thread, in a callback that sends
        with nogil:
            while left and kc_load(&self.busy):
                kc_nap()
                left -= 1
            if not left:
                kc_store(&self.busy, 0)  # no thread pauses again before the next wait of the I/O thread

    def __reduce__(self):
        raise TypeError("the turns of an I/O thread cannot be pickled")
