# SPDX-License-Identifier: Apache-2.0
"""GSSAPI (RFC 4752), the mechanism of Kerberos: client and broker prove themselves with tickets of a Kerberos server.

The client's credentials come from a keytab, or from the credential cache that kinit fills. The library of Kerberos
requests the tickets and keeps them; with a keytab, it also replaces them before they expire. Its settings are in
krb5.conf. A request to a Kerberos server blocks, so the first step of a login runs on a worker thread.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from kcodec.errors import AuthenticationError, TransportError, one_line
from kcodec.flow import MAX_HOST_CHARACTERS, Flow, blocking, join, spawn
from kcodec.quantities import seconds_text
from kcodec.security.gssapi import GssError, SecurityContext, load
from kcodec.security.sasl import Exchange, ExchangeRefused

#: The broker's offer (RFC 4752, 3.1): one byte of security layers, three bytes of size. The client chooses no layer, as
#: Java's client does: TLS protects what follows.
OFFER_BYTES, NO_LAYER = 4, 1
#: What a keytab begins with: 5, and the version of its format.
KEYTAB_BEGINNINGS = (b"\x05\x01", b"\x05\x02")

# Errors of krb5.h that have a remedy of their own. The first two pass when a Kerberos server can be reached again.
KDC_UNREACHABLE, REALM_UNRESOLVED = -1765328228, -1765328164
NO_CACHE, NO_MATCHING_TICKET, TICKET_EXPIRED = -1765328189, -1765328243, -1765328352
CLIENT_UNKNOWN, SERVICE_UNKNOWN, WRONG_KEY, CLOCK_SKEW = -1765328378, -1765328377, -1765328360, -1765328347
_REMEDY = (
    "check krb5.conf, and the ticket (klist) or the keytab (klist -k); with the environment variable "
    "KRB5_TRACE=/dev/stderr, the library of Kerberos prints what it does"
)


class KerberosCredentials:
    """Where the credentials of a client come from.

    keytab:    a file with keys; None for the default credential cache (KRB5CCNAME).
    principal: who logs in; None for the first principal of the keytab, or that of the cache.

    Raises ValueError if the keytab cannot be read, or if this machine has no library of Kerberos.
    """

    def __init__(self, keytab: str | None, principal: str | None) -> None:
        self.keytab = keytab
        self.principal = principal
        try:
            load()
        except OSError as error:
            raise ValueError(f"sasl_mechanism 'GSSAPI': {error}") from None
        if keytab is not None:
            _check_keytab(keytab)
        # Tickets of a keytab stay in the memory of this client, and later logins use them, too.
        cache = f"MEMORY:kcodec-{uuid.uuid4()}"
        self._store = {} if keytab is None else {"client_keytab": f"FILE:{keytab}", "ccache": cache}

    def context(self, service: str, host: str) -> SecurityContext:
        """Return a new context with the service on a host."""
        return SecurityContext(f"{service}@{host}", self.principal, self._store)

    def remedy(self, code: int) -> str:
        """Return what to do about an error of Kerberos."""
        if code in (NO_CACHE, NO_MATCHING_TICKET, TICKET_EXPIRED):
            if self.keytab is None:
                return "run kinit, or set sasl_kerberos_keytab and sasl_kerberos_principal"
            whom = f" for {self.principal!r}" if self.principal else ""
            return f"check that the keytab {self.keytab!r} has a key{whom} (klist -k shows its principals)"
        return {
            CLIENT_UNKNOWN: "check sasl_kerberos_principal and its realm",
            SERVICE_UNKNOWN: "check sasl_kerberos_service_name, and that bootstrap_servers and advertised.listeners "
            "have the host name for which the broker has a key",
            WRONG_KEY: "the key of the keytab is not the present one: export it again",
            CLOCK_SKEW: "check the clocks of this machine, of the broker and of the Kerberos server",
        }.get(code, _REMEDY)

    def first_token(self, context: SecurityContext, host: str, timeout: float) -> Flow[bytes]:
        """Return the client's first token, for which the library may request tickets of a Kerberos server.

        Raises AuthenticationError without usable credentials, TransportError if no Kerberos server responds within
        `timeout` seconds.
        """
        name = f"SASL GSSAPI on {one_line(host, MAX_HOST_CHARACTERS)}"
        task = yield from spawn(blocking(lambda: context.step(b"")), "ticket of Kerberos")
        try:
            return (yield from join(task, timeout))
        except TimeoutError:
            reason = f"no Kerberos server has issued a ticket within {seconds_text(timeout)}"
            raise TransportError(f"{name}: {reason}; {_REMEDY}") from None
        except GssError as error:
            if error.code in (KDC_UNREACHABLE, REALM_UNRESOLVED):
                raise TransportError(f"{name}: {error.reason}; {_REMEDY}") from None
            raise AuthenticationError(f"{name}: {error.reason}; {self.remedy(error.code)}") from None

    def exchange(self, context: SecurityContext, token: bytes) -> Exchange:
        """Run the client's side. token: the first one. Raises ExchangeRefused for a broker that does not prove itself,
        or that requires a security layer of SASL."""
        try:
            while not context.is_established:
                token = context.step((yield token))
            offer = context.unwrap((yield token))
            if len(offer) != OFFER_BYTES or not offer[0] & NO_LAYER:
                raise ExchangeRefused(
                    "the broker requires signatures or encryption by SASL (sasl.qop)",
                    "kcodec encrypts with TLS only: use SASL_SSL, and remove the setting from the broker",
                )
            # No layer, no messages of one, and no other name than that of the ticket.
            yield context.wrap(bytes([NO_LAYER, 0, 0, 0]))
        except GssError as error:
            raise ExchangeRefused(f"the broker's message is refused: {error.reason}", _REMEDY) from None


def _check_keytab(path: str) -> None:
    try:
        with Path(path).open("rb") as file:
            beginning = file.read(2)
    except OSError as error:
        raise ValueError(f"sasl_kerberos_keytab: {path!r} cannot be read: {error.strerror}") from None
    if beginning not in KEYTAB_BEGINNINGS:
        raise ValueError(f"sasl_kerberos_keytab: {path!r} is not a keytab, as it begins with {beginning!r}")
