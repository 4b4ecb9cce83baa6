# SPDX-License-Identifier: Apache-2.0
"""What the sync and async consumer share: construction, and properties that do not wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from kcodec.consumer.core import ConsumerCore
from kcodec.consumer.options import ConsumerConfig, take_options
from kcodec.offsets import OffsetAndMetadata, TopicPartition, check_offsets

if TYPE_CHECKING:
    from kcodec.network.client import Client

OnCommitted = Callable[[dict[TopicPartition, OffsetAndMetadata], BaseException | None], Any]


def options_of(options: Mapping[str, Any]) -> tuple[ConsumerConfig, Client]:
    """A consumer's options and its client. TypeError, ValueError for wrong options."""
    from kcodec.network.client import Client

    own, client_options = take_options(options)
    client = Client(client_options)
    client.cluster.allow_auto_topic_creation = own.allow_auto_create_topics
    return own, client


def core_of(
    own: ConsumerConfig,
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
    # It holds no reference to the public object, so that one that is dropped without close is noticed.
    task = client.scheduler.spawn(core.run(), "consumer")
    task.when_done(lambda ended: None if ended.error is None else core.crash(ended.error))


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
