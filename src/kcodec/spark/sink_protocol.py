# SPDX-License-Identifier: Apache-2.0
"""The last batch that a Kafka sink has committed for a query, and the decision on the current batch. No Spark, no I/O.

One transaction commits the rows of a batch together with the progress, so Kafka alone shows which batches are written.
Spark writes its commit log afterwards, so it can be one batch behind. The progress is the committed offset (batch + 1)
of the group `application`, with this metadata:

    {"query": "<id of the query>", "batch": 7, "rows": 4000, "offsets": "<digest>", "time": <ms since 1970>,
     "topic": "<name of the output topic>", "topic_id": "<its id>"}

One application can have the progress of several output topics, each with its own number (batch jobs with `version`). A
topic that was deleted and created again has another id, and the rows of the earlier batches are not in it.

`offsets` is a digest of the source offsets of the batch in the offset log of the checkpoint. If Spark repeats a batch
after a crash, the source offsets are the same. If a checkpoint was restored, Spark can plan another batch with the same
number, and the digest is different.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from kcodec.errors import KcodecError
from kcodec.offsets import OffsetAndMetadata

OnNewCheckpoint = Literal["refuse", "adopt"]
#: In the place of a query's id, for `exactly_once(df, version=...)`.
VERSIONS = "versions"


class ExactlyOnceError(KcodecError):
    """A batch was not written, and another attempt will not help. The sink has stopped. No row of the batch is visible.

    application, batch: Application of the sink, and number of the batch.
    """

    remedy = "stop"

    def __init__(self, reason: str, *, application: str, batch: int) -> None:
        super().__init__(reason)
        self.application = application
        self.batch = batch


class CheckpointMismatchError(ExactlyOnceError):
    """The checkpoint of a query and the progress in Kafka contradict each other, so that rows could be lost or
    duplicated.

    batch, query:             Batch and query of the checkpoint.
    found_batch, found_query: Last committed batch in Kafka; None if Kafka has no progress of the application.
    """

    def __init__(
        self,
        reason: str,
        *,
        application: str,
        batch: int,
        query: str,
        found_batch: int | None = None,
        found_query: str | None = None,
    ) -> None:
        super().__init__(reason, application=application, batch=batch)
        self.query = query
        self.found_batch = found_batch
        self.found_query = found_query


@dataclass(frozen=True)
class Batch:
    """A batch that Spark gives to the sink.

    query:   Id of the streaming query, which its checkpoint contains; VERSIONS for a batch job.
    number:  Number of the batch, or the version of a batch job.
    offsets: Digest of its entry in the offset log; "" if it is unknown.
    """

    query: str
    number: int
    offsets: str = ""

    @property
    def is_version(self) -> bool:
        """Whether it is the version of a batch job."""
        return self.query == VERSIONS

    def __str__(self) -> str:
        return f"version {self.number}" if self.is_version else f"batch {self.number}"


@dataclass(frozen=True)
class OutputTopic:
    """The topic that a sink writes to: its name, its id ("" if the brokers have none), and its number of partitions."""

    name: str
    topic_id: str = ""
    partitions: int = 1


@dataclass(frozen=True)
class SinkProgress:
    """The last committed batch of one output topic, and the time of its commit (ms since 1970)."""

    query: str
    batch: int
    rows: int = 0
    offsets: str = ""
    time: int = 0
    topic: str = ""
    topic_id: str = ""

    @classmethod
    def after(cls, batch: Batch, rows: int, time: int, topic: OutputTopic) -> SinkProgress:
        """Return the progress that is committed with a batch."""
        return cls(batch.query, batch.number, rows, batch.offsets, time, topic.name, topic.topic_id)

    def to_json(self) -> str:
        """Return the metadata of the committed offset, on one line."""
        return json.dumps(asdict(self))

    @property
    def committed(self) -> OffsetAndMetadata:
        """The offset to commit."""
        return OffsetAndMetadata(self.batch + 1, self.to_json())

    @classmethod
    def from_json(cls, text: str) -> SinkProgress | None:
        """Return the progress that `to_json` wrote; None for any other text."""
        try:
            found: Any = json.loads(text)
            query, batch, rows = found["query"], found["batch"], found["rows"]
            offsets, time = found.get("offsets", ""), found.get("time", 0)
            topic, topic_id = found.get("topic", ""), found.get("topic_id", "")
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        if not isinstance(query, str) or not isinstance(batch, int) or not isinstance(rows, int):
            return None
        return cls(query, batch, rows, str(offsets), time if isinstance(time, int) else 0, str(topic), str(topic_id))


@dataclass(frozen=True)
class SinkResult:
    """The outcome of a batch.

    application: Name of the sink.
    batch:       Number of the batch, or the version of a batch job.
    rows:        Number of its rows.
    is_skipped:  Whether it was committed before, so that nothing was written now.
    """

    application: str
    batch: int
    rows: int
    is_skipped: bool


def progress_of(committed: OffsetAndMetadata, application: str, batch: Batch) -> SinkProgress:
    """Return the progress that is in a committed offset. Raise CheckpointMismatchError if a sink did not commit it."""
    found = SinkProgress.from_json(committed.metadata)
    if found is None or found.batch + 1 != committed.offset:
        raise CheckpointMismatchError(
            f"application {application!r}: expected an offset of this sink in the consumer group {application!r}, "
            f"found offset {committed.offset} with metadata {committed.metadata[:200]!r}: another program commits "
            "offsets of that group; choose another application, whose group nothing else uses",
            application=application,
            batch=batch.number,
            query=batch.query,
        )
    return found


def progress_key(application: str, topic: str) -> bytes:
    """Return the key of the record that has the progress of one output topic in the topic of an application."""
    return json.dumps([application, topic]).encode()


def refuse_other_owner(
    batch: Batch,
    progress: Mapping[str, SinkProgress],
    topic: str,
    application: str,
    on_new_checkpoint: OnNewCheckpoint,
) -> None:
    """Raise CheckpointMismatchError if another query has the application, so that this one must not take it over.

    progress: Progress of the application in each output topic. A query that has progress in its own topic has the
              application. Batch jobs are one owner, whatever their topics.
    """
    own = progress.get(topic)
    if on_new_checkpoint == "adopt" or (own is not None and own.query == batch.query):
        return
    others = {name: found for name, found in progress.items() if found.query != batch.query}
    if topic in others:
        is_committed(batch, others[topic], application, on_new_checkpoint)
    for name, found in sorted(others.items()):
        raise CheckpointMismatchError(
            f"application {application!r}, {batch} of {_query(batch.query)}: the application belongs to "
            f"{_query(found.query)}, which has committed batch {found.batch} to topic {name!r}. A start with the same "
            "application would stop that query. Give each query its own application. If this query replaces the other "
            f"one, {ADOPT}",
            application=application,
            batch=batch.number,
            query=batch.query,
            found_batch=found.batch,
            found_query=found.query,
        )


def progress_in(
    topic: OutputTopic,
    progress: SinkProgress | None,
    batch: Batch,
    application: str,
    on_new_checkpoint: OnNewCheckpoint,
) -> SinkProgress | None:
    """Return the progress if it is that of this topic; None if the topic was created again and this is accepted.

    Raise CheckpointMismatchError if the topic was created again, unless on_new_checkpoint is "adopt".
    """
    if progress is None or not progress.topic_id or not topic.topic_id or progress.topic_id == topic.topic_id:
        return progress
    if on_new_checkpoint == "adopt":
        return None
    raise CheckpointMismatchError(
        f"application {application!r}, {batch} of {_query(batch.query)}: topic {topic.name!r} was deleted and created "
        f"again (its id was {progress.topic_id} and is {topic.topic_id}): the rows up to batch {progress.batch} are "
        f"not in it. If the query is intended to continue without them, {ADOPT}; to write them again, start with a new "
        "checkpoint and a new application",
        application=application,
        batch=batch.number,
        query=batch.query,
        found_batch=progress.batch,
        found_query=progress.query,
    )


def is_committed(
    batch: Batch, progress: SinkProgress | None, application: str, on_new_checkpoint: OnNewCheckpoint
) -> bool:
    """Return whether a batch was already committed and must be skipped. Return False if it is the next one.

    Raise CheckpointMismatchError if it is neither, unless on_new_checkpoint is "adopt": then it is the next one.
    """
    if progress is not None and progress.query == batch.query:
        if batch.is_version:
            return batch.number <= progress.batch
        if batch.number == progress.batch + 1:
            return False
        if batch.number == progress.batch and _may_be_same(batch.offsets, progress.offsets):
            return True
    elif progress is None and (batch.number == 0 or batch.is_version):
        return False
    if on_new_checkpoint == "adopt":
        return False
    raise CheckpointMismatchError(
        f"application {application!r}, {batch} of {_query(batch.query)}: "
        + _contradiction(batch, progress, application),
        application=application,
        batch=batch.number,
        query=batch.query,
        found_batch=None if progress is None else progress.batch,
        found_query=None if progress is None else progress.query,
    )


def _may_be_same(one: str, other: str) -> bool:
    return one == other or not one or not other


def _query(query: str) -> str:
    return "batch jobs (version=)" if query == VERSIONS else f"query {query}"


ADOPT = 'pass on_new_checkpoint="adopt" for one start, and remove it afterwards'


def _contradiction(batch: Batch, progress: SinkProgress | None, application: str) -> str:
    """Return a text with the progress found, the progress expected, and the remedy."""
    if progress is None:
        return (
            f"expected the progress after batch {batch.number - 1} in Kafka, found none. Either the application or the "
            "topic has another name than before, or the topic was created again, or the committed offset of group "
            f"{application!r} was deleted or has expired (offsets.retention.minutes without a commit, 7 days by "
            "default). If it has expired, find out in the topic "
            f"whether {batch} is there. If it is not, {ADOPT}; "
            'progress="topic" keeps the progress in a compacted topic, where it does not expire'
        )
    found = f"batch {progress.batch} of {_query(progress.query)}"
    if progress.query != batch.query:
        return (
            f"the last commit in Kafka is {found}. Either the checkpoint was deleted or replaced by a new one (each "
            "start without checkpointLocation has a new one), or two queries use one application. Give each query its "
            "own application. If the new checkpoint is intended to continue the output of the old one, and its "
            f"starting offsets were chosen for that, {ADOPT}"
        )
    if batch.number == progress.batch:
        return (
            f"the last commit in Kafka is {found}, which was planned with other source offsets (digest "
            f"{progress.offsets}, now {batch.offsets}). The checkpoint was rolled back by one batch or copied: "
            "skipping the batch could lose rows, and writing it could duplicate rows. Restore the latest checkpoint; "
            f"or, if duplicates are acceptable, {ADOPT}"
        )
    if batch.number < progress.batch:
        return (
            f"the last commit in Kafka is {found}. The checkpoint was rolled back or copied: expected batch "
            f"{progress.batch} or {progress.batch + 1}. Restore the latest checkpoint; or, if duplicates are "
            f"acceptable, {ADOPT}"
        )
    return (
        f"the last commit in Kafka is {found}, expected batch {batch.number - 1}. The offset of group {application!r} "
        "was reset, or the topic is another one or in another cluster than before. Rows of the batches between them "
        f"may be missing there; if they are not, {ADOPT}"
    )
