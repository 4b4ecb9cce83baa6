# SPDX-License-Identifier: Apache-2.0
"""Access control lists. Numbers are those of Kafka's ResourceType, PatternType, AclOperation and AclPermissionType."""

from __future__ import annotations

from kcodec.protocol.schema import Request, Response, Struct, array, int8, int16, int32, string


class DescribeAclsRequest(Request, key=29, versions="0-3", flexible="2+"):
    """List the ACLs that match. None and the number 1 (ANY) match all."""

    resource_type_filter: int = int8("0+")
    resource_name_filter: str | None = string("0+", nullable="0+")
    pattern_type_filter: int = int8("1+", default=3)
    principal_filter: str | None = string("0+", nullable="0+")
    host_filter: str | None = string("0+", nullable="0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class AclDescription(Struct):
    """One ACL: a principal, a host, an operation and a permission type."""

    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class DescribeAclsResource(Struct):
    """The ACLs of one resource."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    pattern_type: int = int8("1+", default=3)
    acls: list[AclDescription] = array(AclDescription, "0+")


class DescribeAclsResponse(Response, key=29, versions="0-3", flexible="2+"):
    """The ACLs that match."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resources: list[DescribeAclsResource] = array(DescribeAclsResource, "0+")


class AclCreation(Struct):
    """An ACL to create."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    resource_pattern_type: int = int8("1+", default=3)
    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class CreateAclsRequest(Request, key=30, versions="0-3", flexible="2+"):
    """Create ACLs."""

    creations: list[AclCreation] = array(AclCreation, "0+")


class AclCreationResult(Struct):
    """Whether one ACL was created."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class CreateAclsResponse(Response, key=30, versions="0-3", flexible="2+"):
    """Whether the ACLs were created, in the order of the request."""

    throttle_time_ms: int = int32("0+")
    results: list[AclCreationResult] = array(AclCreationResult, "0+")


class DeleteAclsFilter(Struct):
    """Conditions that an ACL must match to be deleted. None and the number 1 (ANY) match all."""

    resource_type_filter: int = int8("0+")
    resource_name_filter: str | None = string("0+", nullable="0+")
    pattern_type_filter: int = int8("1+", default=3)
    principal_filter: str | None = string("0+", nullable="0+")
    host_filter: str | None = string("0+", nullable="0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class DeleteAclsRequest(Request, key=31, versions="0-3", flexible="2+"):
    """Delete all ACLs that match."""

    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter, "0+")


class DeleteAclsMatchingAcl(Struct):
    """An ACL that matched, and whether it was deleted."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    pattern_type: int = int8("1+", default=3)
    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class DeleteAclsFilterResult(Struct):
    """The ACLs that one filter matched."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl, "0+")


class DeleteAclsResponse(Response, key=31, versions="0-3", flexible="2+"):
    """The deleted ACLs, filter by filter."""

    throttle_time_ms: int = int32("0+")
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult, "0+")
