# SPDX-License-Identifier: Apache-2.0
"""Options from properties. These are names and values as text, as in the configuration files of Kafka's tools and of
librdkafka.

Names may be those of Java, librdkafka or kcodec, with dots or underscores. Values are converted to the declared types
of the options.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import Field
from functools import cache
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from kcodec.client.java_classes import CLASSES, of_classes
from kcodec.java_properties import read_properties, text_of_properties
from kcodec.network.option_names import meant_by
from kcodec.network.options import ClientConfig
from kcodec.options import OptionSet, counterparts, declaration
from kcodec.security.option_names import SecurityConfig

_log = logging.getLogger(__name__)
# Names of options whose values differ from those of the option of kcodec.
OTHER_VALUES = {"enable_ssl_certificate_verification"}
# Names of options whose unit is 1024 bytes.
IN_KILOBYTES = {"queue_buffering_max_kbytes", "queued_max_messages_kbytes"}
# Options whose values librdkafka or Java also accepts in the other case. kcodec has them in upper or in lower case.
UPPER = {"security_protocol", "sasl_mechanism"}
LOWER = {"compression_type", "group_protocol", "isolation_level", "metadata_recovery_strategy", "client_dns_lookup"}
# librdkafka's names for the values of auto_offset_reset.
RESETS = {"smallest": "earliest", "beginning": "earliest", "largest": "latest", "end": "latest", "error": "none"}
# Java's options for the formats of stores. kcodec reads only PEM files.
PEM_ONLY = {"ssl_truststore_type", "ssl_keystore_type"}
# Values of connections.max.idle.ms that mean no limit, in Java (-1) and in librdkafka (0), and the time that is used
# instead, in ms.
NO_IDLE_LIMIT, LONGEST_IDLE_MS = {-1, 0}, 2**31 - 1
# The level of librdkafka that means the default of the codec. It is only recognized with the name that librdkafka has,
# because -1 is also a level of zstd.
LEVEL_NAME, DEFAULT_LEVEL = "compression.level", -1
# The value of librdkafka's ssl.ca.location that means the authorities of the operating system, kcodec's default.
SYSTEM_AUTHORITIES = "probe"
# An option in a JAAS configuration line. Its value is in single or double quotes, or has no whitespace and no quotes.
JAAS = re.compile(
    r"""\b(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))(?=[\s;]|$)""",
)
# Java's login module for Kerberos, and the names of its options in kcodec.
KERBEROS_MODULE = "Krb5LoginModule"
KERBEROS_OPTIONS = {"principal": "sasl_kerberos_principal", "serviceName": "sasl_kerberos_service_name"}
# Truth values, with the short forms of librdkafka.
WORDS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


# Options for which librdkafka also accepts the name of kcodec with dots. Most programs use this name.
DOTTED_IN_LIBRDKAFKA = {
    *("acks", "bootstrap_servers", "compression_type", "delivery_timeout_ms", "linger_ms"),
    *("max_in_flight_requests_per_connection", "max_partition_fetch_bytes", "retries", "sasl_mechanism"),
}


@cache
def librdkafka_names() -> Mapping[str, str]:
    """Return the name of each option in librdkafka. If librdkafka has several names for an option, return the one that
    is also Kafka's. If it has no such option, return the name of kcodec with dots."""
    found = {}
    for options in OptionSet.__subclasses__():
        for name, one in options.fields().items():
            others = () if name in DOTTED_IN_LIBRDKAFKA else declaration(one).librdkafka
            found[name] = (*others, name.replace("_", "."))[0]
    return found


def instead_of(option: str) -> str | None:
    """Return what to use instead of an option of another client that kcodec does not have; None for other options.

    option: Name with underscores.
    """
    from kcodec.network.foreign_options import WITHOUT_COUNTERPART  # only where a name is wrong

    return WITHOUT_COUNTERPART.get(option)


def options_of_property(name: str, value: str) -> dict[str, Any]:
    """Return the options that a property sets. An unknown name is returned with underscores, so that the client rejects
    it.

    Raise ValueError if the value is invalid. The error does not show the value, because it may be a secret.
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
    if ours == "enable_ssl_certificate_verification":
        if not _flag(name, value):
            raise ValueError(f"{name} cannot be {value.lower()}: pass an ssl_context= that verifies less")
        return {}
    if name == "ssl.ca.location" and value == SYSTEM_AUTHORITIES:
        return {}
    given, (ours, declared) = ours, _declaration(ours)
    if declared is None:
        return {ours: value}
    if ours in CLASSES:
        return {ours: of_classes(name, ours, value)}
    if given in IN_KILOBYTES:
        return {ours: int(_number(name, value) * 1024)}
    if ours in UPPER or ours in LOWER:
        value = value.upper() if ours in UPPER else value.lower()
    if ours == "auto_offset_reset":
        value = RESETS.get(value, value)
    return {ours: _without_markers(name, ours, _converted(name, value, str(declared.type)))}


def _without_markers(name: str, ours: str, value: object) -> object:
    """Return a value of kcodec for a number with which other clients mean their default or no limit."""
    if ours == "connections_max_idle_ms" and value in NO_IDLE_LIMIT:
        return LONGEST_IDLE_MS
    return None if name == LEVEL_NAME and value == DEFAULT_LEVEL else value


def _declaration(name: str) -> tuple[str, Field[Any] | None]:
    """Return the name of an option in kcodec and its declaration, or the given name and None if it is unknown."""
    common = {**ClientConfig.fields(), **SecurityConfig.fields()}
    if name in common:  # a process that only sets brokers or TLS does not import the other options
        return name, common[name]
    from kcodec.consumer.options import ConsumerConfig
    from kcodec.producer.options import ProducerConfig

    ours = name if name in OTHER_VALUES else counterparts().get(name, name)
    return ours, {**ConsumerConfig.fields(), **ProducerConfig.fields(), **common}.get(ours)


def _converted(name: str, value: str, kind: str) -> object:
    if kind == "bool":
        return _flag(name, value)
    if kind.startswith(("int", "float")):
        try:
            return _number(name, value)
        except ValueError:
            if "Literal" in kind:
                return value
            raise
    return value


def _flag(name: str, value: str) -> bool:
    if value.lower() not in WORDS:
        raise ValueError(f"{name} must be true or false (the value is not shown, as it may be a secret)")
    return WORDS[value.lower()]


def _number(name: str, value: str) -> float:
    try:
        found = int(value) if value.lstrip("-").isdecimal() else float(value)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{name} must be a number (the value is not shown, as it may be a secret)")
    return found


def _options_of_jaas(value: str) -> dict[str, Any]:
    """Return the options that the property sasl.jaas.config of Java sets. For a password, its format is
    `... required username="u" password="p" tokenauth="true";`. For Kerberos, it is
    `...Krb5LoginModule required useKeyTab=true keyTab="/etc/orders.keytab" principal="orders@EXAMPLE.ORG";`.
    Raise ValueError if a required option is missing."""
    found = {}
    for name, *quoted, plain in JAAS.findall(value):
        found[name] = plain or re.sub(r"\\(.)", r"\1", "".join(quoted))
    module, *_ = value.split(maxsplit=1) or [""]
    if module.endswith(KERBEROS_MODULE):
        return _options_of_kerberos(found)
    if not found.keys() >= {"username", "password"}:
        raise ValueError('sasl.jaas.config: expected ... required username="..." password="...";')
    options: dict[str, Any] = {"sasl_plain_username": found["username"], "sasl_plain_password": found["password"]}
    if found.get("tokenauth", "false").lower() == "true":  # as Java's ScramSaslClient reads it
        options["sasl_scram_token_auth"] = True
    return options


def _options_of_kerberos(found: Mapping[str, str]) -> dict[str, Any]:
    """Translate the options of Krb5LoginModule. Options that do not concern the client's credentials have no effect.
    Raise ValueError for `ticketCache`, and for `useKeyTab` without `keyTab`."""
    options: dict[str, Any] = {ours: found[name] for name, ours in KERBEROS_OPTIONS.items() if name in found}
    if found.get("useKeyTab", "false").lower() == "true":
        if "keyTab" not in found:
            raise ValueError('sasl.jaas.config: useKeyTab=true needs keyTab="...", the path of the keytab')
        options["sasl_kerberos_keytab"] = found["keyTab"]
    if "ticketCache" in found:
        raise ValueError(
            "sasl.jaas.config: ticketCache is not supported; remove it, and set the environment variable KRB5CCNAME"
        )
    return options


# from_properties


def options_from_properties(properties: Mapping[str, Any] | str | PathLike[str], client: str) -> dict[str, Any]:
    """Return the options of a client from properties, or from a file with properties.

    properties: A mapping, or the path of a file. Values are text, as in files, or values of kcodec's options.
    client:     "producer", "consumer", "session" or "Admin".

    Several clients may share a file. In a file, an option that only another client has is logged as a WARNING, and has
    no effect. In a mapping, it is an error.

    Raise TypeError if the client does not have some of the names. The error lists all of them, each with a suggestion
    where there is one. Raise ValueError if a value is invalid, and OSError if the file cannot be read.
    """
    given = properties if isinstance(properties, Mapping) else properties_of_file(properties)
    what = client if client == "Admin" else f"a {client}"
    where = "" if isinstance(properties, Mapping) else f"{fspath(properties)!s}: "
    found: dict[str, Any] = {}
    names: dict[str, str] = {}
    wrong = []
    for name, value in given.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a property must be a str, not {type(name).__name__}")
        try:
            options = _options_of(name, value)
        except ValueError as error:
            raise ValueError(f"{where}{error}") from None
        for ours, converted in options.items():
            owner = None if accepts(client, ours) else owner_of(ours)
            if owner is not None and where:
                warn_unused(where, name, owner, what)
            elif not accepts(client, ours):
                wrong.append(f"{name!r}{meant_option(name, [client]) or _remedy_of(owner, where)}")
            elif ours in found and found[ours] != converted:
                raise ValueError(
                    f"{where}{names[ours]} and {name} both set {ours}, to different values; remove one of them"
                )
            else:
                found[ours], names[ours] = converted, name
    if wrong:
        raise TypeError(f"{where}{what} has no option {'; and no option '.join(wrong)}")
    return found


def _options_of(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return options_of_property(name, value)
    ours = name.replace(".", "_").replace("-", "_")
    if ours == "enable_ssl_certificate_verification":
        return options_of_property(name, str(value))
    if ours in IN_KILOBYTES and isinstance(value, int | float):
        value = value * 1024
    ours = _declaration(ours)[0]
    return {ours: _without_markers(name, ours, value)}


def meant_option(name: str, clients: Iterable[str]) -> str:
    """Return the end of an error about an unknown property, which suggests an option of the clients. Return an empty
    text if no option is similar."""
    return meant_by(name, sorted({known for client in clients for kind in _kinds(client) for known in kind.names()}))


def accepts(client: str, ours: str) -> bool:
    """Return whether a client, or "read_topic", accepts an option with this name. Former names are accepted, too."""
    return any(
        ours in kind.names() | kind.removed.keys()
        or any(declaration(field).deprecated == ours for field in kind.fields().values())
        for kind in _kinds(client)
    )


def _kinds(client: str) -> list[type[OptionSet]]:
    """Return the classes of the options of a client, or of "read_topic"."""
    from kcodec.consumer.options import ConsumerConfig
    from kcodec.producer.options import ProducerConfig

    found: list[type[OptionSet]] = [ClientConfig, SecurityConfig]
    if client in ("producer", "session"):
        found.append(ProducerConfig)
    if client in ("consumer", "session"):
        found.append(ConsumerConfig)
    if client == "session":
        from kcodec.session.options import SessionOwnConfig

        found.append(SessionOwnConfig)
    if client == "read_topic":
        from kcodec.reading.options import ReadTopicConfig

        found.append(ReadTopicConfig)
    return found


def owner_of(ours: str) -> str | None:
    """Return "consumer" or "producer", the client that has an option. Return None if neither of them has it."""
    return next((client for client in ("consumer", "producer") if accepts(client, ours)), None)


def warn_unused(where: str, name: str, owner: str, what: str) -> None:
    """Log a warning about a property of a shared file that has no effect, as Java's clients and librdkafka do.

    where: Path of the file, followed by ": ".
    """
    _log.warning(
        "%s%s has no effect on %s, as it is an option of a %s; to avoid this warning, use a file without it",
        where,
        name,
        what,
        owner,
    )


def _remedy_of(owner: str | None, where: str) -> str:
    """Return the end of an error about an option that only another client has, or that no client has."""
    if owner is not None:
        return f": it is an option of a {owner}; remove it, or pass the other properties alone"
    return "; remove it from the file" if where else ""


def properties_of_file(path: str | PathLike[str]) -> dict[str, str]:
    """Return the properties of a file in the format of java.util.Properties, in UTF-8 or ISO 8859-1. If several
    properties have the same name, the last one is used. Raise OSError if the file cannot be read."""
    return {one.name: one.value for one in read_properties(text_of_properties(Path(path).read_bytes()))}
