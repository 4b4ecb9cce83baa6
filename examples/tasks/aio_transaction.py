# SPDX-License-Identifier: Apache-2.0
"""Send a record in a transaction with asyncio. An exception in the block aborts the transaction."""

import asyncio
import sys

from kcodec.client.aio import Producer


async def main(servers: str, topic: str) -> None:
    """Send a record that no reader of committed records gets."""
    producer = Producer(bootstrap_servers=servers, transactional_id="task")
    async with producer, producer.transaction() as txn:
        print(await (await txn.send(topic, b"Never seen")))
        raise ValueError("the program failed")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
