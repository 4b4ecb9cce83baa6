# SPDX-License-Identifier: Apache-2.0
"""A request that is checked before its handler runs, and the steps that several APIs use.

A step refuses a request or some of its elements, or removes elements from the response. It passes the other elements to
the next step or the handler. It does so even if no element is left, because an error of the whole request takes
precedence over errors of elements.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kcodec.broker.admin.host import AdminHost
from kcodec.broker.api import CLOSE, ApiError, Later, RequestContext
from kcodec.broker.authorizer.acls import CLUSTER_NAME, Operation, ResourceType
from kcodec.broker.authorizer.authorizer import Authorizer
from kcodec.broker.error_responses import error_response
from kcodec.protocol.error_codes import ErrorCode

_CODES = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
#: Kafka's messages for these errors. Many responses do not contain them.
TEXTS: Mapping[ResourceType, str | None] = {
    ResourceType.TOPIC: "Topic authorization failed.",
    ResourceType.GROUP: "Group authorization failed.",
    ResourceType.CLUSTER: "Cluster authorization failed.",
    ResourceType.TRANSACTIONAL_ID: "Transactional Id authorization failed.",
}
#: Value of a field for authorized operations that were not requested.
_NOT_REQUESTED = -(1 << 31)


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A request and its client's permissions. `handle` calls the next step or the handler."""

    context: RequestContext
    request: Any
    handle: Callable[[Any], Any]
    authorizer: Authorizer
    host: AdminHost

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return whether the client may perform an operation on a resource."""
        return self.authorizer.allows(self.context.connection, operation, kind, name)

    def may_cluster(self, operation: Operation | None) -> bool:
        """Return whether the client may perform an operation on the cluster. Return False if `operation` is None."""
        return operation is not None and self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def describes(self, topic: str | None) -> bool:
        """Return whether the client may describe a topic."""
        return self.may(Operation.DESCRIBE, ResourceType.TOPIC, topic or "")

    def pass_on(self, change: Callable[[Any], None] | None = None, **fields: Any) -> Any:
        """Pass the request to `handle`, and return the result.

        change: Changes the response, as soon as it is available.
        fields: New values of fields of the request.
        """
        result = self.handle(changed(self.request, **fields) if fields else self.request)
        return result if change is None else _then(result, change)

    def refuse(self, kind: ResourceType) -> Any:
        """Return the response to a request that is refused as a whole."""
        return error_response(self.request, self.context.api_version, _CODES[kind], TEXTS[kind])

    def name_of(self, one: Any) -> str | None:
        """Return the name of the resource of an element of a request. Return None if its topic id is unknown."""
        if isinstance(one, str):
            return one
        name: str | None = getattr(one, "name", None) or getattr(one, "topic", None)
        if not name and hasattr(one, "topic_id"):
            topic = self.host.topics.by_id(one.topic_id)
            return None if topic is None else topic.name
        return name or ""

    def divide(
        self,
        field: str,
        refusal_of: Callable[[Any], ResourceType | None],
        texts: Mapping[ResourceType, str | None] | None = None,
    ) -> Any:
        """Remove the elements of a list that are refused, handle the request, and add their errors to the response.

        field:      Name of the list.
        refusal_of: Returns the type of the resource that the client may not use, or None.
        texts:      Messages of the errors. Without a message, the field for it keeps its default.
        """
        allowed: list[Any] = []
        refused: dict[ResourceType, list[Any]] = {}
        for one in getattr(self.request, field):
            kind = refusal_of(one)
            (allowed if kind is None else refused.setdefault(kind, [])).append(one)
        if not refused:
            return self.pass_on()
        errors = []
        for kind, some in refused.items():
            part, text = changed(self.request, **{field: some}), (texts or {}).get(kind, "")
            errors.append(error_response(part, self.context.api_version, _CODES[kind], text))
        result = self.pass_on(lambda response: _add(response, errors), **{field: allowed})
        # A Produce request with acks=0 has no response. Closing the connection reports the error.
        return CLOSE if getattr(self.request, "acks", None) == 0 else result


Step = Callable[[CheckedRequest], Any]
#: Returns whether the handler itself refuses an element of a request. The error of the handler then takes precedence.
IsHandled = Callable[[CheckedRequest, Any], bool]


def whole(
    kind: ResourceType,
    *operations: Operation,
    field: str | None = None,
    refusal: Callable[[CheckedRequest, ErrorCode], Any] | None = None,
) -> Step:
    """Return a step that refuses a request unless the client may perform one of the operations on a resource.

    field:   Name of the field that contains the name of the resource. None for the cluster.
    refusal: Returns the response with an error code. None for the usual response.
    """

    def step(call: CheckedRequest) -> Any:
        name = CLUSTER_NAME if field is None else getattr(call.request, field)
        if any(call.may(one, kind, name) for one in operations):
            return call.pass_on()
        return call.refuse(kind) if refusal is None else refusal(call, _CODES[kind])

    return step


def code_only(call: CheckedRequest, code: ErrorCode) -> Any:
    """Return a response that contains only an error code for the whole request."""
    return type(call.request).response(error_code=code)


def without_text(call: CheckedRequest, code: ErrorCode) -> Any:
    """Return the usual response with an error code, without messages."""
    return error_response(call.request, call.context.api_version, code, None)


def each(
    field: str,
    kind: ResourceType,
    operation: Operation,
    *,
    or_cluster: Operation | None = None,
    text: str = "",
    handled: IsHandled | None = None,
) -> Step:
    """Return a step that refuses the elements of a list if the client may not perform an operation on their resources.

    or_cluster: A client that may perform this operation on the cluster may use all elements.
    text:       Message of the errors.
    """

    def step(call: CheckedRequest) -> Any:
        may_all = call.may_cluster(or_cluster)

        def refusal_of(one: Any) -> ResourceType | None:
            name = call.name_of(one)
            is_passed = may_all or name is None or (handled is not None and handled(call, one))
            return None if is_passed or call.may(operation, kind, name or "") else kind

        return call.divide(field, refusal_of, {kind: text})

    return step


def hide(
    field: str, name: str, kind: ResourceType, operation: Operation, *, or_cluster: Operation | None = None
) -> Step:
    """Return a step that removes elements from a list in the response if the client may not perform an operation on
    their resources."""

    def step(call: CheckedRequest) -> Any:
        def change(response: Any) -> None:
            kept = [one for one in getattr(response, field) if call.may(operation, kind, getattr(one, name))]
            setattr(response, field, kept)

        return call.pass_on(None if call.may_cluster(or_cluster) else change)

    return step


def restrict(kind: ResourceType, field: str, name: str) -> Step:
    """Return a step that removes operations from the elements of a list in the response if the client may not perform
    them."""

    def step(call: CheckedRequest) -> Any:
        def change(response: Any) -> None:
            for one in getattr(response, field):
                restrict_one(call, one, "authorized_operations", kind, getattr(one, name))

        return call.pass_on(change)

    return step


def restrict_one(call: CheckedRequest, one: Any, field: str, kind: ResourceType, name: str) -> None:
    """If the authorized operations were requested, remove those that the client may not perform from the field."""
    supported = getattr(one, field)
    if supported != _NOT_REQUESTED:
        setattr(one, field, call.authorizer.operations(call.context.connection, kind, name, supported))


def changed(struct: Any, **fields: Any) -> Any:
    """Return a copy of a message with new values of these fields."""
    found = copy.copy(struct)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def _add(response: Any, errors: list[Any]) -> None:
    """Add the elements of the lists in the error responses, unless the whole request has failed."""
    for error in errors if not getattr(response, "error_code", 0) else ():
        for name in type(error)._fields:
            if isinstance(getattr(error, name), list):
                setattr(response, name, getattr(response, name) + getattr(error, name))


def _then(result: Any, change: Callable[[Any], None]) -> Any:
    """Apply `change` to the response of a handler, as soon as it is available. Do not change an error of the whole
    request."""
    if isinstance(result, Later):
        later = Later(on_disconnect=lambda: result.on_disconnect())
        result.when_done(lambda found: later.respond(_then(found, change)))
        return later
    if result is not None and result is not CLOSE and not isinstance(result, ApiError):
        change(result)
    return result
