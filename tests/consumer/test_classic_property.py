# SPDX-License-Identifier: Apache-2.0
"""Random lives of classic groups in virtual time: members come, go, die, fall silent, stop polling; requests and
answers are lost, late, cut or refused; topics grow. At no time do two members of one generation own a partition (the
handler of each member looks when it is given one), and once all is quiet everything is owned, and every gate is free.
"""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest
from scripted_group import Fault, GroupClient, GroupWorld

from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.groups import JoinGroupRequest

SEEDS = 60 if os.environ.get("KCODEC_PROFILE", "short") == "short" else 2000
STRATEGIES = [
    ("range",),
    ("roundrobin", "range"),
    ("sticky", "range"),
    ("cooperative-sticky", "range"),
    ("cooperative-sticky",),
]
CODES = [
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.REQUEST_TIMED_OUT,
]


class Life:
    """One group, from its first member to quiet."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = GroupWorld(seed, t=self.random.randrange(1, 7), u=self.random.randrange(1, 4))
        self.strategies = self.random.choice([STRATEGIES[:4], STRATEGIES[4:]])
        self.damage = self.random.choice([0.0, 0.02, 0.1])
        self.silent: set[str] = set()
        self.number = 0
        self.world.faults = self.fault

    @property
    def live(self) -> list[GroupClient]:
        return [client for client in self.world.clients if client.is_alive]

    def fault(self, client: str, request: Any) -> Fault:
        if client in self.silent:
            return Fault(is_lost=True)
        if self.random.random() >= self.damage:
            return Fault(delay=self.random.choice([0.0, 0.0, 0.0, 0.3]))
        code = self.random.choice(CODES)
        if type(request) is JoinGroupRequest and code == ErrorCode.ILLEGAL_GENERATION:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        return self.random.choice(
            [
                Fault(code=code),
                Fault(code=code),
                Fault(cuts=True),
                Fault(is_answer_lost=True),
                Fault(is_lost=True),
                Fault(delay=self.random.uniform(0.0, 6.0)),
            ]
        )

    def come(self) -> None:
        if len(self.live) < 6:
            self.number += 1
            one = self.world.client(
                f"c{self.number}",
                self.random.choice([["t"], ["u"], ["t", "u"]]),
                partition_assignment_strategy=self.random.choice(self.strategies),
                group_instance_id=f"static-{self.number}" if self.random.random() < 0.2 else None,
                max_poll_interval=self.random.choice([5.0, 20.0]),
                session_timeout=6.0,
            )
            one.revoke_seconds = self.random.choice([0.0, 0.0, 0.5])

    def step(self) -> None:
        """Something happens to somebody."""
        what = self.random.choice(
            ["come", "come", "leave", "kill", "silence", "stop", "go on", "topics", "rejoin", "grow"]
        )
        if what == "come" or not self.live:
            self.come()
            return
        one = self.random.choice(self.live)
        if what == "leave":
            one.flow(one.revoke(one.owned), 10)
            one.flow(one.membership.leave(2.0, "closing"), 10)
            one.kill()
        elif what == "kill":
            one.kill()
        elif what == "silence":
            self.silent.add(one.name)
        elif what == "stop":
            one.is_polling = False
        elif what == "go on":
            one.is_polling = True
            self.silent.discard(one.name)
        elif what == "topics":
            one.membership.subscribe(self.random.choice([["t"], ["u"], ["t", "u"]]))
        elif what == "rejoin":
            one.membership.request_rejoin("a test")
        elif what == "grow" and self.world.topics["t"] < 12:
            self.world.topics["t"] += 1

    def quiet(self) -> None:
        """Faults end; everybody is settled in the end, and nothing is held."""
        self.damage = 0.0
        self.silent.clear()
        for one in self.live:
            one.is_polling = True
        if not self.live:
            self.come()
        self.world.run(20)
        if self.world.group.has_skipped:
            # What came while its static leader was away nobody in a group can know, nor in Java (KIP-814).
            for one in self.live:
                one.membership.request_rejoin("a test")
            self.world.run(0.1)
        self.world.run_until_stable(200)
        for one in self.live:
            assert not one.membership.group_lock.is_held
            assert one.membership.error is None


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_nothing_is_owned_twice_and_in_the_end_everything_once(first: int) -> None:
    for seed in range(first, first + 10):
        life = Life(seed)
        for _ in range(life.random.randrange(5, 30)):
            life.step()
            life.world.run(life.random.choice([0.1, 0.5, 2.0, 8.0]))
        try:
            life.quiet()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
