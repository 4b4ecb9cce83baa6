# SPDX-License-Identifier: Apache-2.0
"""How long records wait while the processor is the limit of a producer (`kcodec.producer.linger`)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kcodec.producer.linger import LONGEST_SECONDS, TIMES_THE_WORK, LingerTime


@dataclass
class Clocks:
    """The time, and the processor time of the I/O thread and of the process, in seconds."""

    now: float = 0.0
    work: float = 0.0
    process: float = 0.0

    def linger(self, usual: float) -> LingerTime:
        return LingerTime(usual, lambda: self.now, lambda: self.work, lambda: self.process)

    def prepare_requests(self, linger: LingerTime, *, work: float, others: float, idle: float) -> float:
        """Let other threads work and the process wait; then prepare requests."""
        self.now += others + idle
        self.process += others
        linger.begin()
        self.now += work
        self.work += work
        self.process += work
        return linger.after_requests()


def test_records_linger_longer_while_requests_take_the_whole_processor() -> None:
    clocks = Clocks()
    linger = clocks.linger(0.005)
    assert clocks.prepare_requests(linger, work=0.01, others=0.01, idle=0.0) == pytest.approx(TIMES_THE_WORK * 0.01)
    assert clocks.prepare_requests(linger, work=0.5, others=0.01, idle=0.0) == LONGEST_SECONDS


def test_records_linger_as_usual_again_once_there_is_time_or_little_to_prepare() -> None:
    clocks = Clocks()
    linger = clocks.linger(0.005)
    clocks.prepare_requests(linger, work=0.01, others=0.01, idle=0.0)
    assert clocks.prepare_requests(linger, work=0.01, others=0.01, idle=0.01) == 0.005
    clocks.prepare_requests(linger, work=0.01, others=0.01, idle=0.0)
    assert clocks.prepare_requests(linger, work=0.0002, others=0.01, idle=0.0) == 0.005
