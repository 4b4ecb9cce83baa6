# SPDX-License-Identifier: Apache-2.0
"""``kcodec quotas``: show and change the quotas of clients."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kcodec.cli.brokers import add_broker_options, make_admin, name_and_value
from kcodec.cli.output import ExitStatus, Output
from kcodec.cli.parser import CommandError, Example, Parser, nearest
from kcodec.cli.render import write_rows

if TYPE_CHECKING:
    from kcodec.admin.quotas import ClientQuotaEntity
    from kcodec.client import Admin

DESCRIPTION = (
    "Shows and changes the quotas of clients. --user, --client-id and --ip name the clients; --user '' means all users "
    "that have no quota by name. list: prints the quotas of these clients, or all quotas. alter: changes individual "
    "quotas with --set and --unset, and keeps the others; with --validate-only, only checks whether it is possible."
)
EXAMPLES = (
    Example("all quotas", "kcodec quotas list -b localhost:9092"),
    Example(
        "limit a user's reads", "kcodec quotas alter -b localhost:9092 --user alice --set consumer_byte_rate=1048576"
    ),
    Example(
        "only check it", "kcodec quotas alter -b localhost:9092 --user '' --set request_percentage=50 --validate-only"
    ),
)
#: How long a quota is looked up before --unset is refused, and the pause between two look-ups, in seconds.
LOOKUP_SECONDS, LOOKUP_PAUSE_SECONDS = 1.0, 0.1


def parser() -> Parser:
    """Return the options of the command."""
    found = Parser("quotas", DESCRIPTION, EXAMPLES, ACTIONS)
    add_broker_options(found)
    found.add_json()
    for option, what in (("--user", "user"), ("--client-id", "client.id"), ("--ip", "address")):
        found.add_argument(option, metavar="NAME", help=f"clients with this {what}; '' is the default")
    found.add_repeatable("--set", type=name_and_value, metavar="NAME=VALUE", help="alter: set a quota")
    found.add_repeatable("--unset", metavar="NAME", help="alter: remove a quota")
    found.add_argument("--validate-only", action="store_true", help="alter: only check whether it is possible")
    return found


def run(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Do the action."""
    with make_admin(options) as admin:
        return ACTIONS[options.action](admin, options, output)


def _clients(options: argparse.Namespace) -> dict[str, str]:
    names = ("user", "client_id", "ip")
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def _list(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    found = admin.describe_client_quotas(user=options.user, client_id=options.client_id, ip=options.ip)
    rows = (
        [*(_shown(getattr(entity, part), options) for part in ("user", "client_id", "ip")), name, value]
        for entity, quotas in sorted(found.items(), key=lambda item: str(item[0]))
        for name, value in sorted(quotas.items())
    )
    write_rows(output, ("user", "client_id", "ip", "quota", "value"), rows, as_json=options.json)
    return ExitStatus.OK


def _shown(name: str | None, options: argparse.Namespace) -> str | None:
    return "<default>" if name == "" and not options.json else name


def _alter(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    from kcodec.admin.quotas import ClientQuotaEntity

    chosen = _clients(options)
    if not chosen:
        raise CommandError("alter needs at least one of --user, --client-id and --ip")
    changes: dict[str, float | None] = {name: _number(name, value) for name, value in options.set}
    for name in options.unset:
        if name in changes:
            raise CommandError(f"{name}: --set and --unset exclude each other")
        changes[name] = None
    if not changes:
        raise CommandError("alter needs --set or --unset")
    entity = ClientQuotaEntity(**chosen)
    if options.unset:
        _check_existing(admin, entity, options.unset)
    admin.alter_client_quotas({entity: changes}, validate_only=options.validate_only)
    output.say(f"{entity}: {'could be changed' if options.validate_only else 'changed'}")
    return ExitStatus.OK


def _check_existing(admin: Admin, entity: ClientQuotaEntity, names: list[str]) -> None:
    """Raise CommandError for a quota that the clients do not have. A broker would accept its removal.

    The metadata of a broker can be behind that of the controller. A quota that was just set may not be found at once.
    """
    from kcodec.errors import AuthorizationError

    deadline = time.monotonic() + LOOKUP_SECONDS
    while True:
        try:
            found = admin.describe_client_quotas(
                user=entity.user, client_id=entity.client_id, ip=entity.ip, strict=True
            )
        except AuthorizationError:
            return  # a user may change quotas without the permission to describe them
        existing = found.get(entity, {})
        missing = [name for name in names if name not in existing]
        if not missing:
            return
        if time.monotonic() >= deadline:
            hint = nearest(missing[0], existing) if existing else ""
            raise CommandError(f"--unset {missing[0]}: {entity} has no quota of this name{hint}")
        time.sleep(LOOKUP_PAUSE_SECONDS)


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise CommandError(f"--set {name}: {value!r} is not a finite number")
    return number


ACTIONS: dict[str, Callable[[Admin, argparse.Namespace, Output], ExitStatus]] = {"list": _list, "alter": _alter}
