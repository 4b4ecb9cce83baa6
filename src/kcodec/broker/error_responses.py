# SPDX-License-Identifier: Apache-2.0
"""The response to a request that is refused as a whole: each field for an error code has the code.

A response has the same structure as its request: a list of topics, each with a list of partitions, under other names.
The lists are found by their structure. The field that identifies an element (its name, id or number) is copied.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from kcodec.broker.api import CLOSE, ApiError, RequestContext
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.schema import Struct, fields

_CODES = ("error_code", "partition_error_code")
# The fields that identify an element of a list: the name in the response, and the names in requests.
_IDENTITIES = {
    "name": ("name", "topic"),
    "topic": ("topic", "name"),
    "topic_id": ("topic_id",),
    "index": ("index",),
    "partition": ("partition", "partition_index"),
    "partition_index": ("partition_index", "partition", "index"),
    "partition_id": ("partition_id",),
    "group_id": ("group_id",),
    "key": ("key",),
    "transactional_id": ("transactional_id",),
    "producer_id": ("producer_id",),
    "resource_type": ("resource_type",),
    "resource_name": ("resource_name",),
}


def error_response(request: Any, version: int, code: ErrorCode, message: str | None = "") -> Any:
    """Return the response to `request` with `code` in each field for an error code; None if the API has no such
    field.

    message: Value of each field for a message. If it is empty, these fields keep their defaults.
    """
    kind = type(request).response
    if kind is messages.DescribeLogDirsResponse:
        # the elements of the response are directories, not the topics of the request
        found = messages.DescribeLogDirsResponse(results=[messages.DescribeLogDirsResult(error_code=code)])
        found.error_code = code if fields(kind)["error_code"].versions.hold(version) else 0
        return found
    return _mirror(request, kind, version, code, message) if _has_code(kind, version) else None


def response_of(context: RequestContext, request: Any, result: Any) -> Any:
    """Return the result of a handler. If it is an ApiError, return the response that contains its code, or CLOSE if the
    request has no response."""
    if not isinstance(result, ApiError):
        return result
    if not expects_response(request):
        return CLOSE
    response = error_response(request, context.api_version, result.code)
    return CLOSE if response is None else response


def expects_response(request: Any) -> bool:
    """Return whether a client waits for a response: for each request except Produce with acks=0."""
    return not isinstance(request, messages.ProduceRequest) or bool(request.acks)


@cache
def _has_code(kind: type[Struct], version: int) -> bool:
    for name, field in fields(kind).items():
        if not field.versions.hold(version):
            continue
        if name in _CODES or (not isinstance(field.kind, str) and field.is_array and _has_code(field.kind, version)):
            return True
    return False


def _mirror(source: Any, kind: type[Struct], version: int, code: ErrorCode, message: str | None) -> Struct:
    values: dict[str, Any] = {}
    for name, field in fields(kind).items():
        if not field.versions.hold(version):
            continue
        if name in _CODES:
            values[name] = code
        elif name == "error_message":
            values |= {} if message == "" else {name: message}
        elif not isinstance(field.kind, str) and field.is_array:
            if _has_code(field.kind, version) or name in ("topics", "partitions"):
                inner: Any = field.kind
                values[name] = [_mirror(one, inner, version, code, message) for one in _elements(source, version)]
        elif not isinstance(source, Struct):
            if name in _IDENTITIES and "id" not in values:
                values[name] = source
                source = _Named()
        elif name in _IDENTITIES:
            found = next((getattr(source, one) for one in _IDENTITIES[name] if hasattr(source, one)), None)
            if found is not None:
                values[name] = found
        elif name in ("base_offset", "high_watermark", "low_watermark", "offset", "committed_offset"):
            values[name] = -1
    return kind(**values)


class _Named(Struct):
    """An element that is only a name or a number, whose identifying field has already been copied."""


def _elements(source: Any, version: int) -> list[Any]:
    """Return the first list of a request's struct that is not empty."""
    if not isinstance(source, Struct):
        return []
    for name, field in fields(type(source)).items():
        if field.is_array and field.versions.hold(version) and getattr(source, name):
            return list(getattr(source, name))
    return []
