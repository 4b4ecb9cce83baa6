# SPDX-License-Identifier: Apache-2.0
"""Whatever a peer says in a SASL exchange, from a token endpoint, or in a token: an answer, or one of our errors."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kcodec.errors import AuthenticationError
from kcodec.security.aws_msk_iam import AwsCredentials, aws_msk_iam
from kcodec.security.oauthbearer import FetchedToken, lifetime_of, oauthbearer
from kcodec.security.oidc import ClientCredentials
from kcodec.security.sasl import ExchangeRefused, shown
from kcodec.security.scram import Scram, check_server, parse_challenge
from kcodec.security.secret import Secret

# Bytes of any kind, and such as are nearly right.
NEARLY = st.text(alphabet="rsiveabcAB019=,+/-\n\0é", max_size=60).map(lambda text: text.encode())
SAID = (
    st.binary(max_size=200)
    | NEARLY
    | NEARLY.map(lambda text: b"r=abcX,s=" + text + b",i=4096")
    | NEARLY.map(b"v=".__add__)
)
CREDENTIALS = AwsCredentials("AKID", Secret("hidden"))
ENDPOINT = ClientCredentials("http://localhost/", "client", Secret("hidden"), wall_clock=lambda: 0.0)


@given(SAID)
def test_a_challenge_is_taken_or_refused(said: bytes) -> None:
    try:
        challenge = parse_challenge(said, "abc")
    except ExchangeRefused as refused:
        assert "hidden" not in refused.reason
    else:
        assert challenge.nonce.startswith("abc")
        assert 4096 <= challenge.iterations <= 262_144


@given(SAID, SAID)
def test_no_server_proves_itself_by_accident(first: bytes, last: bytes) -> None:
    exchange = Scram("SCRAM-SHA-256", "user", Secret("hidden")).exchange("abc")
    next(exchange)
    try:
        exchange.send(first)
        exchange.send(last)
    except ExchangeRefused as refused:
        assert "hidden" not in refused.reason
    else:
        raise AssertionError("a server was believed that knows nothing")


@given(SAID, st.binary(min_size=32, max_size=32))
def test_only_the_right_signature_passes(last: bytes, expected: bytes) -> None:
    try:
        check_server(last, expected)
    except ExchangeRefused:
        return
    raise AssertionError("an arbitrary signature was taken")


@given(st.lists(SAID, min_size=2, max_size=2))
def test_the_other_exchanges_end(said: list[bytes]) -> None:
    for exchange in (
        oauthbearer(Secret("token"), {}),
        aws_msk_iam("host", "eu-west-1", CREDENTIALS, "20260102T030405Z", "kcodec"),
    ):
        next(exchange)
        try:
            for each in said:
                exchange.send(each)
        except (StopIteration, ExchangeRefused):
            continue
        raise AssertionError("it goes on")


@given(st.text(max_size=700))
def test_what_a_peer_says_is_one_printable_line(text: str) -> None:
    assert shown(text).isprintable()
    assert len(shown(text)) <= 503


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["access_token", "expires_in"]), inner),
    max_leaves=8,
)


@given(st.binary(max_size=100) | JSON.map(lambda value: repr(value).replace("'", '"').encode("utf-8", "surrogatepass")))
def test_a_token_endpoint_gives_a_token_or_is_refused(answer: bytes) -> None:
    try:
        fetched = ENDPOINT._token(answer)
    except AuthenticationError:
        return
    assert isinstance(fetched, FetchedToken)
    assert fetched.lifetime is None or 0 < fetched.lifetime < float("inf")


@given(st.text(alphabet="abcdefABCDEF0123456789._-=", max_size=80), st.floats(0, 4e9))
def test_a_token_lives_for_a_while_or_does_not_say(token: str, now: float) -> None:
    lifetime = lifetime_of(Secret(token), now)
    assert lifetime is None or 0 < lifetime < float("inf")
