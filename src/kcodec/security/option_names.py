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
MECHANISM_NAMES = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM")


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
    """PEM file with certificate authorities. The client then trusts only these. None: the client trusts the authorities
    of the operating system."""
    ssl_check_hostname: bool = option(True, java="ssl.endpoint.identification.algorithm")
    """Whether the client checks that the certificate of the broker is for the broker's host name. The client always
    checks the signature."""
    ssl_certfile: str | Path | None = option(None, java="ssl.keystore.location", librdkafka="ssl.certificate.location")
    """PEM file with the certificate of the client. Brokers with `ssl.client.auth` require one."""
    ssl_keyfile: str | Path | None = option(None, librdkafka="ssl.key.location")
    """PEM file with the private key of the client. Not needed if ssl_certfile contains the key."""
    ssl_password: str | Secret | None = option(None, java="ssl.key.password")
    """Password of the client's private key."""
    ssl_crlfile: str | Path | None = option(None, librdkafka="ssl.crl.location")
    """PEM file with revoked certificates. The file must contain one list for each authority."""
    ssl_ciphers: str | None = option(None, java="ssl.cipher.suites")
    """Cipher suites of TLS 1.2, in the format of OpenSSL. None: the default of OpenSSL."""
    ssl_context: ssl.SSLContext | None = option(None, librdkafka="enable.ssl.certificate.verification")
    """An `ssl.SSLContext` that the client uses without a change. Set no other ssl option with it."""
    sasl_mechanism: str | None = option(None, choices=MECHANISM_NAMES, librdkafka="sasl.mechanisms")
    """How the client authenticates. Required if security_protocol is "SASL_PLAINTEXT" or "SASL_SSL"."""
    sasl_plain_username: str | None = option(None, librdkafka="sasl.username")
    """User name for PLAIN and SCRAM."""
    sasl_plain_password: str | Secret | None = option(None, librdkafka="sasl.password")
    """Password for PLAIN and SCRAM. With SCRAM, the client does not send the password."""
    sasl_scram_token_auth: bool = option(False)
    """Whether the client logs in with a delegation token (KIP-48): sasl_plain_username is the id of the token, and
    sasl_plain_password its secret in base64. Only with SCRAM (Java: `tokenauth="true"` in `sasl.jaas.config`)."""
    sasl_oauth_token_provider: Callable[[], Any] | TokenProvider | None = option(None)
    """Function that returns a token, or a token and its lifetime in seconds. An object with such a method `token` is
    accepted, too."""
    sasl_oauthbearer_token_endpoint_url: str | None = option(None)
    """URL at which an OpenID provider issues tokens (KIP-768). The URL must begin with https; http is allowed for this
    machine."""
    sasl_oauthbearer_client_id: str | None = option(
        None,
        java="sasl.oauthbearer.client.credentials.client.id",
        librdkafka="sasl.oauthbearer.client.credentials.client.id",
    )
    """Client id for the OpenID provider."""
    sasl_oauthbearer_client_secret: str | Secret | None = option(
        None,
        java="sasl.oauthbearer.client.credentials.client.secret",
        librdkafka="sasl.oauthbearer.client.credentials.client.secret",
    )
    """Client secret for the OpenID provider. The client sends it in the header that RFC 6749 describes."""
    sasl_oauthbearer_scope: str | None = option(None)
    """Scope that the client requests from the OpenID provider."""
    sasl_oauthbearer_ssl_cafile: str | Path | None = option(None)
    """PEM file with the authorities that the client trusts for the certificate of the token endpoint."""
    sasl_oauthbearer_allow_http: bool = option(False)
    """Whether the token endpoint can be on another machine and use http. The secret is then visible on the network."""
    sasl_oauthbearer_extensions: Mapping[str, str] | None = option(None)
    """Names and values that the client sends to the broker together with the token (KIP-342)."""
    sasl_kerberos_service_name: str = option("kafka")
    """Service name in the brokers' principals, such as "kafka" in kafka/broker.example.org@EXAMPLE.ORG. The options of
    Kerberos require sasl_mechanism "GSSAPI"."""
    sasl_kerberos_principal: str | None = option(None)
    """Principal of the client, such as "orders@EXAMPLE.ORG". None: the first principal in the keytab or, without a
    keytab, the default principal of the credential cache."""
    sasl_kerberos_keytab: str | Path | None = option(None)
    """File with the keys of the principal. None: the credential cache, which `kinit` fills."""
    sasl_kerberos_domain_name: str | None = option(None)
    """Host name in the principal that all brokers share. None: each broker's own host name."""
    sasl_aws_region: str | None = option(None)
    """AWS region. None: the region in the host name of the broker, or the environment variable AWS_REGION or
    AWS_DEFAULT_REGION."""
    sasl_aws_credentials_provider: Callable[[], Any] | None = option(None)
    """Function that returns the access key id and the secret access key. For temporary credentials, it also returns the
    session token."""


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
    "SCRAM-SHA-256": _named("sasl_plain_", "sasl_scram_"),
    "SCRAM-SHA-512": _named("sasl_plain_", "sasl_scram_"),
    "OAUTHBEARER": OAUTHBEARER_OPTIONS,
    "GSSAPI": _named("sasl_kerberos_"),
    "AWS_MSK_IAM": _named("sasl_aws_"),
}
