# SPDX-License-Identifier: Apache-2.0
"""Print the records of topics as a member of a group, store each processed offset, and report assignments."""

import sys

from kcodec.client import Consumer


def main(servers: str, group_id: str, *topics: str) -> None:
    """Print records until Ctrl-C."""
    with Consumer(
        bootstrap_servers=servers, group_id=group_id, auto_offset_reset="earliest", enable_auto_offset_store=False
    ) as consumer:
        consumer.subscribe(topics, on_assigned=lambda partitions: print("Assignment:", sorted(partitions)))
        for record in consumer:
            print(f"{record.topic} [{record.partition}] at offset {record.offset} with key {record.key!r}:")
            print(record.value)
            consumer.store_offsets(record)


if __name__ == "__main__":
    main(*sys.argv[1:])
