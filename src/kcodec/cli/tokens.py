# SPDX-License-Identifier: Apache-2.0
"""``kcodec tokens``: create, show, renew and delete delegation tokens.

Only `create` prints the secret of a token. The other actions name a token by its id, so that its secret is not in the
command line, which other users can see.
"""

from __future__ import annotations

import argparse
import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kcodec.cli.brokers import add_broker_options, make_admin, needs_names, refuse_names
from kcodec.cli.offsets import duration
from kcodec.cli.output import ExitStatus, Output
from kcodec.cli.parser import CommandError, Example, Parser
from kcodec.cli.render import time_text, write_rows

if TYPE_CHECKING:
    from kcodec.admin.delegation_tokens import DelegationToken, KafkaPrincipal
    from kcodec.client import Admin

DESCRIPTION = (
    "Shows and changes delegation tokens, with which a client authenticates in place of a user. list [USER...]: prints "
    "the tokens that you may see, without their secrets. create: creates a token and prints its id and its secret, "
    "which are the user name and the password of SCRAM. renew TOKEN...: makes tokens end later. expire TOKEN...: "
    "deletes tokens; without --execute, only prints which ones."
)
EXAMPLES = (
    Example("all tokens", "kcodec tokens list -b localhost:9092 -F client.properties"),
    Example("a token for a day", "kcodec tokens create -b localhost:9092 -F client.properties --lifetime 24h"),
    Example("the tokens of a user", "kcodec tokens list -b localhost:9092 -F client.properties alice"),
)
COLUMNS = ("token", "owner", "requester", "renewers", "issued", "ends", "ends_at_last")


def parser() -> Parser:
    """Return the options of the command."""
    found = Parser("tokens", DESCRIPTION, EXAMPLES, ACTIONS)
    found.add_argument("names", nargs="*", metavar="NAME", help="list: owners; renew, expire: ids of tokens")
    add_broker_options(found)
    found.add_json()
    found.add_argument("--owner", metavar="USER", help="create: user whose permissions the token gives (default: you)")
    found.add_repeatable("--renewer", metavar="USER", help="create: a user that may renew the token")
    found.add_argument(
        "--lifetime", type=duration, metavar="TIME", help="create: time until it ends in any case, such as 7d"
    )
    found.add_argument("--period", type=duration, metavar="TIME", help="renew: time until it ends, such as 24h")
    found.add_argument("--execute", action="store_true", help="expire: delete the tokens")
    return found


def run(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Do the action."""
    with make_admin(options) as admin:
        return ACTIONS[options.action](admin, options, output)


def _principal(name: str) -> KafkaPrincipal:
    """Return the principal of an argument USER or TYPE:USER."""
    from kcodec.admin.delegation_tokens import KafkaPrincipal

    kind, colon, user = name.partition(":")
    return KafkaPrincipal(user, kind) if colon else KafkaPrincipal(name)


def _list(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    found = admin.describe_delegation_tokens([_principal(name) for name in options.names] or None)
    rows = (_row(one, options) for one in found.values())
    write_rows(output, COLUMNS, rows, as_json=options.json)
    return ExitStatus.OK


def _row(one: DelegationToken, options: argparse.Namespace) -> list[Any]:
    times = (one.issue_timestamp, one.expiry_timestamp, one.max_timestamp)
    requester = None if one.requester is None else str(one.requester)
    renewers = list(map(str, one.renewers))
    if options.json:
        return [one.token_id, str(one.owner), requester, renewers, *times]
    return [one.token_id, str(one.owner), requester, ", ".join(renewers) or None, *map(time_text, times)]


def _create(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    refuse_names(options.names, "create", "to create a token for another user, pass --owner")
    made = admin.create_delegation_token(
        owner=None if options.owner is None else _principal(options.owner),
        renewers=[_principal(name) for name in options.renewer],
        max_lifetime_ms=options.lifetime,
    )
    ends = (made.expiry_timestamp, made.max_timestamp)
    shown = ends if options.json else map(time_text, ends)
    row = [made.token_id, base64.b64encode(made.hmac).decode(), str(made.owner), *shown]
    write_rows(output, ("token", "secret", "owner", "ends", "ends_at_last"), [row], as_json=options.json)
    return ExitStatus.OK


def _named(admin: Admin, options: argparse.Namespace, action: str) -> list[DelegationToken]:
    needs_names(options.names, "the id of a TOKEN", action, options.bootstrap_server)
    known = admin.describe_delegation_tokens()
    for name in options.names:
        if name not in known:
            raise CommandError(f"no token with the id {name!r} is visible to this user (kcodec tokens list)")
    return [known[name] for name in options.names]


def _renew(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    for token in _named(admin, options, "renew"):
        ends = admin.renew_delegation_token(token.hmac, renew_period_ms=options.period)
        output.say(f"{token.token_id}: ends {time_text(ends)}")
    return ExitStatus.OK


def _expire(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    for token in _named(admin, options, "expire"):
        if options.execute:
            admin.expire_delegation_token(token.hmac)
        output.say(f"{token.token_id} of {token.owner}: {'deleted' if options.execute else 'would be deleted'}")
    if not options.execute:
        output.say("nothing was changed; --execute makes the changes")
    return ExitStatus.OK


ACTIONS: dict[str, Callable[[Admin, argparse.Namespace, Output], ExitStatus]] = {
    "list": _list,
    "create": _create,
    "renew": _renew,
    "expire": _expire,
}
