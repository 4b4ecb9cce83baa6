# SPDX-License-Identifier: Apache-2.0
"""Print users that were sent as JSON with a schema, by the deserializer of confluent-kafka."""

import sys

from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kcodec.client import Consumer

SCHEMA = """{"title": "User", "type": "object", "required": ["name"], "properties":
{"name": {"type": "string"}, "favorite_number": {"type": "integer"}}}"""


def main(servers: str, group_id: str, topic: str) -> None:
    """Print users until Ctrl-C."""
    deserializer, context = JSONDeserializer(SCHEMA), SerializationContext(topic, MessageField.VALUE)
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
    main(*sys.argv[1:])
