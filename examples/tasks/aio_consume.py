# SPDX-License-Identifier: Apache-2.0
"""Print the values of a topic with asyncio, until the program is stopped."""

import asyncio
import sys

from kcodec.client.aio import Consumer


async def main(servers: str, topic: str) -> None:
    """Print what arrives."""
    async with Consumer(bootstrap_servers=servers, group_id="printer", auto_offset_reset="earliest") as consumer:
        await consumer.subscribe([topic])
        async for record in consumer:
            print(record.value)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
