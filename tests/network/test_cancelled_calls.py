# SPDX-License-Identifier: Apache-2.0
"""A task that is cancelled in the moment in which its call ends. The cancellation is not lost: Ctrl-C is one, too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from client_runners import Threaded, options

from kcodec.broker import Broker
from kcodec.client.aio import Delivery, Producer
from kcodec.flow import Flow, Signal, sleep, wait
from kcodec.network.asyncio_loop import AsyncioLoop
from kcodec.network.client import Client


@pytest.mark.parametrize("timeout", [None, 20.0])
def test_a_call_is_cancelled_as_its_flow_ends(timeout: float | None) -> None:
    signal = Signal()

    def flow() -> Flow[str]:
        yield from wait(signal)
        return "ended"

    async def program() -> None:
        io_loop = AsyncioLoop(Client(options("127.0.0.1:1")))
        task = asyncio.create_task(io_loop.run(flow(), timeout))
        await asyncio.sleep(0.05)
        signal.set()
        io_loop.turn()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await io_loop.close()

    asyncio.run(program())


def test_send_is_cancelled_as_it_finds_buffer_space(kcodec_broker: Broker) -> None:
    """The first acknowledgement makes space for a task that waits for it, and the callback of the record cancels it."""
    kcodec_broker.create_topic("orders", partitions=1)
    sizes: dict[str, Any] = {"buffer_memory": 40_000, "batch_size": 10_000}

    async def program() -> int:
        count = 0

        async def send_all() -> None:
            nonlocal count
            while True:
                delivery = await producer.send("orders", bytes(8_000))
                delivery.add_done_callback(ended)
                count += 1

        def ended(delivery: Delivery) -> None:
            sending.cancel()

        async with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, linger_ms=0, **sizes) as producer:
            await producer.send_and_wait("orders", b"first")
            sending = asyncio.create_task(send_all())
            done, _ = await asyncio.wait([sending], timeout=2.0)
            assert done and sending.cancelled()
        return count

    assert asyncio.run(program()) < 10


def test_an_interrupt_while_the_client_closes_is_raised() -> None:
    """The client refuses to cancel the flow then, which must not replace the interrupt."""
    runner = Threaded("127.0.0.1:1")

    def interrupt() -> None:
        runner.close()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.io_loop.run(sleep(30.0), check=interrupt)
