# SPDX-License-Identifier: Apache-2.0
"""Rules of the proxy: which request or response to change, and how.

`KafkaProxy.on_request` and `on_response` return a selection. A method of the selection adds a rule with the action of
this name. Each rule counts all frames that match it, even if another rule changes them. If several rules apply to a
frame, the oldest rule acts.
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
    """The action of a rule.

    kind:       One of hold, drop, cut, deliver_and_cut, duplicate, answer, replace.
    seconds:    For hold: maximum duration, or a function that returns it. None: until the rule is released.
    cut_client: For hold: whether the client's connection is closed immediately.
    content:    For answer and replace: a message, the bytes of its body, or a function of the exchange that returns
                one.
    """

    kind: str
    seconds: Seconds = None
    cut_client: bool = False
    content: Content = None


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects frames: the nth match, counted from 1, and `count` matches from there (None: all).

    rules:      active rules of the proxy, to which the action of this selection is added.
    direction:  "request" or "response".
    api:        name or number of the API, None for any.
    client_id:  client id of the request, None for any.
    node:       id of the broker, None for any.
    connection: number of the client's connection, None for any.
    where:      function of the exchange that returns whether it matches; None: each does.
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
            raise ValueError(f"nth and count must be at least 1, got nth={self.nth}, count={self.count}")

    def fits(self, exchange: Exchange) -> bool:
        """Return whether the rule matches this exchange, apart from its number."""
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
        """Hold the frame until the rule is released or for this number of seconds, then forward it.

        Later frames of the connection in that direction wait for it. A request reaches the broker even if its client
        has disconnected; with `cut_client` its connection is closed as soon as the request has arrived.
        """
        return self._act(Action("hold", seconds, cut_client))

    def drop(self) -> Rule:
        """Drop the frame, and all later frames of the connection in that direction. The connection stays open, and the
        client waits for a response that does not arrive.

        In a TCP connection, no frame is lost alone. A client that got a later response would report a wrong correlation
        id. Rules continue to count the later frames, but only `cut` and `deliver_and_cut` act on them.
        """
        return self._act(Action("drop"))

    def cut(self) -> Rule:
        """Close the connection instead: the broker never gets the request, or the client never gets the response."""
        return self._act(Action("cut"))

    def deliver_and_cut(self) -> Rule:
        """Forward the frame and then close the client's connection.

        If it is a request, the broker processes it, and its client gets no response. A response is the last one that
        the client gets.
        """
        return self._act(Action("deliver_and_cut"))

    def duplicate(self) -> Rule:
        """Forward it twice. The response to the copy of a request is dropped."""
        return self._act(Action("duplicate"))

    def replace(self, content: Content = None, *, error: int | None = None) -> Rule:
        """Forward another message.

        content: a message, the bytes of a body, or a function of the exchange that returns one of them.
        error:   for a response: this code in each of its error fields.

        Raise ValueError unless exactly one of them is given.
        """
        if error is not None and self.direction == "request":
            raise ValueError("replace(error=): a request has no error code; use answer(error=) to respond with one")
        return self._act(Action("replace", content=_content(content, error, self.direction)))

    def answer(self, content: Content = None, *, error: int | None = None) -> Rule:
        """Respond to the request without the broker.

        content: a message, the bytes of a body, or a function of the exchange that returns one of them.
        error:   this code for each topic, partition or key that the request names.

        Raise ValueError unless exactly one of them is given, and for the selection of a response.
        """
        if self.direction != "request":
            raise ValueError("answer(): the broker has responded already; use replace() to send another response")
        return self._act(Action("answer", content=_content(content, error, self.direction)))

    def _act(self, action: Action) -> Rule:
        return self.rules.add(Rule(self, action))


def _content(content: Content, error: int | None, direction: str) -> Content:
    if (content is None) == (error is None):
        found = "neither content nor error= is given" if content is None else "content and error= are both given"
        raise ValueError(f"{found}; pass one of them")
    if error is None:
        return content
    from kcodec.testing.proxy import answers

    code = error
    if direction == "request":
        return lambda exchange: answers.error_answer(exchange.request_message(), exchange.version, code)
    return lambda exchange: answers.with_error(exchange.response_message(), exchange.version, code)


class Rule:
    """An active rule. `hits` are the exchanges that it acted on, in order."""

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
        """Count a match, and return whether the rule acts on it. The proxy calls this once for each frame."""
        if not self.selection.fits(exchange):
            return False
        self._seen += 1
        first, count = self.selection.nth, self.selection.count
        return self._seen >= first and (count is None or self._seen < first + count)

    def note(self, exchange: Exchange) -> None:
        """Note that the rule acts on this exchange. The proxy calls this."""
        with self._hit:
            exchange.actions += (self.action.kind,)
            self.hits.append(exchange)
            self._hit.notify_all()

    def wait_hit(self, timeout: float, hits: int = 1) -> Exchange:
        """Wait until the rule has acted `hits` times; return the last of these exchanges. Raise TimeoutError after
        `timeout` seconds."""
        with self._hit:
            if not self._hit.wait_for(lambda: len(self.hits) >= hits, timeout):
                raise TimeoutError(f"{self!r}: expected {hits} hits within {timeout} s, found {len(self.hits)}")
            return self.hits[hits - 1]

    def wait_release(self) -> None:
        """Wait until a held frame may be forwarded. The proxy calls this."""
        seconds = self.action.seconds
        self._released.wait(seconds() if callable(seconds) else seconds)

    def release(self) -> None:
        """Release held frames, and hold no more frames."""
        self._released.set()

    def remove(self) -> None:
        """Remove the rule and release what it holds."""
        self.selection.rules.discard(self)
        self.release()


class Rules:
    """The active rules, in the order of their creation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Rule] = []

    def add(self, rule: Rule) -> Rule:
        """Activate a rule."""
        with self._lock:
            self._rules.append(rule)
        return rule

    def discard(self, rule: Rule) -> None:
        """Deactivate a rule, if it is active."""
        with self._lock:
            self._rules = [other for other in self._rules if other is not rule]

    def clear(self) -> None:
        """Remove all rules and release what they hold."""
        with self._lock:
            rules, self._rules = self._rules, []
        for rule in rules:
            rule.release()

    def match(self, direction: str, exchange: Exchange) -> Rule | None:
        """Return the rule that acts on this frame. All matching rules count it."""
        with self._lock:
            turn = [rule for rule in self._rules if rule.selection.direction == direction and rule.take(exchange)]
        if not turn:
            return None
        turn[0].note(exchange)
        return turn[0]
