# SPDX-License-Identifier: Apache-2.0
"""The messages in records of internal topics: the record types that Kafka's jars define; bytes that Kafka's generated
classes wrote of random values, compared with the JSON of Kafka's converters; and hostile bytes."""

from __future__ import annotations

import base64
import json
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import message_definitions
import pytest
from java_internals import written_message
from java_judge import FETCH, KAFKA_VERSION, JavaJudge
from message_edits import COMMON, PACKAGES, ask
from reference_messages import varint

from kcodec._fast import Record
from kcodec.errors import DecodeError
from kcodec.log import InternalRecord, decode_internal_record, internal_record
from kcodec.log.internal.records import (
    CONTROL_RECORDS,
    COORDINATOR_RECORDS,
    METADATA_RECORDS,
    decode_message,
    message_dict,
)
from kcodec.protocol.messages import (
    BrokerRegistrationChangeRecord,
    ConsumerGroupMetadataValue,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    FeatureLevelRecord,
    GroupMetadataKey,
    PartitionChangeRecord,
    TopicRecord,
    TransactionLogKey,
)
from kcodec.protocol.schema import NO_VERSIONS, Field, Message, MetadataRecord, Struct, fields

LONG = os.environ.get("KCODEC_PROFILE") == "long"
MESSAGES_EACH = 60 if LONG else 4
COORDINATOR_JARS = {
    "__consumer_offsets": "kafka-group-coordinator",
    "__transaction_state": "kafka-transaction-coordinator",
    "__share_group_state": "kafka-share-coordinator",
}


class Stored(NamedTuple):
    """A record as stored, without a batch around it."""

    key: bytes | None
    value: bytes | None
    control_type: int | None = None


def read(topic: str, key: bytes | None, value: bytes | None, control_type: int | None = None) -> InternalRecord:
    """What kcodec makes of a record."""
    record: Record = Stored(key, value, control_type)  # type: ignore[assignment]
    found = decode_internal_record(topic, record)
    assert found is not None
    shown = internal_record(topic, record)
    assert shown is not None
    json.dumps(shown)
    assert shown.get("error") == found.error
    return found


def tables() -> dict[str, type[Message]]:
    """Every message that a record may hold, by Kafka's name."""
    found: dict[str, type[Message]] = {}
    for kinds in COORDINATOR_RECORDS.values():
        for kind in kinds.values():
            assert kind.key is not None
            found |= {f"{kind.name}Key": kind.key, f"{kind.name}Value": kind.value}
    others = [kind.value for kind in (*METADATA_RECORDS.values(), *CONTROL_RECORDS.values())]
    others += [ConsumerProtocolSubscription, ConsumerProtocolAssignment]
    return found | {kind.__name__: kind for kind in others}


TABLES = tables()


@pytest.fixture(scope="module")
def judge(java_home: object) -> Iterator[JavaJudge]:
    with JavaJudge() as running:
        yield running


# ------------------------------------------------------------------------------------------------------- record types


def definitions_of(jar: str) -> dict[str, dict[str, Any]]:
    return message_definitions.definitions((FETCH.DEFAULT_LIBS / f"{jar}-{KAFKA_VERSION}.jar",))


@pytest.mark.parametrize("topic", COORDINATOR_JARS)
def test_every_record_type_of_a_coordinator_is_known(topic: str) -> None:
    defined = {
        definition["apiKey"]: definition["name"].removesuffix("Key")
        for definition in definitions_of(COORDINATOR_JARS[topic]).values()
        if definition.get("type") == "coordinator-key"
    }
    assert {number: kind.name for number, kind in COORDINATOR_RECORDS[topic].items()} == defined


def test_every_record_type_of_the_metadata_log_is_known() -> None:
    """By number as the definitions have it, by name as Kafka's enum MetadataRecordType spells it."""
    defined = {definition["apiKey"]: definition["name"] for definition in definitions_of("kafka-metadata").values()}
    assert {number: kind.value.__name__ for number, kind in METADATA_RECORDS.items()} == defined
    with zipfile.ZipFile(FETCH.DEFAULT_LIBS / f"kafka-metadata-{KAFKA_VERSION}.jar") as archive:
        constants = archive.read("org/apache/kafka/common/metadata/MetadataRecordType.class")
    for kind in METADATA_RECORDS.values():
        name = kind.name.encode()
        assert struct.pack(">BH", 1, len(name)) + name in constants  # CONSTANT_Utf8


def test_a_key_and_its_value_have_one_record_type() -> None:
    for topic, kinds in COORDINATOR_RECORDS.items():
        for number, kind in kinds.items():
            assert kind.key is not None
            assert kind.key.internal_topic == topic
            expected = 1 if kind.name == "LegacyOffsetCommit" else number
            assert (kind.key.api_key, kind.value.api_key) == (expected, expected)  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------------- Kafka's bytes

TEXTS = ("", "orders", "grüße", "\U0001f600", "a" * 200)


def random_value(chance: random.Random, field: Field, version: int) -> Any:
    """A value as Kafka's JSON spells it."""
    if field.nullable.hold(version) and chance.random() < 0.3:
        return None
    if field.is_array:
        one = field._replace(is_array=False, nullable=NO_VERSIONS)
        return [random_value(chance, one, version) for _ in range(chance.choice((0, 1, 3)))]
    if not isinstance(field.kind, str):
        return random_json(chance, field.kind, version)
    bits = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
    if field.kind in bits:
        edge = 1 << (bits[field.kind] - 1)
        return chance.choice((0, 1, -1, edge - 1, -edge, chance.randrange(-edge, edge)))
    values: dict[str, Callable[[], Any]] = {
        "bool": lambda: chance.random() < 0.5,
        "uint16": lambda: chance.choice((0, 1, 65535)),
        "float64": lambda: chance.choice((0.0, -1.5, 1e300)),
        "uuid": lambda: base64.urlsafe_b64encode(chance.randbytes(16)).decode().rstrip("="),
        "string": lambda: chance.choice(TEXTS),
        "bytes": lambda: base64.b64encode(chance.randbytes(chance.choice((0, 1, 130)))).decode(),
    }
    return values[field.kind]()


def json_name(name: str) -> str:
    """Kafka's name in JSON."""
    head, *tail = name.split("_")
    spelt = head + "".join(part.capitalize() for part in tail)
    return spelt.replace("kraft", "kRaft")


def random_json(chance: random.Random, kind: type[Struct], version: int) -> dict[str, Any]:
    return {
        json_name(name): random_value(chance, field, version)
        for name, field in fields(kind).items()
        if field.versions.hold(version) and (field.tag is None or chance.random() < 0.6)
    }


def squeezed_names(value: Any) -> Any:
    """Kafka's names and ours alike: no underscores, small letters."""
    if isinstance(value, dict):
        return {name.replace("_", "").lower(): squeezed_names(one) for name, one in value.items()}
    return [squeezed_names(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", TABLES)
def test_a_message_that_kafka_wrote_is_shown_as_by_kafka(judge: JavaJudge, name: str) -> None:
    chance, kind = random.Random(name), TABLES[name]
    release = message_definitions.definitions(message_definitions.NEW_JARS)
    for version in message_definitions.Versions.of(release[name]["validVersions"]).numbers():
        for _ in range(MESSAGES_EACH):
            value = random_json(chance, kind, version)
            written = written_message(judge, f"{PACKAGES.get(name, COMMON)}.{name}", version, value)
            message = decode_message(kind, version, b"prefix" + written.data, len(b"prefix"), is_whole=True)
            assert squeezed_names(message_dict(message, version)) == squeezed_names(written.json)
            if name == "UserScramCredentialRecord":
                with pytest.raises(TypeError, match="its field salt is a secret"):
                    pickle.dumps(message)
            else:
                assert pickle.loads(pickle.dumps(message)) == message
            assert message.encode(version) == written.data


# ------------------------------------------------------------------------------------------------------- hostile bytes

GROUP_METADATA = struct.pack(">hh", 2, 1) + b"g"
GROUP = struct.pack(">hh", 3, 1) + b"g"
MEMBER_ASSIGNMENT = struct.pack(">hh", 7, 1) + b"g" + struct.pack(">h", 1) + b"m"


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (
            struct.pack(">h", 3) + b"\x7f\xff",
            None,
            "ConsumerGroupMetadataKey version 0, group_id at byte 4: a string takes 32767 bytes, but 0 remain",
        ),
        (
            GROUP_METADATA,
            bytes(4) + bytes(4) + b"\x00\x09proto",
            "GroupMetadataValue version 0, protocol at byte 10: a string takes 9 bytes, but 5 remain",
        ),
        (
            GROUP_METADATA,
            bytes(4) + bytes(4) + b"\xff\xff" + b"\xff\xff" + b"\x7f\xff\xff\xff",
            "GroupMetadataValue version 0, members at byte 16: an array of 2147483647 elements takes",
        ),
        (
            MEMBER_ASSIGNMENT,
            bytes(2) + b"\xff\xff\xff\xff\x07",
            "ConsumerGroupTargetAssignmentMemberValue version 0, topic_partitions at byte 7: an array of 2147483646 el",
        ),
        (
            MEMBER_ASSIGNMENT,
            bytes(2) + b"\xff\xff\xff\xff\x0f",
            "ConsumerGroupTargetAssignmentMemberValue version 0, topic_partitions at byte 7: the length 4294967295",
        ),
    ],
)
def test_lengths_are_checked_against_the_bytes(key: bytes, value: bytes | None, error: str) -> None:
    found = read("__consumer_offsets", key, value)
    assert found.error is not None
    assert found.error.startswith(error)


def test_an_array_of_too_many_structs_is_refused_unbuilt() -> None:
    """Each of these structs takes eight bytes, and several hundred once it is read."""
    count = (1 << 22) + 1
    value = bytes(2) + bytes(4) + varint(count + 1) + bytes.fromhex("0101010101010100") * count
    found = read("__consumer_offsets", struct.pack(">hh", 23, 1) + b"g", value)
    assert (found.type, found.value) == ("StreamsGroupTopology", None)
    assert found.error == (
        "StreamsGroupTopologyValue version 0, subtopologies at byte 10: "
        "more than 4194304 elements of arrays in one message"
    )


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "the data ends inside a varint"),
        (b"\x01\x80", "the data ends inside a varint"),
        (b"\x01\x02", "the data ends inside a varint"),
        (b"\xff\xff\xff\xff\xff", "a varint has more than 5 bytes"),
        (b"\x01\xff\xff\xff\xff\xff\x00", "a varint has more than 5 bytes"),
        (b"\xff\xff\xff\xff\x1f", "the varint 8589934591 exceeds 32 bits"),
    ],
)
def test_a_frame_of_the_metadata_log_has_32_bit_varints(value: bytes, reason: str) -> None:
    found = read("__cluster_metadata", None, value)
    assert (found.type, found.error) == ("unknown", f"frame of a metadata record: {reason}")


def test_a_version_in_a_metadata_frame_may_be_any_number() -> None:
    found = read("__cluster_metadata", None, b"\x01\x02\xff\xff\xff\xff\x0f")
    assert found.version == 0xFFFFFFFF
    assert found.error == "TopicRecord version 4294967295 is unknown; expected 0 to 0"
    topic = b"\x01\x82\x00\x00" + b"\x02t" + bytes(15) + b"\x07" + b"\x00"  # the type in two bytes
    assert read("__cluster_metadata", None, topic).to_dict() == {
        "type": "TOPIC_RECORD",
        "version": 0,
        "value": {"name": "t", "topic_id": "AAAAAAAAAAAAAAAAAAAABw"},
    }


def test_an_error_names_message_version_and_field() -> None:
    value = (
        bytes(2) + bytes(2) + bytes(4) + b"\xff\xff\xff\xff" + b"\x00\x00\x00\x01" + b"\x00\x02ab" + b"\x00\x09client"
    )
    found = read("__consumer_offsets", GROUP_METADATA, value + bytes(12))
    assert (found.type, found.version, found.key) == ("GroupMetadata", 0, GroupMetadataKey(group="g"))
    assert found.value is None
    assert found.error is not None
    assert found.error.startswith("GroupMetadataValue version 0, members[0].")
    unread = read("__consumer_offsets", struct.pack(">hh", 3, -1), None)
    assert (unread.type, unread.key) == ("ConsumerGroupMetadata", None)
    assert unread.error == (
        "ConsumerGroupMetadataKey version 0, group_id at byte 4: the value is null, which this version does not allow"
    )
    unknown = read("__consumer_offsets", GROUP_METADATA, b"\x00\x05" + bytes(40))
    assert (unknown.version, unknown.error) == (5, "GroupMetadataValue version 5 is unknown; expected 0 to 4")
    topic = b"\x01\x02\x00" + b"\x02t" + bytes(16) + b"\x00"
    assert read("__cluster_metadata", None, topic).value == TopicRecord(name="t")
    assert read("__cluster_metadata", None, topic + b"xx").error == "TopicRecord version 0: 2 bytes follow the message"


def test_unknown_tags_are_kept_and_not_shown() -> None:
    value = b"\x00\x00\x00\x07" + b"\x02" + b"\x00\x08" + (9).to_bytes(8, "big") + b"\x63\x03abc"
    found = read("__consumer_offsets", GROUP, bytes(2) + value)
    reported = ConsumerGroupMetadataValue(epoch=7, metadata_hash=9)
    reported.unknown_tagged_fields = ((99, b"abc"),)
    assert found.value == reported
    assert found.to_dict()["value"] == {"epoch": 7, "metadata_hash": 9}


@pytest.mark.parametrize(
    ("kind", "version", "data"),
    [
        (BrokerRegistrationChangeRecord, 0, bytes(12) + b"\x01\x01\x01\x01"),
        (BrokerRegistrationChangeRecord, 1, bytes(12) + b"\x01\x01\x01\x01"),
        (PartitionChangeRecord, 1, bytes(20) + b"\x01\x06\x01\x01"),
        (FeatureLevelRecord, 0, varint(32768) + b"f" * 32767 + bytes(3)),
        (FeatureLevelRecord, 0, varint(32769) + b"f" * 32768 + bytes(3)),
    ],
    ids=["tag of a later version", "known tag", "another tag of a later version", "longest string", "longer string"],
)
def test_a_metadata_record_is_read_or_refused_as_by_kafka(
    judge: JavaJudge, kind: type[MetadataRecord], version: int, data: bytes
) -> None:
    refused = ask(judge, kind, data, version).refused
    found = read("__cluster_metadata", None, b"\x01" + varint(kind.api_key) + varint(version) + data)
    assert (found.error is None) == (refused == ""), (found, refused)
    assert (found.value is None) == (refused != "")


def test_text_that_is_not_utf8_is_read_as_java_reads_it(judge: JavaJudge) -> None:
    """One U+FFFD for an encoded surrogate, where Python has three."""
    found = read("__transaction_state", struct.pack(">hh", 0, 3) + b"\xed\xa0\x80", None)
    shown = ask(judge, TransactionLogKey, b"\x00\x03\xed\xa0\x80", 0).json
    assert found.to_dict()["key"] == {"transactional_id": shown["transactionalId"]} == {"transactional_id": "\ufffd"}


def test_an_internal_record_has_a_hash_and_pickles() -> None:
    found = read("__consumer_offsets", GROUP, bytes(2) + bytes(4) + b"\x00")
    assert {found, read("__consumer_offsets", GROUP, bytes(2) + bytes(4) + b"\x00")} == {found}
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize("name", TABLES)
def test_random_bytes_end_in_a_message_or_a_decode_error(name: str) -> None:
    chance, kind = random.Random(name), TABLES[name]
    for _ in range(400 if LONG else 60):
        content = chance.randbytes(chance.randrange(60))
        version = chance.randrange(kind.versions.last + 1)
        try:
            message = decode_message(kind, version, content)
        except DecodeError as error:
            assert str(error).startswith(kind.__name__)
        else:
            json.dumps(message_dict(message, version))
