# SPDX-License-Identifier: Apache-2.0
"""``kcodec restore``: write the committed records of a log directory back into topics, exactly once.

All sources are read and all targets are checked before the first record is written. Then each chunk of a partition is
written in one transaction. The transaction also commits, for a consumer group, the source offset at which the next
chunk begins. If a restore is run again, it continues after the last committed chunk.

The progress of all topics is in one group, so that a run with other -t options continues, too. Each target topic has
its own transactional id. A run therefore fences an earlier run that still writes to one of its topics, but not a run
that restores other topics of the same directory at the same time.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kcodec
from kcodec.cli.brokers import add_broker_options, client_options, make_admin, name_and_value, usage_errors
from kcodec.cli.logs import add_on_error, lost_batch
from kcodec.cli.output import ExitStatus, Output, Progress
from kcodec.cli.parser import CommandError, Example, Parser, UsageError, nearest
from kcodec.cli.render import counted, now_ms, time_text, write_table
from kcodec.cli.sinks import needed_pyarrow
from kcodec.errors import DecodeError, KcodecError, TransactionTimedOutError
from kcodec.log import Log, LogDirectory
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kcodec.quantities import seconds_text

if TYPE_CHECKING:
    from kcodec import DecodedRecords
    from kcodec.client import Admin, Producer

DESCRIPTION = (
    "Writes the committed records of a log directory, or of partition directories, into topics. Keys, values, "
    "headers, timestamps and partitions are kept. The offsets are new. The command reads all data before it writes "
    "anything, so that it finds corruption early. If the command is interrupted, run it again: it continues, and "
    "writes no record twice. At the end, the command counts the records in the topics."
)
EXAMPLES = (
    Example("the plan, without writing", "kcodec restore backup -b localhost:9092 --create --dry-run"),
    Example("one topic, which is created", "kcodec restore backup -b localhost:9092 -t orders --create"),
    Example("into a topic of another name", "kcodec restore orders-0 -b localhost:9092 --map orders=copy --create"),
)
MAX_ROWS = 65_536
MAX_REQUEST_BYTES = 100 * 1024 * 1024
CLOSE_SECONDS = 5.0
TRANSACTION_TIMEOUT_MS = 60_000
# Topics that Kafka itself creates and writes. Their content belongs to the cluster, not to a user.
INTERNAL_TOPICS = (
    "__consumer_offsets",
    "__transaction_state",
    "__share_group_state",
    "__cluster_metadata",
    "__remote_log_metadata",
)
# Pause between two checks whether the markers of the last transactions have been written.
MARKER_PAUSE_SECONDS = 0.1


def parser() -> Parser:
    """Return the options of the command."""
    found = Parser("restore", DESCRIPTION, EXAMPLES)
    found.add_argument("files", nargs="+", metavar="DIR", help="a log directory, or partition directories")
    add_broker_options(found, clients=("Admin", "producer", "read_topic"))
    found.add_repeatable("-t", "--topic", help="only this topic; can be repeated")
    found.add_repeatable(
        "--map",
        type=name_and_value,
        metavar="OLD=NEW",
        help="write a topic into one of another name; can be repeated",
    )
    found.add_argument(
        "--create", action="store_true", help="create missing topics, with the number of partitions of the source"
    )
    found.add_argument(
        "--partitions", type=int, metavar="N", help="--create: minimum number of partitions of a new topic"
    )
    found.add_argument(
        "--replication-factor", type=int, metavar="N", help="--create: replication factor (default: the broker's)"
    )
    found.add_repeatable(
        "-c",
        "--config",
        type=name_and_value,
        metavar="NAME=VALUE",
        help="--create: a setting of the topic; can be repeated",
    )
    found.add_argument("--append", action="store_true", help="write into topics that already have records")
    found.add_argument("--dry-run", action="store_true", help="print the plan, and write nothing")
    found.add_argument(
        "--chunk", type=int, default=MAX_ROWS, metavar="N", help=f"records per transaction (default: {MAX_ROWS})"
    )
    found.add_argument(
        "--name",
        metavar="NAME",
        help="name of the group that stores the progress, and beginning of the transactional ids, which end with the "
        "topics (default: derived from DIR)",
    )
    add_on_error(
        found, ("raise", "skip"), "write nothing and end with exit status 1 (raise), or leave the batch out (skip)"
    )
    return found


def run(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Restore. Return FINDINGS for corruption, or if the numbers of records differ at the end."""
    if options.partitions is not None and options.partitions < 1:
        raise UsageError(f"--partitions must be at least 1, not {options.partitions}")
    if options.chunk < 1:
        raise UsageError(f"--chunk must be at least 1, not {options.chunk}")
    if not options.create and (options.config or options.partitions or options.replication_factor):
        raise UsageError("--config, --partitions and --replication-factor are for --create")
    try:
        plan = plan_of(options, output)
    except DecodeError as error:
        output.say(f"kcodec: {error}; nothing was written (--on-error skip leaves corrupt batches out)")
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


# Plan


@dataclass
class RestoredPartition:
    """A partition and its target.

    records, end:   Number of committed records in the source, and the offset after the last one.
    begun:          End offset of the target before the first record was written.
    next_offset:    Offset in the source up to which records were committed.
    written:        Number of records of this run.
    """

    log: Log
    source: TopicPartition
    target: TopicPartition
    records: int = 0
    end: int = 0
    oldest: int | None = None
    begun: int = 0
    next_offset: int = 0
    written: int = 0

    @property
    def note(self) -> str:
        """The metadata of the offset that is committed: whose it is, and where the target began to be written."""
        return f"restored from {self.source}; from offset {self.begun} on"


@dataclass
class Plan:
    """All partitions to restore.

    name: Name of the group. The transactional ids begin with it.
    new:  Topics to create.
    counts: Number of partitions that each target needs, with those that have no segment in the source.
    """

    name: str
    counts: dict[str, int] = field(default_factory=dict)
    parts: list[RestoredPartition] = field(default_factory=list)
    new: set[str] = field(default_factory=set)
    skipped_batches: int = 0


def plan_of(options: argparse.Namespace, output: Output) -> Plan:
    """Read every source to its end. Raise DecodeError for corruption, unless it is skipped."""
    renamed: dict[str, str] = {}
    for old, new in options.map:
        if renamed.setdefault(old, new) != new:
            raise UsageError(f"--map {old}=...: the topic {old} has two targets, {renamed[old]} and {new}; pass one")
    plan = Plan(options.name or _name_of(options.files))
    logs, empty = _logs(options, output)
    for log in logs:
        assert log.topic is not None
        assert log.partition is not None
        target = TopicPartition(renamed.get(log.topic, log.topic), log.partition)
        plan.parts.append(RestoredPartition(log, TopicPartition(log.topic, log.partition), target))
    for target in (part.target for part in plan.parts):
        plan.counts[target.topic] = max(plan.counts.get(target.topic, 0), target.partition + 1)
    for topic, partition in empty:
        into = renamed.get(topic, topic)
        if into in plan.counts:
            plan.counts[into] = max(plan.counts[into], partition + 1)
    if unused := sorted(set(renamed) - {part.source.topic for part in plan.parts} - {topic for topic, _ in empty}):
        raise CommandError(f"--map {unused[0]}=...: the source has no topic {unused[0]}")
    targets = [part.target for part in plan.parts]
    for part in plan.parts:
        if targets.count(part.target) > 1:
            raise CommandError(f"two sources have the target {part.target}: name another topic with --map")
    progress = Progress(output, "reading")
    total, done = sum(part.log.size_in_bytes for part in plan.parts), 0
    for part in plan.parts:
        _count(part, options, plan)
        done += part.log.size_in_bytes
        progress(done, total)
    progress.end()
    if plan.skipped_batches:
        output.say(f"kcodec: corrupt batches left out: {plan.skipped_batches}")
    return plan


def _name_of(files: list[str]) -> str:
    """Return a name for these files, so that a run of other files does not interfere. The name does not depend on the
    topics of -t, so that a run with other topics continues."""
    paths = "\n".join(sorted(str(Path(file).absolute()) for file in files))
    return f"kcodec-restore-{hashlib.sha256(paths.encode()).hexdigest()[:12]}"


def _logs(options: argparse.Namespace, output: Output) -> tuple[list[Log], list[TopicPartition]]:
    """Return the partitions to restore, and those whose directories have no segment, which are reported."""
    found: list[Log] = []
    empty: list[TopicPartition] = []
    internal: set[str] = set()
    known: set[str] = set()
    for file in options.files:
        opened = kcodec.open(file)
        if isinstance(opened, LogDirectory):
            internal.update(name for name in opened.topics if name in INTERNAL_TOPICS)
            topics = [name for name in opened.topics if name not in INTERNAL_TOPICS]
            known.update(topics)
            wanted = [name for name in topics if not options.topic or name in options.topic]
            for place in (TopicPartition(name, number) for name in wanted for number in opened.topics[name]):
                try:
                    found.append(opened[place])
                except FileNotFoundError as error:  # it has no segment yet, or the broker has deleted it
                    output.say(f"kcodec: {error}; nothing is restored from it")
                    empty.append(place)
        elif opened.topic is None or opened.partition is None:
            raise CommandError(f"{file}: the name must contain topic and partition, such as orders-0")
        else:
            known.add(opened.topic)
            found.append(opened)
    for name in options.topic:
        if name in internal and name not in known:
            raise CommandError(f"{name} is an internal topic of Kafka, which is not restored")
        if name not in known:
            raise CommandError(f"unknown topic {name!r}{nearest(name, sorted(known))}")
    if not found:
        why = "no partition has a segment" if empty else "no partition was found (internal topics are not restored)"
        raise CommandError(f"{options.files[0]}: {why}")
    if internal and not options.topic:
        output.say(f"kcodec: internal topics of Kafka left out: {', '.join(sorted(internal))}")
    return [log for log in found if not options.topic or log.topic in options.topic], empty


def _count(part: RestoredPartition, options: argparse.Namespace, plan: Plan) -> None:
    """Read all records to write, including values, so that corruption is found now."""
    part.next_offset = part.log.log_start_offset
    stream = part.log.to_arrow(
        columns=("offset", "timestamp", "key", "value", "headers"),
        isolation_level="read_committed",
        on_error=options.on_error,
    )
    chunks = iter(stream)
    for decoded in chunks:
        part.records += len(decoded)
        part.end = decoded.column("offset")[len(decoded) - 1] + 1
        low = _earliest(decoded)
        part.oldest = low if part.oldest is None or low is None else min(part.oldest, low)
    plan.skipped_batches += chunks.counts.skipped_batches
    if (error := lost_batch(part.log)) is not None:
        if options.on_error != "skip":
            raise error
        plan.skipped_batches += 1


def _earliest(decoded: DecodedRecords) -> int | None:
    """Return the earliest timestamp in ms; None if no record has one (magic 0)."""
    needed_pyarrow("restore needs")
    import pyarrow.compute

    times = pyarrow.record_batch(decoded)["timestamp"].cast(pyarrow.int64())
    found: int | None = pyarrow.compute.call_function("min", [times]).as_py()
    return found


# The topics to restore to


def prepare_topics(plan: Plan, options: argparse.Namespace, output: Output) -> None:
    """Check or create the target topics, and check that they accept the records. In a dry run, create nothing."""
    from kcodec.client import NewTopic

    needed = plan.counts
    with make_admin(options) as admin:
        there = admin.list_topics()
        for topic in needed:
            if topic in there:
                _fit(plan, topic, there[topic].num_partitions, output)
        plan.new = {topic for topic in needed if topic not in there}
        if plan.new and not options.create:
            raise CommandError(
                f"topic {min(plan.new)} does not exist: create it with --create, or name another with --map"
            )
        if plan.new:
            made = [
                NewTopic(
                    topic, max(needed[topic], options.partitions or 0), options.replication_factor, dict(options.config)
                )
                for topic in sorted(plan.new)
            ]
            admin.create_topics(made, validate_only=options.dry_run)
        existing = [topic for topic in needed if topic in there or not options.dry_run]
        _check_configs(admin, plan, existing, output)


def _fit(plan: Plan, topic: str, have: int, output: Output) -> None:
    """Leave out partitions without records that an existing topic, with `have` partitions, does not have. Raise
    CommandError if it does not have a partition with records."""
    count = max(
        (part.target.partition + 1 for part in plan.parts if part.target.topic == topic and part.records), default=0
    )
    if have < count:
        raise CommandError(
            f"topic {topic} has {counted(have, 'partition')}, expected at least {count}; name another topic with --map"
        )
    if have < plan.counts[topic]:
        output.say(
            f"kcodec: topic {topic} has {counted(have, 'partition')}, and the source has up to {plan.counts[topic]}; "
            "those that are missing have no records"
        )
        plan.parts = [part for part in plan.parts if part.target.topic != topic or part.target.partition < have]


def _check_configs(admin: Admin, plan: Plan, topics: list[str], output: Output) -> None:
    from kcodec.client import ConfigResource

    if not topics:
        return
    described = admin.describe_configs([ConfigResource.topic(topic) for topic in topics])
    now = now_ms()
    for resource, entries in described.items():
        topic = resource.name
        if entries["message.timestamp.type"].value == "LogAppendTime":
            raise CommandError(
                f"topic {topic} replaces timestamps, as its message.timestamp.type is LogAppendTime; change it: "
                f"kcodec topics config {topic} --set message.timestamp.type=CreateTime"
            )
        policy = entries["cleanup.policy"].value or ""
        retention = int(entries["retention.ms"].value or -1)
        oldest = min(
            (part.oldest for part in plan.parts if part.target.topic == topic and part.oldest is not None), default=None
        )
        if "delete" in policy and retention >= 0 and oldest is not None and 0 <= oldest < now - retention:
            output.say(
                f"kcodec: {topic}: its records are as old as {time_text(oldest)}, and retention.ms={retention} has the "
                f"broker delete them again; kcodec topics config {topic} --set retention.ms=-1"
            )


def read_progress(plan: Plan, parts: list[RestoredPartition], options: argparse.Namespace) -> None:
    """Read the progress of an earlier run in some partitions. Raise CommandError if a target has records from
    elsewhere."""
    targets = [part.target for part in parts]
    if not targets:
        return
    with make_admin(options) as admin:
        committed = admin.list_group_offsets(plan.name, targets, require_stable=True)
        ends = admin.list_offsets(dict.fromkeys(targets, "latest"))
    for part in parts:
        found, end = committed.get(part.target), ends[part.target].offset
        if found is None:
            if end > 0 and not options.append and _has_records(part.target, options):
                raise CommandError(
                    f"{part.target} has records that this restore ({plan.name}) did not write: pass --append to write "
                    "after them, --map to write into another topic, or --name to continue an earlier restore"
                )
            part.begun = end
        else:
            owner, _, begun = found.metadata.partition("; from offset ")
            if owner != f"restored from {part.source}" or not begun.split(" ")[0].isdecimal():
                raise CommandError(
                    f"{part.target}: group {plan.name} stores the progress of another program: "
                    f"{found.metadata!r}; pass another --name"
                )
            part.begun = int(begun.split(" ")[0])
            part.next_offset = max(part.next_offset, found.offset)


def _reader_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a reader of all committed records, whatever a properties file contains."""
    given = client_options(options, "read_topic") | {"isolation_level": "read_committed", "on_error": "raise"}
    given.pop("on_corrupt", None)  # the former name of on_error
    return given


def _has_records(target: TopicPartition, options: argparse.Namespace) -> bool:
    """Return whether a consumer gets any records. Aborted records, for example of a killed restore, do not count."""
    with kcodec.read_topic(
        target.topic,
        partitions=[target.partition],
        max_rows=1,
        columns=("offset",),
        **_reader_options(options),
    ) as records:
        return any(len(batch) for batch in records)


# Writing


class _Restoring:
    """Writes the records of a plan."""

    def __init__(self, plan: Plan, options: argparse.Namespace, output: Output) -> None:
        self._plan = plan
        self._options = options
        self._output = output
        self._group = ConsumerGroupMetadata(plan.name)
        self._total = sum(part.records for part in plan.parts)
        self._done = 0
        #: The timeout of a transaction in seconds.
        self._timeout = 0.0

    def run(self) -> None:
        """Write all partitions, one after the other. Records that were committed before an error are not written
        again."""
        by_topic: dict[str, list[RestoredPartition]] = {}
        for part in self._plan.parts:
            by_topic.setdefault(part.target.topic, []).append(part)
        progress = Progress(self._output, "restoring")
        try:
            # First, end what killed runs left open, so that all targets can be checked before the first record is
            # written.
            for topic in by_topic:
                with self._producer(topic):
                    pass
            read_progress(self._plan, self._plan.parts, self._options)
            for topic, parts in by_topic.items():
                with self._producer(topic) as producer:
                    # Another run may have written meanwhile. From here on the progress does not change.
                    read_progress(self._plan, parts, self._options)
                    for part in parts:
                        self._restore(part, producer, progress)
        except KcodecError as error:
            raise CommandError(f"{error}; committed records stay, and the same command continues after them") from error
        finally:
            progress.end()

    @contextmanager
    def _producer(self, topic: str) -> Iterator[Producer]:
        """Yield a producer for a topic. End the transaction that a killed run left open, and fence an active run."""
        from kcodec.client import Producer

        given = client_options(self._options, "producer", max_request_size=MAX_REQUEST_BYTES, compression_type="lz4")
        given["transactional_id"] = f"{self._plan.name}-{topic}"
        self._timeout = given.setdefault("transaction_timeout_ms", TRANSACTION_TIMEOUT_MS) / 1000
        with usage_errors():
            producer = Producer(**given)
        try:
            producer.init_transactions()
            yield producer
        finally:
            producer.close(CLOSE_SECONDS)

    def _restore(self, part: RestoredPartition, producer: Producer, progress: Progress) -> None:
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
            committed_offset = OffsetAndMetadata(following, part.note)
            begin = time.monotonic()
            try:
                with producer.transaction() as transaction:
                    transaction.send_arrow(part.target.topic, _table(decoded, part.target))
                    transaction.send_offsets({part.target: committed_offset}, self._group)
            except KcodecError as error:
                raise self._chunk_error(error, len(decoded), time.monotonic() - begin) from error
            part.next_offset = following
            part.written += len(decoded)
            self._done += len(decoded)
            progress(self._done, self._total)

    def _chunk_error(self, error: KcodecError, count: int, seconds: float) -> CommandError:
        """Return the error of a chunk. If its transaction has exceeded the timeout, the same command would fail
        again."""
        text = f"{error}; committed records stay, and the same command continues after them"
        if seconds >= self._timeout or isinstance(error, TransactionTimedOutError):
            text += (
                f". The transaction with {counted(count, 'record')} took {seconds_text(seconds)}, longer than its "
                f"timeout of {seconds_text(self._timeout)}, after which the broker aborts it. If this happens again, "
                f"pass a smaller --chunk than {self._options.chunk}, or increase -X transaction.timeout.ms"
            )
        return CommandError(text)


def _table(decoded: DecodedRecords, target: TopicPartition) -> object:
    """Return the rows for `send_arrow`, all for one partition."""
    pyarrow = needed_pyarrow("restore needs")
    batch = pyarrow.record_batch(decoded)
    columns = {name: batch[name] for name in ("key", "value", "headers")}
    columns["timestamp"] = batch["timestamp"].cast(pyarrow.int64())
    columns["partition"] = pyarrow.repeat(pyarrow.scalar(target.partition, pyarrow.int32()), batch.num_rows)
    return pyarrow.table(columns)


def _compare(plan: Plan, options: argparse.Namespace, output: Output) -> ExitStatus:
    """Count the records that a consumer reads from the targets, from the offset where the restore began."""
    late = _wait_for_markers(plan, options)
    found: dict[TopicPartition, int] = {}
    for topic in dict.fromkeys(part.target.topic for part in plan.parts):
        parts = [part for part in plan.parts if part.target.topic == topic]
        start: dict[int, str | int] = {part.target.partition: part.begun for part in parts}
        with kcodec.read_topic(
            topic,
            partitions=list(start),
            start=start,
            columns=("partition",),
            **_reader_options(options),
        ) as records:
            for batch in records:
                place = TopicPartition(topic, batch.column("partition")[0])
                found[place] = found.get(place, 0) + len(batch)
    rows = [
        [part.source, part.records, part.written, part.target, found.get(part.target, 0), _verdict(part, found, late)]
        for part in plan.parts
    ]
    write_table(output, ("source", "records", "written now", "into", "there", "verdict"), rows)
    return ExitStatus.OK if all(row[-1] == "ok" for row in rows) else ExitStatus.FINDINGS


def _wait_for_markers(plan: Plan, options: argparse.Namespace) -> dict[TopicPartition, int]:
    """Wait until consumers can read the targets up to their current ends, because a broker acknowledges a commit before
    it has written all markers. Return the last stable offsets of the partitions that are late after
    default_api_timeout_ms."""
    targets = [part.target for part in plan.parts]
    if not targets:
        return {}
    deadline = time.monotonic() + client_options(options, "Admin")["default_api_timeout_ms"] / 1000
    with make_admin(options) as admin:
        ends = admin.list_offsets(dict.fromkeys(targets, "latest"))
        while True:
            stable = admin.list_offsets(dict.fromkeys(targets, "latest"), isolation_level="read_committed")
            late = {place: one.offset for place, one in stable.items() if one.offset < ends[place].offset}
            if not late or time.monotonic() >= deadline:
                return late
            targets = list(late)
            time.sleep(MARKER_PAUSE_SECONDS)


def _verdict(part: RestoredPartition, found: dict[TopicPartition, int], late: dict[TopicPartition, int]) -> str:
    there = found.get(part.target, 0)
    if there == part.records:
        return "ok"
    if there > part.records:
        return f"{there - part.records} more"
    if part.target in late:
        return (
            f"{part.records - there} are not visible yet: a transaction is open at offset {late[part.target]}; run the "
            "same command later to count again"
        )
    return f"{part.records - there} are missing"
