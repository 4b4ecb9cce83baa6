# SPDX-License-Identifier: Apache-2.0
"""TLS of the broker's listener: the layer between a socket and a connection, and its TLS context.

The TLS layer of asyncio ends a failed handshake without the alert that reports the reason to the client.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kcodec.broker.settings import BrokerSettings

if TYPE_CHECKING:
    import ssl

_log = logging.getLogger(__name__)
#: Time for a TLS handshake.
HANDSHAKE_SECONDS = 10
#: The names of attributes in a subject: in Python, and in RFC 2253.
_KEYWORDS = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
#: Attributes without a name in RFC 2253: their object identifiers, and the tags of their values, which are encoded.
_ENCODED = {"emailAddress": ("1.2.840.113549.1.9.1", 0x16), "serialNumber": ("2.5.4.5", 0x13)}


def server_context(settings: BrokerSettings) -> ssl.SSLContext:
    """Return the TLS context of the listeners. Raise ValueError if a file cannot be used."""
    from kcodec.security.tls import make_server_context

    options = {name: getattr(settings, name) for name in ("ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_cafile")}
    return make_server_context(options, client_auth=settings.ssl_client_auth)


def distinguished_name(certificate: Mapping[str, Any]) -> str:
    """Return the subject of a certificate as Java writes it (RFC 2253), which is the name of the client's principal.

    certificate: What SSLObject.getpeercert() returns.
    """
    return ",".join(
        "+".join(_attribute(key, value) for key, value in attributes)
        for attributes in reversed(certificate.get("subject", ()))
    )


def _attribute(key: str, value: str) -> str:
    if key in _ENCODED:
        oid, tag = _ENCODED[key]
        return f"{oid}=#{tag:02x}{len(value):02x}{value.encode().hex()}"
    text = re.sub(r'([,+"\\<>;=])', r"\\\1", value)
    if text[:1] in ("#", " "):
        text = "\\" + text
    return f"{_KEYWORDS.get(key, key)}=" + (text[:-1] + "\\ " if text.endswith(" ") and len(value) > 1 else text)


class ListenerTls(asyncio.Transport, asyncio.Protocol):
    """The protocol of a socket, and the transport of the connection behind it.

    began, ended: Called when the TLS handshake begins and ends. `inner` gets the transport after the handshake.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        inner: asyncio.BufferedProtocol,
        began: Callable[[ListenerTls], None],
        ended: Callable[[ListenerTls], None],
    ) -> None:
        super().__init__()
        import ssl

        self._ssl = ssl
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._inner = inner
        self._began, self._ended = began, ended
        self._is_open = self._is_paused = False
        self._socket: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def transport(self) -> asyncio.BaseTransport | None:
        """The transport of the socket while it is open, otherwise None."""
        return self._socket

    # The socket's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self._socket = transport
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_SECONDS, transport.abort)
        self._began(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._end_handshake()
        self._socket = None
        if self._is_open:
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._incoming.write(data)
        self._read()

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        if self._is_open:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        if self._is_open:
            self._inner.resume_writing()

    def _read(self) -> None:
        try:
            if not self._is_open:
                self._tls.do_handshake()
                self._end_handshake()
                self._is_open = True
                self._inner.connection_made(self)
            while self._socket is not None and not self._socket.is_closing() and not self._is_paused:
                buffer: Any = self._inner.get_buffer(-1)
                count: Any = self._tls.read(len(buffer), buffer)
                if not count:
                    self.close()
                    return
                self._inner.buffer_updated(count)
        except self._ssl.SSLWantReadError:
            pass
        except self._ssl.SSLError as error:  # its alert is what goes out last
            _log.info("TLS: %s", error.reason or error)
            self._flush()
            if self._socket is not None:
                self._socket.close()
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending and self._socket is not None and not self._socket.is_closing():
            self._socket.write(self._outgoing.read())

    def _end_handshake(self) -> None:
        self._ended(self)
        if self._timer is not None:
            self._timer.cancel()

    # The connection's transport

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """See asyncio.Transport. Never raise: the caller may be handling the request of another client."""
        if self._socket is None or self._socket.is_closing():
            return
        try:
            for part in list_of_data:
                if part:
                    self._tls.write(part)
        except self._ssl.SSLError as error:
            _log.info("TLS: %s", error.reason or error)
            self._socket.abort()
        self._flush()

    def close(self) -> None:
        """See asyncio.Transport."""
        try:
            self._tls.unwrap()
        except self._ssl.SSLError as error:  # the client need not confirm the end
            _log.debug("TLS: %s", error.reason)
        self._flush()
        if self._socket is not None:
            self._socket.close()

    def abort(self) -> None:
        """See asyncio.Transport."""
        if self._socket is not None:
            self._socket.abort()

    def pause_reading(self) -> None:
        """See asyncio.Transport."""
        self._is_paused = True
        if self._socket is not None:
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        """See asyncio.Transport."""
        self._is_paused = False
        if self._socket is not None:
            self._socket.resume_reading()
            asyncio.get_running_loop().call_soon(self._read)

    def get_write_buffer_size(self) -> int:
        """See asyncio.Transport."""
        return 0 if self._socket is None else self._socket.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio.Transport."""
        if name == "peercert":
            return self._tls.getpeercert() or default
        return default if self._socket is None else self._socket.get_extra_info(name, default)
