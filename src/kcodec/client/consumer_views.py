# SPDX-License-Identifier: Apache-2.0
"""What both faces of a consumer share: how one is made, what can be read of it without waiting."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from kcodec.arguments import names_of
from kcodec.client.consumer_options import ConsumerOptions, take_options
from kcodec.consumer.consumer_core import ConsumerCore
from kcodec.offsets import OffsetAndMetadata, TopicPartition
from kcodec.txn.transaction_offsets import check_offsets

if TYPE_CHECKING:
    from kcodec.client.client import Client

OnCommitted = Callable[[dict[TopicPartition, OffsetAndMetadata], BaseException | None], Any]


def options_of(options: dict[str, Any]) -> tuple[ConsumerOptions, Client]:
    """A consumer's options and its client. TypeError, ValueError for wrong options."""
    from kcodec.client.client import Client

    own, client_options = take_options(options)
    client = Client(client_options)
    client.cluster.allow_auto_topic_creation = own.allow_auto_create_topics
    return own, client


def core_of(
    own: ConsumerOptions,
    client: Client,
    lock: AbstractContextManager[Any],
    post: Callable[[Callable[[], None]], None],
) -> ConsumerCore:
    """The core of a consumer on this client."""
    core = ConsumerCore(
        own.settings(client.options),
        client.cluster,
        clock=client.clock,
        metrics=client.options.metrics,
        lock=lock,
        post=post,
        now=lambda: time.time_ns() // 1_000_000,
    )
    client.on_crash.append(core.crash)
    return core


def start(core: ConsumerCore, client: Client) -> None:
    """On the loop: have its flows run; if they end otherwise than by `close`, every call raises why."""
    # It knows nothing of the face, so that one that is dropped without close is noticed.
    task = client.scheduler.spawn(core.run(), "consumer")
    task.when_done(lambda ended: None if ended.error is None else core.crash(ended.error))


def checked_subscription(
    topics: str | Iterable[str] | None, pattern: str | re.Pattern[str] | None
) -> tuple[list[str], str | None]:
    """Names, or a pattern. Raises TypeError, ValueError."""
    if (topics is None) == (pattern is None):
        raise ValueError("subscribe to topics= or to a pattern=, one of the two")
    if pattern is not None:
        text = pattern if isinstance(pattern, str) else pattern.pattern
        if not text:
            raise ValueError("pattern is empty")
        return [], text
    names = names_of(() if topics is None else topics, "topics")
    for name in names:
        if not name:
            raise TypeError("topics: '' is not the name of a topic")
    if not names:
        raise ValueError("topics is empty; unsubscribe() ends a subscription")
    return names, None


class ConsumerViews:
    """What is known without asking anybody."""

    _core: ConsumerCore

    def assignment(self) -> frozenset[TopicPartition]:
        """What is read now."""
        with self._core.assignment.lock:
            return frozenset(self._core.assignment.partitions)

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to, by name."""
        return self._core.subscription

    def paused(self) -> frozenset[TopicPartition]:
        """What `pause` holds back."""
        with self._core.assignment.lock:
            return frozenset(name for name, state in self._core.assignment.partitions.items() if state.is_paused)

    @property
    def skipped_batches(self) -> int:
        """How many batches that could not be read were passed over (on_corrupt="skip")."""
        return self._core.fetcher.skipped_batches

    def _commit_async(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None, callback: OnCommitted | None
    ) -> None:
        self._core.need_group("commit_async")
        given = self._core.consumed() if offsets is None else check_offsets(offsets)
        self._core.commits.put(given, callback, is_forced=True)
