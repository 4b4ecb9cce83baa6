# SPDX-License-Identifier: Apache-2.0
"""``kcodec restore``: the committed records of a log directory back into topics, each once, whatever is killed when.

Each chunk of a partition is a transaction, and the source offset behind it is committed in the same transaction, as an
offset of a group. So a restore that is run again goes on behind what was committed, and one that is still running is
fenced by it: both use one transactional id.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kcodec.cli.brokers import DEFAULTS, add_broker_options, broker_options, name_and_value
from kcodec.cli.output import Output, Progress
from kcodec.cli.parser import CommandError, Example, Parser, UsageError
from kcodec.cli.render import write_table
from kcodec.cli.restore_plan import Part, Plan, needed_pyarrow, plan_of, prepare_topics, read_progress
from kcodec.cli.status import ExitStatus
from kcodec.errors import DecodeError, KcodecError
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from kcodec import DecodedRecords
    from kcodec.client import Producer

TOLD = (
    "Writes the committed records of a log directory, or of partition directories, into topics: keys, values, headers, "
    "timestamps and partitions stay, offsets are new. Everything is read first, so corruption stops it before anything "
    "is written. An interrupted restore continues when the same command is run again, and writes no record twice. In "
    "the end the records are counted."
)
EXAMPLES = (
    Example("what would be done", "kcodec restore backup -b localhost:9092 --create --dry-run"),
    Example("one topic, made as it was", "kcodec restore backup -b localhost:9092 -t orders --create"),
    Example("next to the old one", "kcodec restore orders-0 -b localhost:9092 --map orders=copy --create"),
)
MAX_ROWS = 65_536
MAX_REQUEST_BYTES = 100 * 1024 * 1024
CLOSE_SECONDS = 5.0


def parser() -> Parser:
    """The options of the command."""
    found = Parser("restore", TOLD, EXAMPLES)
    found.add_argument("files", nargs="+", metavar="DIR", help="a log directory, or partition directories")
    add_broker_options(found)
    found.add_argument(
        "-t", "--topic", action="append", default=[], help="only this topic; may be given more than once"
    )
    found.add_argument(
        "--map",
        action="append",
        default=[],
        type=name_and_value,
        metavar="OLD=NEW",
        help="into a topic of another name; may be given more than once",
    )
    found.add_argument("--create", action="store_true", help="make topics that are missing, with as many partitions")
    found.add_argument("--partitions", type=int, metavar="N", help="--create: number of partitions, if more are needed")
    found.add_argument("--replication-factor", type=int, metavar="N", help="--create: copies (the broker's default)")
    found.add_argument(
        *("-c", "--config"),
        action="append",
        default=[],
        type=name_and_value,
        metavar="NAME=VALUE",
        help="--create: a setting of the topic; may be given more than once",
    )
    found.add_argument("--append", action="store_true", help="write into topics that hold records already")
    found.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")
    found.add_argument(
        "--chunk", type=int, default=MAX_ROWS, metavar="N", help=f"records in one transaction ({MAX_ROWS})"
    )
    found.add_argument(
        "--name",
        metavar="NAME",
        help="of the transactional id and the group that keep the progress (default: made of the path of DIR)",
    )
    found.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="at a corrupt batch: write nothing and end with exit status 1 (raise), or leave it out (skip)",
    )
    return found


def run(arguments: Sequence[str], output: Output) -> ExitStatus:
    """Restore; FINDINGS at damage, or where the counts differ in the end."""
    options = parser().parse(arguments, output)
    if options is None:
        return ExitStatus.OK
    if options.partitions is not None and options.partitions < 1:
        raise UsageError(f"--partitions must be at least 1, not {options.partitions}")
    if options.chunk < 1:
        raise UsageError(f"--chunk must be at least 1, not {options.chunk}")
    if not options.create and (options.config or options.partitions or options.replication_factor):
        raise UsageError("--config, --partitions and --replication-factor are for --create")
    try:
        plan = plan_of(options, output)
    except DecodeError as error:
        output.say(f"kcodec: {error}; nothing was written. --on-error skip leaves corrupt batches out")
        return ExitStatus.FINDINGS
    prepare_topics(plan, options, output)
    if options.dry_run:
        _show(plan, output)
        return _status(plan)
    _Restoring(plan, options, output).run()
    return max(_status(plan), _compare(plan, options, output))


def _status(plan: Plan) -> ExitStatus:
    return ExitStatus.FINDINGS if plan.skipped_batches else ExitStatus.OK


def _show(plan: Plan, output: Output) -> None:
    columns = ("source", "records", "up to", "into", "note")
    write_table(
        output,
        columns,
        (
            [part.source, part.records, part.end, part.target, "topic is made" if part.target.topic in plan.new else ""]
            for part in plan.parts
        ),
    )


class _Restoring:
    """The writing half."""

    def __init__(self, plan: Plan, options: argparse.Namespace, output: Output) -> None:
        self._plan = plan
        self._options = options
        self._output = output
        self._group = ConsumerGroupMetadata(plan.name)
        self._total = sum(part.records for part in plan.parts)
        self._done = 0

    def run(self) -> None:
        """All parts, one after the other. What was committed before an error stays, and is not written again."""
        from kcodec.client import Producer

        given: dict[str, Any] = {**DEFAULTS, "max_request_size": MAX_REQUEST_BYTES, "compression_type": "lz4"}
        given |= {**broker_options(self._options), "transactional_id": self._plan.name}
        try:
            producer = Producer(**given)
        except TypeError as error:
            raise UsageError(str(error)) from error
        progress = Progress(self._output, "restoring")
        try:
            # Ends what a killed restore left open, and fences one that runs: from here on the progress stands.
            producer.init_transactions()
            read_progress(self._plan, self._options)
            for part in self._plan.parts:
                self._restore(part, producer, progress)
        except KcodecError as error:
            raise CommandError(f"{error}; what was committed stays: the same command goes on behind it") from error
        finally:
            progress.end()
            producer.close(CLOSE_SECONDS)

    def _restore(self, part: Part, producer: Producer, progress: Progress) -> None:
        stream = part.log.to_arrow(
            columns=("offset", "timestamp", "key", "value", "headers"),
            isolation_level="read_committed",
            start_offset=part.next_offset,
            end_offset=part.end,
            on_error=self._options.on_error,
            max_rows=self._options.chunk,
        )
        for decoded in stream:
            following = decoded.column("offset")[len(decoded) - 1] + 1
            told = OffsetAndMetadata(following, part.note)
            with producer.transaction() as transaction:
                transaction.send_arrow(part.target.topic, _table(decoded, part.target))
                transaction.send_offsets({part.target: told}, self._group)
            part.next_offset = following
            part.written += len(decoded)
            self._done += len(decoded)
            progress(self._done, self._total)


def _table(decoded: DecodedRecords, target: TopicPartition) -> object:
    """Rows for `send_arrow`: all of them into one partition."""
    pyarrow = needed_pyarrow()
    batch = pyarrow.record_batch(decoded)
    columns = {name: batch[name] for name in ("key", "value", "headers")}
    columns["timestamp"] = batch["timestamp"].cast(pyarrow.int64())
    columns["partition"] = pyarrow.repeat(pyarrow.scalar(target.partition, pyarrow.int32()), batch.num_rows)
    return pyarrow.table(columns)


def _compare(plan: Plan, options: argparse.Namespace, output: Output) -> ExitStatus:
    """Count what a consumer gets of the targets, from where the restore began to write."""
    import kcodec

    found: dict[TopicPartition, int] = {}
    for topic in dict.fromkeys(part.target.topic for part in plan.parts):
        parts = [part for part in plan.parts if part.target.topic == topic]
        start: dict[int, str | int] = {part.target.partition: part.begun for part in parts}
        with kcodec.read_topic(
            topic,
            partitions=list(start),
            start=start,
            columns=("partition",),
            **{**DEFAULTS, **broker_options(options)},
        ) as records:
            for batch in records:
                place = TopicPartition(topic, batch.column("partition")[0])
                found[place] = found.get(place, 0) + len(batch)
    rows = [
        [part.source, part.records, part.written, part.target, found.get(part.target, 0), _verdict(part, found)]
        for part in plan.parts
    ]
    write_table(output, ("source", "records", "written now", "into", "there", "verdict"), rows)
    return ExitStatus.OK if all(row[-1] == "ok" for row in rows) else ExitStatus.FINDINGS


def _verdict(part: Part, found: dict[TopicPartition, int]) -> str:
    there = found.get(part.target, 0)
    if there == part.records:
        return "ok"
    return f"{part.records - there} are missing" if there < part.records else f"{there - part.records} more"
