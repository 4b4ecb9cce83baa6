# SPDX-License-Identifier: Apache-2.0
"""The same with asyncio:  python examples/transform_asyncio.py localhost:9092 ID"""

import asyncio
import sys

from kcodec.client.aio import GroupTransactSession


async def transform(value: bytes | None) -> bytes | None:
    await asyncio.sleep(0)  # ask a service
    return value and value.upper()  # None is a tombstone


async def main(servers: str, transactional_id: str) -> None:
    async with GroupTransactSession(
        bootstrap_servers=servers, group_id="transform", transactional_id=transactional_id, topics=["in"]
    ) as session:
        while True:
            async with session.transaction() as txn:
                records = await txn.poll(timeout=1.0)
                values = await asyncio.gather(*(transform(record.value) for record in records))
                for record, value in zip(records, values, strict=True):
                    await txn.send("out", value, key=record.key)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
