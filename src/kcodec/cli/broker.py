# SPDX-License-Identifier: Apache-2.0
"""``kcodec broker``: run the embedded broker as a process, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import codecs
import signal
import threading
from pathlib import Path

from kcodec.cli.output import ExitStatus, Output
from kcodec.cli.parser import Example, Parser, UsageError

DESCRIPTION = (
    "Runs a Kafka broker for development, tests and demos: a single node without Java. Prints one line when the broker "
    "accepts requests, and runs until SIGTERM or Ctrl-C. Without --data-dir, everything is lost at the end."
)
EXAMPLES = (
    Example("a broker on port 9092, in memory", "kcodec broker"),
    Example("keep the logs in a directory, in Kafka's files", "kcodec broker --port 9192 --data-dir logs"),
    Example(
        "close the connection after a third of the Produce requests, chosen at random",
        "kcodec broker --fault Produce,probability=0.33,close=after",
    ),
)
# A signal that arrives while the process is stopped (Ctrl-Z) may go to another thread. It then ends no wait of the main
# thread, which handles it.
SIGNAL_SECONDS = 0.5
DEFAULT_PORT = 9092


def parser() -> Parser:
    """Return the options of the command."""
    found = Parser("broker", DESCRIPTION, EXAMPLES)
    found.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (default: 127.0.0.1)")
    found.add_argument(
        "--port", type=int, metavar="N", help="0: a free port (default: 9092); not together with --listener"
    )
    found.add_repeatable(
        "--listener",
        metavar="PROTOCOL=PORT",
        help="a listener for clients with this security protocol, in place of --port: PLAINTEXT, SSL, SASL_PLAINTEXT "
        "or SASL_SSL",
    )
    found.add_argument("--data-dir", metavar="DIR", help="directory of the logs; created if it does not exist")
    found.add_argument(
        "--transaction-version",
        type=int,
        choices=(0, 1, 2),
        default=2,
        help="level of the feature transaction.version (default: 2)",
    )
    found.add_repeatable(
        "--max-version", metavar="API=N", help="highest version of an API, to play an older broker: Produce=8"
    )
    found.add_repeatable(
        "--fault", metavar="RULE", help="a fault rule, as Produce,topic=orders,count=1,close=after; see docs/broker.md"
    )
    found.add_argument("--ssl-certfile", metavar="FILE", help="certificate of the broker in PEM; turns TLS on")
    found.add_argument("--ssl-keyfile", metavar="FILE", help="key of the certificate, if it is in a separate file")
    found.add_argument("--ssl-cafile", metavar="FILE", help="authority of the certificates of clients")
    found.add_argument(
        "--ssl-client-auth",
        choices=("none", "requested", "required"),
        default="none",
        help="whether clients have a certificate (default: none)",
    )
    found.add_repeatable(
        "--sasl-mechanism", metavar="NAME", help="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; clients have to log in"
    )
    found.add_argument(
        "--users", metavar="FILE", help="users that log in: a line NAME=PASSWORD for each, in UTF-8; see docs/broker.md"
    )
    found.add_argument("--authorizer", action="store_true", help="clients need permissions (ACLs)")
    found.add_repeatable(
        "--super-user", metavar="NAME", help="a user that needs no permissions, by name or principal: User:CN=alice"
    )
    found.add_argument(
        "--allow-everyone-if-no-acl-found",
        action="store_true",
        help="allow everything on a resource for which there is no ACL",
    )
    found.add_argument("--trace", metavar="FILE", help="write each request and its response to FILE, as JSON lines")
    return found


def run(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Run the broker until a signal arrives."""
    from kcodec.broker import Broker

    listeners = dict(_number_of("--listener", text, "PROTOCOL=PORT, for example SSL=9093") for text in options.listener)
    _check_login(options, listeners)
    if listeners and options.port is not None:
        raise UsageError("--port and --listener exclude each other: omit --port, as --listener has the port")
    if len(listeners) < len(options.listener):
        raise UsageError("--listener: two listeners have the same protocol; each protocol has one port")
    broker = Broker(
        host=options.host,
        port=0 if listeners else DEFAULT_PORT if options.port is None else options.port,
        listeners=listeners,
        data_dir=options.data_dir,
        trace=options.trace,
        fault_rules=options.fault,
        transaction_version=options.transaction_version,
        max_versions=dict(
            _number_of("--max-version", text, "API=N, for example Produce=8") for text in options.max_version
        ),
        ssl_certfile=options.ssl_certfile,
        ssl_keyfile=options.ssl_keyfile,
        ssl_cafile=options.ssl_cafile,
        ssl_client_auth=options.ssl_client_auth,
        sasl_mechanisms=options.sasl_mechanism,
        users={} if options.users is None else users_of_file(options.users),
        authorizer=options.authorizer,
        super_users=options.super_user,
        allow_everyone_if_no_acl_found=options.allow_everyone_if_no_acl_found,
    )
    ended = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: ended.set()) for number in numbers]
    try:
        with broker:
            addresses = [f"{protocol}://{address}" for protocol, address in broker.listeners.items()]
            where = ",".join(addresses) if listeners else broker.bootstrap_servers
            output.write(f"kcodec broker: {where} accepts requests\n".encode())
            output.flush()
            while not ended.wait(SIGNAL_SECONDS):
                pass
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    return ExitStatus.OK


def _check_login(options: argparse.Namespace, listeners: dict[str, int]) -> None:
    if options.users is not None and not options.sasl_mechanism:
        raise UsageError("--users requires --sasl-mechanism, for example --sasl-mechanism SCRAM-SHA-512")
    if (
        options.sasl_mechanism
        and options.users is None
        and (options.data_dir is None or set(options.sasl_mechanism) == {"PLAIN"})
        and all(protocol.startswith("SASL") for protocol in listeners)
    ):
        raise UsageError("--sasl-mechanism requires --users: without users, no client can log in")


def users_of_file(path: str) -> dict[str, str]:
    """Return the names and passwords in a file. Raise UsageError without the text of a line, which may contain a
    password."""
    found: dict[str, str] = {}
    for number, line in enumerate(Path(path).read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        where = f"--users {path}, line {number}"
        try:
            text = line.decode().removesuffix("\r")
        except UnicodeDecodeError as error:
            raise UsageError(f"{where}: byte {error.start + 1} is not UTF-8; save the file as UTF-8") from None
        if not text.strip():
            continue
        name, _, password = text.partition("=")
        if not (name and password):
            raise UsageError(f"{where}: expected NAME=PASSWORD")
        if name != name.strip():
            raise UsageError(f"{where}: the name begins or ends with a space; remove it")
        if name in found:
            raise UsageError(f"{where}: user {name!r} is in an earlier line, too; remove one of the lines")
        found[name] = password
    if not found:
        raise UsageError(f"--users {path}: the file has no users; expected lines NAME=PASSWORD")
    return found


def _number_of(option: str, text: str, expected: str) -> tuple[str, int]:
    """Return the name and the number of a value NAME=NUMBER. Raise UsageError."""
    name, _, number = text.partition("=")
    if not name or not number.lstrip("-").isdecimal():
        raise UsageError(f"{option} {text!r}: expected {expected}")
    return name, int(number)
