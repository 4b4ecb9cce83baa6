# SPDX-License-Identifier: Apache-2.0
"""The result of a commit in the background, which any thread may wait for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from kcodec.network.callbacks import CALLBACK_ERRORS

log = logging.getLogger("kcodec.transactions")


class CommitResult:
    """The result of a commit in the background; the public classes wait for it.

    deadline:     Latest time at which it ends, by the monotonic clock.
    is_retrieved: Whether a caller or a callback has received the error.
    """

    __slots__ = ("_callbacks", "_check_wait", "_error", "_is_done", "_lock", "deadline", "is_retrieved", "name")

    def __init__(
        self, transactional_id: str, lock: AbstractContextManager[Any], check_wait: Callable[[], None]
    ) -> None:
        self.name = transactional_id
        self.deadline = float("inf")
        self.is_retrieved = False
        self._check_wait = check_wait
        self._lock = lock
        self._callbacks: list[Callable[[Any], object]] = []
        self._is_done = False
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Return whether the commit has ended, with success or failure."""
        return self._is_done

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call `callback` with this object when the commit has ended, or immediately if it has already ended.

        The callback runs on the producer's I/O thread (asyncio: in its event loop), or at once in the caller's thread
        if the commit has ended. It must be quick and must not block. Its exceptions are logged. A callback counts as
        retrieving the error. If Ctrl-C in asyncio interrupts a callback, it is called again.
        """
        self.is_retrieved = True
        if not self.observe(callback):
            callback(self)

    def observe(self, callback: Callable[[Any], object]) -> bool:
        """Register a callback without retrieving the error. Return False if the commit has ended."""
        with self._lock:
            if self._is_done:
                return False
            self._callbacks.append(callback)
            return True

    def forget(self, callback: Callable[[Any], object]) -> None:
        """Remove a callback of `observe`, unless the commit has ended."""
        with self._lock:
            if not self._is_done and callback in self._callbacks:
                self._callbacks.remove(callback)

    def check_wait(self) -> None:
        """Raise RuntimeError if the caller must not wait: on the I/O thread, or in another event loop."""
        self._check_wait()

    def outcome(self) -> None:
        """Raise the error of the commit, if any. The commit must have ended."""
        error = self.retrieved()
        if error is not None:
            raise error.with_traceback(None)

    def retrieved(self) -> BaseException | None:
        """Return the error of the commit, if any, which then counts as retrieved. The commit must have ended."""
        self.is_retrieved = True
        return self._error

    def finish(self, error: BaseException | None) -> None:
        """End the commit and call the callbacks. Only the manager calls this. If Ctrl-C in asyncio interrupts this, a
        second call keeps the outcome and continues with the callback that was interrupted."""
        with self._lock:
            if not self._is_done:
                self._is_done, self._error = True, error
        while self._callbacks:
            try:
                self._callbacks[0](self)
            except CALLBACK_ERRORS:
                log.exception("a callback of the commit of %r failed", self.name)
            with self._lock:
                del self._callbacks[:1]

    def forget_all(self, error: BaseException) -> None:
        """In a forked child: end the commit without calling callbacks, because the parent reports the error."""
        if not self._is_done:
            self._is_done, self._error = True, error
            self._callbacks = []
        self.is_retrieved = True

    @property
    def unretrieved(self) -> BaseException | None:
        """The error, if the commit has ended with an error that no caller has retrieved."""
        return None if self.is_retrieved else self._error

    def __repr__(self) -> str:
        state = "under way" if not self._is_done else "committed" if self._error is None else f"failed: {self._error}"
        return f"<{type(self).__name__} of {self.name!r}, {state}>"
