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

TOKEN_PROVIDER = "kcodec.token.provider"
#: Mechanism -> the option that takes the function itself.
PROVIDED = {
    "OAUTHBEARER": "sasl_oauth_token_provider",
    "AWS_MSK_IAM": "sasl_aws_credentials_provider",
}
#: Options of Java's producer that kcodec's transactions do not have, because their value is fixed.
ONLY_WRITE = frozenset({"acks", "enable_idempotence"})
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


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


def why_refused(option: str, *, is_write: bool) -> str | None:
    """Return why an option of a Kafka client, by its name in kcodec, is not an option of a read or a write; None if it
    is unknown. Spark's own source and sink pass any option to Java's clients, which ignore those of each other."""
    is_of_write = option in WriterOptions.__annotations__ or option in ONLY_WRITE
    is_of_read = option in ReadTopicOptions.__annotations__ or option in ConsumerOptions.__annotations__
    if is_of_write and not is_write:
        return "is for writing: leave it out"
    if is_of_read and is_write:
        return "is for reading: leave it out"
    if is_of_read:
        return "has no meaning here: it is for consumers, and partitions are read without one"
    reason = instead_of(option)
    if reason is None:
        return None
    # Some reasons name arguments and methods of Python, which a reader of Spark does not have.
    return "has no counterpart in kcodec: " + ("leave it out" if re.search(r"=|\(\)", reason) else reason)


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
