# SPDX-License-Identifier: Apache-2.0
"""Create a topic, send five records to it and read them, with each client in a `with` block."""

import sys

from kcodec.client import Admin, Consumer, NewTopic, Producer


def main(servers: str, topic: str) -> None:
    """Use an Admin, a Producer and a Consumer."""
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
        print(f"created {topic}")
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(5):
            producer.send(
                topic,
                f"message {number}".encode(),
                key=f"key-{number}".encode(),
                on_delivery=lambda metadata, error: print(error or metadata),
            )
    with Consumer(
        bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest", value_deserializer=bytes.decode
    ) as consumer:
        consumer.subscribe([topic])
        for _ in range(5):
            print(consumer.poll_one(10.0))


if __name__ == "__main__":
    main(*sys.argv[1:])
