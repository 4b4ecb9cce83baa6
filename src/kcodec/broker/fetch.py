# SPDX-License-Identifier: Apache-2.0
"""Fetch: long polls, fetch sessions, and the aborted transactions for read_committed (ReplicaManager)."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from kcodec.broker.api import Api, ApiError, Later, RequestContext
from kcodec.broker.authorizer.acls import CLUSTER_NAME, Operation, ResourceType
from kcodec.broker.authorizer.authorizer import Authorizer
from kcodec.broker.clock import Clock, Timer
from kcodec.broker.fetch_sessions import IDS_VERSION, SESSIONLESS, FetchSession, FetchSessions, SessionKey
from kcodec.broker.partition_log import PartitionLog
from kcodec.broker.settings import BrokerSettings
from kcodec.broker.topics import Partition, Topic, Topics
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Wanted:
    """A partition of a Fetch request.

    topic, partition: None if the partition does not exist.
    is_refused: Whether the authorizer refuses it.
    size: Bytes that the waiting request found when it last looked at the partition.
    """

    key: SessionKey
    request: messages.FetchPartition
    topic: Topic | None
    partition: Partition | None
    is_refused: bool = False
    size: int = 0
    waiting: _Waiting | None = None

    @property
    def log(self) -> PartitionLog:
        """The log of a partition that exists."""
        assert self.partition is not None
        return self.partition.log

    def look_again(self) -> None:
        """Notify the fetch that the log has changed."""
        if self.waiting is not None:
            self.waiting.look_again(self)


class Fetch:
    """The handler of Fetch."""

    def __init__(self, topics: Topics, clock: Clock, settings: BrokerSettings) -> None:
        self._topics = topics
        self.clock = clock
        self.max_bytes = settings.fetch_max_bytes
        self.sessions = FetchSessions(topics.random, settings.max_fetch_sessions)

    def apis(self) -> list[Api]:
        """Return the API with its handler."""
        return [Api(messages.FetchRequest, (4, 18), self.fetch)]

    def fetch(self, context: RequestContext, request: messages.FetchRequest) -> messages.FetchResponse | Later:
        """Respond to Fetch: immediately if there is enough to read or an error to report, otherwise after at most
        max_wait_ms."""
        try:
            session, is_incremental, named = self.sessions.begin(request, context.api_version)
        except ApiError as error:
            return messages.FetchResponse(error_code=error.code)
        wanted = self._find(context, named)
        if context.connection.authorizer is not None:
            self._refuse(context, context.connection.authorizer, request, wanted)
        return _Waiting(self, context, request, session, wanted, is_incremental).begin()

    def _refuse(
        self, context: RequestContext, authorizer: Authorizer, request: messages.FetchRequest, found: list[_Wanted]
    ) -> None:
        """Refuse the partitions that the client may not read. Brokers need CLUSTER_ACTION in place of READ."""
        is_broker = max(request.replica_id, request.replica_state.replica_id) >= 0
        may_act = is_broker and authorizer.allows(
            context.connection, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
        )
        for one in found:
            name = one.key[0] if one.topic is None else one.topic.name
            if is_broker:
                one.is_refused = not may_act
            elif isinstance(name, str):
                one.is_refused = not authorizer.allows(context.connection, Operation.READ, ResourceType.TOPIC, name)

    def _find(self, context: RequestContext, named: list[tuple[SessionKey, messages.FetchPartition]]) -> list[_Wanted]:
        by_id = context.api_version >= IDS_VERSION
        wanted = []
        for key, partition in named:
            topic = self._topics.by_id(key[0]) if by_id else self._topics.get(key[0])
            wanted.append(_Wanted(key, partition, topic, None if topic is None else topic.partition(key[1])))
        return wanted

    def is_current(self, wanted: _Wanted) -> bool:
        """Return whether the topic still exists and has not been created again."""
        return wanted.topic is not None and self._topics.by_id(wanted.topic.id) is wanted.topic


@dataclass(eq=False)
class _Waiting:
    """A Fetch request that waits for its response (DelayedFetch)."""

    fetch: Fetch
    context: RequestContext
    request: messages.FetchRequest
    session: FetchSession | None
    wanted: list[_Wanted]
    is_incremental: bool
    timer: Timer | None = None

    def __post_init__(self) -> None:
        self.later = Later(on_disconnect=self._stop)
        self.max_bytes = min(self.request.max_bytes, self.fetch.max_bytes)
        self.missing = min(self.request.min_bytes, self.max_bytes)

    def begin(self) -> messages.FetchResponse | Later:
        """Return the response, or a Later if the request has to wait for it."""
        is_due = self.request.max_wait_ms <= 0 or not self.wanted
        if is_due or any(self._check(one) is not None for one in self.wanted) or self._measure(self.wanted) <= 0:
            return self._response()
        for one in self.wanted:
            one.waiting = self
            one.log.watchers.add(one.look_again)
        self.timer = self.fetch.clock.call_later(self.request.max_wait_ms, self._complete, in_real_time=True)
        return self.later

    def _check(self, wanted: _Wanted) -> messages.FetchPartitionData | None:
        """Return the error of a partition, or the epoch at which its log diverges from the client's."""
        if wanted.is_refused:
            return _refusal(wanted, ErrorCode.TOPIC_AUTHORIZATION_FAILED, aborted=[])
        if wanted.topic is None or wanted.partition is None or not self.fetch.is_current(wanted):
            is_unknown_id = self.context.api_version >= IDS_VERSION and wanted.topic is None
            code = ErrorCode.UNKNOWN_TOPIC_ID if is_unknown_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return _refusal(wanted, code, aborted=[])
        log, request = wanted.partition.log, wanted.request
        try:
            wanted.partition.check_leader_epoch(request.current_leader_epoch)
            if request.last_fetched_epoch >= 0:
                epoch, end = log.end_of_epoch(request.last_fetched_epoch)
                if epoch < 0:
                    raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
                if epoch < request.last_fetched_epoch or end < request.fetch_offset:
                    found = _refusal(wanted, ErrorCode.NONE, aborted=[])
                    found.high_watermark, found.last_stable_offset = log.high_watermark, log.last_stable_offset
                    found.log_start_offset = log.log_start_offset
                    found.diverging_epoch = messages.FetchEpochEndOffset(epoch=epoch, end_offset=end)
                    return found
            log.check_offset(request.fetch_offset)
        except ApiError as error:
            return _refusal(wanted, error.code, aborted=None)
        return None

    def _measure(self, some: list[_Wanted]) -> int:
        """Measure what these partitions have now. Return the number of bytes that are still missing."""
        for one in some:
            readable = one.log.readable_bytes(one.request.fetch_offset, self.request.isolation_level)
            before, one.size = one.size, min(readable, one.request.partition_max_bytes)
            self.missing += before - one.size
        return self.missing

    def look_again(self, changed: _Wanted) -> None:
        """Respond if there is enough to read now, or if this partition has an error now."""
        if self._check(changed) is not None or self._measure([changed]) <= 0:
            self._complete()

    def _complete(self) -> None:
        if not self.later.is_done:
            self._stop()
            self.later.respond(self._response())

    def _stop(self) -> None:
        """Stop waiting."""
        for one in self.wanted:
            one.log.watchers.discard(one.look_again)
        if self.timer is not None:
            self.timer.cancel()

    def _response(self) -> messages.FetchResponse:
        left, needs_one = self.max_bytes, True
        by_id = self.context.api_version >= IDS_VERSION
        topics: dict[object, messages.FetchableTopicResponse] = {}
        for wanted in self.wanted:
            data = self._check(wanted)
            if data is None:
                data = self._read(wanted, left, min_one_message=needs_one)
                size = len(data.records or b"")
                left, needs_one = max(left - size, 0), needs_one and not size
            is_changed = self.session is None or self.session.is_changed(wanted.key, data)
            if is_changed or not self.is_incremental:
                name = {"topic_id": wanted.key[0]} if by_id else {"topic": wanted.key[0]}
                topic = topics.setdefault(wanted.key[0], messages.FetchableTopicResponse(**name))
                topic.partitions.append(data)
        session_id = SESSIONLESS if self.session is None else self.session.id
        return messages.FetchResponse(session_id=session_id, responses=list(topics.values()))

    def _read(self, wanted: _Wanted, left: int, *, min_one_message: bool) -> messages.FetchPartitionData:
        try:
            found = wanted.log.read(
                wanted.request.fetch_offset,
                min(wanted.request.partition_max_bytes, left),
                self.request.isolation_level,
                min_one_message=min_one_message,
            )
        except OSError as error:
            _log.error("partition %d: %s; the Fetch response has KAFKA_STORAGE_ERROR", wanted.key[1], error)
            return _refusal(wanted, ErrorCode.KAFKA_STORAGE_ERROR, aborted=None)
        aborted = [
            messages.AbortedTransaction(producer_id=producer_id, first_offset=first)
            for producer_id, first in found.aborted or ()
        ]
        return messages.FetchPartitionData(
            partition_index=wanted.key[1],
            high_watermark=found.high_watermark,
            last_stable_offset=found.last_stable_offset,
            log_start_offset=found.log_start_offset,
            aborted_transactions=None if found.aborted is None else aborted,
            records=found.records,
        )


def _refusal(
    wanted: _Wanted, code: ErrorCode, *, aborted: list[messages.AbortedTransaction] | None
) -> messages.FetchPartitionData:
    return messages.FetchPartitionData(
        partition_index=wanted.key[1],
        error_code=code,
        high_watermark=-1,
        aborted_transactions=aborted,
        records=b"",
    )
