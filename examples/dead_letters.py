# SPDX-License-Identifier: Apache-2.0
"""Consume, process, produce, exactly once; a record that cannot be processed is tried again later, then put aside.

    python examples/dead_letters.py -b localhost:9092 --id worker-1 --from payments --to booked

A record whose processing fails goes to the topic `payments.retry`, and after --attempts failures to `payments.dead`.
Each transaction commits the offsets of the records that it has polled together with what it sends for them. Each record
is therefore in exactly one of the three topics, wherever the program is killed. docs/recipes.md.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable
from typing import Any

from kcodec import Record, TopicPartition
from kcodec.client import GroupTransactSession, SessionTransaction

log = logging.getLogger("dead_letters")

#: Headers of a record that has failed: its failures, when it is due (ms since 1970), its first place, the last error.
FAILURES, DUE, FROM, ERROR = OWN = ("retry.failures", "retry.due", "retry.from", "retry.error")
#: Characters of an error text in a header.
ERROR_CHARACTERS = 500


class Processor:
    """Processes the records of a topic and of its retry topic.

    process:  value -> value of the output; any Exception that it raises counts as a failure of the record.
    attempts: failures after which a record is put aside.
    delay:    seconds until a record is tried again.
    options:  of a GroupTransactSession, bootstrap_servers, group_id and transactional_id among them.
    """

    def __init__(
        self,
        source: str,
        target: str,
        process: Callable[[bytes | None], bytes | None],
        *,
        attempts: int = 3,
        delay: float = 10.0,
        **options: Any,
    ) -> None:
        self.target, self.retry, self.dead = target, f"{source}.retry", f"{source}.dead"
        self.process, self.attempts, self.delay = process, attempts, delay
        self.session = GroupTransactSession(topics=[source, self.retry], **options)

    def step(self, timeout: float = 1.0) -> bool | None:
        """One transaction. Return what became of it, as `committed` of a transaction does."""
        wait = 0.0
        with self.session.transaction() as txn:
            held: set[TopicPartition] = set()
            for record in txn.poll(timeout):
                place = TopicPartition(record.topic or "", record.partition or 0)
                early = int(self.own_headers(record).get(DUE, 0)) / 1000 - time.time()
                if place in held:
                    continue
                if early > 0:  # later records of this partition are due later: they all come again
                    held.add(place)
                    wait = max(wait, early)
                    txn.seek(place, record.offset)
                else:
                    self.handle(txn, record)
        if held:
            time.sleep(min(wait, timeout))
        return txn.committed

    def own_headers(self, record: Record) -> dict[str, bytes]:
        """Return what this program has written into the headers of a record. Those of the first topic are others'."""
        if record.topic != self.retry:
            return {}
        return {name: value or b"" for name, value in record.headers if name in OWN}

    def handle(self, txn: SessionTransaction, record: Record) -> None:
        """Send what a record comes to: a result, another attempt, or a dead letter."""
        try:
            value = self.process(record.value)
        except Exception as error:  # noqa: BLE001  any failure: the record must not stop those behind it
            self.put_aside(txn, record, error)
        else:
            headers = [(name, content) for name, content in record.headers if name not in OWN]
            txn.send(self.target, value, key=record.key, headers=headers)

    def put_aside(self, txn: SessionTransaction, record: Record, error: Exception) -> None:
        known = self.own_headers(record)
        failures = int(known.get(FAILURES, 0)) + 1
        place = known.get(FROM) or f"{record.topic}-{record.partition}@{record.offset}".encode()
        own = {
            FAILURES: b"%d" % failures,
            DUE: b"%d" % ((time.time() + self.delay) * 1000),
            FROM: place,
            ERROR: f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS].encode(errors="replace"),
        }
        headers = [(name, content) for name, content in record.headers if name not in OWN] + list(own.items())
        is_last = failures >= self.attempts
        log.warning("%s: failure %d, %s", place.decode(), failures, "put aside" if is_last else "tried again later")
        txn.send(self.dead if is_last else self.retry, record.value, key=record.key, headers=headers)

    def run(self, is_over: Callable[[], bool] = lambda: False) -> None:
        while not is_over():
            self.step()

    def close(self) -> None:
        self.session.close()


def book(value: bytes | None) -> bytes | None:
    """An example: amounts are numbers, and a tombstone stays one."""
    return None if value is None else b"%d" % int(value)


def main() -> None:
    parser = argparse.ArgumentParser(description="process the records of a topic; put aside those that fail")
    parser.add_argument("-b", "--bootstrap-server", required=True, metavar="HOST:PORT")
    parser.add_argument(
        "--id", required=True, help="transactional id: one for each live instance, kept after a restart"
    )
    parser.add_argument("--from", required=True, dest="source", metavar="TOPIC")
    parser.add_argument("--to", required=True, dest="target", metavar="TOPIC")
    parser.add_argument("--attempts", type=int, default=3, help="failures after which a record is put aside")
    parser.add_argument("--delay", type=float, default=10.0, help="seconds until a record is tried again")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    processor = Processor(
        given.source,
        given.target,
        book,
        attempts=given.attempts,
        delay=given.delay,
        bootstrap_servers=given.bootstrap_server,
        group_id=f"process-{given.source}",
        transactional_id=given.id,
        group_instance_id=given.id,  # after a restart it keeps its partitions
    )
    try:
        processor.run()
    finally:
        processor.close()


if __name__ == "__main__":
    main()
