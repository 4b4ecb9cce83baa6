# SPDX-License-Identifier: Apache-2.0
"""Kafka's own consumer as a member of a group: it polls in Java (tests/java/GroupMember.java) until it is closed.

    with JavaMember(servers, "readers", ["orders"], **{"group.protocol": "consumer"}) as member:
        member.owned()                                  # {TopicPartition("orders", 0), ...}
        member.state().events                           # [("assigned", seconds, {...}), ...]

Seconds are those of time.monotonic(), because Java and Python use the same clock of the machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

from java_clients import CLIENT_PROPERTIES, PROGRAM

from kcodec.offsets import TopicPartition

DEFAULTS = {"auto.offset.reset": "earliest", "enable.auto.commit": "true"}


class MemberEvent(NamedTuple):
    """A call of the rebalance listener: "revoked", "assigned" or "lost"."""

    kind: str
    seconds: float
    partitions: frozenset[TopicPartition]


class MemberState(NamedTuple):
    """records: partition -> the offsets delivered, in order, a range for each run of them; firsts: partition -> when
    the first record came since it was assigned; failure: what the consumer raised, None while it lives."""

    owned: frozenset[TopicPartition]
    events: list[MemberEvent]
    records: dict[TopicPartition, list[range]]
    firsts: dict[TopicPartition, float]
    failure: str | None


class JavaMember:
    """topics, or in the consumer protocol `pattern`; `properties` compared with Kafka's defaults, as
    **{"group.protocol": "consumer"}. Reads from the beginning and commits by itself, unless they say otherwise."""

    _numbers = itertools.count()

    def __init__(
        self,
        bootstrap_servers: str,
        group_id: str,
        topics: Sequence[str] = (),
        *,
        pattern: str | None = None,
        **properties: str,
    ) -> None:
        self._name = f"member-{next(self._numbers)}"
        settings = {"bootstrap.servers": bootstrap_servers, "group.id": group_id, **CLIENT_PROPERTIES, **DEFAULTS}
        PROGRAM.ask(
            "member", name=self._name, properties={**settings, **properties}, topics=list(topics), pattern=pattern
        )

    def __enter__(self) -> JavaMember:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def state(self) -> MemberState:
        """Return its state. A consumer that has failed raises no error here; `failure` has the reason."""
        found = PROGRAM.ask("member_state", name=self._name)
        return MemberState(
            _partitions(found["owned"]),
            [MemberEvent(kind, nanos / 1e9, _partitions(rows)) for kind, nanos, rows in found["events"]],
            {TopicPartition(topic, part): _runs(offsets) for topic, part, offsets in found["records"]},
            {TopicPartition(topic, part): nanos / 1e9 for topic, part, nanos in found["firsts"]},
            found["failure"],
        )

    def owned(self) -> frozenset[TopicPartition]:
        """Return the current assignment. Raise AssertionError if the consumer has failed."""
        state = self.state()
        assert state.failure is None, state.failure
        return state.owned

    def stop(self, *, leave: bool = True) -> None:
        """Stop the consumer and keep its state. leave: whether it leaves the group."""
        PROGRAM.ask("member_stop", name=self._name, leave=leave)

    def close(self) -> None:
        """End it. Once is enough."""
        if self._name:
            PROGRAM.ask("member_close", name=self._name)
            self._name = ""


def _partitions(rows: Sequence[tuple[str, int]]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, partition) for topic, partition in rows)


def _runs(offsets: Sequence[int]) -> list[range]:
    return [range(first, last + 1) for first, last in zip(offsets[::2], offsets[1::2], strict=True)]
