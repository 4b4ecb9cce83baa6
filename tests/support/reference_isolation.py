# SPDX-License-Identifier: Apache-2.0
"""The batches of aborted and open transactions, for the reference decoder in reference.py.

Step: a batch that was read, with the fields that isolation depends on
aborted_by_list(steps, aborted) -> indexes of steps that are aborted by a broker's list (Kafka: CompletedFetch)
transactions(steps) -> list of Transaction, each with its outcome by markers            (KIP-98)
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from reference_batch import ABORT, Header


class Step(NamedTuple):
    """A whole batch that was read. `marker`: its type if it is a marker. If it has no header, it is corrupt and
    skipped."""

    header: Header | None
    marker: int | None = None

    @property
    def producer_id(self) -> int:
        return -1 if self.header is None else self.header.producer_id

    @property
    def is_of_transaction(self) -> bool:
        """Return whether the batch can be filtered."""
        header = self.header
        return header is not None and header.is_transactional and header.producer_id > -1 and not header.is_control


def aborted_by_list(steps: list[Step], aborted: Iterable[tuple[int, int, int | None]]) -> set[int]:
    """Return the steps that belong to aborted transactions according to a list (Kafka: CompletedFetch)."""
    entries = list(aborted)
    queue = [(first, producer_id) for producer_id, first, last in entries if last is None]
    heapq.heapify(queue)
    aborting: set[int] = set()
    found = set()
    for index, step in enumerate(steps):
        if step.header is None or step.producer_id < 0:
            continue
        header = step.header
        while queue and queue[0][0] <= header.last_offset:
            aborting.add(heapq.heappop(queue)[1])
        if step.marker == ABORT:
            aborting.discard(header.producer_id)
        elif step.is_of_transaction and (
            header.producer_id in aborting
            or any(
                last is not None
                and producer_id == header.producer_id
                and first <= header.last_offset
                and header.base_offset <= last
                for producer_id, first, last in entries
            )
        ):
            found.add(index)
    return found


@dataclass
class Transaction:
    first_offset: int
    marker: int | None = None
    is_lost: bool = False
    steps: list[int] = field(default_factory=list)


def transactions(steps: list[Step]) -> list[Transaction]:
    """Every transaction that has records in the data, by its markers."""
    every: list[Transaction] = []
    running: dict[int, Transaction] = {}
    for index, step in enumerate(steps):
        if step.header is None:
            for transaction in running.values():
                transaction.is_lost = True
        elif step.marker is not None:
            ended = running.pop(step.producer_id, None)
            if ended is not None:
                ended.marker = step.marker
        elif step.is_of_transaction and step.header.records_count:
            if step.producer_id not in running:
                running[step.producer_id] = Transaction(step.header.base_offset)
                every.append(running[step.producer_id])
            running[step.producer_id].steps.append(index)
    return every
