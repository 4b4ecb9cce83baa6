# SPDX-License-Identifier: Apache-2.0
"""The command line: ``kcodec COMMAND ...``, also ``python -m kcodec``.

COMMANDS lists the commands. Each has a module, which is imported when the command is called: `parser()` declares its
options, and `run(options, output)` runs it. Data goes to stdout, messages to stderr. parser.py adds suggestions to
argparse, render.py formats tables and colors, output.py writes.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import kcodec
from kcodec.cli.output import ExitStatus, Output, text_of
from kcodec.cli.parser import CommandError, UsageError, nearest
from kcodec.errors import KcodecError

__all__ = ["COMMANDS", "ExitStatus", "main", "run"]

# Summary of each command, whose name is also that of its module in kcodec.cli.
COMMANDS = {
    "dump": "print the contents of files of a log directory: batches, records, indexes, checkpoints",
    "check": "report what is wrong with files of a log directory, and what to do about it",
    "cat": "print records of files or of a broker, with the options of kcat; decode internal topics",
    "convert": "write records to a Parquet, Arrow, CSV, JSON lines or cleaned .log file",
    "consume": "print records of a topic, with the options of kcat, alone or in a consumer group",
    "produce": "send messages from stdin or files, with the options of kcat, if needed in a transaction",
    "restore": "write the committed records of a log directory into topics, each record exactly once",
    "txn": "show the transactions of files or of a cluster, and the commands that end open ones",
    "topics": "list, describe, create, delete and configure topics",
    "groups": "show groups: members, offsets, lag, and the transaction that causes the lag",
    "offsets": "show the offsets of topics; reset and delete the committed offsets of groups",
    "broker": "run a broker for development and tests: a single node, without Java",
    "cluster": "show brokers, controllers, log directories and configured resources; unregister a broker",
    "quotas": "show and change the quotas of clients",
    "tokens": "create, show, renew and delete delegation tokens",
}


def main(arguments: Sequence[str] | None = None, output: Output | None = None) -> ExitStatus:
    """Run one command line and return its exit status. Errors are printed on stderr; KeyboardInterrupt is raised."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    output = output or Output()
    try:
        status = _command(given, output)
        output.flush()
        return status
    except BrokenPipeError:
        output.abandon()
        return ExitStatus.BROKEN_PIPE
    except (KcodecError, CommandError, OSError, ValueError, ImportError) as error:
        try:
            output.flush()  # what was written before the error
        except OSError:  # it may be the error itself
            output.abandon()
        output.say(f"kcodec: {text_of(error)}")
    return ExitStatus.ERROR


def _command(given: list[str], output: Output) -> ExitStatus:
    if not given or given[0] in ("-h", "--help", "help"):
        if given[1:] and given[0] == "help":
            return _command([*given[1:], "--help"], output)
        output.write(_overview().encode())
        return ExitStatus.OK if given else ExitStatus.ERROR
    if given[0] in ("-V", "--version"):
        output.write(f"kcodec {kcodec.__version__}\n".encode())
        return ExitStatus.OK
    if given[0] not in COMMANDS:
        raise UsageError(f"unknown command {given[0]!r}{nearest(given[0], COMMANDS)}")
    module = importlib.import_module(f"kcodec.cli.{given[0]}")
    options = module.parser().parse(given[1:], output)
    status: ExitStatus = ExitStatus.OK if options is None else module.run(options, output)
    return status


def _overview() -> str:
    width = max(map(len, COMMANDS))
    rows = "".join(f"  {name:<{width}}  {summary}\n" for name, summary in COMMANDS.items())
    return (
        "usage: kcodec COMMAND [options] FILE...\n\nReads Kafka's log files without a broker. FILE is a file of a log "
        "directory, or a directory. With -b HOST:PORT, some commands work with a broker.\n\n"
        f"{rows}\nkcodec COMMAND --help ends with examples. Exit status: 0 no problem was found, 1 a problem was "
        "found, 2 the call is wrong or a file cannot be read.\n"
    )


def _interrupt(number: int, frame: object) -> NoReturn:
    """Let SIGTERM end the program as Ctrl-C does, so that no incomplete file is left behind."""
    raise KeyboardInterrupt


def run() -> None:
    """Run main() and exit with its status. Ctrl-C and a closed pipe end the program without a traceback."""
    output = Output()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        status = main(output=output)
    except KeyboardInterrupt:
        output.abandon()
        output.say("kcodec: interrupted")
        status = ExitStatus.INTERRUPTED
    if sys.stderr is not None:
        with contextlib.suppress(OSError):  # see Output.say
            sys.stderr.flush()
    # os._exit, because nothing is left to flush, and the messages of threads that read ahead are not needed
    os._exit(status)
