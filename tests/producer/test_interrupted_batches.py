# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in asyncio in the middle of the code that ends batches: none stays in the buffer, and all callbacks run."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable

from interrupted_calls import interrupted

from kcodec.broker import Broker
from kcodec.client import aio
from kcodec.errors import DeliveryErrors, TransportError
from kcodec.producer.batch import BatchOutcome, ProducerBatch
from kcodec.producer.sender import Sender


def interrupt_everywhere(
    kcodec_broker: Broker, end: Callable[[Sender, list[ProducerBatch]], object], *, are_taken: bool
) -> None:
    """Interrupt `end` at each of its points, when there are two batches, which are in their queues unless `are_taken`.
    Then let all records fail, as a crash does, and check that nothing is left."""
    topic = kcodec_broker.create_topic(partitions=2)

    async def main(at: int) -> bool:
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, linger_ms=60_000) as producer:
            await producer.partitions_for(topic)
            calls: list[object] = []
            deliveries = [await producer.send(topic, b"value", partition=number) for number in range(2)]
            for delivery in deliveries:
                delivery.add_done_callback(calls.append)
            accumulator, sender = producer._core.accumulator, producer._core.sender
            batches = list(accumulator.unfinished)
            if are_taken:
                with accumulator.lock:
                    for queue in list(accumulator.active):
                        accumulator.take(queue, queue.batches[0])
            is_interrupted = interrupted(lambda: end(sender, batches), at)
            assert all(queue.batches for queue in accumulator.active), f"at {at}: an empty queue is active"
            is_woken: list[bool] = []
            sender.progress.add_waiter(lambda: is_woken.append(True))
            sender.fail_all(lambda _: TransportError("the producer has crashed"))
            assert sorted(calls, key=id) == sorted(deliveries, key=id), f"at {at}"
            assert not accumulator.unfinished and not accumulator.active and is_woken, f"at {at}"
            assert accumulator.memory.free == accumulator.settings.buffer_memory, f"at {at}"
            return is_interrupted

    at = next(at for at in itertools.count() if not asyncio.run(main(at)))
    assert at > 20


def test_an_interrupted_abort_leaves_no_batch_in_the_buffer(kcodec_broker: Broker) -> None:
    def abort(sender: Sender, _: list[ProducerBatch]) -> None:
        sender.fail_buffered(lambda _: TransportError("aborted"))

    interrupt_everywhere(kcodec_broker, abort, are_taken=False)


def test_the_interrupted_end_of_batches_is_completed(kcodec_broker: Broker) -> None:
    def acknowledge(sender: Sender, batches: list[ProducerBatch]) -> None:
        sender.responses._finish([(batch, BatchOutcome(0)) for batch in batches])

    interrupt_everywhere(kcodec_broker, acknowledge, are_taken=True)


def test_an_interrupted_call_leaves_no_record_between_its_topic_and_its_partition(kcodec_broker: Broker) -> None:
    """partitions_for assigns the records that wait for metadata to partitions."""
    topic = kcodec_broker.create_topic(partitions=2)
    errors: list[str] = []

    async def main(at: int) -> bool:
        producer = aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers)
        await producer.partitions_for(topic)
        core = producer._core
        core.accumulator.topics.clear()
        delivery = await producer.send(topic, b"value")
        is_interrupted = interrupted(lambda: core.assign_waiting(topic), at)
        done, _ = await asyncio.wait([asyncio.ensure_future(ended(delivery))], timeout=5.0)
        assert done, f"at {at}"
        with contextlib.suppress(DeliveryErrors):  # a batch may have the record although its delivery does not know it
            await producer.close()
        return is_interrupted

    async def ended(delivery: aio.Delivery) -> None:
        try:
            await delivery
        except TransportError as error:
            errors.append(str(error))

    at = next(at for at in itertools.count() if not asyncio.run(main(at)))
    assert at > 20
    assert any("(the assignment of waiting records to partitions) was interrupted" in error for error in errors)


def test_an_interrupted_flush_does_not_disable_lingering() -> None:
    async def main(at: int) -> bool:
        producer = aio.Producer(bootstrap_servers="127.0.0.1:1", linger_ms=60_000)
        await producer.send("orders", b"value")
        flush = producer._core.flush()
        is_interrupted = interrupted(lambda: next(flush), at)
        flush.close()
        assert producer._core.sender.urgent == 0, f"at {at}"
        with contextlib.suppress(DeliveryErrors):
            await producer.close(0.0)
        return is_interrupted

    at = next(at for at in itertools.count() if not asyncio.run(main(at)))
    assert at > 5
