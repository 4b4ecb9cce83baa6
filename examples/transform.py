# SPDX-License-Identifier: Apache-2.0
"""Consume, transform, produce, exactly once:  python examples/transform.py localhost:9092 ID"""

import sys

from kcodec.client import GroupTransactSession


def transform(value: bytes | None) -> bytes | None:
    return value and value.upper()  # None is a tombstone


def main(servers: str, transactional_id: str) -> None:
    with GroupTransactSession(
        bootstrap_servers=servers,
        group_id="transform",
        transactional_id=transactional_id,  # one for each live instance, the same after a restart
        topics=["in"],
    ) as session:
        while True:
            with session.transaction() as txn:
                for record in txn.poll(timeout=1.0):
                    txn.send("out", transform(record.value), key=record.key, headers=record.headers)
            if txn.committed is False:
                print("a rebalance came in between: these records come again, here or elsewhere")


if __name__ == "__main__":
    main(*sys.argv[1:])
