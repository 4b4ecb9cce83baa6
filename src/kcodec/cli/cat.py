# SPDX-License-Identifier: Apache-2.0
"""``kcodec cat``: print the records of a log, or of a topic of a broker, as a consumer returns them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from kcodec import DecodedRecords
from kcodec.cli.brokers import add_broker_options, refuse_broker_options
from kcodec.cli.formats import RecordText, add_shape_options, offsets_of
from kcodec.cli.logs import add_log_options, isolation_of, logs_at, lost_batch, range_of, skipped_data
from kcodec.cli.output import ExitStatus, Output, Progress
from kcodec.cli.parser import CommandError, Example, Parser, UsageError
from kcodec.errors import DecodeError
from kcodec.log import Log
from kcodec.log.chunks import MAX_ROWS
from kcodec.log.parallel import in_order
from kcodec.text import TextBytes

DESCRIPTION = (
    "Prints records as a consumer returns them. By default, prints each value and a newline. FILE is a partition "
    "directory, a segment, or a log directory with -t. With -b, prints the committed records of the topic -t of a "
    "broker. FORMAT has the same letters as in kcat: %s is the value, %S its size, %k the key, %K its size, %T the "
    "timestamp, %h the headers, %t the topic, %p the partition, and %o the offset. The command ends at the end of the "
    "log, like kcat -e. Records of __consumer_offsets, __transaction_state and __cluster_metadata are decoded and "
    "printed as JSON."
)
EXAMPLES = (
    Example("only what is committed, as JSON", "kcodec cat orders-0 --read-committed -J"),
    Example("offset, key and value", r"kcodec cat orders-0 -c 3 -f '%o %k=%s\n'"),
    Example("a broker's topic from ten offsets before the end", "kcodec cat -b localhost:9092 -t orders -o -10"),
)


def parser() -> Parser:
    """Return the options of the command."""
    found = Parser("cat", DESCRIPTION, EXAMPLES)
    found.add_argument("files", nargs="*", metavar="FILE", help="a segment, partition directory or log directory")
    found.add_repeatable(
        "-o",
        "--offset",
        metavar="WHERE",
        help="where to begin: beginning, end, N, -N (N offsets before the end), s@TIME; or where to end: e@TIME; can "
        "be given twice",
    )
    found.add_argument("-c", "--count", type=int, metavar="N", help="end after N records")
    found.add_argument(
        "-e", "--exit", action="store_true", help="end at the end of the log, which the command always does"
    )
    add_shape_options(found)
    found.add_argument(
        "--follow", action="store_true", help="continue with appended records of one partition, until Ctrl-C or -c"
    )
    add_log_options(found)
    add_broker_options(found, is_required=False)
    return found


def run(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Print every log. Return FINDINGS if corruption ended one or was skipped."""
    if options.count is not None and options.count < 0:
        raise CommandError(f"--count must be at least 0, not {options.count}")
    if options.bootstrap_server is not None:
        return _from_broker(options, output)
    if not options.files:
        raise UsageError("name a FILE, or a broker with -b HOST:PORT (see kcodec cat --help)")
    refuse_broker_options(options)
    left = options.count
    status = ExitStatus.OK
    logs = [log for file in options.files for log in logs_at(file, options.topic, options.partition)]
    if options.follow and len(logs) > 1:
        raise CommandError(
            f"--follow reads one partition, and {len(logs)} are selected: name one with -p, or one FILE, and run the "
            "command once for each partition"
        )
    for log in logs:
        cat = _Cat(log, options, left)
        status = max(status, cat.write(output))
        left = cat.left
        if left == 0:
            break
    return status


def _from_broker(options: argparse.Namespace, output: Output) -> ExitStatus:
    if options.files:
        raise UsageError(f"{options.files[0]}: with -b name the topic with -t, not a FILE")
    if options.follow or options.control:
        raise UsageError(
            "--follow is for files: with -b use `kcodec consume`"
            if options.follow
            else "--control is for files: a consumer receives no control records"
        )
    if options.on_error == "stop":
        raise UsageError("--on-error stop is for files: with -b use raise, which also prints the records before")
    from kcodec.cli.consume import print_range

    return print_range(options, output)


class _Cat:
    """Writes one log to the output."""

    def __init__(self, log: Log, options: argparse.Namespace, left: int | None) -> None:
        self.left = left
        self._log = log
        self._options = options
        self._text = RecordText(log.topic, log.partition, options, control=options.control)

    def write(self, output: Output) -> ExitStatus:
        """Write all requested records. Return FINDINGS if there was corruption."""
        try:
            return self._write(output)
        except DecodeError as error:
            output.flush()
            output.say(f"kcodec: {error}")
            return ExitStatus.FINDINGS

    def _write(self, output: Output) -> ExitStatus:
        options = self._options
        isolation, offsets = isolation_of(options), offsets_of(options.offset)
        start, end = range_of(self._log, offsets, isolation, options.on_error)
        if options.follow and offsets.end_timestamp is not None and end is None:
            raise CommandError(
                "--follow with -o e@TIME needs a record of this time or a later one in the log; omit one of the two"
            )
        stream = self._log.to_arrow(
            columns=self._text.columns,
            isolation_level=isolation,
            start_offset=start,
            end_offset=end,
            control_records="include" if options.control else "skip",
            max_rows=MAX_ROWS if self.left is None else max(1, min(MAX_ROWS, self.left)),
            on_error=options.on_error,
            follow=options.follow,
            stop=output.check_reader if options.follow else None,  # raises BrokenPipeError
        )
        chunks, is_empty = stream.promptly() if options.follow else iter(stream), self.left != 0
        progress, done, size = Progress(output, "reading", has_data=True), 0, self._log.size_in_bytes
        try:
            for text, read in in_order(self._format, self._limited(chunks), 1 if options.follow else 2):
                is_empty = False
                output.write(text)
                if options.follow:
                    output.flush()
                done += read
                progress(min(done, size), size)
        finally:
            progress.end()
            chunks.close()
        if is_empty and offsets.start is not None:
            self._report_offset_beyond_end(offsets.start, output)
        skipped = skipped_data(chunks)
        if not skipped and end is None and self.left != 0 and (error := lost_batch(self._log)) is not None:
            skipped = [error]
        output.flush()
        for one in skipped:
            output.say(f"kcodec: {one}")
        return ExitStatus.FINDINGS if skipped else ExitStatus.OK

    def _report_offset_beyond_end(self, offset: int, output: Output) -> None:
        """If the log ends before the offset of -o, report that. No record was printed."""
        log = self._log
        try:
            end = log.end_offset(on_error=self._options.on_error)
        except DecodeError:
            return  # the corrupt data is before the requested offset
        if offset > end:
            name = log.path if log.topic is None else f"{log.topic}-{log.partition}"
            output.flush()
            output.say(f"kcodec: {name}: offset {offset} is beyond the end of the log, {end}")

    def _limited(self, chunks: Iterator[DecodedRecords]) -> Iterator[tuple[DecodedRecords, int]]:
        """Yield chunks, each with the number of its records to write."""
        for decoded in chunks:
            wanted = len(decoded) if self.left is None else min(self.left, len(decoded))
            if self.left is not None:
                self.left -= wanted
            if wanted:
                yield decoded, wanted
            if self.left == 0:
                return

    def _format(self, given: tuple[DecodedRecords, int]) -> tuple[TextBytes | bytes, int]:
        """Return the text of a number of records of a chunk, and their approximate number of bytes in the log."""
        text = self._text.of(*given)
        return text, len(text)
