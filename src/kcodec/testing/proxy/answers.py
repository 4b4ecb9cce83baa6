# SPDX-License-Identifier: Apache-2.0
"""The messages inside frames, for the proxy: decoded, with other addresses, with an error code, as frames again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.frame import response_body
from kcodec.testing.proxy.frames import Exchange, Frame, api_name, skip_tagged_fields

#: Where responses name brokers by host and port: API key -> (first version, field of the list; "" is the message).
ADDRESS_FIELDS: dict[int, tuple[int, tuple[str, ...]]] = {
    0: (10, ("node_endpoints",)),
    1: (16, ("node_endpoints",)),
    3: (0, ("brokers",)),
    10: (0, ("", "coordinators")),
    60: (0, ("brokers",)),
}
API_VERSIONS_KEY = 18

#: Given a node id, a host and a port: the host and port to say instead.
Place = Callable[[int, str, int], tuple[str, int]]


def request_class(api_key: int) -> Any:
    """The class of an API's requests. ValueError: `kcodec.protocol.messages` has no table of it."""
    from kcodec.protocol.messages import all_requests

    found = all_requests().get(api_key)
    if found is None:
        raise ValueError(f"api {api_name(api_key)}: its messages are not in kcodec.protocol.messages")
    return found


def decode_request(exchange: Exchange) -> Any:
    """The message of a request frame. DecodeError: it is damaged, or not of that version."""
    frame = exchange.request
    assert frame is not None
    return request_class(exchange.api_key).decode(memoryview(frame)[_request_body(exchange) :], exchange.version)


def decode_response(exchange: Exchange, frame: Frame) -> Any:
    """The message of a response frame. DecodeError: it is damaged, or not of that version."""
    kind = request_class(exchange.api_key)
    return kind.response.decode(response_body(memoryview(frame), kind, exchange.version), exchange.version)


def request_frame(exchange: Exchange, content: Any) -> bytes:
    """A request frame with this exchange's header and another body."""
    assert exchange.request is not None
    head = bytes(memoryview(exchange.request)[: _request_body(exchange)])
    return head + _body(exchange, content)


def response_frame(exchange: Exchange, content: Any) -> bytes:
    """A response frame to this exchange's request, with this body."""
    tags = b"\0" if exchange.api_key != API_VERSIONS_KEY and _is_flexible(exchange) else b""
    return exchange.correlation_id.to_bytes(4, "big", signed=True) + tags + _body(exchange, content)


def with_addresses(exchange: Exchange, frame: Frame, place: Place) -> Frame:
    """A response frame whose brokers have the addresses that `place` gives; the same frame if it names none."""
    first, fields = ADDRESS_FIELDS[exchange.api_key]
    if exchange.version < first:
        return frame
    message = decode_response(exchange, frame)
    found = False
    for name in fields:
        for broker in [message] if not name else getattr(message, name):
            node = broker.broker_id if hasattr(broker, "broker_id") else broker.node_id
            if broker.host and broker.port > 0:
                broker.host, broker.port = place(node, broker.host, broker.port)
                found = True
    return response_frame(exchange, message) if found else frame


def with_error(response: Any, version: int, code: int) -> Any:
    """A response with this code in every field for error codes: of the message, its topics, partitions, keys.

    Topics of Metadata lose their partitions, as a broker that gives such a code names none.
    """
    from kcodec.protocol.messages.metadata import MetadataResponseTopic
    from kcodec.protocol.schema import fields

    for struct in structs_of(response):
        if isinstance(struct, MetadataResponseTopic):
            struct.partitions = []
        declared = fields(type(struct))
        for name in ("error_code", "partition_error_code"):
            if name in declared and declared[name].versions.hold(version):
                setattr(struct, name, code)
    return response


def error_answer(request: Any, version: int, code: int) -> Any:
    """The response that says `code` of each topic, partition or key that a request names.

    ValueError: this kind of request is answered with data that cannot be made up; let the broker answer and replace
    the response's codes (`on_response(...).replace(error=)`).
    """
    build = _ANSWERS.get(request.api_key)
    response = request.response() if build is None else build(request, version)
    answer = with_error(response, version, code)
    if build is None and not hasattr(answer, "error_code"):
        raise ValueError(f"{type(request).__name__}: no answer can be made up of an error code alone")
    return answer


def _body(exchange: Exchange, content: Any) -> bytes:
    if callable(content):
        content = content(exchange)
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    version = exchange.version
    # A broker answers an ApiVersions request of a version it does not know in version 0.
    if exchange.api_key == API_VERSIONS_KEY and getattr(content, "error_code", 0) == ErrorCode.UNSUPPORTED_VERSION:
        version = 0
    return bytes(content.encode(version))


def _is_flexible(exchange: Exchange) -> bool:
    return bool(request_class(exchange.api_key).is_flexible(exchange.version))


def _request_body(exchange: Exchange) -> int:
    assert exchange.request is not None
    return skip_tagged_fields(exchange.request, exchange.body_at) if _is_flexible(exchange) else exchange.body_at


def structs_of(struct: Any) -> Iterator[Any]:
    """The message and all structs within, through its lists."""
    from kcodec.protocol.schema import Struct, fields

    yield struct
    for name in fields(type(struct)):
        value = getattr(struct, name)
        for inner in value if isinstance(value, list) else (value,):
            if isinstance(inner, Struct):
                yield from structs_of(inner)


# ----------------------------------------------------------------------------------------------- answers made up


def _produce_answer(request: Any, version: int) -> Any:
    from kcodec.protocol.messages import produce

    return produce.ProduceResponse(
        responses=[
            produce.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    produce.PartitionProduceResponse(index=partition.index, base_offset=-1)
                    for partition in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _metadata_answer(request: Any, version: int) -> Any:
    from kcodec.protocol.messages import metadata

    topics = [
        metadata.MetadataResponseTopic(name=topic.name, topic_id=topic.topic_id) for topic in request.topics or ()
    ]
    return metadata.MetadataResponse(topics=topics)


def _find_coordinator_answer(request: Any, version: int) -> Any:
    from kcodec.protocol.messages import metadata

    if version < 4:
        return metadata.FindCoordinatorResponse(node_id=-1, port=-1)
    return metadata.FindCoordinatorResponse(
        coordinators=[metadata.Coordinator(key=key, node_id=-1, port=-1) for key in request.coordinator_keys]
    )


def _added_partitions_answer(request: Any, version: int) -> Any:
    from kcodec.protocol.messages import transactions

    def results(topics: list[Any]) -> list[Any]:
        return [
            transactions.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    transactions.AddPartitionsToTxnPartitionResult(partition_index=partition)
                    for partition in topic.partitions
                ],
            )
            for topic in topics
        ]

    if version < 4:
        below = results(request.v3_and_below_topics)
        return transactions.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=below)
    return transactions.AddPartitionsToTxnResponse(
        results_by_transaction=[
            transactions.AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id, topic_results=results(transaction.topics)
            )
            for transaction in request.transactions
        ]
    )


def _transaction_offsets_answer(request: Any, version: int) -> Any:
    from kcodec.protocol.messages import transactions

    return transactions.TxnOffsetCommitResponse(
        topics=[
            transactions.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    transactions.TxnOffsetCommitResponsePartition(partition_index=partition.partition_index)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offsets_answer(request: Any, version: int) -> Any:
    from kcodec.protocol.messages import offsets

    return offsets.OffsetCommitResponse(
        topics=[
            offsets.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    offsets.OffsetCommitResponsePartition(partition_index=partition.partition_index)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _markers_answer(request: Any, version: int) -> Any:
    from kcodec.protocol.messages import transactions

    return transactions.WriteTxnMarkersResponse(
        markers=[
            transactions.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    transactions.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            transactions.WritableTxnMarkerPartitionResult(partition_index=partition)
                            for partition in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


_ANSWERS: dict[int, Callable[[Any, int], Any]] = {
    0: _produce_answer,
    3: _metadata_answer,
    8: _offsets_answer,
    10: _find_coordinator_answer,
    24: _added_partitions_answer,
    27: _markers_answer,
    28: _transaction_offsets_answer,
}
