# SPDX-License-Identifier: Apache-2.0
"""SASL exchanges without a network: the RFCs' own examples, and servers that lie, stumble or ask too much."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from typing import Any

import pytest

from kcodec.errors import AuthenticationError
from kcodec.flow import ANY_NODE, Call, Reply
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.auth import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kcodec.security.oauthbearer import check_extensions, oauthbearer
from kcodec.security.sasl import (
    MAX_EXCHANGE_MESSAGES,
    MAX_MESSAGE_CHARACTERS,
    Exchange,
    ExchangeRefused,
    authenticate,
    plain,
)
from kcodec.security.scram import MAXIMUM_ITERATIONS, Scram, parse_challenge
from kcodec.security.secret import Secret

# RFC 7677 section 3.
SHA256_NONCE = "rOprNGfwEbeRWgbNEkqO"
SHA256_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SHA256_CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SHA256_PROOF = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SHA256_SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def finish(exchange: Exchange, answer: bytes) -> None:
    """Send the server's last word; the exchange must be content and say no more."""
    with pytest.raises(StopIteration):
        exchange.send(answer)


def scram(mechanism: str = "SCRAM-SHA-256", username: str = "user", password: str = "pencil") -> Scram:
    return Scram(mechanism, username, Secret(password))


def test_a_token_login_has_kafkas_extension() -> None:
    """Kafka: ScramMessages.ClientFirstMessage; the extension is part of what the proof signs."""
    exchange = Scram("SCRAM-SHA-256", "user", Secret("pencil"), with_token=True).exchange(SHA256_NONCE)
    assert next(exchange) == SHA256_FIRST + b",tokenauth=true"
    assert exchange.send(SHA256_CHALLENGE) != SHA256_PROOF


class ScramServer:
    """RFC 5802's server, from its text."""

    def __init__(
        self, hash_name: str, password: str, salt: bytes = b"salt-of-a-server", iterations: int = 4096
    ) -> None:
        self.hash_name = hash_name
        self.salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
        self.first = b""
        self.challenge_end = b",s=" + b64encode(salt) + b",i=" + str(iterations).encode()

    def challenge(self, client_first: bytes) -> bytes:
        self.bare = client_first.removeprefix(b"n,,")
        self.first = b"r=" + self.bare.partition(b",r=")[2] + b"server" + self.challenge_end
        return self.first

    def verify(self, client_final: bytes) -> bytes:
        without_proof, _, proof = client_final.partition(b",p=")
        signed = self.bare + b"," + self.first + b"," + without_proof
        stored = hashlib.new(self.hash_name, self._mac(self.salted, b"Client Key")).digest()
        client_key = bytes(a ^ b for a, b in zip(b64decode(proof), self._mac(stored, signed), strict=True))
        if hashlib.new(self.hash_name, client_key).digest() != stored:
            return b"e=invalid-proof"
        return b"v=" + b64encode(self._mac(self._mac(self.salted, b"Server Key"), signed))

    def _mac(self, key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, self.hash_name)


def test_scram_sha_256_says_what_rfc_7677_shows() -> None:
    exchange = scram().exchange(SHA256_NONCE)
    assert next(exchange) == SHA256_FIRST
    assert exchange.send(SHA256_CHALLENGE) == SHA256_PROOF
    finish(exchange, SHA256_SIGNATURE)


@pytest.mark.parametrize(("mechanism", "hash_name"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")])
def test_scram_convinces_a_server_written_from_the_rfc_again_and_again(mechanism: str, hash_name: str) -> None:
    user, server = scram(mechanism, "al,i=ce", "пароль"), ScramServer(hash_name, "пароль")
    for nonce in ("first", "second"):
        exchange = user.exchange(nonce)
        first = next(exchange)
        assert first == b"n,,n=al=2Ci=3Dce,r=" + nonce.encode()
        finish(exchange, server.verify(exchange.send(server.challenge(first))))


@pytest.mark.parametrize("text", ["zo\u00eb", "\u2168\u00a0", "\u00ad", "e\u0301", "\u06271", "\U0001f511"])
def test_names_and_passwords_are_utf_8_as_given(text: str) -> None:
    """No normal form, nothing mapped to a space, left out or refused: SASLprep would do all of it."""
    exchange, server = scram(username=text, password=text).exchange("nonce"), ScramServer("sha256", text)
    first = next(exchange)
    assert first == b"n,,n=" + text.encode() + b",r=nonce"
    finish(exchange, server.verify(exchange.send(server.challenge(first))))
    assert next(plain(text, Secret(text))) == b"\0" + text.encode() + b"\0" + text.encode()


def test_keys_are_derived_again_when_the_server_changes_its_salt() -> None:
    user = scram()
    for salt in (b"one salt", b"another salt"):
        server, exchange = ScramServer("sha256", "pencil", salt), user.exchange("nonce")
        finish(exchange, server.verify(exchange.send(server.challenge(next(exchange)))))


def test_a_server_that_does_not_know_the_password_is_not_believed() -> None:
    exchange = scram().exchange(SHA256_NONCE)
    next(exchange)
    exchange.send(SHA256_CHALLENGE)
    with pytest.raises(ExchangeRefused, match="does not know this user's password"):
        exchange.send(b"v=" + b64encode(bytes(32)))


@pytest.mark.parametrize("final", [b"", b"v=", b"v=!", b"v=abc", b"x=y", b"\xff\xfe", b"v=AAAA" * 1000])
def test_a_last_answer_out_of_grammar_is_refused(final: bytes) -> None:
    exchange = scram().exchange(SHA256_NONCE)
    next(exchange)
    exchange.send(SHA256_CHALLENGE)
    with pytest.raises(ExchangeRefused, match=r"not a valid SCRAM message|not valid base64|does not know"):
        exchange.send(final)


def test_an_error_of_the_server_is_shown() -> None:
    exchange = scram().exchange(SHA256_NONCE)
    next(exchange)
    exchange.send(SHA256_CHALLENGE)
    with pytest.raises(ExchangeRefused, match="'other-error'"):
        exchange.send(b"e=other-error")


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        (b"", "not a valid SCRAM message"),
        (b"r=abcX,s=c2FsdA==", "not a valid SCRAM message"),
        (b"m=ext,r=abcX,s=c2FsdA==,i=4096", "not a valid SCRAM message"),
        (b"r=abcX,s=c2FsdA==,i=-1", "not a valid SCRAM message"),
        (b"r=abcX,s=c2FsdA==,i=4096\n", "not a valid SCRAM message"),
        (b"r=abcX,s=c2FsdA==,i=" + b"9" * 5000, "not a valid SCRAM message"),
        (b"r=abcX,s=c2F=dA,i=4096", "not valid base64"),
        (b"r=abc,s=c2FsdA==,i=4096", "nonce"),
        (b"r=xyzX,s=c2FsdA==,i=4096", "nonce"),
        (b"r=abcX,s=c2FsdA==,i=4095", "fewer than 4096"),
        (b"r=abcX,s=c2FsdA==,i=1", "fewer than 4096"),
        (f"r=abcX,s=c2FsdA==,i={MAXIMUM_ITERATIONS + 1}".encode(), "more than"),
        (b"r=abcX,s=c2FsdA==,i=9999999999", "more than"),
    ],
)
def test_a_challenge_that_breaks_the_rules_costs_no_work(challenge: bytes, reason: str) -> None:
    with pytest.raises(ExchangeRefused, match=reason):
        parse_challenge(challenge, "abc")


def test_extensions_behind_the_iterations_are_ignored() -> None:
    assert parse_challenge(b"r=abcX,s=c2FsdA==,i=4096,x=later", "abc").iterations == 4096


def test_plain_is_one_message() -> None:
    exchange = plain("alice", Secret("se=cr,et"))
    assert next(exchange) == b"\0alice\0se=cr,et"
    finish(exchange, b"")


@pytest.mark.parametrize(("username", "password"), [("a\0b", "c"), ("a", "b\0c")])
def test_plain_cannot_say_nul(username: str, password: str) -> None:
    with pytest.raises(ExchangeRefused, match="NUL"):
        next(plain(username, Secret(password)))


def test_oauthbearer_is_one_message_with_extensions() -> None:
    exchange = oauthbearer(Secret("a.b-c_d~e+f/g=="), {"logicalCluster": "lkc-1", "pool": "x y"})
    assert next(exchange) == (b"n,,\x01auth=Bearer a.b-c_d~e+f/g==\x01logicalCluster=lkc-1\x01pool=x y\x01\x01")
    finish(exchange, b"")


def test_oauthbearer_without_extensions_ends_with_two_separators() -> None:
    assert next(oauthbearer(Secret("token"), {})) == b"n,,\x01auth=Bearer token\x01\x01"


def test_oauthbearer_lets_the_server_finish_its_refusal() -> None:
    exchange = oauthbearer(Secret("token"), {})
    next(exchange)
    assert exchange.send(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(ExchangeRefused, match="invalid_token"):
        exchange.send(b"")


@pytest.mark.parametrize("token", ["", "Bearer x", "a\n", "a\x01b", "é"])
def test_a_token_that_could_break_the_message_is_not_sent(token: str) -> None:
    with pytest.raises(ExchangeRefused, match="RFC 6750"):
        next(oauthbearer(Secret(token), {}))


@pytest.mark.parametrize("extensions", [{"auth": "x"}, {"a1": "x"}, {"": "x"}, {"a": "\x01"}, {"a": "é"}, {"a": 1}])
def test_extensions_that_cannot_be_carried_are_refused(extensions: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="sasl_oauthbearer_extensions"):
        check_extensions(extensions)


Answers = list[Any]


def log_in(mechanism: str, exchange: Exchange, answers: Answers) -> tuple[float | None, list[Any]]:
    """Run `authenticate` against these answers: the lifetime, and the requests."""
    flow = authenticate(mechanism, exchange, principal="user 'alice'", host="broker", remedy="check it", timeout=5.0)
    requests, value = [], None
    try:
        while True:
            effect = flow.send(value)
            assert isinstance(effect, Call)
            assert (effect.node, effect.timeout) == (ANY_NODE, 5.0)
            requests.append(effect)
            value = Reply(answers.pop(0), 1, ANY_NODE)
    except StopIteration as stop:
        return stop.value, requests


def offered(error: int = 0, mechanisms: tuple[str, ...] = ("PLAIN", "SCRAM-SHA-256")) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=error, mechanisms=list(mechanisms))


def taken(data: bytes = b"", lifetime_ms: int = 0) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(auth_bytes=data, session_lifetime_ms=lifetime_ms)


def refused(words: str | None, code: int = ErrorCode.SASL_AUTHENTICATION_FAILED) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=code, error_message=words)


def plain_login(*answers: Any) -> tuple[float | None, list[Any]]:
    return log_in("PLAIN", plain("alice", Secret("s3same")), list(answers))


@pytest.mark.parametrize(("lifetime_ms", "seconds"), [(0, None), (-1, None), (3_600_000, 3600.0), (1, 0.001)])
def test_a_login_is_a_handshake_and_the_exchange(lifetime_ms: int, seconds: float | None) -> None:
    lifetime, (handshake, token) = plain_login(offered(), taken(lifetime_ms=lifetime_ms))
    assert lifetime == seconds
    assert handshake.request == SaslHandshakeRequest(mechanism="PLAIN")
    assert handshake.lowest == 1, "version 0 has no frames for what follows"
    assert token.request == SaslAuthenticateRequest(auth_bytes=b"\0alice\0s3same")
    assert "s3same" not in repr(token)


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        (
            [offered(ErrorCode.UNSUPPORTED_SASL_MECHANISM)],
            "SASL PLAIN as user 'alice' on broker: this listener supports PLAIN, SCRAM-SHA-256: set sasl_mechanism to "
            "one of these [UNSUPPORTED_SASL_MECHANISM, 33]",
        ),
        ([offered(ErrorCode.UNSUPPORTED_SASL_MECHANISM, ())], "this listener supports nothing"),
        (
            [offered(ErrorCode.UNSUPPORTED_SASL_MECHANISM, tuple(f"M{number}\n" for number in range(99)))],
            "M14\\n, M15\\n: set",
        ),
        (
            [offered(ErrorCode.ILLEGAL_SASL_STATE)],
            "check that security_protocol matches the listener [ILLEGAL_SASL_STATE, 34]",
        ),
        (
            [offered(ErrorCode.UNKNOWN_SERVER_ERROR)],
            "the broker failed with an error that has no code of its own [UNKNOWN_SERVER_ERROR, -1]",
        ),
        ([offered(9999)], "[UNKNOWN, 9999]"),
        (
            [offered(), refused("No such\r\nuser")],
            "on broker: No such\\r\\nuser; check it [SASL_AUTHENTICATION_FAILED, 58]",
        ),
        ([offered(), refused(None)], "on broker: the broker rejected the credentials; check it"),
        ([offered(), refused("x" * 10_000)], "x" * MAX_MESSAGE_CHARACTERS + "...; check it"),
        ([offered(), refused("later", ErrorCode.REQUEST_TIMED_OUT)], "on broker: later [REQUEST_TIMED_OUT, 7]"),
    ],
)
def test_a_refusal_is_one_line_with_its_remedy(answers: Answers, text: str) -> None:
    with pytest.raises(AuthenticationError) as caught:
        plain_login(*answers)
    assert text in str(caught.value)
    assert str(caught.value).isprintable()
    assert "s3same" not in str(caught.value)


def test_a_server_that_lies_is_an_authentication_error_too() -> None:
    exchange = scram().exchange("abc")
    with pytest.raises(
        AuthenticationError, match=r"^SASL SCRAM-SHA-256 as user 'alice' on broker: the broker requests 1 iter"
    ):
        log_in("SCRAM-SHA-256", exchange, [offered(), taken(b"r=abcX,s=c2FsdA==,i=1")])


def test_an_endless_exchange_is_ended() -> None:
    def talkative() -> Exchange:
        while True:
            yield b"and"

    with pytest.raises(AuthenticationError, match="is not complete after"):
        log_in("TALK", talkative(), [offered(), *[taken(b"then")] * MAX_EXCHANGE_MESSAGES])


def test_the_json_of_a_refused_token_is_shown_if_the_broker_forgets_its_error() -> None:
    with pytest.raises(AuthenticationError, match=r'the broker responded \{"status":"invalid_token"\}'):
        log_in("OAUTHBEARER", oauthbearer(Secret("t"), {}), [offered(), taken(b'{"status":"invalid_token"}'), taken()])
