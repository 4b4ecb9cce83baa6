# SPDX-License-Identifier: Apache-2.0
"""Messages of random values, of every API and version, through Kafka's own generated classes and back: Kafka reads all
bytes, prints what was meant, and writes the same bytes. Versions that 4.0 dropped are asked of 3.9.1. And what Kafka's
classes say to bytes at the edge: the rules of kcodec.protocol.schema are next to them here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random

import pytest
from java_judge import JavaJudge
from message_edits import NEW, OLD, ask, edited, kafka_difference, knows
from reference_messages import differences, encode, sample

from kcodec.errors import DecodeError, EncodeError
from kcodec.protocol import messages
from kcodec.protocol.schema import Message

LONG = os.environ.get("KCODEC_PROFILE") == "long"
MESSAGES_EACH = 40 if LONG else 4
KINDS = sorted(messages.all_messages(), key=lambda kind: kind.__name__)


@pytest.fixture(scope="module")
def judge(java_home: object) -> Iterator[JavaJudge]:
    with JavaJudge() as running:
        yield running


def versions_of(kind: type[Message]) -> range:
    return range(kind.versions.first, kind.versions.last + 1)


def test_every_version_is_known_to_one_of_the_two_kafkas() -> None:
    unknown = [
        (kind.__name__, version)
        for kind in KINDS
        for version in versions_of(kind)
        if not knows(NEW, kind, version) and not knows(OLD, kind, version)
    ]
    assert unknown == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_messages_go_through_kafkas_classes_and_back(judge: JavaJudge, kind: type[Message]) -> None:
    random = Random(kind.__name__)
    for version in versions_of(kind):
        for message in [kind(), *(sample(kind, version, random) for _ in range(MESSAGES_EACH))]:
            data = message.encode(version)
            assert data == encode(message, version)
            judged = ask(judge, kind, data, version)
            assert (judged.refused, judged.left) == ("", 0), (version, message)
            assert list(differences(message, judged.json, version)) == [], (version, message)
            assert judged.data == data, (version, message)
            assert kind.decode(judged.data, version).encode(version) == data


@pytest.mark.parametrize("kind", [kind for kind in KINDS if len(versions_of(kind)) > 1], ids=lambda kind: kind.__name__)
def test_what_a_version_lacks_is_left_out_or_refused_as_by_kafka(judge: JavaJudge, kind: type[Message]) -> None:
    """A message of the newest version, written in each version before it."""
    random = Random(kind.__name__)
    newest, *others = [version for version in reversed(versions_of(kind)) if knows(NEW, kind, version)]
    for version in others:
        for _ in range(2 * MESSAGES_EACH):
            message = sample(kind, newest, random, density=0.15)
            judged = ask(judge, kind, message.encode(newest), newest, version)
            if judged.refused:
                with pytest.raises(EncodeError):
                    message.encode(version)
            else:
                assert message.encode(version) == judged.data, (version, message)


def test_edited_messages_are_read_or_refused_as_by_kafka(judge: JavaJudge) -> None:
    random = Random(6)
    wrong = []
    for kind in KINDS:
        for version in versions_of(kind):
            data = edited(sample(kind, version, random).encode(version), random)
            found = kafka_difference(judge, kind, data, version)
            wrong += [] if found is None else [f"{kind.__name__} version {version}, {data.hex()}: {found}"]
    assert wrong == []


TAGGED = (messages.ApiVersionsResponse, 3, messages.ApiVersionsResponse().encode(3)[:-1])
INIT, METADATA = messages.InitProducerIdRequest, messages.MetadataRequest
EDGES: list[tuple[str, type[Message], int, bytes, str]] = [
    ("a known tag twice", *TAGGED, "02 01 08 0000000000000005 01 08 0000000000000006"),
    ("known tags out of order", *TAGGED, "02 03 01 01 01 08 0000000000000006"),
    ("a tag of later versions", messages.ProduceResponse, 9, messages.ProduceResponse().encode(9)[:-1], "01 00 01 aa"),
    ("the largest tag", *TAGGED, "01 feffffff07 01 aa"),
    ("a count in two bytes where one is enough", *TAGGED, "8000"),
    ("a varint of six bytes", *TAGGED, "01 818080808000 00"),
    ("a length below -1 is null", INIT, 0, b"", "fffb 00000000"),
    ("the longest string", INIT, 0, b"\x7f\xff" + b"a" * 32767, "00000000"),
    ("a longer string", INIT, 2, b"\x81\x80\x02" + b"a" * 32768, "00000000 00"),
    ("a string that must not be null", messages.FindCoordinatorRequest, 0, b"", "fffb"),
    ("an array that may be null", METADATA, 1, b"", "fffffff9"),
    ("an array that must not be null", METADATA, 0, b"", "fffffff9"),
    ("more elements than bytes", METADATA, 1, b"", "7fffffff"),
    ("any byte but 0 is true", METADATA, 4, b"", "00000000 02"),
    ("bytes that are not UTF-8", INIT, 0, bytes.fromhex("0009 ff eda080 c3 f08080 e2"), "00000000"),
]


@pytest.mark.parametrize(("kind", "version", "head", "tail"), [edge[1:] for edge in EDGES], ids=[e[0] for e in EDGES])
def test_bytes_at_the_edge_are_taken_or_refused_as_by_kafka(
    judge: JavaJudge, kind: type[Message], version: int, head: bytes, tail: str
) -> None:
    data = head + bytes.fromhex(tail)
    judged = ask(judge, kind, data, version)
    if judged.refused:
        with pytest.raises(DecodeError):
            kind.decode(data, version)
    else:
        message = kind.decode(data, version)
        assert list(differences(message, judged.json, version)) == []
        assert message.encode(version) == judged.data


@pytest.mark.parametrize("tail", ["02 09 01 aa 09 01 bb", "02 09 01 aa 08 01 bb"], ids=["twice", "out of order"])
def test_unknown_tags_in_disorder_are_read_but_not_written(judge: JavaJudge, tail: str) -> None:
    """Kafka's reader keeps them as they come, and its writer refuses them."""
    kind, version, head = TAGGED
    judged = ask(judge, kind, head + bytes.fromhex(tail), version)
    assert "Invalid raw tag field list" in judged.refused
    message = kind.decode(head + bytes.fromhex(tail), version)
    with pytest.raises(EncodeError, match="must have ascending tags"):
        message.encode(version)


@pytest.mark.parametrize("tail", ["01 01 07 0000000000000005", "01 01 09 0000000000000005 00"])
def test_a_known_tag_of_a_wrong_size_is_refused_though_kafka_reads_on(judge: JavaJudge, tail: str) -> None:
    """Kafka's reader does not look at the size, and takes what follows for something else."""
    kind, version, head = TAGGED
    assert ask(judge, kind, head + bytes.fromhex(tail), version).refused == ""
    with pytest.raises(DecodeError, match="tagged field"):
        kind.decode(head + bytes.fromhex(tail), version)
