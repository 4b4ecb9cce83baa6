# SPDX-License-Identifier: Apache-2.0
"""The usual responses of a scripted peer, and a port on which no program listens."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from scripted_peer import Peer, Request

from kcodec.flow import ANY_NODE, Flow, Reply, call
from kcodec.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse


@contextmanager
def free_port() -> Iterator[int]:
    """Yield a port on which no program listens. It stays bound, so that no other program can use it."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


def init_producer_id(timeout: float = 5.0, node: int = ANY_NODE) -> Flow[Reply]:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    return call(node, request, timeout=timeout)


def usual(peer: Peer, request: Request) -> bytes | None:
    if request.api_key == InitProducerIdRequest.api_key:
        return request.reply(InitProducerIdResponse(producer_id=7, producer_epoch=request.number % 1000))
    return peer.usual(request)
