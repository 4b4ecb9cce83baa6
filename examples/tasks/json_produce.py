# SPDX-License-Identifier: Apache-2.0
"""Send users as JSON with a schema of a Schema Registry, by the serializer of confluent-kafka."""

import sys
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kcodec.client import Producer

SCHEMA = """{"title": "User", "type": "object", "required": ["name"], "properties":
{"name": {"type": "string"}, "favorite_number": {"type": "integer"}}}"""


def main(servers: str, topic: str, registry: SchemaRegistryClient) -> None:
    """Send the users on the standard input, each line "name number"."""
    serializer = JSONSerializer(SCHEMA, registry)
    context = SerializationContext(topic, MessageField.VALUE)
    with Producer(bootstrap_servers=servers, value_serializer=lambda user: serializer(user, context)) as producer:
        for line in sys.stdin:
            name, number = line.split()
            user: dict[str, Any] = {"name": name, "favorite_number": int(number)}
            producer.send(topic, user, key=name.encode(), on_delivery=lambda metadata, error: print(error or metadata))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], SchemaRegistryClient.new_client({"url": sys.argv[3]}))
