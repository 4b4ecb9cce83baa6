# SPDX-License-Identifier: Apache-2.0
"""Mutual authentication of client and brokers: each client has one `Security`, made from its options.

It provides the connection with a TLS context and an authentication flow, and keeps the secrets. No secret appears in
its repr, logs or errors, and it cannot be pickled. The other modules of this package are loaded when they are needed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from kcodec.errors import TransportError
from kcodec.flow import Clock, Flow
from kcodec.security.option_names import PROTOCOLS, SASL_OPTIONS, TLS_OPTIONS

if TYPE_CHECKING:
    import ssl

    from kcodec.security.mechanisms import Mechanism
    from kcodec.security.tls import TlsContext

log = logging.getLogger("kcodec.client")

#: Seconds for each request of a login (Kafka: request.timeout.ms).
REQUEST_SECONDS = 30.0


class _Credentials:
    """The SASL mechanism of the clients that share a `Security`. `change_credentials` replaces it for all of them."""

    __slots__ = ("mechanism",)

    def __init__(self, mechanism: Mechanism | None) -> None:
        self.mechanism = mechanism


class Security:
    """TLS and SASL of one client, or of several. Create it with `from_options`.

    protocol: Kafka's name of the security protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
    tls: TLS context of all connections, from files that may change; None without TLS.
    mechanism: SASL mechanism; None without SASL.
    name: Kafka's name of the SASL mechanism; "" without SASL.

    >>> Security.from_options({})
    <Security PLAINTEXT>
    """

    def __init__(self, protocol: str, tls: TlsContext | None, mechanism: Mechanism | None, name: str) -> None:
        self.protocol = protocol
        self.mechanism_name = name
        self._tls = tls
        self._credentials = _Credentials(mechanism)
        self._mechanism = self._base = mechanism
        self._has_warned = False

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> Security:
        """Return the Security for the options of SECURITY_OPTIONS (see docs/security.md). Other options are ignored.

        Files are read here. Those of TLS are read again for a new connection if they have changed. Raise ValueError for
        an invalid option or one without effect (such as a password without SASL), TypeError for a wrong type. Neither
        shows a secret.
        """
        protocol = options.get("security_protocol")
        if protocol is None:
            protocol = "PLAINTEXT"
        if protocol not in PROTOCOLS:
            raise ValueError(f"security_protocol must be one of {', '.join(PROTOCOLS)}, not {protocol!r}")
        protocol = str(protocol)
        with_tls, with_sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
        for needed, names in ((with_tls, TLS_OPTIONS), (with_sasl, SASL_OPTIONS)):
            unused = sorted(name for name in names if options.get(name) is not None)
            if unused and not needed:
                raise ValueError(
                    f"{', '.join(unused)} would have no effect with security_protocol={protocol!r};"
                    f" did you mean {'SASL_SSL' if with_sasl or unused[0].startswith('sasl') else 'SSL'!r}?"
                )
        tls, mechanism = None, None
        if with_tls:
            from kcodec.security.tls import TlsContext

            tls = TlsContext(options)
        if with_sasl:
            from kcodec.security.mechanisms import make_mechanism

            mechanism = make_mechanism(options)
        return cls(protocol, tls, mechanism, str(options["sasl_mechanism"]) if with_sasl else "")

    def __repr__(self) -> str:
        mechanism = self._credentials.mechanism
        parts = [self.protocol, self.mechanism_name, mechanism.principal if mechanism else ""]
        return f"<Security {' '.join(part for part in parts if part)}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("Security holds secrets and cannot be pickled: create it from options where it is needed")

    def for_client(self) -> Security:
        """Return a Security for one client. It keeps the tokens and tickets of this client, because the flows of
        another client run in another thread or event loop. `change_credentials` of one of them applies to all."""
        found = Security(self.protocol, self._tls, None, self.mechanism_name)
        found._credentials = self._credentials
        return found

    def change_credentials(self, options: Mapping[str, object]) -> None:
        """Authenticate later connections with the credentials of these options; a session ends when it did before."""
        self._credentials.mechanism = type(self).from_options(options)._mechanism

    def _own_mechanism(self) -> Mechanism | None:
        """Return the mechanism with the tokens and tickets of this client."""
        if self._base is not self._credentials.mechanism:
            self._base = self._credentials.mechanism
            self._mechanism = None if self._base is None else self._base.for_client()
        return self._mechanism

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context for a new connection, None without TLS."""
        return None if self._tls is None else self._tls.current()

    def server_hostname(self, host: str) -> str | None:
        """Return the name to send and to verify, None without TLS: the host without a final dot or an IPv6 scope."""
        if self._tls is None:
            return None
        return host.rstrip(".").partition("%")[0]

    def tls_error(self, error: ssl.SSLError, place: str) -> TransportError:
        """Return one clear error for an error of TLS with the broker at `place`, in the handshake or later."""
        from kcodec.security.tls import failure

        return failure(error, place)

    def authenticate(self, host: str, clock: Clock, timeout: float = REQUEST_SECONDS) -> Flow[float | None] | None:
        """Return None without SASL, otherwise the flow that authenticates on its connection, once or again (KIP-368).

        The flow returns the lifetime of the session in seconds, None if it has no end. It raises AuthenticationError if
        one side rejects the other, TransportError if the connection fails or no token is available in time.

        host: host name of the broker, as in its address.
        clock: function that returns monotonic seconds.
        timeout: seconds for each request, and for the token or ticket.
        """
        mechanism = self._own_mechanism()
        if mechanism is None:
            return None
        if self._tls is None and mechanism.SHOWS_SECRET and not self._has_warned:
            self._warn(host)
        return mechanism.login(host, clock, timeout)

    def _warn(self, host: str) -> None:
        from kcodec.security.sasl import is_loopback

        if not is_loopback(host):
            self._has_warned = True
            log.warning(
                "SASL %s without TLS shows its secret to the network of %s; use SASL_SSL", self.mechanism_name, host
            )
