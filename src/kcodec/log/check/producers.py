# SPDX-License-Identifier: Apache-2.0
"""The check of sequences, epochs and transactions against the rules of a broker, and of producer snapshots.

The rules are those of ProducerAppendInfo. If offsets are missing, batches are missing too, so that a producer's
sequence can continue anywhere after a gap. A gap is explained by the log cleaner if there are other signs of it
(batches without some of their records, delete horizons). Otherwise it is a finding, reported at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kcodec._fast import RecordBatch
from kcodec.log.check.batches import CheckedBatch
from kcodec.log.check.findings import Finding, Flood, finding
from kcodec.log.producers import KnownProducer, KnownProducers
from kcodec.log.segment import LOWEST_OFFSET
from kcodec.log.snapshots import ProducerState

# transaction.max.timeout.ms is 15 minutes, and a coordinator takes 5 more to notice (LATE_TRANSACTION_BUFFER_MS).
HANGING_AFTER_MS = 20 * 60 * 1000
# Findings that are held back until it is known whether the log was compacted.
MOST_KEPT = 1000
# The bit of a batch's attributes that the cleaner sets if it has set a delete horizon.
DELETE_HORIZON = 1 << 6


class ProducerChecks:
    """The producers of a log while it is walked.

    first_offset:  Start of the log. The state of producers before it is unknown.
    has_sequences: False for topics that coordinators write, whose batches have no sequence numbers.
    is_cleaned:    Whether there are signs that the log was compacted.
    is_lost:       Set by the caller if batches could not be read. The state of producers is then unknown, and no more
                   findings about producers are made.
    """

    def __init__(self, first_offset: int, *, has_sequences: bool) -> None:
        self._first_offset = first_offset
        self._has_sequences = has_sequences
        self._producers = KnownProducers()
        self._above = LOWEST_OFFSET
        self._last_gap = LOWEST_OFFSET
        self._latest = -1
        self._kept: list[Finding] = []
        self._opened: dict[int, tuple[int, str, int]] = {}
        self.is_cleaned = False
        self.is_lost = False

    def opened_by(self, producer_id: int) -> int | None:
        """Return the first offset of the producer's open transaction."""
        known = self._producers.known.get(producer_id)
        return None if known is None else known.opened

    def first_open_offset(self) -> int | None:
        """The first offset of the earliest open transaction."""
        return min((one.opened for one in self._producers.known.values() if one.opened is not None), default=None)

    def take(self, checked: CheckedBatch, path: str, marker: tuple[int, int, int] | None) -> Iterable[Finding]:
        """Check the next batch. `marker` is its content if it is a readable end-transaction marker."""
        batch = checked.header
        if self.is_lost:
            return ()
        self._notice_cleaning(batch, path, checked.position)
        return self._take(checked, path, marker) if batch.producer_id >= 0 else ()

    def _take(self, checked: CheckedBatch, path: str, marker: tuple[int, int, int] | None) -> Iterator[Finding]:
        batch = checked.header
        known = self._producers.known.get(batch.producer_id)
        is_data = not batch.is_control_batch
        if is_data and known is not None:
            yield from self._follows(batch, known, path, checked.position)
        if is_data:
            self._latest = max(self._latest, batch.max_timestamp)
            self._producers.take_data(batch)
            if self.opened_by(batch.producer_id) is not None:
                place = (batch.max_timestamp, path, checked.position)
                self._opened[batch.producer_id] = place
        elif marker is not None:
            self._latest = max(self._latest, marker[2])
            self._producers.take_marker(batch, marker)
            self._opened.pop(batch.producer_id, None)

    def _notice_cleaning(self, batch: RecordBatch, path: str, position: int) -> None:
        count, base, last = batch.records_count, batch.base_offset, batch.last_offset
        if count is not None and (count <= last - base or batch.attributes & DELETE_HORIZON):
            self.is_cleaned = True
            self._kept.clear()
        if base > self._above + 1 and self._above != LOWEST_OFFSET:
            text = f"offsets {self._above + 1}..{base - 1} are missing"
            self._keep(finding("offset-gap", path, text, position=position, offset=base))
            self._last_gap = self._above
        if last > self._above:
            self._above = last

    def _keep(self, one: Finding) -> None:
        if not self.is_cleaned and len(self._kept) < MOST_KEPT:
            self._kept.append(one)

    def _follows(self, batch: RecordBatch, known: KnownProducer, path: str, position: int) -> Iterator[Finding]:
        who, offset = f"producer {batch.producer_id}", batch.base_offset
        if known.opened is not None and not batch.is_transactional:
            text = f"{who} has had a transaction open since offset {known.opened}, but this batch is outside of it"
            yield finding("mixed-transaction", path, text, position=position, offset=offset)
        if batch.producer_epoch < known.epoch:
            text = f"{who} writes with epoch {batch.producer_epoch} after {known.epoch}"
            yield finding("producer-epoch", path, text, position=position, offset=offset)
            return
        if batch.base_sequence < 0 or not self._has_sequences:
            return
        expected = 0
        if batch.producer_epoch == known.epoch:
            if known.last_offset < 0:
                return  # a marker has raised the epoch, or the earlier state is unknown
            expected = (known.last_sequence + 1) & 0x7FFFFFFF
        if batch.base_sequence != expected:
            text = f"{who} continues with sequence {batch.base_sequence}, expected {expected}"
            one = finding("sequence-gap", path, text, position=position, offset=offset)
            if self._last_gap >= known.last_offset:
                self._keep(one)
            elif not self.is_cleaned:
                yield one

    # Snapshots

    def compare(self, path: str, producers: Iterable[ProducerState]) -> Iterator[Finding]:
        """Compare a snapshot with the log, after all batches below its offset were checked."""
        if self.is_lost:
            return
        known = {state.producer_id: state for state in self._producers.states()}
        said = set()
        flood = Flood("snapshot-disagrees", path)
        for state in producers:
            producer_id = state.producer_id
            if producer_id in known:
                said.add(producer_id)
            elif self._may_be_gone(state):
                continue
            text = self._difference(state, known.get(producer_id))
            if text is not None and not flood.is_full():
                yield finding("snapshot-disagrees", path, f"producer {producer_id}: {text}")
        yield from flood.rest()
        for producer_id, state in known.items():
            # Others expire a day after their last batch, but never while a transaction is open.
            if producer_id not in said and state.current_transaction_first_offset is not None:
                text = f"producer {producer_id} is missing, whose transaction is open since offset "
                text += f"{state.current_transaction_first_offset}"
                yield finding("snapshot-disagrees", path, text)

    def _may_be_gone(self, said: ProducerState) -> bool:
        """Return whether the log may have lost the batches of a producer that it does not contain."""
        return said.last_offset < self._first_offset or self.is_cleaned or self._last_gap >= 0

    def _difference(self, said: ProducerState, known: ProducerState | None) -> str | None:
        """Return the difference between snapshot and log for a producer. Return None if the log may have lost the
        batches meanwhile."""
        if known is None:
            return None if self._may_be_gone(said) else f"it has written offset {said.last_offset}, but not in this log"
        for name in ("producer_epoch", "last_offset", "last_sequence", "offset_delta", "coordinator_epoch"):
            here, there = getattr(known, name), getattr(said, name)
            is_gone = said.last_offset < self._first_offset or self.is_cleaned
            is_gone = is_gone or (name == "coordinator_epoch" and here < 0 < self._first_offset)
            if here != there and not (is_gone and name != "producer_epoch"):
                return f"{name} {there}, but the log has {here}"
        here, there = known.current_transaction_first_offset, said.current_transaction_first_offset
        if here != there and (there is None or there >= self._first_offset) and not self.is_cleaned:
            return f"its transaction is open since offset {there}, but in the log since {here}"
        return None

    # End

    def end(self, *, is_last: bool) -> Iterator[Finding]:
        """Yield the findings after the last batch: those held back, and for the last segment of a partition, open
        transactions."""
        yield from self._kept
        if self.is_lost or not is_last:
            return
        for producer_id, (timestamp, path, position) in sorted(self._opened.items(), key=lambda item: item[1][1:]):
            known = self._producers.known[producer_id]
            age = self._latest - timestamp
            code = "hanging-transaction" if age > HANGING_AFTER_MS else "open-transaction"
            text = f"producer {producer_id}, epoch {known.epoch}: open since offset {known.opened}, "
            text += f"its last batch is {max(0, age) / 1000:.0f} s older than the log's latest"
            yield finding(code, path, text, position=position, offset=known.opened)
