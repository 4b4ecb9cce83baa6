# SPDX-License-Identifier: Apache-2.0
"""Forked processes: a child never speaks on, holds open, or closes for its parent a connection; it makes its own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from client_runners import Looped, Make, Runner, Threaded
from scripted_peer import Peer, Request

from kcodec._fast import SendLock
from kcodec.broker import Broker
from kcodec.client import Consumer, Producer
from kcodec.client.waiting import ProducerBase, _Fork
from kcodec.errors import TransportError
from kcodec.flow import ANY_NODE, Flow, Reply, call
from kcodec.network import thread_loop as sync
from kcodec.network.client import Client
from kcodec.network.options import ClientConfig
from kcodec.network.weak_sets import members_of
from kcodec.offsets import TopicPartition
from kcodec.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from kcodec.testing.kafka import ApacheKafka

CHILD_SECONDS = 20
# A busy machine may hold an answer back for a while.
PATIENT: dict[str, Any] = {"request_timeout_ms": 5000}
pytestmark = pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")


def in_child(work: Callable[[], object]) -> str:
    """What `work` gives in a forked child, or the error it ends in; "killed" if it hangs."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_SECONDS)
        try:
            reported = str(work())
        except BaseException as error:  # noqa: BLE001 - told to the parent
            reported = f"{type(error).__name__}: {error}"
        os.write(writing, reported.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        reported = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return reported if os.WIFEXITED(status) else "killed"


def sockets() -> set[int]:
    """The inodes of all sockets that this process holds."""
    found = set()
    for number in range(3, 512):
        with contextlib.suppress(OSError):
            status = os.fstat(number)
            if stat.S_ISSOCK(status.st_mode):
                found.add(status.st_ino)
    return found


def answer(peer: Peer, request: Request) -> bytes | None:
    if request.api_key == InitProducerIdRequest.api_key:
        return request.reply(InitProducerIdResponse(producer_id=os.getpid()))
    return peer.usual(request)


def ask(node: int = 1) -> Flow[Reply]:
    return call(node, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), timeout=5.0)


def count_asked(peer: Peer) -> int:
    return sum(request.api_key == InitProducerIdRequest.api_key for request in peer.requests)


def connected(runner: Runner) -> Runner:
    """With all the connections that it is going to have, and nothing under way."""
    for _ in range(2):
        runner.run(runner.client.cluster.refresh(5.0))
        runner.run(ask())
    return runner


def test_a_child_gets_an_error_and_the_parent_continues(make: Make) -> None:
    with Peer(answer) as peer:
        runner = connected(make(peer.address, **PATIENT))
        connections, asked = peer.connections, count_asked(peer)
        for _ in range(3):
            reported = in_child(lambda: runner.run(ask()))
            assert reported.startswith("TransportError: this client belongs to process")
            assert "must create its own" in reported
        assert count_asked(peer) == asked
        runner.run(ask())
        assert peer.connections == connections


def test_a_child_holds_no_socket_of_its_parents_client() -> None:
    before = sockets()
    with Peer(answer) as peer:
        peers = sockets()
        runner = connected(Threaded(peer.address, **PATIENT))
        ours = sockets() - before - peers
        assert len(ours) >= 3, "a connection and its peer's end, and a pair that wakes the loop"
        kept = in_child(lambda: sorted(sockets() & ours))
        accepted = [os.fstat(sock.fileno()).st_ino for sock in peer._sockets]
        assert kept == str(sorted(ours & set(accepted))), "the peer's ends are the test's own, nobody closes those"
        runner.close()


def test_closing_in_a_child_is_nothing_to_the_parent(make: Make) -> None:
    with Peer(answer) as peer:
        runner = connected(make(peer.address, **PATIENT))
        connections = peer.connections
        assert in_child(runner.close) == "None"
        runner.run(ask())
        assert peer.connections == connections


def test_a_child_makes_its_own_client_with_the_same_options(make: Make) -> None:
    with Peer(answer) as peer:
        runner = connected(make(peer.address, **PATIENT))
        connections = peer.connections

        def work() -> int:
            own = type(runner)(peer.address, **PATIENT)
            try:
                return int(own.run(ask(ANY_NODE)).message.producer_id)
            finally:
                own.close()

        assert in_child(work) == str(os.getpid())
        assert peer.connections > connections
        runner.run(ask())


@pytest.mark.parametrize("held", ["_lock", "selector"])
def test_a_fork_in_the_middle_of_something_blocks_no_child(held: str) -> None:
    """Another thread may hold any lock of ours at the moment of the fork."""
    with Peer(answer) as peer:
        runner = Threaded(peer.address, **PATIENT)
        connected(runner)
        with runner.io_loop._lock if held == "_lock" else contextlib.nullcontext():
            began = time.monotonic()
            assert "must create its own" in in_child(lambda: runner.run(ask()))
            assert in_child(runner.close) == "None"
            assert time.monotonic() - began < CHILD_SECONDS / 2
        runner.close()


def test_a_child_can_look_at_a_consumer_that_the_parent_uses(kcodec_broker: Broker) -> None:
    """Its I/O thread, which the child does not have, may hold the lock at the moment of the fork."""
    partition = TopicPartition("orders", 0)
    with Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers) as consumer:
        consumer.assign([partition])
        held, end = threading.Event(), threading.Event()

        def hold() -> None:
            with consumer._core.assignment.lock:
                held.set()
                end.wait(CHILD_SECONDS)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(CHILD_SECONDS)
        try:
            assert in_child(consumer.assignment) == str(frozenset({partition}))
            assert in_child(consumer.paused) == str(frozenset())
            assert "must create its own" in in_child(lambda: consumer.poll(1.0))
        finally:
            end.set()
            thread.join()
        assert consumer.assignment() == {partition}


def test_threads_that_fork_at_the_same_time_leave_no_lock_held() -> None:
    """The second one begins to fork before the first has ended; the lock of a producer was left held by it."""
    with Producer(bootstrap_servers="127.0.0.1:1") as producer, Producer(bootstrap_servers="127.0.0.1:1") as other:
        second = threading.Thread(target=lambda: (_Fork.before(), _Fork.in_parent()))
        _Fork.before()
        second.start()
        time.sleep(0.1)
        _Fork.in_parent()
        second.join(10)
        assert not second.is_alive()
        assert not producer._lock.locked()
        assert not other._lock.locked()


class Interrupted(BaseException):
    """What a handler of a signal raises, as KeyboardInterrupt is."""


class Interruption:
    """Raises Interrupted in a `with` block at one point: where a function or a line begins, or after a call of a
    compiled function. With more points in the block it is raised at none, and `is_over` is True."""

    def __init__(self, at: int) -> None:
        self.left = at

    @property
    def is_over(self) -> bool:
        return self.left >= 0

    def trace(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        if event in {"call", "line", "c_return"} and frame.f_code.co_filename != __file__:
            self.left -= 1
            if self.left == -1:
                raise Interrupted
        return self.trace

    def __enter__(self) -> None:
        sys.setprofile(self.trace)
        sys.settrace(self.trace)

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)
        sys.setprofile(None)


class Forked:
    """In place of a producer."""

    def __init__(self) -> None:
        self._lock = SendLock()
        self._core = self
        self.is_forgotten = False

    def forget(self, error: BaseException) -> None:
        self.is_forgotten = True


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> list[Forked]:
    """All producers of the process."""
    producers = [Forked() for _ in range(3)]
    monkeypatch.setattr(ProducerBase, "_open", weakref.WeakSet(producers))
    monkeypatch.setattr(_Fork, "lock", threading.Lock())
    return producers


def locks_held(producers: list[Forked]) -> list[bool]:
    return [_Fork.lock.locked(), *(producer._lock.locked() for producer in producers)]


@pytest.mark.parametrize("is_child", [False, True])
def test_an_interrupted_handler_of_a_fork_leaves_no_lock_held(forked: list[Forked], is_child: bool) -> None:
    """Wherever the interruption is, which does not stop a fork. In the child the producers have ended, too."""
    after = _Fork.in_child if is_child else _Fork.in_parent
    for at in itertools.count():
        interruption = Interruption(at)
        for handler in (_Fork.before, after, after):
            with contextlib.suppress(Interrupted), interruption:
                handler()
        assert locks_held(forked) == [False] * 4, f"at {at}"
        assert all(producer.is_forgotten is is_child for producer in forked), f"at {at}"
        for producer in forked:
            producer.is_forgotten = False
        if interruption.is_over:
            break
    assert at > 30


@contextlib.contextmanager
def interrupted_soon() -> Iterator[None]:
    """A signal interrupts the block, which waits for a lock."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)


@contextlib.contextmanager
def in_thread(begin: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
    """Another thread is between the two calls during the block."""
    is_begun, is_over = threading.Event(), threading.Event()

    def work() -> None:
        begin()
        is_begun.set()
        is_over.wait(30)
        end()

    thread = threading.Thread(target=work)
    thread.start()
    assert is_begun.wait(10)
    try:
        yield
    finally:
        is_over.set()
        thread.join(10)
        assert not thread.is_alive()


def test_an_interrupted_fork_releases_no_lock_of_a_thread_that_forks(forked: list[Forked]) -> None:
    with in_thread(_Fork.before, _Fork.in_parent):
        with interrupted_soon(), pytest.raises(Interrupted):
            _Fork.before()
        _Fork.in_parent()
        _Fork.in_parent()
        assert locks_held(forked) == [True] * 4
    assert locks_held(forked) == [False] * 4


def test_an_interrupted_fork_releases_no_lock_of_a_thread_that_sends(forked: list[Forked]) -> None:
    with in_thread(forked[1]._lock.acquire, forked[1]._lock.release):
        with interrupted_soon(), pytest.raises(Interrupted):
            _Fork.before()
        _Fork.in_parent()
        _Fork.in_parent()
        assert locks_held(forked) == [False, False, True, False]
    assert locks_held(forked) == [False] * 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_child_of_an_interrupted_fork_gets_an_error() -> None:
    """Another thread was in a critical section, and does not exist in the child."""
    with Producer(bootstrap_servers="127.0.0.1:1") as producer:
        with in_thread(producer._lock.acquire, producer._lock.release), interrupted_soon():
            reported = in_child(lambda: producer.send("orders", b"value"))
        assert reported.startswith("TransportError: this producer belongs to another process"), reported
        assert not _Fork.lock.locked() and not producer._lock.locked()


def test_a_fork_while_another_thread_creates_a_producer_locks_the_others() -> None:
    """The iteration of a WeakSet that changes raises RuntimeError."""
    members = [Forked() for _ in range(3)]

    class Changing(weakref.WeakSet[Forked]):
        def __iter__(self) -> Iterator[Forked]:
            for member in super().__iter__():
                yield member
                if len(members) == 3:
                    members.append(Forked())
                    self.add(members[-1])

    assert set(members_of(Changing(members))) == set(members)


def test_the_children_of_multiprocessing_write_with_their_own_producers(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    options: dict[str, Any] = {"bootstrap_servers": apache_kafka.bootstrap_servers}
    with Producer(**options) as producer:
        producer.send(topic, b"parent").result(10)
        forked = multiprocessing.get_context("fork")
        children = [forked.Process(target=write, args=(options, topic, 100)) for _ in range(4)]
        for child in children:
            child.start()
        mine = [producer.send(topic, b"parent") for _ in range(100)]
        for child in children:
            child.join(30)
        offsets = [delivery.result(10).offset for delivery in mine]
    assert [child.exitcode for child in children] == [0] * 4
    assert offsets == sorted(offsets)
    assert apache_kafka.end_offset(topic, 0) == 501


def write(options: dict[str, Any], topic: str, count: int) -> None:
    with Producer(**options) as producer:
        deliveries = [producer.send(topic, b"child") for _ in range(count)]
    assert all(delivery.result().offset >= 0 for delivery in deliveries)


def test_forks_under_load_cost_no_record(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    deliveries, is_over = [], threading.Event()
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as producer:

        def send() -> None:
            while not is_over.is_set():
                deliveries.append(producer.send(topic, b"value"))
                time.sleep(0.0005)

        sender = threading.Thread(target=send)
        sender.start()
        reported = [in_child(lambda: producer.send(topic, b"child").result(5)) for _ in range(10)]
        reported += [in_child(producer.close) for _ in range(3)]
        is_over.set()
        sender.join()
        offsets = [delivery.result(10).offset for delivery in deliveries]
    assert all("must create its own" in each for each in reported[:10]), reported
    assert reported[10:] == ["None"] * 3
    assert offsets == list(range(len(deliveries)))
    assert apache_kafka.end_offset(topic, 0) == len(deliveries)


ENDING = """
import os, sys
from kcodec.client import Producer

with Producer(bootstrap_servers=sys.argv[1], linger_ms=2000) as producer:
    deliveries = [producer.send(sys.argv[2], b"value") for _ in range(100)]
    child = os.fork()
    if child == 0:
        sys.exit(0)  # through `with`, atexit and the end of the interpreter
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
print([delivery.result().offset for delivery in deliveries] == list(range(100)))
"""


def test_a_child_that_ends_as_programs_do_sends_nothing_of_its_parents(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    command = [
        sys.executable,
        "-W",
        "ignore::DeprecationWarning",
        "-W",
        "error::ResourceWarning",
        "-c",
        ENDING,
        apache_kafka.bootstrap_servers,
        topic,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert done.stderr == ""
    assert apache_kafka.end_offset(topic, 0) == 100


def test_a_loop_of_asyncio_in_a_child_is_a_new_one(apache_kafka: ApacheKafka) -> None:
    runner = Looped(apache_kafka.bootstrap_servers, **PATIENT)
    runner.run(runner.client.cluster.refresh(5.0))

    def work() -> str:
        with pytest.raises(TransportError, match="must create its own"):
            asyncio.new_event_loop().run_until_complete(runner.io_loop.run(ask()))
        own = sync.ThreadLoop(Client(ClientConfig.take({"bootstrap_servers": apache_kafka.bootstrap_servers})))
        own.run(own.client.cluster.refresh(5.0), 10)
        return str(own.client.cluster.cluster_id)

    reported = in_child(work)
    runner.run(runner.client.cluster.refresh(5.0))
    assert reported == runner.client.cluster.cluster_id
    runner.end()
