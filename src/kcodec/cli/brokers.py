# SPDX-License-Identifier: Apache-2.0
"""The options of commands that connect to a broker: its address, and client properties by Kafka's names.

`-X name=value` and the lines of `-F FILE` accept the names of librdkafka, of Kafka's Java clients, and of kcodec; dots
and underscores are equivalent. FILE is a Java properties file, so files of Kafka's own tools can be used. Put passwords
into a file, because other users can see the command line. Error messages do not contain the values of properties.
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
from kcodec.java_properties import read_properties, text_of_properties

if TYPE_CHECKING:
    from kcodec.client import Admin

# For a terminal: a broker that cannot be reached is reported sooner than in a program.
DEFAULTS = {"client_id": "kcodec-cli", "default_api_timeout_ms": 15_000}
# Where a property of the command line is, before its name.
FROM_ARGUMENT = "-X "
NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")


def add_broker_options(
    parser: argparse.ArgumentParser, *, is_required: bool = True, clients: tuple[str, ...] = ()
) -> None:
    """Add the options -b, -X and -F.

    clients: Clients of the command, if there are several. Each gets only its own options.
    """
    parser.set_defaults(clients=clients)
    parser.add_argument(
        "-b",
        "--bootstrap-server",
        required=is_required,
        metavar="HOST:PORT",
        help="a broker of the cluster, or several separated by commas",
    )
    parser.add_argument(
        "-X",
        dest="properties",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a client property by its name in librdkafka or Java, such as security.protocol=SASL_SSL",
    )
    parser.add_argument(
        "-F",
        dest="properties_file",
        metavar="FILE",
        help="a file of such properties, as for Kafka's tools: NAME=VALUE or NAME: VALUE on each line",
    )


def broker_options(options: argparse.Namespace, client: str | None = None) -> dict[str, Any]:
    """Return the options of a client from the options of a command. Raise UsageError for an invalid property.

    client: "Admin", "producer", "consumer" or "read_topic", which gets only its own options. None: options of all
    clients.
    """
    from kcodec.client.properties import options_of_property

    found: dict[str, Any] = {}
    for where, name, value in [*_of_file(options.properties_file), *map(_of_argument, options.properties)]:
        try:
            converted = options_of_property(name, value)
        except ValueError as error:
            raise UsageError(f"{where}{error}") from None
        for ours, one in converted.items():
            if client is None or _is_option_of(client, ours, where, name, options):
                found[ours] = one
    return {**found, "bootstrap_servers": options.bootstrap_server}


def _is_option_of(client: str, ours: str, where: str, name: str, options: argparse.Namespace) -> bool:
    """Return whether a client has an option.

    If no client of the command has the option, raise UsageError. If the option comes from a file, which several
    commands can share, and another command has it, log one WARNING instead.
    """
    from kcodec.client.properties import accepts, meant_option, owner_of, warn_unused

    if accepts(client, ours):
        return True
    clients = {client, *options.clients}
    if any(accepts(one, ours) for one in clients):
        return False
    owner = owner_of(ours)
    if owner is None:
        meant = meant_option(name, clients) or "; remove it"
        raise UsageError(f"{where}no property is called {name!r}{meant}")
    if where == FROM_ARGUMENT:
        raise UsageError(f"{where}{name} is an option of a {owner}, which this command does not use; omit it")
    reported = vars(options).setdefault("reported", set())
    if (where, name) not in reported:
        reported.add((where, name))
        warn_unused(where, name, owner, "this command")
    return False


def refuse_broker_options(options: argparse.Namespace, **more: Any) -> None:
    """Refuse options that have no effect on files. `more` has options in addition to -X and -F, with their values."""
    given = {"-X": options.properties, "-F": options.properties_file, **more}
    for flag, value in given.items():
        if value is not None and value != []:
            raise UsageError(f"{flag} needs a broker: pass -b HOST:PORT, or omit {flag} for files")


def make_admin(options: argparse.Namespace) -> Admin:
    """Return an Admin for the broker that the options name. Raise UsageError for an unknown property."""
    from kcodec.client import Admin

    try:
        return Admin(**client_options(options, "Admin"))
    except TypeError as error:
        raise UsageError(str(error)) from error


def client_options(options: argparse.Namespace, client: str, **given: Any) -> dict[str, Any]:
    """Return the options of a client for a terminal: those of the command, overridden by the command line.

    client: As in `broker_options`.
    """
    return {**DEFAULTS, **given, **broker_options(options, client)}


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Convert the TypeError for an option that a client does not have to a UsageError."""
    try:
        yield
    except TypeError as error:
        raise UsageError(str(error)) from error


def partial_results(
    call: Callable[[], dict[Any, Any]], output: Output, results_of: Callable[[Any], dict[Any, Any]] = dict
) -> tuple[dict[Any, Any], ExitStatus]:
    """Return the results of a call on several items. Report errors on stderr; the status is then ERROR.

    results_of: Function that returns the results of the call from those of its AdminError.
    """
    from kcodec.client import AdminError

    try:
        return call(), ExitStatus.OK
    except AdminError as error:
        return results_of(error.results), say_errors(error.errors, output)


def say_errors(errors: Mapping[Any, Any], output: Output) -> ExitStatus:
    """Report errors on stderr. Return ERROR if there is one."""
    for error in errors.values():
        output.say(f"kcodec: {error}")
    return ExitStatus.ERROR if errors else ExitStatus.OK


def _of_argument(given: str) -> tuple[str, str, str]:
    """Return (where, name, value) of -X. Errors do not show the value, which may be a secret."""
    name, equals, value = given.partition("=")
    if not equals or not NAME.fullmatch(name.strip()):
        begin = NAME.match(name.strip())
        said = f"-X {begin[0]}" if begin else "-X"
        raise UsageError(f"{said}: expected NAME=VALUE, for example -X security.protocol=SASL_SSL")
    return FROM_ARGUMENT, name.strip(), value.strip()


def _of_file(path: str | None) -> Iterator[tuple[str, str, str]]:
    """Yield (where, name, value) of each property of a file, as Java reads it. Errors show only names."""
    if path is None:
        return
    for name, value, line, is_separated in read_properties(text_of_properties(Path(path).read_bytes())):
        where = f"{path}, line {line}: "
        if not is_separated or not NAME.fullmatch(name):
            raise UsageError(
                f"{where}expected NAME=VALUE, for example security.protocol=SASL_SSL (the line is not shown, as it may "
                "hold a secret)"
            )
        yield where, name, value.strip()


def name_and_value(text: str) -> tuple[str, str]:
    """Return name and value of an option NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def refuse_names(names: list[str], command: str, remedy: str) -> None:
    """Raise UsageError if names are passed to an action that does not use them."""
    if names:
        raise UsageError(f"{command} takes no names, got {names[0]!r}; {remedy}")


def needs_names(names: list[str], what: str, command: str, servers: str | None = None) -> None:
    """Raise CommandError if no name is given. `servers` is the value of -b, which may be the missing name."""
    if names:
        return
    if servers is not None and ":" not in servers:
        raise CommandError(
            f"{command} needs {what}: -b has taken {servers!r} as HOST:PORT; check that the variable after -b is not"
            " empty"
        )
    raise CommandError(f"{command} needs {what}")
