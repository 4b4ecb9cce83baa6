# SPDX-License-Identifier: Apache-2.0
"""GSSAPI (RFC 4752), the mechanism of Kerberos: client and broker authenticate each other with Kerberos tickets.

The client's credentials come from a keytab, or from the credential cache that kinit fills. The Kerberos library
requests and caches the tickets; with a keytab, it also requests new ones. Its settings are in krb5.conf. A request to a
Kerberos server blocks, so the first step of a login runs on a worker thread.
"""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path

from kcodec.errors import AuthenticationError, TransportError, one_line
from kcodec.flow import MAX_HOST_CHARACTERS, Clock, Flow, Signal, blocking, join, spawn, wait
from kcodec.quantities import seconds_text
from kcodec.security.gssapi import GssError, SecurityContext, load
from kcodec.security.sasl import Exchange, ExchangeRefused

#: The broker's offer (RFC 4752, 3.1): a bit mask of security layers in one byte, the maximum size of messages in three.
#: Like Java's client, kcodec selects "no security layer".
OFFER_BYTES, NO_LAYER = 4, 1
#: The first bytes of a keytab: 5, and the version of its format.
KEYTAB_BEGINNINGS = (b"\x05\x01", b"\x05\x02")

# Errors of krb5.h with a specific remedy. The first two are transient.
KDC_UNREACHABLE, REALM_UNRESOLVED = -1765328228, -1765328164
NO_CACHE, NO_MATCHING_TICKET, TICKET_EXPIRED = -1765328189, -1765328243, -1765328352
CLIENT_UNKNOWN, SERVICE_UNKNOWN, WRONG_KEY, CLOCK_SKEW = -1765328378, -1765328377, -1765328360, -1765328347
_REMEDY = (
    "check krb5.conf, and the ticket (klist) or the keytab (klist -k); set the environment variable "
    "KRB5_TRACE=/dev/stderr to trace the Kerberos library"
)


class KerberosCredentials:
    """The credentials of a client: a keytab or a credential cache.

    keytab:    a file with keys; None for the default credential cache (KRB5CCNAME).
    principal: principal of the client; None for the first one in the keytab, or the default one of the cache.

    Raise ValueError if the keytab cannot be read, or if this machine has no Kerberos library.
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
        # The library never removes a cache in memory, so all clients of the process with this identity share one.
        identity = f"{Path(keytab or '').absolute()}\0{principal}"
        cache = f"MEMORY:kcodec-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"
        self._has_no_request()
        self._store = {} if keytab is None else {"client_keytab": f"FILE:{keytab}", "ccache": cache}

    def _has_no_request(self) -> None:
        self._is_requesting = False
        self._has_ended = Signal()

    def for_client(self) -> KerberosCredentials:
        """Return the same credentials without a request in progress."""
        found = copy.copy(self)
        found._has_no_request()
        return found

    def context(self, service: str, host: str) -> SecurityContext:
        """Return a new context with the service on a host."""
        return SecurityContext(f"{service}@{host}", self.principal, self._store)

    def remedy(self, code: int) -> str:
        """Return what to do about an error of Kerberos."""
        if code in (NO_CACHE, NO_MATCHING_TICKET, TICKET_EXPIRED):
            if self.keytab is None:
                return "run kinit, or set sasl_kerberos_keytab and sasl_kerberos_principal"
            for_principal = f" for {self.principal!r}" if self.principal else ""
            return f"check that the keytab {self.keytab!r} has a key{for_principal} (klist -k shows its principals)"
        return {
            CLIENT_UNKNOWN: "check sasl_kerberos_principal and its realm",
            SERVICE_UNKNOWN: "check sasl_kerberos_service_name; the host name in bootstrap_servers and "
            "advertised.listeners must be that of the broker's principal, unless krb5.conf changes it "
            "(dns_canonicalize_hostname, rdns)",
            WRONG_KEY: "the keytab contains an outdated key: export the keytab again",
            CLOCK_SKEW: "check the clocks of this machine, of the broker and of the Kerberos server",
        }.get(code, _REMEDY)

    def first_token(self, context: SecurityContext, host: str, clock: Clock, timeout: float) -> Flow[bytes]:
        """Return the client's first token, for which the library may request tickets from a Kerberos server.

        Raise AuthenticationError without usable credentials, TransportError if no Kerberos server responds within
        `timeout` seconds.
        """
        name = f"SASL GSSAPI on {one_line(host, MAX_HOST_CHARACTERS)}"
        late = f"{name}: no Kerberos server has issued a ticket within {seconds_text(timeout)}; {_REMEDY}"
        deadline = clock() + timeout
        # A request cannot be interrupted. One at a time keeps to one thread, however often a login is repeated.
        while self._is_requesting:
            if not (yield from wait(self._has_ended, max(deadline - clock(), 0.0))):
                raise TransportError(late)
        self._is_requesting = True
        task = yield from spawn(self._request(context), "Kerberos ticket")
        try:
            found = yield from join(task, max(deadline - clock(), 0.0))
        except TimeoutError:
            raise TransportError(late) from None
        if isinstance(found, bytes):
            return found
        if found.code in (KDC_UNREACHABLE, REALM_UNRESOLVED):
            raise TransportError(f"{name}: {found.reason}; {_REMEDY}")
        raise AuthenticationError(f"{name}: {found.reason}; {self.remedy(found.code)}")

    def _request(self, context: SecurityContext) -> Flow[bytes | GssError]:
        """Make the first token on a worker thread; return the error of the library if it fails."""
        try:
            return (yield from blocking(lambda: context.step(b"")))
        except GssError as error:
            return error
        finally:
            self._is_requesting = False
            self._has_ended.set()

    def exchange(self, context: SecurityContext, token: bytes) -> Exchange:
        """Run the client's side of the exchange. token: the first token. Raise ExchangeRefused if the broker cannot be
        authenticated, or if it requires a security layer of SASL."""
        try:
            while not context.is_established:
                token = context.step((yield token))
            offer = context.unwrap((yield token))
            if len(offer) != OFFER_BYTES or not offer[0] & NO_LAYER:
                raise ExchangeRefused(
                    "the broker requires a security layer of SASL (javax.security.sasl.qop)",
                    "kcodec encrypts with TLS only: use SASL_SSL, and remove the setting from the broker",
                )
            # No security layer, 0 as the maximum size of its messages, and no authorization identity.
            yield context.wrap(bytes([NO_LAYER, 0, 0, 0]))
        except GssError as error:
            raise ExchangeRefused(f"the broker's message cannot be verified: {error.reason}", _REMEDY) from None


def _check_keytab(path: str) -> None:
    try:
        with Path(path).open("rb") as file:
            beginning = file.read(2)
    except OSError as error:
        raise ValueError(f"sasl_kerberos_keytab: {path!r} cannot be read: {error.strerror}") from None
    if beginning not in KEYTAB_BEGINNINGS:
        raise ValueError(f"sasl_kerberos_keytab: {path!r} is not a keytab, as it begins with {beginning!r}")
