# SPDX-License-Identifier: Apache-2.0
"""A read_committed reader with kcodec's consumer, the counterpart of tests/java/TopicReader.java.

It prints each record of a topic as a line of partition, offset and value, separated by tabs. When its input ends, it
continues to the last stable offset, prints "done" and exits.

    python tests/support/copy_reader.py SERVERS TOPIC PARTITIONS
"""

from __future__ import annotations

import sys
import threading

from kcodec import TopicPartition
from kcodec.client import Consumer
from kcodec.errors import TransportError


def main() -> None:
    servers, topic, count = sys.argv[1:]
    partitions = [TopicPartition(topic, number) for number in range(int(count))]
    is_over = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        while not is_over.is_set():
            tell(consumer)
        ends = end_offsets(consumer, partitions)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            tell(consumer)
    print("done", flush=True)


def tell(consumer: Consumer) -> None:
    lines = [
        f"{record.partition}\t{record.offset}\t{(record.value or b'').decode()}\n" for record in consumer.poll(0.1)
    ]
    sys.stdout.write("".join(lines))
    sys.stdout.flush()


def end_offsets(consumer: Consumer, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the last stable offsets. Repeat the call while a broker is down."""
    while True:
        try:
            return consumer.end_offsets(partitions)
        except TransportError as error:
            print(error, file=sys.stderr)


if __name__ == "__main__":
    main()
