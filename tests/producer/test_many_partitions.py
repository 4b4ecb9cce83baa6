# SPDX-License-Identifier: Apache-2.0
"""The sender with many partitions, in virtual time: repeats share requests, and records do not wake it in vain."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_broker import Fault, Rig, ScriptedCluster, faults_for, values

from kcodec.errors import DeliveryTimeoutError
from kcodec.protocol.error_codes import ErrorCode

PARTITIONS = 200


def rig_of(world: ScriptedCluster, **settings: Any) -> Rig:
    world.create_topic("orders", PARTITIONS)
    rig = Rig(world, **settings)
    world.run_flow(rig.core.learn_topic("orders", 10.0))
    world.run(1.0)
    return rig


def count_rounds(rig: Rig, rounds: list[float]) -> None:
    """Add the time of each round of the sender to a list."""
    round_, clock = rig.core.sender._round, rig.core.clock

    def counted() -> object:
        rounds.append(clock())
        return round_()

    rig.core.sender._round = counted  # type: ignore[method-assign,assignment]


def test_batches_refused_together_are_repeated_together() -> None:
    """A broker that still creates a topic refuses most partitions of a request; each has a pause with jitter."""
    world = ScriptedCluster()
    rig = rig_of(world, retry_backoff=lambda attempt, random: 0.1 * 2**attempt * (0.8 + 0.4 * random))
    refusal = Fault(code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    world.faults = faults_for(refusal, refusal, refusal)
    sent = [rig.send("orders", value, partition=n) for n, value in enumerate(values(PARTITIONS))]
    rig.flush()
    assert [delivery.error for delivery in sent] == [None] * PARTITIONS
    assert [len(request.topic_data[0].partition_data) for _, _, request in world.requests] == [PARTITIONS] * 4


def test_records_do_not_wake_a_sender_that_cannot_send() -> None:
    world = ScriptedCluster(latency=1.0)
    rig = rig_of(world, linger=0.0, max_in_flight=2)
    rig.send("orders", b"x", partition=0)
    world.run(0.1)
    rig.send("orders", b"x", partition=1)
    world.run(0.1)
    assert len(world.requests) == 2
    rounds = list[float]()
    count_rounds(rig, rounds)
    for number in range(2, PARTITIONS):
        rig.send("orders", b"x", partition=number)
        world.run(0.001)
    assert not rounds
    rig.flush()
    assert [len(request.topic_data[0].partition_data) for _, _, request in world.requests] == [1, 1, PARTITIONS - 2]


def test_records_after_a_response_do_not_wake_the_sender() -> None:
    """Until linger_ms after the last batches have ended, the sender looks for records by the clock."""
    world = ScriptedCluster()
    rig = rig_of(world, linger=0.5)
    woken: list[float] = []
    rig.core.accumulator._wake = lambda: woken.append(world.now)
    rig.send("orders", b"x", partition=0)
    rig.flush()
    woken.clear()
    sent = rig.send("orders", b"y", partition=0)
    assert not woken
    world.run(0.8)
    assert sent.error is None and len(world.requests) == 2
    world.run(5.0)
    late = rig.send("orders", b"z", partition=0)
    assert len(woken) == 1
    rig.flush()
    assert late.error is None


def test_records_during_a_request_do_not_wake_the_sender() -> None:
    """The sender looks for them when the first of them has lingered, and the response needs no round."""
    world = ScriptedCluster(latency=0.05)
    rig = rig_of(world, linger=0.5)
    rig.send("orders", b"x", partition=0)
    rig.flush()
    world.run(5.0)
    rig.send("orders", b"x", partition=0)
    world.run(0.55)
    assert len(world.requests) == 2 and rig.core.sender.responses.in_flight
    woken, rounds = list[float](), list[float]()
    rig.core.accumulator._wake = lambda: woken.append(world.now)
    count_rounds(rig, rounds)
    begin = world.now
    rig.send("orders", b"y", partition=1)
    world.run(0.01)
    rig.send("orders", b"y", partition=2)
    world.run(0.5)
    assert not woken
    assert [sent - begin for sent, _, _ in world.requests[2:]] == [pytest.approx(0.5)]
    assert [at - begin for at in rounds] == [pytest.approx(0.5)]


def test_a_request_without_linger_needs_one_round() -> None:
    world = ScriptedCluster(latency=0.05)
    rig = rig_of(world, linger=0.0)
    rig.send("orders", b"x", partition=0)
    world.run(5.0)
    rounds = list[float]()
    count_rounds(rig, rounds)
    rig.send("orders", b"x", partition=0)
    world.run(0.05)
    assert len(world.requests) == 2 and len(rounds) == 1


def test_a_saturated_sender_still_ends_batches_at_their_deadline() -> None:
    world = ScriptedCluster()
    rig = rig_of(world, linger=0.0, max_in_flight=1, delivery_timeout=5.0, request_timeout=60.0)
    world.faults = faults_for(Fault(is_answer_lost=True))
    first = rig.send("orders", b"x", partition=0)
    world.run(0.1)
    second = rig.send("orders", b"x", partition=1)
    world.run(6.0)
    assert first.error is not None and second.error is not None
    assert "it was never sent" in str(second.error)


def test_a_round_that_is_delayed_after_a_response_still_ends_batches_at_their_deadline() -> None:
    """The response of one broker lets the sender wait for a batch that lingers until 11 s, but a batch in flight to the
    other broker has its deadline at 10.5 s."""
    world = ScriptedCluster(nodes=2, latency=1.0)
    rig = rig_of(world, linger=5.0, delivery_timeout=10.5, request_timeout=60.0)
    rig.send("orders", b"x", partition=0)
    rig.send("orders", b"x", partition=1)
    rig.flush()
    world.run(100.0)
    begin = world.now
    world.faults = lambda node, request: Fault(is_answer_lost=node == 1)
    lost = rig.send("orders", b"x", partition=0)
    answered = rig.send("orders", b"x", partition=1)
    world.run(6.0)
    rig.send("orders", b"y", partition=1)
    world.run(begin + 10.4 - world.now)
    assert answered.done() and not lost.done()
    world.run(0.2)
    assert isinstance(lost.error, DeliveryTimeoutError)


@pytest.mark.parametrize("reason", ["a caller waits", "a flush", "a full batch", "no buffer space"])
def test_records_that_need_not_linger_are_sent_after_a_response(reason: str) -> None:
    world = ScriptedCluster(latency=0.05)
    rig = rig_of(world, linger=5.0, max_in_flight=1, batch_size=1000)
    rig.send("orders", b"x", partition=0)
    rig.flush()
    world.run(100.0)
    rig.send("orders", b"x", partition=0)
    world.run(5.05)
    assert len(world.requests) == 2 and rig.core.sender.responses.in_flight
    delivery = rig.send("orders", b"y", partition=1)
    if reason == "a caller waits":
        rig.core.accumulator.hurry(delivery._batch)
    elif reason == "a flush":
        rig.core.sender.urgent += 1
    elif reason == "no buffer space":
        rig.core.accumulator.memory.waiters += 1
    else:
        rig.send("orders", b"y" * 900, partition=1)
        rig.send("orders", b"y" * 900, partition=1)
    world.run(0.2)
    assert len(world.requests) == 3
