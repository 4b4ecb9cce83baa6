# SPDX-License-Identifier: Apache-2.0
"""One transaction for each batch of a sink: begin, compare the progress, write, commit. Some failures are repeated.

EndTxn is the commit point, and the number of the batch is in the same transaction (`sink_protocol`). The sink therefore
handles each failure in the same way: it begins again. This aborts an open transaction, fences its writers, and shows
which batch was committed last.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import kcodec
from kcodec.admin.values import NewTopic
from kcodec.client import Admin, SharedTransactions, TransactionHandle, TransactionWriter, WriterReceipt
from kcodec.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    KcodecError,
    ProducerFencedError,
    TransactionTimedOutError,
    UnknownOutcomeError,
)
from kcodec.offsets import OffsetRange, TopicPartition
from kcodec.protocol.error_codes import ErrorCode
from kcodec.spark.client_options import end_refused_calls, has_provider, with_credentials
from kcodec.spark.sink_protocol import (
    Batch,
    ExactlyOnceError,
    OnNewCheckpoint,
    OutputTopic,
    SinkProgress,
    SinkResult,
    is_committed,
    progress_in,
    progress_key,
    progress_of,
    refuse_other_owner,
)
from kcodec.spark.topic_stream import id_text

log = logging.getLogger("kcodec.spark")

#: Number of consecutive transaction timeouts after which a batch is not written again: it would time out forever.
MOST_TIMEOUTS = 2
#: In the text of a BrokerError that another attempt cannot correct.
FINAL = "; remedy: stop]"
#: Seconds to abort what a failed batch left open. The coordinator does it after the transaction timeout otherwise.
ABORT_SECONDS = 3.0
#: Pause before a batch is written again, in seconds; it doubles, up to the second value.
PAUSES = (0.1, 2.0)
#: Of the topic that has the progress of one application: a record for each batch, of which only the last of each output
#: topic is needed.
PROGRESS_CONFIGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": "1048576",
    "segment.ms": "86400000",
}


class WriteTasks(Protocol):
    """A function that runs the tasks which write one batch with a handle, and returns their receipts."""

    def __call__(self, handle: TransactionHandle, partitions: int, /) -> Iterable[WriterReceipt]:
        """Write the batch to this number of partitions. Raise if any of it is not acknowledged."""
        ...


@dataclass(frozen=True)
class SinkSettings:
    """The checked arguments of `exactly_once` that do not concern Spark. `client` has the options of every client."""

    application: str
    topic: str
    client: Mapping[str, Any] = field(repr=False)
    transaction_timeout_ms: float = 600_000
    on_new_checkpoint: OnNewCheckpoint = "refuse"
    progress: Literal["group", "topic"] = "group"
    attempts: int = 4

    def __post_init__(self) -> None:
        for name in ("application", "topic"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"{name} must be a string that is not empty, got {value!r}")
        for name, allowed in (("on_new_checkpoint", ("refuse", "adopt")), ("progress", ("group", "topic"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise ValueError(f"attempts must be an int of at least 1, got {self.attempts!r}")

    @property
    def connecting(self) -> dict[str, Any]:
        """The options of a client that connects now, including credentials."""
        return with_credentials(self.client)

    @property
    def progress_topic(self) -> str:
        """The topic of progress="topic"."""
        return f"{self.application}-progress"


class SinkTransactions:
    """The transactions of one sink, which keeps its connections between batches. It writes one batch at a time; other
    threads wait."""

    def __init__(self, settings: SinkSettings, is_cancelled: Callable[[BaseException], bool] = lambda error: False):
        self.settings = settings
        self._is_cancelled = is_cancelled
        self._lock = threading.Lock()
        self._transactions: SharedTransactions | None = None
        self._admin: Admin | None = None
        self._open: TransactionHandle | None = None
        self._progress_position = 0
        self._kept: SinkProgress | None = None

    def write(self, batch: Batch, tasks: WriteTasks, on_skipped: Callable[[], None] = lambda: None) -> SinkResult:
        """Write a batch; call on_skipped instead if it was committed before.

        Raise CheckpointMismatchError, ExactlyOnceError, or what the last attempt failed with. Anything that is not an
        Exception (KeyboardInterrupt, SystemExit) is raised as ExactlyOnceError: a Spark query waits forever otherwise.
        A batch job in the main thread is not the callback of a query, so Ctrl-C ends its program as usual.
        """
        with self._lock:
            try:
                result = self._write(batch, tasks)
                if result.is_skipped:
                    on_skipped()
                return result
            except Exception:
                self._give_up()
                raise
            except BaseException as error:
                self._give_up()
                if batch.is_version and threading.current_thread() is threading.main_thread():
                    error.add_note(f"application {self.settings.application!r}, {batch} is aborted")
                    raise
                raise self._error(
                    batch,
                    f"was interrupted by {type(error).__name__} and is aborted; start the query again to continue",
                ) from error

    def close(self) -> None:
        """Close the connections. The next batch opens new ones. Further calls do nothing."""
        with self._lock:
            self._close()

    # Attempts

    def _write(self, batch: Batch, tasks: WriteTasks) -> SinkResult:
        failures: list[Exception] = []
        timeouts = 0
        is_refused = False
        while True:
            try:
                topic = self._describe_topic()
                handle, progress = self._begin(batch, topic)
                if is_committed(batch, progress, self.settings.application, self.settings.on_new_checkpoint):
                    self._abort()
                    return self._skipped(batch, progress)
                if len(failures) >= self.settings.attempts:
                    raise failures[-1]  # an UnknownOutcomeError, of which it is known now that nothing was committed
                return self._write_once(batch, tasks, handle, topic)
            except UnknownOutcomeError as error:
                if error in failures:
                    raise
                failures.append(error)
            except AuthenticationError as error:
                if is_refused or not has_provider(self.settings.client):
                    raise
                is_refused = True
                log.warning(
                    "application %r, %s: connecting again with new credentials of the provider, because a broker "
                    "refused the earlier ones: %s",
                    *(self.settings.application, batch, first_line(error)),
                )
                self._open = None
                self._close()
                continue
            except Exception as error:
                timeouts = timeouts + 1 if isinstance(error, TransactionTimedOutError) else 0
                if isinstance(error, TransactionTimedOutError) and timeouts >= MOST_TIMEOUTS:
                    raise self._timed_out(batch, error) from error
                failures.append(error)
                if not self._may_retry(error) or len(failures) >= self.settings.attempts:
                    if len(failures) > 1:
                        error.add_note(
                            f"application {self.settings.application!r}, {batch}: attempt {len(failures)} of "
                            f"{self.settings.attempts}; nothing of it is visible to read_committed consumers"
                        )
                    raise
            self._note_failure(batch, failures)

    def _write_once(self, batch: Batch, tasks: WriteTasks, handle: TransactionHandle, topic: OutputTopic) -> SinkResult:
        began = time.monotonic()
        receipts = list(tasks(handle, topic.partitions))
        rows = sum(receipt.records_count for receipt in receipts)
        progress = SinkProgress.after(batch, rows, time.time_ns() // 1_000_000, topic)
        if self.settings.progress == "topic":
            receipts.append(self._write_progress(handle, progress))
        written = time.monotonic()
        self._shared().commit(handle, receipts, progress.committed)
        self._open = None
        log.info(
            "application %r: %s is committed: %d rows, written in %.3f s, committed in %.3f s",
            *(self.settings.application, batch, rows, written - began, time.monotonic() - written),
        )
        return SinkResult(self.settings.application, batch.number, rows, is_skipped=False)

    def _skipped(self, batch: Batch, progress: SinkProgress | None) -> SinkResult:
        log.info("application %r: %s was committed before: it is skipped", self.settings.application, batch)
        rows = progress.rows if progress is not None and progress.batch == batch.number else 0
        return SinkResult(self.settings.application, batch.number, rows, is_skipped=True)

    def _may_retry(self, error: Exception) -> bool:
        """Return whether another attempt may succeed: not after invalid rows, missing permissions, or a stopped query.

        Spark reports an error of a task as text, which contains the remedy of a BrokerError.
        """
        if self._is_cancelled(error) or isinstance(error, ExactlyOnceError):
            return False
        if isinstance(error, ProducerFencedError):
            return True  # a begin finds out whether another process has taken over
        if isinstance(error, KcodecError):
            return error.remedy in ("retry", "abort", "recreate") or isinstance(error, kcodec.TransportError)
        if isinstance(error, (ValueError, TypeError)) or not is_job_failure(error):
            return False
        return FINAL not in str(error)

    def _note_failure(self, batch: Batch, failures: list[Exception]) -> None:
        error = failures[-1]
        log.warning(
            "application %r: attempt %d of %s failed and is repeated: %s: %s",
            *(self.settings.application, len(failures), batch, type(error).__name__, first_line(error)),
        )
        if isinstance(error, KcodecError) and error.remedy == "recreate":
            self._close()
        first, most = PAUSES
        time.sleep(min(first * 2 ** (len(failures) - 1), most))

    def _timed_out(self, batch: Batch, error: TransactionTimedOutError) -> TransactionTimedOutError:
        return TransactionTimedOutError(
            f"application {self.settings.application!r}, {batch}: took longer than "
            f"transaction_timeout_ms={self.settings.transaction_timeout_ms:g} {MOST_TIMEOUTS} times in a row, so that "
            "the coordinator aborted it. Set a longer transaction_timeout_ms (at most the broker's "
            "transaction.max.timeout.ms, 900000 by default), or make batches smaller (maxOffsetsPerTrigger)",
            code=error.code,
            name=error.name,
            remedy="stop",
            resource=self.settings.application,
        )

    def _error(self, batch: Batch, text: str) -> ExactlyOnceError:
        application = self.settings.application
        return ExactlyOnceError(
            f"application {application!r}, {batch}: {text}", application=application, batch=batch.number
        )

    # Transactions

    def _shared(self) -> SharedTransactions:
        if self._transactions is None:
            self._transactions = SharedTransactions(
                self.settings.application,
                self.settings.application,
                progress_partition=TopicPartition(self.settings.topic, 0),
                transaction_timeout_ms=self.settings.transaction_timeout_ms,
                **self.settings.connecting,
            )
            end_refused_calls(self._transactions)
        return self._transactions

    def _admin_client(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(**self.settings.connecting)
            end_refused_calls(self._admin)
        return self._admin

    def _describe_topic(self) -> OutputTopic:
        """Return the output topic as it is now."""
        name = self.settings.topic
        found = self._admin_client().describe_topics([name])[name]
        return OutputTopic(name, id_text(found.topic_id) if found.topic_id is not None else "", len(found.partitions))

    def _begin(self, batch: Batch, topic: OutputTopic) -> tuple[TransactionHandle, SinkProgress | None]:
        """Begin a transaction. Return it and the last progress in the output topic."""
        if self._transactions is None:
            self._refuse_other_query(batch)
        named = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
        if self.settings.progress == "topic":
            self._create_progress_topic()
            named.append(TopicPartition(self.settings.progress_topic, 0))
        try:
            handle, committed = self._shared().begin(named)
        except ProducerFencedError as error:
            raise self._error(
                batch,
                "another process has taken over this application (a second driver of the query, or another query with "
                f"the same application), and this one has stopped. Let one of them run. {error.reason}",
            ) from error
        self._open = handle
        progress = None if committed is None else progress_of(committed, self.settings.application, batch)
        if self.settings.progress == "topic":
            kept = self._read_progress()
            if kept is not None and (progress is None or kept.time > progress.time):
                progress = kept  # the group's offset has expired
        return handle, progress_in(topic, progress, batch, self.settings.application, self.settings.on_new_checkpoint)

    def _refuse_other_query(self, batch: Batch) -> None:
        """Raise CheckpointMismatchError before this process takes the application over from the query that owns it.

        A second transactional producer with this id would fence that query, whatever topic it writes to. Offsets of
        other programs matter only in the output topic.
        """
        application, topic = self.settings.application, self.settings.topic
        progress: dict[str, SinkProgress] = {}
        for partition, committed in self._admin_client().list_group_offsets(application).items():
            if committed is None or partition.partition != 0:
                continue
            found = SinkProgress.from_json(committed.metadata)
            if partition.topic == topic:
                found = progress_of(committed, application, batch)
            if found is not None:
                progress[partition.topic] = found
        refuse_other_owner(batch, progress, topic, application, self.settings.on_new_checkpoint)

    def _abort(self) -> None:
        """Abort the open transaction if brokers respond soon. Otherwise the next begin aborts it."""
        handle, self._open = self._open, None
        if handle is None:
            return
        try:
            self._shared().abort(handle, timeout=ABORT_SECONDS)
        except KcodecError as error:
            log.warning(
                "application %r: its transaction stays open until the next begin, or for transaction_timeout_ms=%g: %s",
                *(self.settings.application, self.settings.transaction_timeout_ms, error),
            )

    def _give_up(self) -> None:
        """Abort the open transaction and close the connections, because the next batch belongs to another run of the
        query."""
        try:
            self._abort()
        finally:
            self._close()

    def _close(self) -> None:
        clients, self._transactions, self._admin = (self._transactions, self._admin), None, None
        self._progress_position, self._kept = 0, None
        for client in clients:
            if client is not None:
                client.close()

    # Progress in a compacted topic

    def _create_progress_topic(self) -> None:
        """Create the topic of the progress if it does not exist. Brokers check the permission CREATE even if it does,
        so a refusal means nothing if the topic can be described."""
        if self._transactions is not None:
            return
        name = self.settings.progress_topic
        topic = NewTopic(name, num_partitions=1, configs=PROGRESS_CONFIGS)
        try:
            self._admin_client().create_topics([topic])
        except AuthorizationError as refusal:
            try:
                self._admin_client().describe_topics([name])
            except BrokerError:
                raise refusal from None
        except BrokerError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    def _write_progress(self, handle: TransactionHandle, progress: SinkProgress) -> WriterReceipt:
        partition = TopicPartition(self.settings.progress_topic, 0)
        with TransactionWriter(
            handle, [partition], must_be_first=True, linger_ms=0, **self.settings.connecting
        ) as writer:
            key = progress_key(self.settings.application, self.settings.topic)
            writer.send(partition.topic, progress.to_json().encode(), key)
        return writer.receipt

    def _read_progress(self) -> SinkProgress | None:
        """Return the last progress of the output topic in the topic of this application, where no transaction is open
        after a begin. Records of other output topics are ignored."""
        key = progress_key(self.settings.application, self.settings.topic)
        partition = TopicPartition(self.settings.progress_topic, 0)
        admin = self._admin_client()
        wanted: dict[TopicPartition, str | int] = {partition: "latest"}
        end = admin.list_offsets(wanted, isolation_level="read_committed")[partition].offset
        rest = OffsetRange(partition.topic, 0, self._progress_position, end)
        with kcodec.read_ranges(
            rest, on_missing="skip", isolation_level="read_committed", **self.settings.connecting
        ) as records:
            for record in (record for batch in records for record in batch.records()):
                if record.key == key:
                    self._kept = SinkProgress.from_json((record.value or b"").decode())
        self._progress_position = end
        return self._kept


def is_job_failure(error: Exception) -> bool:
    """Return whether a job of Spark failed: a worker or executor died, or code of the query raised."""
    names = {f"{each.__module__.partition('.')[0]}.{each.__name__}" for each in type(error).__mro__}
    return bool(names & {"py4j.Py4JJavaError", "pyspark.PySparkException"}) and not names & {
        "pyspark.AnalysisException",
        "pyspark.ParseException",
    }


def first_line(error: BaseException) -> str:
    """Return the beginning of an error's text, for a log."""
    text = str(error).strip().splitlines()
    return text[0][:500] if text else ""
