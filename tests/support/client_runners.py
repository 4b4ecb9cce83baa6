# SPDX-License-Identifier: Apache-2.0
"""Clients with both I/O loops, a thread and an asyncio loop, for tests that apply to both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kcodec.flow import Flow
from kcodec.network.asyncio_loop import AsyncioLoop
from kcodec.network.client import Client
from kcodec.network.options import ClientConfig
from kcodec.network.thread_loop import ThreadLoop

QUICK: dict[str, Any] = {"request_timeout_ms": 600, "reconnect_backoff_ms": 5, "retry_backoff_ms": 5}


def options(servers: str, **changes: Any) -> ClientConfig:
    return ClientConfig.take({"bootstrap_servers": servers, **QUICK, **changes})


class Threaded:
    """Runs flows of one client by a thread."""

    def __init__(self, servers: str, **changes: Any) -> None:
        self.client = Client(options(servers, **changes))
        self.io_loop = ThreadLoop(self.client)

    def run(self, flow: Flow[Any], timeout: float = 10.0) -> Any:
        return self.io_loop.run(flow, timeout)

    def close(self) -> None:
        self.io_loop.close()

    end = close


class Looped:
    """Runs flows of one client on an asyncio loop."""

    def __init__(self, servers: str, **changes: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.client = Client(options(servers, **changes))
        self.io_loop = AsyncioLoop(self.client)

    def run(self, flow: Flow[Any], timeout: float = 10.0) -> Any:
        return self.loop.run_until_complete(self.io_loop.run(flow, timeout))

    def close(self) -> None:
        self.loop.run_until_complete(self.io_loop.close())

    def end(self) -> None:
        self.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


Runner = Threaded | Looped
Make = Callable[..., Runner]


@pytest.fixture(params=[Threaded, Looped], ids=["thread", "asyncio"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Runner] = []

    def make(servers: str, **changes: Any) -> Runner:
        made.append(request.param(servers, **changes))
        return made[-1]

    yield make
    for runner in made:
        runner.end()
