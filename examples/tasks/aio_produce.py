# SPDX-License-Identifier: Apache-2.0
"""Send one record with asyncio, and wait until it is stored. The producer is idempotent by default."""

import asyncio
import sys

from kcodec.client.aio import Producer


async def main(servers: str, topic: str) -> None:
    """Send a record."""
    async with Producer(bootstrap_servers=servers) as producer:
        print(await producer.send_and_wait(topic, b"Hello"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
