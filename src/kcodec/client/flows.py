# SPDX-License-Identifier: Apache-2.0
"""Turns flows into methods of public classes, and runs background flows, for threads and asyncio alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

from kcodec.flow import Flow
from kcodec.network.client import Client


class Core(Protocol):
    """The background part of a client."""

    def crash(self, error: BaseException) -> None:
        """Make every waiting and every later call fail."""


def document(method: Any, flow: Callable[..., Any]) -> None:
    """Give a method the name, docstring and signature of its flow, for help()."""
    method.__name__ = method.__qualname__ = flow.__name__
    method.__doc__ = flow.__doc__
    found = inspect.signature(flow)
    first, *others = found.parameters.values()
    returned = str(found.return_annotation).removeprefix("Flow[").removesuffix("]")
    method.__signature__ = found.replace(
        parameters=[first.replace(name="self", annotation=first.empty), *others], return_annotation=returned
    )


def run_in_background(client: Client, core: Core, flows: dict[str, Flow[None]]) -> None:
    """On the I/O thread or in the event loop: run the flows, by name. If one fails, the core crashes."""
    # The tasks hold no reference to the public object, so that one that is dropped without close is noticed.
    for name, flow in flows.items():
        task = client.scheduler.spawn(flow, name)
        task.when_done(lambda ended: None if ended.error is None else core.crash(ended.error))
