# SPDX-License-Identifier: Apache-2.0
"""Fetch sessions: a client names its partitions once, and a response has only the partitions that changed (KIP-227)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from kcodec.broker.api import ApiError
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

SESSIONLESS = 0
#: Epoch of a request that begins a session, and of one without or at the end of a session.
FIRST_EPOCH, FINAL_EPOCH = 0, -1
_HIGHEST_EPOCH = (1 << 31) - 1
#: The first version of Fetch that names topics by their ids.
IDS_VERSION = 13

#: A topic by name or id, and a partition.
SessionKey = tuple[Any, int]


@dataclass(slots=True)
class _Known:
    """A partition of a session: the latest request, and what the latest response says."""

    request: messages.FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1


class FetchSession:
    """A session of one client."""

    def __init__(self, session_id: int, *, uses_ids: bool) -> None:
        self.id = session_id
        self.uses_ids = uses_ids
        self.epoch = 1
        self.partitions: dict[SessionKey, _Known] = {}

    def is_changed(self, key: SessionKey, response: messages.FetchPartitionData) -> bool:
        """Return whether a response must contain this partition, and store what the response reports."""
        known = self.partitions.get(key)
        if known is None:
            return True
        changed = (
            bool(response.records)
            or known.high_watermark != response.high_watermark
            or known.log_start_offset != response.log_start_offset
            or response.error_code != 0
            or response.diverging_epoch.epoch >= 0
        )
        if changed:
            known.high_watermark = -1 if response.error_code else response.high_watermark
            known.log_start_offset = response.log_start_offset
        if response.records:
            # the others come first in the next response, so that each partition gets its turn
            self.partitions[key] = self.partitions.pop(key)
        return changed


class FetchSessions:
    """All fetch sessions.

    most: Maximum number of sessions. Further clients get no session, and name all partitions in each request.
    """

    def __init__(self, random: Random, most: int) -> None:
        self._random = random
        self._most = most
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, request: messages.FetchRequest, version: int
    ) -> tuple[FetchSession | None, bool, list[tuple[SessionKey, messages.FetchPartition]]]:
        """Return the session of a request, whether the request is incremental, and all its partitions.

        Raise ApiError if the session does not exist or has another epoch.
        """
        uses_ids = version >= IDS_VERSION
        named = [
            (((topic.topic_id if uses_ids else topic.topic), partition.partition), partition)
            for topic in request.topics
            for partition in topic.partitions
        ]
        if request.session_epoch in (FIRST_EPOCH, FINAL_EPOCH):
            self._sessions.pop(request.session_id, None)
            if request.session_epoch == FINAL_EPOCH or not named or len(self._sessions) >= self._most:
                return None, False, named
            session = FetchSession(self._new_id(), uses_ids=uses_ids)
            session.partitions = {key: _Known(partition) for key, partition in named}
            self._sessions[session.id] = session
            return session, False, named
        found = self._sessions.get(request.session_id)
        if found is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if found.epoch != request.session_epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if found.uses_ids != uses_ids:
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        self._update(found, request, named)
        wanted = [(key, known.request) for key, known in found.partitions.items()]
        if not wanted:
            del self._sessions[found.id]
            return None, False, []
        found.epoch = 1 if found.epoch == _HIGHEST_EPOCH else found.epoch + 1
        return found, True, wanted

    def named(self, request: messages.FetchRequest, version: int) -> list[tuple[SessionKey, messages.FetchPartition]]:
        """Return the partitions that a request selects, including those of its session. Do not change the session."""
        uses_ids = version >= IDS_VERSION
        found = self._sessions.get(request.session_id)
        partitions = {} if found is None else {key: known.request for key, known in found.partitions.items()}
        for topic in request.topics:
            for one in topic.partitions:
                partitions[(topic.topic_id if uses_ids else topic.topic), one.partition] = one
        return list(partitions.items())

    def forget_sent(self, session_id: int, refused: messages.FetchResponse, *, by_id: bool) -> None:
        """Make the next response of a session contain these partitions again, because a fault has replaced them in this
        response."""
        found = self._sessions.get(session_id)
        for topic in refused.responses if found is not None else ():
            for one in topic.partitions:
                assert found is not None
                known = found.partitions.get(((topic.topic_id if by_id else topic.topic), one.partition_index))
                if known is not None:
                    known.high_watermark = -1

    def _update(
        self,
        session: FetchSession,
        request: messages.FetchRequest,
        named: list[tuple[SessionKey, messages.FetchPartition]],
    ) -> None:
        for key, partition in named:
            known = session.partitions.get(key)
            if known is None:
                session.partitions[key] = _Known(partition)
            else:
                known.request = partition
        for topic in request.forgotten_topics_data:
            for number in topic.partitions:
                session.partitions.pop(((topic.topic_id if session.uses_ids else topic.topic), number), None)

    def _new_id(self) -> int:
        while True:
            found = self._random.randrange(1, _HIGHEST_EPOCH)
            if found not in self._sessions:
                return found
