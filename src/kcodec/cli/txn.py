# SPDX-License-Identifier: Apache-2.0
"""``kcodec txn``: transactions, in files (txn_files.py) or, with -b, as brokers know them (txn_broker.py)."""

from __future__ import annotations

from collections.abc import Sequence

from kcodec.cli import txn_broker, txn_files
from kcodec.cli.brokers import add_broker_options
from kcodec.cli.output import Output
from kcodec.cli.parser import Example, Parser, UsageError, nearest
from kcodec.cli.status import ExitStatus

TOLD = (
    "Transactions: which are open, which one holds the last stable offset back, so that read_committed consumers wait "
    "for it, and the command that ends it. In files (partition directories, segments, a whole log directory): list, or "
    "timeline for a picture, offsets from left to right, a line for each producer. With -b, of a cluster: list of the "
    "transactional ids; describe ID...; find-hanging: what no coordinator will ever end (KIP-664), in internal topics, "
    "too; strays: open, but without writes, as when the owner of a shared handle died; abort: an ID, which fences its "
    "producers, or by --topic, --partition and --start-offset what hangs there."
)
EXAMPLES = (
    Example("all transactions of a partition", "kcodec txn list orders-0"),
    Example("a picture of them", "kcodec txn timeline orders-0"),
    Example("what hangs in a cluster", "kcodec txn find-hanging -b localhost:9092"),
)
ACTIONS = ("list", "timeline", *(action for action in txn_broker.ACTIONS if action != "list"))


def parser() -> Parser:
    """The options of the command."""
    found = Parser("txn", TOLD, EXAMPLES)
    found.add_argument("action", metavar="|".join(ACTIONS), help="what to do")
    found.add_argument("names", nargs="*", metavar="FILE|ID", help="files, or with -b transactional ids")
    add_broker_options(found, is_required=False)
    found.add_argument("-J", "--json", action="store_true", help="one JSON object a line")
    found.add_argument(
        "--state",
        action="append",
        metavar="STATE",
        help="list: only these; open, committed, aborted; with -b Ongoing ...",
    )
    found.add_argument("--now", metavar="TIME", help="the time that ages are counted to (default: this machine's)")
    found.add_argument("--width", type=int, default=100, metavar="N", help="of the picture (default: %(default)s)")
    txn_broker.add_options(found)
    return found


def run(arguments: Sequence[str], output: Output) -> ExitStatus:
    """Do the action; FINDINGS where something hangs, was left behind, or could not be read."""
    options = parser().parse(arguments, output)
    if options is None:
        return ExitStatus.OK
    if options.action not in ACTIONS:
        raise UsageError(f"unknown action {options.action!r}{nearest(options.action, ACTIONS)} (see kcodec txn --help)")
    if options.bootstrap_server is not None:
        if options.action not in txn_broker.ACTIONS:
            raise UsageError(f"{options.action} is for files: leave -b out, or name a partition directory")
        return txn_broker.run(options, output)
    if options.action not in txn_files.ACTIONS:
        raise UsageError(f"{options.action} asks a broker: -b HOST:PORT is missing")
    if not options.names:
        raise UsageError("the following arguments are required: FILE, or -b HOST:PORT (see kcodec txn --help)")
    return txn_files.run(options, output)
