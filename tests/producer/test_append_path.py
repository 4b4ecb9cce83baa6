# SPDX-License-Identifier: Apache-2.0
"""The compiled way of a record from `send` into a batch does what `append_slowly` does, and its lock is a lock."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import statistics
import sys
import threading
import time
from contextlib import nullcontext
from random import Random
from typing import Any

import numpy as np
import pytest
from scripted_broker import Rig, ScriptedCluster, started

from kcodec import batches
from kcodec._fast import RecordAppender, RecordDelivery, SendLock
from kcodec.errors import EncodeError, TransportError
from kcodec.producer.batch import BatchOutcome, ProducerBatch
from kcodec.producer.delivery import Delivery, RecordMetadata


def rig_with(partitions: int, **settings: Any) -> tuple[ScriptedCluster, Rig]:
    world = ScriptedCluster()
    world.create_topic("orders", partitions)
    return world, started(world, linger=0.0, **settings)


def records_of(world: ScriptedCluster) -> list[Any]:
    """What each Produce request holds: partition, and key, value, headers and timestamp of each record."""
    found = []
    for _, _, request in world.requests:
        for data in request.topic_data[0].partition_data:
            assert data.records is not None
            (batch,) = batches(data.records)
            rows = [(one.key, one.value, one.headers, one.timestamp) for one in batch.records()]
            found.append((data.index, rows))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_both_ways_make_the_same_batches(seed: int) -> None:
    """The same records, one by one, give the same batches, offsets and errors."""
    random = Random(seed)
    settings = {"batch_size": random.choice([200, 2000]), "ignore_keys": random.random() < 0.2}
    key_of = (None, b"", b"k", b"key %d")
    rows = []
    for number in range(400):
        key = random.choice(key_of)
        headers = random.choice([(), (), (("a", b"1"),), (("é", None), ("b", b"x" * random.randrange(50)))])
        value = random.choice([None, b"", b"v" * random.randrange(300), bytearray(b"array"), memoryview(b"view")])
        partition = random.choice([None, None, None, 0, 2])
        rows.append((key % number if key == key_of[3] else key, value, headers, partition, 1000 + number))
    worlds, offsets = [], []
    for is_compiled in (True, False):
        world, rig = rig_with(3, **settings)
        append: Any = rig.core.accumulator.append if is_compiled else rig.core.accumulator.append_slowly
        sent = []
        for number, (key, value, headers, partition, timestamp) in enumerate(rows):
            sent.append(append("orders", key, value, headers, partition, timestamp))
            if number % 50 == 0:
                world.run(0.1)
        rig.flush()
        worlds.append(records_of(world))
        offsets.append([(delivery.partition, delivery.offset, delivery.timestamp) for delivery in sent])
    assert worlds[0] == worlds[1]
    assert offsets[0] == offsets[1]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("orders", None, "text", (), None, 0), EncodeError, "value must be bytes or None, not str"),
        (("orders", 1, b"v", (), None, 0), EncodeError, "key must be bytes or None, not int"),
        (("orders", None, b"v", ((1, b""),), None, 0), EncodeError, "the name of header 0 must be str, not int"),
        (("orders", None, b"v", (("a", 3),), None, 0), EncodeError, r"the value of header 0 \('a'\) must be bytes or "),
        (("orders", None, b"v", ("ab", 1), None, 0), EncodeError, "header 0 is not a pair"),
        (("orders", None, b"v", (), 3, 0), EncodeError, "partition must be between 0 and 2, not 3"),
        (("orders", None, b"v", (), -1, 0), EncodeError, "partition must be between 0 and 2, not -1"),
        (("orders", None, b"v", (), 2**80, 0), EncodeError, "partition must be between 0 and 2"),
        (("orders", None, b"v", (), 10**5000, 0), EncodeError, "not <integer of about 5001 digits>"),
        (("orders", None, b"v", (), True, 0), EncodeError, "partition must be an int or None, got True of type bool"),
        (("orders", None, b"v", (), None, -2), EncodeError, "timestamp -2 is below -1"),
        (("orders", None, b"v", (), None, 2**63), EncodeError, "does not fit into 64 bits"),
        (("orders", None, b"v", (), None, "now"), EncodeError, "timestamp must be an int, not str"),
        (("orders", None, b"v" * 5000, (), None, 0), EncodeError, "above max_request_size 4000"),
        ((5, None, b"v", (), None, 0), TypeError, "topic must be a str, not int"),
    ],
    ids=lambda value: "" if isinstance(value, (tuple, type)) else str(value)[:40],
)
def test_an_invalid_record_changes_nothing(arguments: Any, error: type[Exception], text: str) -> None:
    world, rig = rig_with(3, max_request_size=4000)
    rig.send("orders", b"before", partition=0)
    accumulator = rig.core.accumulator
    for _ in range(2):
        with pytest.raises(error, match=text):
            accumulator.append(*arguments)
    rig.send("orders", b"after", partition=0)
    rig.flush()
    (log, *_) = world.topics["orders"][1]
    assert log.values == [b"first", b"before", b"after"]
    assert accumulator.memory.free == rig.settings.buffer_memory


def test_integers_of_numpy_are_partitions_and_timestamps() -> None:
    world, rig = rig_with(3)
    accumulator: Any = rig.core.accumulator
    for _ in range(2):
        accumulator.append("orders", None, b"v", (), np.int64(1), np.int64(5))
    rig.flush()
    assert world.topics["orders"][1][1].values == [b"v", b"v"]


def test_a_failed_wake_up_does_not_hide_the_error_of_a_record() -> None:
    """The I/O loop may fail at this moment, before it has ended the record."""
    _, rig = rig_with(3)
    accumulator = rig.core.accumulator
    accumulator.append("orders", None, b"v", (), 0, 0)
    (batch,) = accumulator.unfinished

    def refuse() -> None:
        raise TransportError("the I/O loop of this client failed")

    accumulator._wake = refuse
    accumulator.hurry(batch)
    assert batch in accumulator.awaited


@pytest.mark.parametrize("timestamp", ["now", 2**70])
def test_an_invalid_timestamp_before_metadata_is_refused(timestamp: Any) -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = Rig(world)
    with pytest.raises(EncodeError, match="timestamp"):
        rig.core.append("orders", None, b"v", (), None, timestamp)
    rig.send("orders", b"valid")
    rig.flush()
    (log,) = world.topics["orders"][1]
    assert log.values == [b"valid"]
    assert not rig.core.has_unfinished


def test_a_closed_producer_refuses_a_record_with_an_open_batch() -> None:
    _, rig = rig_with(1, batch_size=10_000)
    rig.send("orders", b"open")
    rig.core.refuse_sends(TransportError("no transaction is open"))
    with pytest.raises(TransportError, match="no transaction is open"):
        rig.send("orders", b"late")


def test_a_header_that_sends_a_record_itself_is_refused() -> None:
    """Reading the buffers of a header runs code of the application, in the middle of the batch."""
    world, rig = rig_with(1, batch_size=10_000)
    rig.send("orders", b"open")

    class Name(str):
        __slots__ = ()

        def encode(self, *_: Any) -> bytes:
            rig.send("orders", b"inner")
            return b"name"

    try:
        rig.core.append("orders", None, b"outer", ((Name("é"), b""),), None, 0)
    except RuntimeError as error:
        assert "in use" in str(error)
    rig.flush()
    (log,) = world.topics["orders"][1]
    assert log.values[:2] == [b"first", b"open"]
    assert not rig.core.has_unfinished


def test_the_parts_of_a_buffer_cannot_be_misused() -> None:
    delivery = RecordDelivery("batch", 3, 5)
    assert (delivery._batch, delivery._index, delivery._timestamp) == ("batch", 3, 5)
    with pytest.raises(TypeError, match="subclass of RecordDelivery"):
        RecordAppender(SendLock(), dict, False)  # type: ignore[arg-type]
    appender = RecordAppender(SendLock(), RecordDelivery, False)
    appender.topics["orders"] = object()
    with pytest.raises(TypeError):
        appender.append("orders", None, b"v", (), None, 0)
    for each in (delivery, appender, SendLock()):
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(each)


def test_send_without_its_lock_is_refused() -> None:
    _, rig = rig_with(1)
    with pytest.raises(TypeError, match="SendLock"):
        rig.core.accumulator.send("orders", None, b"v", (), None, 0)


def test_the_lock_excludes_other_threads() -> None:
    lock, count = SendLock(), 0

    def work() -> None:
        nonlocal count
        for _ in range(2000):
            with lock:
                seen = count
                time.sleep(0)
                count = seen + 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == 8000
    assert lock.acquire(False)
    assert not lock.acquire(False)
    lock.release()
    with pytest.raises(RuntimeError, match="not held"):
        lock.release()


def test_ctrl_c_interrupts_the_wait_for_the_lock() -> None:
    lock, main = SendLock(), threading.main_thread().ident
    assert main is not None
    holder = threading.Thread(target=lock.acquire)  # a thread that holds the lock does not wait for it
    holder.start()
    holder.join()
    timer = threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job of a shell
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    lock.release()
    assert lock.acquire(False)


def test_a_thread_does_not_wait_for_a_lock_that_it_holds() -> None:
    """A signal handler runs in the middle of a call of its thread, which would never release the lock."""
    lock = SendLock()
    lock.refuse_owner()
    with lock:
        for wait in (lock.acquire, lock.__enter__, lock.refuse_owner):
            with pytest.raises(RuntimeError, match="inside another call of the same client, which a signal handler"):
                wait()
        assert not lock.acquire(False)
        other = threading.Thread(target=lock.acquire)  # waits as usual
        other.start()
        other.join(0.05)
        assert other.is_alive()
    other.join()
    assert lock.locked()
    lock.refuse_owner()


def test_a_thread_that_waits_does_not_stop_a_thread_that_sends() -> None:
    """A waiting thread gets the lock only when it also has the GIL. Otherwise the sending thread would have to wait for
    the lock at each record, and threads that send would take turns after each record."""
    lock, before = SendLock(), sys.getswitchinterval()
    other = threading.Thread(target=lock.acquire)
    sys.setswitchinterval(60.0)  # this thread keeps the GIL
    try:
        lock.acquire()
        other.start()
        other.join(0.1)  # it waits for the lock now
        lock.release()
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            pass
        assert lock.acquire(False)
        lock.release()
    finally:
        sys.setswitchinterval(before)
    other.join(10.0)
    assert lock.locked()


def test_a_thread_that_waits_gets_the_lock_at_the_second_release() -> None:
    """Also if another thread holds the lock nearly all the time, as `send` does without the metadata of its topic."""
    lock, before, stop = SendLock(), sys.getswitchinterval(), threading.Event()

    def hold() -> None:
        while not stop.is_set():
            with lock:
                until = time.monotonic() + 0.002  # two switch intervals, so the GIL changes threads in this loop
                while time.monotonic() < until:
                    pass

    holders = [threading.Thread(target=hold) for _ in range(2)]
    sys.setswitchinterval(0.001)
    try:
        for holder in holders:
            holder.start()
        seconds = []
        for _ in range(50):
            began = time.monotonic()
            with lock:
                seconds.append(time.monotonic() - began)
    finally:
        sys.setswitchinterval(before)
        stop.set()
        for holder in holders:
            holder.join()
    assert statistics.median(seconds) < 0.02


def test_a_forked_child_has_the_lock_that_another_thread_held() -> None:
    lock = SendLock()
    threads = [threading.Thread(target=lock.acquire, daemon=True) for _ in range(3)]
    lock.acquire()
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    child = os.fork()
    if not child:
        lock.forget_threads()
        other = threading.Thread(target=lock.__enter__)
        with lock:
            other.start()
            other.join(0.05)
        other.join(10.0)
        os._exit(0 if lock.locked() and not other.is_alive() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    deadline = time.monotonic() + 10.0
    while any(thread.is_alive() for thread in threads):
        assert time.monotonic() < deadline
        if lock.locked():  # at first by this thread, and then by one that has ended
            lock.release()
        time.sleep(0.001)


def test_no_wake_up_is_lost_if_signals_interrupt_a_thread_that_waits() -> None:
    lock, count, main = SendLock(), 0, threading.main_thread().ident
    assert main is not None
    stop, can_raise, received = threading.Event(), False, 0

    def work() -> None:
        nonlocal count
        for _ in range(500):
            with lock:
                seen = count
                time.sleep(0)
                count = seen + 1

    def on_signal(*_: object) -> None:
        nonlocal can_raise, received
        if can_raise:
            can_raise = False
            received += 1
            raise InterruptedError

    def interrupt() -> None:
        while not stop.wait(0.001):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, on_signal)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    sender = threading.Thread(target=interrupt)
    try:
        for thread in [*threads, sender]:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            try:
                can_raise = True
                lock.acquire()
                can_raise = False
                lock.release()
            except InterruptedError:
                with contextlib.suppress(RuntimeError):
                    lock.refuse_owner()
                    continue
                lock.release()  # the signal came after the lock was taken
    finally:
        stop.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert received > 10
    assert count == 2000


def test_a_condition_waits_with_the_lock() -> None:
    lock = SendLock()
    freed = threading.Condition(lock)  # type: ignore[arg-type]
    found: list[bool] = []

    def work() -> None:
        with freed:
            found.append(freed.wait(10.0))

    thread = threading.Thread(target=work)
    thread.start()
    while not freed._waiters:  # type: ignore[attr-defined]
        time.sleep(0.001)
    with lock:
        freed.notify_all()
    thread.join()
    assert found == [True]


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize(
    "outcome",
    [BatchOutcome(), BatchOutcome(7), BatchOutcome(7, 99), BatchOutcome(-1, 99), BatchOutcome(error=OSError()), None],
    ids=str,
)
def test_the_stored_position_is_that_of_the_outcome(outcome: BatchOutcome | None, moved: bool) -> None:
    """The short way to the result of a record; None where it has no result."""
    batch = ProducerBatch("orders", 3, nullcontext())
    delivery = Delivery(batch, 2, 1234)
    if moved:
        batch.move_to(ProducerBatch("orders", 5, nullcontext()), 4)
    delivery._where()[0].outcome = outcome
    found = delivery._stored(RecordMetadata)
    if outcome is None or outcome.error is not None:
        assert found is None
    else:
        assert type(found) is RecordMetadata and found == delivery.outcome()
        assert found.partition == (5 if moved else 3) and found.topic == "orders"
