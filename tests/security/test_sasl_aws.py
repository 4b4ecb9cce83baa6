# SPDX-License-Identifier: Apache-2.0
"""AWS_MSK_IAM against signatures that others computed: AWS's own published examples, and botocore's SigV4QueryAuth.

No broker of Amazon MSK takes part: the payload's shape is MSK's published one, its signature is proved here, and that a
broker takes it is not.
"""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kcodec.errors import AuthenticationError, TransportError
from kcodec.security.aws_msk_iam import (
    AwsCredentials,
    aws_msk_iam,
    payload,
    presign,
    provider_of,
    region_of,
    signing_key,
)
from kcodec.security.sasl import ExchangeRefused
from kcodec.security.secret import Secret

KEY = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
BROKER = "b-1.demo.abc123.c2.kafka.eu-west-1.amazonaws.com"
SERVERLESS = "boot-x.c3.kafka-serverless.us-east-2.amazonaws.com"


def test_the_signing_key_is_that_of_awss_documentation() -> None:
    key = signing_key(Secret(KEY), "20120215", "us-east-1", "iam")
    assert key.hex() == "f4780e2d9f65fa895f9c67b32ce1baf0b0d8a43505a000a1a9e090d414db404d"


def test_a_presigned_url_is_that_of_awss_documentation() -> None:
    query = presign(
        {},
        host="examplebucket.s3.amazonaws.com",
        credentials=AwsCredentials("AKIAIOSFODNN7EXAMPLE", Secret("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")),
        region="us-east-1",
        service="s3",
        timestamp="20130524T000000Z",
        seconds=86400,
        path="/test.txt",
        payload_hash="UNSIGNED-PAYLOAD",
    )
    assert query["X-Amz-Signature"] == "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"


# From botocore 1.44.5: SigV4QueryAuth(Credentials(...), "kafka-cluster", region, expires=900) on GET https://host/ with
# the parameter Action=kafka-cluster:Connect, its clock fixed.
BOTOCORE = [
    (
        (BROKER, "eu-west-1", AwsCredentials("AKIDEXAMPLE", Secret(KEY)), "20260102T030405Z"),
        "68ed2469bf23b95e04be54be1ec810063e0ac86cb8c655b5029c009efdd68a1b",
    ),
    (
        (
            SERVERLESS,
            "us-east-2",
            AwsCredentials("ASIAEXAMPLE", Secret("secret/with+signs="), Secret("IQoJb3JpZ2luX2Vj//token+with/signs==")),
            "20261121T235959Z",
        ),
        "5735a32693cfec34d664828c13700a66809efe9bd479cd0cbed73d607475fc1b",
    ),
]


@pytest.mark.parametrize(("arguments", "signature"), BOTOCORE)
def test_the_payload_is_signed_as_botocore_signs(
    arguments: tuple[str, str, AwsCredentials, str], signature: str
) -> None:
    host, region, credentials, timestamp = arguments
    fields = json.loads(payload(*arguments, "kcodec"))
    token = credentials.session_token
    expected = {
        "version": "2020_10_22",
        "host": host,
        "user-agent": "kcodec",
        "action": "kafka-cluster:Connect",
        "x-amz-algorithm": "AWS4-HMAC-SHA256",
        "x-amz-credential": f"{credentials.access_key_id}/{timestamp[:8]}/{region}/kafka-cluster/aws4_request",
        "x-amz-date": timestamp,
        "x-amz-signedheaders": "host",
        "x-amz-expires": "900",
        "x-amz-signature": signature,
    }
    assert fields == (expected if token is None else {**expected, "x-amz-security-token": token.reveal()})


def test_an_answer_of_msk_ends_the_exchange() -> None:
    exchange = aws_msk_iam(*BOTOCORE[0][0], "kcodec")
    assert next(exchange) == payload(*BOTOCORE[0][0], "kcodec")
    with pytest.raises(StopIteration):
        exchange.send(b'{"version": "2020_10_22", "request-id": "abc"}')


@pytest.mark.parametrize("answer", [b"", b"{}", b"[]", b'{"version": "1"}', b"\xff", b"[" * 5000])
def test_any_other_answer_is_refused(answer: bytes) -> None:
    exchange = aws_msk_iam(*BOTOCORE[0][0], "kcodec")
    next(exchange)
    with pytest.raises(ExchangeRefused, match="does not come from MSK"):
        exchange.send(answer)


@pytest.mark.parametrize(
    ("host", "region"),
    [
        (BROKER, "eu-west-1"),
        (SERVERLESS, "us-east-2"),
        ("b-1.x.kafka.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("b-1.x.kafka.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("localhost", None),
        ("b-1.kafka.eu-west-1.amazonaws.com.example.org", None),
    ],
)
def test_the_region_is_read_from_brokers_names(host: str, region: str | None) -> None:
    assert region_of(host) == region


ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "hidden"}


def test_credentials_come_from_the_environment() -> None:
    assert provider_of(None, ENVIRONMENT)() == AwsCredentials("AKID", Secret("hidden"))
    temporary = provider_of(None, {**ENVIRONMENT, "AWS_SESSION_TOKEN": "hidden-too"})()
    assert temporary == AwsCredentials("AKID", Secret("hidden"), Secret("hidden-too"))
    assert "hidden" not in repr(temporary)


@pytest.mark.parametrize(
    "given", [("AKID", "hidden"), ("AKID", Secret("hidden"), None), AwsCredentials("AKID", Secret("hidden"))]
)
def test_credentials_come_from_a_callable_first(given: Any) -> None:
    assert provider_of(lambda: given, {"AWS_ACCESS_KEY_ID": "other", "AWS_SECRET_ACCESS_KEY": "x"})() == AwsCredentials(
        "AKID", Secret("hidden")
    )


@pytest.mark.parametrize("given", [None, "AKID:hidden", ("hidden",), ("AKID", "hidden", "b", "c"), ("AKID", b"hidden")])
def test_credentials_of_another_shape_are_refused_unshown(given: Any) -> None:
    with pytest.raises(AuthenticationError, match="sasl_aws_credentials_provider returned") as caught:
        provider_of(lambda: given)()
    assert "hidden" not in str(caught.value)


def test_a_provider_that_fails_is_named() -> None:
    with pytest.raises(TransportError, match=r"sasl_aws_credentials_provider raised ZeroDivisionError$") as failed:
        provider_of(lambda: 1 // 0)()
    assert type(failed.value) is TransportError and isinstance(failed.value.__cause__, ZeroDivisionError)


def test_without_credentials_the_error_says_where_they_may_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(AuthenticationError, match="install the package botocore"):
        provider_of(None, {})()


@pytest.mark.parametrize("token", [None, "hidden-too"])
def test_botocore_is_asked_last(monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    """Its API, as of 1.44; botocore itself is no requirement of these tests."""
    frozen = SimpleNamespace(access_key="AKID", secret_key="hidden", token=token)
    session, exceptions = ModuleType("botocore.session"), ModuleType("botocore.exceptions")
    found = SimpleNamespace(get_frozen_credentials=lambda: frozen)
    monkeypatch.setattr(session, "get_session", lambda: SimpleNamespace(get_credentials=lambda: found), raising=False)
    monkeypatch.setattr(exceptions, "BotoCoreError", type("BotoCoreError", (Exception,), {}), raising=False)
    for module in (ModuleType("botocore"), session, exceptions):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    credentials = provider_of(None, {})()
    assert credentials == AwsCredentials("AKID", Secret("hidden"), None if token is None else Secret(token))
