# SPDX-License-Identifier: Apache-2.0
"""Options from properties: names and values as text, as in the configuration files of Kafka's tools and of librdkafka.

Names may be those of Java, librdkafka or kcodec, with dots or underscores; values are converted as the options are
declared.
"""

from __future__ import annotations

import re
from dataclasses import Field
from typing import Any

from kcodec.network.options import ClientConfig
from kcodec.options import counterparts
from kcodec.security.option_names import SecurityConfig

# Names of options that take other units, or files in place of words.
OTHER_VALUES = {"enable_ssl_certificate_verification", "queue_buffering_max_kbytes", "queued_max_messages_kbytes"}
# Java's names for the formats of stores: kcodec reads PEM files only.
PEM_ONLY = {"ssl_truststore_type", "ssl_keystore_type"}
JAAS = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
WORDS = {"true": True, "false": False}


def options_of_property(name: str, value: str) -> dict[str, Any]:
    """Return the options that a property sets; an unknown name is returned with underscores, for the client to reject.

    Raise ValueError if the value is invalid. Its text does not show the value, which may be a secret.
    """
    ours = name.replace(".", "_").replace("-", "_")
    if ours == "sasl_jaas_config":
        return _options_of_jaas(value)
    if ours == "ssl_endpoint_identification_algorithm":
        return {"ssl_check_hostname": value.lower() not in ("", "none")}
    if ours in PEM_ONLY:
        if value.upper() != "PEM":
            raise ValueError(f"{name} must be PEM, as kcodec reads only PEM files; convert the store to PEM")
        return {}
    ours, declared = _declaration(ours)
    return {ours: value if declared is None else _converted(name, value, str(declared.type))}


def _declaration(name: str) -> tuple[str, Field[Any] | None]:
    """Return the name of an option in kcodec and its declaration, or the name given and None."""
    common = {**ClientConfig.fields(), **SecurityConfig.fields()}
    if name in common:  # which saves a process that only asks for brokers or TLS the import of the others
        return name, common[name]
    from kcodec.consumer.options import ConsumerConfig
    from kcodec.producer.options import ProducerConfig

    ours = name if name in OTHER_VALUES else counterparts().get(name, name)
    return ours, {**ConsumerConfig.fields(), **ProducerConfig.fields(), **common}.get(ours)


def _converted(name: str, value: str, kind: str) -> object:
    if kind == "bool":
        if value.lower() not in WORDS:
            raise ValueError(f"{name} must be true or false (the value is not shown, as it may be a secret)")
        return WORDS[value.lower()]
    if kind.startswith(("int", "float")):
        try:
            return int(value) if value.lstrip("-").isdecimal() else float(value)
        except ValueError:
            if "Literal" in kind:
                return value
            raise ValueError(f"{name} must be a number (the value is not shown, as it may be a secret)") from None
    return value


def _options_of_jaas(value: str) -> dict[str, str]:
    """Return the options of Java's `... required username="u" password="p";`."""
    found = {name: re.sub(r"\\(.)", r"\1", quoted) for name, quoted in JAAS.findall(value)}
    if set(found) != {"username", "password"}:
        raise ValueError('sasl.jaas.config: expected ... required username="..." password="...";')
    return {"sasl_plain_username": found["username"], "sasl_plain_password": found["password"]}
