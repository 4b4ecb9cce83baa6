# SPDX-License-Identifier: Apache-2.0
"""Client metrics that a client pushes to a broker (KIP-714). kcodec's own clients do not send these messages."""

from __future__ import annotations

from uuid import UUID

from kcodec.protocol.schema import Request, Response, array, boolean, data, int8, int16, int32, string, uuid


class GetTelemetrySubscriptionsRequest(Request, key=71, versions="0", flexible="0+"):
    """Request the metrics that the cluster subscribes to. client_instance_id: zero in the first request."""

    client_instance_id: UUID = uuid("0+")


class GetTelemetrySubscriptionsResponse(Response, key=71, versions="0", flexible="0+"):
    """The subscribed metrics.

    client_instance_id: The id that the broker has assigned; zero if the request has one.
    requested_metrics: Prefixes of names of metrics. An empty list is no metric, one empty string is all of them.
    """

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    client_instance_id: UUID = uuid("0+")
    subscription_id: int = int32("0+")
    accepted_compression_types: list[int] = array(int8, "0+")
    push_interval_ms: int = int32("0+")
    telemetry_max_bytes: int = int32("0+")
    delta_temporality: bool = boolean("0+")
    requested_metrics: list[str] = array(string, "0+")


class PushTelemetryRequest(Request, key=72, versions="0", flexible="0+"):
    """Metrics of a client. metrics: OpenTelemetry MetricsData v1 in Protobuf, compressed with compression_type."""

    client_instance_id: UUID = uuid("0+")
    subscription_id: int = int32("0+")
    terminating: bool = boolean("0+")
    compression_type: int = int8("0+")
    metrics: bytes = data("0+")


class PushTelemetryResponse(Response, key=72, versions="0", flexible="0+"):
    """Whether the broker has accepted the metrics."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
