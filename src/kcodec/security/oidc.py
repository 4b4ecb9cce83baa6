# SPDX-License-Identifier: Apache-2.0
"""Tokens from an OpenID provider by the client credentials grant (RFC 6749 4.4, KIP-768), with the standard library.

It sends one POST with the client's id and secret in the Authorization header, over https, or over http to this machine
only. It does not follow redirects, as they would send the secret elsewhere. The size of the response is bounded.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, NoReturn
from urllib.parse import quote_plus, urlencode, urlsplit

from kcodec.errors import AuthenticationError
from kcodec.security.oauthbearer import FetchedToken, TransientTokenError, as_number, lifetime_of
from kcodec.security.sasl import is_loopback, json_object, shown
from kcodec.security.secret import Secret
from kcodec.security.tls import TlsContext

#: Seconds for which the provider may be silent.
SILENCE_SECONDS = 10.0
#: Seconds for the whole response.
RESPONSE_SECONDS = 20.0
#: A token has a few kilobytes. A longer response cannot be one.
MAXIMUM_RESPONSE_BYTES = 1 << 20
_BLOCK = 64 * 1024
_MAY_PASS = frozenset({408, 425, 429})


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None:
        return None


class ClientCredentials:
    """A client of a token endpoint, with its own credentials. A call blocks until there is a token.

    context:    TLS context for https, None for the authorities of the system. A TlsContext reads changed files again.
    allow_http: allow plain http to other machines, which shows the secret to the network.

    Raise ValueError for an endpoint that is not such a URL. A call raises AuthenticationError if the endpoint refuses
    or its response is invalid, TransientTokenError if it cannot be reached or fails.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        client_secret: Secret,
        *,
        scope: str | None = None,
        context: ssl.SSLContext | TlsContext | None = None,
        allow_http: bool = False,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"https", "http"} or not parts.hostname or parts.username or parts.fragment:
            raise ValueError(
                "sasl_oauthbearer_token_endpoint_url must be https://host[:port]/path, without user or fragment"
            )
        local = is_loopback(parts.hostname)
        if parts.scheme == "http" and not local and not allow_http:
            raise ValueError(
                "sasl_oauthbearer_token_endpoint_url: http would show the client secret to the network; use https"
                " (or, if the network is trusted, sasl_oauthbearer_allow_http=True)"
            )
        self.name = f"{parts.scheme}://{parts.netloc}{parts.path}"
        self._url = url
        self._client_id = client_id
        self._client_secret = client_secret
        self._scope = scope
        self._wall_clock = wall_clock
        self._context = (context or ssl.create_default_context()) if parts.scheme == "https" else None
        self._is_local = local

    def __repr__(self) -> str:
        return f"<ClientCredentials {self._client_id!r} at {self.name}>"

    def __call__(self) -> FetchedToken:
        """Request a token, wait for the response and check it."""
        try:
            with self._opener().open(self._request(), timeout=SILENCE_SECONDS) as response:
                body = self._read(response)
        except urllib.error.HTTPError as error:
            with error:
                self._refused(error.code, self._read(error))
        except AuthenticationError:  # ours; it is an OSError, too
            raise
        except urllib.error.URLError as error:
            self._unreachable(error.reason)
        except (OSError, http.client.HTTPException) as error:
            self._unreachable(error)
        return self._token(body)

    def _opener(self) -> urllib.request.OpenerDirector:
        """Return an opener for one request, as the files of its TLS context may have changed."""
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if self._context is not None:
            context = self._context.current() if isinstance(self._context, TlsContext) else self._context
            handlers.append(urllib.request.HTTPSHandler(context=context))
        if self._is_local:
            handlers.append(urllib.request.ProxyHandler({}))
        return urllib.request.build_opener(*handlers)

    def _request(self) -> urllib.request.Request:
        form = {"grant_type": "client_credentials"}
        if self._scope:
            form["scope"] = self._scope
        # RFC 6749 2.3.1: both are form-encoded before they are joined.
        pair = f"{quote_plus(self._client_id)}:{quote_plus(self._client_secret.reveal())}"
        request = urllib.request.Request(self._url, data=urlencode(form).encode(), method="POST")
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
        request.add_header("Content-Type", "application/x-www-form-urlencoded")
        request.add_header("Accept", "application/json")
        request.add_header("User-Agent", "kcodec")
        return request

    def _read(self, response: Any) -> bytes:
        deadline = time.monotonic() + RESPONSE_SECONDS
        parts: list[bytes] = []
        while sum(map(len, parts)) <= MAXIMUM_RESPONSE_BYTES:
            block = response.read1(_BLOCK)
            if not block:
                return b"".join(parts)
            parts.append(block)
            if time.monotonic() > deadline:
                raise TransientTokenError(f"{self.name} did not finish its response within {RESPONSE_SECONDS:g} s")
        raise AuthenticationError(
            f"{self.name} responded with more than {MAXIMUM_RESPONSE_BYTES} bytes; check that it is a token endpoint"
        )

    def _refused(self, status: int, body: bytes) -> NoReturn:
        fields = json_object(body)
        words = ": ".join(fields[name] for name in ("error", "error_description") if isinstance(fields.get(name), str))
        # A provider that quotes our secret back must not bring it into an error text.
        reason = shown(words, (self._client_secret,)) or "no reason given"
        text = f"token endpoint {self.name} responded with status {status} to client {self._client_id!r}: {reason}"
        if status >= 500 or status in _MAY_PASS:
            raise TransientTokenError(text)
        if 300 <= status < 400:
            raise AuthenticationError(
                f"{text}; redirects are not followed: set the target as sasl_oauthbearer_token_endpoint_url"
            )
        raise AuthenticationError(
            f"{text}; check sasl_oauthbearer_client_id, sasl_oauthbearer_client_secret and sasl_oauthbearer_scope"
        )

    def _unreachable(self, error: object) -> NoReturn:
        if isinstance(error, ssl.SSLCertVerificationError):
            raise AuthenticationError(
                f"the certificate of token endpoint {self.name} is rejected: {error.verify_message}"
                f" [OpenSSL {error.verify_code}]; check sasl_oauthbearer_ssl_cafile"
            )
        words = error.strerror if isinstance(error, OSError) else None
        raise TransientTokenError(f"token endpoint {self.name}: {words or error or type(error).__name__}")

    def _token(self, body: bytes) -> FetchedToken:
        fields = json_object(body)
        token = fields.get("access_token")
        if not isinstance(token, str) or not token:
            raise AuthenticationError(
                f"the response of token endpoint {self.name} is not a JSON object with an access_token"
            )
        try:
            secret = Secret(token)
        except ValueError as error:
            raise AuthenticationError(f"token endpoint {self.name} returned an invalid token: {error}") from None
        expires_in = fields.get("expires_in")
        # RFC 6749 wants a number; providers have been seen to write it as a string.
        lifetime = as_number(int(expires_in) if isinstance(expires_in, str) and expires_in.isdecimal() else expires_in)
        if lifetime is None or lifetime <= 0:
            lifetime = lifetime_of(secret, self._wall_clock())
        return FetchedToken(secret, lifetime)
