# SPDX-License-Identifier: Apache-2.0
"""Send a record over TLS with asyncio, and read it back."""

import asyncio
import sys

from kcodec import TopicPartition
from kcodec.client import ClientOptions
from kcodec.client.aio import Consumer, Producer


async def main(topic: str, options: ClientOptions) -> None:
    """Send a record, and read it where it is stored."""
    async with Producer(**options) as producer:
        sent = await producer.send_and_wait(topic, b"Secret", partition=0)
    async with Consumer(**options) as consumer:
        await consumer.assign([TopicPartition(topic, 0)])
        await consumer.seek(TopicPartition(topic, 0), sent.offset)
        print(sent, await consumer.poll_one(10.0))


if __name__ == "__main__":
    servers, topic, cafile = sys.argv[1:]
    asyncio.run(main(topic, {"bootstrap_servers": servers, "security_protocol": "SSL", "ssl_cafile": cafile}))
