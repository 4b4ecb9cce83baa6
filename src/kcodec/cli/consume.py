# SPDX-License-Identifier: Apache-2.0
"""``kcodec consume``: print records of a broker, with kcat's letters, alone or in a consumer group."""

from __future__ import annotations

import argparse
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kcodec import DecodedRecords, DecodeError, KcodecError, Timestamp
from kcodec.arguments import take_renamed
from kcodec.cli.brokers import add_broker_options, client_options, usage_errors
from kcodec.cli.formats import INTERNAL_COLUMNS, INTERNAL_TOPICS, Offsets, RecordText, add_shape_options, offsets_of
from kcodec.cli.logs import add_on_error
from kcodec.cli.output import ExitStatus, Output
from kcodec.cli.parser import CommandError, Example, Parser, UsageError

if TYPE_CHECKING:
    from kcodec.client import Consumer
    from kcodec.offsets import TopicPartition

DESCRIPTION = (
    "Prints records of a topic, from its beginning or from -o. The command ends with Ctrl-C, after -c records, or "
    "with -e at the end of the topic. FORMAT has the same letters as in kcat. Records of aborted and open "
    "transactions are left out; -X isolation.level=read_uncommitted shows them. With -G, the command joins a consumer "
    "group, which assigns partitions of the TOPICs and stores the offsets. Records of internal topics are decoded and "
    "printed as JSON."
)
EXAMPLES = (
    Example(
        "from ten offsets before the end on",
        r"kcodec consume -b localhost:9092 -t orders -o -10 -K ': '",
    ),
    Example("all records, as JSON", "kcodec consume -b localhost:9092 -t orders -e -J"),
    Example("as a member of a group", "kcodec consume -b localhost:9092 -G billing orders"),
)
POLL_SECONDS = 0.5
# The command waits this long for the commit of what it printed, and to leave the group, after Ctrl-C or a closed pipe.
CLOSE_SECONDS = 3.0
# PIPE_BUF: a pipe takes at most this many bytes completely or not at all, so that an interrupted write can be counted.
WHOLE_BYTES = 4096
# A member without partitions may get some when other members have given them up: at their next heartbeat (5 s with
# KIP-848, 3 s with the classic protocol), and in the rebalance that follows.
UNASSIGNED_SECONDS = 12.0


def parser() -> Parser:
    """Return the options of the command."""
    found = Parser("consume", DESCRIPTION, EXAMPLES)
    found.add_argument("topics", nargs="*", metavar="TOPIC", help="with -G: the topics; ^... is a regular expression")
    add_broker_options(found)
    found.add_argument("-t", "--topic", metavar="TOPIC", help="without a group: the topic")
    found.add_argument("-p", "--partition", type=int, metavar="N", help="the partition (default: all)")
    found.add_repeatable(
        "-o",
        "--offset",
        metavar="WHERE",
        help="where to begin: beginning, end, stored, N (the end if the log ends before N; an error with -e), -N (N "
        "offsets before the end), s@TIME; or where to end: e@TIME; can be given twice",
    )
    found.add_argument("-c", "--count", type=int, metavar="N", help="end after N records")
    found.add_argument(
        "-e", "--exit", action="store_true", help="end at the end that each partition had when the command began"
    )
    add_shape_options(found)
    found.add_argument("-q", "--quiet", action="store_true", help="print only errors on stderr")
    found.add_argument(
        "-u",
        "--unbuffered",
        action="store_true",
        help="write each batch immediately, as the command always does without -e",
    )
    found.add_argument("-G", "--group", metavar="GROUP", help="join this consumer group, which stores the offsets")
    add_on_error(found, ("raise", "skip"), "end (raise), or continue after it (skip); exit status 1")
    return found


def run(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Print records. Return FINDINGS if corruption ended the command or was skipped."""
    if options.count is not None and options.count < 0:
        raise UsageError(f"--count must be at least 0, not {options.count}")
    is_stored = "stored" in options.offset
    offsets = offsets_of([one for one in options.offset if one != "stored"])
    if options.group is not None:
        _check_group(options, offsets)
        return _Following(options, output).in_group(options.topics)
    if options.topics:
        first = options.topics[0]
        raise UsageError(f"{first}: to read the topic without a group, write -t {first}; in a group, add -G GROUP")
    if is_stored and "group_id" not in reader_options(options, "consumer"):
        raise UsageError("-o stored needs a group: -X group.id=GROUP, or -G to join it")
    if is_stored and offsets.has_begin:
        raise UsageError("-o stored excludes another offset to begin at: pass one of them")
    is_bounded = options.exit or offsets.end_timestamp is not None
    if is_bounded and not is_stored:
        return print_range(options, output)
    return _Following(options, output).alone(offsets, is_stored=is_stored)


def _check_group(options: argparse.Namespace, offsets: Offsets) -> None:
    if not options.topics and options.topic is not None:
        options.topics = [options.topic]
    if not options.topics:
        raise UsageError("-G GROUP needs TOPICs (see kcodec consume --help)")
    if options.partition is not None:
        raise UsageError("-p cannot be used with -G: the group assigns the partitions")
    if any(place not in ("beginning", "end", "stored") for place in options.offset):
        raise UsageError(
            "with -G the stored offsets are used: -o can only be beginning or end, for partitions without one"
        )
    assert offsets.start is None


def reader_options(options: argparse.Namespace, client: str) -> dict[str, Any]:
    """Return the options of a "consumer" or of "read_topic": -b, -X and -F, and the handling of corrupt batches."""
    given = client_options(options, client)
    take_renamed(given, "on_corrupt", "on_error")
    return {"on_error": "skip" if options.on_error == "skip" else "raise", **given}


def bounds_of(offsets: Offsets) -> dict[str, Any]:
    """Return start and end for `kcodec.read_topic`."""
    found: dict[str, Any] = {}
    if offsets.from_end or offsets.last == 0:
        found["start"] = "latest"
    elif offsets.last is not None:
        found["start"] = -offsets.last
    elif offsets.start is not None:
        found["start"] = offsets.start
    if offsets.start_timestamp is not None:
        found["start"] = Timestamp(max(offsets.start_timestamp, 0))
    if offsets.end_timestamp is not None:
        found["end"] = Timestamp(max(offsets.end_timestamp, 0))
    return found


# Read to the end


def print_range(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Print the records that are in the topics now (``consume -e`` and ``cat -b``)."""
    import kcodec

    if options.topic is None:
        raise UsageError("-t TOPIC is missing (see kcodec consume --help)")
    printer = _Printer(options, output)
    with usage_errors():
        records = kcodec.read_topic(
            options.topic,
            partitions=None if options.partition is None else [options.partition],
            max_rows=options.count,
            columns=printer.columns([options.topic]),
            **bounds_of(offsets_of(options.offset)),
            **reader_options(options, "read_topic"),
        )
    with records:
        try:
            for decoded in records:
                printer.write(decoded, len(decoded))
        except DecodeError as error:
            return printer.report_corruption(error)
    status = printer.ended(records.counts.skipped_batches)
    if options.count is None and getattr(options, "quiet", True) is False:
        ends = ", ".join(f"{place} at {one.end}" for place, one in records.offsets.items())
        output.say(f"kcodec: reached the end: {ends}")
    return status


class _Printer:
    """Writes batches of any partition to the output."""

    def __init__(self, options: argparse.Namespace, output: Output) -> None:
        self._options = options
        self._output = output
        self._texts: dict[tuple[str, int], RecordText] = {}
        #: Bytes of the last batch that were written.
        self._written = 0

    def columns(self, topics: Sequence[str]) -> tuple[str, ...]:
        """Return the columns to read, for the text and for the partition."""
        wanted = {"topic", "partition", *RecordText("", 0, self._options).columns}
        if any(topic.startswith("^") or topic in INTERNAL_TOPICS for topic in topics):
            wanted |= set(INTERNAL_COLUMNS)
        return tuple(sorted(wanted))

    def write(self, decoded: DecodedRecords, most: int) -> None:
        """Write the first `most` records of a batch."""
        self._output.write(self._text_of(decoded).of(decoded, most))
        if getattr(self._options, "unbuffered", False):
            self._output.flush()

    def write_now(self, decoded: DecodedRecords, most: int) -> None:
        """Write the first `most` records of a batch without buffering. `rows_written` counts them if this raises."""
        self._written = 0
        view = memoryview(self._text_of(decoded).of(decoded, most))
        while self._written < view.nbytes:
            piece = view[self._written : self._written + WHOLE_BYTES]
            self._output.write(piece)
            self._output.flush()
            self._written += piece.nbytes

    def rows_written(self, decoded: DecodedRecords, most: int) -> int:
        """Return the number of records of `write_now` that were written completely."""
        text = self._text_of(decoded)
        return bisect_right(range(most + 1), self._written, key=lambda rows: len(text.of(decoded, rows))) - 1

    def _text_of(self, decoded: DecodedRecords) -> RecordText:
        place = decoded.column("topic")[0], decoded.column("partition")[0]
        text = self._texts.get(place)
        if text is None:
            text = self._texts[place] = RecordText(*place, self._options)
        return text

    def report_corruption(self, error: DecodeError) -> ExitStatus:
        """Report a batch that cannot be read."""
        self._output.flush()
        behind = "" if error.next_offset is None else f"; behind it: -o {error.next_offset}, or --on-error skip"
        self._output.say(f"kcodec: {error}{behind}")
        return ExitStatus.FINDINGS

    def ended(self, skipped: int) -> ExitStatus:
        """End the output, and return the status of the command."""
        self._output.flush()
        if skipped:
            self._output.say(f"kcodec: corrupt batches skipped: {skipped}")
            return ExitStatus.FINDINGS
        return ExitStatus.OK


# Follow the topics


class _Following:
    """A consumer that prints what it polls."""

    def __init__(self, options: argparse.Namespace, output: Output) -> None:
        self._options = options
        self._output = output
        self._printer = _Printer(options, output)
        self._left: int | None = options.count
        #: The offset at which the output of each partition ends; None: the command follows the topics.
        self._ends: dict[TopicPartition, int] | None = {} if options.exit else None
        #: Since when the consumer is a member that has no partitions.
        self._unassigned_since: float | None = None

    def alone(self, offsets: Offsets, *, is_stored: bool) -> ExitStatus:
        """Print all partitions of the topic, or one, from the given offsets or from the committed offsets of a
        group."""
        topic = self._options.topic
        if topic is None:
            raise UsageError("-t TOPIC is missing (see kcodec consume --help)")
        with self._consumer([topic], {"auto_offset_reset": "earliest"}, {"enable_auto_commit": False}) as consumer:
            partitions = self._partitions(consumer, topic)
            consumer.assign(partitions)
            self._set_ends(consumer, partitions)
            if offsets.end_timestamp is not None:
                self._ends = _offsets_at(consumer, partitions, offsets.end_timestamp)
            if is_stored:
                self._report_without_offset(consumer, partitions)
            elif offsets.start is not None and offsets.start_timestamp is None:
                self._seek_to(consumer, partitions, offsets.start)
            else:
                _seek(consumer, partitions, offsets)
            return self._print(consumer)

    def in_group(self, topics: Sequence[str]) -> ExitStatus:
        """Print as a member of the group."""
        from kcodec.offsets import TopicPartition

        if not reader_options(self._options, "consumer").get("enable_auto_commit", True) and not self._options.quiet:
            self._output.say("kcodec: enable.auto.commit is false, so no offsets are committed")
        reset = "latest" if "end" in self._options.offset else "earliest"
        with self._consumer(topics, {"auto_offset_reset": reset}, {"group_id": self._options.group}) as consumer:
            patterns = [topic for topic in topics if topic.startswith("^")]
            if self._options.exit:
                for topic in topics:
                    if topic not in patterns:  # a missing topic raises the error that names it
                        numbers = range(consumer.partitions_for(topic))
                        self._set_ends(consumer, [TopicPartition(topic, number) for number in numbers])
            if patterns and len(topics) > 1:
                consumer.subscribe(
                    pattern="|".join(f"(?:{one if one in patterns else _exactly(one)})" for one in topics)
                )
            elif patterns:
                consumer.subscribe(pattern=patterns[0])
            else:
                consumer.subscribe(list(topics))
            return self._print(consumer)

    def _consumer(self, topics: Sequence[str], defaults: dict[str, Any], fixed: dict[str, Any]) -> Consumer:
        """Return a consumer. `fixed` has options that a properties file, which may belong to an application, does not
        change."""
        from kcodec.client import Consumer

        columns = sorted({*self._printer.columns(topics), "offset"})
        own = {"allow_auto_create_topics": False, "columns": columns, **defaults}
        with usage_errors():
            return Consumer(**{**own, **reader_options(self._options, "consumer"), **fixed})

    def _partitions(self, consumer: Consumer, topic: str) -> list[TopicPartition]:
        from kcodec.offsets import TopicPartition

        numbers = range(consumer.partitions_for(topic))
        if self._options.partition is None:
            return [TopicPartition(topic, number) for number in numbers]
        if self._options.partition not in numbers:
            raise CommandError(
                f"topic {topic} has no partition {self._options.partition}; its partitions are 0 to {len(numbers) - 1}"
            )
        return [TopicPartition(topic, self._options.partition)]

    def _report_without_offset(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        given = reader_options(self._options, "consumer")
        reset = given.get("auto_offset_reset", "earliest")
        where = {"earliest": "reading from the beginning", "latest": "reading from the end"}.get(str(reset))
        for partition, found in consumer.committed(partitions).items():
            if found is None and where is not None and not self._options.quiet:
                self._output.say(
                    f"kcodec: group {given['group_id']!r} has no committed offset for {partition}; {where}"
                )

    def _seek_to(self, consumer: Consumer, partitions: list[TopicPartition], offset: int) -> None:
        """Begin at an offset. In a partition whose log ends before it, begin at the end, as kcat does."""
        ends = consumer.end_offsets(partitions)
        if any(offset > end for end in ends.values()):  # the offset may still be below the high watermark
            ends = {partition: lag.log_end_offset for partition, lag in consumer.lag().items()}
        is_error = reader_options(self._options, "consumer").get("auto_offset_reset") == "none"
        for partition in partitions:
            end = ends[partition]
            if offset <= end or is_error:
                consumer.seek(partition, offset)
                continue
            consumer.seek(partition, end)
            if not self._options.quiet:
                self._output.say(
                    f"kcodec: {partition}: offset {offset} is beyond the end of the log, {end}; reading from the end"
                )

    def _set_ends(self, consumer: Consumer, partitions: Iterable[TopicPartition]) -> None:
        """With -e, store the current ends of partitions. The ends of a partition that is assigned again stay."""
        if self._ends is None:
            return
        new = [partition for partition in partitions if partition not in self._ends]
        if new:
            self._ends |= consumer.end_offsets(new)

    def _print(self, consumer: Consumer) -> ExitStatus:
        while self._left is None or self._left > 0:
            try:
                decoded = consumer.poll_arrow(POLL_SECONDS)
            except DecodeError as error:
                return self._printer.report_corruption(error)
            if self._ends is not None:
                self._set_ends(consumer, consumer.assignment())
            if len(decoded):
                if self._print_batch(consumer, decoded) and self._is_at_end(consumer):
                    break
            elif self._ends is not None and (
                self._is_at_end(consumer, is_idle=True) or self._has_no_partitions(consumer)
            ):
                break
            else:
                self._output.check_reader()
        return self._printer.ended(consumer.skipped_batches)

    def _print_batch(self, consumer: Consumer, decoded: DecodedRecords) -> bool:
        """Print the records of a batch up to -c and up to the end of the partition. Return whether the partition has
        reached its end. It is then paused."""
        from kcodec.offsets import TopicPartition

        partition = TopicPartition(decoded.column("topic")[0], decoded.column("partition")[0])
        offsets = decoded.column("offset")
        end = None if self._ends is None else self._ends.get(partition)
        most = len(decoded) if end is None else bisect_left(offsets, end)
        is_ended = end is not None and offsets[len(decoded) - 1] + 1 >= end
        if self._left is not None:
            most = min(most, self._left)
            self._left -= most
        if most and self._options.group is None:
            self._printer.write(decoded, most)
            self._output.flush()
        elif most:
            self._write_and_commit(consumer, decoded, most)
        if most < len(decoded):
            _step_back(consumer, decoded, most)
        if is_ended:
            consumer.pause(partition)
        return is_ended

    def _is_at_end(self, consumer: Consumer, *, is_idle: bool = False) -> bool:
        """Return whether a member has partitions, and each has reached its end.

        is_idle: Whether no records arrive. A partition has then also reached its end if its log ends there now, because
            a new leader may have truncated the log.
        """
        assigned = consumer.assignment()
        ends = self._ends or {}
        left = [one for one in assigned if one not in ends or consumer.position(one) < ends[one]]
        if left and is_idle:
            current = consumer.end_offsets(left)
            left = [one for one in left if consumer.position(one) < current[one]]
        return bool(assigned) and not left

    def _write_and_commit(self, consumer: Consumer, decoded: DecodedRecords, most: int) -> None:
        """Write records in small pieces. If this is interrupted, commit the records that were written. If the reader of
        a pipe has closed it, commit none, because the contents of the pipe are lost."""
        try:
            self._printer.write_now(decoded, most)
        except BrokenPipeError:
            _commit_printed(consumer, decoded, 0)
            raise
        except BaseException:  # Ctrl-C; raised again
            _commit_printed(consumer, decoded, self._printer.rows_written(decoded, most))
            raise

    def _has_no_partitions(self, consumer: Consumer) -> bool:
        """Return whether the group has been stable long enough, and has no partition for this member. Raise
        CommandError if no topic matches the pattern."""
        health = consumer.health()
        causes = {stall.cause.name for stall in health.stalls}
        if consumer.assignment() or health.generation is None or causes - {"UNKNOWN_TOPIC"}:
            self._unassigned_since = None
            return False
        now = time.monotonic()
        if self._unassigned_since is None:
            self._unassigned_since = now
        if now - self._unassigned_since < UNASSIGNED_SECONDS:
            return False
        if causes:
            raise CommandError("; ".join(stall.text for stall in health.stalls))
        if not self._options.quiet:
            self._output.say(f"kcodec: group {self._options.group!r} has no partition for this member")
        return True


def _seek(consumer: Consumer, partitions: list[TopicPartition], offsets: Offsets) -> None:
    if offsets.start_timestamp is not None:
        times = dict.fromkeys(partitions, max(offsets.start_timestamp, 0))
        ends = consumer.end_offsets(partitions)
        for partition, found in consumer.offsets_for_times(times).items():
            consumer.seek(partition, ends[partition] if found is None else found.offset)
    elif offsets.from_end:
        consumer.seek_to_end(*partitions)
    elif offsets.last is not None:
        first, last = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        for partition in partitions:
            consumer.seek(partition, max(first[partition], last[partition] - offsets.last))
    else:
        consumer.seek_to_beginning(*partitions)


def _offsets_at(consumer: Consumer, partitions: list[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    """Return the offset of the first record at or after a time in each partition, or the end of the partition."""
    ends = consumer.end_offsets(partitions)
    for partition, found in consumer.offsets_for_times(dict.fromkeys(partitions, max(timestamp, 0))).items():
        if found is not None:
            ends[partition] = min(ends[partition], found.offset)
    return ends


def _step_back(consumer: Consumer, decoded: DecodedRecords, most: int) -> None:
    """Move the positions back, so that records that were polled but not printed are not committed."""
    from kcodec.offsets import TopicPartition

    place = TopicPartition(decoded.column("topic")[0], decoded.column("partition")[0])
    offsets = decoded.column("offset")
    consumer.seek(place, offsets[most] if most < len(decoded) else offsets[-1] + 1)


def _commit_printed(consumer: Consumer, decoded: DecodedRecords, most: int) -> None:
    """Close a consumer whose last batch was partly printed, so that the automatic commit includes the printed records.
    After an exception, the end of its block would commit no record of the last poll."""
    with suppress(ValueError):  # the partition was revoked
        _step_back(consumer, decoded, most)
    with suppress(KcodecError):  # the cause of the end is reported
        consumer.close(CLOSE_SECONDS)


def _exactly(topic: str) -> str:
    import re

    return f"^{re.escape(topic)}$"
