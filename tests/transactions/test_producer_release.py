# SPDX-License-Identifier: Apache-2.0
"""A producer that leaves its transaction open for other processes, against a scripted coordinator in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from transaction_script import ORDERS, World, begun, make_manager, write

from kcodec.errors import AbortableTransactionError, DeliveryTimeoutError, TransactionStateError
from kcodec.offsets import TopicPartition
from kcodec.transactions.handle import TransactionHandle
from kcodec.transactions.state import State


@pytest.mark.parametrize("version", [1, 2])
def test_a_released_transaction_is_left_open(version: int) -> None:
    world = World(version)
    manager = begun(world)
    handle = world.run(manager.release())
    assert handle == TransactionHandle("orders", 7, 0, version)
    assert manager.state is State.RELEASED
    assert manager.open is not None
    assert manager.open.receipt == {ORDERS: (1, 0)}
    assert not manager.identity.may_send(ORDERS)
    world.run(manager.identity.close_flow(1.0))
    assert "EndTxn" not in world.apis()
    for flow in (manager.commit(), manager.abort(), manager.begin(), manager.release()):
        with pytest.raises(TransactionStateError, match="RELEASED"):
            world.run(flow)


def test_a_release_waits_for_records_and_takes_no_more() -> None:
    world = World(2)
    manager = begun(world)
    buffer: Any = manager.context.records
    buffer.pending = 1
    task = world.spawn(manager.release())
    assert manager.state is State.RELEASING
    assert isinstance(buffer.refusal, TransactionStateError)
    assert write(world, manager), "what was sent before goes out"
    assert not task.done
    buffer.end()
    world.pass_time(0.1)
    assert task.result == TransactionHandle("orders", 7, 0, 2)


def test_a_release_raises_why_a_record_was_not_written() -> None:
    world = World(2)
    manager = begun(world)
    buffer: Any = manager.context.records
    buffer.pending = 1
    task = world.spawn(manager.release())
    manager.identity.on_failure(ORDERS, DeliveryTimeoutError("expired"), possibly_written=True)
    buffer.end()
    world.pass_time(0.1)
    assert isinstance(task.error, AbortableTransactionError)
    assert manager.state is State.ABORTABLE_ERROR
    world.run(manager.abort())
    assert world.apis()[-1] == "EndTxn"


def test_a_release_that_is_late_leaves_an_abort() -> None:
    world = World(2)
    manager = begun(world)
    buffer: Any = manager.context.records
    buffer.pending = 1
    with pytest.raises(DeliveryTimeoutError) as raised:
        world.run(manager.release(2.0))
    assert raised.value.remedy == "abort"
    assert manager.state is State.ABORTABLE_ERROR


def test_a_release_that_is_interrupted_leaves_an_abort() -> None:
    world = World(2)
    manager = begun(world)
    buffer: Any = manager.context.records
    buffer.pending = 1
    task = world.spawn(manager.release())
    task.cancel()
    world.pass_time(0.1)
    assert manager.state is State.ABORTABLE_ERROR


def test_the_old_flow_releases_only_what_has_partitions() -> None:
    world = World(1)
    manager = make_manager(world)
    world.run(manager.begin())
    with pytest.raises(TransactionStateError, match="pass them all to producer"):
        world.run(manager.release())
    assert manager.state is State.ABORTABLE_ERROR
    world.run(manager.abort())
    world.run(manager.begin(partitions=[ORDERS, TopicPartition("orders", 1)]))
    assert world.run(manager.release()).producer_id == 7
