# SPDX-License-Identifier: Apache-2.0
"""A login that a broker rejects in the middle of a transaction: its records fail with that error, at once, and the
login is not repeated in the background. By a scripted coordinator, in virtual time.
"""

from __future__ import annotations

import pytest
from scripted_broker import Rig, ScriptedCluster
from transaction_script import BOTH, ORDERS, World, begun, make_manager, write

from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.errors import AbortableTransactionError, AuthenticationError, TransportError
from kcodec.flow import Flow, sleep
from kcodec.producer.identity import BatchDisposition, WithoutProducerId
from kcodec.protocol.error_codes import ErrorCode
from kcodec.transactions.end import end_transaction
from kcodec.transactions.errors import Failed
from kcodec.transactions.fencing import Ending
from kcodec.transactions.handle import TransactionHandle
from kcodec.transactions.shared import HandleProducerId, abort_shared
from kcodec.transactions.state import State

REJECTED = AuthenticationError("broker 1: the login was rejected")
HANDLE = TransactionHandle("orders", 7, 3, 2)


@BOTH
def test_records_fail_with_the_rejected_login_of_an_investigation(version: int) -> None:
    world = World(version)
    manager = begun(world)
    world.plan("DescribeTransactions", REJECTED)
    code = ErrorCode.INVALID_PRODUCER_EPOCH
    assert manager.identity.on_error_code(ORDERS, code) is BatchDisposition.RETRY
    world.pass_time(1.0)
    assert manager.identity.refuses() is REJECTED
    with pytest.raises(AuthenticationError):
        world.run(manager.commit())
    world.run(manager.abort())
    world.run(manager.begin())


def test_a_rejected_login_is_not_repeated_for_a_partition() -> None:
    """AddPartitionsToTxn was sent again every 0.1 s: repeated rejected logins can lock an account."""
    world = World(1)
    manager = make_manager(world)
    world.run(manager.begin())
    world.plan("AddPartitionsToTxn", REJECTED)
    assert not write(world, manager)
    world.pass_time(10.0)
    assert [one.api for one in world.failed] == ["AddPartitionsToTxn"]
    assert manager.identity.refuses() is REJECTED
    assert manager.state is State.ABORTABLE_ERROR
    world.run(manager.abort())
    world.run(manager.begin())
    assert not write(world, manager)
    world.pass_time(1.0)
    assert write(world, manager)
    world.run(manager.commit())


@BOTH
def test_a_commit_whose_rejection_cannot_be_investigated_can_be_aborted(version: int) -> None:
    world = World(version)
    manager = begun(world)
    world.plan("EndTxn", ErrorCode.PRODUCER_FENCED)
    world.plan("DescribeTransactions", REJECTED)
    with pytest.raises(AuthenticationError):
        world.run(manager.commit())
    before = manager.state
    world.run(manager.abort())
    assert (before, manager.state) == (State.ABORTABLE_ERROR, State.READY)


FENCED = pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED])


@BOTH
@FENCED
def test_an_abort_of_a_handle_that_cannot_be_investigated_fails(version: int, code: int) -> None:
    """Another process may have committed the transaction: a successful abort would say that its records are not
    visible."""
    world = World(version)
    handle = TransactionHandle("orders", 7, 3, version)
    world.plan("EndTxn", code)
    world.plan("DescribeTransactions", REJECTED)
    with pytest.raises(AuthenticationError):
        world.run(abort_shared(world.cluster, handle, timeout=5.0, wall_clock=lambda: world.now))


@BOTH
@FENCED
def test_an_abort_by_the_owner_of_a_handle_can_be_repeated(version: int, code: int) -> None:
    """It fails as that of another process, and finds the outcome once the login succeeds."""
    world = World(version)
    manager = begun(world)
    assert manager.open is not None
    manager.open.is_shared = True
    world.plan("EndTxn", code, code)
    world.plan("DescribeTransactions", REJECTED)
    with pytest.raises(AuthenticationError):
        world.run(manager.abort())
    before = manager.state
    world.coordinator.state = "CompleteCommit"
    world.coordinator.epoch += version - 1
    with pytest.raises(AbortableTransactionError, match="committed by another process"):
        world.run(manager.abort())
    assert (before, manager.state) == (State.ABORTABLE_ERROR, State.UNINITIALIZED)


@FENCED
def test_an_abort_after_an_unconfirmed_commit_fails_without_a_login(code: int) -> None:
    world = World()
    ending = Ending(
        transactional_id="orders",
        producer=ProducerIdAndEpoch(7, 3),
        is_new_flow=True,
        is_shared=False,
        timeout_ms=60_000,
        is_over_time=lambda _: False,
        is_commit_unconfirmed=True,
    )
    world.plan("EndTxn", code)
    world.plan("DescribeTransactions", REJECTED)
    with pytest.raises(Failed) as caught:
        world.run(end_transaction(world.cluster, ending, False, world.now + 5.0))
    assert caught.value.error is REJECTED


def test_a_writer_of_a_shared_transaction_fails_with_the_rejected_login() -> None:
    world = World()
    identity = HandleProducerId(world.cluster, HANDLE, [ORDERS], lambda: world.now)
    world.spawn(identity.run())
    world.plan("DescribeTransactions", REJECTED)
    assert identity.on_error_code(ORDERS, ErrorCode.INVALID_PRODUCER_EPOCH) is BatchDisposition.RETRY
    world.pass_time(1.0)
    assert identity.refuses() is REJECTED


class FailingIdentity(WithoutProducerId):
    """An identity whose flow fails after a second; until then nothing can be sent."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    @property
    def current(self) -> None:
        return None

    def run(self) -> Flow[None]:
        yield from sleep(1.0)
        raise self.error


@pytest.mark.parametrize("error", [REJECTED, KeyError("unexpected")])
def test_records_fail_with_the_error_of_the_identity(error: Exception) -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = Rig(world, source=FailingIdentity(error))
    rig.task.when_done(lambda ended: None if ended.error is None else rig.core.crash(ended.error))
    delivery = rig.send("orders", b"x")
    world.run(1.5)
    found = delivery.error
    assert found is error or (isinstance(found, TransportError) and found.__cause__ is error)
