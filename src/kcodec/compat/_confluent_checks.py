# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that confluent_kafka makes in C. They raise the same classes of errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import OFFSET_INVALID, TopicPartition

from kcodec.compat._confluent_errors import seconds

#: Value of a timeout that the program has not passed.
UNSET = -12345.0
#: The default timeout of a call, which is socket.timeout.ms of librdkafka.
SOCKET_SECONDS = 60.0


def limit_of(options: dict[str, Any], *timeouts: Any) -> float | None:
    """Return the first timeout in seconds, or socket.timeout.ms if it was not given.

    Raise TypeError if a timeout is not a number, and ValueError if it is negative.
    """
    for one in timeouts:
        if isinstance(one, bool) or not isinstance(one, int | float):
            raise TypeError(f"timeout must be a number of seconds, not {type(one).__name__}")
        if one < 0 and one != UNSET:
            raise ValueError(f"timeout must not be negative, got {one}")
    if timeouts[0] == UNSET:
        return float(options.get("request_timeout_ms", SOCKET_SECONDS * 1000)) / 1000
    return seconds(timeouts[0])


def check_flag(name: str, value: Any) -> None:
    """Raise TypeError unless the value is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, not {type(value).__name__}")


def check_list(name: str, values: Any, kind: type | None = None) -> None:
    """Raise TypeError unless the value is a list. Raise ValueError if the list is empty or has a value of another
    type."""
    if not isinstance(values, list):
        raise TypeError(f"{name} must be a list, not {type(values).__name__}")
    if not values:
        raise ValueError(f"{name} must not be empty")
    if kind is not None and not all(isinstance(one, kind) for one in values):
        raise ValueError(f"{name} must be a list of {kind.__name__}")


def check_names(name: str, values: Iterable[Any]) -> None:
    """Raise TypeError if a value is not a str, and ValueError if it is empty."""
    for one in values:
        if not isinstance(one, str):
            raise TypeError(f"{name} must be str, not {type(one).__name__}")
        if not one:
            raise ValueError(f"{name} must not be empty")


def check_offsets(request: list[Any]) -> None:
    """Raise ValueError unless the request of alter_consumer_group_offsets has a valid offset for each partition."""
    for one in request[0].topic_partitions or ():
        if one.offset == OFFSET_INVALID or one.offset < 0:
            raise ValueError(f"{one.topic}: the offset must be at least 0, got {one.offset}")


def check_assignment(assignment: Any, count: int | None, what: str) -> None:
    """Raise ValueError unless a replica_assignment is a list of lists of broker ids."""
    is_valid = isinstance(assignment, list) and all(
        isinstance(one, list) and one and all(isinstance(replica, int) for replica in one) for one in assignment
    )
    if not is_valid or (count is not None and len(assignment) != count):
        raise ValueError(f"replica_assignment must be a list of int lists with an outer size of {what}")


def check_partitions(partitions: Iterable[TopicPartition]) -> None:
    """Raise ValueError if a partition has no topic or a negative number."""
    for one in partitions:
        if not one.topic or one.partition < 0:
            raise ValueError(f"{one} is not a partition: the topic is empty or the number is negative")
