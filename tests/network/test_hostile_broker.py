# SPDX-License-Identifier: Apache-2.0
"""What a broker that means harm can put into memory, errors and logs: before and after it is authenticated."""

from __future__ import annotations

import gc
import logging
import re
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from client_runners import Make
from scripted_peer import APIS, Peer, Request, versions_reply
from usual_responses import init_producer_id, usual

from kcodec import errors
from kcodec.errors import AuthenticationError, KcodecError, TransportError
from kcodec.network.connection import MAX_UNAUTHENTICATED_RESPONSE_BYTES
from kcodec.network.logs import LOGGERS
from kcodec.network.scheduler import Timer
from kcodec.protocol.error_codes import ErrorCode, broker_error
from kcodec.protocol.messages.auth import (
    ApiVersion,
    ApiVersionsResponse,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from kcodec.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker, MetadataResponseTopic
from kcodec.protocol.messages.transactions import InitProducerIdResponse

API_VERSIONS, METADATA, HANDSHAKE, AUTHENTICATE, INIT = 18, 3, 17, 36, 22
PASSWORD = "correct horse/battery?staple"
TOKEN = "eyJhbGciOi.eyJzdWIiOiJhbGlj.c2lnbmF0dXJl"
SESSION_TOKEN = "FwoGZXIvYXdzEBYaDK+temporary/token=="
AWS_SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
PLAIN: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "alice",
    "sasl_plain_password": PASSWORD,
}
MECHANISMS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "PLAIN": (PLAIN, (PASSWORD,)),
    "SCRAM": (PLAIN | {"sasl_mechanism": "SCRAM-SHA-256"}, (PASSWORD,)),
    "OAUTHBEARER": (
        {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": lambda: (TOKEN, 60.0),
        },
        (TOKEN,),
    ),
    "AWS": (
        {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "AWS_MSK_IAM",
            "sasl_aws_region": "eu-west-1",
            "sasl_aws_credentials_provider": lambda: ("AKIDEXAMPLE", AWS_SECRET, SESSION_TOKEN),
        },
        (AWS_SECRET, SESSION_TOKEN),
    ),
}
LARGE = MAX_UNAUTHENTICATED_RESPONSE_BYTES + 1000


def answering(**replies: Callable[[Request], bytes]) -> Callable[[Peer, Request], bytes | None]:
    """A broker with SASL that answers these APIs (by the names of the constants above) as given."""
    by_key = {globals()[name]: reply for name, reply in replies.items()}

    def answer(peer: Peer, request: Request) -> bytes | None:
        if request.api_key in by_key:
            return by_key[request.api_key](request)
        if request.api_key == API_VERSIONS:
            return versions_reply(request, {**APIS, HANDSHAKE: (0, 1), AUTHENTICATE: (0, 2)})
        if request.api_key == HANDSHAKE:
            return request.reply(SaslHandshakeResponse(mechanisms=["PLAIN"]))
        if request.api_key == AUTHENTICATE:
            return request.reply(SaslAuthenticateResponse())
        return usual(peer, request)

    return answer


# Frames


def large_versions(request: Request) -> bytes:
    keys = [ApiVersion(api_key=number % 30000, max_version=1) for number in range(LARGE // 6)]
    return request.reply(ApiVersionsResponse(api_keys=keys))


def large_handshake(request: Request) -> bytes:
    return request.reply(SaslHandshakeResponse(mechanisms=["x" * 20_000] * (LARGE // 20_000 + 1) + ["PLAIN"]))


def large_authenticate(request: Request) -> bytes:
    return request.reply(SaslAuthenticateResponse(auth_bytes=b"x" * LARGE))


@pytest.mark.parametrize(
    "reply",
    [
        {"API_VERSIONS": large_versions},
        {"HANDSHAKE": large_handshake},
        {"AUTHENTICATE": large_authenticate},
    ],
    ids=["versions", "handshake", "authenticate"],
)
def test_large_frames_are_refused_before_authentication(
    make: Make, reply: dict[str, Callable[[Request], bytes]]
) -> None:
    """The limit for responses of 100 MiB holds only once the other side is known."""
    with Peer(answering(**reply)) as peer:
        with pytest.raises(TransportError, match="exceeds MAX_UNAUTHENTICATED_RESPONSE_BYTES=524288"):
            make(peer.address, request_timeout_ms=5000, **PLAIN).run(init_producer_id())
        assert INIT not in {request.api_key for request in peer.requests}


def test_large_frames_are_taken_after_authentication(make: Make) -> None:
    def metadata(request: Request) -> bytes:
        topics = [MetadataResponseTopic(name="t" * 200 + str(number)) for number in range(LARGE // 200)]
        broker = MetadataResponseBroker(node_id=1, host=peer.host, port=peer.port)
        return request.reply(MetadataResponse(brokers=[broker], controller_id=1, topics=topics))

    with Peer(answering(METADATA=metadata)) as peer:
        runner = make(peer.address, request_timeout_ms=5000, **PLAIN)
        runner.run(runner.client.cluster.refresh(5.0))
        assert sorted(runner.client.cluster.brokers) == [1]


def test_a_smaller_limit_of_the_caller_holds_from_the_start(make: Make) -> None:
    keys = [ApiVersion(api_key=number, max_version=1) for number in range(2000)]
    answer = answering(API_VERSIONS=lambda request: request.reply(ApiVersionsResponse(api_keys=keys)))
    with Peer(answer) as peer, pytest.raises(TransportError, match="exceeds max_response_bytes=4096"):
        make(peer.address, max_response_bytes=4096).run(init_producer_id())


# Secrets


def forms(secret: str) -> dict[str, str]:
    """How a server may quote a secret."""
    return {
        "as it is": f"password {secret} is wrong",
        "upper case": f"{secret.upper()}",
        "base64": b64encode(secret.encode()).decode(),
        "inside base64": b64encode(f"\0alice\0{secret}".encode()).decode(),
        "hexadecimal": secret.encode().hex().upper(),
        "percent": "".join(f"%{one:02X}" if not chr(one).isalnum() else chr(one) for one in secret.encode()),
        "at the cut": "x" * 495 + secret,
    }


def is_quoted(secret: str, text: str) -> bool:
    """Whether eight characters of the secret, or of what it becomes when encoded, are in the text."""
    data = secret.encode()
    found = [secret, data.hex(), *(b64encode(b"\0" * shift + data).decode()[4:-4] for shift in range(3))]
    lower = text.lower()
    return any(each.lower()[start : start + 8] in lower for each in found for start in range(max(len(each) - 7, 1)))


@pytest.mark.parametrize("form", forms(PASSWORD))
@pytest.mark.parametrize(
    ("mechanism", "place"),
    [
        (mechanism, place)
        for mechanism in MECHANISMS
        for place in ("error", "mechanisms", "message")
        if (mechanism, place) != ("PLAIN", "message")  # PLAIN reads nothing that the server says
    ],
)
def test_a_secret_that_a_broker_quotes_is_hidden(
    make: Make, mechanism: str, place: str, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In the words of its refusal, in the mechanisms it offers, and inside the messages of the mechanism."""
    login, secrets = MECHANISMS[mechanism]
    words = " and ".join(forms(secret)[form] for secret in secrets)
    replies: dict[str, Callable[[Request], bytes]] = {
        "error": lambda request: request.reply(SaslAuthenticateResponse(error_code=58, error_message=words)),
        "message": lambda request: request.reply(SaslAuthenticateResponse(auth_bytes=words.encode())),
        "mechanisms": lambda request: request.reply(SaslHandshakeResponse(error_code=33, mechanisms=[words])),
    }
    caplog.set_level(logging.DEBUG)
    answer = answering(**{"HANDSHAKE" if place == "mechanisms" else "AUTHENTICATE": replies[place]})
    with Peer(answer) as peer, pytest.raises(AuthenticationError) as caught:
        make(peer.address, request_timeout_ms=5000, **login).run(init_producer_id())
    shown = [str(caught.value), repr(caught.value), str(caught.value.__context__), caplog.text]
    assert [text for text in shown for secret in secrets if is_quoted(secret, text)] == []
    assert "<secr" in str(caught.value)


def test_a_proof_that_a_broker_quotes_is_hidden(make: Make) -> None:
    """A signature for AWS is valid for minutes, so a reader of the log could use it."""
    sent: list[bytes] = []

    def refuse(request: Request) -> bytes:
        sent.append(request.body)
        words = re.sub(rb"[^ -~]", b"", request.body).decode()
        return request.reply(SaslAuthenticateResponse(error_code=58, error_message="got " + words[-400:]))

    login, _ = MECHANISMS["AWS"]
    with Peer(answering(AUTHENTICATE=refuse)) as peer, pytest.raises(AuthenticationError) as caught:
        make(peer.address, request_timeout_ms=5000, **login).run(init_producer_id())
    signature = re.search(rb'"x-amz-signature":"([0-9a-f]{64})"', sent[0])
    assert signature is not None
    assert signature[1].decode() not in str(caught.value) and '"x-amz-signature":"<secret>"' in str(caught.value)


# Text


EVIL = "evil\n2026-01-01 CRITICAL forged\x1b[2J\u202e\u2028end"


def test_a_host_name_in_metadata_forges_no_log_line(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    def metadata(request: Request) -> bytes:
        brokers = [
            MetadataResponseBroker(node_id=1, host=peer.host, port=peer.port),
            MetadataResponseBroker(node_id=2, host=EVIL + "h" * 2000, port=1),
        ]
        return request.reply(MetadataResponse(brokers=brokers, controller_id=1))

    caplog.set_level(logging.DEBUG)
    with Peer(answering(METADATA=metadata)) as peer:
        runner = make(peer.address)
        runner.run(runner.client.cluster.refresh(5.0))
        with pytest.raises(TransportError, match="evil") as caught:
            runner.run(init_producer_id(node=2))
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1000
    about = [record.getMessage() for record in caplog.records if "evil" in record.getMessage()]
    assert about and all(text.isprintable() and len(text) < 1000 for text in about)


@pytest.mark.parametrize("name", sorted(LOGGERS))
def test_a_log_record_of_a_client_is_one_line(make: Make, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Topic names, member ids and reasons go to the log in many places; the loggers themselves escape."""
    make("127.0.0.1:1")
    caplog.set_level(logging.DEBUG)
    logging.getLogger(f"kcodec.{name}").info("lost: %s, %d", EVIL, 3)
    logging.getLogger(f"kcodec.{name}").info("lost: %s, %d", "orders", 3)
    hostile, plain = caplog.records
    assert hostile.getMessage() == r"lost: evil\n2026-01-01 CRITICAL forged\x1b[2J\u202e\u2028end, 3"
    assert plain.args == ("orders", 3)


def test_every_logger_of_the_clients_escapes() -> None:
    source = Path(errors.__file__).parent
    found = set()
    for package in (
        "client",
        "cluster",
        "consumer",
        "network",
        "producer",
        "protocol",
        "security",
        "session",
        "transactions",
    ):
        for path in (source / package).rglob("*.py"):
            found |= set(re.findall(r'getLogger\("kcodec\.(\w+)"\)', path.read_text()))
    assert found == set(LOGGERS)


def error_classes() -> list[type[KcodecError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, KcodecError)]


@pytest.mark.parametrize("kind", error_classes())
def test_the_text_of_an_error_is_one_line(kind: type[KcodecError]) -> None:
    required: dict[str, Any] = {
        "TruncatedError": {"needed": 1, "available": 0},
        "DeserializationError": {"offset": 1, "field": "key", "raw_record": None},
        "CorruptBatchError": {"stored_crc": 1, "computed_crc": 2},
        "LimitExceededError": {"limit": "x", "value": 1, "claimed": 2},
        "RecordValidationError": {"code": ErrorCode.INVALID_RECORD, "name": "INVALID_RECORD"},
        "TransactionStateError": {"state": "READY", "event": "COMMIT"},
        "OffsetOutOfRangeError": {"partition": ("t", 0), "position": 1},
        "LogTruncationError": {"partition": ("t", 0), "position": 1, "position_epoch": 1},
        "NoOffsetForPartitionError": {"partition": ("t", 0)},
        "TopicDeliveryError": {"topic": "t", "kind": "MESSAGE_TOO_LARGE", "count": 1},
        "AdminError": {"errors": {"t": errors.EncodeError(EVIL)}, "results": {}},
    }
    if kind is errors.DeliveryErrors:
        member = errors.TopicDeliveryError("failed", topic="t", kind="MESSAGE_TOO_LARGE", count=1)
        text = str(errors.DeliveryErrors(EVIL, [member]))
        assert text.isprintable() and r"evil\n2026-01-01 CRITICAL forged\x1b[2J" in text
        return
    fields = required.get(kind.__name__, {})
    if issubclass(kind, errors.BrokerError) and "partition" not in fields:
        fields = {"code": 1, "name": "OFFSET_OUT_OF_RANGE"}
    text = str(kind(EVIL, **fields))
    assert text.isprintable() and r"evil\n2026-01-01 CRITICAL forged\x1b[2J" in text


def test_names_and_messages_of_a_broker_are_escaped() -> None:
    text = str(broker_error(3, f"Produce to {EVIL}", resource=EVIL, message=EVIL))
    assert text.isprintable() and text.count("CRITICAL") == 3


# Timers


def test_throttled_responses_leave_no_timers_behind(make: Make) -> None:
    """Each of many throttled calls on one connection once kept its timer as long as the connection lived."""

    def throttled(request: Request) -> bytes:
        return request.reply(InitProducerIdResponse(throttle_time_ms=1, producer_id=1, producer_epoch=0))

    with Peer(answering(INIT=throttled)) as peer:
        runner = make(peer.address, request_timeout_ms=5000)
        runner.run(runner.client.cluster.refresh(5.0))
        for _ in range(200):
            runner.run(init_producer_id(node=1))
        time.sleep(0.01)
        gc.collect()
        own = runner.client.scheduler  # other tests may have left clients
        kept = [timer for timer in gc.get_objects() if type(timer) is Timer and timer._scheduler is own]
        connections = [timer for timer in kept if timer.action is None]
        # Cancelled time-outs of requests are swept out of the heap together, at most 256 at a time.
        assert len(kept) - len(connections) < 20
        (connection,) = [each for each in runner.client.network._connections.values() if each.node_id == 1]
        assert len(connection._timers) < 5


def test_a_connection_is_not_muted_once_a_throttle_has_ended(make: Make) -> None:
    """While it is muted, each call joins the queue and reads the clock before it is sent."""
    throttles = [200, 0]

    def throttled(request: Request) -> bytes:
        return request.reply(InitProducerIdResponse(throttle_time_ms=throttles.pop(0), producer_id=1, producer_epoch=0))

    with Peer(answering(INIT=throttled)) as peer:
        runner = make(peer.address, request_timeout_ms=5000)
        runner.run(runner.client.cluster.refresh(5.0))
        runner.run(init_producer_id(node=1))
        (connection,) = [each for each in runner.client.network._connections.values() if each.node_id == 1]
        assert connection._muted_until > 0
        runner.run(init_producer_id(node=1))
        assert connection._muted_until == 0


def test_calls_that_wait_for_a_throttled_broker_share_a_timer(make: Make) -> None:
    def throttled(request: Request) -> bytes:
        return request.reply(InitProducerIdResponse(throttle_time_ms=500, producer_id=1, producer_epoch=0))

    from kcodec.flow import Flow, join, spawn

    def many() -> Flow[int]:
        yield from init_producer_id(node=1)
        tasks = []
        for _ in range(100):
            tasks.append((yield from spawn(init_producer_id(node=1), "call")))
        (connection,) = [each for each in runner.client.network._connections.values() if each.node_id == 1]
        yield from init_producer_id(node=1)
        timers = len(connection._timers)
        for task in tasks:
            yield from join(task)
        return timers

    with Peer(answering(INIT=throttled)) as peer:
        runner = make(peer.address, request_timeout_ms=60_000, max_pipelined_requests=200)
        runner.run(runner.client.cluster.refresh(5.0))
        assert runner.run(many(), 90.0) < 5
