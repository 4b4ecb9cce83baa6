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

if TYPE_CHECKING:
    from kcodec.client import Admin

# For a terminal: a broker that cannot be reached is reported sooner than in a program.
DEFAULTS = {"client_id": "kcodec-cli", "default_api_timeout_ms": 15_000}
NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")


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
    from kcodec.client.properties import options_of_property

    found: dict[str, Any] = {}
    for where, name, value in [*_of_file(options.properties_file), *map(_of_argument, options.properties)]:
        try:
            found |= options_of_property(name, value)
        except ValueError as error:
            raise UsageError(f"{where}{error}") from None
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
