# SPDX-License-Identifier: Apache-2.0
"""The options of commands that ask a broker: where it is, and properties by the names of Kafka's clients.

`-X name=value` and the lines of `-F FILE` take the names of librdkafka, of Kafka's Java clients, and our own: dots and
underscores are the same. FILE is a Java properties file, so that those of Kafka's own tools can be used. A password
belongs into a file, as other users can see the command line. Values are never shown in messages.
"""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcodec.cli.output import ExitStatus, Output
from kcodec.cli.parser import CommandError, UsageError
from kcodec.log.java_properties import read_properties
from kcodec.network.option_names import COUNTERPARTS

if TYPE_CHECKING:
    from kcodec.client import Admin

# Names of options that take other units, or files in place of words.
OTHER_VALUES = {
    "enable_ssl_certificate_verification",
    "queue_buffering_max_kbytes",
    "queued_max_messages_kbytes",
    "ssl_endpoint_identification_algorithm",
}
# What others call differently, of the same kind of value.
ALIASES = {name: ours for name, ours in COUNTERPARTS.items() if ours is not None and name not in OTHER_VALUES}
# Java's names of things that PEM files hold here in any case.
PEM_ONLY = {"ssl_truststore_type", "ssl_keystore_type"}
# For a terminal: a broker that cannot be reached is reported sooner than in a program.
DEFAULTS = {"client_id": "kcodec-cli", "default_api_timeout_ms": 15_000}
NUMBER_ENDINGS = ("_ms", "_size", "_memory", "_bytes", "_requests", "_per_connection", "retries")
BOOLEANS = {"enable_idempotence", "ssl_check_hostname", "sasl_oauthbearer_allow_http"}
WORDS = {"true": True, "false": False}
NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
JAAS = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


def add_broker_options(parser: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    """-b, -X and -F."""
    parser.add_argument(
        "-b",
        "--bootstrap-server",
        required=is_required,
        metavar="HOST:PORT",
        help="a broker of the cluster, or several with commas between",
    )
    parser.add_argument(
        "-X",
        dest="properties",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a client property by librdkafka's or Java's name, as security.protocol=SASL_SSL",
    )
    parser.add_argument(
        "-F",
        dest="properties_file",
        metavar="FILE",
        help="such properties in a file, as Kafka's tools take them: NAME=VALUE or NAME: VALUE, one a line",
    )


def broker_options(options: argparse.Namespace) -> dict[str, Any]:
    """The options of a client, from those of a command. UsageError for a property that makes no sense."""
    found: dict[str, Any] = {}
    for where, name, value in [*_of_file(options.properties_file), *map(_of_argument, options.properties)]:
        found |= _taken(name, value, where)
    return {**found, "bootstrap_servers": options.bootstrap_server}


def make_admin(options: argparse.Namespace) -> Admin:
    """Admin of the broker that the options name. UsageError for a property that there is not."""
    from kcodec.client import Admin

    try:
        return Admin(**client_options(options))
    except TypeError as error:
        raise UsageError(str(error).replace("Admin has no option", "no property is called")) from error


def client_options(options: argparse.Namespace, **given: Any) -> dict[str, Any]:
    """The options of a client for a terminal: what the command gives, and above that what the command line says."""
    return {**DEFAULTS, **given, **broker_options(options)}


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Turn the TypeError of an option that a client does not have into a UsageError."""
    try:
        yield
    except TypeError as error:
        raise UsageError(str(error)) from error


def partial_results(call: Callable[[], dict[Any, Any]], output: Output) -> tuple[dict[Any, Any], ExitStatus]:
    """Return the results of a call on several items. What failed is reported on stderr, and the status is ERROR."""
    from kcodec.client import AdminError

    try:
        return call(), ExitStatus.OK
    except AdminError as error:
        return error.results, say_errors(error.errors, output)


def say_errors(errors: Mapping[Any, Any], output: Output) -> ExitStatus:
    """Report errors on stderr. Return ERROR if there is one."""
    for error in errors.values():
        output.say(f"kcodec: {error}")
    return ExitStatus.ERROR if errors else ExitStatus.OK


def _of_argument(given: str) -> tuple[str, str, str]:
    """(where, name, value) of -X. What could be a value is not shown: it may be a secret."""
    name, equals, value = given.partition("=")
    if not equals or not NAME.fullmatch(name.strip()):
        begin = NAME.match(name.strip())
        said = f"-X {begin[0]}" if begin else "-X"
        raise UsageError(f"{said}: expected NAME=VALUE, for example -X security.protocol=SASL_SSL")
    return "-X ", name.strip(), value.strip()


def _of_file(path: str | None) -> Iterator[tuple[str, str, str]]:
    """(where, name, value) of each property of a file as Java reads one. What it holds is never shown: only names."""
    if path is None:
        return
    for name, value, line, is_separated in read_properties(Path(path).read_text(encoding="utf-8")):
        where = f"{path}, line {line}: "
        if not is_separated or not NAME.fullmatch(name):
            raise UsageError(
                f"{where}expected NAME=VALUE, for example security.protocol=SASL_SSL (the line is not shown, as it may "
                "hold a secret)"
            )
        yield where, name, value.strip()


def _taken(name: str, value: str, where: str = "") -> dict[str, Any]:
    ours = name.replace(".", "_").replace("-", "_")
    ours = ALIASES.get(ours, ours)
    if ours == "sasl_jaas_config":
        return _of_jaas(value)
    if ours == "ssl_endpoint_identification_algorithm":
        return {"ssl_check_hostname": value.lower() not in ("", "none")}
    if ours in PEM_ONLY:
        if value.upper() != "PEM":
            raise UsageError(f"{where}{name}: only PEM files can be read, so that it can only be PEM")
        return {}
    if ours in BOOLEANS:
        if value.lower() not in WORDS:
            raise UsageError(f"{where}{name} must be true or false")
        return {ours: WORDS[value.lower()]}
    if ours.endswith(NUMBER_ENDINGS):
        return {ours: _number(name, value, where)}
    if ours == "acks":
        return {ours: int(value) if value.lstrip("-").isdecimal() else value}
    return {ours: value}


def _number(name: str, value: str, where: str) -> int | float:
    try:
        return int(value) if value.lstrip("-").isdecimal() else float(value)
    except ValueError:
        raise UsageError(f"{where}{name} must be a number") from None


def _of_jaas(value: str) -> dict[str, str]:
    """Java's `... required username="u" password="p";`. What is wrong with it is not shown, as it holds a secret."""
    found = {name: re.sub(r"\\(.)", r"\1", quoted) for name, quoted in JAAS.findall(value)}
    if set(found) != {"username", "password"}:
        raise UsageError('sasl.jaas.config: expected ... required username="..." password="...";')
    return {"sasl_plain_username": found["username"], "sasl_plain_password": found["password"]}


def name_and_value(text: str) -> tuple[str, str]:
    """NAME=VALUE of an option."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def needs_names(names: list[str], what: str, command: str) -> None:
    """CommandError where nothing is named."""
    if not names:
        raise CommandError(f"{command} needs {what}")
