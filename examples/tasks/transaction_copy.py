# SPDX-License-Identifier: Apache-2.0
"""Encode the records of a topic as Base64 into another one, exactly once, up to the end of the input."""

import sys
from base64 import b64encode

from kcodec.client import GroupTransactSession


def main(servers: str, group_id: str, source: str, target: str) -> None:
    """Copy until nothing arrives for three seconds."""
    with GroupTransactSession(
        bootstrap_servers=servers, group_id=group_id, transactional_id=group_id, topics=[source]
    ) as session:
        is_done = False
        while not is_done:
            with session.transaction() as txn:
                records = txn.poll(3.0)
                for record in records:
                    txn.send(target, b64encode(record.value or b""), key=b64encode(record.key or b""))
            is_done = not records and txn.committed is True
            print(f"{len(records)} records, committed: {txn.committed}")


if __name__ == "__main__":
    main(*sys.argv[1:])
