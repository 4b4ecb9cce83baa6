# SPDX-License-Identifier: Apache-2.0
# IoTurn: lets threads that send step aside while the I/O thread has urgent work.
#
# A thread that only sends gives up the interpreter lock every 5 ms (sys.getswitchinterval), and the I/O thread needs it
# for each step: a wake-up, a response, the next request. With requests in flight this does no harm, and larger batches
# are cheaper. At the begin of a transaction nothing is in flight, and the broker is idle during each of these waits.

cdef extern from *:
    """
    #ifdef _WIN32
    #include <windows.h>
    #define KC_CAN_POLL 0
    static int kc_poll(int fd, int ms) { (void)fd; (void)ms; return -1; }
    static void kc_nap(void) { Sleep(1); }
    static void kc_store(int *flag, int value) { *(volatile int *)flag = value; }
    static int kc_load(int *flag) { return *(volatile int *)flag; }
    #else
    #include <poll.h>
    #include <time.h>
    #define KC_CAN_POLL 1
    static int kc_poll(int fd, int ms) {
        struct pollfd one = {fd, POLLIN, 0};
        return poll(&one, 1, ms);
    }
    static void kc_nap(void) {
        struct timespec pause = {0, 20000};
        nanosleep(&pause, NULL);
    }
    static void kc_store(int *flag, int value) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); }
    static int kc_load(int *flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }
    #endif
    """
    const int KC_CAN_POLL
    int kc_poll(int fd, int ms) nogil
    void kc_nap() nogil
    void kc_store(int *flag, int value) nogil
    int kc_load(int *flag) nogil

# Naps of a thread that steps aside, about 80 us each: a turn of the I/O thread is shorter, unless a callback blocks.
cdef enum:
    _MOST_NAPS = 25
    _MOST_MILLISECONDS = 2147483647


@cython.final
cdef class IoTurn:
    """Whether the I/O thread of a client has urgent work. Internal.

    is_urgent: threads that send step aside while the I/O thread works. Only the I/O thread sets it.
    """

    cdef bint urgent
    cdef int busy
    cdef unsigned long thread  # that of the last `wait`; 0 before

    @property
    def is_urgent(self):
        """Whether threads that send step aside."""
        return self.urgent

    @is_urgent.setter
    def is_urgent(self, bint value):
        if value != self.urgent:
            kc_store(&self.busy, value)
            self.urgent = value

    def wait(self, int fd, timeout):
        """On the I/O thread: wait until `fd`, that of a selector, has events. Return False at once if the platform
        cannot wait for it. timeout: seconds; None: no limit."""
        cdef int milliseconds = -1
        cdef double seconds
        if not KC_CAN_POLL:
            return False
        if timeout is not None:
            seconds = timeout
            milliseconds = <int>min(seconds * 1000.0 + 0.999, <double>_MOST_MILLISECONDS)
        self.thread = PyThread_get_thread_ident()
        kc_store(&self.busy, 0)
        with nogil:
            kc_poll(fd, milliseconds)
            kc_store(&self.busy, 1)
        return True

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
