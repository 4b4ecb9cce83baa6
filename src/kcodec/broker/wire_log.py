# SPDX-License-Identifier: Apache-2.0
"""The latest requests and responses of the broker, for assertions in tests and for a trace file."""

from __future__ import annotations

import contextlib
import json
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from kcodec.arguments import meant_by
from kcodec.protocol import messages

_log = logging.getLogger(__name__)
#: The limits of the wire log.
MOST_ENTRIES = 10_000
MOST_BYTES = 64 << 20


@dataclass(slots=True)
class WireEntry:
    """One request, and its response as far as there is one.

    time_ms:        Time of arrival, in ms since 1970.
    connection_id:  Number of the connection.
    client_id:      Client id of the request.
    correlation_id: Correlation id of the request.
    api, version:   Name and version of the API.
    request:        The request, a message of kcodec.protocol.
    size:           Bytes of the request frame, and of the response frame once it exists.
    fault:          The rule that was applied to the request, or None.
    response:       The response, a message of kcodec.protocol. None if there is no response, or not yet.
    """

    time_ms: int
    connection_id: int
    client_id: str | None
    correlation_id: int
    api: str
    version: int
    request: Any
    size: int
    response: Any = None
    fault: Any = None
    _is_kept: bool = field(default=True, init=False, repr=False)


class WireLog:
    """The latest requests and responses: at most MOST_ENTRIES, and at most MOST_BYTES of both.

    on_response: Called with each entry when its response is sent.
    """

    def __init__(self) -> None:
        self._entries: deque[WireEntry] = deque()
        self._bytes = 0
        self.on_response: Callable[[WireEntry], None] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[WireEntry]:
        return iter(list(self._entries))

    def add(self, entry: WireEntry) -> None:
        """Add a request, and remove the oldest entries above the limits."""
        self._entries.append(entry)
        self._bytes += entry.size
        self._forget_oldest()

    def add_response(self, entry: WireEntry, size: int) -> None:
        """Count the bytes of the response that has been added to an entry."""
        if entry._is_kept:
            entry.size += size
            self._bytes += size
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self._entries) > MOST_ENTRIES or self._bytes > MOST_BYTES:
            oldest = self._entries.popleft()
            oldest._is_kept = False
            self._bytes -= oldest.size

    def requests(self, api: str | None = None, client: str | None = None) -> list[WireEntry]:
        """Return the entries of an API ("Produce"), of a client, or all, in the order of arrival.

        Raise ValueError if Kafka has no API of this name.
        """
        found = [one for one in self if api in (None, one.api) and client in (None, one.client_id)]
        if api is not None and not found:
            known = {request.__name__.removesuffix("Request") for request in messages.all_requests().values()}
            if api not in known:
                raise ValueError(f"Kafka has no API {api!r}{meant_by(str(api), known)}")
        return found

    def clear(self) -> None:
        """Forget all entries."""
        for entry in self._entries:
            entry._is_kept = False
        self._entries.clear()
        self._bytes = 0


class TraceFile:
    """A file to which entries are written as lines of JSON. Raise OSError if it cannot be opened.

    A write that fails ends the trace with a log message; the clients do not see it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file: TextIO | None = path.open("a", buffering=1)
        except OSError as error:
            raise OSError(error.errno, f"the trace file cannot be opened: {error.strerror}", str(path)) from error

    def write(self, entry: WireEntry) -> None:
        """Write an entry, unless the trace has ended."""
        if self._file is not None:
            try:
                print(trace_line(entry), file=self._file)
            except OSError as error:
                _log.error("%s: %s; the trace ends here, and the broker goes on without it", self._path, error.strerror)
                self.close()

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # close also writes what a failed write has left in the buffer
                file.close()


def trace_line(entry: WireEntry) -> str:
    """Return an entry as one line of JSON, with the messages as their reprs, which hide secrets."""
    return json.dumps(
        {
            "time_ms": entry.time_ms,
            "connection": entry.connection_id,
            "client": entry.client_id,
            "correlation_id": entry.correlation_id,
            "api": entry.api,
            "version": entry.version,
            "request": repr(entry.request),
            "response": None if entry.response is None else repr(entry.response),
            "fault": None if entry.fault is None else repr(entry.fault),
        }
    )
