# SPDX-License-Identifier: Apache-2.0
"""DescribeAcls, CreateAcls and DeleteAcls (AclApis, AclControlManager).

Without an authorizer, they get SECURITY_DISABLED, as from Apache Kafka.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any
from uuid import UUID

from kcodec.broker.admin.host import AdminHost
from kcodec.broker.api import CLOSE, Api, RequestContext
from kcodec.broker.authorizer.acls import (
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    is_chosen,
)
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

NO_AUTHORIZER = "No Authorizer is configured."
NONE_ON_THE_BROKER = "No Authorizer is configured on the broker"
#: The fields with numbers of Kafka's enums, in new ACLs and in filters.
_NUMBERS = (
    *("resource_type", "resource_pattern_type", "resource_type_filter", "pattern_type_filter"),
    *("operation", "permission_type"),
)


class AclApis:
    """The handlers of these APIs."""

    def __init__(self, host: AdminHost) -> None:
        self._host = host

    def apis(self) -> list[Api]:
        """Return the APIs with their handlers."""
        is_on = self._host.settings.authorizer
        return [
            Api(messages.DescribeAclsRequest, (1, 3), self.describe if is_on else _no_describe),
            Api(messages.CreateAclsRequest, (1, 3), self.create if is_on else _no_create),
            Api(messages.DeleteAclsRequest, (1, 3), self.delete if is_on else _no_delete),
        ]

    def describe(self, context: RequestContext, request: messages.DescribeAclsRequest) -> Any:
        """Respond to DescribeAcls."""
        if _has_number(request, 0):
            return CLOSE
        resources: dict[tuple[Any, ...], messages.DescribeAclsResource] = {}
        for acl in self._host.topics.acls.by_id.values():
            if is_chosen(acl, request):
                key = (acl.resource_type, acl.resource_name, acl.pattern_type)
                resource = _described(messages.DescribeAclsResource, acl)
                resources.setdefault(key, resource).acls.append(_described(messages.AclDescription, acl))
        return messages.DescribeAclsResponse(resources=list(resources.values()))

    def create(self, context: RequestContext, request: messages.CreateAclsRequest) -> Any:
        """Respond to CreateAcls. An ACL that exists already is not an error."""
        if any(_has_number(one, 0) for one in request.creations):
            return CLOSE
        if any(_has_number(one, 1) or one.resource_pattern_type == PatternType.MATCH for one in request.creations):
            # as in Kafka: these numbers are for filters only
            failed = messages.AclCreationResult(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message=None)
            return messages.CreateAclsResponse(results=[failed for _ in request.creations])
        topics = self._host.topics
        results, new = [], dict[Acl, None]()
        for one in request.creations:
            names = ["resource_pattern_type" if name == "pattern_type" else name for name in Acl._fields]
            acl = Acl(*(getattr(one, name) for name in names))
            fault = _fault(acl)
            if fault is None and acl not in topics.acls:
                new[acl] = None
            code = ErrorCode.NONE if fault is None else ErrorCode.INVALID_REQUEST
            results.append(messages.AclCreationResult(error_code=code, error_message=fault or ""))
        topics.change_acls(messages.AccessControlEntryRecord(id=topics.new_uuid(), **acl._asdict()) for acl in new)
        return messages.CreateAclsResponse(results=results)

    def delete(self, context: RequestContext, request: messages.DeleteAclsRequest) -> Any:
        """Respond to DeleteAcls with the ACLs that each filter has matched."""
        if any(_has_number(one, 0) for one in request.filters):
            return CLOSE
        results, gone = [], dict[UUID, None]()
        for one in request.filters:
            result = messages.DeleteAclsFilterResult(error_message=_filter_fault(one))
            results.append(result)
            if result.error_message is not None:
                result.error_code = ErrorCode.INVALID_REQUEST
                continue
            for acl_id, acl in self._host.topics.acls.by_id.items():
                if is_chosen(acl, one):
                    gone[acl_id] = None
                    result.matching_acls.append(_described(messages.DeleteAclsMatchingAcl, acl, error_message=None))
        self._host.topics.change_acls(messages.RemoveAccessControlEntryRecord(id=acl_id) for acl_id in gone)
        return messages.DeleteAclsResponse(filter_results=results)


def _described(kind: Any, acl: Acl, **more: Any) -> Any:
    """Return a struct of a response, with its fields from an ACL."""
    return kind(**more, **{name: value for name, value in acl._asdict().items() if name in kind._fields})


def _fault(acl: Acl) -> str | None:
    """Return why an ACL cannot be created, in Kafka's words."""
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not acl.resource_name:
        return "Invalid empty resource name"
    for name, kind, number in (
        ("resourceType", ResourceType, acl.resource_type),
        ("patternType", PatternType, acl.pattern_type),
        ("operation", Operation, acl.operation),
        ("permissionType", Permission, acl.permission_type),
    ):
        if not 0 < number < len(kind):
            return f"Invalid {name} UNKNOWN"
    if ":" not in acl.principal:
        reason = "no colon is present separating the principal type from the principal name"
        return f"Could not parse principal from `{acl.principal}` ({reason})"
    if not acl.host:
        return "Host pattern cannot be null or empty"
    fault = _network_fault(acl.host) if "/" in acl.host else ""
    return f"Invalid CIDR notation '{acl.host}': {fault}" if fault else None


def _network_fault(network: str) -> str:
    """Return why a network in CIDR notation is invalid, in Kafka's words; an empty string if it is valid."""
    address, _, size = network.partition("/")
    is_version_4 = ":" not in network
    try:
        ip_address(address)
    except ValueError:
        return f"Could not parse [{network if is_version_4 else address}]"
    if is_version_4:
        if not size.isdecimal() or len(size) > 2:
            return f"Could not parse [{network}]"
        return "" if int(size) <= 32 else f"Value [{size}] not in range [0,32]"
    if not size.removeprefix("-").isdecimal():
        return f"Could not parse [{network}] - invalid prefix length"
    return "" if 0 <= int(size) <= 128 else f"Could not parse [{network}] - prefix length must be between 0 and 128"


def _filter_fault(chosen: messages.DeleteAclsFilter) -> str | None:
    """Return why a filter is invalid, in Kafka's words."""
    if not (0 < chosen.resource_type_filter < len(ResourceType) and 0 < chosen.pattern_type_filter < len(PatternType)):
        return "Unknown patternFilter."
    if not (0 < chosen.operation < len(Operation) and 0 < chosen.permission_type < len(Permission)):
        return "Unknown entryFilter."
    return None


def _has_number(one: Any, number: int) -> bool:
    """Return whether a number of a new ACL or a filter is this one. Apache Kafka cannot parse 0 (UNKNOWN), and closes
    the connection."""
    return any(getattr(one, name, None) == number for name in _NUMBERS)


def _no_describe(context: RequestContext, request: messages.DescribeAclsRequest) -> messages.DescribeAclsResponse:
    return messages.DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NONE_ON_THE_BROKER)


def _no_create(context: RequestContext, request: messages.CreateAclsRequest) -> messages.CreateAclsResponse:
    code = ErrorCode.SECURITY_DISABLED
    results = [messages.AclCreationResult(error_code=code, error_message=NO_AUTHORIZER) for _ in request.creations]
    return messages.CreateAclsResponse(results=results)


def _no_delete(context: RequestContext, request: messages.DeleteAclsRequest) -> messages.DeleteAclsResponse:
    code = ErrorCode.SECURITY_DISABLED
    results = [messages.DeleteAclsFilterResult(error_code=code, error_message=NO_AUTHORIZER) for _ in request.filters]
    return messages.DeleteAclsResponse(filter_results=results)
