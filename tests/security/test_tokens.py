# SPDX-License-Identifier: Apache-2.0
"""Tokens: kept for as long as they live, replaced at 80 % of it, fetched once for all who wait, never shown."""

from __future__ import annotations

import base64
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from unsigned_jwt import jwt

from kcodec.errors import AuthenticationError, TransportError
from kcodec.flow import Call, Done, Task
from kcodec.network.scheduler import Scheduler
from kcodec.security import Security
from kcodec.security.oauthbearer import (
    FETCH_SECONDS,
    MAXIMUM_TOKEN_CHARACTERS,
    FetchedToken,
    TokenSource,
    TransientTokenError,
    from_provider,
    lifetime_of,
)
from kcodec.security.secret import Secret

NOW = 1_800_000_000.0


class NoNetwork:
    def start_call(self, call: Call, done: Done) -> Callable[[], None]:
        raise AssertionError("tokens ask no broker")


class World:
    """A scheduler whose time is moved by hand, and whose worker answers when told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.blocked: deque[tuple[Callable[[], Any], Done]] = deque()
        self.scheduler = Scheduler(
            lambda: self.now, NoNetwork(), lambda function, done: self.blocked.append((function, done))
        )

    def run(self, seconds: float = 0.0) -> None:
        """Let time pass, doing all that is due, a worker's answer at once."""
        end = self.now + seconds
        while True:
            self.scheduler.run_ready()
            if self.blocked:
                self.answer()
                continue
            due = self.scheduler.next_wakeup()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
        self.now = end

    def answer(self) -> None:
        function, done = self.blocked.popleft()
        try:
            value = function()
        except (TransientTokenError, AuthenticationError, KeyError) as error:
            done(None, error)
        else:
            done(value, None)
        self.scheduler.run_ready()

    def get(self, source: TokenSource) -> Task[Secret]:
        task = self.scheduler.spawn(source.get(lambda: self.now), "get")
        task.when_done(lambda _: None)
        return task

    def token(self, source: TokenSource) -> str:
        task = self.get(source)
        self.run()
        assert task.error is None
        assert task.result is not None
        return task.result.reveal()


class Tokens:
    """token-1, token-2 ... with a lifetime; `fails` are raised first. `times` are of the world's clock."""

    def __init__(self, world: World, lifetime: float | None = 100.0, fails: list[Exception] | None = None) -> None:
        self.world, self.lifetime, self.fails = world, lifetime, fails or []
        self.times: list[float] = []

    def __call__(self) -> FetchedToken:
        self.times.append(self.world.now)
        if self.fails:
            raise self.fails.pop(0)
        return FetchedToken(Secret(f"token-{len(self.times)}"), self.lifetime)


def test_a_token_is_kept_and_replaced_at_80_percent_of_its_life() -> None:
    world = World()
    fetch = Tokens(world, lifetime=100.0)
    source = TokenSource(fetch, "a test")
    assert world.token(source) == "token-1"
    world.run(79.0)
    assert world.token(source) == "token-1"
    assert fetch.times == [100.0]
    world.run(1.5)
    assert fetch.times == [100.0, 180.0]
    assert world.token(source) == "token-2"
    world.run(400.0)
    assert fetch.times[2:] == [260.0, 340.0, 420.0, 500.0, 580.0]


def test_everybody_who_waits_gets_the_same_token() -> None:
    world = World()
    source = TokenSource(Tokens(world), "a test")
    tasks = [world.get(source) for _ in range(5)]
    world.scheduler.run_ready()
    assert len(world.blocked) == 1
    world.run()
    assert {task.result.reveal() for task in tasks if task.result} == {"token-1"}


def test_a_token_that_does_not_say_how_long_it_lives_is_used_once() -> None:
    world = World()
    source = TokenSource(Tokens(world, lifetime=None), "a test")
    assert [world.token(source) for _ in range(3)] == ["token-1", "token-2", "token-3"]


def test_a_token_that_a_broker_refused_is_not_given_again() -> None:
    world = World()
    source = TokenSource(Tokens(world), "a test")
    assert world.token(source) == "token-1"
    source.reject(Secret("another"))
    assert world.token(source) == "token-1"
    source.reject(Secret("token-1"))
    assert world.token(source) == "token-2"


def test_what_may_pass_is_tried_again_with_growing_pauses() -> None:
    world = World()
    fetch = Tokens(world, fails=[TransientTokenError("503")] * 4)
    source = TokenSource(fetch, "a test")
    task = world.get(source)
    world.run(10.0)
    assert task.result == Secret("token-5")
    pauses = [later - earlier for earlier, later in zip(fetch.times, fetch.times[1:], strict=False)]
    for pause, expected in zip(pauses, (0.1, 0.2, 0.4, 0.8), strict=True):
        assert 0.8 * expected <= pause <= 1.2 * expected


def test_waiting_for_a_token_ends_with_the_last_reason() -> None:
    world = World()
    source = TokenSource(Tokens(world, fails=[TransientTokenError("the door is shut")] * 1000), "a test")
    task = world.get(source)
    world.run(FETCH_SECONDS + 0.1)
    assert type(task.error) is TransportError
    assert "no token from a test within 30 s; last: the door is shut" in str(task.error)
    world.run(60.0)
    assert world.scheduler.tasks == [], "nobody waits any more, so nobody asks any more"


def test_a_refusal_is_not_repeated_without_a_request() -> None:
    world = World()
    fetch = Tokens(world, fails=[AuthenticationError("invalid_client")])
    source = TokenSource(fetch, "a test")
    task = world.get(source)
    world.run(100.0)
    assert type(task.error) is AuthenticationError
    assert str(task.error) == "invalid_client"
    assert len(fetch.times) == 1
    assert world.token(source) == "token-2"


def test_a_fetch_that_raises_an_unexpected_error_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    source = TokenSource(Tokens(world, fails=[KeyError("hidden")]), "a test")
    task = world.get(source)
    world.run(1.0)
    assert task.result == Secret("token-2")
    assert "a test raised KeyError" in caplog.text and "hidden" not in caplog.text


def test_a_provider_that_keeps_failing_is_the_cause_of_the_error() -> None:
    """It is not reported as a login that the broker refused."""

    def provide() -> str:
        raise KeyError("hidden")

    world = World()
    task = world.get(TokenSource(from_provider(provide), "sasl_oauth_token_provider"))
    world.run(FETCH_SECONDS + 0.1)
    assert type(task.error) is TransportError
    assert str(task.error).endswith("last: sasl_oauth_token_provider raised KeyError")
    assert task.error.__cause__ is not None
    assert isinstance(task.error.__cause__.__cause__, KeyError)


def test_clients_that_share_a_security_fetch_their_own_tokens() -> None:
    """Otherwise, the second login would wait for a signal that only the thread of the first client sets."""
    worlds = World(), World()
    given = iter(["token-1", "token-2"])
    options = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": lambda: (next(given), 3600.0),
    }
    shared = Security.from_options(options)
    found = []
    for world in worlds:
        security = shared.for_client()
        security.authenticate("localhost", lambda: 0.0)
        found.append(world.get(security._mechanism._tokens))  # type: ignore[union-attr]
        world.scheduler.run_ready()  # the first fetch is under way when the second begins
    for world in worlds:
        world.run()
    assert [task.result for task in found] == [Secret("token-1"), Secret("token-2")]


def test_a_fetch_that_hangs_stops_no_other() -> None:
    world = World()
    source = TokenSource(Tokens(world), "a test")
    task = world.get(source)
    world.scheduler.run_ready()
    world.now += FETCH_SECONDS + 1
    world.scheduler.run_ready()
    assert type(task.error) is TransportError
    world.answer()
    assert world.token(source) == "token-1"


@pytest.mark.parametrize("fault", [TransientTokenError("503"), AuthenticationError("no more")])
def test_the_old_token_serves_while_the_new_one_cannot_be_had(fault: Exception) -> None:
    world = World()
    fetch = Tokens(world, lifetime=100.0)
    source = TokenSource(fetch, "a test")
    world.token(source)
    fetch.fails = [fault]
    world.run(79.9)
    world.run(0.15)
    assert len(fetch.times) == 2
    assert world.token(source) == "token-1"
    world.run(25.0)
    assert world.token(source) == "token-3"


def interrupt(world: World, name: str) -> None:
    """Let Ctrl-C in asyncio interrupt a waiting flow."""
    task = next(task for task in world.scheduler.tasks if task.name == name)
    world.scheduler._suspensions[task].resume(None, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        world.scheduler.run_ready()


@pytest.mark.parametrize("name", ["tokens", "token source"])
def test_a_login_gets_its_token_although_the_fetch_was_interrupted(name: str) -> None:
    world = World()
    source = TokenSource(Tokens(world), "a test")
    task = world.get(source)
    world.scheduler.run_ready()
    world.blocked.clear()  # the response of the token provider gets lost with the flow that waits for it
    interrupt(world, name)
    world.run(0.1)
    assert task.result == Secret("token-1")


def test_tokens_are_still_replaced_after_an_interruption() -> None:
    world = World()
    fetch = Tokens(world, lifetime=100.0)
    source = TokenSource(fetch, "a test")
    world.token(source)
    world.run(50.0)
    interrupt(world, "tokens")
    world.run(100.0)
    assert fetch.times == [100.0, 150.0, 230.0]


def test_what_is_logged_and_shown_holds_no_token(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with caplog.at_level(logging.DEBUG):
        source = TokenSource(Tokens(world, fails=[TransientTokenError("503")]), "https://example.org/token")
        task = world.get(source)
        world.run(1.0)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "token-2" not in caplog.text + repr(source) + repr(vars(source)) + repr(task.result)


async def later() -> tuple[str, float]:
    return "from a coroutine", 7.0


class TokenObject:
    def token(self) -> str:
        return jwt({"exp": NOW + 50, "iat": NOW - 10})


@pytest.mark.parametrize(
    ("provider", "token", "lifetime"),
    [
        (lambda: "opaque", "opaque", None),
        (lambda: b"bytes", "bytes", None),
        (lambda: ("opaque", 60), "opaque", 60.0),
        (lambda: (Secret("hidden"), 60), "hidden", 60.0),
        (later, "from a coroutine", 7.0),
        (TokenObject(), TokenObject().token(), 50.0),
    ],
)
def test_providers_give_tokens_in_several_ways(provider: Any, token: str, lifetime: float | None) -> None:
    fetched = from_provider(provider, lambda: NOW)()
    assert (fetched.token.reveal(), fetched.lifetime) == (token, lifetime)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "returned a NoneType"),
        (("a", "b", "c"), "returned a tuple"),
        ("", "0 characters"),
        ("x" * (MAXIMUM_TOKEN_CHARACTERS + 1), "524289 characters"),
        (("hidden", 0), "positive"),
        (("hidden", -1), "positive"),
        (("hidden", True), "positive"),
        (("hidden", float("nan")), "positive"),
        (("hidden", float("inf")), "positive"),
        (("hidden", "soon"), "positive"),
        ("hidden\ud800", "surrogate"),
    ],
)
def test_a_provider_that_returns_nonsense_gets_a_clear_error(given: Any, words: str) -> None:
    with pytest.raises(AuthenticationError, match=words) as caught:
        from_provider(lambda: given)()
    assert "hidden" not in str(caught.value)


def test_errors_of_a_provider_keep_their_words_to_the_cause() -> None:
    def unreachable() -> str:
        raise ConnectionError("https://user:hidden@example.org")

    def mistaken() -> str:
        raise KeyError("hidden")

    with pytest.raises(TransientTokenError, match=r"raised ConnectionError$") as passing:
        from_provider(unreachable)()
    assert isinstance(passing.value.__cause__, ConnectionError)
    with pytest.raises(TransientTokenError, match=r"raised KeyError$") as failed:
        from_provider(mistaken)()
    assert isinstance(failed.value.__cause__, KeyError)


def test_a_provider_must_be_callable() -> None:
    with pytest.raises(TypeError, match="sasl_oauth_token_provider must be callable"):
        from_provider("a token itself")


@pytest.mark.parametrize(
    ("token", "lifetime"),
    [
        (jwt({"exp": NOW + 60, "iat": NOW - 40}), 60.0),
        (jwt({"exp": NOW + 60}), 60.0),
        (jwt({"exp": NOW + 3700, "iat": NOW + 3600}), 100.0),  # our clock is an hour behind
        (jwt({"exp": NOW - 3500, "iat": NOW - 3600}), 100.0),  # ... or ahead
        (jwt({"exp": NOW - 10}), None),
        (jwt({"iat": NOW}), None),
        (jwt({"exp": "soon"}), None),
        (jwt({"exp": True}), None),
        (jwt([1]), None),
        ("a.%%%.c", None),
        ("a.b", None),
        ("a." + base64.urlsafe_b64encode(b"[" * 100_000).decode() + ".c", None),
        ("a." + base64.urlsafe_b64encode(b'{"exp": 1e999}').decode() + ".c", None),
    ],
)
def test_a_jwt_gives_its_lifetime_and_nothing_else_is_trusted(token: str, lifetime: float | None) -> None:
    assert lifetime_of(Secret(token), NOW) == lifetime
