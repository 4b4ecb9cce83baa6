# SPDX-License-Identifier: Apache-2.0
"""Metrics and traces for monitoring systems. Each module needs the package of its extra, and is imported by itself.

kcodec.observe.prometheus:    `PrometheusMetrics` (extra `prometheus`).
kcodec.observe.opentelemetry: `OpenTelemetryMetrics` and `Tracing` (extra `otel`).
"""
