# SPDX-License-Identifier: Apache-2.0
"""argparse with suggestions, and the options that several commands have."""

from __future__ import annotations

import argparse
import difflib
import math
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TextIO

from kcodec.cli.output import Output


class CommandError(Exception):
    """A command cannot be run with its arguments. The text has the reason and the remedy."""


#: The largest number of seconds or minutes of an option. In milliseconds, it fits into 64 bits.
MAX_NUMBER = 10**12
#: Option of Kafka's tools -> the option of kcodec. Suggested only by commands that have this option.
OF_KAFKA_TOOLS = {
    "--to-earliest": "--to earliest",
    "--to-latest": "--to latest",
    "--to-offset": "--to N",
    "--to-datetime": "--to s@TIME",
    "--shift-by": "--shift N",
    "--by-duration": "--ago TIME",
}
#: The beginning of the help of an option that only some actions have: "create, config: ...".
_ACTIONS_OF_OPTION = re.compile(r"([a-z-]+(?:, [a-z-]+)*): ")


class UsageError(CommandError):
    """The command line is invalid. The text names the position, and may suggest a correction."""


class Example(NamedTuple):
    """An example in `--help`, which a test runs: its summary and the command."""

    summary: str
    call: str


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return '; did you mean ...?' or the list of possible values."""
    known = list(choices)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; possible: {', '.join(known)}"


class Parser(argparse.ArgumentParser):
    """The parser of one command. A wrong call raises UsageError. The help ends with examples.

    actions: what the first argument of the command may be, if it has several. An option whose help begins with actions
    and a colon is refused with other actions. `parse` writes the help to the output, so that it can be piped like data.
    """

    def __init__(
        self, command: str, description: str, examples: Sequence[Example], actions: Collection[str] = ()
    ) -> None:
        width = max(len(example.call) for example in examples)
        lines = "\n".join(f"  {example.call:<{width}}  # {example.summary}" for example in examples)
        super().__init__(
            prog=f"kcodec {command}",
            description="\n".join(textwrap.wrap(description, 100)),
            epilog=f"examples:\n{lines}",
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
        )
        self._known_actions = actions
        if actions:
            self.add_argument("action", metavar="|".join(actions), help="the action")

    def add_repeatable(self, *flags: str, **options: Any) -> None:
        """Add an option that may be given more than once; its value is a list."""
        self.add_argument(*flags, action="append", default=[], **options)

    def add_json(self, text: str = "one JSON object per line") -> None:
        """Add -J."""
        self.add_argument("-J", "--json", action="store_true", help=text)

    def error(self, message: str) -> NoReturn:
        """Raise an error instead of ending the program."""
        raise UsageError(f"{message} (see {self.prog} --help)")

    def parse(self, arguments: Sequence[str], output: Output) -> argparse.Namespace | None:
        """Return the options. After --help, write the help and return None."""
        if any(argument in ("-h", "--help") for argument in arguments[: _end_of_options(arguments)]):
            output.write(self.format_help().encode())
            output.flush()
            return None
        known, unknown = self.parse_known_intermixed_args(arguments)
        for argument in unknown:
            name = argument.partition("=")[0]
            if name.startswith("-"):
                options = [option for option in self._option_string_actions if len(option) > 2 or len(name) == 2]
                instead = OF_KAFKA_TOOLS.get(name, "")
                if instead.split(" ")[0] in options:
                    raise UsageError(f"unknown option {name!r}; write {instead} (see {self.prog} --help)")
                if (noun := name.removeprefix("--")).upper() in self._arguments():
                    raise UsageError(
                        f"unknown option {name!r}; write the {noun} without {name}, as in the examples of {self.prog} "
                        "--help"
                    )
                raise UsageError(f"unknown option {name!r}{nearest(name, options)} (see {self.prog} --help)")
            raise UsageError(f"unexpected argument {argument!r} (see {self.prog} --help)")
        if self._known_actions and known.action not in self._known_actions:
            suggestion = nearest(known.action, self._known_actions)
            raise UsageError(f"unknown action {known.action!r}{suggestion} (see {self.prog} --help)")
        if self._known_actions:
            self._refuse_options_of_other_actions(known)
        return known

    def _arguments(self) -> set[str]:
        """Return what the help calls the arguments that are not options, such as GROUP and TOPIC."""
        shown = [action.metavar for action in self._actions if not action.option_strings]
        return {word for name in shown if isinstance(name, str) for word in re.findall("[A-Z]+", name)}

    def _refuse_options_of_other_actions(self, known: argparse.Namespace) -> None:
        """Refuse options that have no effect on the action, because `delete --validate-only` would delete."""
        for option in self._option_string_actions.values():
            found = _ACTIONS_OF_OPTION.match(option.help or "")
            actions = found[1].split(", ") if found else []
            if not actions or known.action in actions or not set(actions) <= set(self._known_actions):
                continue
            if getattr(known, option.dest) == option.default:
                continue
            raise UsageError(
                f"{option.option_strings[-1]} is an option of {' and '.join(actions)}, not of {known.action} "
                f"(see {self.prog} --help)"
            )


def _end_of_options(arguments: Sequence[str]) -> int:
    """Return where ``--`` ends the options."""
    return list(arguments).index("--") if "--" in arguments else len(arguments)


def text_of_file(path: str) -> str:
    """Return the text of a file. Raise a CommandError that names the file if it is not UTF-8."""
    data = Path(path).read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CommandError(f"{path}: byte {error.start + 1} is not UTF-8; save the file as UTF-8") from None


def standard_input(remedy: str) -> TextIO:
    """Return stdin. Raise CommandError if it is closed (`<&-`). `remedy` says what to pass instead."""
    if sys.stdin is None:
        raise CommandError(f"stdin is closed, so nothing can be read from it; {remedy}")
    return sys.stdin


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=120)


def offset_range(text: str) -> tuple[int | None, int | None]:
    """Return the range of A:B, A:, :B or A: offsets from A up to, but not including, B; A alone is one offset."""
    first, colon, last = text.partition(":")
    try:
        start = int(first) if first else None
        end = (int(last) if last else None) if colon else int(first) + 1
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a range of offsets: expected A:B, A:, :B or A, for example 100:200"
        ) from None
    if (start is not None and start < 0) or (end is not None and end < 0):
        raise argparse.ArgumentTypeError(f"{text!r}: offsets cannot be negative")
    if start is not None and end is not None and end < start:
        raise argparse.ArgumentTypeError(f"{text!r} ends before it begins")
    return start, end


def number(text: str) -> float:
    """Return a number of at least 0. Raise ArgumentTypeError for infinity, for NaN, and for a number that does not fit
    into a request after it is converted to milliseconds."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found <= MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and {MAX_NUMBER:,}")
    return found


def names(text: str) -> tuple[str, ...]:
    """Return names that are separated by commas."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise argparse.ArgumentTypeError("expected at least one name")
    return found
