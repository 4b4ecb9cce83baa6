# SPDX-License-Identifier: Apache-2.0
"""Records of Kafka's internal topics for ``kcodec cat``: what they say, as JSON lines."""

from __future__ import annotations

from itertools import islice
from typing import Any

from kcodec import DecodedRecords, Record
from kcodec.cli.render import json_line
from kcodec.log import internal_record
from kcodec.text import rule_of_json

TOPICS = ("__consumer_offsets", "__transaction_state", "__cluster_metadata")
COLUMNS = ("offset", "timestamp", "key", "value", "headers")


def lines(decoded: DecodedRecords, most: int, topic: str, partition: int | None) -> bytes:
    """A JSON object a record and line: where it is, and type, key, version and value of what it says."""
    return b"".join(json_line(_fields(record, topic, partition)) for record in islice(decoded.records(), most))


def _fields(record: Record, topic: str, partition: int | None) -> dict[str, Any]:
    place = {"topic": topic, "partition": partition, "offset": record.offset, "timestamp": record.timestamp}
    told = internal_record(topic, record)
    if told is None:
        return {**place, "type": None, "key": rule_of_json(record.key), "value": rule_of_json(record.value)}
    return {**place, **told}
