# SPDX-License-Identifier: Apache-2.0
"""Client options in the spelling of Spark (``kafka.sasl.mechanism``) or kcodec (``sasl_mechanism``), and their secrets.

``kcodec.token.provider=module:function`` names a function, which each process imports and calls when it connects. The
options of a query then contain no secret. This matters because Spark stores options in its plans and checkpoints. The
function returns

- with OAUTHBEARER: what `sasl_oauth_token_provider` returns, a token or a token and its lifetime in seconds,
- with PLAIN and SCRAM: the password, or the user name and the password,
- with AWS_MSK_IAM: what `sasl_aws_credentials_provider` returns.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from kcodec.client import ConsumerOptions, ReadTopicOptions, WriterOptions
from kcodec.client.properties import instead_of, options_of_property
from kcodec.security import SECRET_OPTIONS

TOKEN_PROVIDER = "kcodec.token.provider"
#: Beginnings of the names of options of TLS and SASL, whose files may exist on executors only, and of the provider.
SECURITY = ("ssl_", "sasl_", "security", "kcodec.")
#: Mechanism -> the option that takes the function itself.
PROVIDED = {
    "OAUTHBEARER": "sasl_oauth_token_provider",
    "AWS_MSK_IAM": "sasl_aws_credentials_provider",
}
#: Options of Java's producer that kcodec's transactions do not have, because their value is fixed.
FIXED_WRITE_OPTIONS = frozenset({"acks", "enable_idempotence"})
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LEAVE_OUT = "leave it out"
_LOGGING = "set the level of the logger kcodec, one of Python's loggers"
_PEM = "write {} into a PEM file, and name the file with kafka.{}"
_CERTIFICATES = _PEM.format("the certificates", "ssl.truststore.location")
_KEY = _PEM.format("the private key and its certificates", "ssl.keystore.location")
PROVIDER_FUNCTION = "kcodec.token.provider names a Python function that returns passwords, tokens or credentials"
#: What to do about a password of a file with certificates.
PEM_FILES = (
    "certificates are in PEM files, which have no password; kafka.ssl.key.password is the password of the private key"
)
#: Options of Java's clients that have no counterpart in a read or a write, and what to use in their place.
INSTEAD_OF_JAVA = {
    "kafka.interceptor.classes": "interceptors are classes of Java",
    "kafka.ssl.truststore.password": PEM_FILES,
    "kafka.ssl.keystore.password": PEM_FILES,
    "kafka.sasl.login.callback.handler.class": PROVIDER_FUNCTION,
    "kafka.sasl.client.callback.handler.class": PROVIDER_FUNCTION,
}
_TLS = "TLS is that of Python's ssl module; leave it out"
_TOKEN = "kcodec.token.provider names a Python function that returns the token"
_OIDC = f"only client credentials with a secret are built in (KIP-768); {_TOKEN}"
_VERSIONS = "TLS 1.2 and 1.3 are enabled; leave it out"
#: Options of other clients, by their names with underscores, and what a user of Spark can do. The general texts
#: (kcodec.network.foreign_options) name arguments and methods of Python.
_IN_SPARK = {
    **dict.fromkeys(("debug", "log_cb", "log_connection_close", "log_level", "log_queue", "log_thread_name"), _LOGGING),
    "logger": _LOGGING,
    **dict.fromkeys(("ssl_truststore_certificates", "ssl_ca_pem"), _CERTIFICATES),
    **dict.fromkeys(("ssl_keystore_certificate_chain", "ssl_certificate_pem"), _KEY),
    **dict.fromkeys(("ssl_keystore_key", "ssl_key_pem"), _KEY),
    **dict.fromkeys(("ssl_enabled_protocols", "ssl_protocol"), _VERSIONS),
    "https_ca_pem": _PEM.format("the certificates", "sasl.oauthbearer.ssl.cafile"),
    "enable_sasl_oauthbearer_unsecure_jwt": _TOKEN,
    "oauth_cb": _TOKEN,
    "oauthbearer_token_refresh_cb": _TOKEN,
    "sasl_client_callback_handler_class": PROVIDER_FUNCTION,
    "sasl_jaas_config": PROVIDER_FUNCTION,
    "sasl_login_callback_handler_class": PROVIDER_FUNCTION,
    "sasl_login_class": PROVIDER_FUNCTION,
    "sasl_oauthbearer_config": _TOKEN,
    "sasl_oauthbearer_method": f"kafka.sasl.oauthbearer.token.endpoint.url selects OIDC; {_TOKEN}",
}
#: Names in Spark that differ from those of the options of kcodec.
_SPARK_NAMES = {"ssl_cafile": "kafka.ssl.truststore.location", "ssl_certfile": "kafka.ssl.keystore.location"}
#: What only a program in Python can use: a keyword argument, a call, a name of a module.
_PYTHON = re.compile(r"=|\w\(|kcodec\.[a-z_]")
_OPTION_NAME = re.compile(r"\b[a-z]+(?:_[a-z0-9]+)+\b")


def spark_name(option: str) -> str:
    """Return the name of an option of a client as a user of Spark writes it, such as kafka.request.timeout.ms."""
    return "kafka." + option.replace("_", ".")


def client_option(name: str, value: Any) -> dict[str, Any]:
    """Return the options of a client that an option of Spark sets, for the caller to check their names.

    Raise ValueError, without the value as it may be a secret, if it is invalid.
    """
    if name.lower() == TOKEN_PROVIDER:
        _parts(value)
        return {TOKEN_PROVIDER: value}
    if not name.lower().startswith("kafka."):
        return {name: value}
    property_name = name[len("kafka.") :].lower()
    if property_name.endswith((".serializer", ".deserializer")):  # a class of Java; no caller here has a use for one
        return {property_name.replace(".", "_"): value}
    if isinstance(value, str):
        return options_of_property(property_name, value)  # empty for a property that only confirms a default
    return {property_name.replace(".", "_"): value}


def secret_option(given: Mapping[str, Any]) -> str | None:
    """Return the name of an option that sets a secret, such as a password, or None. Raise the errors of
    `client_option`."""
    for name, value in given.items():
        own_name = name.lower().removeprefix("kafka.")
        if name.lower() != TOKEN_PROVIDER and client_option(f"kafka.{own_name}", value).keys() & SECRET_OPTIONS:
            return name
    return None


def why_refused(option: str, *, is_write: bool) -> str | None:
    """Return why an option of a Kafka client, by its name in kcodec, is not an option of a read or a write; None if it
    is unknown. Spark passes every option to Java's clients. A consumer ignores the options of a producer, and the
    reverse."""
    is_of_write = option in WriterOptions.__annotations__ or option in FIXED_WRITE_OPTIONS
    is_of_read = option in ReadTopicOptions.__annotations__ or option in ConsumerOptions.__annotations__
    if is_of_write and not is_write:
        return f"is for writing: {LEAVE_OUT}"
    if is_of_read and is_write:
        return f"is for reading: {LEAVE_OUT}"
    if is_of_read:
        return "has no meaning here: it is for consumers, and partitions are read without one"
    reason = instead_of(option)
    if reason is None:
        return None
    return f"has no counterpart in kcodec: {_in_spark(option, reason, is_write=is_write)}"


def _in_spark(option: str, reason: str, *, is_write: bool) -> str:
    """Return what to use in place of an option of another client, with the names of Spark's options.

    reason: The text for programs in Python.
    """
    if option in _IN_SPARK:
        return _IN_SPARK[option]
    if "sasl_oauthbearer" in option and "KIP-768" in reason:
        return _OIDC
    if "ssl_context=" in reason:
        return _TLS
    known = (WriterOptions if is_write else ReadTopicOptions).__annotations__
    if _PYTHON.search(reason) or not known.keys() >= set(_OPTION_NAME.findall(reason)):
        return LEAVE_OUT
    return _OPTION_NAME.sub(lambda name: _SPARK_NAMES.get(name[0], spark_name(name[0])), reason)


def with_credentials(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a client with the credentials of the provider, if there is one, in place of its name.

    To be called in the process that connects. Raise ValueError if the provider cannot be imported or the mechanism
    takes none, and what the provider raises.
    """
    found = dict(options)
    if TOKEN_PROVIDER not in found:
        return found
    provider = _import(found.pop(TOKEN_PROVIDER))
    mechanism = found.get("sasl_mechanism")
    if mechanism in PROVIDED:
        return {**found, PROVIDED[mechanism]: provider}
    if mechanism not in PASSWORD_MECHANISMS:
        known = ", ".join((*PROVIDED, *PASSWORD_MECHANISMS))
        raise ValueError(f"option {TOKEN_PROVIDER!r} needs the option 'kafka.sasl.mechanism', one of {known}")
    returned = provider()
    if isinstance(returned, tuple):
        found["sasl_plain_username"], found["sasl_plain_password"] = returned
    else:
        found["sasl_plain_password"] = returned
    return found


def has_provider(options: Mapping[str, Any]) -> bool:
    """Return whether a function provides the credentials, so that the next connection may have other ones."""
    return TOKEN_PROVIDER in options or any(name in options for name in PROVIDED.values())


def end_refused_calls(client: Any) -> None:
    """Let a refused login end a call of this client at once. The driver then calls the function for new credentials, or
    ends the query. Otherwise, the client would repeat a login that was accepted before with the same credentials."""
    client._client.network.login_patience = 0.0


def _parts(name: Any) -> tuple[str, str]:
    module, colon, function = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not (module and colon and function):
        raise ValueError(f"option {TOKEN_PROVIDER!r}: expected module:function, the name of a function")
    return module, function


def _import(name: str) -> Callable[[], Any]:
    module, function = _parts(name)
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"option {TOKEN_PROVIDER!r} is {name!r}, which cannot be imported: {error}; the module must be on the "
            "Python path of the driver and of every executor"
        ) from error
    if not callable(found):
        raise ValueError(f"option {TOKEN_PROVIDER!r} is {name!r}, which is a {type(found).__name__}, not a function")
    provider: Callable[[], Any] = found
    return provider
