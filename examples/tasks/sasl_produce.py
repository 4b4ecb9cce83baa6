# SPDX-License-Identifier: Apache-2.0
"""Send the lines of the standard input, each "key|value" or "value", to brokers that require SASL."""

import sys

from kcodec.client import ClientOptions, Producer, RecordMetadata


def report(metadata: RecordMetadata | None, error: BaseException | None) -> None:
    """Print where a record is stored, or why it failed."""
    print(f"failed: {error}" if metadata is None else f"{metadata.topic}-{metadata.partition}: {metadata.offset}")


def main(topic: str, options: ClientOptions) -> None:
    """Send the lines."""
    with Producer(**options) as producer:
        for line in sys.stdin:
            key, delimiter, value = line.rstrip().rpartition("|")
            producer.send(topic, value.encode(), key=key.encode() if delimiter else None, on_delivery=report)


if __name__ == "__main__":
    servers, topic, user, password = sys.argv[1:]
    main(
        topic,
        {
            "bootstrap_servers": servers,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": user,
            "sasl_plain_password": password,
        },
    )
