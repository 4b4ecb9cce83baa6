# SPDX-License-Identifier: Apache-2.0
"""A conformance kit for bounded reads: does a reader find the end of a topic, and exactly the records before it?

    from kcodec.testing.bounded_reads import bounded_topics, check, table

    def read(bootstrap_servers, topic, isolation_level):       # a reader: yields (partition, offset, key, value)
        with kcodec.read_topic(topic, bootstrap_servers=bootstrap_servers, isolation_level=isolation_level) as records:
            yield from ((row.partition, row.offset, row.key, row.value) for row in records.rows())

    with bounded_topics("localhost:9092") as topics:           # topics that end in markers, gaps, open transactions
        print(table(check({"my reader": read}, "localhost:9092", topics)))

On the command line: ``python -m kcodec.testing.bounded_reads --list``. The page docs/bounded-reads.md explains why
readers do not find the end, and what the topics contain.
"""

from kcodec.testing.bounded_reads.checks import Reader, Result, check, check_one
from kcodec.testing.bounded_reads.output import as_json, table
from kcodec.testing.bounded_reads.rows import ISOLATION_LEVELS, Reached, Row
from kcodec.testing.bounded_reads.topics import CASES, BoundedTopic, bounded_topics

__all__ = [
    "CASES",
    "ISOLATION_LEVELS",
    "BoundedTopic",
    "Reached",
    "Reader",
    "Result",
    "Row",
    "as_json",
    "bounded_topics",
    "check",
    "check_one",
    "table",
]
