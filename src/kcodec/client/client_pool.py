# SPDX-License-Identifier: Apache-2.0
"""Clients that are kept for later calls, if calls are frequent and short, such as `read_ranges` in the tasks of Spark.

A call takes the client of its options from the pool and returns it; concurrent calls share it. A client is dropped if
one of its connections failed, and the least recently used one when there are more than MOST_IDLE.
The pool holds the given options, secrets included, and never shows them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from kcodec.network.client import Client, IoLoop
from kcodec.network.options import ClientConfig

L = TypeVar("L", bound=IoLoop)
#: Maximum number of idle clients that a process keeps.
MOST_IDLE = 8


class PooledClient(Generic[L]):
    """A client of the pool. owner: its event loop; guard: closes it with that event loop."""

    def __init__(self, options: Mapping[str, Any], io_loop: L, owner: Any) -> None:
        self.options = options
        self.io_loop = io_loop
        self.owner = owner
        self.guard: Any = None
        self.users = 0
        self.is_kept = True

    @property
    def is_usable(self) -> bool:
        """Whether it can be used: not in a forked child, nor after its event loop was closed."""
        return not self.io_loop.is_closed and not (self.owner is not None and self.owner.is_closed())


class ClientPool(Generic[L]):
    """The pool; see the module. make: creates an I/O loop for a client."""

    def __init__(self, make: Callable[[Client], L]) -> None:
        self._make = make
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Forget all clients, also in a forked child, where another thread may have held the lock."""
        self._lock = threading.Lock()
        self._clients: list[PooledClient[L]] = []  # the most recently used one comes last

    def config(self, options: Mapping[str, Any]) -> ClientConfig | None:
        """Return the checked options of a client that is kept; certificates and other files are not read again."""
        with self._lock:
            return next((each.io_loop.client.options for each in self._clients if each.options == options), None)

    def take(
        self, options: Mapping[str, Any], config: ClientConfig, owner: Any = None
    ) -> tuple[PooledClient[L], list[PooledClient[L]]]:
        """Return the client for these options, and idle clients that the caller must close."""
        with self._lock:
            self._clients = [each for each in self._clients if each.is_usable]
            found = next((one for one in self._clients if one.owner is owner and one.options == options), None)
            if found is None:
                client = Client(config)
                client.cluster.allow_auto_topic_creation = False
                found = PooledClient(options, self._make(client), owner)
            else:
                self._clients.remove(found)
            self._clients.append(found)
            found.users += 1
            idle = [each for each in self._clients if not each.users and each.owner is owner]
            surplus = idle[: max(len(idle) - MOST_IDLE, 0)]
            self._clients = [each for each in self._clients if each not in surplus]
            return found, surplus

    def give_back(self, pooled: PooledClient[L], is_failed: bool) -> bool:
        """End a use; return whether the caller must close the client. is_failed: no other call may use it."""
        with self._lock:
            pooled.users -= 1
            if is_failed and pooled.is_kept:
                pooled.is_kept = False
                self._clients = [each for each in self._clients if each is not pooled]
            return not pooled.is_kept and not pooled.users


def key_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options in a comparable form, with copies of lists that the caller may change later."""
    servers = options.get("bootstrap_servers")
    if isinstance(servers, Iterable) and not isinstance(servers, str | bytes):
        return {**options, "bootstrap_servers": tuple(servers)}
    return dict(options)
