# SPDX-License-Identifier: Apache-2.0
"""``kcodec cat``: the records of a log with kcat's letters, what a consumer would get."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from kcodec import DecodedRecords
from kcodec.cli import internal
from kcodec.cli.formats import offsets_of, template_of_delimiters, template_of_format
from kcodec.cli.logs import add_log_options, isolation_of, logs_at, range_of
from kcodec.cli.output import Output, Progress
from kcodec.cli.parser import CommandError, Example, Parser
from kcodec.cli.status import ExitStatus
from kcodec.cli.windows import in_order
from kcodec.errors import DecodeError
from kcodec.log import Log
from kcodec.log.chunks import MAX_ROWS
from kcodec.text import TextBytes, TextTemplate, json_lines

TOLD = (
    "Prints records as a consumer would get them: by default each value and a newline. FILE is a partition directory, "
    "a segment, or a log directory with -t. The letters are kcat's: %s value, %S its size, %k key, %K its size, %T "
    "timestamp, %h headers, %t topic, %p partition, %o offset. The end of the log ends the output, as kcat's -e. "
    "Records of __consumer_offsets, __transaction_state and __cluster_metadata are shown as what they say, as JSON."
)
EXAMPLES = (
    Example("the last ten records", "kcodec cat orders-0 -o -10"),
    Example("only what is committed, as JSON", "kcodec cat orders-0 --read-committed -J"),
    Example("offset, key and value", r"kcodec cat orders-0 -c 3 -f '%o %k=%s\n'"),
)
FIELDS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
CONTROL_FIELDS = ("is_control", "control_type", "coordinator_epoch")


def parser() -> Parser:
    """The options of the command."""
    found = Parser("cat", TOLD, EXAMPLES)
    found.add_argument("files", nargs="+", metavar="FILE", help="a segment, partition directory or log directory")
    found.add_argument(
        "-o",
        "--offset",
        action="append",
        default=[],
        metavar="WHERE",
        help="beginning, end, N, -N (the last N), s@TIME (from), e@TIME (to); may be given twice",
    )
    found.add_argument("-c", "--count", type=int, metavar="N", help="end after N records")
    found.add_argument("-e", "--exit", action="store_true", help="end at the end of the log: always so with files")
    shape = found.add_mutually_exclusive_group()
    shape.add_argument("-J", "--json", action="store_true", help="one JSON object a line")
    shape.add_argument("-f", "--format", metavar="FORMAT", help="a format string")
    shape.add_argument("-K", "--key-delimiter", metavar="DELIMITER", help="the key and this before each value")
    found.add_argument("-D", "--delimiter", default="\\n", metavar="DELIMITER", help="behind each value (default: \\n)")
    found.add_argument("-Z", "--null", action="store_true", help="NULL for a null key or value (default: nothing)")
    found.add_argument("--raw", action="store_true", help="records of internal topics as bytes, not decoded")
    found.add_argument("--follow", action="store_true", help="go on with what a broker appends, until Ctrl-C or -c")
    add_log_options(found)
    return found


def run(arguments: Sequence[str], output: Output) -> ExitStatus:
    """Print every log named; FINDINGS if damage ended one or was skipped."""
    options = parser().parse(arguments, output)
    if options is None:
        return ExitStatus.OK
    if options.count is not None and options.count < 0:
        raise CommandError(f"--count must not be negative, not {options.count}")
    left = options.count
    status = ExitStatus.OK
    for log in [log for file in options.files for log in logs_at(file, options.topic, options.partition)]:
        cat = _Cat(log, options, left)
        status = max(status, cat.write(output))
        left = cat.left
        if left == 0:
            break
    return status


class _Cat:
    """One log on its way to the output."""

    def __init__(self, log: Log, options: argparse.Namespace, left: int | None) -> None:
        self.left = left
        self._log = log
        self._options = options
        self._template = _template(log, options)
        is_plain = options.format is None and options.key_delimiter is None
        self._is_decoded = log.topic in internal.TOPICS and is_plain and not options.raw

    def write(self, output: Output) -> ExitStatus:
        """All records asked for; FINDINGS where there was damage."""
        options = self._options
        isolation = isolation_of(options)
        start, end = range_of(self._log, offsets_of(options.offset), isolation)
        stream = self._log.to_arrow(
            columns=internal.COLUMNS if self._is_decoded else self._template.columns,
            isolation_level=isolation,
            start_offset=start,
            end_offset=end,
            control_records="include" if options.control else "skip",
            max_rows=MAX_ROWS if self.left is None else max(1, min(MAX_ROWS, self.left)),
            on_error=options.on_error,
            follow=options.follow,
        )
        chunks = stream.promptly() if options.follow else iter(stream)
        progress, done, size = Progress(output, "reading", has_data=True), 0, self._log.size_in_bytes
        try:
            for text, read in in_order(self._format, self._limited(chunks), 1 if options.follow else 2):
                output.write(text)
                if options.follow:
                    output.flush()
                done += read
                progress(min(done, size), size)
        except DecodeError as error:
            output.flush()
            output.say(f"kcodec: {error}")
            return ExitStatus.FINDINGS
        finally:
            progress.end()
            chunks.close()
        if chunks.error is not None:
            output.flush()
            output.say(f"kcodec: {chunks.error}")
            return ExitStatus.FINDINGS
        return ExitStatus.OK

    def _limited(self, chunks: Iterator[DecodedRecords]) -> Iterator[tuple[DecodedRecords, int]]:
        """Chunks, each with how many of its records are wanted."""
        for decoded in chunks:
            wanted = len(decoded) if self.left is None else min(self.left, len(decoded))
            if self.left is not None:
                self.left -= wanted
            if wanted:
                yield decoded, wanted
            if self.left == 0:
                return

    def _format(self, given: tuple[DecodedRecords, int]) -> tuple[TextBytes | bytes, int]:
        """The text of so many records of a chunk, and about how many bytes of the log that was."""
        decoded, most = given
        if self._is_decoded:
            assert self._log.topic is not None
            text: TextBytes | bytes = internal.lines(decoded, most, self._log.topic, self._log.partition)
        else:
            text = self._template.format(decoded, most=most)
        return text, len(text)


def _template(log: Log, options: argparse.Namespace) -> TextTemplate:
    null = b"NULL" if options.null else b""
    if options.json:
        fields = (*FIELDS, *CONTROL_FIELDS) if options.control else FIELDS
        return json_lines(fields, topic=log.topic, partition=log.partition)
    if options.format is not None:
        return template_of_format(options.format, null, log.topic, log.partition)
    return template_of_delimiters(options.key_delimiter, options.delimiter, null)
