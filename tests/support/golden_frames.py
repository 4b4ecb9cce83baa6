# SPDX-License-Identifier: Apache-2.0
"""The captured request and response frames, and how Kafka's own classes read them."""

from __future__ import annotations

import gzip
import json
from functools import cache
from typing import Any, NamedTuple

from golden_data import CLUSTERS, root

from kcodec.protocol import messages
from kcodec.protocol.schema import Message

# Fields that Kafka 4.3.1 printed under another name: request -> its name there, and that of Kafka 4.4.
RENAMED = {"TxnOffsetCommitRequest": ("generationId", "generationIdOrMemberEpoch")}


class Frame(NamedTuple):
    """A request or a response without its header, and the JSON that Kafka printed of it."""

    name: str
    kind: type[Message]
    version: int
    body: bytes
    reported: dict[str, Any]

    def __str__(self) -> str:
        return self.name


def response_header_size(version: int) -> int:
    """Return the size of the header: the correlation id, and in version 1 an empty set of tagged fields."""
    return 4 + version


@cache
def frames() -> list[Frame]:
    """All of them, in order of cluster, client and number."""
    found = []
    requests = messages.all_requests()
    for cluster in CLUSTERS:
        folder = root() / "wire" / cluster
        manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        reported = {}
        for path in sorted(folder.glob("*.decoded.jsonl.gz")):
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                reported.update({line["name"]: line for line in map(json.loads, lines)})
        for entry in manifest:
            exchange = reported.get(entry["request"].removesuffix(".req"))
            if exchange is None:
                continue
            request = requests[entry["apiKey"]]
            former, name = RENAMED.get(request.__name__, ("", ""))
            if former in exchange["request"]:
                exchange["request"][name] = exchange["request"].pop(former)
            frame = (folder / entry["request"]).read_bytes()
            name = f"{cluster}/{entry['request']}"
            found.append(
                Frame(name, request, entry["version"], frame[entry["requestHeaderSize"] :], exchange["request"])
            )
            if entry["response"] is not None:
                frame = (folder / entry["response"]).read_bytes()
                size = response_header_size(entry["responseHeaderVersion"])
                name = f"{cluster}/{entry['response']}"
                found.append(Frame(name, request.response, entry["version"], frame[size:], exchange["response"]))
    return found
