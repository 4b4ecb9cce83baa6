# SPDX-License-Identifier: Apache-2.0
"""A pool of clients that are kept for later calls. It is for calls that are frequent and short, such as `read_ranges`
in the tasks of Spark.

A call takes the client for its options from the pool and gives it back. Concurrent calls share a client. A client is
removed if one of its connections has failed. If more than MOST_IDLE clients are idle, the least recently used one is
removed. The pool holds the given options, including secrets, and never shows them.
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
    """A client of the pool.

    owner: Event loop of the client. None for the sync API.
    guard: Asynchronous generator that closes the client when its event loop ends.
    users: Number of calls that currently use the client.
    is_kept: Whether the pool still has the client.
    """

    def __init__(self, options: Mapping[str, Any], io_loop: L, owner: Any) -> None:
        self.options = options
        self.io_loop = io_loop
        self.owner = owner
        self.guard: Any = None
        self.users = 0
        self.is_kept = True

    @property
    def is_usable(self) -> bool:
        """Whether the client can be used. It cannot be used if it is closed, in a forked child, or after its event loop
        was closed."""
        return not self.io_loop.is_closed and not (self.owner is not None and self.owner.is_closed())


class ClientPool(Generic[L]):
    """The pool that the module describes.

    make: Function that creates an I/O loop for a client.
    """

    def __init__(self, make: Callable[[Client], L]) -> None:
        self._make = make
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Forget all clients, and replace the lock. In a forked child, a thread that does not exist there may hold the
        old lock."""
        self._lock = threading.Lock()
        self._clients: list[PooledClient[L]] = []  # the most recently used one comes last

    def config(self, options: Mapping[str, Any]) -> ClientConfig | None:
        """Return the checked options of a client with these options, so that certificates and other files are not read
        again. Return None if the pool has no such client."""
        with self._lock:
            return next((each.io_loop.client.options for each in self._clients if each.options == options), None)

    def take(
        self, options: Mapping[str, Any], config: ClientConfig, owner: Any = None
    ) -> tuple[PooledClient[L], list[PooledClient[L]]]:
        """Return the client for these options, and idle clients that the caller must close. Create the client if the
        pool has none."""
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
        """End the use of a client by one call. Return whether the caller must close the client.

        is_failed: Whether the client has failed, so that no further call may use it.
        """
        with self._lock:
            pooled.users -= 1
            if is_failed and pooled.is_kept:
                pooled.is_kept = False
                self._clients = [each for each in self._clients if each is not pooled]
            return not pooled.is_kept and not pooled.users


def key_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options in a form that can be compared. Lists that the caller may change later are copied."""
    servers = options.get("bootstrap_servers")
    if isinstance(servers, Iterable) and not isinstance(servers, str | bytes):
        return {**options, "bootstrap_servers": tuple(servers)}
    return dict(options)
