# SPDX-License-Identifier: Apache-2.0
"""What a refused EndTxn or InitProducerId comes to: a commit that the coordinator has carried out is a commit, one
unexpected failure of a broker does not end a producer, and a producer that may have fenced itself is to be created
again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from session_script import IN, Script, SessionWorld
from transaction_script import BOTH, CUT, World, begun, make_manager
from unnarrowed import unnarrowed

from kcodec.client import Producer
from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.errors import FatalTransactionError, ProducerFencedError, UnknownOutcomeError
from kcodec.protocol.error_codes import ErrorCode
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.proxy import KafkaProxy
from kcodec.transactions.fencing import Ending, investigate
from kcodec.transactions.state import State

SECONDS = 20.0
CODES = pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED]
)


def refused(code: int) -> Any:
    """A response that says so of a request that was carried out."""

    def change(answer: Any) -> Any:
        answer.error_code = code
        return answer

    return change


@BOTH
@CODES
def test_a_refused_commit_that_is_committed_is_a_commit(version: int, code: int) -> None:
    """The coordinator says so itself: CompleteCommit, under the epoch of this transaction or the next."""
    world = World(version)
    manager = begun(world)
    world.plan("EndTxn", refused(code))
    transaction = manager.open
    world.run(manager.commit(5.0))
    assert transaction is not None and transaction.committed is True
    assert unnarrowed(manager.state) is State.UNINITIALIZED  # the epoch is not used again
    world.run(manager.begin())
    assert manager.state is State.IN_TRANSACTION


@BOTH
@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED])
def test_a_repeated_commit_that_is_refused_may_be_committed(version: int, code: int) -> None:
    """The first copy of EndTxn was carried out and got no response, the second is refused."""
    world = World(version)
    manager = begun(world)
    world.plan("EndTxn", CUT, refused(code))
    transaction = manager.open
    world.run(manager.commit(5.0))
    assert transaction is not None and transaction.committed is True


@CODES
def test_a_session_keeps_its_position_after_a_refused_commit(code: int) -> None:
    script = Script(SessionWorld(2))
    block = script.worked()
    script.plan("EndTxn", refused(code))
    script.end(block)
    assert block.committed is True
    assert script.consumer.positions()[IN[0]] == 15


@pytest.mark.parametrize("is_added", [True, False])
def test_below_version_2_a_commit_may_be_that_of_the_one_before(is_added: bool) -> None:
    """Successive transactions share an epoch: CompleteCommit is that of this one only if the coordinator acknowledged
    something as added to it."""
    world = World(1)
    world.coordinator.state, world.coordinator.epoch = "CompleteCommit", 4
    ending = Ending(
        transactional_id="orders",
        producer=ProducerIdAndEpoch(world.coordinator.producer_id, 4),
        is_new_flow=False,
        is_shared=False,
        timeout_ms=60_000,
        is_over_time=lambda _: False,
        is_added=is_added,
    )
    assert world.run(investigate(world.cluster, ending, "EndTxn", ErrorCode.PRODUCER_FENCED)).is_committed is is_added


def test_a_commit_after_a_takeover_stays_unknown() -> None:
    """Another producer has the id since the copy of EndTxn that got no response."""
    world = World(2)
    manager = begun(world)

    def taken_over(answer: Any) -> Any:
        world.coordinator.epoch, world.coordinator.state = 7, "Empty"
        return refused(ErrorCode.PRODUCER_FENCED)(answer)

    world.plan("EndTxn", CUT, taken_over)
    with pytest.raises(UnknownOutcomeError):
        world.run(manager.commit(5.0))


@BOTH
@pytest.mark.parametrize("api", ["InitProducerId", "FindCoordinator"])
def test_one_unknown_server_error_does_not_end_a_producer(version: int, api: str) -> None:
    world = World(version)
    world.plan(api, ErrorCode.UNKNOWN_SERVER_ERROR)
    begun(world)
    world = World(version)
    world.plan("InitProducerId", *[ErrorCode.UNKNOWN_SERVER_ERROR] * 50)
    manager = make_manager(world)
    with pytest.raises(Exception, match="UNKNOWN_SERVER_ERROR") as raised:
        world.run(manager.begin(3.0))
    assert not isinstance(raised.value, FatalTransactionError)
    world.plans.clear()
    world.run(manager.begin(3.0))


@pytest.mark.parametrize(("is_unanswered", "remedy"), [(False, "stop"), (True, "recreate")])
def test_a_producer_that_may_have_fenced_itself_is_recreated(is_unanswered: bool, remedy: str) -> None:
    """A late copy of its own InitProducerId bumps the epoch as another producer would."""
    world = World(2)
    if is_unanswered:
        world.plan("InitProducerId", CUT)
    manager = begun(world)
    world.coordinator.epoch += 2
    world.plan("EndTxn", ErrorCode.PRODUCER_FENCED)
    with pytest.raises(ProducerFencedError) as raised:
        world.run(manager.commit(5.0))
    assert raised.value.remedy == remedy


# ---------------------------------------------------------------------------------------------------- on a real broker


@pytest.fixture
def proxy(apache_kafka: ApacheKafka) -> Iterator[KafkaProxy]:
    with KafkaProxy(apache_kafka.bootstrap_servers) as proxy:
        yield proxy


@CODES
def test_a_commit_whose_response_is_an_error_is_a_commit(
    apache_kafka: ApacheKafka, proxy: KafkaProxy, code: int
) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    with Producer(bootstrap_servers=proxy.bootstrap_servers, transactional_id=topic) as producer:
        proxy.on_response("EndTxn").replace(error=code)
        with producer.transaction(timeout=SECONDS) as txn:
            txn.send(topic, b"one")
        assert txn.committed is True
        with producer.transaction(timeout=SECONDS) as txn:
            txn.send(topic, b"two")
        assert txn.committed is True


@pytest.mark.parametrize(
    ("api", "is_transactional"), [("InitProducerId", False), ("InitProducerId", True), ("FindCoordinator", True)]
)
def test_a_producer_survives_an_unknown_server_error(
    apache_kafka: ApacheKafka, proxy: KafkaProxy, api: str, is_transactional: bool
) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    options: dict[str, Any] = {"transactional_id": topic} if is_transactional else {}
    proxy.on_request(api).answer(error=-1)
    with Producer(bootstrap_servers=proxy.bootstrap_servers, **options) as producer:
        if is_transactional:
            producer.begin_transaction(SECONDS)
        assert producer.send(topic, b"value").result(SECONDS).offset == 0
        if is_transactional:
            producer.commit_transaction(SECONDS)
