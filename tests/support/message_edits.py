# SPDX-License-Identifier: Apache-2.0
"""Edited bytes of messages, and checks that must pass for all bytes.

    edited(data, chooser) -> bytes                      one to three random changes of the bytes
    difference(kind, data, version) -> str | None       kcodec compared with the slow reference
    kafka_difference(judge, kind, data, version)        kcodec compared with Kafka's own classes
    ask(judge, kind, data, version, written=None)       the result of Kafka's classes

kcodec is intentionally stricter than Kafka's reader: a known tagged field must fill its size, and a count, a length or
a tag must be below 2^31.
"""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import message_definitions
import reference_messages
from java_judge import FETCH, JavaJudge
from reference_messages import differences, varint

from kcodec.errors import DecodeError, EncodeError
from kcodec.protocol.schema import Message, Request, Response

OLDER: Path = FETCH.ROOT / ".cache" / f"kafka-libs-{FETCH.OLDER_KAFKA_VERSION}"
COMMON = "org.apache.kafka.common.message"
# The packages of generated classes, by jar, where they are not in COMMON.
JAR_PACKAGES = {
    "group-coordinator": "org.apache.kafka.coordinator.group.generated",
    "transaction-coordinator": "org.apache.kafka.coordinator.transaction.generated",
    "share-coordinator": "org.apache.kafka.coordinator.share.generated",
    "metadata": "org.apache.kafka.common.metadata",
}
PACKAGES = {
    name: JAR_PACKAGES[jar.name.removeprefix("kafka-").rpartition("-")[0]]
    for jar in message_definitions.NEW_JARS[1:]
    for name in message_definitions.definitions((jar,))
}
NEW = message_definitions.definitions(message_definitions.NEW_JARS)
OLD = message_definitions.definitions(message_definitions.OLD_JARS)
STRICTER = ("tagged field", "the field of tag", "exceeds 2147483647")
NUMBERS = (0, 1, 2, 0x7E, 0x7F, 0x80, 0xFE, 0xFF)


class Judged(NamedTuple):
    """The bytes that Kafka did not read, its JSON and the bytes that it wrote, or its error."""

    left: int
    json: dict[str, Any]
    data: bytes
    refused: str


def knows(release: dict[str, Any], kind: type[Message], version: int) -> bool:
    """Return whether a release of Kafka has a version, according to its definitions."""
    if kind.__name__ not in release:
        return False
    return version in message_definitions.Versions.of(release[kind.__name__]["validVersions"])


def ask(judge: JavaJudge, kind: type[Message], data: bytes, version: int, written: int | None = None) -> Judged:
    """Return what the newest Kafka that has the version reads from bytes. written: the version that it writes, the same
    if None."""
    folder = b"" if knows(NEW, kind, version) else str(OLDER).encode()
    suffix = "Data" if issubclass(kind, Request | Response) else ""
    name = f"{PACKAGES.get(kind.__name__, COMMON)}.{kind.__name__}{suffix}".encode()
    question = struct.pack(">chh", b"W", version, version if written is None else written)
    for text in (folder, name):
        question += struct.pack(">i", len(text)) + text
    answer = judge._ask(question + data)
    refused = f"{answer['refused']}: {answer['text']}" if "refused" in answer else ""
    return Judged(answer.get("left", 0), answer.get("json", {}), base64.b64decode(answer.get("data", "")), refused)


def edited(data: bytes, chooser: Random) -> bytes:
    """One to three changes."""
    for _ in range(chooser.choice((1, 1, 1, 2, 3))):
        data = _one_edit(data, chooser)
    return data


def _one_edit(data: bytes, chooser: Random) -> bytes:
    at = chooser.randrange(len(data) + 1)
    size = chooser.choice((1, 1, 2, 4, 8, 30))
    way = chooser.randrange(8)
    if way == 0:
        return data[:at]
    if way == 1:
        return data[:at] + data[at + size :]
    if way == 2:
        return data[:at] + data[at : at + size] * 2 + data[at + size :]
    if way == 3:
        return data[:at] + chooser.randbytes(size) + data[at:]
    if way == 4:
        return data[:at] + varint(chooser.choice((1, 2, 127, 128, 300, 0x7FFFFFFF, 0xFFFFFFFF))) + data[at + 1 :]
    if way == 5:
        number = chooser.choice((-1, -2, 0, 1, len(data), 0x7FFFFFFF, -(1 << 31)))
        return data[:at] + struct.pack(">i", number) + data[at + 4 :]
    if way == 6 and data:
        # Add a tagged field, or change the number of tagged fields.
        return data[:-1] + bytes([data[-1] ^ 1]) + bytes([chooser.randrange(4), size]) + chooser.randbytes(size)
    place = chooser.randrange(len(data)) if data else 0
    return data[:place] + bytes([chooser.choice((*NUMBERS, chooser.randrange(256)))]) + data[place + 1 :]


def difference(kind: type[Message], data: bytes, version: int) -> str | None:
    """Return the difference between kcodec and the reference. A message that was read must be equal after encoding and
    decoding."""
    try:
        expected = reference_messages.decode(kind, data, version)
    except ValueError as error:
        try:
            found = kind.decode(data, version)
        except DecodeError:
            return None
        return f"{found}, the reference refuses it: {error}"
    try:
        found = kind.decode(data, version)
    except DecodeError as error:
        return f"refused, the reference reads it: {error}"
    # NaN is not equal to itself
    if found != expected and "nan" not in repr(found):
        return f"{found}, the reference {expected}"
    try:
        again = found.encode(version)
    except EncodeError as error:
        # Expected: unknown tags that are not ascending, and U+FFFD, which may take more bytes than the invalid bytes.
        expectable = str(error.field).endswith("unknown_tagged_fields") or "takes" in error.reason
        return None if expectable else str(error)
    if kind.decode(again, version) != found and "nan" not in repr(found):
        return f"{found} is read otherwise when it was written"
    return None


def kafka_difference(judge: JavaJudge, kind: type[Message], data: bytes, version: int) -> str | None:
    """Return the difference between kcodec and Kafka's classes, unless kcodec is intentionally stricter."""
    judged = ask(judge, kind, data, version)
    try:
        found = kind.decode(data, version)
    except DecodeError as error:
        if judged.refused or judged.left or any(text in error.reason for text in STRICTER):
            return None
        return f"refused: {error}; Kafka reads {judged.json}"
    if judged.left:
        return f"{found}, Kafka leaves {judged.left} bytes"
    try:
        written = found.encode(version)
    except EncodeError as error:
        return None if judged.refused else f"not written: {error}; Kafka writes {judged.data.hex()}"
    if judged.refused:
        return f"{found}; Kafka: {judged.refused}"
    wrong = list(differences(found, judged.json, version))
    return str(wrong) if wrong else None if written == judged.data else "written otherwise"
