# SPDX-License-Identifier: Apache-2.0
"""The same with whole tables, no Python object a record:  python examples/transform_arrow.py localhost:9092 ID"""

import sys

import pyarrow
import pyarrow.compute as compute

from kcodec.client import GroupTransactSession


def transform(table: pyarrow.Table) -> pyarrow.Table:
    upper = compute.utf8_upper(table["value"].cast("string")).cast("binary")
    return pyarrow.table({"key": table["key"], "value": upper})


def main(servers: str, transactional_id: str) -> None:
    with GroupTransactSession(
        bootstrap_servers=servers, group_id="transform", transactional_id=transactional_id, topics=["in"]
    ) as session:
        while True:
            with session.transaction() as txn:
                records = txn.poll_arrow(timeout=1.0)
                if len(records):
                    txn.send_arrow("out", transform(pyarrow.table(records)))


if __name__ == "__main__":
    main(*sys.argv[1:])
