# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/tasks/ with Avro and JSON, with the Schema Registry that confluent-kafka has for tests.

    python tests/prove/prove_schema_registry.py

The packages of requirements/schema-registry.txt are installed into a folder. A real broker stores what the programs
send; a `mock://` registry holds the schemas, and is shared by both programs of a format, as it is in one process only.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from example_tasks import Enough, Printed, load
from prove_spark_versions import install

from kcodec import TopicPartition
from kcodec.client import Consumer
from kcodec.testing.kafka import ApacheKafka

USERS = "ann 1\nbob 2\ncid 3\n"
EXPECTED = [{"name": name, "favorite_number": number} for name, number in (("ann", 1), ("bob", 2), ("cid", 3))]


def check(kafka: ApacheKafka, form: str) -> None:
    """Send users in a format and read them. Raise AssertionError if they are others."""
    from confluent_kafka.schema_registry import SchemaRegistryClient

    registry: Any = SchemaRegistryClient.new_client({"url": "mock://users"})
    topic = kafka.create_topic(partitions=1)
    sys.stdin = io.StringIO(USERS)
    sent = Printed()
    load(f"{form}_produce", sent).main(kafka.bootstrap_servers, topic, registry)
    assert len(sent.lines) == 3 and all("RecordMetadata(" in line for line in sent.lines), sent.lines
    arguments = [kafka.bootstrap_servers, topic, topic] + ([registry] if form == "avro" else [])
    read = Printed(most=3)
    with suppress(Enough):
        load(f"{form}_consume", read).main(*arguments)
    expected = [f"{user['name'].encode()!r} {user}" for user in EXPECTED]  # type: ignore[attr-defined]
    assert read.lines == expected, read.lines
    with Consumer(bootstrap_servers=kafka.bootstrap_servers, framing="confluent") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        assert {record.value_schema_id for record in consumer.poll(20.0)} == {1}
    print(f"{form}: 3 users sent and read, schema id 1")


def main() -> int:
    """Run the programs in a process that finds the packages."""
    packages = install("schema-registry.txt")
    if str(packages) not in sys.path:
        paths = os.pathsep.join([*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(packages)])
        return subprocess.run(
            [sys.executable, __file__], env={**os.environ, "PYTHONPATH": paths}, check=False
        ).returncode
    with ApacheKafka() as kafka:
        for form in ("avro", "json"):
            check(kafka, form)
    print("Avro and JSON with a Schema Registry: passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
