# SPDX-License-Identifier: Apache-2.0
"""Arguments of `Admin` that a broker would accept, and that would do something else than the program means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kcodec import OffsetAndMetadata, TopicPartition
from kcodec.broker import Broker
from kcodec.client import Admin


@pytest.fixture
def admin(kcodec_broker: Broker) -> Iterator[Admin]:
    with Admin(bootstrap_servers=kcodec_broker.bootstrap_servers) as one:
        yield one


@pytest.mark.parametrize(
    ("offset", "error", "text"),
    [
        (-1, ValueError, "expected an offset of 0 or more, got -1"),
        (OffsetAndMetadata(-1), ValueError, "expected an offset of 0 or more, got -1"),
        (1.5, TypeError, "expected an int or an OffsetAndMetadata, got 1.5"),
        (None, TypeError, "expected an int or an OffsetAndMetadata, got None"),
    ],
)
def test_an_offset_of_a_group_that_is_none_is_refused(
    admin: Admin, kcodec_broker: Broker, offset: Any, error: type[Exception], text: str
) -> None:
    """A broker stores -1, and a consumer takes it as no offset: with "latest" it would leave out all records."""
    partition = TopicPartition(kcodec_broker.create_topic(), 0)
    admin.alter_group_offsets("billing", {partition: 5})
    with pytest.raises(error, match=rf"offsets\[{partition.topic}-0\]: {text}"):
        admin.alter_group_offsets("billing", {partition: offset})
    assert admin.list_group_offsets("billing") == {partition: OffsetAndMetadata(5)}


def test_an_unknown_state_or_type_of_groups_is_refused(admin: Admin, kcodec_broker: Broker) -> None:
    """A broker responds with an empty list, as if there were no such group."""
    admin.alter_group_offsets("billing", {TopicPartition(kcodec_broker.create_topic(), 0): 5})
    with pytest.raises(ValueError, match=r"states: expected some of PreparingRebalance, .*, got 'Emty'"):
        admin.list_groups(states="Emty")
    with pytest.raises(ValueError, match="types: expected some of classic, consumer, share, streams, got 'shared'"):
        admin.list_groups(types=["classic", "shared"])
    assert list(admin.list_groups(states=["empty"], types="Classic")) == ["billing"]
    request = kcodec_broker.wire_log.requests("ListGroups")[-1].request  # in the case of brokers before Kafka 3.7, too
    assert (request.states_filter, request.types_filter) == (["Empty"], ["classic"])
