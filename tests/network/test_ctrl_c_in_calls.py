# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while a call waits for its flow: the flow has ended when the exception leaves the call.

The I/O thread is busy at the moment of the signal. Otherwise it could end the flow before the next call by chance.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from client_runners import Threaded
from interrupted_calls import ctrl_c

from kcodec.broker import Broker
from kcodec.client import GroupTransactSession, Producer
from kcodec.flow import sleep
from kcodec.testing.proxy import KafkaProxy

#: Less than the time for which an interrupted call waits.
BUSY_SECONDS = 0.3


@pytest.fixture
def proxy(kcodec_broker: Broker) -> Iterator[KafkaProxy]:
    kcodec_broker.create_topic("in", 1)
    kcodec_broker.create_topic("out", 1)
    kcodec_broker.seed("in", [b"1"])
    with KafkaProxy(kcodec_broker.bootstrap_servers) as proxy:
        yield proxy


@contextmanager
def ctrl_c_while_held(proxy: KafkaProxy, client: Any, api: str) -> Iterator[None]:
    """Hold the next request of this kind, press Ctrl-C, and release the request after the block."""
    held = proxy.on_request(api).hold()

    def press() -> None:
        held.wait_hit(20.0)
        time.sleep(0.1)  # the call waits
        client._io_loop.post(lambda: time.sleep(BUSY_SECONDS))
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        pressed = pool.submit(press)
        with pytest.raises(KeyboardInterrupt):
            yield
        held.release()
        pressed.result(20.0)


def test_a_session_begins_again_after_ctrl_c_in_the_end_of_its_block(proxy: KafkaProxy, kcodec_broker: Broker) -> None:
    options: dict[str, Any] = {"group_id": "g", "transactional_id": "t", "topics": ["in"]}
    with GroupTransactSession(bootstrap_servers=proxy.bootstrap_servers, **options) as session:
        with ctrl_c_while_held(proxy, session, "TxnOffsetCommit"), session.transaction() as txn:
            for record in txn.poll(10):
                txn.send("out", record.value)
        with session.transaction() as txn:
            for record in txn.poll(10):
                txn.send("out", record.value)
        assert txn.committed
    assert [record.value for record in kcodec_broker.committed("out")] == [b"1"]


def test_a_producer_aborts_after_ctrl_c_at_the_begin_of_a_commit(proxy: KafkaProxy, kcodec_broker: Broker) -> None:
    with Producer(bootstrap_servers=proxy.bootstrap_servers, transactional_id="t") as producer:
        producer.begin_transaction()
        producer.send("out", b"aborted")
        held = proxy.on_request("Produce").hold()
        with pytest.raises(KeyboardInterrupt), ctrl_c("call", "_wake", "thread_loop.py") as hits:
            producer.commit_transaction()
        assert hits
        held.release()
        producer.abort_transaction()
        with producer.transaction() as txn:
            txn.send("out", b"committed")
    assert [record.value for record in kcodec_broker.committed("out")] == [b"committed"]


def test_an_interrupted_call_does_not_run_on() -> None:
    runner = Threaded("127.0.0.1:1")

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.io_loop.run(sleep(30.0), check=interrupt)
    assert not runner.io_loop._running
    runner.close()
