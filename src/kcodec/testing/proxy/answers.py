# SPDX-License-Identifier: Apache-2.0
"""The messages inside frames, for the proxy: decoded, with other addresses or an error code, and encoded again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.frame import response_body, skip_tagged_fields
from kcodec.testing.proxy.frames import Exchange, Frame, api_key, api_name

#: Where responses name brokers by host and port: API key -> (first version, field of the list; "" is the message).
ADDRESS_FIELDS: dict[int, tuple[int, tuple[str, ...]]] = {
    api_key("Produce"): (10, ("node_endpoints",)),
    api_key("Fetch"): (16, ("node_endpoints",)),
    api_key("Metadata"): (0, ("brokers",)),
    api_key("FindCoordinator"): (0, ("", "coordinators")),
    api_key("DescribeCluster"): (0, ("brokers",)),
}
API_VERSIONS_KEY = api_key("ApiVersions")

#: Given a node id, a host and a port: the host and port to say instead.
AddressOf = Callable[[int, str, int], tuple[str, int]]


def request_class(api_key: int) -> Any:
    """Return the request class of an API. Raise ValueError if `kcodec.protocol.messages` does not have it."""
    from kcodec.protocol.messages import all_requests

    found = all_requests().get(api_key)
    if found is None:
        raise ValueError(f"api {api_name(api_key)}: its messages are not in kcodec.protocol.messages")
    return found


def decode_request(exchange: Exchange) -> Any:
    """Return the message of a request frame. Raise DecodeError if it is corrupt or has another version."""
    frame = exchange.request
    assert frame is not None
    return request_class(exchange.api_key).decode(memoryview(frame)[_request_body(exchange) :], exchange.version)


def decode_response(exchange: Exchange, frame: Frame) -> Any:
    """Return the message of a response frame. Raise DecodeError if it is corrupt or has another version."""
    kind = request_class(exchange.api_key)
    return kind.response.decode(response_body(memoryview(frame), kind, exchange.version), exchange.version)


def request_frame(exchange: Exchange, content: Any) -> bytes:
    """Return a request frame with the header of this exchange and another body."""
    assert exchange.request is not None
    head = bytes(memoryview(exchange.request)[: _request_body(exchange)])
    return head + _body(exchange, content)


def response_frame(exchange: Exchange, content: Any) -> bytes:
    """Return a response frame to this exchange's request, with this body."""
    tags = b"\0" if exchange.api_key != API_VERSIONS_KEY and _is_flexible(exchange) else b""
    return exchange.correlation_id.to_bytes(4, "big", signed=True) + tags + _body(exchange, content)


def with_addresses(exchange: Exchange, frame: Frame, address_of: AddressOf) -> Frame:
    """Return a response frame with the brokers' addresses from `address_of`; the same frame if it names no broker."""
    first, fields = ADDRESS_FIELDS[exchange.api_key]
    if exchange.version < first:
        return frame
    message = decode_response(exchange, frame)
    found = False
    for name in fields:
        for broker in [message] if not name else getattr(message, name):
            node = broker.broker_id if hasattr(broker, "broker_id") else broker.node_id
            if broker.host and broker.port > 0:
                broker.host, broker.port = address_of(node, broker.host, broker.port)
                found = True
    return response_frame(exchange, message) if found else frame


def with_error(response: Any, version: int, code: int) -> Any:
    """Return a response with this code in every field for an error code: of the message, its topics, partitions and
    keys.

    Topics of Metadata lose their partitions, because a broker that returns such a code names none.
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
    """Return the response with `code` for each topic, partition or key that a request names.

    Raise ValueError if the response to this request needs data from a broker; then replace the codes of the broker's
    response (`on_response(...).replace(error=)`).
    """
    api = api_name(request.api_key)
    mirrors = _MIRRORS.get(api)
    answer = with_error(request.response(**_mirrored(request.response, request, mirrors or ())), version, code)
    if mirrors is None and not hasattr(answer, "error_code"):
        raise ValueError(f"{type(request).__name__}: its response cannot be created from an error code alone")
    if api == "FindCoordinator" and version < 4:
        answer.node_id = answer.port = -1
    return answer


def _body(exchange: Exchange, content: Any) -> bytes:
    if callable(content):
        content = content(exchange)
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    version = exchange.version
    # A broker responds to an ApiVersions request of an unknown version in version 0.
    if exchange.api_key == API_VERSIONS_KEY and getattr(content, "error_code", 0) == ErrorCode.UNSUPPORTED_VERSION:
        version = 0
    return bytes(content.encode(version))


def _is_flexible(exchange: Exchange) -> bool:
    return bool(request_class(exchange.api_key).is_flexible(exchange.version))


def _request_body(exchange: Exchange) -> int:
    assert exchange.request is not None
    return (
        skip_tagged_fields(memoryview(exchange.request), exchange.body_at)
        if _is_flexible(exchange)
        else exchange.body_at
    )


def structs_of(struct: Any) -> Iterator[Any]:
    """Yield the message and all structs in it, through its lists."""
    from kcodec.protocol.schema import Struct, fields

    yield struct
    for name in fields(type(struct)):
        value = getattr(struct, name)
        for inner in value if isinstance(value, list) else (value,):
            if isinstance(inner, Struct):
                yield from structs_of(inner)


# Responses of the proxy


class _Mirror(NamedTuple):
    """A list of a response that has an element for each element of a list of the request.

    field, source: The list in the response, and the list in the request.
    values: For each field of an element of the response, the field of the element of the request that it repeats ("":
            the element itself), or its value.
    inner:  Lists within the elements.
    """

    field: str
    source: str
    values: Mapping[str, str | int]
    inner: tuple[_Mirror, ...] = ()


_NAME, _NAME_AND_ID = {"name": "name"}, {"name": "name", "topic_id": "topic_id"}
_PARTITIONS = (_Mirror("partitions", "partitions", {"partition_index": "partition_index"}),)
_MARKED = (_Mirror("partitions", "partition_indexes", {"partition_index": ""}),)
_ADDED = (_Mirror("results_by_partition", "partitions", {"partition_index": ""}),)
_PRODUCED = (_Mirror("partition_responses", "partition_data", {"index": "index", "base_offset": -1}),)
_COORDINATOR: Mapping[str, str | int] = {"key": "", "node_id": -1, "port": -1}
_TRANSACTION = {"transactional_id": "transactional_id"}
_MIRRORS: dict[str, tuple[_Mirror, ...]] = {
    "Produce": (_Mirror("responses", "topic_data", _NAME_AND_ID, _PRODUCED),),
    "Metadata": (_Mirror("topics", "topics", _NAME_AND_ID),),
    "OffsetCommit": (_Mirror("topics", "topics", _NAME_AND_ID, _PARTITIONS),),
    "FindCoordinator": (_Mirror("coordinators", "coordinator_keys", _COORDINATOR),),
    "AddPartitionsToTxn": (
        _Mirror("results_by_topic_v3_and_below", "v3_and_below_topics", _NAME, _ADDED),
        _Mirror(
            "results_by_transaction", "transactions", _TRANSACTION, (_Mirror("topic_results", "topics", _NAME, _ADDED),)
        ),
    ),
    "WriteTxnMarkers": (
        _Mirror("markers", "markers", {"producer_id": "producer_id"}, (_Mirror("topics", "topics", _NAME, _MARKED),)),
    ),
    "TxnOffsetCommit": (_Mirror("topics", "topics", _NAME_AND_ID, _PARTITIONS),),
}


def _mirrored(kind: Any, source: Any, mirrors: tuple[_Mirror, ...]) -> Any:
    """Create the lists of a struct of this class from those of `source`."""
    from kcodec.protocol.schema import fields

    made: dict[str, list[Any]] = {}
    for mirror in mirrors:
        element: Any = fields(kind)[mirror.field].kind
        made[mirror.field] = [
            element(
                **{name: _value(given, entry) for name, given in mirror.values.items()},
                **_mirrored(element, entry, mirror.inner),
            )
            for entry in getattr(source, mirror.source) or ()
        ]
    return made


def _value(given: str | int, entry: Any) -> Any:
    if isinstance(given, int):
        return given
    return getattr(entry, given) if given else entry
