# SPDX-License-Identifier: Apache-2.0
"""The command line: ``kcodec COMMAND ...``, also ``python -m kcodec``.

One file a command; COMMANDS is the list of them, and a command's file is imported when it is called: its `parser()`
declares the options, its `run(options, output)` does the work. Data goes to stdout, messages to stderr. parser.py makes
argparse suggest, render.py knows tables and colors, output.py how to write.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import kcodec
from kcodec.cli.output import ExitStatus, Output
from kcodec.cli.parser import CommandError, UsageError, nearest
from kcodec.errors import KcodecError

__all__ = ["COMMANDS", "ExitStatus", "main", "run"]

# command, which is also the name of its module below kcodec.cli -> what it does
COMMANDS = {
    "dump": "what a file of a Kafka log directory holds: batches, records, indexes, checkpoints",
    "check": "what is wrong with these files, and what to do about it",
    "cat": "records of files or a broker, as kcat prints them: any format, internal topics decoded",
    "convert": "records into a Parquet, Arrow, CSV, JSON lines or cleaned .log file",
    "consume": "records of a broker, as kcat prints them: as they come, or up to the end; alone or in a group",
    "produce": "messages from stdin or files into a topic, as kcat sends them; all or nothing if wanted",
    "restore": "the committed records of a log directory back into topics, each once",
    "txn": "transactions, in files or of a cluster: what is open, what hangs, and the command that ends it",
    "topics": "topics of a cluster: list, describe, create, delete, config",
    "groups": "consumer groups of a cluster: members, offsets, lag, and which transaction holds it back",
    "offsets": "where topics begin and end; committed offsets of groups: reset (dry run first), delete",
}


def main(arguments: Sequence[str] | None = None, output: Output | None = None) -> ExitStatus:
    """Run one command line and give its exit status. Errors are printed on stderr, not raised; interrupts are."""
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
        output.say(f"kcodec: {_text_of(error)}")
    return ExitStatus.ERROR


def _text_of(error: Exception) -> str:
    """One line: of an OSError of the system the file and the reason."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}" if error.filename else error.strerror.lower()
    return str(error)


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
        "usage: kcodec COMMAND [options] FILE...\n\nKafka's log files without a broker: those of a log directory, "
        "or the directories themselves. With -b HOST:PORT some commands ask a broker.\n\n"
        f"{rows}\nkcodec COMMAND --help ends with examples. Exit status: 0 fine, 1 something was found, 2 cannot read "
        "or a wrong call.\n"
    )


def _interrupt(number: int, frame: object) -> NoReturn:
    """SIGTERM ends the program as Ctrl-C does: nothing half-written is left behind."""
    raise KeyboardInterrupt


def run() -> None:
    """The program: main() with the exit status, where Ctrl-C and a closed pipe end it quietly."""
    output = Output()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        status = main(output=output)
    except KeyboardInterrupt:
        output.abandon()
        output.say("kcodec: interrupted")
        status = ExitStatus.INTERRUPTED
    sys.stderr.flush()
    # os._exit: nothing is left to flush, and threads that still read ahead have nothing to say any more
    os._exit(status)
