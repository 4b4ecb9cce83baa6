# SPDX-License-Identifier: Apache-2.0
"""Imports that must be complete before a client's threads start.

A client's threads are daemons. If the interpreter exits while one of them is inside an import, the import lock is never
released, and the main thread waits for it forever. All modules that flows, name lookups, logging and codecs import on
first use are therefore imported here, on the thread that creates the client. tests/network/test_client_exit.py checks
that the threads import nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module

from kcodec.protocol import messages

#: Modules that the standard library, the extension or a warning import where they use them: UUIDs of topics, host names
#: (getaddrinfo, and SNI of TLS), names in the order of Java strings (UTF-16), dates of timestamps, and the source lines
#: and allocation sites of tracebacks and warnings.
_LATE = (
    *("uuid", "encodings.idna", "encodings.utf_16_be", "datetime"),
    *("traceback", "linecache", "tokenize", "tracemalloc"),
)
#: Compression -> the package that the extension imports with the first batch.
_CODECS = {"gzip": "zlib", "lz4": "lz4.block", "zstd": "zstandard"}


def load_for_flows(*, uses_tls: bool) -> None:
    """Import the modules that every client needs later. This takes some milliseconds, once in a process.

    `kcodec.admin.flows` imports the messages of Admin. The connections of a client with TLS need one more module.
    """
    messages.load_core()
    for name in _LATE:
        import_module(name)
    if uses_tls:
        import_module("kcodec.network.tls_layer")


def load_codec(compression_type: object) -> None:
    """Import the package for this compression type, if one is needed and installed."""
    package = _CODECS.get(str(compression_type))
    if package is not None and package not in sys.modules:
        import_module(package)
