# SPDX-License-Identifier: Apache-2.0
"""A request on its way to its handler, and the steps that many APIs have.

A step refuses a request or some of its elements, or removes elements of the response. It passes the rest to the next
step or the handler, even if no element is left, because an error of the whole request takes precedence.
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
#: The messages of these errors in Kafka. Many responses leave them out.
TEXTS: Mapping[ResourceType, str | None] = {
    ResourceType.TOPIC: "Topic authorization failed.",
    ResourceType.GROUP: "Group authorization failed.",
    ResourceType.CLUSTER: "Cluster authorization failed.",
    ResourceType.TRANSACTIONAL_ID: "Transactional Id authorization failed.",
}
#: Value of a field for authorized operations if they were not requested.
_NOT_REQUESTED = -(1 << 31)


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A request, and what its client may do. `handle` is the next step or the handler."""

    context: RequestContext
    request: Any
    handle: Callable[[Any], Any]
    authorizer: Authorizer
    host: AdminHost

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return whether the client may do an operation on a resource."""
        return self.authorizer.allows(self.context.connection, operation, kind, name)

    def may_cluster(self, operation: Operation | None) -> bool:
        """Return whether the client may do an operation on the cluster; False without an operation."""
        return operation is not None and self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def describes(self, topic: str | None) -> bool:
        """Return whether the client may describe a topic."""
        return self.may(Operation.DESCRIBE, ResourceType.TOPIC, topic or "")

    def pass_on(self, change: Callable[[Any], None] | None = None, **fields: Any) -> Any:
        """Handle the request, with other values of some fields. Apply `change` to the response, now or later."""
        result = self.handle(changed(self.request, **fields) if fields else self.request)
        return result if change is None else _then(result, change)

    def refuse(self, kind: ResourceType) -> Any:
        """Return the response to a request that is refused as a whole."""
        return error_response(self.request, self.context.api_version, _CODES[kind], TEXTS[kind])

    def name_of(self, one: Any) -> str | None:
        """Return the name of the resource that an element of a request stands for; None for an unknown topic id."""
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
        """Handle the request without the elements of a list that are refused, and add their errors to the response.

        refusal_of: Returns the type of the resource that the client may not use, or None.
        texts: Messages of the errors. If a message is missing, the field for it keeps its default.
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
#: Returns whether the handler refuses an element of a request. The error of the handler then takes precedence.
IsHandled = Callable[[CheckedRequest, Any], bool]


def whole(
    kind: ResourceType,
    *operations: Operation,
    field: str | None = None,
    refusal: Callable[[CheckedRequest, ErrorCode], Any] | None = None,
) -> Step:
    """Refuse a request unless the client may do one of the operations on the resource that a field names.

    field:   None for the cluster.
    refusal: Returns the response with an error code, if it is not the usual one.
    """

    def step(call: CheckedRequest) -> Any:
        name = CLUSTER_NAME if field is None else getattr(call.request, field)
        if any(call.may(one, kind, name) for one in operations):
            return call.pass_on()
        return call.refuse(kind) if refusal is None else refusal(call, _CODES[kind])

    return step


def code_only(call: CheckedRequest, code: ErrorCode) -> Any:
    """Return a response that has only the error code of the request as a whole."""
    return type(call.request).response(error_code=code)


def without_text(call: CheckedRequest, code: ErrorCode) -> Any:
    """Return the usual response, without messages."""
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
    """Refuse the elements of a list if the client may not do an operation on their resources.

    or_cluster: Operation on the cluster that permits all elements.
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
    """Remove the elements of a list of the response if the client may not do an operation on their resources."""

    def step(call: CheckedRequest) -> Any:
        def change(response: Any) -> None:
            kept = [one for one in getattr(response, field) if call.may(operation, kind, getattr(one, name))]
            setattr(response, field, kept)

        return call.pass_on(None if call.may_cluster(or_cluster) else change)

    return step


def restrict(kind: ResourceType, field: str, name: str) -> Step:
    """Remove the operations that the client may not do from the elements of a list of the response."""

    def step(call: CheckedRequest) -> Any:
        def change(response: Any) -> None:
            for one in getattr(response, field):
                restrict_one(call, one, "authorized_operations", kind, getattr(one, name))

        return call.pass_on(change)

    return step


def restrict_one(call: CheckedRequest, one: Any, field: str, kind: ResourceType, name: str) -> None:
    """Remove the operations that the client may not do from a field with all operations, if they were requested."""
    supported = getattr(one, field)
    if supported != _NOT_REQUESTED:
        setattr(one, field, call.authorizer.operations(call.context.connection, kind, name, supported))


def changed(struct: Any, **fields: Any) -> Any:
    """Return a copy of a message with other values of some fields."""
    found = copy.copy(struct)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def _add(response: Any, errors: list[Any]) -> None:
    """Add the elements of the lists of other responses, unless the whole request has failed."""
    for error in errors if not getattr(response, "error_code", 0) else ():
        for name in type(error)._fields:
            if isinstance(getattr(error, name), list):
                setattr(response, name, getattr(response, name) + getattr(error, name))


def _then(result: Any, change: Callable[[Any], None]) -> Any:
    """Apply `change` to the response of a handler, now or later. Leave an error of the whole request as it is."""
    if isinstance(result, Later):
        later = Later(on_disconnect=lambda: result.on_disconnect())
        result.when_done(lambda found: later.respond(_then(found, change)))
        return later
    if result is not None and result is not CLOSE and not isinstance(result, ApiError):
        change(result)
    return result
