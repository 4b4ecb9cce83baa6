# SPDX-License-Identifier: Apache-2.0
"""Ranges of a `TopicWorld`: read by the flows of `read_ranges`, or served on loopback for its public API."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import TracebackType
from typing import Any

from scripted_broker import Fault
from scripted_peer import Peer, Request, versions_reply
from scripted_topic import ServedLog, TopicWorld
from topic_reader import SETTINGS

from kcodec.errors import DecodeError
from kcodec.offsets import OffsetRange
from kcodec.protocol.messages.auth import ApiVersionsRequest
from kcodec.protocol.messages.fetch import FetchRequest, ListOffsetsRequest
from kcodec.protocol.messages.metadata import MetadataRequest
from kcodec.reading.bounded_read import BoundedRead, OnMissing
from kcodec.reading.decoding import RangeDecoder
from kcodec.reading.offset_ranges import open_ranges
from kcodec.reading.partition_read import RangeProgress

Rows = dict[tuple[str, int], list[tuple[int, bytes]]]
SERVED = (ApiVersionsRequest, MetadataRequest, FetchRequest, ListOffsetsRequest)
APIS = {18: (0, 4), 3: (0, 13), 1: (4, 13), 2: (1, 7)}


class RangeReader:
    """Reads ranges in a world as `read_ranges` does."""

    def __init__(self, world: TopicWorld, on_missing: OnMissing = "raise", **settings: Any) -> None:
        self.world = world
        self.on_missing = on_missing
        self.settings = replace(SETTINGS, **({"default_api_timeout": 10.0} | settings))
        self.decoder = RangeDecoder(self.settings)
        self.rows: Rows = {}
        self.damage: DecodeError | None = None
        self.read: BoundedRead

    def open(self, *ranges: OffsetRange) -> RangeReader:
        flow = open_ranges(self.world.cluster, ranges, self.settings, self.on_missing)
        self.read = self.world.run_flow(flow)
        return self

    def take(self) -> bool:
        """Process one response. Return whether there was one."""
        response = self.world.run_flow(self.read.next_response())
        if response is None:
            return False
        chunks, self.damage = self.decoder.decode(response)
        for record in (record for chunk in chunks for record in chunk.records()):
            assert record.topic is not None
            assert record.partition is not None
            self.rows.setdefault((record.topic, record.partition), []).append((record.offset, record.value or b""))
        return True

    def all(self) -> RangeReader:
        while self.take():
            if self.damage is not None:
                raise self.damage
        return self

    @property
    def progress(self) -> list[RangeProgress]:
        return [partition.progress for partition in self.read.partitions]

    @property
    def lost(self) -> list[int]:
        return [partition.lost for partition in self.read.partitions]


class ServedWorld:
    """The brokers of a world as listeners on loopback. requests: the names of received requests except ApiVersions."""

    def __init__(self, world: TopicWorld) -> None:
        self.world = world
        self.requests: list[str] = []
        self._lock = threading.Lock()
        self.peers = {node: Peer(self._answer, node) for node in range(1, world.nodes + 1)}

    @property
    def servers(self) -> str:
        return self.peers[1].address

    @property
    def connections(self) -> int:
        return sum(peer.connections for peer in self.peers.values())

    def taken(self) -> list[str]:
        """The requests since the last time."""
        with self._lock:
            found, self.requests = self.requests, []
        return found

    def _answer(self, peer: Peer, request: Request) -> bytes | None:
        (kind,) = (kind for kind in SERVED if kind.api_key == request.api_key)
        if kind is ApiVersionsRequest:
            return versions_reply(request, APIS)
        body = request.body[1:] if kind.is_flexible(request.version) else request.body
        message = kind.decode(body, request.version)
        with self._lock:
            self.requests.append(kind.__name__.removesuffix("Request"))
            response = self.world._answer(peer.node_id, message, Fault())
        if isinstance(message, MetadataRequest):
            for broker in response.brokers:
                broker.host, broker.port = self.peers[broker.node_id].host, self.peers[broker.node_id].port
        return request.reply(response)

    def __enter__(self) -> ServedWorld:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all listeners. It can be called repeatedly."""
        for peer in self.peers.values():
            peer.__exit__()


def worlds(*topics: str, partitions: int = 1, **options: Any) -> tuple[TopicWorld, dict[str, list[ServedLog]]]:
    """A world of topics with empty logs."""
    world = TopicWorld(**options)
    return world, {topic: world.create_logs(topic, partitions) for topic in topics}
