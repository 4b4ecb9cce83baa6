# SPDX-License-Identifier: Apache-2.0
"""The tables of Kafka's messages, field by field against the definitions in Kafka's jars; reading them, against bytes
that Kafka's generated classes wrote of random values, and against hostile bytes."""

from __future__ import annotations

import base64
import json
import os
import pickle
import random
import re
import zipfile
from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

import pytest
from java_internals import written_message
from java_judge import FETCH, KAFKA_VERSION, JavaJudge

from kcodec.errors import DecodeError
from kcodec.log import group_records as groups
from kcodec.log import message_schema
from kcodec.log.control_records import CONTROL_RECORDS
from kcodec.log.coordinator_records import COORDINATOR_RECORDS
from kcodec.log.message_schema import ZERO_UUID, Message, Reader, Versions, Wire, decode_message, message_dict, wires
from kcodec.log.metadata_records import METADATA_RECORDS

LONG = os.environ.get("KCODEC_PROFILE") == "long"
MESSAGES_EACH = 60 if LONG else 4

GROUP_JAR = ("kafka-group-coordinator", "org.apache.kafka.coordinator.group.generated")
TRANSACTION_JAR = ("kafka-transaction-coordinator", "org.apache.kafka.coordinator.transaction.generated")
SHARE_JAR = ("kafka-share-coordinator", "org.apache.kafka.coordinator.share.generated")
METADATA_JAR = ("kafka-metadata", "org.apache.kafka.common.metadata")
CLIENTS_JAR = ("kafka-clients", "org.apache.kafka.common.message")
COORDINATOR_JARS = {
    "__consumer_offsets": GROUP_JAR,
    "__transaction_state": TRANSACTION_JAR,
    "__share_group_state": SHARE_JAR,
}
Definition = dict[str, Any]


@cache
def definitions(jar: str) -> dict[str, Definition]:
    """The message definitions in a jar by name; requests and responses are not wanted."""
    found = {}
    with zipfile.ZipFile(FETCH.DEFAULT_LIBS / f"{jar}-{KAFKA_VERSION}.jar") as archive:
        for path in archive.namelist():
            if path.endswith(".json") and not re.search(r"(Request|Response)\.json$", path):
                text = re.sub(r"^\s*//.*$", "", archive.read(path).decode("utf-8"), flags=re.MULTILINE)
                definition = json.loads(text)
                found[definition["name"]] = definition
    return found


def tables() -> list[tuple[tuple[str, str], str, type[Message]]]:
    """(jar and package, Kafka's name, our class) of every message."""
    found: list[tuple[tuple[str, str], str, type[Message]]] = []
    for topic, kinds in COORDINATOR_RECORDS.items():
        for kind in kinds.values():
            assert kind.key is not None
            found.append((COORDINATOR_JARS[topic], f"{kind.name}Key", kind.key))
            found.append((COORDINATOR_JARS[topic], f"{kind.name}Value", kind.value))
    found += [(METADATA_JAR, kind.value.__name__, kind.value) for kind in METADATA_RECORDS.values()]
    found += [(CLIENTS_JAR, kind.value.__name__, kind.value) for kind in CONTROL_RECORDS.values()]
    for kind in (groups.ConsumerProtocolSubscription, groups.ConsumerProtocolAssignment):
        found.append((CLIENTS_JAR, kind.__name__, kind))
    return list(dict.fromkeys(found))


TABLES = tables()
NAMES = [name for _, name, _ in TABLES]


@pytest.fixture(scope="module")
def judge(java_home: object) -> Iterator[JavaJudge]:
    with JavaJudge() as running:
        yield running


# ------------------------------------------------------------------------------------------------------- definitions


def squeezed(name: str) -> str:
    """A name whatever its case: kraft_version and KRaftVersion are one."""
    return name.replace("_", "").lower()


def versions_of(text: str | None, bound: Versions) -> Versions:
    """A range of Kafka's, cut at the versions of its message."""
    told = Versions.of(text or "none")
    cut = Versions(max(told.first, bound.first), min(told.last, bound.last))
    return cut if cut.first <= cut.last else Versions(1, 0)


def defaults_of(told: Definition, kind: str, is_array: bool) -> Any:
    """The default that Kafka's generator makes of a field without one, or of its text."""
    spelt = told.get("default")
    if spelt == "null":
        return None
    if is_array:
        return ()
    if kind == "bool":
        return str(spelt).lower() == "true"
    if kind == "float64":
        return float(spelt or 0)
    if kind.startswith(("int", "uint")):
        return int(spelt or 0)
    return {"string": spelt or "", "bytes": b"", "uuid": ZERO_UUID}.get(kind, "a struct")


def compare_fields(ours: type[Message], told: list[Definition], common: dict[str, Any], bound: Versions) -> None:
    declared = {one.name: one for one in fields(ours)}  # type: ignore[arg-type]
    assert [squeezed(name) for name in declared] == [squeezed(one["name"]) for one in told], ours
    for (name, one), field in zip(declared.items(), told, strict=True):
        wire: Wire = one.metadata["wire"]
        what = f"{ours.__name__}.{name}"
        is_array = field["type"].startswith("[]")
        kind = field["type"].removeprefix("[]")
        spelt = field.get("taggedVersions") or field["versions"]
        assert wire.is_array == is_array, what
        assert versions_of(f"{wire.versions.first}-{wire.versions.last}", bound) == versions_of(spelt, bound), what
        nullable = wire.nullable if wire.nullable.first <= wire.nullable.last else Versions(1, 0)
        assert versions_of(f"{nullable.first}-{nullable.last}", bound) == versions_of(
            field.get("nullableVersions"), bound
        ), what
        assert wire.tag == field.get("tag"), what
        inner = field.get("fields") or common.get(kind)
        expected = defaults_of(field, kind, is_array)
        if inner is None:
            assert wire.kind == kind, what
        else:
            assert isinstance(wire.kind, type), what
            compare_fields(wire.kind, inner, common, versions_of(spelt, bound))
        if expected == "a struct":
            assert one.default is None or not wire_values_given(one.default), what
        else:
            assert one.default is not MISSING, what
            assert one.default == expected, what


def wire_values_given(message: Message) -> list[str]:
    """The fields of a message that are not at what a reader takes for absent."""
    return [name for name in wires(type(message)) if getattr(message, name) not in (0, "", (), b"", None, False)]


@pytest.mark.parametrize(("jar", "name", "ours"), TABLES, ids=NAMES)
def test_a_message_is_declared_as_kafka_defines_it(jar: tuple[str, str], name: str, ours: type[Message]) -> None:
    told = definitions(jar[0])[name]
    common = {one["name"]: one["fields"] for one in told.get("commonStructs", [])}
    bound = Versions.of(told["validVersions"])
    if name != "LegacyOffsetCommitValue":  # our one class for both reads the later versions, too
        assert ours.versions == bound
        assert versions_of(f"{ours.flexible.first}-{ours.flexible.last}", bound) == versions_of(
            told["flexibleVersions"], bound
        )
        compare_fields(ours, told["fields"], common, bound)
        return
    present = [one for one, wire in wires(ours).items() if wire.versions.hold(0) and wire.tag is None]
    assert [squeezed(one) for one in present] == [squeezed(one["name"]) for one in told["fields"]]


@pytest.mark.parametrize("topic", COORDINATOR_JARS)
def test_every_record_type_of_a_coordinator_is_known(topic: str) -> None:
    told = {
        definition["apiKey"]: definition["name"].removesuffix("Key")
        for definition in definitions(COORDINATOR_JARS[topic][0]).values()
        if definition.get("type") == "coordinator-key"
    }
    assert {number: kind.name for number, kind in COORDINATOR_RECORDS[topic].items()} == told


def test_every_record_type_of_the_metadata_log_is_known() -> None:
    def spelt(name: str) -> str:
        return re.sub(r"(?<!^)([A-Z])", r"_\1", name).upper()

    told = {definition["apiKey"]: spelt(definition["name"]) for definition in definitions(METADATA_JAR[0]).values()}
    assert {number: kind.name for number, kind in METADATA_RECORDS.items()} == told


# ------------------------------------------------------------------------------------------------------- Kafka's bytes

TEXTS = ("", "orders", "grüße", "\U0001f600", "a" * 200)


def random_value(chance: random.Random, wire: Wire, version: int, depth: int) -> Any:
    """A value as Kafka's JSON spells it."""
    if wire.nullable.hold(version) and chance.random() < 0.3:
        return None
    if wire.is_array:
        one = wire._replace(is_array=False, nullable=Versions(1, 0))
        return [random_value(chance, one, version, depth + 1) for _ in range(chance.choice((0, 1, 3)))]
    if not isinstance(wire.kind, str):
        return random_told(chance, wire.kind, version, depth + 1)
    bits = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
    if wire.kind in bits:
        edge = 1 << (bits[wire.kind] - 1)
        return chance.choice((0, 1, -1, edge - 1, -edge, chance.randrange(-edge, edge)))
    return {
        "bool": lambda: chance.random() < 0.5,
        "uint16": lambda: chance.choice((0, 1, 65535)),
        "float64": lambda: chance.choice((0.0, -1.5, 1e300)),
        "uuid": lambda: base64.urlsafe_b64encode(chance.randbytes(16)).decode().rstrip("="),
        "string": lambda: chance.choice(TEXTS),
        "bytes": lambda: base64.b64encode(chance.randbytes(chance.choice((0, 1, 130)))).decode(),
    }[wire.kind]()


def json_name(name: str) -> str:
    """Kafka's name in JSON."""
    head, *tail = name.split("_")
    spelt = head + "".join(part.capitalize() for part in tail)
    return spelt.replace("kraft", "kRaft")


def random_told(chance: random.Random, kind: type[Message], version: int, depth: int = 0) -> dict[str, Any]:
    told = {}
    for name, wire in wires(kind).items():
        if wire.versions.hold(version) and (wire.tag is None or chance.random() < 0.6):
            told[json_name(name)] = random_value(chance, wire, version, depth)
    return told


def squeezed_names(told: Any) -> Any:
    if isinstance(told, dict):
        return {squeezed(name): squeezed_names(value) for name, value in told.items()}
    return [squeezed_names(one) for one in told] if isinstance(told, list) else told


@pytest.mark.parametrize(("jar", "name", "ours"), TABLES, ids=NAMES)
def test_a_message_that_kafka_wrote_is_read_as_kafka_shows_it(
    judge: JavaJudge, jar: tuple[str, str], name: str, ours: type[Message]
) -> None:
    chance = random.Random(name)
    known = Versions.of(definitions(jar[0])[name]["validVersions"])
    for version in range(known.first, known.last + 1):
        for _ in range(MESSAGES_EACH):
            written = written_message(judge, f"{jar[1]}.{name}", version, random_told(chance, ours, version))
            message = decode_message(ours, version, b"prefix" + written.data, len(b"prefix"), is_whole=True)
            assert squeezed_names(message_dict(message, version)) == squeezed_names(written.json)
            assert pickle.loads(pickle.dumps(message)) == message


# ------------------------------------------------------------------------------------------------------- hostile bytes


def test_lengths_and_counts_are_believed_up_to_the_bytes_that_remain() -> None:
    for kind, content in (
        (groups.GroupKey, b"\x7f\xff"),
        (groups.GroupMetadataValue, b"\x00\x00" + bytes(4) + b"\xff\xff\xff\xff" + b"\x7f\xff\xff\xff"),
        (groups.ConsumerGroupTargetAssignmentMemberValue, b"\xff\xff\xff\xff\x0f"),
    ):
        with pytest.raises(DecodeError, match=r"length \d+ of an? \w+ but \d+ bytes remain"):
            decode_message(kind, 0, content)


def test_a_message_of_too_many_elements_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty strings take a byte each: what fits in a batch would cost a hundred times its size in memory."""
    monkeypatch.setattr(message_schema, "MAX_ELEMENTS", 9)
    value = b"\x0a" + b"\x01" * 9 + bytes(16) + b"\x00"
    read = message_schema._plan(groups.ConsumerGroupRegularExpressionValue, 0, True).fields[0][1]
    assert read(Reader(value, elements_left=9)) == ("",) * 9
    with pytest.raises(DecodeError, match=r"^more than 9 elements of arrays$"):
        read(Reader(value, elements_left=8))
    shared = Reader(value, elements_left=20)
    read(shared)
    assert shared.elements_left == 11


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "1 bytes are needed but 0 remain"),
        (b"\xff\xff\xff\xff\xff", "a varint of more than 5 bytes"),
        (b"\xff\xff\xff\xff\x1f", "a varint above 32 bits: 8589934591"),
    ],
)
def test_a_varint_has_at_most_32_bits(content: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=f"^{reason}$"):
        Reader(content).varint()


def test_an_error_names_message_version_and_field() -> None:
    value = bytes(2) + bytes(4) + b"\xff\xff\xff\xff" + b"\x00\x00\x00\x01" + b"\x00\x02ab" + b"\x00\x09client"
    with pytest.raises(DecodeError) as caught:
        decode_message(groups.GroupMetadataValue, 0, value)
    assert str(caught.value) == (
        "GroupMetadataValue version 0, members: client_id: length 9 of a string but 6 bytes remain"
    )
    with pytest.raises(DecodeError, match=r"^GroupKey version 0, group_id: length -1 of a string that must"):
        decode_message(groups.GroupKey, 0, b"\xff\xff")
    with pytest.raises(DecodeError, match=r"^OffsetCommitValue version 5 is not known, only 0 to 4$"):
        decode_message(groups.OffsetCommitValue, 5, bytes(40))
    with pytest.raises(DecodeError, match=r"^GroupKey version 0: 2 bytes follow it$"):
        decode_message(groups.GroupKey, 0, b"\x00\x01gxx", is_whole=True)


def test_unknown_tags_are_passed_over() -> None:
    known = b"\x00\x00\x00\x07" + b"\x02" + b"\x00\x08" + (9).to_bytes(8, "big") + b"\x63\x03abc"
    assert decode_message(groups.ConsumerGroupMetadataValue, 0, known, is_whole=True) == (
        groups.ConsumerGroupMetadataValue(epoch=7, metadata_hash=9)
    )


@pytest.mark.parametrize(("jar", "name", "ours"), TABLES, ids=NAMES)
def test_random_bytes_end_in_a_message_or_a_decode_error(jar: tuple[str, str], name: str, ours: type[Message]) -> None:
    chance = random.Random(name)
    for _ in range(400 if LONG else 60):
        content = chance.randbytes(chance.randrange(60))
        version = chance.randrange(ours.versions.last + 1)
        try:
            message = decode_message(ours, version, content)
        except DecodeError as error:
            assert str(error).startswith(ours.__name__)
        else:
            json.dumps(message_dict(message, version))
