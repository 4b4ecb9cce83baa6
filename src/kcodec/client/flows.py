# SPDX-License-Identifier: Apache-2.0
"""Functions that turn flows into methods of public classes, and run background flows. Both the sync API and the asyncio
API use them.

The import of a public class does not import the network code and the core of the class. The first client imports them,
so that a program that only produces does not import what Consumer and Admin need.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol

from kcodec.errors import KcodecError

if TYPE_CHECKING:
    from kcodec.consumer.core import ConsumerCore
    from kcodec.flow import Flow, Task
    from kcodec.network.client import Client as Client
    from kcodec.network.last_work import LastWork
    from kcodec.producer.core import ProducerCore
else:

    def Client(options):  # noqa: N802  the name of the class, which it creates
        """Return a client. The first call imports the network code."""
        from kcodec.network import client

        return client.Client(options)


log = logging.getLogger("kcodec.client")
#: Reason in the LeaveGroup request of a consumer that the program does not close.
NOT_CLOSED = "the application did not close the consumer"


class Core(Protocol):
    """The background part of a client."""

    def crash(self, error: BaseException) -> None:
        """Make all waiting calls and all later calls raise an error."""


class LateFlows:
    """Flows of a module, or of a class in a module, by name. The module is imported when a flow is first used."""

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
    """A method of a public class that runs a flow. When it is first used, a function of the class replaces it.

    find:   Function that imports and returns the flow.
    method: Function that returns the method for the flow.
    """

    def __init__(self, find: Callable[[], Any], method: Callable[[Any], Any]) -> None:
        self._find = find
        self._method = method

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        function = self._function()
        if self._owner.__dict__.get(self._name) is self:  # a test may have replaced it
            setattr(self._owner, self._name, function)
        return function.__get__(instance, owner)

    def _function(self) -> Any:
        flow = self._find()
        flow.__qualname__ = f"{self._owner.__name__}.{self._name}"  # the error for a wrong argument contains it
        function = self._method(flow)
        document(function, flow)
        return function

    # unittest.mock and inspect read the attribute of the class without __get__. For them, this object looks like the
    # function.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("_find", "_method", "_owner", "_name"):
            raise AttributeError(name)
        return getattr(self._function(), name)

    __class__ = property(lambda self: FunctionType)  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


def document(method: Any, flow: Callable[..., Any]) -> None:
    """Set the name, docstring and signature of a method to those of its flow, for help()."""
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
    """Run flows in the background. If one of them fails, the core crashes. Call this on the I/O thread or in the event
    loop. A call that follows because Ctrl-C in asyncio has interrupted this one runs only the missing flows.

    flows: The flows by name.
    """
    from kcodec.flow import CancelledFlow

    def ended(task: Task[None]) -> None:
        if task.error is None:
            return
        if not isinstance(task.error, KcodecError | CancelledFlow):
            log.critical("a background flow of this client failed: %r", task.error, exc_info=task.error)
        core.crash(task.error)

    # The tasks do not refer to the public object, so that its `__del__` runs if the program drops it without `close`.
    running = {task.name: task for task in client.scheduler.tasks}
    for name, flow in flows.items():
        task = running.get(name) or client.scheduler.spawn(flow, name)
        if not task.is_observed:
            task.when_done(ended)


def work_of_consumer(core: ConsumerCore, group_id: str | None, name: str) -> LastWork | None:
    """Return what a consumer does if the program does not close it: it leaves its group.

    name: The consumer in log lines.
    """
    from kcodec.network.last_work import LastWork

    if group_id is None:
        return None
    text = f"the consumer to leave group {group_id!r}"
    return LastWork(name, lambda: core.selection.leave_unclosed(NOT_CLOSED), lambda: text)


def work_of_session(core: ConsumerCore, group_id: str, name: str, producer: ProducerCore) -> LastWork:
    """Return what a session does if the program does not close it: it aborts an open transaction and leaves its group.

    name: The session in log lines.
    """
    from kcodec.network.last_work import LAST_WORK_SECONDS, LastWork

    def flow() -> Flow[None]:
        abort = producer.last_flow(name, LAST_WORK_SECONDS)
        if abort is not None:
            try:
                yield from abort
            except KcodecError as error:
                log.warning("%s was not closed, and the end of its transaction failed: %s", name, error)
        yield from core.selection.leave_unclosed(NOT_CLOSED)

    text = f"the session to abort its open transaction and to leave group {group_id!r}"
    return LastWork(name, flow, lambda: text, _log_of_losses(producer, name))


def work_of_producer(core: ProducerCore, name: str) -> LastWork | None:
    """Return what a producer does if the program does not close it: it sends its records, or aborts its open
    transaction. A writer of a shared transaction does nothing.

    name: The producer in log lines.
    """
    from kcodec.network.last_work import LAST_WORK_SECONDS, LastWork

    if core.id_manager.transactional_id is not None and not core.id_manager.owns_transactions:
        return None
    return LastWork(name, lambda: core.last_flow(name, LAST_WORK_SECONDS), core.last_text, _log_of_losses(core, name))


def _log_of_losses(core: ProducerCore, name: str) -> Callable[[], None]:
    from kcodec.producer.reports import log_lost  # the function may run when nothing can be imported any more

    return lambda: log_lost(core.accumulator, name, is_transaction_open=core.id_manager.is_transaction_open)
