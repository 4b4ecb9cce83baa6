# SPDX-License-Identifier: Apache-2.0
"""TLS on bytes in memory, by the standard library, so that both I/O loops can use it."""

from __future__ import annotations

import ssl

# What is received at once; records of TLS are of 16 KiB.
CIPHER_BYTES = 256 * 1024
READ_BYTES = 256 * 1024


class TlsLayer:
    """The client's side of one TLS connection. `server_hostname` is for SNI and the verification of the name.

    `error_type` is the error that its methods raise. A connection without TLS does not import `ssl`.
    """

    error_type = ssl.SSLError

    def __init__(self, context: ssl.SSLContext, server_hostname: str | None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        #: Where the transport puts what it receives.
        self.buffer = memoryview(bytearray(CIPHER_BYTES))
        self.is_established = False
        self.is_ended = False

    def receive(self, data: bytes) -> bytes:
        """Process received bytes, advance the handshake, and return decrypted bytes. Raise ssl.SSLError."""
        if data:
            self._incoming.write(data)
        if not self.is_established:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                return b""
            self.is_established = True
        pieces = []
        while not self.is_ended:
            try:
                piece = self._object.read(READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                piece = b""
            if not piece:
                self.is_ended = True
                break
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def send(self, data: bytes | memoryview) -> None:
        """Encrypt bytes, which `outgoing` then returns."""
        if len(data):
            self._object.write(data)

    def outgoing(self) -> bytes:
        """Return the bytes to send."""
        return self._outgoing.read()
