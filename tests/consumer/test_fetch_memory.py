# SPDX-License-Identifier: Apache-2.0
"""Memory of fetched responses is bounded over all brokers together, whatever brokers send and how many they say they
are; and batches that are larger than what was requested are read all the same."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from batch_writer import RecordSpec, build_batch
from fetch_script import FetchScript
from scripted_peer import APIS, Peer, Request, versions_reply
from scripted_topic import TopicWorld
from topic_reader import Reader

from kcodec.errors import LimitExceededError, TransportError
from kcodec.flow import Call, Done
from kcodec.protocol.frame import RESPONSE_LIMIT, FrameReader
from kcodec.protocol.messages import fetch, metadata

BROKERS = 6
MIB = 1 << 20
#: One response; the consumer asks for 1 MiB at most and keeps 8 MiB ahead.
RESPONSE_BYTES = 32 * MIB
#: One response, what is kept ahead, and what else a client allocates for its connections.
MOST_BYTES = RESPONSE_BYTES + 8 * MIB + 24 * MIB


class Flood(Peer):
    """BROKERS brokers at one address; each has a partition of records of RESPONSE_BYTES, and sends one at a time."""

    def __init__(self) -> None:
        super().__init__(Flood.respond)  # type: ignore[arg-type]
        self.fetches = 0
        self.batch = bytearray(build_batch([RecordSpec(value=bytes(RESPONSE_BYTES))]))

    def respond(self, request: Request) -> bytes | None:
        if request.api_key == 18:
            return versions_reply(request, {**APIS, 3: (0, 9), 1: (4, 12), 2: (0, 6)})
        if request.api_key == 3:
            return request.reply(self._metadata())
        if request.api_key == 2:
            return request.reply(self._offsets(request))
        assert request.api_key == 1
        self.fetches += 1
        return request.reply(self._fetched(request))

    def _metadata(self) -> Any:
        brokers = [
            metadata.MetadataResponseBroker(node_id=node, host=self.host, port=self.port) for node in range(BROKERS)
        ]
        parts = [
            metadata.MetadataResponsePartition(partition_index=node, leader_id=node, leader_epoch=0)
            for node in range(BROKERS)
        ]
        topic = metadata.MetadataResponseTopic(name="flood", partitions=parts)
        return metadata.MetadataResponse(brokers=brokers, controller_id=0, topics=[topic])

    def _offsets(self, request: Request) -> Any:
        asked = fetch.ListOffsetsRequest.decode(_body(request), request.version)
        parts = [
            fetch.ListOffsetsPartitionResponse(partition_index=part.partition_index, offset=0)
            for topic in asked.topics
            for part in topic.partitions
        ]
        return fetch.ListOffsetsResponse(topics=[fetch.ListOffsetsTopicResponse(name="flood", partitions=parts)])

    def _fetched(self, request: Request) -> Any:
        asked = fetch.FetchRequest.decode(_body(request), request.version)
        parts = []
        for topic in asked.topics:
            for part in topic.partitions:
                data = bytearray(self.batch)
                struct.pack_into(">q", data, 0, part.fetch_offset)
                one = fetch.FetchPartitionData(
                    partition_index=part.partition, high_watermark=1 << 40, last_stable_offset=1 << 40, records=data
                )
                parts.append(one)
        found = [fetch.FetchableTopicResponse(topic="flood", partitions=parts)] if parts else []
        return fetch.FetchResponse(responses=found)


def _body(request: Request) -> bytes:
    """The message of a request, without the tagged fields of its header."""
    flexible = {1: 12, 2: 6}[request.api_key]
    return request.body[1:] if request.version >= flexible else request.body


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_brokers_that_send_too_much_stay_in_bounds() -> None:
    """Six brokers, which are one, send 32 times what was requested: the bound holds, and all partitions are read."""
    script = Path(__file__).parent.parent / "support" / "fetch_flood_client.py"
    with Flood() as flood:
        command = [sys.executable, str(script), flood.address, str(BROKERS), "6"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=dict(os.environ), check=False)
        assert done.returncode == 0, done.stderr
        most, read = map(int, done.stdout.split())
        assert flood.fetches >= BROKERS
    print(f"{most / MIB:.0f} MiB")
    assert most <= MOST_BYTES
    assert read == BROKERS


class Sized:
    """A scripted cluster whose responses are refused as a connection does it, above what the request sets aside."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.under_way: dict[int, int] = {}
        self.numbers = count()
        self.most_held = 0
        self.refusals_seen = 0

    def start_call(self, call: Call, done: Done) -> Any:
        limit = call.max_response_bytes
        if limit is None:
            return super().start_call(call, done)  # type: ignore[misc]
        key = next(self.numbers)
        self.under_way[key] = limit
        self.note()

        def ended(reply: Any, error: BaseException | None) -> None:
            del self.under_way[key]
            size = 0 if reply is None else len(reply.message.encode(reply.version))
            if size > limit:
                self.refusals_seen += 1
                cause = LimitExceededError("too long", limit=RESPONSE_LIMIT, value=limit, claimed=size)
                reply, error = None, TransportError("broker: a response is too long")
                error.__cause__ = cause
            done(reply, error)
            self.note()

        return super().start_call(call, ended)  # type: ignore[misc]

    def note(self) -> None:
        self.most_held = max(self.most_held, self.waiting() + sum(self.under_way.values()))

    def waiting(self) -> int:
        raise NotImplementedError


class SizedScript(Sized, FetchScript):
    """Of a consumer."""

    def waiting(self) -> int:
        return self.fetcher.buffer.waiting_bytes()


class SizedTopic(Sized, TopicWorld):
    """Of read_topic."""

    reader: Reader | None = None

    def waiting(self) -> int:
        read = getattr(self.reader, "read", None)
        return 0 if read is None else sum(answer.data.nbytes for answer in read._responses)


def flooded(nodes: int, batches: int, size: int, **options: Any) -> tuple[SizedScript, int]:
    """Logs of one partition at each broker; how many records they have."""
    world = SizedScript(nodes=nodes, **options)
    world.log(partitions=nodes)
    for log in world.logs():
        for number in range(batches):
            log.append_values(b"%d" % number + bytes(size))
    world.assign(*(("orders", number) for number in range(nodes)))
    return world, nodes * batches


@pytest.mark.parametrize("nodes", [1, 6])
@pytest.mark.parametrize("size", [1000, 300_000])
def test_the_bound_holds_over_all_brokers(nodes: int, size: int) -> None:
    """What waits and what is set aside for requests; and no broker starves, also where each batch is large."""
    limit = 2 * MIB
    world, expected = flooded(nodes, 4, size, fetch_ahead_max_bytes=limit, max_partition_fetch_bytes=MIB)
    assert len(world.drain(60.0)) == expected
    assert world.most_held <= limit


def test_a_batch_above_the_bound_is_read_alone() -> None:
    """It comes whole, when nothing else is held."""
    limit, size = MIB, 3 * MIB
    world, expected = flooded(3, 3, size, fetch_ahead_max_bytes=limit)
    assert len(world.drain(60.0)) == expected
    assert world.most_held <= size + 100_000
    assert world.refusals_seen >= 3


def test_large_batches_are_refused_once_not_each_time() -> None:
    """What a broker's responses take is set aside from the second one on."""
    world, expected = flooded(1, 20, 900_000, fetch_ahead_max_bytes=2 * MIB)
    assert len(world.drain(60.0)) == expected
    assert world.refusals_seen <= 4


def test_one_broker_gets_requests_as_large_as_before() -> None:
    """A quarter of fetch_ahead_max_bytes, with the next request while a response is taken."""
    world, expected = flooded(1, 200, 100_000, max_partition_fetch_bytes=8 * MIB)
    assert len(world.drain(5.0)) == expected
    assert {request.max_bytes for _, _, _, request in world.fetches} == {16 * MIB}
    assert world.refusals_seen == 0


def test_paused_partitions_keep_a_bounded_amount() -> None:
    """What they keep does not count, as it would hold up the others, but has the same bound of its own."""
    limit = MIB
    world, expected = flooded(1, 3, 200_000, fetch_ahead_max_bytes=limit, max_partition_fetch_bytes=MIB)
    for number in range(1, 12):
        world.logs().append(type(world.logs()[0])(1))
        world.logs()[number].append_values(bytes(200_000))
    world.cluster.request_update("more partitions")
    world.run(2.0)
    for number in range(12):
        if number:
            world.assign(("orders", number))
        world.run(1.0)
        world.assignment.pause(list(world.assignment.partitions), True)
    assert world.fetcher.buffer.waiting_bytes(is_aside=True) <= limit
    world.assignment.pause(list(world.assignment.partitions), False)
    assert len(world.drain(20.0)) == expected + 11


@pytest.mark.parametrize("size", [1000, 300_000, 3 * MIB])
def test_the_bound_holds_for_read_topic(size: int) -> None:
    """Six partitions at three brokers, read slowly; batches larger than what is requested come all the same."""
    limit, partitions = 2 * MIB, 6
    world = SizedTopic(nodes=3)
    for log in world.create_logs("t", partitions):
        for number in range(4):
            log.append(b"%d" % number + bytes(size))
    reader = world.reader = Reader(world, fetch_ahead_max_bytes=limit, max_partition_fetch_bytes=200_000)
    reader.open()
    while reader.take():
        world.run(0.2)
    assert [len(reader.rows[number]) for number in range(partitions)] == [4] * partitions
    assert world.most_held <= max(limit, size) + partitions * 70_000


def test_a_frame_that_no_request_is_for_is_not_received() -> None:
    limits: list[int | None] = [1000, None]
    reader = FrameReader(10_000, lambda behind: limits[behind] if behind < len(limits) else 50)
    small = (10).to_bytes(4, "big") + bytes(10)
    assert len(reader.feed(small + (5000).to_bytes(4, "big") + bytes(5000))) == 2
    large = (9000).to_bytes(4, "big") + bytes(9000)
    assert len(FrameReader(10_000, lambda behind: None if behind >= 9 else 10).feed(small * 9 + large * 20)) == 29
    assert len(reader.feed(small + small + (51).to_bytes(4, "big"))) == 2
    with pytest.raises(LimitExceededError, match="51 bytes exceeds the 50") as raised:
        reader.feed(b"")
    assert (raised.value.limit, raised.value.claimed) == (RESPONSE_LIMIT, 51)
