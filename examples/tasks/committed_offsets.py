# SPDX-License-Identifier: Apache-2.0
"""Print the committed offset and the lag of a group in each partition of topics."""

import sys

from kcodec import TopicPartition
from kcodec.client import Consumer


def main(servers: str, group_id: str, *topics: str) -> None:
    """Print a table."""
    with Consumer(bootstrap_servers=servers, group_id=group_id) as consumer:
        print(f"{'Topic [Partition]':50}  {'Committed':>9}  {'Lag':>9}")
        for topic in topics:
            partitions = [TopicPartition(topic, number) for number in range(consumer.partitions_for(topic))]
            begin, end = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
            for partition, committed in consumer.committed(partitions).items():
                offset = begin[partition] if committed is None else committed.offset
                print(f"{partition!s:50}  {(committed and offset) or '-':>9}  {end[partition] - offset:>9}")


if __name__ == "__main__":
    main(*sys.argv[1:])
