# SPDX-License-Identifier: Apache-2.0
"""The options of TLS and SASL. Where kafka-python and aiokafka have the same option, its name is the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from kcodec.options import OptionSet, option

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from kcodec.security.secret import Secret

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISM_NAMES = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM")


class TokenProvider(Protocol):
    """An object that `sasl_oauth_token_provider` accepts. A callable that returns the same values is accepted, too."""

    def token(self) -> Any:
        """Return the token as str, or (token, seconds of its lifetime); or an awaitable of these."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecurityConfig(OptionSet):
    """The declarations. `Security.from_options` checks the values, as some options are only allowed with others."""

    security_protocol: str = option("PLAINTEXT", choices=PROTOCOLS)
    """Whether connections use TLS ("SSL", "SASL_SSL") and SASL ("SASL_PLAINTEXT", "SASL_SSL")."""
    ssl_cafile: str | Path | None = option(None, java="ssl.truststore.location", librdkafka="ssl.ca.location")
    """PEM file of the only certificate authorities to trust. None: those of the operating system."""
    ssl_check_hostname: bool = option(True, java="ssl.endpoint.identification.algorithm")
    """Verify that the broker's certificate is for its host name. The signature is verified in any case."""
    ssl_certfile: str | Path | None = option(None, java="ssl.keystore.location", librdkafka="ssl.certificate.location")
    """PEM file of the client's certificate, for brokers that require one (`ssl.client.auth`)."""
    ssl_keyfile: str | Path | None = option(None, librdkafka="ssl.key.location")
    """PEM file of the client's private key, if ssl_certfile does not contain it."""
    ssl_password: str | Secret | None = option(None, java="ssl.key.password")
    """Password of the client's private key."""
    ssl_crlfile: str | Path | None = option(None, librdkafka="ssl.crl.location")
    """PEM file of revoked certificates, with one list for each authority."""
    ssl_ciphers: str | None = option(None, java="ssl.cipher.suites")
    """Cipher suites of TLS 1.2, in OpenSSL's format. None: OpenSSL's default."""
    ssl_context: ssl.SSLContext | None = option(None, librdkafka="enable.ssl.certificate.verification")
    """TLS context to use as it is; none of the other ssl options may be set with it."""
    sasl_mechanism: str | None = option(None, choices=MECHANISM_NAMES, librdkafka="sasl.mechanisms")
    """How the client authenticates; required with security_protocol "SASL_PLAINTEXT" and "SASL_SSL"."""
    sasl_plain_username: str | None = option(None, librdkafka="sasl.username")
    """User name for PLAIN and SCRAM."""
    sasl_plain_password: str | Secret | None = option(None, librdkafka="sasl.password")
    """Password for PLAIN and SCRAM; SCRAM does not send it."""
    sasl_oauth_token_provider: Callable[[], Any] | TokenProvider | None = option(None)
    """Callable, or object with a method `token`, that returns a token, or a token and its lifetime in seconds."""
    sasl_oauthbearer_token_endpoint_url: str | None = option(None)
    """URL at which an OpenID provider issues tokens (KIP-768): https, or http on this machine."""
    sasl_oauthbearer_client_id: str | None = option(None)
    """Client id for the OpenID provider."""
    sasl_oauthbearer_client_secret: str | Secret | None = option(None)
    """Client secret for the OpenID provider, sent in the header as RFC 6749 encodes it."""
    sasl_oauthbearer_scope: str | None = option(None)
    """Scope to request from the OpenID provider."""
    sasl_oauthbearer_ssl_cafile: str | Path | None = option(None)
    """PEM file of the authorities to trust in the certificate of the token endpoint."""
    sasl_oauthbearer_allow_http: bool = option(False)
    """Allow a token endpoint on another machine over http, which shows the secret to the network."""
    sasl_oauthbearer_extensions: Mapping[str, str] | None = option(None)
    """Names and values sent to the broker with the token (KIP-342)."""
    sasl_aws_region: str | None = option(None)
    """AWS region. None: the one in the broker's host name, or AWS_REGION."""
    sasl_aws_credentials_provider: Callable[[], Any] | None = option(None)
    """Callable that returns access key id, secret access key and, of temporary credentials, session token."""


#: All options that belong to `Security.from_options`.
SECURITY_OPTIONS = frozenset(SecurityConfig.names())
#: Of these, those that hold secrets.
SECRET_OPTIONS = frozenset(name for name, field in SecurityConfig.fields().items() if "Secret" in str(field.type))


def _named(*beginnings: str) -> frozenset[str]:
    return frozenset(name for name in SECURITY_OPTIONS if name.startswith(beginnings))


TLS_OPTIONS = _named("ssl_")
SASL_OPTIONS = _named("sasl_")
OAUTHBEARER_OPTIONS = _named("sasl_oauth")
#: Each mechanism, and what can be set for it.
MECHANISM_OPTIONS: dict[str, frozenset[str]] = {
    "PLAIN": _named("sasl_plain_"),
    "SCRAM-SHA-256": _named("sasl_plain_"),
    "SCRAM-SHA-512": _named("sasl_plain_"),
    "OAUTHBEARER": OAUTHBEARER_OPTIONS,
    "AWS_MSK_IAM": _named("sasl_aws_"),
}
