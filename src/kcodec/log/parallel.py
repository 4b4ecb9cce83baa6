# SPDX-License-Identifier: Apache-2.0
"""Ordered results of several threads, and a stream of chunks that is produced that way.

Decoding runs without the GIL, except in the gzip and zstd packages. Byte ranges are small, so that memory is bounded by
the number of threads. The threads end with the iterator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import local
from typing import TypeVar

from kcodec._fast import Counts, DecodedRecords
from kcodec.errors import DecodeError, KcodecError
from kcodec.log.chunks import ByteRange, SequentialReader, StreamOptions, sum_of_counts
from kcodec.log.salvage import Loss
from kcodec.log.timeline import Verdict
from kcodec.log.windows import WindowBuffer

Given = TypeVar("Given")
Made = TypeVar("Made")


def in_order(make: Callable[[Given], Made], given: Iterable[Given], threads: int) -> Iterator[Made]:
    """Yield the results of `make` in the order of the items, computed on threads. `threads` + 1 of them are in progress
    at a time.

    With one thread, nothing is computed ahead. An error of `given` is raised after all results of earlier items.
    """
    if threads < 2:
        yield from map(make, given)
        return
    waiting, failure = iter(given), None
    running: deque[Future[Made]] = deque()
    executor = ThreadPoolExecutor(threads, thread_name_prefix="kcodec")
    try:
        while True:
            try:
                while failure is None and len(running) <= threads:
                    running.append(executor.submit(make, next(waiting)))
            except StopIteration:
                waiting = iter(())
            except KcodecError as error:
                failure = error
            if not running:
                break
            yield running.popleft().result()
        if failure is not None:
            raise failure
    finally:
        executor.shutdown(cancel_futures=True)


class ParallelReader:
    """Reads ranges in parallel. Counts and error are those of the chunks that were returned."""

    error: DecodeError | None

    def __init__(self, ranges: Sequence[ByteRange], verdict: Verdict, options: StreamOptions, threads: int) -> None:
        self.error = None
        self.is_ended = False
        self.losses: list[Loss] = []
        self.counts = Counts()
        self._ranges = ranges
        self._verdict = verdict
        self._options = options
        self._threads = threads
        start = verdict.log_start_offset
        #: Offset after the batches whose records were returned.
        self.position = start if options.start_offset is None else max(start, options.start_offset)
        self._own = local()  # a window buffer for each thread

    def chunks(self) -> Iterator[DecodedRecords]:
        """Return every chunk; to be called once."""
        for reader, decoded, failure in in_order(self._read, self._ranges, self._threads):
            self.counts = sum_of_counts(self.counts, reader.counts)
            self.error = self.error or reader.error
            self.losses += reader.losses
            yield from decoded
            self.position = max(self.position, reader.position)
            if failure is not None:
                raise failure
            if reader.is_ended:
                self.is_ended = True
                return

    def _read(self, each: ByteRange) -> tuple[SequentialReader, list[DecodedRecords], DecodeError | None]:
        """Read one range. Return its reader, its chunks, and the error that ended them."""
        if not hasattr(self._own, "buffer"):
            self._own.buffer = WindowBuffer()
        reader = SequentialReader([each], self._verdict, self._options, self._own.buffer)
        decoded: list[DecodedRecords] = []
        try:
            decoded.extend(reader.chunks())
        except DecodeError as error:
            return reader, decoded, error
        return reader, decoded, None
