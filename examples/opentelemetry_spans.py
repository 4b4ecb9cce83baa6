# SPDX-License-Identifier: Apache-2.0
"""Follow a record from the producer to the consumer in one trace:
python examples/opentelemetry_spans.py localhost:9092 orders

The spans and the metrics go to stdout; a real program gives the providers an exporter of its monitoring system.
"""

import sys

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from kcodec.client import Consumer, Producer
from kcodec.observe.opentelemetry import OpenTelemetryMetrics, Tracing


def main(servers: str, topic: str) -> None:
    traces = TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
    meters = MeterProvider([PeriodicExportingMetricReader(ConsoleMetricExporter())])
    tracing, metrics = Tracing(traces), OpenTelemetryMetrics(meters)
    with Producer(bootstrap_servers=servers, metrics=metrics) as producer:
        tracing.send(producer, topic, b"an order")
    with Consumer(
        bootstrap_servers=servers, group_id=f"traces-of-{topic}", auto_offset_reset="earliest", metrics=metrics
    ) as consumer:
        consumer.subscribe(topic)
        while not (records := consumer.poll(1.0)):
            pass
        for record in records:
            with tracing.process(record):
                print("processed", record.offset)
    meters.shutdown()
    traces.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
