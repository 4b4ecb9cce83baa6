# SPDX-License-Identifier: Apache-2.0
"""A segment file as it lies there: windows of whole batches, in order, and what is wrong with it on the way.

`dump` shows files, not what a consumer would get: nothing is filtered, a damaged batch is shown and passed over as far
as its own length can be believed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import kcodec
from kcodec.errors import DecodeError, KcodecError
from kcodec.limits import DEFAULT_LIMITS, DecodeLimits
from kcodec.log.segment import Tail, judge_cut, judge_damage
from kcodec.log.windows import SegmentFile

# One window is read, decoded and written by one thread while the next is on another.
WINDOW_BYTES = 1 << 20
LOWEST_OFFSET = -(1 << 63)
Made = TypeVar("Made")
Given = TypeVar("Given")


@dataclass
class Window:
    """Whole batches: bytes of a file from `position` on, and their headers (whose positions count from there)."""

    position: int
    data: memoryview
    batches: list[kcodec.RecordBatch]
    problem: DecodeError | None = None  # what stands behind the last of them, if that is damage


@dataclass
class Walk:
    """A walk over one file; `tail` and `problem` are known at its end."""

    path: str
    is_active: bool
    limits: DecodeLimits = DEFAULT_LIMITS
    tail: Tail | None = None
    problem: DecodeError | None = None
    size: int = 0
    done: int = 0
    _above: int = field(default=LOWEST_OFFSET, repr=False)

    def windows(self, start_offset: int | None = None, end_offset: int | None = None) -> Iterator[Window]:
        """The windows whose batches reach into [start_offset, end_offset), in order."""
        with SegmentFile(self.path, fresh=True) as file:
            self.size = file.size()
            wanted = WINDOW_BYTES
            while self.done < self.size:
                window = file.read(self.done, min(wanted, self.size - self.done))
                found, needed, failure = self._batches_of(window)
                if not found and failure is None and len(window) < min(needed, self.size - self.done):
                    wanted = max(needed, 2 * wanted)
                    continue
                wanted = WINDOW_BYTES
                size = found[-1].position + found[-1].size_in_bytes if found else 0
                position, self.done = self.done, self.done + size
                is_ended = bool(found) and end_offset is not None and found[0].base_offset >= end_offset
                if found and not is_ended and (start_offset is None or found[-1].last_offset >= start_offset):
                    yield Window(position, window[:size], found)
                self._above = max([self._above, *(batch.last_offset for batch in found)])
                if is_ended:
                    return
                if failure is not None or not found:
                    self._judge(file, failure)
                    return

    def _batches_of(self, window: memoryview) -> tuple[list[kcodec.RecordBatch], int, DecodeError | None]:
        """The whole batches at its beginning, how many bytes the next one needs, and what is wrong there."""
        batches = kcodec.batches(window, limits=self.limits)
        found: list[kcodec.RecordBatch] = []
        try:
            found.extend(batches)
            return found, batches.bytes_needed, None
        except DecodeError as error:
            return found, 0, error

    def _judge(self, file: SegmentFile, failure: DecodeError | None) -> None:
        """What the bytes are at which the walk ended: the torn tail of an active segment, or damage."""
        try:
            if failure is None:
                self.tail = judge_cut(file, self.done, self.size, self._above, self.limits)
            else:
                failure.position, failure.path = self.done, self.path
                self.tail = judge_damage(file, failure, self.size, self._above, self.limits, is_active=self.is_active)
        except DecodeError as error:
            self.problem = error


def in_order(make: Callable[[Given], Made], given: Iterable[Given], threads: int) -> Iterator[Made]:
    """make(each), on threads, in the order given; few are under way at a time, so that memory stays bounded.

    What `given` raises comes after all that was made of what it gave before.
    """
    if threads < 2:
        yield from map(make, given)
        return
    executor = ThreadPoolExecutor(threads, thread_name_prefix="kcodec")
    running: deque[Future[Made]] = deque()
    try:
        waiting, failure = iter(given), None
        while True:
            try:
                running.append(executor.submit(make, next(waiting)))
            except StopIteration:
                break
            except KcodecError as error:
                failure = error
                break
            if len(running) > threads:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
        if failure is not None:
            raise failure
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
