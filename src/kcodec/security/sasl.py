# SPDX-License-Identifier: Apache-2.0
"""SASL in Kafka's protocol: SaslHandshake names the mechanism, SaslAuthenticate transports its messages (KIP-43, 152).

A mechanism is an `Exchange`: a generator that yields the client's messages, is sent the server's messages, and returns
once it accepts the server. It does no I/O. `authenticate` runs it over a connection and turns a rejection by either
side into one `AuthenticationError`. Authenticating again on the same connection (KIP-368) is the same flow.

Larger mechanisms have their own modules (`scram`, `oauthbearer`, `aws_msk_iam`), as have passwords and tokens.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Generator, Sequence
from typing import Any

from kcodec.errors import AuthenticationError, one_line
from kcodec.flow import ANY_NODE, MAX_HOST_CHARACTERS, Flow, call
from kcodec.protocol.error_codes import ErrorCode, error_code
from kcodec.security.secret import Secret, hide

#: What the client says -> what the server says to it.
Exchange = Generator[bytes, bytes, None]

#: The longest exchange that is known takes three messages each way; a server that goes on asking is refused.
MAX_EXCHANGE_MESSAGES = 8
#: Of a broker's own words, this many characters are shown.
MAX_MESSAGE_CHARACTERS = 500
#: Of the mechanisms that a broker offers, errors name this many.
MAX_MECHANISMS = 16

#: Proofs, signatures and tokens in what we send: long, and in base64 or hexadecimal. Errors must not repeat them.
_PROOF = re.compile(r"[A-Za-z0-9+/=_-]{32,}")


class ExchangeRefused(Exception):
    """An exchange that cannot continue: the server's message, or what it failed to prove, and the remedy.

    reason: may contain ``{quoted}``, to be replaced by the server's words. quoted: these words, unchanged.
    """

    def __init__(self, reason: str, remedy: str, quoted: str | bytes = "") -> None:
        self._reason = reason
        self._quoted = quoted.decode(errors="backslashreplace") if isinstance(quoted, bytes) else quoted
        self.remedy = remedy
        self.reason = self.reason_without(())
        super().__init__(self.reason)

    def reason_without(self, secrets: Sequence[Secret]) -> str:
        """Return the reason with the server's words in it, without any secret that they quote."""
        return self._reason.replace("{quoted}", shown(self._quoted, secrets))


def plain(username: str, password: Secret) -> Exchange:
    """PLAIN (RFC 4616) sends name and password unprotected, so use it with TLS. As in Kafka, SASLprep is not applied.

    Raise ExchangeRefused for a NUL in either, which the mechanism cannot transport.
    """
    revealed = password.reveal()
    if "\0" in username or "\0" in revealed:
        raise ExchangeRefused("PLAIN cannot send a NUL character", "choose another user name or password")
    yield f"\0{username}\0{revealed}".encode()


def shown(text: str | None, secrets: Sequence[Secret] = ()) -> str:
    """Return a peer's words for one line of an error: without secrets, unprintable characters escaped, shortened to
    MAX_MESSAGE_CHARACTERS."""
    return one_line(hide(text or "", secrets), MAX_MESSAGE_CHARACTERS)


def authenticate(
    mechanism: str,
    exchange: Exchange,
    *,
    principal: str,
    host: str,
    remedy: str,
    timeout: float,
    secrets: Sequence[Secret] = (),
) -> Flow[float | None]:
    """Authenticate on the connection that runs this flow. Return the session's lifetime in seconds, None if it has no
    end.

    principal: for error texts, such as "user 'alice'"; empty if the mechanism has no name to show.
    remedy:    what to check if the broker rejects the login.
    timeout:   seconds for each request.
    secrets:   what the exchange sends or proves. They are removed from messages that the broker returns.

    Raise AuthenticationError if either side rejects the other, TransportError if the connection fails.
    """
    name = f"SASL {mechanism}{' as ' + principal if principal else ''} on {one_line(host, MAX_HOST_CHARACTERS)}"
    failure: AuthenticationError | None = None
    lifetime_ms = 0
    secrets = list(secrets)
    try:
        yield from _handshake(mechanism, name, timeout, secrets)
        lifetime_ms = yield from _converse(exchange, name, remedy, timeout, secrets)
    except ExchangeRefused as refused:
        failure = AuthenticationError(f"{name}: {refused.reason_without(secrets)}; {refused.remedy}")
    finally:
        exchange.close()
    if failure is not None:
        raise failure  # outside of the except clause: its context would be the refusal, which quotes the server
    return lifetime_ms / 1000 if lifetime_ms > 0 else None


def _handshake(mechanism: str, name: str, timeout: float, secrets: Sequence[Secret]) -> Flow[None]:
    from kcodec.protocol.messages.auth import SaslHandshakeRequest

    # Version 0 would mean that the exchange follows without frames of its own, and without errors in words.
    reply = yield from call(ANY_NODE, SaslHandshakeRequest(mechanism=mechanism), timeout=timeout, lowest=1)
    code = reply.message.error_code
    if code == ErrorCode.NONE:
        return
    offered = ", ".join(shown(each, secrets) for each in reply.message.mechanisms[:MAX_MECHANISMS]) or "nothing"
    advice = {
        ErrorCode.UNSUPPORTED_SASL_MECHANISM: f"this listener supports {offered}: set sasl_mechanism to one of these",
        ErrorCode.ILLEGAL_SASL_STATE: (
            "this listener does not expect SASL here; check that security_protocol matches the listener"
        ),
    }
    raise AuthenticationError(f"{name}: {advice.get(code, error_code(code).text)} [{error_code(code).name}, {code}]")


def _converse(exchange: Exchange, name: str, remedy: str, timeout: float, secrets: list[Secret]) -> Flow[int]:
    """Exchange messages until both sides agree. The messages sent are added to `secrets`."""
    from kcodec.protocol.messages.auth import SaslAuthenticateRequest

    said = next(exchange)
    for _ in range(MAX_EXCHANGE_MESSAGES):
        secrets += [Secret(proof) for proof in _PROOF.findall(said.decode("latin-1"))]
        request = SaslAuthenticateRequest(auth_bytes=said)
        response = (yield from call(ANY_NODE, request, timeout=timeout)).message
        if response.error_code:
            raise AuthenticationError(_refusal(response, name, remedy, secrets))
        try:
            said = exchange.send(bytes(response.auth_bytes))
        except StopIteration:
            return int(response.session_lifetime_ms)
    raise AuthenticationError(f"{name}: the exchange is not complete after {MAX_EXCHANGE_MESSAGES} messages")


def _refusal(response: Any, name: str, remedy: str, secrets: Sequence[Secret]) -> str:
    row = error_code(response.error_code)
    reason = f"{name}: {shown(response.error_message, secrets) or row.text}"
    if response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED:
        reason += f"; {remedy}"
    return f"{reason} [{row.name}, {row.code}]"


def json_object(text: bytes | str) -> dict[str, Any]:
    """Return the JSON object that a peer sent; empty for anything else."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def is_loopback(host: str) -> bool:
    """Return whether a host name means this machine, by the name alone, without a lookup.

    Data sent there unencrypted does not cross a network.
    """
    if host.lower().rstrip(".") in {"localhost", "localhost.localdomain"}:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
