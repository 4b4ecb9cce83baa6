# SPDX-License-Identifier: Apache-2.0
"""Send a thousand records in batches with asyncio, and print where each batch is stored."""

import asyncio
import sys

import pyarrow

from kcodec.client.aio import Producer


async def main(servers: str, topic: str) -> None:
    """Send a table."""
    async with Producer(bootstrap_servers=servers) as producer:
        table = pyarrow.table({"value": [f"Message {number}" for number in range(1000)]})
        for batch in await (await producer.send_arrow(topic, table)):
            print(f"{batch.records_count} records in partition {batch.partition}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
