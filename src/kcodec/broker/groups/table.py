# SPDX-License-Identifier: Apache-2.0
"""All groups of the broker and their timers. The table also writes the records of the groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kcodec.broker.api import ApiError
from kcodec.broker.clock import Timer
from kcodec.broker.groups.classic_group import ClassicGroup
from kcodec.broker.groups.consumer_group import ConsumerGroup
from kcodec.broker.groups.group_log import GroupRecord
from kcodec.broker.internal_topics import GroupHost
from kcodec.protocol.error_codes import ErrorCode

Group = ClassicGroup | ConsumerGroup
TimerKey = tuple[str, ...]


class GroupTable:
    """The groups by id. `apply`, which the coordinator sets, applies a record to the state in memory."""

    def __init__(self, host: GroupHost) -> None:
        self.host = host
        self.settings = host.settings
        self.groups: dict[str, Group] = {}
        self.records_written = 0
        self.apply: Callable[[GroupRecord, int, int], None] = lambda record, offset, producer_id: None
        self._timers: dict[TimerKey, Timer] = {}

    def now_ms(self) -> int:
        """Return the time."""
        return self.host.clock.now_ms()

    def group_setting(self, group_id: str, name: str) -> int:
        """Return a configuration of a group. The default is the setting of the broker whose name has the prefix
        `group_`."""
        default: int = getattr(self.settings, f"group_{name.replace('.', '_')}")
        return int(self.host.topics.group_configs.get(group_id, {}).get(name, default))

    def write(self, group_id: str, records: Sequence[GroupRecord]) -> int:
        """Append records of a group as one batch. The caller applies them to the state in memory."""
        if not records:
            return -1
        self.records_written += len(records)
        return self.host.append(self.host.partition_of(group_id), [record.encode() for record in records])

    def commit(self, group_id: str, records: Sequence[GroupRecord]) -> None:
        """Append records of a group, and apply them to the state in memory."""
        first = self.write(group_id, records)
        for number, record in enumerate(records):
            self.apply(record, first + number, -1)

    def get(self, group_id: str) -> Group:
        """Return a group. Raise ApiError (GROUP_ID_NOT_FOUND)."""
        group = self.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    def create_classic(self, group_id: str) -> ClassicGroup:
        """Return a new, empty group of the classic protocol."""
        group = self.groups[group_id] = ClassicGroup(group_id)
        return group

    def start_timer(self, key: TimerKey, delay_ms: float, action: Callable[[], None]) -> None:
        """Run `action` after a delay. An earlier timer with the same key is cancelled."""
        self.cancel_timer(key)

        def run() -> None:
            if self._timers.get(key) is timer:
                del self._timers[key]
            action()

        timer = self.host.clock.call_later(delay_ms, run)
        self._timers[key] = timer

    def has_timer(self, key: TimerKey) -> bool:
        """Return whether a timer with this key waits."""
        return key in self._timers

    def cancel_timer(self, key: TimerKey) -> None:
        """Cancel a timer, if it exists."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def forget(self) -> None:
        """Forget all groups, and cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.groups.clear()
