# SPDX-License-Identifier: Apache-2.0
"""Rules of the proxy: which request or response something is to happen to, and what.

`KafkaProxy.on_request` and `on_response` give a selection; its methods name the action and put the rule in force. Every
rule counts the frames that fit it, whatever other rules do with them; of the rules whose turn it is, the one made first
acts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kcodec.testing.proxy.frames import Exchange, api_key

# A message, the bytes of its body, or a function of the exchange that gives one of them.
Content = Any
Seconds = float | Callable[[], float] | None


@dataclass(frozen=True, slots=True)
class Action:
    """What a rule does.

    kind:       hold, drop, cut, deliver_and_cut, duplicate, answer, replace.
    seconds:    of hold: how long at most, or a function that says so; None: until the rule is released.
    cut_client: of hold: whether the client's connection is closed at once.
    content:    of answer and replace: a message, the bytes of its body, or a function of the exchange that gives one.
    """

    kind: str
    seconds: Seconds = None
    cut_client: bool = False
    content: Content = None


@dataclass(frozen=True, slots=True)
class Selection:
    """Which frames: the nth that fits, counted from 1, and so many from then on (None: all).

    api:        name or number of the API, None for any.
    where:      function of the exchange that says whether it fits; None: each does.
    """

    rules: Rules
    direction: str
    api: str | int | None = None
    nth: int = 1
    count: int | None = 1
    client_id: str | None = None
    node: int | None = None
    connection: int | None = None
    where: Callable[[Exchange], bool] | None = None

    def __post_init__(self) -> None:
        if self.api is not None:
            api_key(self.api)
        if self.nth < 1 or (self.count is not None and self.count < 1):
            raise ValueError(f"nth {self.nth}, count {self.count}: both count from 1")

    def fits(self, exchange: Exchange) -> bool:
        """Whether the rule is about this exchange, its number aside."""
        pairs = (
            (self.client_id, exchange.client_id),
            (self.node, exchange.node),
            (self.connection, exchange.connection),
            (None if self.api is None else api_key(self.api), exchange.api_key),
        )
        return all(expected is None or expected == found for expected, found in pairs) and (
            self.where is None or self.where(exchange)
        )

    def hold(self, seconds: Seconds = None, *, cut_client: bool = False) -> Rule:
        """Keep the frame until the rule is released or for so many seconds, then let it through.

        What follows on the connection in that direction waits behind it. A request reaches the broker also when its
        client has gone; with `cut_client` its connection is closed as soon as the request has come.
        """
        return self._act(Action("hold", seconds, cut_client))

    def drop(self) -> Rule:
        """Swallow the frame. The connection stays, and the client waits for an answer that does not come."""
        return self._act(Action("drop"))

    def cut(self) -> Rule:
        """Close the connection instead: the broker never gets the request, or the client never gets the response."""
        return self._act(Action("cut"))

    def deliver_and_cut(self) -> Rule:
        """Let the frame through and close the client's connection behind it.

        A request is carried out and its client gets no answer; a response is the last one the client gets.
        """
        return self._act(Action("deliver_and_cut"))

    def duplicate(self) -> Rule:
        """Let it through twice. The answer to a request's copy is swallowed."""
        return self._act(Action("duplicate"))

    def replace(self, content: Content = None, *, error: int | None = None) -> Rule:
        """Send something else on: a message, the bytes of a body, or what a function of the exchange gives.

        error: of a response: this code in each of its error fields.
        """
        if error is not None and self.direction == "request":
            raise ValueError("replace(error=): a request holds no error code; answer(error=) answers it with one")
        return self._act(Action("replace", content=_content(content, error, self.direction)))

    def answer(self, content: Content = None, *, error: int | None = None) -> Rule:
        """Answer the request without asking the broker, with a message, the bytes of a body, what a function of the
        exchange gives, or an answer that says `error` of each topic, partition, key the request names."""
        if self.direction != "request":
            raise ValueError("answer: the broker has answered already; replace() sends another response")
        return self._act(Action("answer", content=_content(content, error, self.direction)))

    def _act(self, action: Action) -> Rule:
        return self.rules.add(Rule(self, action))


def _content(content: Content, error: int | None, direction: str) -> Content:
    if (content is None) == (error is None):
        raise ValueError("one of content and error= is wanted")
    if error is None:
        return content
    from kcodec.testing.proxy import answers

    code = error
    if direction == "request":
        return lambda exchange: answers.error_answer(exchange.request_message(), exchange.version, code)
    return lambda exchange: answers.with_error(exchange.response_message(), exchange.version, code)


class Rule:
    """A rule in force. `hits` are the exchanges it acted on, in order."""

    def __init__(self, selection: Selection, action: Action) -> None:
        self.selection = selection
        self.action = action
        self.hits: list[Exchange] = []
        self._seen = 0
        self._released = threading.Event()
        self._hit = threading.Condition()

    def __repr__(self) -> str:
        chosen = self.selection
        return f"<Rule {self.action.kind} {chosen.direction} {chosen.api} nth={chosen.nth} hits={len(self.hits)}>"

    def take(self, exchange: Exchange) -> bool:
        """For the proxy, which calls it once a frame: count it if it fits, and say whether the rule acts on it."""
        if not self.selection.fits(exchange):
            return False
        self._seen += 1
        first, count = self.selection.nth, self.selection.count
        return self._seen >= first and (count is None or self._seen < first + count)

    def note(self, exchange: Exchange) -> None:
        """For the proxy: the rule acts on this exchange."""
        with self._hit:
            exchange.actions += (self.action.kind,)
            self.hits.append(exchange)
            self._hit.notify_all()

    def wait_hit(self, timeout: float, hits: int = 1) -> Exchange:
        """Wait until the rule has acted so many times; the last of these exchanges. TimeoutError after so many
        seconds."""
        with self._hit:
            if not self._hit.wait_for(lambda: len(self.hits) >= hits, timeout):
                raise TimeoutError(f"{self!r}: {hits} wanted within {timeout} s")
            return self.hits[hits - 1]

    def wait_release(self) -> None:
        """For the proxy: return when a held frame is to go on."""
        seconds = self.action.seconds
        self._released.wait(seconds() if callable(seconds) else seconds)

    def release(self) -> None:
        """Let go what it holds, and hold nothing from now on."""
        self._released.set()

    def remove(self) -> None:
        """End the rule and let go what it holds."""
        self.selection.rules.discard(self)
        self.release()


class Rules:
    """The rules in force, in the order they were made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Rule] = []

    def add(self, rule: Rule) -> Rule:
        """Put a rule in force."""
        with self._lock:
            self._rules.append(rule)
        return rule

    def discard(self, rule: Rule) -> None:
        """Take a rule out of force; nothing happens if it was not."""
        with self._lock:
            self._rules = [other for other in self._rules if other is not rule]

    def clear(self) -> None:
        """End all rules and let go what they hold."""
        with self._lock:
            rules, self._rules = self._rules, []
        for rule in rules:
            rule.release()

    def match(self, direction: str, exchange: Exchange) -> Rule | None:
        """The rule that acts on this frame; all that fit count it."""
        with self._lock:
            turn = [rule for rule in self._rules if rule.selection.direction == direction and rule.take(exchange)]
        if not turn:
            return None
        turn[0].note(exchange)
        return turn[0]
