# SPDX-License-Identifier: Apache-2.0
"""The kit for bounded reads on a real Kafka: readers that find the end, and readers with a defect of each kind."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcodec.testing.bounded_reads import (
    ISOLATION_LEVELS,
    BoundedTopic,
    Reached,
    Row,
    as_json,
    bounded_topics,
    check,
    check_one,
    table,
)
from kcodec.testing.bounded_reads.__main__ import main
from kcodec.testing.bounded_reads.readers import READERS, command_of
from kcodec.testing.bounded_reads.topics import CASES
from kcodec.testing.kafka import ApacheKafka

SERVERS = "localhost:9092"
TOPIC = BoundedTopic(
    "commit-marker",
    "orders",
    dict.fromkeys(ISOLATION_LEVELS, (Row(0, 0, b"a", b"1"), Row(0, 1, b"b", None))),
    {level: {0: 3} for level in ISOLATION_LEVELS},
)


@pytest.fixture(scope="module")
def topics(apache_kafka: ApacheKafka) -> Iterator[list[BoundedTopic]]:
    with bounded_topics(apache_kafka.bootstrap_servers) as built:
        yield built


def of_case(topics: list[BoundedTopic], case: str) -> BoundedTopic:
    return next(topic for topic in topics if topic.case == case)


@pytest.mark.parametrize("name", ["kcodec-read-topic", "kcodec-read-ranges", "kcodec-consumer", "confluent-eof"])
def test_readers_find_the_end_of_every_topic(apache_kafka: ApacheKafka, topics: list[BoundedTopic], name: str) -> None:
    results = check({name: READERS[name]}, apache_kafka.bootstrap_servers, topics, timeout=30.0, jobs=24)
    assert {(one.case, one.isolation_level) for one in results} == {
        (case, level) for case in CASES for level in ISOLATION_LEVELS
    }
    assert [one for one in results if not one.is_ok] == []


def test_aiokafka_reads_the_records_before_an_end(apache_kafka: ApacheKafka, topics: list[BoundedTopic]) -> None:
    """Its loop by record ends where the last offset is a record, and not where it is a marker. It runs in a process,
    which is killed."""
    command, servers = command_of("aiokafka-record"), apache_kafka.bootstrap_servers
    assert check_one(
        "aiokafka", READERS["aiokafka-record"], servers, of_case(topics, "aborted-middle"), "read_committed"
    ).is_ok
    marker = check_one("aiokafka", command, servers, of_case(topics, "commit-marker"), "read_committed", 2.0)
    assert marker.is_hanging and not marker.extra and not marker.error


def test_what_the_topics_contain(topics: list[BoundedTopic]) -> None:
    """The gaps are there: between offsets, before the end, and before the start."""
    offsets = {
        topic.case: ([row.offset for row in topic.rows["read_uncommitted"]], topic.ends["read_uncommitted"][0])
        for topic in topics
    }
    assert offsets["compacted-middle"] == ([0, 7, 8, 9, 10], 11)
    assert offsets["compacted-end"] == ([3, 4, 5], 10)
    assert offsets["only-markers"] == ([], 4)
    assert offsets["log-start"] == ([4, 5], 7)
    assert offsets["empty"] == ([], 0)
    still_open = of_case(topics, "open-transaction")
    assert (still_open.ends["read_committed"], still_open.ends["read_uncommitted"]) == ({0: 4}, {0: 8})


def test_each_kind_of_defect_is_found() -> None:
    """Without a broker: readers that return what they like."""
    first, second = TOPIC.rows["read_committed"]

    def outcome(*items: Any) -> str:
        return check_one("reader", lambda *_: iter(items), SERVERS, TOPIC, "read_committed").outcome

    assert outcome(first, second) == outcome(tuple(first), second, Reached(0, 3, 0)) == "ok"
    assert outcome(first) == "1 missing"
    assert outcome(first, second, second) == "1 extra"
    assert outcome(first, Row(0, 1, b"b", b"")) == "1 missing, 1 extra"
    assert outcome(second, first) == "out of order"
    assert outcome(first, second, Reached(0, 2, 1)) == "position 2, lag 1"
    assert outcome(first, "nonsense") == "error, 1 missing"


def test_a_function_that_hangs_is_reported_in_time() -> None:
    def reader(*_: str) -> Iterator[Row]:
        yield TOPIC.rows["read_committed"][0]
        time.sleep(5.0)

    begun = time.monotonic()
    found = check_one("reader", reader, SERVERS, TOPIC, "read_committed", 0.2)
    assert found.outcome == "hangs, 1 missing" and time.monotonic() - begun < 4.0


def test_a_command_is_checked_and_killed_if_it_hangs() -> None:
    """Its rows until then count; its descendants are killed, too; what it prints otherwise is an error."""
    rows = [{"partition": 0, "offset": offset, "key": "ab"[offset], "value": ["1", None][offset]} for offset in (0, 1)]
    lines = "\n".join(json.dumps(row) for row in rows)

    def outcome(after: str, text: str = lines, seconds: float = 20.0) -> tuple[str, str]:
        program = f"import subprocess, sys, time; print({text!r}, flush=True); {after}"
        found = check_one("it", [sys.executable, "-c", program, "{topic}"], SERVERS, TOPIC, "read_committed", seconds)
        return found.outcome, found.error

    assert outcome("assert sys.argv[1] == 'orders'") == ("ok", "")
    assert outcome("subprocess.run(['sleep', '60'])", seconds=1.0) == ("hangs", "")
    assert outcome("sys.exit('no broker')") == ("error", "exit status 1: no broker")
    assert "the reader printed 'hello'; expected a line of JSON" in outcome("pass", "hello")[1]
    assert check_one("it", ["no-such-program"], SERVERS, TOPIC, "read_committed").outcome == "error, 2 missing"


def test_the_results_as_a_table_and_as_json() -> None:
    rows = TOPIC.rows["read_committed"]
    results = check({"good": lambda *_: iter(rows), "bad": lambda *_: iter(rows[:1])}, SERVERS, [TOPIC])
    assert table(results).splitlines()[:2] == [
        "read_committed  rows  good  bad",
        "commit-marker   2     ok    1 missing",
    ]
    assert [one["outcome"] for one in json.loads(as_json(results))] == ["ok", "ok", "1 missing", "1 missing"]


def test_the_command_line(apache_kafka: ApacheKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It exits with 0 if all is well, with 1 if not, with 2 for wrong arguments."""
    where = ["--bootstrap-servers", apache_kafka.bootstrap_servers, "--case", "all-aborted", "--case", "plain"]
    where += ["--isolation-level", "read_committed"]
    assert main([*where, "--reader", "kcodec-read-topic", "--json", str(tmp_path / "results.json")]) == 0
    assert "all-aborted     0     ok" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "results.json").read_text())) == 2
    assert main([*where, "--command", f"{sys.executable} -c pass {{topic}}"]) == 1
    assert "5 missing" in capsys.readouterr().out
    with pytest.raises(SystemExit) as wrong:
        main([*where, "--reader", "nothing"])
    assert wrong.value.code == 2 and "unknown reader 'nothing'; expected module:function" in capsys.readouterr().err
    with (
        pytest.raises(ValueError, match="unknown case 'nothing'; expected one of"),
        bounded_topics(SERVERS, ["nothing"]),
    ):
        pass
