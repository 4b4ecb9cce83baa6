# SPDX-License-Identifier: Apache-2.0
"""What ``kcodec restore`` is going to write where, found out before anything is written."""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kcodec
from kcodec.cli.brokers import DEFAULTS, broker_options, make_admin
from kcodec.cli.output import Output, Progress
from kcodec.cli.parser import CommandError, nearest
from kcodec.cli.render import time_text
from kcodec.log import Log, LogDirectory
from kcodec.offsets import TopicPartition

if TYPE_CHECKING:
    from kcodec import DecodedRecords
    from kcodec.client import Admin


@dataclass
class Part:
    """A partition and where it goes.

    records, end:   the committed ones in the source, and the offset behind the last of them.
    begun:          the end of the target when the first of them was about to be written.
    next_offset:    of the source: what is before it was committed. written: records of this run.
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
        """What stands beside the offset that is committed: whose it is, and where the target began to be written."""
        return f"restored from {self.source}; from offset {self.begun} on"


@dataclass
class Plan:
    """All parts. name: of the transactional id and the group; new: topics that are to be made."""

    name: str
    parts: list[Part] = field(default_factory=list)
    new: set[str] = field(default_factory=set)
    skipped_batches: int = 0


def plan_of(options: argparse.Namespace, output: Output) -> Plan:
    """Read every source to its end. Raises DecodeError at damage, unless that is to be skipped."""
    renamed = dict(options.map)
    plan = Plan(options.name or _name_of(options.files))
    for log in _logs(options):
        assert log.topic is not None
        assert log.partition is not None
        target = TopicPartition(renamed.get(log.topic, log.topic), log.partition)
        plan.parts.append(Part(log, TopicPartition(log.topic, log.partition), target))
    if unused := sorted(set(renamed) - {part.source.topic for part in plan.parts}):
        raise CommandError(f"--map {unused[0]}=...: no such topic is read")
    targets = [part.target for part in plan.parts]
    for part in plan.parts:
        if targets.count(part.target) > 1:
            raise CommandError(f"two sources go into {part.target}: name another topic with --map")
    progress = Progress(output, "reading")
    total, done = sum(part.log.size_in_bytes for part in plan.parts), 0
    for part in plan.parts:
        _count(part, options, plan)
        done += part.log.size_in_bytes
        progress(done, total)
    progress.end()
    if plan.skipped_batches:
        output.say(f"kcodec: corrupt batches that are left out: {plan.skipped_batches}")
    return plan


def _name_of(files: list[str]) -> str:
    """One for each place: the same command goes on, another one does not meddle."""
    paths = "\n".join(sorted(str(Path(file).absolute()) for file in files))
    return f"kcodec-restore-{hashlib.sha256(paths.encode()).hexdigest()[:12]}"


def _logs(options: argparse.Namespace) -> Iterator[Log]:
    found: list[Log] = []
    for file in options.files:
        opened = kcodec.open(file)
        if isinstance(opened, LogDirectory):
            topics = [name for name in opened.topics if not name.startswith("__")]
            found += [opened[name, number] for name in topics for number in opened.topics[name]]
        elif opened.topic is None or opened.partition is None:
            raise CommandError(f"{file}: its name must contain topic and partition, as orders-0 does")
        else:
            found.append(opened)
    known = {log.topic or "" for log in found}
    for name in options.topic:
        if name not in known:
            raise CommandError(f"unknown topic {name!r}{nearest(name, sorted(known))}")
    if not found:
        raise CommandError(f"{options.files[0]}: there are no partitions of topics (internal ones are not restored)")
    return (log for log in found if not options.topic or log.topic in options.topic)


def _count(part: Part, options: argparse.Namespace, plan: Plan) -> None:
    """Read all that is going to be written, values included, so that damage is found now."""
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


def _earliest(decoded: DecodedRecords) -> int | None:
    """In ms; None where no record has a time (magic 0)."""
    needed_pyarrow()
    import pyarrow.compute

    times = pyarrow.record_batch(decoded)["timestamp"].cast(pyarrow.int64())
    found: int | None = pyarrow.compute.call_function("min", [times]).as_py()
    return found


def needed_pyarrow() -> Any:
    """Late, and with the remedy."""
    try:
        import pyarrow
    except ImportError as error:
        raise CommandError("restore needs pyarrow: pip install kcodec[arrow]") from error
    return pyarrow


# ------------------------------------------------------------------------------------------------------ the other side


def prepare_topics(plan: Plan, options: argparse.Namespace, output: Output) -> None:
    """See that the targets are there, or are made, and can take what is written to them; nothing in a dry run."""
    from kcodec.client import NewTopic

    needed: dict[str, int] = {}
    for part in plan.parts:
        needed[part.target.topic] = max(needed.get(part.target.topic, 0), part.target.partition + 1)
    with make_admin(options) as admin:
        there = admin.list_topics()
        for topic, count in needed.items():
            if topic in there and there[topic].num_partitions < count:
                have = there[topic].num_partitions
                raise CommandError(f"topic {topic} has {have} partitions, and {count} are needed")
        plan.new = {topic for topic in needed if topic not in there}
        if plan.new and not options.create:
            raise CommandError(f"topic {min(plan.new)} does not exist: --create makes it, --map names another")
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


def _check_configs(admin: Admin, plan: Plan, topics: list[str], output: Output) -> None:
    from kcodec.client import ConfigResource

    if not topics:
        return
    described = admin.describe_configs([ConfigResource.topic(topic) for topic in topics])
    now = time.time_ns() // 1_000_000
    for resource, entries in described.items():
        topic = resource.name
        if entries["message.timestamp.type"].value == "LogAppendTime":
            raise CommandError(
                f"topic {topic} gives records the broker's time (message.timestamp.type=LogAppendTime): theirs would "
                f"be lost. kcodec topics config {topic} --set message.timestamp.type=CreateTime"
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


def read_progress(plan: Plan, options: argparse.Namespace) -> None:
    """What an earlier run has committed. Raises CommandError where a target holds records that are not of this."""
    targets = [part.target for part in plan.parts]
    with make_admin(options) as admin:
        committed = admin.list_group_offsets(plan.name, targets, require_stable=True)
        ends = admin.list_offsets(dict.fromkeys(targets, "latest"))
    for part in plan.parts:
        found, end = committed.get(part.target), ends[part.target].offset
        if found is None:
            if end > 0 and not options.append and _has_records(part.target, options):
                raise CommandError(
                    f"{part.target} holds records, and they are not of this restore ({plan.name}): --append writes "
                    "behind them, --map names another topic, --name goes on with a restore of that name"
                )
            part.begun = end
        else:
            owner, _, begun = found.metadata.partition("; from offset ")
            if owner != f"restored from {part.source}" or not begun.split(" ")[0].isdecimal():
                raise CommandError(
                    f"{part.target}: group {plan.name} keeps the progress of something else: {found.metadata!r}"
                )
            part.begun = int(begun.split(" ")[0])
            part.next_offset = max(part.next_offset, found.offset)


def _has_records(target: TopicPartition, options: argparse.Namespace) -> bool:
    """Whether a consumer gets any: aborted ones, as of a restore that was killed, are none."""
    with kcodec.read_topic(
        target.topic,
        partitions=[target.partition],
        max_rows=1,
        columns=("offset",),
        **{**DEFAULTS, **broker_options(options)},
    ) as records:
        return any(len(batch) for batch in records)
