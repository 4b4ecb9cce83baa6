# SPDX-License-Identifier: Apache-2.0
"""OAUTHBEARER (RFC 7628, KIP-255, extensions KIP-342): the exchange, and the tokens for it.

The broker verifies tokens, the client does not. Tokens are fetched on a worker thread, kept while they are valid, and
replaced at 80 % of their lifetime (KIP-368, KIP-768). A fetch may block (HTTP, a file, a vendor's library), so it never
runs in the event loop. A login uses the current token or waits for the fetch under way. There is one fetch at a time,
however many connections log in.
"""

from __future__ import annotations

import base64
import inspect
import logging
import math
import random
import re
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from kcodec.errors import AuthenticationError, TransportError
from kcodec.flow import Clock, Flow, Signal, blocking, keep_running, sleep, spawn, wait
from kcodec.quantities import seconds_text
from kcodec.security.sasl import Exchange, ExchangeRefused, json_object
from kcodec.security.secret import Secret

log = logging.getLogger("kcodec.client")

#: A token is replaced when so much of its life is over (Kafka: sasl.login.refresh.window.factor).
REFRESH_FACTOR = 0.8
#: No sooner than this after the last fetch, whatever the token says. (Kafka's sasl.login.refresh.min.period.seconds is
#: 60, which a token of a minute would not survive.)
MINIMUM_REFRESH_SECONDS = 1.0
#: Pauses between fetches that failed: doubled from the first to the last (Kafka: sasl.login.retry.backoff).
RETRY_SECONDS = (0.1, 10.0)
#: How long a connection waits for a first token.
FETCH_SECONDS = 30.0
#: Longer tokens than this are a mistake; a broker refuses them anyway (sasl.server.max.receive.size).
MAXIMUM_TOKEN_CHARACTERS = 512 * 1024


# RFC 6750 2.1: what a bearer token may be made of.
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
# RFC 7628 3.1: the name and the value of a key-value pair.
_NAME = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]*")
_SEPARATOR = "\x01"
_REMEDY = "check the token, its audience and scope, and that it has not expired"


def check_extensions(extensions: Mapping[str, str]) -> None:
    """Raise ValueError for an extension that RFC 7628 does not allow, or that is named auth."""
    for name, value in extensions.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name == "auth":
            raise ValueError(
                f"sasl_oauthbearer_extensions: {name!r} is not a valid name; use letters only, and not the name auth"
            )
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise ValueError(
                f"sasl_oauthbearer_extensions: the value of {name!r} contains characters that cannot be sent"
            )


def oauthbearer(token: Secret, extensions: Mapping[str, str]) -> Exchange:
    """Run the client's side. Raise ExchangeRefused if the token is invalid, or rejected with an error in JSON."""
    if not _TOKEN.fullmatch(token.reveal()):
        raise ExchangeRefused(
            "the token is empty, or contains characters that a bearer token must not have (RFC 6750)",
            "the token provider must return the bare token, without 'Bearer' and without a line break",
        )
    pairs = "".join(f"{name}={value}{_SEPARATOR}" for name, value in extensions.items())
    message = f"n,,{_SEPARATOR}auth=Bearer {token.reveal()}{_SEPARATOR}{pairs}{_SEPARATOR}"
    refusal = yield message.encode()
    if refusal:
        # RFC 7628 3.2.3: the reason comes as JSON; only when we have said this does the broker end the exchange, with
        # an error code, which is then what the caller sees.
        yield _SEPARATOR.encode()
        raise ExchangeRefused("the broker responded {quoted}", _REMEDY, refusal)


class FetchedToken(NamedTuple):
    """A token and its lifetime in seconds; None if the lifetime is unknown."""

    token: Secret
    lifetime: float | None


class TransientTokenError(Exception):
    """A fetch failed for a reason that may pass. It is retried until the logins that wait for it time out."""


#: Blocks until there is a token. Raises TransientTokenError, or AuthenticationError when asking again will not help.
Fetch = Callable[[], FetchedToken]


def from_provider(provider: Any, wall_clock: Callable[[], float] = time.time) -> Fetch:
    """Return a fetch function for sasl_oauth_token_provider: a callable, or an object with a method `token`.

    Either may be plain or async. It returns the token, or (token, lifetime in seconds). The lifetime of a JWT is read
    from its claims. Raise TypeError for anything else.
    """
    provide = getattr(provider, "token", None) or provider
    if not callable(provide):
        raise TypeError(
            "sasl_oauth_token_provider must be callable, or have a method token, and return a str or (str, seconds);"
            f" got a {type(provider).__name__}"
        )
    # A provider may be async. `fetch` runs on a daemon thread, which must not import (kcodec.network.preload).
    import_module("asyncio")

    def fetch() -> FetchedToken:
        try:
            given = provide()
            if inspect.isawaitable(given):
                given = _run(given)
        except (TransientTokenError, AuthenticationError):
            raise
        except Exception as error:  # of the application's code, mostly because a server is unavailable
            # Its text comes from the provider and may contain secrets, so it stays in the cause.
            raise TransientTokenError(f"sasl_oauth_token_provider raised {type(error).__name__}") from error
        return _checked(given, wall_clock)

    return fetch


def _run(awaitable: Any) -> Any:
    import asyncio  # from_provider did so before

    async def whole() -> Any:
        return await awaitable

    return asyncio.run(whole())


def _checked(given: Any, wall_clock: Callable[[], float]) -> FetchedToken:
    token, lifetime = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if isinstance(token, bytes):
        token = token.decode("ascii", "replace")
    if isinstance(token, str):
        token = _as_secret(token)
    if not isinstance(token, Secret):
        raise AuthenticationError(
            f"sasl_oauth_token_provider returned a {type(token).__name__}; expected str or (str, lifetime in seconds)"
        )
    length = len(token.reveal())
    if not 0 < length <= MAXIMUM_TOKEN_CHARACTERS:
        raise AuthenticationError(
            f"sasl_oauth_token_provider returned a token of {length} characters, not 1 to {MAXIMUM_TOKEN_CHARACTERS}"
        )
    if lifetime is None:
        return FetchedToken(token, lifetime_of(token, wall_clock()))
    seconds = as_number(lifetime)
    if seconds is None or seconds <= 0:
        raise AuthenticationError(
            f"sasl_oauth_token_provider returned a lifetime of {lifetime!r} seconds; expected a positive number"
        )
    return FetchedToken(token, seconds)


def _as_secret(token: str) -> Secret:
    try:
        return Secret(token)
    except ValueError as error:
        raise AuthenticationError(f"sasl_oauth_token_provider: {error}") from None


def lifetime_of(token: Secret, wall_time: float) -> float | None:
    """Return the remaining lifetime of a JWT in seconds by its own claims, None if it is opaque or has no such claim.

    Nothing is verified, as the broker does that. If this machine's clock contradicts the claimed times, only their
    difference is used.
    """
    claims = _claims(token)
    expires, issued = as_number(claims.get("exp")), as_number(claims.get("iat"))
    if expires is None:
        return None
    left = expires - wall_time
    span = expires - issued if issued is not None else left
    if 0 < left <= span:
        return left
    return span if span > 0 else None


def _claims(token: Secret) -> dict[str, Any]:
    parts = token.reveal().split(".")
    if len(parts) != 3:
        return {}
    try:
        return json_object(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return {}


def as_number(value: Any) -> float | None:
    """Return a finite number as float, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


class TokenSource:
    """Keeps one token valid for all connections of a client. name: the origin of the tokens, without any secret.

    A token without a lifetime is used once: each login fetches another.
    """

    def __init__(self, fetch: Fetch, name: str) -> None:
        self.name = name
        self._fetch = fetch
        self._token: Secret | None = None
        self._expires = -math.inf
        self._fetched = 0
        self._waiting = 0
        self._running = False
        self._failure: Exception | None = None
        self._changed = Signal()
        self._renewal_requested = Signal()

    def for_client(self) -> TokenSource:
        """Return a source without tokens that fetches its own in the same way."""
        return TokenSource(self._fetch, self.name)

    def __repr__(self) -> str:
        return f"<TokenSource {self.name}, {self._fetched} fetched>"

    def get(self, clock: Clock, timeout: float = FETCH_SECONDS) -> Flow[Secret]:
        """Return a token that has not expired; wait for one if necessary.

        Raise AuthenticationError if the token provider refuses, TransportError if it cannot be reached in time.
        """
        if self._token is not None and clock() < self._expires:
            return self._token
        seen, deadline = self._fetched, clock() + timeout
        self._failure = None
        self._waiting += 1
        try:
            self._renewal_requested.set()
            while self._fetched == seen and not isinstance(self._failure, AuthenticationError) and clock() < deadline:
                if not self._running:
                    self._running = True
                    yield from spawn(self._run(clock), "token source")
                yield from wait(self._changed, deadline - clock())
        finally:
            self._waiting -= 1
        if self._fetched != seen and self._token is not None:
            return self._token
        if isinstance(self._failure, AuthenticationError):
            raise AuthenticationError(self._failure.reason) from self._failure
        last = f"; last: {self._failure}" if self._failure else ""
        raise TransportError(f"no token from {self.name} within {seconds_text(timeout)}{last}") from self._failure

    def reject(self, token: Secret) -> None:
        """Drop a token that a broker rejected, so that the next login fetches another."""
        if self._token == token:
            self._expires = -math.inf

    def _run(self, clock: Clock) -> Flow[None]:
        """Keep a token valid. After an interruption of this flow, a login that waits starts it again."""
        try:
            yield from keep_running(lambda: self._keep(clock), "tokens")
        finally:
            self._running = False
            self._changed.set()

    def _keep(self, clock: Clock) -> Flow[None]:
        """Fetch a token, sleep until 80 % of its lifetime, and fetch again, while tokens have a usable lifetime."""
        while True:
            lifetime = yield from self._fetch_patiently(clock)
            if lifetime is None:
                return
            pause = max(lifetime * REFRESH_FACTOR, MINIMUM_REFRESH_SECONDS)
            yield from wait(self._renewal_requested, pause)

    def _fetch_patiently(self, clock: Clock) -> Flow[float | None]:
        """Fetch one token. Retry while a login waits or the last token is valid. None: no lifetime, or no token."""
        pause, most = RETRY_SECONDS
        while True:
            began = clock()
            try:
                fetched = yield from blocking(self._fetch)
            except TransientTokenError as error:
                self._note(error, "retrying")
            except AuthenticationError as error:
                self._note(error, "giving up")
                return None
            except Exception as error:  # noqa: BLE001 - whatever a fetch raises, logins that wait must end with it
                failure = TransientTokenError(f"{self.name} raised {type(error).__name__}")
                failure.__cause__ = error
                self._note(failure, "retrying")
            else:
                self._accept(fetched, began)
                return fetched.lifetime
            if not self._waiting and clock() >= self._expires:
                return None
            yield from sleep(pause * random.uniform(0.8, 1.2))
            pause = min(2 * pause, most)

    def _accept(self, fetched: FetchedToken, began: float) -> None:
        self._token = fetched.token
        self._expires = began + fetched.lifetime if fetched.lifetime is not None else -math.inf
        self._fetched += 1
        self._failure = None
        life = "for one login" if fetched.lifetime is None else f"valid for {fetched.lifetime:.0f} s"
        log.info("token %d from %s, %s", self._fetched, self.name, life)
        self._changed.set()

    def _note(self, error: Exception, then: str) -> None:
        self._failure = error
        log.warning("no token from %s: %s; %s", self.name, error, then)
        self._changed.set()
