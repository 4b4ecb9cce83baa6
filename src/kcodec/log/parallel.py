# SPDX-License-Identifier: Apache-2.0
"""The same stream of chunks, made by several threads: each decodes a range of whole batches, and they come in order.

Decoding runs without the GIL but for the calls of gzip and zstd packages. Ranges are small, so that memory stays
bounded by the number of threads. The threads live as long as the reading: none has to survive a fork.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import local

from kcodec._fast import Counts, DecodedRecords
from kcodec.errors import DecodeError
from kcodec.log.chunks import ReadOptions, SequentialReading, Stretch, sum_of_counts
from kcodec.log.salvage import Loss
from kcodec.log.timeline import Verdict
from kcodec.log.windows import WindowBuffer


class ParallelReading:
    """As SequentialReading; counts and error are those of what has been handed out."""

    error: DecodeError | None

    def __init__(self, stretches: Sequence[Stretch], verdict: Verdict, options: ReadOptions, threads: int) -> None:
        self.error = None
        self.is_ended = False
        self.losses: list[Loss] = []
        self.counts = Counts()
        self._stretches = stretches
        self._verdict = verdict
        self._options = options
        self._threads = threads
        self._own = local()  # a window buffer for each thread

    def chunks(self) -> Iterator[DecodedRecords]:
        """Every chunk; to be called once."""
        waiting = iter(self._stretches)
        running: deque[Future[_Read]] = deque()
        executor = ThreadPoolExecutor(self._threads, thread_name_prefix="kcodec")
        try:
            while True:
                while len(running) <= self._threads and (stretch := next(waiting, None)) is not None:
                    running.append(executor.submit(self._read, stretch))
                if not running:
                    return
                read = running.popleft().result()
                self.counts = sum_of_counts(self.counts, read.reading.counts)
                self.error = self.error or read.reading.error
                self.losses += read.reading.losses
                yield from read.decoded
                if read.failure is not None:
                    raise read.failure
                if read.reading.is_ended:
                    self.is_ended = True
                    return
        finally:
            executor.shutdown(cancel_futures=True)

    def _read(self, stretch: Stretch) -> _Read:
        if not hasattr(self._own, "buffer"):
            self._own.buffer = WindowBuffer()
        return _Read(SequentialReading([stretch], self._verdict, self._options, self._own.buffer))


class _Read:
    """One range, read by a thread: its chunks, and the error that ended it."""

    def __init__(self, reading: SequentialReading) -> None:
        self.reading = reading
        self.decoded: list[DecodedRecords] = []
        self.failure: DecodeError | None = None
        try:
            self.decoded.extend(self.reading.chunks())
        except DecodeError as error:
            self.failure = error
