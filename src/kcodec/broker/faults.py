# SPDX-License-Identifier: Apache-2.0
"""Faults on demand: rules that say which requests go wrong, and how.

    broker.faults.add("Produce", topic="orders", count=1, drop="after")      # handled, but not responded to
    broker.faults.add("EndTxn", error="COORDINATOR_NOT_AVAILABLE", count=3)
    broker.faults.add("Fetch", client="reader-1", delay_ms=500, probability=0.2)

The first rule that matches a request is applied to it. A rule without an effect only counts requests in `hits`, and the
rules after it are compared with the request, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kcodec.arguments import check_kind, meant_by
from kcodec.broker.partial_requests import names_topics, partitions_of
from kcodec.broker.topics import Topics
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.schema import Message

MOMENTS = ("before", "after")
#: The types of the fields of a rule. A topic of another type, for example, would be equal to none of a request.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("topic", "client"), ((str, type(None)), "a str or None")),
    **dict.fromkeys(("partition", "count"), ((int, type(None)), "an int or None")),
    "skip": ((int,), "an int"),
    "probability": ((int, float), "a number"),
    "delay_ms": ((int, float), "a number of ms"),
    **dict.fromkeys(("duplicate", "reorder"), ((bool,), "True or False")),
}
_EFFECTS = ("delay_ms", "error", "drop", "close", "duplicate", "reorder")
_FIELDS = ("topic", "partition", "client", "skip", "count", "probability", *_EFFECTS)


@dataclass
class FaultRule:
    """Which requests fail, and how. `hits` counts the requests to which the rule was applied.

    api:         Name of the API, "Produce"; "*" for all.
    topic, partition: Only requests that name this topic, or this partition.
    client:      Only requests with this client id.
    skip:        Number of matching requests that are handled normally before the rule is applied.
    count:       Maximum number of requests to which the rule is applied; None for no limit.
    probability: Probability with which the rule is applied to a matching request. The setting `seed` determines the
    random numbers.

    delay_ms:    Time to wait before the request is handled.
    error:       Respond with this error code, without handling the request. With `topic` or `partition`, the other
                 partitions of the request are handled.
    drop:        "before": do not handle the request; "after": handle it. In both cases the client gets no response. The
                 later requests of its connection are not handled, because a broker responds in order.
    close:       Close the connection, "before" or "after" the request is handled. The client gets no response.
    duplicate:   Handle the request twice, as if the network repeated it, and send the second response.
    reorder:     Handle the request after the next one that the rule chooses, on any connection. If no other
                 arrives, it is handled after delay_ms, by default 1000. Responses keep their order on a connection.
    """

    api: str = "*"
    topic: str | None = None
    partition: int | None = None
    client: str | None = None
    skip: int = 0
    count: int | None = None
    probability: float = 1.0
    delay_ms: float = 0
    error: ErrorCode | None = None
    drop: str | None = None
    close: str | None = None
    duplicate: bool = False
    reorder: bool = False
    hits: int = 0
    _skipped: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        for name, (kinds, expected) in _KINDS.items():
            check_kind(name, getattr(self, name), kinds, expected)
        if self.error is not None and not isinstance(self.error, ErrorCode):
            raise TypeError(f"error must be the name of an error code, got {self.error!r}")
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability must be between 0 and 1, not {self.probability}")
        for name in ("drop", "close"):
            value = getattr(self, name)
            if value is not None and value not in MOMENTS:
                raise ValueError(f"{name} must be 'before' or 'after', not {value!r}")
        for name in ("delay_ms", "skip", "count", "partition"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} must not be negative or infinite, got {value}")
        if self.count == 0 or self.probability == 0:
            name = "count" if self.count == 0 else "probability"
            raise ValueError(f"{name} must be greater than 0: a rule with {name} 0 never applies")
        if self.error == ErrorCode.NONE:
            raise ValueError("error must not be NONE: it would report success for a request that is not handled")
        effects = [name for name in ("error", "drop", "close", "duplicate", "reorder") if getattr(self, name)]
        if len(effects) > 1:
            raise ValueError(f"a rule has one effect, and delay_ms; got {' and '.join(effects)}: add a rule for each")

    @property
    def has_effect(self) -> bool:
        """Whether the rule does more than count requests."""
        return any(getattr(self, name) for name in _EFFECTS)

    @property
    def is_partial(self) -> bool:
        """Whether only some partitions of a request get the error code."""
        return self.error is not None and (self.topic is not None or self.partition is not None)

    def chooses(self, topic: str, partition: int | None) -> bool:
        """Return whether the rule names a partition."""
        return self.topic in (None, topic) and self.partition in (None, partition)


class Faults:
    """The rules of a broker, in the order in which requests are compared with them.

    rules: The rules that the broker keeps from an earlier start.
    """

    def __init__(
        self, topics: Topics, requests: dict[str, type[Message]], rules: list[FaultRule] | None = None
    ) -> None:
        self._topics = topics
        self._requests = requests
        self.rules: list[FaultRule] = [] if rules is None else rules

    def __len__(self) -> int:
        return len(self.rules)

    def __iter__(self) -> Iterator[FaultRule]:
        return iter(list(self.rules))

    def add(self, api: str = "*", *, error: ErrorCode | str | None = None, **fields: Any) -> FaultRule:
        """Add a rule, with the fields of FaultRule, and return it. Raise ValueError or TypeError."""
        if api != "*" and api not in self._requests:
            raise ValueError(f"the broker has no API {api!r}{meant_by(str(api), self._requests)}")
        if isinstance(error, str):
            if error not in ErrorCode.__members__:
                remedy = meant_by(error, ErrorCode.__members__) or "; expected a name such as NOT_ENOUGH_REPLICAS"
                raise ValueError(f"unknown error code {error!r}{remedy}")
            error = ErrorCode[error]
        for name in fields.keys() - set(_FIELDS):
            raise TypeError(f"a fault rule has no field {name!r}; its fields are {', '.join(_FIELDS)}")
        rule = FaultRule(api, error=error, **fields)
        for name in ("topic", "partition"):
            is_partition = name == "partition"
            if api == "*" or getattr(rule, name) is None:
                continue
            if not names_topics(self._requests[api], with_partitions=is_partition):
                raise ValueError(f"{api} requests name no {name}s, so the rule would never apply: omit {name}")
        self.rules.append(rule)
        return rule

    def remove(self, rule: FaultRule) -> None:
        """Remove a rule, if it is there."""
        self.rules[:] = [one for one in self.rules if one is not rule]

    def clear(self) -> None:
        """Remove all rules."""
        self.rules.clear()

    def match(self, request: Any, client_id: str | None, random: Random) -> FaultRule | None:
        """Return the rule to apply to a request, and count the request, also in rules without an effect.

        A Fetch request must name all partitions of its session, and a Metadata request for all topics must name them.
        """
        for rule in self.rules:
            if not self.matches(rule, request, client_id):
                continue
            if rule._skipped < rule.skip:
                rule._skipped += 1
                continue
            if rule.count is not None and rule.hits >= rule.count:
                continue
            if rule.probability < 1 and random.random() >= rule.probability:
                continue
            rule.hits += 1
            if rule.has_effect:
                return rule
        return None

    def matches(self, rule: FaultRule, request: Any, client_id: str | None) -> bool:
        """Return whether a rule matches a request, regardless of `skip`, `count` and `probability`."""
        if rule.api != "*" and type(request) is not self._requests[rule.api]:
            return False
        if rule.client not in (None, client_id):
            return False
        if rule.topic is None and rule.partition is None:
            return True
        return any(rule.chooses(*found) for found in partitions_of(request, self.topic_of))

    def topic_names(self) -> list[str]:
        """Return the names of all topics of the broker."""
        return self._topics.names()

    def topic_of(self, one: Any) -> str | None:
        """Return the name of the topic that an element of a request stands for."""
        name = getattr(one, "name", None) or getattr(one, "topic", None)
        if not name and hasattr(one, "topic_id"):
            found = self._topics.by_id(one.topic_id)
            name = None if found is None else found.name
        return name


def parse_rule(text: str) -> dict[str, Any]:
    """Return the arguments of `Faults.add` from the command line: "Produce,topic=orders,count=1,drop=after".

    text: The rule.

    Raise ValueError for a field that a rule does not have, a value that is not a number, or a rule without effect.
    """
    api, *parts = text.split(",")
    found: dict[str, Any] = {"api": api.strip()}
    kinds = {
        **dict.fromkeys(("topic", "client", "error", "drop", "close"), str),
        **dict.fromkeys(("partition", "skip", "count"), int),
        **dict.fromkeys(("probability", "delay_ms"), float),
    }
    for part in parts:
        name, separator, value = part.strip().partition("=")
        if name in found:
            raise ValueError(f"{name} is twice in the fault rule {text!r}: add a rule for each value")
        if name in ("duplicate", "reorder") and not separator:
            found[name] = True
        elif name in kinds and separator:
            try:
                found[name] = kinds[name](value)
            except ValueError:
                raise ValueError(f"{part!r} in the fault rule {text!r}: expected a number, got {value!r}") from None
        else:
            raise ValueError(f"{part!r} in the fault rule {text!r}: expected one of {', '.join(_FIELDS)}")
    if not any(found.get(name) for name in _EFFECTS):
        raise ValueError(f"the fault rule {text!r} has no effect: add one of {', '.join(_EFFECTS)}")
    return found
