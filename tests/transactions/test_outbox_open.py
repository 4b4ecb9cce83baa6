# SPDX-License-Identifier: Apache-2.0
"""examples/outbox.py: how a relay reads its position from a compacted topic when it is opened, without a broker."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kcodec import OffsetAndMetadata, TopicPartition

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))
import outbox  # noqa: E402

POLLS = 1000


class FakeAdmin:
    def __init__(self, **options: Any) -> None:
        pass

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def list_offsets(self, partitions: dict[TopicPartition, str]) -> dict[TopicPartition, Any]:
        return {partition: SimpleNamespace(offset=5) for partition in partitions}


class BlockedConsumer:
    """A consumer that gets no records in the first POLLS polls, each of which takes one second."""

    now = 0.0

    def __init__(self, **options: Any) -> None:
        self._polls = 0

    def __enter__(self) -> BlockedConsumer:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def assign(self, partitions: list[TopicPartition]) -> None:
        pass

    def seek_to_beginning(self, partition: TopicPartition) -> None:
        pass

    def position(self, partition: TopicPartition) -> int:
        return 3 if self._polls < POLLS else 5

    def poll(self, timeout: float) -> list[Any]:
        self._polls += 1
        type(self).now += timeout
        if self._polls < POLLS:
            return []
        return [SimpleNamespace(key=b"ours", value=b'{"offset": 8, "metadata": "9:1"}')]


class FakeProducer:
    def __init__(self, **options: Any) -> None:
        self.is_closed = False
        MADE.append(self)

    def init_transactions(self) -> None:
        pass

    def close(self, timeout: float) -> None:
        self.is_closed = True


MADE: list[FakeProducer] = []


class FailingProgress:
    """A progress that can be read at the second call only."""

    def __init__(self) -> None:
        self.calls = 0

    def read(self, name: str, options: dict[str, Any]) -> OffsetAndMetadata | None:
        self.calls += 1
        if self.calls == 1:
            raise TimeoutError("no broker responds")
        return OffsetAndMetadata(1)

    def write(self, transaction: Any, name: str, position: OffsetAndMetadata) -> None:
        raise AssertionError("no rows")


def test_a_position_is_awaited_however_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outbox, "Admin", FakeAdmin)
    monkeypatch.setattr(outbox, "Consumer", BlockedConsumer)
    monkeypatch.setattr(outbox, "time", SimpleNamespace(monotonic=lambda: BlockedConsumer.now))
    with caplog.at_level(logging.WARNING, "outbox"):
        assert outbox.TopicProgress("relays").read("ours", {}) == OffsetAndMetadata(8, "9:1")
    assert len(caplog.messages) == POLLS // 10 - 1
    assert "ours waits for its position in relays-0: the offset is 3, and the log ends at 5" in caplog.messages[0]


def test_a_relay_is_not_open_if_its_position_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "Producer", FakeProducer)
    MADE.clear()
    relay = outbox.Relay(outbox.SqliteOutbox(":memory:"), "relay", FailingProgress())
    with pytest.raises(TimeoutError):
        relay.publish()
    assert [producer.is_closed for producer in MADE] == [True]
    assert relay.publish() == 0
    assert relay._position == OffsetAndMetadata(1)
    relay.close()
    assert [producer.is_closed for producer in MADE] == [True, True]
