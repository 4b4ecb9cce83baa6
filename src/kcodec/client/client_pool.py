# SPDX-License-Identifier: Apache-2.0
"""Clients that outlive a call, for calls that come often and each do little, as `read_ranges` in the tasks of Spark.

A call takes the client of its options from the pool and gives it back; calls at the same time share it. A client is
dropped if a call met an error of its connections, and the least recently used one when there are more than MOST_IDLE.
The pool holds the options as they were given, secrets included, and shows none of them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from kcodec.network.client import Client, IoLoop
from kcodec.network.options import ClientConfig

L = TypeVar("L", bound=IoLoop)
#: Maximum number of unused clients that are kept in a process.
MOST_IDLE = 8


class PooledClient(Generic[L]):
    """A client of the pool. owner: the event loop that it belongs to; guard: what closes it with that event loop."""

    def __init__(self, options: Mapping[str, Any], io_loop: L, owner: Any) -> None:
        self.options = options
        self.io_loop = io_loop
        self.owner = owner
        self.guard: Any = None
        self.users = 0
        self.is_kept = True

    @property
    def is_usable(self) -> bool:
        """False as well in a forked child, and once its event loop is closed."""
        return not self.io_loop.is_closed and not (self.owner is not None and self.owner.is_closed())


class ClientPool(Generic[L]):
    """See the module. make: an I/O loop for a client."""

    def __init__(self, make: Callable[[Client], L]) -> None:
        self._make = make
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Also in a forked child, where another thread may have held the lock."""
        self._lock = threading.Lock()
        self._clients: list[PooledClient[L]] = []  # the most recently used one comes last

    def config(self, options: Mapping[str, Any]) -> ClientConfig | None:
        """The checked options of a client that is kept; certificates and such are not read again."""
        with self._lock:
            return next((each.io_loop.client.options for each in self._clients if each.options == options), None)

    def take(
        self, options: Mapping[str, Any], config: ClientConfig, owner: Any = None
    ) -> tuple[PooledClient[L], list[PooledClient[L]]]:
        """(the client for these options, idle clients that the caller must close)."""
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
        """End a use; return whether the caller must close the client. is_failed: no other call shall take it."""
        with self._lock:
            pooled.users -= 1
            if is_failed and pooled.is_kept:
                pooled.is_kept = False
                self._clients = [each for each in self._clients if each is not pooled]
            return not pooled.is_kept and not pooled.users


def key_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options to compare with those of other calls: a list of addresses that the caller changes later is copied."""
    servers = options.get("bootstrap_servers")
    if isinstance(servers, Iterable) and not isinstance(servers, str | bytes):
        return {**options, "bootstrap_servers": tuple(servers)}
    return dict(options)
