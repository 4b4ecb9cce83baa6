# SPDX-License-Identifier: Apache-2.0
"""`to_dict` and `from_dict` of messages, compared with the JSON of Kafka's converters."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from java_judge import JavaJudge
from message_edits import ask
from reference_messages import sample, squeezed

from kcodec.errors import UnsupportedError
from kcodec.protocol import messages
from kcodec.protocol.schema import Message, Struct

KINDS = sorted(messages.all_messages(), key=lambda kind: kind.__name__)
FETCH = messages.FetchResponse
TOPIC = "AAAAAAAAAAAAAAAAAAAABw"


@pytest.fixture(scope="module")
def judge(java_home: object) -> Iterator[JavaJudge]:
    with JavaJudge() as running:
        yield running


def without_unknown_tags(value: Any) -> Any:
    """Remove the unknown tagged fields of a message, and of the structs inside."""
    if isinstance(value, Struct):
        value.unknown_tagged_fields = ()
        for name in type(value)._fields:
            without_unknown_tags(getattr(value, name))
    elif isinstance(value, list):
        for one in value:
            without_unknown_tags(one)
    return value


def is_equal(ours: Any, theirs: Any) -> bool:
    """Compare a value with that of the judge, which has the size of records, and the SHA-256 of long bytes."""
    if isinstance(theirs, dict) and theirs.keys() == {"size", "sha256"}:
        data = base64.b64decode(ours)
        return theirs == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    if isinstance(theirs, dict):
        left = {squeezed(name): value for name, value in ours.items()}
        for name, value in theirs.items():
            key = squeezed(name)
            if key.endswith("sizeinbytes") and key not in left:
                if len(base64.b64decode(left.pop(key.removesuffix("sizeinbytes")) or "")) != value:
                    return False
            elif key not in left or not is_equal(left.pop(key), value):
                return False
        return not any(left.values())  # records that are null
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(is_equal, ours, theirs))
    return bool(ours == theirs and type(ours) is type(theirs))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_messages_are_converted_as_by_kafka_and_back(judge: JavaJudge, kind: type[Message]) -> None:
    random = Random(kind.__name__)
    for version in range(kind.versions.first, kind.versions.last + 1):
        for message in [kind(), sample(kind, version, random)]:
            data = without_unknown_tags(message).encode(version)
            plain = kind.decode(data, version).to_dict(version, with_secrets=True)
            assert is_equal(plain, ask(judge, kind, data, version).json), (version, message)
            assert kind.from_dict(json.loads(json.dumps(plain)), version).encode(version) == data


def test_secrets_are_hidden() -> None:
    request = messages.SaslAuthenticateRequest(auth_bytes=b"password")
    assert request.to_dict(2) == {"auth_bytes": "<hidden>"}
    with pytest.raises(ValueError, match=r"SaslAuthenticateRequest.auth_bytes: the value is hidden; call to_dict with"):
        messages.SaslAuthenticateRequest.from_dict(request.to_dict(2), 2)
    plain = request.to_dict(2, with_secrets=True)
    assert messages.SaslAuthenticateRequest.from_dict(plain, 2) == request
    with pytest.raises(ValueError, match="got a secret") as caught:
        messages.SaslAuthenticateRequest.from_dict({"auth_bytes": "pass word"}, 2)
    assert "pass word" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "error", "text"),
    [
        ([], TypeError, "FetchResponse version 13: expected a dict of its fields, got list"),
        ({"respons": []}, ValueError, "FetchResponse version 13 has no field 'respons'; did you mean 'responses'?"),
        ({"responses": {}}, TypeError, "FetchResponse.responses: expected a list, got dict"),
        ({"responses": [7]}, TypeError, r"FetchResponse.responses\[0\] version 13: expected a dict"),
        ({"responses": [{"topic": "t"}]}, ValueError, r"FetchResponse.responses\[0\] version 13 has no field 'topic'"),
        ({"responses": [{"topic_id": 7}]}, TypeError, r"\[0\].topic_id: expected text in base64, got int"),
        ({"responses": [{"topic_id": f"{TOPIC}x"}]}, ValueError, "an id of 22 characters in URL-safe base64, got 'A"),
        ({"responses": [{"topic_id": "é"}]}, ValueError, "expected an id of 22 characters"),
        ({"responses": [{"partitions": [{"records": "?"}]}]}, ValueError, r"\[0\].records: expected text in base64"),
    ],
)
def test_invalid_values_are_named(values: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        FETCH.from_dict(values, 13)


def test_missing_fields_get_their_defaults() -> None:
    assert FETCH.from_dict({}, 13) == FETCH()
    found = FETCH.from_dict({"responses": [{"topic_id": TOPIC}]}, 13)
    assert found.responses[0].topic_id.int == 7 and found.responses[0].partitions == []


@pytest.mark.parametrize("version", [-1, 99])
def test_an_unknown_version_is_refused(version: int) -> None:
    with pytest.raises(UnsupportedError, match=f"FetchResponse version {version} is not supported"):
        FETCH().to_dict(version)
    with pytest.raises(UnsupportedError, match=f"FetchResponse version {version} is not supported"):
        FETCH.from_dict({}, version)
