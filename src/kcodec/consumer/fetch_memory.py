# SPDX-License-Identifier: Apache-2.0
"""The memory of Fetch responses that are in flight: `fetch_ahead_max_bytes`, which `kcodec.consumer.fetcher` describes.

A request reserves the size of its response. Brokers with larger batches than requested get a larger reservation, which
shrinks again. Brokers take turns, so that each of them gets memory.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any, Final

from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import LimitExceededError
from kcodec.protocol.frame import RESPONSE_LIMIT

#: Bytes of a response that are not records, such as aborted transactions: of the whole response, and of each partition.
OVERHEAD_BYTES, PARTITION_OVERHEAD_BYTES = 64 * 1024, 512
#: The reservation for a large response is reduced by this fraction with each response.
SHRINK: Final = 16

#: A request in flight: the broker and the channel.
Request = tuple[int, str]


class FetchMemory:
    """The reservations of the requests in flight; see the module."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self._reserved: dict[Request, int] = {}
        #: By broker that has declared a larger response than was reserved: the declared size.
        self._large: dict[int, int] = {}
        #: By broker: the number of its last request, counted over all brokers.
        self._turns: dict[int, int] = {}
        self._turn = 0

    @property
    def half(self) -> int:
        """Half of the memory: the part for responses that are not polled yet. The requests in flight share the rest, so
        that brokers that delay their responses do not use all of it."""
        return self._settings.fetch_ahead_max_bytes // 2

    def in_turn(self, requests: Iterable[Request]) -> list[Request]:
        """Return the requests in the order in which they get memory: the broker that has waited longest is first."""
        turns = self._turns
        return sorted(requests, key=lambda request: turns.get(request[0], 0))

    def most_bytes(self, brokers: int) -> int:
        """Return the maximum size of one response, if this number of brokers share the memory."""
        return max(min(self._settings.fetch_max_bytes, self.half // (2 * brokers)), 1)

    def reserve(self, request: Request, most_bytes: int, partitions: int, waiting_bytes: int) -> int | None:
        """Reserve the memory of a response with this number of partitions. Return the reserved size, or None if it is
        not free.

        most_bytes:    Size that the request allows for records. A single larger batch may exceed it.
        waiting_bytes: Size of the responses that are not polled yet.
        """
        node = request[0]
        size = max(most_bytes, self._large.get(node, 0)) + OVERHEAD_BYTES + PARTITION_OVERHEAD_BYTES * partitions
        if not self.has_space(size, waiting_bytes):
            return None
        self._turns[node] = self._turn = self._turn + 1
        self._reserved[request] = size
        return size

    def has_space(self, size: int, waiting_bytes: int) -> bool:
        """Return whether a response of `size` bytes may be requested. If nothing is held, one response of any size
        may."""
        held = waiting_bytes + sum(self._reserved.values())
        return held == 0 or held + size <= self._settings.fetch_ahead_max_bytes

    def release(self, request: Request) -> None:
        """End the reservation of a request."""
        self._reserved.pop(request, None)

    def note_refused(self, node: int, cause: BaseException | None) -> None:
        """If a response was refused because it declared more than was reserved, let the next request reserve this
        size."""
        if isinstance(cause, LimitExceededError) and cause.limit == RESPONSE_LIMIT:
            self._large[node] = max(cause.claimed, self._large.get(node, 0))

    def shrink(self, node: int, message: Any) -> None:
        """Reserve a little less after each response, down to the actual size, because there may have been only a few
        large batches."""
        if size := self._large.pop(node, 0):
            brought = sum(len(part.records or b"") for topic in message.responses for part in topic.partitions)
            smaller = max(size - max(size // SHRINK, 1), brought)
            if smaller > OVERHEAD_BYTES:
                self._large[node] = smaller

    def keep(self, brokers: Container[object]) -> None:
        """Forget all other brokers."""
        for known in (self._large, self._turns):
            for gone in [node for node in known if node not in brokers]:
                del known[gone]
