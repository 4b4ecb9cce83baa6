# SPDX-License-Identifier: Apache-2.0
"""The options of TLS and SASL by name, as kafka-python and aiokafka call them where those have them."""

from __future__ import annotations

TLS_OPTIONS = frozenset(
    {
        "ssl_context",
        "ssl_check_hostname",
        "ssl_cafile",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_password",
        "ssl_crlfile",
        "ssl_ciphers",
    }
)

PASSWORD_OPTIONS = frozenset({"sasl_plain_username", "sasl_plain_password"})
OAUTHBEARER_OPTIONS = frozenset(
    {
        "sasl_oauth_token_provider",
        "sasl_oauthbearer_token_endpoint_url",
        "sasl_oauthbearer_client_id",
        "sasl_oauthbearer_client_secret",
        "sasl_oauthbearer_scope",
        "sasl_oauthbearer_ssl_cafile",
        "sasl_oauthbearer_allow_http",
        "sasl_oauthbearer_extensions",
    }
)
AWS_OPTIONS = frozenset({"sasl_aws_region", "sasl_aws_credentials_provider"})

#: Each mechanism, and what can be set for it.
MECHANISM_OPTIONS: dict[str, frozenset[str]] = {
    "PLAIN": PASSWORD_OPTIONS,
    "SCRAM-SHA-256": PASSWORD_OPTIONS,
    "SCRAM-SHA-512": PASSWORD_OPTIONS,
    "OAUTHBEARER": OAUTHBEARER_OPTIONS,
    "AWS_MSK_IAM": AWS_OPTIONS,
}
SASL_OPTIONS = frozenset({"sasl_mechanism"}).union(*MECHANISM_OPTIONS.values())

#: All options that belong to `Security.from_options`.
SECURITY_OPTIONS = frozenset({"security_protocol"}) | TLS_OPTIONS | SASL_OPTIONS
#: Of these, those that hold secrets.
SECRET_OPTIONS = frozenset({"ssl_password", "sasl_plain_password", "sasl_oauthbearer_client_secret"})
