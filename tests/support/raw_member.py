# SPDX-License-Identifier: Apache-2.0
"""The only member of a classic group, which sends requests without a client."""

from __future__ import annotations

from raw_broker import RawBroker

from kcodec import ConsumerGroupMetadata
from kcodec.protocol import messages


class RawMember:
    """A member of a group that is alone in it, and its leader."""

    def __init__(self, broker: RawBroker, group: str, instance: str | None = None) -> None:
        self.broker, self.group, self.instance = broker, group, instance
        self.member_id = ""
        self.generation = -1
        self.times = 0

    def join(self) -> ConsumerGroupMetadata:
        """Join, or join again with changed metadata, which starts the next generation."""
        self.times += 1
        protocol = messages.JoinGroupRequestProtocol(name="range", metadata=b"%d" % self.times)
        find = messages.FindCoordinatorRequest(key=self.group, key_type=0)
        self.broker.ask_until(find, 3, lambda answer: answer.error_code)
        while True:
            request = messages.JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                member_id=self.member_id,
                group_instance_id=self.instance,
                protocol_type="consumer",
                protocols=[protocol],
            )
            joined = self.broker.ask_until(request, 5, lambda answer: answer.error_code)
            self.member_id = joined.member_id
            if joined.error_code != 79:  # MEMBER_ID_REQUIRED
                break
        assert joined.error_code == 0
        self.generation = joined.generation_id
        assigned = messages.SyncGroupRequestAssignment(member_id=self.member_id, assignment=b"all")
        sync = messages.SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            assignments=[assigned],
        )
        assert self.broker.ask_until(sync, 3, lambda answer: answer.error_code).error_code == 0
        return ConsumerGroupMetadata(self.group, self.generation, self.member_id, self.instance)
