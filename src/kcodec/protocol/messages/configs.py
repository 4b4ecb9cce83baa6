# SPDX-License-Identifier: Apache-2.0
"""Configurations of topics, brokers, groups and clients. resource_type is a number of Kafka's ConfigResource.Type."""

from __future__ import annotations

from kcodec.protocol.schema import Request, Response, Struct, array, boolean, int8, int16, int32, string


class DescribeConfigsResource(Struct):
    """A resource to describe. configuration_keys None: all configurations."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configuration_keys: list[str] | None = array(string, "0+", nullable="0+")


class DescribeConfigsRequest(Request, key=32, versions="0-4", flexible="4+"):
    """Request the configurations of resources."""

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource, "0+")
    include_synonyms: bool = boolean("1+")
    include_documentation: bool = boolean("3+")


class DescribeConfigsSynonym(Struct):
    """A possible origin of a value, in order of precedence."""

    name: str = string("1+")
    value: str | None = string("1+", nullable="1+")
    source: int = int8("1+")


class DescribeConfigsResourceResult(Struct):
    """One configuration. The value of a sensitive one is not included."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")
    read_only: bool = boolean("0+")
    is_default: bool = boolean("0")
    config_source: int = int8("1+", default=-1, ignorable=True)
    is_sensitive: bool = boolean("0+")
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, "1+", ignorable=True)
    config_type: int = int8("3+", ignorable=True)
    documentation: str | None = string("3+", nullable="3+", ignorable=True)


class DescribeConfigsResult(Struct):
    """The configurations of one resource."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult, "0+")


class DescribeConfigsResponse(Response, key=32, versions="0-4", flexible="4+"):
    """The configurations."""

    throttle_time_ms: int = int32("0+")
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult, "0+")


class IncrementalAlterableConfig(Struct):
    """A change. config_operation 0: set, 1: delete, 2: append to a list, 3: subtract from it."""

    name: str = string("0+")
    config_operation: int = int8("0+")
    value: str | None = string("0+", nullable="0+", secret=True)


class IncrementalAlterConfigsResource(Struct):
    """The changes for one resource."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[IncrementalAlterableConfig] = array(IncrementalAlterableConfig, "0+")


class IncrementalAlterConfigsRequest(Request, key=44, versions="0-1", flexible="1+"):
    """Change these configurations and keep all others."""

    resources: list[IncrementalAlterConfigsResource] = array(IncrementalAlterConfigsResource, "0+")
    validate_only: bool = boolean("0+")


class AlterConfigsResourceResponse(Struct):
    """Whether one resource was changed."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")


class IncrementalAlterConfigsResponse(Response, key=44, versions="0-1", flexible="1+"):
    """The results for all resources."""

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse, "0+")


class AlterableConfig(Struct):
    """A value; None: the default."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+", secret=True)


class AlterConfigsResource(Struct):
    """All configurations of one resource. A configuration that is not named returns to its default."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[AlterableConfig] = array(AlterableConfig, "0+")


class AlterConfigsRequest(Request, key=33, versions="0-2", flexible="2+"):
    """Replace all configurations of resources. Prefer IncrementalAlterConfigs (KIP-339)."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource, "0+")
    validate_only: bool = boolean("0+")


class AlterConfigsResponse(Response, key=33, versions="0-2", flexible="2+"):
    """The results for all resources."""

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse, "0+")
