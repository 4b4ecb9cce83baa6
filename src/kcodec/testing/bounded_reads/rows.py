# SPDX-License-Identifier: Apache-2.0
"""What a reader returns: rows, and at the end the position and the lag. Also as JSON lines."""

from __future__ import annotations

import json
from typing import NamedTuple

__all__ = ["ISOLATION_LEVELS", "Reached", "Row", "json_line", "parsed"]

ISOLATION_LEVELS = ("read_committed", "read_uncommitted")


class Row(NamedTuple):
    """A record that a reader returned; a reader may return plain tuples of the same four values.

    partition: Number of the partition.
    offset: Offset of the record.
    key, value: Bytes of the record, or None.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class Reached(NamedTuple):
    """What a reader reports about a partition at its end; a reader need not report anything.

    partition: Number of the partition.
    position: The next offset that the reader would read.
    lag: The number of offsets from there to the end, as the reader shows it.
    """

    partition: int
    position: int | None = None
    lag: int | None = None


def json_line(item: Row | Reached) -> str:
    """Return a row, or what a reader reports, as one line of JSON. Keys and values are written as UTF-8 text."""
    if isinstance(item, Reached):
        return json.dumps(item._asdict())
    key, value = (None if data is None else bytes(data).decode() for data in (item.key, item.value))
    return json.dumps({"partition": item.partition, "offset": item.offset, "key": key, "value": value})


def parsed(line: str) -> Row | Reached:
    """Return what a line of JSON contains. Raise ValueError if a field is missing or has the wrong type."""
    try:
        found = json.loads(line)
        if "offset" not in found:
            position, lag = (None if found.get(name) is None else int(found[name]) for name in ("position", "lag"))
            return Reached(int(found["partition"]), position, lag)
        key, value = (None if found[name] is None else found[name].encode() for name in ("key", "value"))
        return Row(int(found["partition"]), int(found["offset"]), key, value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the reader printed {line.strip()[:200]!r}; expected a line of JSON such as "
            '{"partition": 0, "offset": 5, "key": "k", "value": "v"} or {"partition": 0, "position": 6, "lag": 0}'
        ) from error
