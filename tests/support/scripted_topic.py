# SPDX-License-Identifier: Apache-2.0
"""Brokers in virtual time that also serve records: Fetch, ListOffsets and DescribeTopics of logs that a test writes.

A `TopicWorld` is a `ScriptedCluster` whose partitions contain real batches. Its Fetch responses are those of a broker:
from the batch with the offset on, at least one batch, otherwise no more bytes than requested, up to the high watermark
or the last stable offset, with the aborted transactions in that range. `on_fetch` is called first. It returns an error
code, a response, or None for that of the log.

A world can also have the replica selector of its leaders (KIP-392), and logs whose first records are in remote storage
(KIP-405).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scripted_broker import Fault, ScriptedCluster

from kcodec import encode_batch, encode_end_transaction_marker
from kcodec.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchEpochEndOffset,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

START = 1_700_000_000_000


@dataclass
class Batch:
    """A batch of a log: its bytes, and the offsets and times in it."""

    base: int
    last: int
    data: bytes
    timestamps: tuple[int, ...] = ()
    epoch: int = 0


@dataclass
class ServedLog:
    """The batches of a partition, and the records that a consumer of each isolation level should get."""

    batches: list[Batch] = field(default_factory=list)
    log_start: int = 0
    end: int = 0
    epoch: int = 0
    committed: list[tuple[int, bytes]] = field(default_factory=list)
    written: list[tuple[int, bytes]] = field(default_factory=list)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    open: dict[int, tuple[int, list[tuple[int, bytes]]]] = field(default_factory=dict)
    diverging: tuple[int, int] | None = None
    #: Offset at which the local log begins, and the number of next reads of remote storage that are too slow.
    local_start: int = 0
    slow_reads: int = 0

    @property
    def last_stable(self) -> int:
        return min((first for first, _ in self.open.values()), default=self.end)

    def append(self, *values: bytes, producer_id: int = -1, **options: Any) -> Batch:
        """One batch; with a producer id, of its transaction."""
        base = self.end
        rows = [(offset, b"key", value, START + offset) for offset, value in enumerate(values, base)]
        given = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
        data = encode_batch(
            [{"key": key, "value": value, "timestamp": time} for _, key, value, time in rows],
            base_offset=base,
            partition_leader_epoch=self.epoch,
            **({**given, **options} if producer_id >= 0 else options),
        )
        self.end = base + len(values)
        records = [(offset, value) for offset, _, value, _ in rows]
        self.written += records
        if producer_id >= 0:
            self.open.setdefault(producer_id, (base, []))[1].extend(records)
        else:
            self.committed += records
        return self.add(Batch(base, self.end - 1, data, tuple(time for *_, time in rows), self.epoch))

    def add(self, batch: Batch) -> Batch:
        self.batches.append(batch)
        self.end = max(self.end, batch.last + 1)
        return batch

    def finish(self, producer_id: int, commit: bool) -> None:
        """The marker."""
        first, records = self.open.pop(producer_id)
        if commit:
            self.committed = sorted(self.committed + records)
        else:
            self.aborted.append((producer_id, first, self.end))
        data = encode_end_transaction_marker(
            "COMMIT" if commit else "ABORT",
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=START + self.end,
            base_offset=self.end,
            partition_leader_epoch=self.epoch,
        )
        self.add(Batch(self.end, self.end, data, (), self.epoch))

    def expected(self, start: int, end: int, committed: bool = True) -> list[tuple[int, bytes]]:
        records = self.committed if committed else self.written
        return sorted((offset, value) for offset, value in records if start <= offset < end)

    def offset_at(self, timestamp: int, limit: int) -> int:
        for batch in self.batches:
            for number, time in enumerate(batch.timestamps):
                if time >= timestamp and batch.base + number < limit:
                    return batch.base + number
        return -1


class TopicWorld(ScriptedCluster):
    """See the module.

    fetches:     (time, node, topic, partition, offset) of every Fetch.
    asked:       (node, version, request) of every Fetch.
    listed:      Every ListOffsets.
    racks:       The replica that leaders prefer for a rack. For the rack "*", they prefer it for every client.
    follower_end: The high watermark of the other replicas, if they are behind.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.served: dict[tuple[str, int], ServedLog] = {}
        self.fetches: list[tuple[float, int, str, int, int]] = []
        self.asked: list[tuple[int, int, FetchRequest]] = []
        self.listed: list[ListOffsetsRequest] = []
        self.racks: dict[str, int] = {}
        self.follower_end: int | None = None
        self._versions: list[tuple[FetchRequest, int]] = []
        self.fetched_bytes = 0
        self.serves_whole_batches = True
        self.on_fetch: Callable[[int, str, int, int], int | FetchResponse | None] = lambda *given: None

    def create_logs(self, name: str, partitions: int = 1) -> list[ServedLog]:
        """A topic, or another of the same name, with logs to write to."""
        self.create_topic(name, partitions)
        logs = [ServedLog() for _ in range(partitions)]
        self.served.update({(name, number): log for number, log in enumerate(logs)})
        return logs

    def _answer(self, node: int, request: Any, fault: Fault) -> Any:
        if isinstance(request, FetchRequest):
            return self._fetched(node, request)
        if isinstance(request, ListOffsetsRequest):
            return self._listed(node, request)
        return super()._answer(node, request, fault)

    def start_call(self, call: Any, done: Any) -> Callable[[], None]:
        """Build requests that depend on the version, as a connection does."""
        if hasattr(call.request, "build"):
            version = min(13 if self.has_topic_ids else 12, call.highest)
            request = call.request.build(version)
            self._versions.append((request, version))
            call = type(call)(call.node, request, call.timeout, call.lowest, call.highest, True, call.channel)
        return super().start_call(call, done)

    def _leads(self, node: int, name: str, number: int) -> bool:
        return self.topics[name][1][number].leader == node

    def _listed(self, node: int, request: ListOffsetsRequest) -> ListOffsetsResponse:
        topics = []
        self.listed.append(request)
        for topic in request.topics:
            parts = []
            for wanted in topic.partitions:
                log = self.served.get((topic.name, wanted.partition_index))
                code = 3 if log is None else 0 if self._leads(node, topic.name, wanted.partition_index) else 6
                offset = -1
                if log is not None and not code:
                    limit = log.last_stable if request.isolation_level else log.end
                    known = {-1: limit, -2: log.log_start, -4: max(log.log_start, log.local_start)}
                    offset = known.get(wanted.timestamp, -1)
                    offset = log.offset_at(wanted.timestamp, limit) if wanted.timestamp >= 0 else offset
                part = ListOffsetsPartitionResponse(
                    partition_index=wanted.partition_index, error_code=code, offset=offset
                )
                parts.append(part)
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=parts))
        return ListOffsetsResponse(topics=topics)

    def _fetched(self, node: int, request: FetchRequest) -> FetchResponse:
        responses = []
        latest = 13 if self.has_topic_ids else 12  # of a request that was decoded from bytes
        version = next((version for built, version in self._versions if built is request), latest)
        self.asked.append((node, version, request))
        preferred = self.racks.get(request.rack_id, self.racks.get("*")) if version >= 11 else None
        by_id = {topic_id: name for name, (topic_id, _) in self.topics.items()}
        for topic in request.topics:
            name = by_id.get(topic.topic_id) if self.has_topic_ids and version >= 13 else topic.topic
            parts = []
            for wanted in topic.partitions:
                at = self.now, node, name or "?", wanted.partition, wanted.fetch_offset
                self.fetches.append(at)
                reported = self.on_fetch(*at[1:])
                if isinstance(reported, FetchResponse):
                    return reported
                if name is None:
                    reported = 100 if self.has_topic_ids else 3
                elif reported is None and not self._leads(node, name, wanted.partition):
                    reported = None if node in self.racks.values() else 6
                if reported:
                    parts.append(FetchPartitionData(partition_index=wanted.partition, error_code=reported))
                else:
                    assert name is not None
                    log, is_leader = self.served[name, wanted.partition], self._leads(node, name, wanted.partition)
                    if is_leader and preferred is not None:
                        parts.append(self._redirection(log, wanted, preferred))
                    else:
                        parts.append(self._records(log, wanted, request, None if is_leader else self.follower_end))
            responses.append(FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=parts))
        return FetchResponse(responses=responses)

    def _redirection(self, log: ServedLog, wanted: Any, preferred: int) -> FetchPartitionData:
        """The response of a leader that prefers another replica: it does not read its log."""
        return FetchPartitionData(
            partition_index=wanted.partition,
            high_watermark=log.end,
            last_stable_offset=log.last_stable,
            log_start_offset=-1,
            preferred_read_replica=preferred,
            records=b"",
        )

    def _records(
        self, log: ServedLog, wanted: Any, request: FetchRequest, follower_end: int | None = None
    ) -> FetchPartitionData:
        high_watermark = log.end if follower_end is None else follower_end
        last_stable = min(log.last_stable, high_watermark)
        limit = last_stable if request.isolation_level else high_watermark
        part = FetchPartitionData(
            partition_index=wanted.partition,
            high_watermark=high_watermark,
            last_stable_offset=last_stable,
            log_start_offset=log.log_start,
            aborted_transactions=[],
            records=b"",
        )
        if not log.log_start <= wanted.fetch_offset <= log.end:
            part.error_code = 1
            return part
        if log.diverging is not None and wanted.last_fetched_epoch >= 0:
            part.diverging_epoch = FetchEpochEndOffset(epoch=log.diverging[0], end_offset=log.diverging[1])
            return part
        if wanted.fetch_offset < log.local_start and log.slow_reads:
            log.slow_reads -= 1
            return part
        data, last = b"", wanted.fetch_offset
        room = min(wanted.partition_max_bytes, request.max_bytes)
        for batch in log.batches:
            if batch.last < wanted.fetch_offset or batch.base >= limit:
                continue
            if data and batch.base >= log.local_start > wanted.fetch_offset:
                break
            if data and len(data) + len(batch.data) > room:
                break
            data += batch.data
            last = batch.last
        part.records = data if self.serves_whole_batches else data[:room]
        self.fetched_bytes += len(part.records)
        if request.isolation_level:
            part.aborted_transactions = [
                AbortedTransaction(producer_id=producer_id, first_offset=first)
                for producer_id, first, marker in log.aborted
                if marker >= wanted.fetch_offset and first <= last
            ]
        return part
