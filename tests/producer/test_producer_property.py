# SPDX-License-Identifier: Apache-2.0
"""Any faults, any order of events: no Delivery is lost, what it says is true, no record is there twice, none out of
order. Scripted brokers keep the rules of idempotence; time is virtual. The long profile has many more runs."""

from __future__ import annotations

import os
from random import Random

import pytest
from scripted_broker import Fault, Rig, ScriptedCluster

from kcodec.errors import KcodecError
from kcodec.producer.delivery import Delivery
from kcodec.protocol.messages.produce import ProduceRequest

# Not 45, 47 or 59 out of the blue: a broker that forgot a producer with a repeat under way makes a duplicate of it.
RETRIABLE = [6, 7, 19, 20, 3, 2]
AFTER_APPEND = [3, 6, 7, 20, 56]
LASTING = [10, 87, 29]


class Chaos:
    """Draws faults; `rate` of the requests meets one. has_failures: also errors that end a batch."""

    def __init__(self, random: Random, rate: float, has_failures: bool) -> None:
        self.random = random
        self.rate = rate
        self.has_failures = has_failures

    def __call__(self, node: int, request: ProduceRequest) -> Fault:
        random = self.random
        if random.random() > self.rate:
            return Fault(delay=random.random() * 0.01)
        cuts = random.random() < 0.7
        return random.choice(
            [
                Fault(is_lost=True, cuts=cuts),
                Fault(is_answer_lost=True, cuts=cuts),
                Fault(delay=random.random() * 20, cuts=False),
                Fault(answer_delay=random.random() * 20),
                Fault(code=random.choice(RETRIABLE)),
                Fault(code=random.choice(RETRIABLE)),
                Fault(code=random.choice(AFTER_APPEND), is_written=True),
                Fault(code=random.choice(LASTING if self.has_failures else RETRIABLE)),
            ]
        )


def run(seed: int, *, records: int = 400) -> tuple[ScriptedCluster, Rig, dict[int, list[tuple[bytes, Delivery]]]]:
    """A run under faults: what was sent to each partition, in order."""
    random = Random(seed)
    world = ScriptedCluster(nodes=3, seed=seed, has_topic_ids=random.random() < 0.5)
    world.is_strict = random.random() < 0.5
    # Where a batch fails, the next epoch begins; a copy of the old one that arrives just before the first of the new
    # is a duplicate that no producer can prevent. So there are late copies, or failures, in one run.
    has_failures = random.random() < 0.5
    world.has_late_copies = not has_failures
    partitions = random.choice([1, 3])
    logs = world.create_topic("orders", partitions)
    rig = Rig(
        world,
        linger=random.choice([0.0, 0.005, 0.5]),
        batch_size=random.choice([1, 200, 2000]),
        request_timeout=random.choice([1.0, 5.0]),
        delivery_timeout=random.choice([8.0, 30.0, 120.0]) if has_failures else 1000.0,
        max_in_flight=random.choice([1, 2, 5]),
        compression_type=random.choice(["none", "gzip"]),
    )
    world.faults = Chaos(random, random.choice([0.02, 0.1, 0.4]), has_failures)
    sent: dict[int, list[tuple[bytes, Delivery]]] = {partition: [] for partition in range(partitions)}
    for number in range(records):
        partition = random.randrange(partitions)
        value = b"%d" % number
        sent[partition].append((value, rig.send("orders", value, partition=partition)))
        if random.random() < 0.1:
            world.run(random.random() * random.choice([0.01, 0.3, 2.0]))
        if random.random() < 0.02:
            world.move_leader(random.choice(logs), random.randrange(3) + 1)
        if random.random() < 0.01:
            world.cut(random.randrange(3) + 1)
        if random.random() < 0.01:
            world.restart()
    rig.flush(2000.0)
    world.faults = lambda node, request: Fault()
    after = [rig.send("orders", b"after-%d" % partition, partition=partition) for partition in range(partitions)]
    rig.flush(200.0)
    world.run(60.0)  # late copies arrive
    assert [delivery.error for delivery in after] == [None] * partitions, "the producer was not usable afterwards"
    return world, rig, sent


def check(seed: int) -> int:
    """Run and judge; the result is how many records failed, which is legal."""
    world, rig, sent = run(seed)
    failed = 0
    logs = world.topics["orders"][1]
    for partition, deliveries in sent.items():
        values = logs[partition].values
        assert len(set(values)) == len(values), f"seed {seed}: a record is there twice"
        numbers = [int(value) for value in values if value.isdigit()]
        assert numbers == sorted(numbers), f"seed {seed}: partition {partition} is out of order"
        for value, delivery in deliveries:
            assert delivery.done(), f"seed {seed}: a delivery is lost"
            if delivery.error is not None:
                assert isinstance(delivery.error, KcodecError)
                failed += 1
                continue
            assert delivery.offset is not None
            if delivery.offset == -1:  # written before a broker forgot it
                assert value in values, f"seed {seed}: {value!r} is acknowledged and not there"
                continue
            assert values[delivery.offset] == value, f"seed {seed}: {value!r} is not at offset {delivery.offset}"
    assert not rig.core.has_unfinished
    assert not any(queue.in_flight for queue in rig.core.accumulator.topics["orders"].queues)
    assert rig.core.accumulator.memory.free == rig.settings.buffer_memory, f"seed {seed}: memory was not given back"
    return failed


@pytest.mark.parametrize("seed", range(1500 if os.environ.get("KCODEC_PROFILE") == "long" else 40))
def test_nothing_is_lost_doubled_or_out_of_order(seed: int) -> None:
    check(seed)
