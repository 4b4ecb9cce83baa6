# SPDX-License-Identifier: Apache-2.0
"""Both APIs of the group transact session with one set of calls, for tests that apply to both.

    with session_class(**options) as session:
        with session.transaction() as txn:
            for record in txn.poll(1.0): txn.send(...)

The asyncio API runs on a loop in a separate thread, so that its background tasks run between calls, as in a service.
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, Self

import pytest

from kcodec.client import GroupTransactSession
from kcodec.client.aio import GroupTransactSession as AioSession

SECONDS = 60.0


class Threaded:
    """The blocking session."""

    name = "thread"

    def __init__(self, **options: Any) -> None:
        self.session: Any = GroupTransactSession(**options)

    def transaction(self, timeout: float | None = None) -> Any:
        return self.session.transaction(timeout)

    def assignment(self) -> frozenset[Any]:
        return self.session.assignment()  # type: ignore[no-any-return]

    def close(self, timeout: float = 10.0) -> None:
        self.session.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Block:
    """A transaction of the asyncio session, for tests that do not await."""

    def __init__(self, client: Looped, timeout: float | None) -> None:
        self._client = client
        self._txn = client.session.transaction(timeout)

    def __enter__(self) -> Self:
        self._client.run(self._txn.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.run(self._txn.__aexit__(kind, error, trace))

    def poll(self, timeout: float | None = 1.0) -> Any:
        return self._client.run(self._txn.poll(timeout))

    def poll_arrow(self, timeout: float | None = 1.0) -> Any:
        return self._client.run(self._txn.poll_arrow(timeout))

    def send(self, *arguments: Any, **options: Any) -> Any:
        return self._client.run(self._txn.send(*arguments, **options))

    def send_arrow(self, *arguments: Any, **options: Any) -> Any:
        return self._client.run(self._txn.send_arrow(*arguments, **options))

    def seek(self, *arguments: Any) -> None:
        self._client.run(self._txn.seek(*arguments))

    def abort(self) -> None:
        self._client.run(self._txn.abort())

    @property
    def committed(self) -> bool | None:
        return self._txn.committed  # type: ignore[no-any-return]

    @property
    def is_doomed(self) -> bool:
        return self._txn.is_doomed  # type: ignore[no-any-return]


class Looped(Threaded):
    """The asyncio session."""

    name = "asyncio"

    def __init__(self, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.session = self.run(self._open(options))

    async def _open(self, options: dict[str, Any]) -> Any:
        return await AioSession(**options).__aenter__()

    def run(self, awaitable: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(awaitable, self._loop).result(SECONDS)

    def transaction(self, timeout: float | None = None) -> Any:
        return _Block(self, timeout)

    def close(self, timeout: float = 10.0) -> None:
        if self._loop.is_closed():
            return
        try:
            self.run(self.session.close(timeout))
            self.run(self._loop.shutdown_default_executor())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(SECONDS)
            self._loop.close()


APIS = {one.name: one for one in (Threaded, Looped)}
BOTH_APIS = pytest.mark.parametrize("session_class", [Threaded, Looped], ids=list(APIS))
