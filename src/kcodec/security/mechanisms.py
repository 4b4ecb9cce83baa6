# SPDX-License-Identifier: Apache-2.0
"""The SASL mechanisms of a client: the options of each, and its authentication flow.

To add a mechanism, add an `Exchange`, a class here, a row in MECHANISMS and one in `option_names`.
"""

from __future__ import annotations

import copy
import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Self

from kcodec.errors import AuthenticationError
from kcodec.flow import Clock, Flow, blocking
from kcodec.security.aws_msk_iam import aws_msk_iam, provider_of, region_of
from kcodec.security.oauthbearer import TokenSource, check_extensions, from_provider, oauthbearer
from kcodec.security.option_names import MECHANISM_OPTIONS, OAUTHBEARER_OPTIONS, SASL_OPTIONS
from kcodec.security.sasl import authenticate, plain
from kcodec.security.scram import NONCE_BYTES, Scram
from kcodec.security.secret import Secret
from kcodec.security.tls import TlsContext

_PASSWORD_REMEDY = "check sasl_plain_username and sasl_plain_password"
_TOKEN_REMEDY = (
    "check that sasl_plain_username is the id of the delegation token and sasl_plain_password its secret in base64, "
    "and that the token has not ended"
)


class Mechanism(ABC):
    """One SASL mechanism. SHOWS_SECRET: whether it sends something that an eavesdropper could use.

    principal: the name for reprs and error texts. The constructor takes the mechanism's name and the options, and
    raises ValueError or TypeError for options that it cannot use.
    """

    SHOWS_SECRET: ClassVar[bool]
    principal = ""

    @abstractmethod
    def __init__(self, name: str, options: Mapping[str, object]) -> None: ...

    @abstractmethod
    def login(self, host: str, clock: Clock, timeout: float) -> Flow[float | None]:
        """Return the flow that authenticates. Its result is the lifetime of the session in seconds, None if it has no
        end."""

    def for_client(self) -> Self:
        """Return a mechanism with the same credentials for another client. The flows of clients run in different
        threads or event loops, so a mechanism whose flows share state returns a copy with its own state."""
        return self


def _text(options: Mapping[str, object], name: str) -> str:
    """Return a required option as text."""
    value = options.get(name)
    if value is None or value == "":
        raise ValueError(f"{name} is missing; sasl_mechanism={options.get('sasl_mechanism')!r} requires it")
    return _optional_text(options, name) or ""


def _optional_text(options: Mapping[str, object], name: str) -> str | None:
    value = options.get(name)
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    return value


def _secret(options: Mapping[str, object], name: str) -> Secret:
    """Return a required option as a Secret."""
    value = options.get(name)
    if isinstance(value, Secret):
        return value
    text = _text(options, name)
    try:
        return Secret(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


class Plain(Mechanism):
    """PLAIN: user name and password."""

    SHOWS_SECRET = True

    def __init__(self, name: str, options: Mapping[str, object]) -> None:
        self._name = name
        self._username = _text(options, "sasl_plain_username")
        self._password = _secret(options, "sasl_plain_password")
        if "\0" in self._username or "\0" in self._password.reveal():
            raise ValueError("sasl_plain_username and sasl_plain_password must not contain a NUL character with PLAIN")
        self.principal = f"user {self._username!r}"

    def login(self, host: str, clock: Clock, timeout: float) -> Flow[float | None]:
        """See Mechanism."""
        return authenticate(
            self._name,
            plain(self._username, self._password),
            principal=self.principal,
            host=host,
            remedy=_PASSWORD_REMEDY,
            timeout=timeout,
            secrets=(self._password,),
        )


class ScramPassword(Mechanism):
    """SCRAM-SHA-256 and SCRAM-SHA-512: user name and password, or a delegation token; the password is not sent."""

    SHOWS_SECRET = False

    def __init__(self, name: str, options: Mapping[str, object]) -> None:
        self._name = name
        username = _text(options, "sasl_plain_username")
        self._password = _secret(options, "sasl_plain_password")
        with_token = options.get("sasl_scram_token_auth") or False
        if not isinstance(with_token, bool):
            raise TypeError(f"sasl_scram_token_auth must be a bool, not {type(with_token).__name__}")
        self._remedy = _TOKEN_REMEDY if with_token else _PASSWORD_REMEDY
        self._scram = Scram(name, username, self._password, with_token=with_token)
        self.principal = f"{'delegation token' if with_token else 'user'} {username!r}"

    def login(self, host: str, clock: Clock, timeout: float) -> Flow[float | None]:
        """See Mechanism."""
        return authenticate(
            self._name,
            self._scram.exchange(secrets.token_urlsafe(NONCE_BYTES)),
            principal=self.principal,
            host=host,
            remedy=self._remedy,
            timeout=timeout,
            secrets=(self._password,),
        )


class OAuthBearer(Mechanism):
    """OAUTHBEARER: a token, from a callable or from an OpenID provider."""

    SHOWS_SECRET = True

    def __init__(self, name: str, options: Mapping[str, object]) -> None:
        self._name = name
        extensions = options.get("sasl_oauthbearer_extensions") or {}
        if not isinstance(extensions, Mapping):
            raise TypeError(f"sasl_oauthbearer_extensions must be a dict, not {type(extensions).__name__}")
        check_extensions(extensions)
        self._extensions = dict(extensions)
        self._tokens = _token_source(options)

    def for_client(self) -> Self:
        """See Mechanism."""
        found = copy.copy(self)
        found._tokens = self._tokens.for_client()
        return found

    def login(self, host: str, clock: Clock, timeout: float) -> Flow[float | None]:
        """See Mechanism."""
        token = yield from self._tokens.get(clock, timeout)
        remedy = f"check the token from {self._tokens.name}: issuer, audience, scope, and whether it has expired"
        exchange = oauthbearer(token, self._extensions)
        try:
            return (
                yield from authenticate(
                    self._name,
                    exchange,
                    principal=self.principal,
                    host=host,
                    remedy=remedy,
                    timeout=timeout,
                    secrets=(token,),
                )
            )
        except AuthenticationError:
            self._tokens.reject(token)
            raise


def _token_source(options: Mapping[str, object]) -> TokenSource:
    provider, url = options.get("sasl_oauth_token_provider"), options.get("sasl_oauthbearer_token_endpoint_url")
    if (provider is None) == (url is None):
        raise ValueError(
            "OAUTHBEARER requires either sasl_oauth_token_provider, or sasl_oauthbearer_token_endpoint_url with"
            f" sasl_oauthbearer_client_id and sasl_oauthbearer_client_secret; {'both are' if url else 'neither is'} set"
        )
    if provider is not None:
        others = sorted(name for name in OAUTHBEARER_OPTIONS if options.get(name) is not None)
        unused = [name for name in others if name not in ("sasl_oauth_token_provider", "sasl_oauthbearer_extensions")]
        if unused:
            raise ValueError(
                f"{', '.join(unused)} would have no effect together with sasl_oauth_token_provider; remove one"
            )
        return TokenSource(from_provider(provider), "sasl_oauth_token_provider")
    from kcodec.security.oidc import ClientCredentials

    credentials = ClientCredentials(
        _text(options, "sasl_oauthbearer_token_endpoint_url"),
        _text(options, "sasl_oauthbearer_client_id"),
        _secret(options, "sasl_oauthbearer_client_secret"),
        scope=_optional_text(options, "sasl_oauthbearer_scope"),
        context=_endpoint_context(options),
        allow_http=bool(options.get("sasl_oauthbearer_allow_http", False)),
    )
    return TokenSource(credentials, credentials.name)


def _endpoint_context(options: Mapping[str, object]) -> TlsContext | None:
    cafile = options.get("sasl_oauthbearer_ssl_cafile")
    return None if cafile is None else TlsContext({"ssl_cafile": cafile}, prefix="sasl_oauthbearer_")


class AwsMskIam(Mechanism):
    """AWS_MSK_IAM: a signature with AWS credentials."""

    SHOWS_SECRET = False

    def __init__(self, name: str, options: Mapping[str, object], wall_clock: Callable[[], float] = time.time) -> None:
        self._name = name
        self._region = _optional_text(options, "sasl_aws_region")
        self._credentials = provider_of(options.get("sasl_aws_credentials_provider"))
        self._wall_clock = wall_clock

    def login(self, host: str, clock: Clock, timeout: float) -> Flow[float | None]:
        """See Mechanism."""
        region = self._region or region_of(host) or _environment_region()
        if region is None:
            raise AuthenticationError(
                f"SASL AWS_MSK_IAM on {host}: the host name contains no region; set sasl_aws_region or AWS_REGION"
            )
        credentials = yield from blocking(self._credentials)
        timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._wall_clock()))
        exchange = aws_msk_iam(host, region, credentials, timestamp, "kcodec")
        return (
            yield from authenticate(
                self._name,
                exchange,
                principal=f"access key {credentials.access_key_id}",
                host=host,
                remedy="check the credentials, the policy kafka-cluster:Connect, the region, and this machine's clock",
                timeout=timeout,
                secrets=tuple(filter(None, (credentials.secret_access_key, credentials.session_token))),
            )
        )


def _environment_region() -> str | None:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


class Kerberos(Mechanism):
    """GSSAPI: authentication with a Kerberos ticket."""

    SHOWS_SECRET = False

    def __init__(self, name: str, options: Mapping[str, object]) -> None:
        from kcodec.security.kerberos import KerberosCredentials  # which loads ctypes and the library of the system

        self._name = name
        self._service = _optional_text(options, "sasl_kerberos_service_name") or "kafka"
        self._host = _optional_text(options, "sasl_kerberos_domain_name")
        keytab = options.get("sasl_kerberos_keytab")
        if keytab is not None and not isinstance(keytab, str | os.PathLike):
            raise TypeError(f"sasl_kerberos_keytab must be a str or a path, not {type(keytab).__name__}")
        principal = _optional_text(options, "sasl_kerberos_principal")
        self._credentials = KerberosCredentials(None if keytab is None else str(os.fspath(keytab)), principal)
        self.principal = f"principal {principal!r}" if principal else ""

    def for_client(self) -> Self:
        """See Mechanism."""
        found = copy.copy(self)
        found._credentials = self._credentials.for_client()
        return found

    def login(self, host: str, clock: Clock, timeout: float) -> Flow[float | None]:
        """See Mechanism."""
        context = self._credentials.context(self._service, self._host or host)
        token = yield from self._credentials.first_token(context, host, clock, timeout)
        return (
            yield from authenticate(
                self._name,
                self._credentials.exchange(context, token),
                principal=self.principal,
                host=host,
                remedy="check that the keytab in the broker's sasl.jaas.config has the current key of its principal",
                timeout=timeout,
            )
        )


MECHANISMS: dict[str, type[Mechanism]] = {
    "PLAIN": Plain,
    "SCRAM-SHA-256": ScramPassword,
    "SCRAM-SHA-512": ScramPassword,
    "OAUTHBEARER": OAuthBearer,
    "GSSAPI": Kerberos,
    "AWS_MSK_IAM": AwsMskIam,
}


def make_mechanism(options: Mapping[str, object]) -> Mechanism:
    """Return the mechanism that the options name. Raise ValueError if none exists, or for options that it ignores."""
    name = options.get("sasl_mechanism")
    if name not in MECHANISMS:
        raise ValueError(f"sasl_mechanism must be one of {', '.join(MECHANISMS)}, not {name!r}")
    others = SASL_OPTIONS - MECHANISM_OPTIONS[str(name)] - {"sasl_mechanism"}
    foreign = sorted(each for each in others if options.get(each) is not None)
    if foreign:
        raise ValueError(f"{', '.join(foreign)} would have no effect with sasl_mechanism={name!r}")
    return MECHANISMS[str(name)](str(name), options)
