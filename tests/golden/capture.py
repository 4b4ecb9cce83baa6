# SPDX-License-Identifier: Apache-2.0
"""Write kafka-4.4.0.json: bytes that a broker of Kafka 4.4.0 and its clients wrote, and how Kafka's classes read them.

    PYTHONPATH=tests/support:tools python tests/golden/capture.py

A proxy keeps the frames of Java's transactional producer and consumer, and the responses to kcodec's Admin, the first
of each kind. Each is printed by the JSON converters of 4.4.0. The log is that of the partition, with `.txnindex` and
`.snapshot`; read by the classes of 4.4.0 and by Java's consumer under both isolation levels.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

from java_clients import JavaProducer, consume
from java_judge import JavaJudge
from message_edits import ask

from kcodec.client import Admin
from kcodec.protocol import messages
from kcodec.testing.kafka import KAFKA_VERSION, ApacheKafka
from kcodec.testing.proxy import KafkaProxy

HERE = Path(__file__).resolve().parent
TOPIC, GROUP, TRANSACTIONAL_ID = "orders", "readers", "copier"
#: Sent by kcodec: only their responses are those of Kafka.
ADMIN_APIS = {"DeleteGroups", "DescribeProducers", "DescribeTransactions", "ListTransactions", "DescribeCluster"}


def text(data: bytes | memoryview | None) -> str | None:
    """Bytes as base64."""
    return None if data is None else base64.b64encode(data).decode("ascii")


def write_transactions(servers: str) -> None:
    """Two transactions, the first of them aborted, each with two batches; then records without one, in two codecs."""
    with JavaProducer(servers, **{"transactional.id": TRANSACTIONAL_ID, "client.id": "writer"}) as producer:
        producer.call("init")
        for end in ("abort", "commit"):
            producer.call("begin")
            for number in range(2):
                producer.send([(TOPIC, 0, b"key", f"{end} {number}".encode() * 40)])
            producer.send_offsets(GROUP, {(TOPIC, 0): 3})
            producer.call(end)
    for codec in ("zstd", "gzip"):
        with JavaProducer(servers, **{"compression.type": codec, "client.id": codec}) as producer:
            producer.send([(TOPIC, 0, None, codec.encode() * 30), (TOPIC, 0, b"key", None)])


def administer(servers: str) -> None:
    """Call what only Admin sends here."""
    with Admin(bootstrap_servers=servers) as admin:
        admin.describe_cluster()
        admin.list_transactions()
        admin.describe_transactions([TRANSACTIONAL_ID])
        admin.delete_groups([GROUP])


def frames(proxy: KafkaProxy, judge: JavaJudge) -> list[dict[str, Any]]:
    """The first request and response of each API and version, as Kafka prints them."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    requests = messages.all_requests()
    for exchange in proxy.exchanges():
        kind = requests.get(exchange.api_key)
        if kind is None or exchange.request is None or exchange.response is None:
            continue
        if not kind.versions.hold(exchange.version) or (exchange.api, exchange.version) in found:
            continue
        flexible = kind.is_flexible(exchange.version)
        request = bytes(exchange.request)[exchange.body_at + flexible :]
        response = bytes(exchange.response)[4 + (flexible and exchange.api != "ApiVersions") :]
        rows = []
        for each, data in ((kind, request), (kind.response, response)):
            if each is kind and exchange.api in ADMIN_APIS:
                continue
            judged = ask(judge, each, data, exchange.version)
            if judged.refused or judged.left or judged.data != data:
                if exchange.api == "ApiVersions" and each is kind.response:
                    continue  # version 0, to a request in a version that is too new
                sys.exit(f"{each.__name__} v{exchange.version}: {judged}")
            rows.append({"kind": each.__name__, "version": exchange.version, "data": text(data), "json": judged.json})
        found[exchange.api, exchange.version] = rows
    return [row for rows in found.values() for row in rows]


def log_of(kafka: ApacheKafka, judge: JavaJudge) -> dict[str, Any]:
    """The partition's files and what Kafka reads in them."""
    consumed = {
        level: [
            [record.offset, record.timestamp, text(record.key), text(record.value)]
            for record in consume(kafka.bootstrap_servers, TOPIC, level)
        ]
        for level in ("read_uncommitted", "read_committed")
    }
    kafka.stop()
    folder = kafka.log_directory / f"{TOPIC}-0"
    files = {path.name: text(path.read_bytes()) for path in sorted(folder.iterdir()) if path.suffix != ".timeindex"}
    batches = judge._ask(b"R" + (folder / f"{0:020}.log").read_bytes())["batches"]
    return {"files": files, "batches": batches, "consumed": consumed}


def main() -> None:
    """Start a broker, write, and read it all."""
    with ApacheKafka(log_segment_bytes=1 << 20) as kafka, JavaJudge() as judge:
        kafka.create_topic(TOPIC, partitions=1)
        with KafkaProxy(kafka.bootstrap_servers, keep_bytes=True) as proxy:
            write_transactions(proxy.bootstrap_servers)
            consume(proxy.bootstrap_servers, TOPIC, "read_committed")
            administer(proxy.bootstrap_servers)
            wire = frames(proxy, judge)
        log = log_of(kafka, judge)
    path = HERE / f"kafka-{KAFKA_VERSION}.json"
    path.write_text(
        json.dumps({"kafka": KAFKA_VERSION, "wire": wire, "log": log}, indent=0, sort_keys=True) + "\n", "utf-8"
    )
    print(f"{path.name}: {len(wire)} frames, {len(log['batches'])} batches, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
