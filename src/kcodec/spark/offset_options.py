# SPDX-License-Identifier: Apache-2.0
"""The options of a query for its topics and for the offsets at which it starts and ends.

Names, defaults and results are those of Spark's own Kafka source (KafkaSourceProvider, ConsumerStrategy, JsonUtils).
Tests compare them with its classes. Spark's source accepts some invalid offsets without an error: it reads 5.7 as 5 and
null as 0, a number above 64 bits overflows, and text after the JSON is ignored. The functions raise ValueError in these
cases.

    SourceTopics, parse_source_topics   assign, subscribe, subscribePattern
    OffsetLimit, parse_offset_limit     startingOffsets, endingOffsets, ...ByTimestamp, ...Timestamp, ...Strategy
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kcodec.offsets import TopicPartition
from kcodec.spark.columns import suggestion
from kcodec.timestamps import warn_of_unit

LATEST, EARLIEST = -1, -2
WORDS = {"earliest": EARLIEST, "latest": LATEST}
STRATEGIES = ("assign", "subscribe", "subscribePattern")
#: Of startingOffsets and endingOffsets, with the number that stands for the earliest or the latest offset.
STARTING_EXAMPLE = '{"topicA":{"0":23,"1":-2}}'
ENDING_EXAMPLE = '{"topicA":{"0":23,"1":-1}}'
TIMESTAMPS_EXAMPLE = '{"topicA":{"0":123456789,"1":123456789},"topicB":{"0":123456789}}'
PARTITIONS_EXAMPLE = '{"topicA":[0,1],"topicB":[0,1]}'
WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
HIGHEST_PARTITION = (1 << 31) - 1
HIGHEST_LONG = (1 << 63) - 1


# Topics


@dataclass(frozen=True)
class SourceTopics:
    """The topics that a query reads: exactly one of the three is given."""

    assign: tuple[TopicPartition, ...] = ()
    subscribe: tuple[str, ...] = ()
    pattern: str | None = None

    def partitions(self, topics: Mapping[str, int]) -> list[TopicPartition]:
        """Return the partitions, sorted, of topics and their numbers of partitions; all that `assign` names."""
        if self.assign:
            return sorted(set(self.assign))
        names = set(self.subscribe)
        if self.pattern is not None:
            matches = re.compile(self.pattern).fullmatch
            names = {name for name in topics if matches(name)}
        found = (TopicPartition(name, number) for name in names for number in range(topics.get(name, 0)))
        return sorted(found)

    def includes(self, partition: TopicPartition) -> bool:
        """Return whether the options name a partition."""
        return partition in self._assigned if self.assign else self.includes_topic(partition.topic)

    def includes_topic(self, topic: str) -> bool:
        """Return whether the options name a topic, or one of its partitions."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self._names

    @cached_property
    def _assigned(self) -> frozenset[TopicPartition]:
        return frozenset(self.assign)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.subscribe) | {partition.topic for partition in self.assign}


def parse_source_topics(options: Mapping[str, str]) -> SourceTopics:
    """Return what `assign`, `subscribe` or `subscribePattern` name. Raise ValueError unless it is exactly one of them.

    options: by the names of Spark, in its spelling.
    """
    given = [name for name in STRATEGIES if name in options]
    if len(given) != 1:
        found = ", ".join(given) or "none of them"
        raise ValueError(f"exactly one of the options {', '.join(STRATEGIES)} must be given, found {found}")
    (name,) = given
    value = options[name]
    if name == "assign":
        return SourceTopics(assign=_assigned(value))
    if name == "subscribe":
        topics = tuple(topic for topic in map(str.strip, value.split(",")) if topic)
        if not topics:
            raise ValueError(f"option 'subscribe' is {value!r}: expected topics, separated by commas")
        return SourceTopics(subscribe=topics)
    if not value.strip():
        raise ValueError("option 'subscribePattern' is empty: expected a regular expression that matches whole names")
    try:
        re.compile(value.strip())
    except re.error as error:
        raise ValueError(f"option 'subscribePattern' is {value!r}: {error}") from None
    return SourceTopics(pattern=value.strip())


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    try:
        parsed = json_object(json.loads(text))
        found = [
            TopicPartition(topic, whole_number(number, HIGHEST_PARTITION))
            for topic, numbers in parsed.items()
            for number in _list(numbers)
        ]
    except ValueError as error:
        raise ValueError(f"option 'assign' is {text!r}: expected JSON like {PARTITIONS_EXAMPLE} ({error})") from None
    if not found:
        raise ValueError(f"option 'assign' is {text!r}: no partition is named, expected {PARTITIONS_EXAMPLE}")
    return tuple(found)


# Starts and ends


@dataclass(frozen=True)
class OffsetLimit:
    """Where a query starts or ends.

    kind:      "earliest", "latest", "offsets" or "timestamps" (ms).
    option:    the option that it comes from; "" for a default.
    each:      an offset (LATEST, EARLIEST among them) or a timestamp for each partition.
    timestamp: the timestamp of all partitions, where `each` is None.
    strategy:  "error" or "latest": what a starting timestamp means that no record of a partition reaches.
    """

    kind: str
    option: str = ""
    each: dict[TopicPartition, int] | None = None
    timestamp: int | None = None
    strategy: str = "error"


def parse_offset_limit(options: Mapping[str, str], side: str, *, is_stream: bool = False) -> OffsetLimit:
    """Return where a query starts (`side` "starting") or ends ("ending"). Raise ValueError for an invalid option.

    As in Spark's source, a timestamp comes before timestamps by partition, and these before offsets. A batch query
    starts at the earliest offsets and ends at the latest, a stream starts at the latest ones and has no end.
    """
    by_timestamp, offsets_by_timestamp, offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    strategy_option = "startingOffsetsByTimestampStrategy"
    strategy = options.get(strategy_option, "error").lower()
    if strategy not in ("error", "latest"):
        hint = suggestion(strategy, ["error", "latest"])
        raise ValueError(f"option {strategy_option!r} is {strategy!r}: expected error or latest{hint}")
    if is_stream and side == "ending":
        for name in (by_timestamp, offsets_by_timestamp, offsets):
            if name in options:
                raise ValueError(f"option {name!r}: a stream has no end; stop the query, or use Trigger.AvailableNow")
    if by_timestamp in options:
        text = options[by_timestamp].strip()
        if not WHOLE_NUMBER.fullmatch(text) or not -HIGHEST_LONG - 1 <= int(text) <= HIGHEST_LONG:
            raise ValueError(f"option {by_timestamp!r} is {text!r}: expected milliseconds as one whole number")
        warn_of_unit(f"option {by_timestamp!r}", int(text))
        return OffsetLimit("timestamps", by_timestamp, timestamp=int(text), strategy=strategy)
    if offsets_by_timestamp in options:
        each = parse_partition_numbers(offsets_by_timestamp, options[offsets_by_timestamp], TIMESTAMPS_EXAMPLE)
        for when in each.values():
            warn_of_unit(f"option {offsets_by_timestamp!r}", when)
        return OffsetLimit("timestamps", offsets_by_timestamp, each, strategy=strategy)
    default = "latest" if side == "ending" or is_stream else "earliest"
    if offsets not in options:
        return OffsetLimit(default)
    text = options[offsets].strip()
    refused = None if is_stream else {"starting": "latest", "ending": "earliest"}[side]
    allowed = {word: number for word, number in WORDS.items() if word != refused}
    example = STARTING_EXAMPLE if side == "starting" else ENDING_EXAMPLE
    if text.lower() == refused:
        raise ValueError(
            f"option {offsets!r} is {text!r}: the {side} offset of a batch query cannot be {refused}; expected "
            f"{' or '.join(map(repr, allowed))}, or JSON like {example}"
        )
    if text.lower() in allowed:
        return OffsetLimit(text.lower(), offsets)
    refuse_word(offsets, text, list(allowed), example)
    each = parse_partition_numbers(offsets, text, example)
    for partition, offset in each.items():
        if offset >= 0 or offset in allowed.values():
            continue
        numbers = " or ".join(f"{number} for {word}" for word, number in allowed.items())
        if refused is not None and offset == WORDS[refused]:
            raise ValueError(
                f"option {offsets!r}: the {side} offset of {partition} cannot be {refused} ({offset}) in a batch "
                f"query; expected 0 or more, or {numbers}"
            )
        raise ValueError(f"option {offsets!r}: the offset of {partition} is {offset}; expected 0 or more, or {numbers}")
    return OffsetLimit("offsets", offsets, each)


def refuse_word(option: str, text: str, allowed: Sequence[str], example: str) -> None:
    """Raise ValueError if the text of an option about offsets is a word, which is not one of the allowed ones."""
    if text.isalpha():
        import difflib  # only for this error

        meant = difflib.get_close_matches(text.lower(), allowed, n=1)
        words = ", ".join(map(repr, allowed))
        raise ValueError(
            f"option {option!r} is {text!r}: expected {words} or JSON like {example}"
            + (f"; did you mean {meant[0]!r}?" if meant else "")
        )


def parse_partition_numbers(option: str, text: str, example: str = STARTING_EXAMPLE) -> dict[TopicPartition, int]:
    """Return the number of each partition of JSON like ``{"topicA":{"0":23,"1":-1}}``; ValueError for another text."""
    try:
        return {
            TopicPartition(topic, partition_number(partition)): whole_number(number, HIGHEST_LONG)
            for topic, numbers in json_object(json.loads(text)).items()
            for partition, number in json_object(numbers).items()
        }
    except ValueError as error:
        raise ValueError(f"option {option!r} is {text!r}: expected JSON like {example} ({error})") from None


def json_object(value: Any) -> dict[str, Any]:
    """Return a JSON object. Raise ValueError for another value."""
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a JSON object")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is not a JSON array")
    return value


def partition_number(text: str) -> int:
    """Return the number of a partition, which is a key of a JSON object. Raise ValueError for another text."""
    if not WHOLE_NUMBER.fullmatch(text) or not 0 <= int(text) <= HIGHEST_PARTITION:
        raise ValueError(f"{text!r} is not a partition number")
    return int(text)


def whole_number(value: Any, highest: int) -> int:
    """Return a whole number of JSON from -highest - 1 to highest. Raise ValueError for another value."""
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if not isinstance(number, int) or isinstance(number, bool) or not -highest - 1 <= number <= highest:
        raise ValueError(f"{value!r} is not a whole number from {-highest - 1} to {highest}")
    return number


def parse_flag(options: Mapping[str, str], option: str, default: bool) -> bool:
    """Return an option that is true or false in any case, or the default. Raise ValueError for another value."""
    text = options.get(option, str(default))
    if text.lower() not in ("true", "false"):
        raise ValueError(f"option {option!r} is {text!r}: expected true or false")
    return text.lower() == "true"


def parse_positive(options: Mapping[str, str], option: str) -> int | None:
    """Return an option that is a whole number above 0; None if it is not given. Raise ValueError for another value."""
    text = options.get(option)
    if text is None:
        return None
    if not WHOLE_NUMBER.fullmatch(text.strip()) or not 0 < int(text) <= HIGHEST_LONG:
        raise ValueError(f"option {option!r} is {text!r}: expected a whole number above 0")
    return int(text)
