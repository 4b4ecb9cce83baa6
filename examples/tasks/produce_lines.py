# SPDX-License-Identifier: Apache-2.0
"""Send each line of the standard input as a record, and report the outcome of each."""

import sys

from kcodec.client import Producer, RecordMetadata


def report(metadata: RecordMetadata | None, error: BaseException | None) -> None:
    """Print where a record is stored, or why it failed."""
    print(f"failed: {error}" if metadata is None else f"{metadata.topic}-{metadata.partition}: {metadata.offset}")


def main(servers: str, topic: str) -> None:
    """Send the lines."""
    with Producer(bootstrap_servers=servers) as producer:
        for line in sys.stdin:
            producer.send(topic, line.rstrip().encode(), on_delivery=report)


if __name__ == "__main__":
    main(*sys.argv[1:])
