# SPDX-License-Identifier: Apache-2.0
"""Slow work on the records of one partition, many at a time, and no record lost when the program is killed.

    python examples/parallel_partition.py -b localhost:9092 --group fetch --topic urls --workers 8

Records with the same key are worked on one after the other, as the same worker gets them; the others at the same time.
They end in any order. Committed is only the offset of the first record whose work has not ended: after a restart, the
records from there on are worked on again. The work must bear that, as in examples/upsert.py. docs/recipes.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Any

from kcodec import Record, TopicPartition
from kcodec.client import Consumer

log = logging.getLogger("parallel_partition")


def place_of(record: Record) -> TopicPartition:
    return TopicPartition(record.topic or "", record.partition or 0)


class Progress:
    """Records of one partition that were passed to a worker and are not committed yet, in the order of their offsets.

    begun: the offset after the last record that was passed to a worker; None before the first one.
    """

    def __init__(self) -> None:
        self.open: deque[tuple[int, Future[Any]]] = deque()
        self.begun: int | None = None

    def ended_up_to(self) -> int | None:
        """Forget the ended records in front. Return the offset after the last of them, None if the first one is open.
        Raise what the work of the first one raised."""
        after = None
        while self.open and self.open[0][1].done():
            offset, future = self.open[0]
            if after is not None and future.exception() is not None:
                break  # commit first what has ended before it
            future.result()
            self.open.popleft()
            after = offset + 1
        return after


class ParallelConsumer:
    """Reads a topic and works on its records in parallel.

    work:    what to do with a record. If it raises, the program ends, and the record comes again.
    workers: of one executor each; for work that needs the processor, make them ProcessPoolExecutor(1) and let
        `argument` turn a record into something that can be pickled.
    most:    records whose work has not ended, over all partitions; then the consumer pauses.
    options: of a Consumer, bootstrap_servers among them.
    """

    def __init__(
        self,
        group: str,
        topics: Iterable[str],
        work: Callable[[Any], object],
        workers: list[Executor],
        *,
        argument: Callable[[Record], Any] = lambda record: record,
        most: int = 1000,
        **options: Any,
    ) -> None:
        self.work, self.workers, self.argument, self.most = work, workers, argument, most
        self.progress: dict[TopicPartition, Progress] = {}
        self.is_complete = True  # whether the last step has ended without an exception
        self.consumer = Consumer(group_id=group, enable_auto_commit=False, auto_offset_reset="earliest", **options)
        self.consumer.subscribe(topics, on_assigned=self.take_over, on_revoked=self.give_up, on_lost=self.forget)

    def take_over(self, partitions: Iterable[TopicPartition]) -> None:
        self.progress.update({partition: Progress() for partition in partitions})

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """The next owner begins at the committed offset: let the work that has begun end, and commit it."""
        known = [self.progress[partition] for partition in partitions if partition in self.progress]
        open_work = [future for progress in known for _, future in progress.open]
        wait(open_work, timeout=10.0)
        try:
            self.commit()
        finally:
            self.forget(partitions)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Another member has these partitions already, and works on what is not committed."""
        for partition in partitions:
            self.progress.pop(partition, None)

    def step(self, timeout: float = 0.1) -> None:
        """Begin the work on what one poll returns, and commit what has ended. Without free capacity, poll only to stay
        in the group.

        After an exception, Ctrl-C for example, the next call goes back to the records whose work has not begun.
        """
        if not self.is_complete:
            self.go_back()
        is_full = sum(len(each.open) for each in self.progress.values()) >= self.most
        self.consumer.pause(*self.consumer.assignment()) if is_full else self.consumer.resume(*self.consumer.paused())
        self.is_complete = False
        for record in self.consumer.poll(timeout):
            self.begin(record)
        self.is_complete = True
        self.commit()

    def go_back(self) -> None:
        known_here = {one: each for one, each in self.progress.items() if one in self.consumer.assignment()}
        committed = self.consumer.committed(known_here)
        for partition, progress in known_here.items():
            if progress.begun is not None:
                self.consumer.seek(partition, progress.begun)
            elif (known := committed[partition]) is not None:
                self.consumer.seek(partition, known.offset)
            else:
                self.consumer.seek_to_beginning(partition)
        self.is_complete = True

    def begin(self, record: Record) -> None:
        """Give the record to the worker of its key."""
        lane = zlib.crc32(record.key if record.key is not None else b"%d" % record.offset) % len(self.workers)
        future = self.workers[lane].submit(self.work, self.argument(record))
        progress = self.progress[place_of(record)]
        progress.open.append((record.offset, future))
        progress.begun = record.offset + 1

    def commit(self) -> None:
        """Commit the offset of the first record of each partition that has not ended."""
        offsets: dict[TopicPartition, int] = {}
        try:
            for partition, progress in self.progress.items():
                after = progress.ended_up_to()
                if after is not None:  # where all has ended, the position is also after markers and aborted records
                    is_all = self.is_complete and not progress.open
                    offsets[partition] = self.consumer.position(partition) if is_all else after
        finally:
            if offsets:
                self.consumer.commit(offsets)

    def run(self, is_over: Callable[[], bool] = lambda: False) -> None:
        while not is_over():
            self.step()

    def close(self) -> None:
        """Let the work end, commit it, and leave the group."""
        try:
            self.give_up(list(self.progress))
        finally:
            self.consumer.close()
            for worker in self.workers:
                worker.shutdown(cancel_futures=True)


def fetch(record: Record) -> None:
    """An example of slow work."""
    time.sleep(0.1)
    log.info("%s: done", record.value)


def main() -> None:
    parser = argparse.ArgumentParser(description="work on the records of a topic in parallel")
    parser.add_argument("-b", "--bootstrap-server", required=True, metavar="HOST:PORT")
    parser.add_argument("--group", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--options", default="{}", metavar="JSON", help="more options of the consumer")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    workers: list[Executor] = [ThreadPoolExecutor(1) for _ in range(given.workers)]
    options = {"bootstrap_servers": given.bootstrap_server, **json.loads(given.options)}
    consumer = ParallelConsumer(given.group, [given.topic], fetch, workers, **options)
    try:
        consumer.run()
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
