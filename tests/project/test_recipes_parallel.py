# SPDX-License-Identifier: Apache-2.0
"""examples/dead_letters.py and examples/parallel_partition.py, killed in the middle, on the embedded broker.

The other recipes are in test_recipes.py; that for Delta tables is in tests/prove/prove_delta.py.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from recipe_broker import committed_offset, committed_values, numbers
from recipe_worker import EFFECTS, STEPS, example
from recipes import SHORT, assert_killed, start_worker, wait_for

import kcodec
from kcodec.broker import Broker
from kcodec.client import Admin, Consumer, Producer

COUNT = 60
BAD = (3, 17, 40)
ALL = {b"%d" % number for number in range(COUNT)}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(group_min_session_timeout_ms=500) as started:
        yield started


# ------------------------------------------------------------------------------------------------------ dead letters


def all_killed(workers: dict[str, subprocess.Popen[bytes]]) -> None:
    """Each came to its step; none is left if one did not."""
    try:
        for worker in workers.values():
            assert_killed(worker)
    finally:
        for worker in workers.values():
            worker.kill()
            worker.communicate()


def create_topics(broker: Broker, source: str) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([f"{source}-done", f"{source}.retry", f"{source}.dead"])


def processor(broker: Broker, source: str, **options: Any) -> Any:
    """An instance of the program in this process."""
    module = example("dead_letters")
    given = {"attempts": 3, "delay": 0.1, "transactional_id": source, "group_instance_id": source, **options}
    servers = {"bootstrap_servers": broker.bootstrap_servers, "group_id": f"process-{source}"}
    return module.Processor(source, f"{source}-done", module.book, **servers, **given)


def drain(broker: Broker, source: str, **options: Any) -> None:
    """Go on until each record is processed or put aside."""

    def handled() -> int:
        return sum(sum(committed_values(broker, f"{source}{end}").values()) for end in ("-done", ".dead"))

    with closing(processor(broker, source, **options)) as program:
        wait_for(lambda: [program.step(0.2), handled() >= COUNT][1])


def assert_each_record_once(broker: Broker, source: str) -> None:
    words = {b"word-%d" % number for number in BAD}
    assert committed_values(broker, f"{source}-done") == Counter(ALL - {b"%d" % number for number in BAD})
    assert committed_values(broker, f"{source}.dead") == Counter(words)
    assert committed_values(broker, f"{source}.retry") == Counter(dict.fromkeys(words, 2))


def test_each_record_is_processed_or_put_aside_once(broker: Broker) -> None:
    """Whatever step the program is killed at: results, attempts and dead letters are there once."""
    workers = {}
    for step in STEPS["dead_letters"]:
        source = f"payments-{step}"
        numbers(broker, source, COUNT, bad=BAD)
        create_topics(broker, source)
        arguments = ["-b", broker.bootstrap_servers, "--id", source, "--from", source, "--to", f"{source}-done"]
        workers[source] = start_worker("dead_letters", step, [*arguments, "--delay", 0.1])
    all_killed(workers)
    for source in workers:
        drain(broker, source)
        assert_each_record_once(broker, source)


def test_a_dead_letter_says_where_it_is_from_and_why(broker: Broker) -> None:
    numbers(broker, "letters", COUNT, bad=BAD)
    create_topics(broker, "letters")
    drain(broker, "letters")
    with kcodec.read_topic("letters", bootstrap_servers=broker.bootstrap_servers) as records:
        places = {one.value: f"letters-0@{one.offset}".encode() for batch in records for one in batch.records()}
    with kcodec.read_topic("letters.dead", bootstrap_servers=broker.bootstrap_servers) as records:
        letters = [one for batch in records for one in batch.records()]
    for letter in letters:
        headers = dict(letter.headers)
        assert len(letter.headers) == len(headers) == 4
        assert (headers["retry.failures"], headers["retry.from"]) == (b"3", places[letter.value])
        why = f"invalid literal for int() with base 10: {letter.value!r}"
        assert headers["retry.error"] == f"ValueError: {why}".encode()


def test_headers_of_the_source_are_kept(broker: Broker) -> None:
    """Also those with names that the program could have written: a text in place of a time must not stop it."""
    create_topics(broker, "headed")
    headers = [("from", b"alice"), ("retry.due", b"soon")]
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for value in (b"1", b"word"):
            producer.send("headed", value, headers=headers)
    with closing(processor(broker, "headed", attempts=1)) as program:
        wait_for(lambda: [program.step(0.2), committed_values(broker, "headed.dead")][1])
    found = {}
    for name in ("headed-done", "headed.dead"):
        with kcodec.read_topic(name, bootstrap_servers=broker.bootstrap_servers) as records:
            found[name] = [dict(one.headers) for batch in records for one in batch.records()]
    assert found["headed-done"] == [{"from": b"alice"}]
    assert [(one["from"], one["retry.failures"]) for one in found["headed.dead"]] == [(b"alice", b"1")]


def test_a_record_is_tried_again_after_its_delay(broker: Broker) -> None:
    """Not earlier; and those behind it are processed meanwhile."""
    numbers(broker, "delayed", COUNT, bad=BAD)
    create_topics(broker, "delayed")
    with closing(processor(broker, "delayed", delay=1000.0)) as program:
        wait_for(lambda: [program.step(0.2), len(committed_values(broker, "delayed-done")) == COUNT - len(BAD)][1])
        program.step(0.2)
    assert sum(committed_values(broker, "delayed.retry").values()) == len(BAD)
    assert not committed_values(broker, "delayed.dead")
    assert committed_offset(broker, "process-delayed", "delayed.retry") in (None, 0)


# ------------------------------------------------------------------------------------- parallel work on one partition


def lines(path: Path) -> set[bytes]:
    return set(path.read_bytes().split()) if path.exists() else set()


def values_before(broker: Broker, topic: str, offset: int) -> set[bytes]:
    with kcodec.read_topic(topic, bootstrap_servers=broker.bootstrap_servers, end=offset) as records:
        return {record.value or b"" for batch in records for record in batch.records()}


def parallel(broker: Broker, topic: str, work: Any, workers: list[Executor] | None = None, **options: Any) -> Any:
    """An instance of the program in this process; its group is named as its topic."""
    given = workers or [ThreadPoolExecutor(1) for _ in range(4)]
    servers = {"bootstrap_servers": broker.bootstrap_servers}
    return example("parallel_partition").ParallelConsumer(topic, [topic], work, given, **servers, **SHORT, **options)


def test_only_work_that_has_ended_is_committed(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle: what is committed was done, and the next instance does the rest. The control, which commits
    what it has polled, loses records."""
    found = {}
    for step in ("worked", "careless"):
        numbers(broker, f"urls-{step}", COUNT)
        monkeypatch.setenv(EFFECTS, str(tmp_path / step))
        options = ["--topic", f"urls-{step}", "--workers", 4, "--options", json.dumps(SHORT)]
        arguments = ["-b", broker.bootstrap_servers, "--group", f"urls-{step}", *options]
        found[step] = start_worker("parallel_partition", step, arguments)
    all_killed(found)
    for step in found:
        committed = values_before(broker, f"urls-{step}", committed_offset(broker, f"urls-{step}", f"urls-{step}") or 0)
        done = lines(tmp_path / step)
        assert len(done) < COUNT
        assert (committed <= done) == (step == "worked")
    again: list[bytes] = []
    with closing(parallel(broker, "urls-worked", lambda record: again.append(record.value))) as program:
        wait_for(lambda: [program.step(), lines(tmp_path / "worked") | set(again) == ALL][1])
        wait_for(lambda: [program.step(), committed_offset(broker, "urls-worked", "urls-worked") == end_of(program)][1])


def end_of(program: Any) -> int:
    """The end of the topic, behind all records and markers."""
    consumer: Consumer = program.consumer
    (end,) = consumer.end_offsets(consumer.assignment()).values() or [-1]
    return end


def test_records_that_overtake_an_open_one_are_not_committed(broker: Broker) -> None:
    numbers(broker, "gated", COUNT)
    gate, order = threading.Event(), list[Any]()

    def work(record: Any) -> None:
        if record.value == b"5":
            gate.wait(30)
        order.append(record)

    with closing(parallel(broker, "gated", work)) as program:
        wait_for(lambda: [program.step(), len(order) > COUNT / 2][1])
        program.step()
        before = values_before(broker, "gated", committed_offset(broker, "gated", "gated") or 0)
        assert before == {b"%d" % number for number in range(5)} and order[-1].offset > 20
        gate.set()
        wait_for(lambda: [program.step(), committed_offset(broker, "gated", "gated") == end_of(program)][1])
    for key in {record.key for record in order}:
        offsets = [record.offset for record in order if record.key == key]
        assert offsets == sorted(offsets)
    assert {record.value for record in order} == ALL


def test_work_that_fails_stops_the_commits_in_front_of_it(broker: Broker) -> None:
    numbers(broker, "failing", COUNT, bad=[20])
    program = parallel(broker, "failing", lambda record: int(record.value))
    with pytest.raises(ValueError, match="word-20"):
        program.run()
    with pytest.raises(ValueError, match="word-20"):
        program.close()
    assert values_before(broker, "failing", committed_offset(broker, "failing", "failing") or 0) == {
        b"%d" % number for number in range(20)
    }


def test_records_whose_work_has_not_begun_are_not_committed(broker: Broker) -> None:
    """An exception, or Ctrl-C, between two records of a poll: the position is after all of them."""
    numbers(broker, "unbegun", COUNT, bad=[20])

    def argument(record: Any) -> Any:
        if record.value == b"word-20":
            raise KeyboardInterrupt
        return record

    done: list[bytes] = []
    program = parallel(broker, "unbegun", lambda record: done.append(record.value), argument=argument)
    with closing(program), pytest.raises(KeyboardInterrupt):
        program.run()
    assert set(done) == {b"%d" % number for number in range(20)}
    assert values_before(broker, "unbegun", committed_offset(broker, "unbegun", "unbegun") or 0) == set(done)


def test_an_interrupt_just_after_a_poll_loses_no_record(broker: Broker) -> None:
    """Neither for a program that goes on, nor for the next one after a program that ends."""
    numbers(broker, "interrupted", COUNT)
    done: list[bytes] = []

    def begin(turn: int) -> Any:
        """Begin the work on some records, and interrupt the next poll after it has taken records."""
        program = parallel(broker, "interrupted", lambda record: done.append(record.value), max_poll_records=5)
        poll = program.consumer.poll

        def interrupted(timeout: float) -> Any:
            records = poll(timeout)
            if records and len(done) >= 10 * turn:
                program.consumer.poll = poll
                raise KeyboardInterrupt
            return records

        program.consumer.poll = interrupted
        with pytest.raises(KeyboardInterrupt):
            program.run()
        return program

    begin(1).close()
    with closing(begin(2)) as program:
        program.run(lambda: len(set(done)) == COUNT)
    assert set(done) == {b"%d" % number for number in range(COUNT)}
    committed = committed_offset(broker, "interrupted", "interrupted") or 0
    assert values_before(broker, "interrupted", committed) == set(done)


def test_a_program_goes_on_if_the_commit_of_a_lost_partition_fails(broker: Broker) -> None:
    numbers(broker, "lost", COUNT)
    done: list[bytes] = []
    with closing(parallel(broker, "lost", lambda record: done.append(record.value), max_poll_records=5)) as program:
        program.run(lambda: len(done) >= 10)
        commit, lost = program.commit, program.consumer.assignment()

        def failing() -> None:
            program.commit = commit
            program.is_complete = False  # as after an exception in `poll`
            raise OSError("the coordinator is away")

        program.commit = failing
        with pytest.raises(OSError):
            program.give_up(lost)
        assert not program.progress
        program.take_over(lost)
        program.run(lambda: len(set(done)) == COUNT)


def test_few_records_are_under_way_at_a_time(broker: Broker) -> None:
    numbers(broker, "bounded", COUNT)
    gate, done = threading.Event(), list[Any]()

    def work(record: Any) -> None:
        gate.wait(30)
        done.append(record)

    with closing(parallel(broker, "bounded", work, most=10, max_poll_records=5)) as program:
        for _ in range(8):
            program.step()
        assert sum(len(each.open) for each in program.progress.values()) == 10
        gate.set()
        wait_for(lambda: [program.step(), len(done) == COUNT][1])


def test_the_work_may_run_in_processes(broker: Broker) -> None:
    numbers(broker, "processes", COUNT)
    context = multiprocessing.get_context("spawn")
    workers: list[Executor] = [ProcessPoolExecutor(1, mp_context=context)]
    with closing(parallel(broker, "processes", int, workers, argument=lambda record: record.value)) as program:
        wait_for(lambda: [program.step(), committed_offset(broker, "processes", "processes") == end_of(program)][1])
