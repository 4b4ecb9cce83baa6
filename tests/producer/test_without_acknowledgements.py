# SPDX-License-Identifier: Apache-2.0
"""acks=0: a record has ended when the operating system has taken all bytes of its request."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from producer_apis import Looped, Threaded
from scripted_peer import Peer, Request

import kcodec
from kcodec.broker import Broker
from kcodec.errors import BufferFullError, DeliveryErrors
from kcodec.protocol.messages.metadata import MetadataRequest, MetadataResponsePartition, MetadataResponseTopic
from kcodec.protocol.messages.produce import ProduceRequest

OPTIONS: dict[str, Any] = {"acks": 0, "enable_idempotence": False, "linger_ms": 0}
RECORD = {"value": bytes(10_000), "partition": 0}
#: More than the socket buffers of both sides take.
COUNT = 4000


def with_topic(peer: Peer, request: Request) -> bytes | None:
    """The usual response; that to Metadata has the topic."""
    if request.api_key == MetadataRequest.api_key:
        partition = MetadataResponsePartition(partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1])
        topic = MetadataResponseTopic(name="orders", partitions=[partition])
        return peer.metadata_reply(request, topics=[topic])
    return peer.usual(request)


@pytest.fixture
def stalled() -> Iterator[Peer]:
    """A broker that reads one Produce request, and nothing after it.

    Its receive buffer is small, so that the system does not take all requests of a test for the broker.
    """
    ended = threading.Event()

    def answer(peer: Peer, request: Request) -> bytes | None:
        if request.api_key == ProduceRequest.api_key:
            ended.wait(60)
            return None
        return with_topic(peer, request)

    with Peer(answer, receive_buffer=65_536) as peer:
        yield peer
        ended.set()


@pytest.mark.parametrize("kind", [Threaded, Looped])
def test_flush_and_close_wait_until_everything_is_sent(kind: type, kcodec_broker: Broker) -> None:
    kcodec_broker.create_topic("orders", partitions=1)
    client = kind(kcodec_broker.bootstrap_servers, **OPTIONS)
    client.send_all("orders", [RECORD] * COUNT)
    client.flush()
    client.end()
    deadline = time.monotonic() + 30.0
    found = 0
    while found < COUNT and time.monotonic() < deadline:  # the broker may still read what the client has sent
        with kcodec.read_topic("orders", bootstrap_servers=kcodec_broker.bootstrap_servers) as records:
            found = sum(1 for _ in records.rows())
    assert found == COUNT


@pytest.mark.parametrize("kind", [Threaded, Looped])
def test_a_broker_that_reads_nothing_fills_the_buffer(kind: type, stalled: Peer) -> None:
    """What a connection cannot take counts for buffer_memory, as all records on their way do."""
    client = kind(stalled.address, buffer_memory=1_000_000, max_block_ms=500, **OPTIONS)
    with pytest.raises(BufferFullError):
        client.send_all("orders", [RECORD] * COUNT)
    with pytest.raises(DeliveryErrors):
        client.end(0.1)


@pytest.mark.parametrize("kind", [Threaded, Looped])
def test_a_request_that_is_not_sent_completely_ends_its_connection(kind: type, stalled: Peer) -> None:
    """After request_timeout_ms it is sent again, until delivery_timeout_ms is over."""
    timing = {"request_timeout_ms": 500, "delivery_timeout_ms": 3000, "max_block_ms": 3000}
    client = kind(stalled.address, buffer_memory=64_000_000, **timing, **OPTIONS)
    client.send_all("orders", [RECORD] * COUNT)
    with pytest.raises(DeliveryErrors, match=r"brokers may have stored.*not acknowledged within delivery_timeout_ms"):
        client.flush()
    assert stalled.connections >= 3  # one of bootstrap_servers, and two of the broker
    client.end()


def test_a_record_that_the_system_does_not_take_is_sent_again() -> None:
    """The connection is reset while a program keeps its event loop from running: the next write fails."""
    produced = 0

    def answer(peer: Peer, request: Request) -> bytes | None:
        nonlocal produced
        if request.api_key == ProduceRequest.api_key:
            produced += 1
            if produced == 1:
                request.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                request.socket.close()  # with a reset, once the stream on it is closed
                raise ConnectionResetError
            return None
        return with_topic(peer, request)

    with Peer(answer) as peer:
        client = Looped(peer.address, **OPTIONS)

        async def send_after_the_reset() -> None:
            time.sleep(0.5)  # the event loop must not see the reset before the write
            await client.producer.send("orders", **RECORD)
            await client.producer.flush()

        client.send_all("orders", [RECORD])
        client.flush()
        client.run(send_after_the_reset())
        client.end()
        deadline = time.monotonic() + 10.0
        while produced < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert produced == 2
