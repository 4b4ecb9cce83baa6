# SPDX-License-Identifier: Apache-2.0
"""The wall clock moves by an hour either way, and no deadline, pause, session or token notices: all of them count
monotonic seconds. Once with Python's clock replaced, once with the process's own, underneath everything.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from client_runners import Make
from scripted_peer import Peer, Request

from kcodec.client import Producer
from kcodec.errors import DeliveryErrors, DeliveryTimeoutError, RequestTimedOutError
from kcodec.flow import ANY_NODE, Flow, Reply, call, sleep
from kcodec.protocol.messages.transactions import InitProducerIdRequest
from kcodec.security.oauthbearer import FetchedToken, TokenSource
from kcodec.security.secret import Secret
from kcodec.testing.kafka import ApacheKafka

HOUR = 3600.0
# What a busy machine may add.
SLACK_SECONDS = 1.5

Move = Callable[[float], None]


@pytest.fixture(params=[HOUR, -HOUR], ids=["forward", "back"])
def shift(request: pytest.FixtureRequest) -> float:
    return float(request.param)


@pytest.fixture
def move(monkeypatch: pytest.MonkeyPatch) -> Move:
    """Moves the wall clock of this process, as far as Python tells it."""
    real, real_ns, offset = time.time, time.time_ns, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + offset[0])
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(offset[0] * 1e9))
    before = time.time()

    def move(seconds: float) -> None:
        offset[0] += seconds
        assert abs(time.time() - before - offset[0]) < 60, "the clock has moved"

    return move


@contextmanager
def moved_meanwhile(move: Move, shift: float, after: float = 0.2) -> Iterator[None]:
    timer = threading.Timer(after, move, (shift,))
    timer.start()
    try:
        yield
    finally:
        timer.join()


@contextmanager
def lasts(seconds: float) -> Iterator[None]:
    """What is inside takes about so long, by the clock that nobody moves."""
    began = time.monotonic()
    yield
    assert seconds - 0.05 <= time.monotonic() - began <= seconds + SLACK_SECONDS


def silent(peer: Peer, request: Request) -> bytes | None:
    """Metadata is answered; behind a request that is not, nothing is, as answers come in order."""
    asked = [each.api_key for each in peer.requests if each.socket is request.socket]
    return None if InitProducerIdRequest.api_key in asked else peer.usual(request)


def ask(timeout: float) -> Flow[Reply]:
    return call(ANY_NODE, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), timeout=timeout)


def test_a_request_times_out_when_its_seconds_are_over(make: Make, move: Move, shift: float) -> None:
    with Peer(silent) as peer:
        runner = make(peer.address, request_timeout_ms=5000)
        runner.run(runner.client.cluster.refresh(5.0))
        with (
            moved_meanwhile(move, shift),
            lasts(0.8),
            pytest.raises(RequestTimedOutError, match=r"within 0\.[89]|1\.\d s"),
        ):
            runner.run(ask(0.8))


def test_a_pause_is_as_long_as_it_was_meant(make: Make, move: Move, shift: float) -> None:
    with Peer(silent) as peer:
        runner = make(peer.address, request_timeout_ms=5000)
        runner.run(runner.client.cluster.refresh(5.0))
        with moved_meanwhile(move, shift), lasts(0.6):
            runner.run(sleep(0.6))


def test_a_call_that_waits_for_metadata_ends_by_its_deadline(make: Make, move: Move, shift: float) -> None:
    runner = make("127.0.0.1:1")
    with moved_meanwhile(move, shift), lasts(0.8), pytest.raises(DeliveryTimeoutError):
        runner.run(runner.client.cluster.refresh(0.8))


def test_idle_connections_and_metadata_grow_no_older(make: Make, move: Move, shift: float) -> None:
    with Peer(silent) as peer:
        runner = make(peer.address, request_timeout_ms=5000, connections_max_idle_ms=60_000, metadata_max_age_ms=60_000)
        runner.run(runner.client.cluster.refresh(5.0))
        runner.run(sleep(0.2))
        connections, requests = peer.connections, len(peer.requests)
        move(shift)
        runner.run(sleep(0.3))
        assert (peer.connections, len(peer.requests)) == (connections, requests)


def test_a_record_fails_when_its_delivery_timeout_is_over(move: Move, shift: float) -> None:
    with (
        Peer(silent) as peer,
        suppress(DeliveryErrors),
        Producer(
            bootstrap_servers=peer.address,
            delivery_timeout_ms=900,
            request_timeout_ms=300,
            linger_ms=0,
            max_block_ms=5000,
        ) as producer,
    ):
        with moved_meanwhile(move, shift), lasts(0.9), pytest.raises(DeliveryTimeoutError):
            producer.send("topic", b"value").result(10)
        with moved_meanwhile(move, -shift), lasts(0.3), pytest.raises(DeliveryTimeoutError, match="no result within"):
            producer.send("topic", b"value").result(0.3)


def test_a_token_lives_as_long_as_it_was_given_for(make: Make, move: Move, shift: float) -> None:
    fetched: list[float] = []

    def fetch() -> FetchedToken:
        fetched.append(time.monotonic())
        return FetchedToken(Secret("token"), 1.5)

    source = TokenSource(fetch, "a test")
    with Peer(silent) as peer:
        runner = make(peer.address, request_timeout_ms=5000)
        runner.run(source.get(runner.client.clock))
        move(shift)
        runner.run(source.get(runner.client.clock))
        assert len(fetched) == 1
        runner.run(sleep(1.35))
    assert len(fetched) == 2
    assert 1.15 <= fetched[1] - fetched[0] <= 1.2 + SLACK_SECONDS


# Adds what a shared number says to every real-time clock that the C library hands out; monotonic ones are the kernel's.
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *shift;

__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("SHIFT_FILE"), O_RDONLY);
    shift = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
}

int clock_gettime(clockid_t which, struct timespec *found) {
    int failed = (int)syscall(SYS_clock_gettime, which, found);
    if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) found->tv_sec += *shift;
    return failed;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
"""

STORY = """
import mmap, os, sys, time, datetime
from kcodec.client import Producer
from kcodec.errors import DeliveryTimeoutError

with open(os.environ["SHIFT_FILE"], "r+b") as file:
    shared = mmap.mmap(file.fileno(), 8)
began, wall = time.monotonic(), time.time()

def move(seconds):
    shared[:] = int(seconds).to_bytes(8, sys.byteorder, signed=True)
    assert abs(time.time() - wall - seconds) < 60 and abs(datetime.datetime.now().timestamp() - wall - seconds) < 60
    assert time.monotonic() - began < 60

servers, topic = sys.argv[1:]
with Producer(bootstrap_servers=servers, linger_ms=20) as producer:
    offsets = []
    for seconds in (0, 3600, -3600, 3600, 0):
        move(seconds)
        before = time.monotonic()
        deliveries = [producer.send(topic, b"value") for _ in range(100)]
        offsets += [delivery.result(20).offset for delivery in deliveries]
        producer.flush(20)
        assert time.monotonic() - before < 5
    assert offsets == list(range(500)), offsets
for seconds in (3600, -3600):
    move(0)
    with Producer(bootstrap_servers="127.0.0.1:1", delivery_timeout_ms=800, request_timeout_ms=300) as producer:
        before = time.monotonic()
        delivery = producer.send(topic, b"value")
        time.sleep(0.2)
        move(seconds)
        try:
            delivery.result(20)
        except DeliveryTimeoutError:
            assert 0.7 < time.monotonic() - before < 3
        else:
            raise AssertionError("delivered to nobody")
print("done")
"""


def test_the_clock_of_the_whole_process_moves(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    source, library, shift = tmp_path / "clock.c", tmp_path / "clock.so", tmp_path / "shift"
    source.write_text(CLOCK, encoding="ascii")
    shift.write_bytes(bytes(8))
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    environment = {"LD_PRELOAD": str(library), "SHIFT_FILE": str(shift), "PYTHONPATH": ":".join(sys.path)}
    topic = apache_kafka.create_topic(partitions=1)
    command = [sys.executable, "-c", STORY, apache_kafka.bootstrap_servers, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
