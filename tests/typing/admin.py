# SPDX-License-Identifier: Apache-2.0
"""What type checkers know of Admin: its methods are made of flows, and yet have their arguments and results."""

from __future__ import annotations

from typing import assert_type

from kcodec import OffsetAndMetadata, TopicPartition
from kcodec.admin.open_transactions import HangingTransactions
from kcodec.admin.values import CreatedTopic, ListedOffset, TopicListing
from kcodec.client import Admin, NewTopic, aio


def blocking(admin: Admin) -> None:
    assert_type(admin.create_topics(["orders", NewTopic("wide", 6)], timeout=3.0), dict[str, CreatedTopic])
    assert_type(admin.list_topics(include_internal=True), dict[str, TopicListing])
    assert_type(admin.list_group_offsets("g"), dict[TopicPartition, OffsetAndMetadata | None])
    assert_type(admin.find_hanging_transactions(), HangingTransactions)
    admin.create_topics(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    admin.list_topics(includes_internal=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def awaited(admin: aio.Admin) -> None:
    at = TopicPartition("orders", 0)
    assert_type(await admin.list_offsets({at: "latest"}), dict[TopicPartition, ListedOffset])
    assert_type(await admin.delete_records({at: 5}), dict[TopicPartition, int])
