# SPDX-License-Identifier: Apache-2.0
"""The resources that have a configuration (KIP-1142; version 0, of KIP-714, lists those of client metrics only)."""

from __future__ import annotations

from kcodec.protocol.schema import Request, Response, Struct, array, int8, int16, int32, string


class ListConfigResourcesRequest(Request, key=74, versions="0-1", flexible="0+"):
    """List the resources of these types, numbers of Kafka's ConfigResource.Type; none: of all types."""

    resource_types: list[int] = array(int8, "1+")


class ListedConfigResource(Struct):
    """A resource."""

    resource_name: str = string("0+")
    resource_type: int = int8("1+", default=16, ignorable=True)


class ListConfigResourcesResponse(Response, key=74, versions="0-1", flexible="0+"):
    """The resources."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    config_resources: list[ListedConfigResource] = array(ListedConfigResource, "0+")
