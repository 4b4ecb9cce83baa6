# SPDX-License-Identifier: Apache-2.0
"""How a client proves itself and makes brokers prove themselves: one `Security` a client, made from its options.

It hands the connection what it needs (a TLS context, a flow that logs in) and keeps the secrets: nothing it shows,
logs or raises holds one, and it cannot be pickled. The modules beside this one are loaded when they are needed.
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

log = logging.getLogger("kcodec.client")

#: Seconds for each request of a login (Kafka: request.timeout.ms).
REQUEST_SECONDS = 30.0


class Security:
    """TLS and SASL of one client. Make it by `from_options`.

    >>> Security.from_options({})
    <Security PLAINTEXT>
    """

    def __init__(self, protocol: str, context: ssl.SSLContext | None, mechanism: Mechanism | None, name: str) -> None:
        self.protocol = protocol
        self.mechanism_name = name
        self._context = context
        self._mechanism = mechanism
        self._has_warned = False

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> Security:
        """From the options of SECURITY_OPTIONS; others are not looked at. docs/security.md tells what each does.

        Files are read here, once. Raises ValueError for what cannot be used or would have no effect (a password without
        SASL is a mistake, not a wish), TypeError for a wrong type; neither shows a secret.
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
        context, mechanism = None, None
        if with_tls:
            from kcodec.security.tls import make_context

            context = make_context(options)
        if with_sasl:
            from kcodec.security.mechanisms import make_mechanism

            mechanism = make_mechanism(options)
        return cls(protocol, context, mechanism, str(options["sasl_mechanism"]) if with_sasl else "")

    def __repr__(self) -> str:
        parts = [self.protocol, self.mechanism_name, self._mechanism.principal if self._mechanism else ""]
        return f"<Security {' '.join(part for part in parts if part)}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("Security holds secrets and is not pickled: make it from options where it is needed")

    def tls_context(self) -> ssl.SSLContext | None:
        """The context for every connection, None without TLS."""
        return self._context

    def server_hostname(self, host: str) -> str | None:
        """The name to ask for and to verify, None without TLS: as dialled, without a final dot or an IPv6 scope."""
        if self._context is None:
            return None
        return host.rstrip(".").partition("%")[0]

    def tls_error(self, error: ssl.SSLError, place: str) -> TransportError:
        """One clear error for what TLS raised with the broker at `place`, in the handshake or later."""
        from kcodec.security.tls import failure

        return failure(error, place)

    def authenticate(self, host: str, clock: Clock, timeout: float = REQUEST_SECONDS) -> Flow[float | None] | None:
        """None without SASL, else the flow that logs in on the connection carrying it, for the first time or again
        (KIP-368). It returns the seconds for which the session holds, None for ever.

        It raises AuthenticationError if one side refuses the other, TransportError if the connection fails or no token
        came in time. timeout: seconds for each request.
        """
        mechanism = self._mechanism
        if mechanism is None:
            return None
        if self._context is None and mechanism.SHOWS_SECRET and not self._has_warned:
            self._warn(host)
        return mechanism.login(host, clock, timeout)

    def _warn(self, host: str) -> None:
        from kcodec.security.sasl import is_loopback

        if not is_loopback(host):
            self._has_warned = True
            log.warning("SASL %s without TLS shows its secret to the network of %s", self.mechanism_name, host)
