# SPDX-License-Identifier: Apache-2.0
"""What type checkers make of the classes of messages: read by mypy and basedpyright, never run."""

from typing import assert_type

from kcodec.protocol import messages
from kcodec.protocol.messages.transactions import EndTxnRequest, EndTxnResponse


def requests_have_the_fields_of_their_tables(data: bytes) -> None:
    request = messages.EndTxnRequest(transactional_id="a", producer_id=1, producer_epoch=0, committed=True)
    assert_type(request, EndTxnRequest)
    assert_type(request.committed, bool)
    assert_type(request.encode(version=5), bytes)
    assert_type(messages.EndTxnResponse.decode(data, version=5), EndTxnResponse)
    produce = messages.ProduceRequest(topic_data=[messages.TopicProduceData(name="orders")])
    assert_type(produce.transactional_id, str | None)
    assert_type(produce.topic_data[0].partition_data[0].index, int)


def mistakes_are_found() -> None:
    messages.EndTxnRequest("a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    messages.EndTxnRequest(commited=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    messages.EndTxnRequest(producer_id="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    print(messages.EndTxnRequests)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    print(messages.string)  # type: ignore[attr-defined]
