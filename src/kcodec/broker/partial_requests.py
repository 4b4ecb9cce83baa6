# SPDX-License-Identifier: Apache-2.0
"""Division of requests and responses by partitions, so that a fault of some partitions does not affect the others.

The elements that name a topic or a partition are found by the structure of the messages, as in error_responses.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from kcodec.broker.error_responses import error_response
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.fields import Field
from kcodec.protocol.schema import Struct

_IDENTITIES = ("name", "topic", "topic_id", "group_id", "transactional_id", "partition_index", "partition", "index")
_TOPIC_NAMES = ("name", "topic", "topic_id")
_PARTITION_NAMES = ("partition_index", "partition", "index")
#: Fields that are lists of topic names.
_NAME_LISTS = ("topic_names", "subscribed_topic_names")
_CODES = {"error_code", "partition_error_code"}
#: Requests whose named elements are not topics, but assignors, configurations or users.
_WITHOUT_TOPICS = (
    messages.JoinGroupRequest,
    messages.AlterConfigsRequest,
    messages.IncrementalAlterConfigsRequest,
    messages.DescribeUserScramCredentialsRequest,
    messages.AlterUserScramCredentialsRequest,
)

#: Returns the name of the topic of an element, None without one.
TopicOf = Callable[[Any], str | None]
#: Says whether a partition is chosen; the partition of a topic without partitions is None.
IsChosen = Callable[[str, int | None], bool]


def partitions_of(source: Any, topic_of: TopicOf) -> Iterator[tuple[str, int | None]]:
    """Yield the topics and partitions that a request names."""
    for name in type(source)._fields:
        if name in _NAME_LISTS:
            yield from ((topic, None) for topic in getattr(source, name) or ())
        for one in structs(getattr(source, name)):
            topic = topic_of(one)
            if topic is None:
                yield from partitions_of(one, topic_of)
                continue
            numbers = [number for values in _lists(one).values() for number in map(number_of, values)]
            yield from ((topic, number) for number in numbers if number is not None)
            if not any(number is not None for number in numbers):
                yield topic, None


def names_topics(kind: type[Struct], *, with_partitions: bool = False) -> bool:
    """Return whether requests of a class can name topics (or partitions, if `with_partitions`) that `partitions_of`
    finds."""
    return kind not in _WITHOUT_TOPICS and any(
        not with_partitions or any(map(_are_partitions, one._fields.values()))
        if set(_TOPIC_NAMES) & set(one._fields)
        else names_topics(one, with_partitions=with_partitions)
        for one in (field.kind for field in kind._fields.values() if field.is_array)
        if isinstance(one, type) and issubclass(one, Struct)
    )


def _are_partitions(field: Field) -> bool:
    is_struct = isinstance(field.kind, type) and issubclass(field.kind, Struct)
    names = field.kind._fields if is_struct else ("index",) if field.kind == "int32" else ()
    return field.is_array and not set(_PARTITION_NAMES).isdisjoint(names)


def without(source: Any, topic_of: TopicOf, is_chosen: IsChosen) -> tuple[Any, Any]:
    """Return a request without the chosen partitions, and a request with only these. A request without partitions is
    None."""
    found = []
    for is_wanted in (False, True):
        part = copy.copy(source)
        has_any = False
        for name in type(source)._fields:
            elements = getattr(source, name) if name in _NAME_LISTS else structs(getattr(source, name))
            if elements:
                kept = (
                    [topic for topic in elements if is_chosen(topic, None) == is_wanted]
                    if name in _NAME_LISTS
                    else [one for one in (_reduced(one, topic_of, is_chosen, is_wanted) for one in elements) if one]
                )
                setattr(part, name, kept)
                has_any = has_any or bool(kept)
        found.append(part if has_any else None)
    return found[0], found[1]


def _reduced(one: Any, topic_of: TopicOf, is_chosen: IsChosen, is_wanted: bool) -> Any:
    topic = topic_of(one)
    if topic is None:
        return without(one, topic_of, is_chosen)[is_wanted]
    part, has_any = copy.copy(one), False
    lists = {
        name: values for name, values in _lists(one).items() if any(number_of(each) is not None for each in values)
    }
    if not lists:
        return one if is_chosen(topic, None) == is_wanted else None
    for name, values in lists.items():
        kept = [each for each in values if is_chosen(topic, number_of(each)) == is_wanted]
        setattr(part, name, kept)
        has_any = has_any or bool(kept)
    return part if has_any else None


def merged(response: Any, added: Any) -> Any:
    """Return a response with the elements of two responses. Elements with the same topic or group are joined."""
    found = copy.copy(response)
    for name in type(added)._fields:
        more = structs(getattr(added, name))
        if not more:
            continue
        elements = {_identity(one): one for one in getattr(found, name)}
        for one in more:
            known = elements.get(_identity(one))
            elements[_identity(one)] = one if known is None else merged(known, one)
        setattr(found, name, list(elements.values()))
    return found


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    """Return the response to the chosen part of a request. The error code is in its partitions, or in its topics if
    these have no partitions. Return None if the API has no such error codes."""
    found = error_response(request, version, code)
    is_divided = found is not None and not isinstance(found, messages.DescribeLogDirsResponse)
    return found if is_divided and _clear_outer_codes(found) else None


def _clear_outer_codes(one: Any) -> bool:
    """Set the error code of each struct to 0 if its elements have error codes. Return whether they do."""
    have_codes = False
    for name in type(one)._fields:
        for each in structs(getattr(one, name)):
            is_inner = _clear_outer_codes(each) or not _CODES.isdisjoint(type(each)._fields)
            have_codes = have_codes or is_inner
    if have_codes and hasattr(one, "error_code"):
        one.error_code = 0
    return have_codes


def named_partitions(
    request: messages.FetchRequest, named: list[tuple[tuple[Any, int], messages.FetchPartition]], *, by_id: bool
) -> messages.FetchRequest:
    """Return a Fetch request that names all partitions of its session, and does not wait."""
    topics: dict[Any, messages.FetchTopic] = {}
    for (topic, _), partition in named:
        field = {"topic_id": topic} if by_id else {"topic": topic}
        topics.setdefault(topic, messages.FetchTopic(**field)).partitions.append(partition)
    found = copy.copy(request)
    found.topics = list(topics.values())
    return found


def _identity(one: Any) -> tuple[Any, ...]:
    return tuple(getattr(one, name, None) for name in _IDENTITIES)


def structs(value: Any) -> list[Any]:
    """Return the structs of a list."""
    return [one for one in value if isinstance(one, Struct)] if isinstance(value, list) else []


def _lists(one: Any) -> dict[str, list[Any]]:
    values = {name: getattr(one, name) for name in type(one)._fields}
    return {name: value for name, value in values.items() if isinstance(value, list)}


def number_of(one: Any) -> int | None:
    """Return the partition that an element of a list stands for."""
    if isinstance(one, Struct):
        one = next((getattr(one, name) for name in _PARTITION_NAMES if hasattr(one, name)), None)
    return one if isinstance(one, int) else None
