# SPDX-License-Identifier: Apache-2.0
"""Print users that were sent as Avro with a schema of a Schema Registry, by the deserializer of confluent-kafka."""

import sys

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kcodec.client import Consumer

SCHEMA = """{"name": "User", "type": "record", "fields":
[{"name": "name", "type": "string"}, {"name": "favorite_number", "type": "long"}]}"""


def main(servers: str, group_id: str, topic: str, registry: SchemaRegistryClient) -> None:
    """Print users until Ctrl-C."""
    deserializer = AvroDeserializer(registry, SCHEMA)
    context = SerializationContext(topic, MessageField.VALUE)
    with Consumer(
        bootstrap_servers=servers,
        group_id=group_id,
        auto_offset_reset="earliest",
        value_deserializer=lambda data: deserializer(data, context),
    ) as consumer:
        consumer.subscribe([topic])
        for record in consumer:
            print(record.key, record.value)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], SchemaRegistryClient.new_client({"url": sys.argv[4]}))
