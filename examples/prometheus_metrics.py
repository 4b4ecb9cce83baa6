# SPDX-License-Identifier: Apache-2.0
"""Read a topic and show the client's metrics to Prometheus:
python examples/prometheus_metrics.py localhost:9092 orders 9100

http://localhost:9100/metrics then has kcodec_consumer_lag, kcodec_consumer_records_total, kcodec_request_seconds ...
"""

import sys

from prometheus_client import start_http_server

from kcodec.client import Consumer
from kcodec.observe.prometheus import PrometheusMetrics


def main(servers: str, topic: str, port: str) -> None:
    start_http_server(int(port), addr="127.0.0.1")
    metrics = PrometheusMetrics()
    with Consumer(
        bootstrap_servers=servers, group_id=f"metrics-of-{topic}", auto_offset_reset="earliest", metrics=metrics
    ) as consumer:
        consumer.subscribe(topic)
        while True:
            for record in consumer.poll(1.0):
                print(record.offset, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
