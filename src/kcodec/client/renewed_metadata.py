# SPDX-License-Identifier: Apache-2.0
"""New metadata for a producer that a process keeps for later tasks."""

from __future__ import annotations

from kcodec.client.producer import Producer

__all__ = ["renew_metadata"]


def renew_metadata(producer: Producer, topic: str) -> int:
    """Request the metadata of a topic again, and wait for it. Return the number of partitions.

    A producer requests metadata every `metadata_max_age_ms`. Until then, it does not know that another program has
    added partitions, or has deleted the topic and created it again. It would send records to partitions that do not
    exist any more, and choose partitions by keys as if their number were the same.

    Raise the errors of `Producer.partitions_for`.
    """
    timeout = producer._core.settings.max_block
    return producer._run(producer._core.relearn_topic(topic, timeout), timeout, f"metadata of {topic!r}")
