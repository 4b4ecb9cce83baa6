# SPDX-License-Identifier: Apache-2.0
"""Transactions of Spark's exactly-once sink (`kcodec.spark.exactly_once`), for ``kcodec txn``.

In the transaction of each batch, the sink commits the number of its next batch as the offset of a consumer group. The
group has the same name as the transactional id. The metadata of the offset is JSON with the keys query, batch and rows.
Groups with other metadata are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kcodec.cli.output import Output
from kcodec.errors import KcodecError
from kcodec.offsets import OffsetAndMetadata

if TYPE_CHECKING:
    from kcodec.client import Admin
    from kcodec.log import LogDirectory

#: Seconds to wait for the groups of a cluster: transactions are shown without them, too.
GROUPS_SECONDS = 5.0


@dataclass(frozen=True)
class SinkBatch:
    """The last batch that a sink has committed. `application` is its name, its transactional id and its group."""

    application: str
    batch: int
    rows: int
    query: str

    @classmethod
    def of(cls, group: str, committed: Iterable[OffsetAndMetadata | None]) -> SinkBatch | None:
        """Return the last batch that a sink has committed for a group; None if no sink has committed any of the
        offsets."""
        for one in committed:
            try:
                found: Any = json.loads("" if one is None else one.metadata)
                query, batch, rows = found["query"], found["batch"], found["rows"]
            except (ValueError, TypeError, KeyError):
                continue
            if isinstance(query, str) and isinstance(batch, int) and isinstance(rows, int):
                return cls(group, batch, rows, query)
        return None

    def __str__(self) -> str:
        batch = f"batch {self.batch} of query {self.query} ({self.rows} rows)"
        return f"{self.application}: exactly-once sink of Spark; {batch} is the last one that it has committed"


def sinks_of_directory(directory: LogDirectory) -> dict[str, SinkBatch]:
    """Return the sinks whose progress is in the partitions of ``__consumer_offsets`` of a log directory."""
    found = {
        name: SinkBatch.of(name, group.values()) for name, group in directory.group_offsets(on_error="stop").items()
    }
    return {name: sink for name, sink in found.items() if sink is not None}


def sink_fields(sinks: Mapping[str, SinkBatch], transactional_id: str | None) -> dict[str, Any]:
    """Return the field `sink` of a transaction for JSON: null, or application, batch, rows and query."""
    sink = sinks.get(transactional_id or "")
    return {"sink": None if sink is None else asdict(sink)}


def say_sinks(sinks: Iterable[SinkBatch], output: Output) -> None:
    """Print a line for each sink below a table."""
    output.flush()
    for sink in sinks:
        output.say(str(sink))


def sinks_of(admin: Admin, transactional_ids: Collection[str], output: Output) -> dict[str, SinkBatch]:
    """Return the sinks among transactional ids. Requests that fail are reported on stderr."""
    from kcodec.client import AdminError

    found: dict[str, SinkBatch] = {}
    try:
        groups = set(admin.list_groups(timeout=GROUPS_SECONDS)) if transactional_ids else set()
    except AdminError as error:  # some brokers did not respond: the groups of the others
        groups = {one.group_id for listed in error.results.values() for one in listed}
    except KcodecError as error:
        output.say(f"kcodec: which of them are sinks of Spark is not known: {error}")
        return {}
    for name in transactional_ids:
        if name not in groups:
            continue
        try:
            sink = SinkBatch.of(name, admin.list_group_offsets(name, timeout=GROUPS_SECONDS).values())
        except KcodecError as error:
            output.say(f"kcodec: {name}: whether it is a sink of Spark is not known: {error}")
            continue
        if sink is not None:
            found[name] = sink
    return found
