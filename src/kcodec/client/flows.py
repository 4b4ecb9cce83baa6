# SPDX-License-Identifier: Apache-2.0
"""Turns flows into methods of public classes, and runs background flows, for threads and asyncio alike.

The public classes are imported without the network and without their cores, which the first client imports: a program
that only produces does not import what Consumer and Admin need.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol

from kcodec.errors import KcodecError

if TYPE_CHECKING:
    from kcodec.flow import Flow, Task
    from kcodec.network.client import Client as Client
else:

    def Client(options):  # noqa: N802  the name of the class, which it creates
        """Create a client; the first one imports the network."""
        from kcodec.network import client

        return client.Client(options)


log = logging.getLogger("kcodec.client")


class Core(Protocol):
    """The background part of a client."""

    def crash(self, error: BaseException) -> None:
        """Make every waiting and every later call fail."""


class LateFlows:
    """Flows by name, of a module or of a class in it, which is imported when one of them is first used."""

    def __init__(self, module: str, name: str = "") -> None:
        self._module = module
        self._class = name

    def __getattr__(self, name: str) -> Callable[[], Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda: getattr(self._home(), name)

    def _home(self) -> Any:
        module = import_module(self._module)
        return getattr(module, self._class) if self._class else module


class FlowMethod:
    """A method of a public class that runs a flow. It becomes a function of the class when it is first used.

    find: imports and returns the flow. method: makes the function from it.
    """

    def __init__(self, find: Callable[[], Any], method: Callable[[Any], Any]) -> None:
        self._find = find
        self._method = method

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        function = self._function()
        if self._owner.__dict__.get(self._name) is self:  # and not something that a test has put in its place
            setattr(self._owner, self._name, function)
        return function.__get__(instance, owner)

    def _function(self) -> Any:
        flow = self._find()
        function = self._method(flow)
        document(function, flow)
        return function

    # unittest.mock and inspect take it out of the class without __get__: to them it looks like the function.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("_find", "_method", "_owner", "_name"):
            raise AttributeError(name)
        return getattr(self._function(), name)

    __class__ = property(lambda self: FunctionType)  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


def document(method: Any, flow: Callable[..., Any]) -> None:
    """Give a method the name, docstring and signature of its flow, for help()."""
    import inspect

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
    from kcodec.flow import CancelledFlow

    def ended(task: Task[None]) -> None:
        if task.error is None:
            return
        if not isinstance(task.error, KcodecError | CancelledFlow):
            log.critical("a background flow of this client failed: %r", task.error, exc_info=task.error)
        core.crash(task.error)

    # The tasks hold no reference to the public object, so that one that is dropped without close is noticed.
    for name, flow in flows.items():
        client.scheduler.spawn(flow, name).when_done(ended)
