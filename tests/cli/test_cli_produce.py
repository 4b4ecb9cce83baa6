# SPDX-License-Identifier: Apache-2.0
"""``kcodec produce`` on a real Apache Kafka: what it sends, read back from the log that the broker wrote."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Ran, program, run

import kcodec
from kcodec.broker import Broker
from kcodec.cli import ExitStatus
from kcodec.cli.parser import CommandError
from kcodec.cli.produce_input import MAX_MESSAGE_BYTES, InputMessage, json_messages, plain_messages, split
from kcodec.client import Admin
from kcodec.log import Log
from kcodec.testing.kafka import ApacheKafka

Produce = Callable[..., Ran]


def log_of(kafka: ApacheKafka, topic: str, partition: int = 0) -> Log:
    found = kcodec.open(kafka.log_directory / f"{topic}-{partition}")
    assert isinstance(found, Log)
    return found


def records_of(kafka: ApacheKafka, topic: str, partition: int = 0, **options: Any) -> list[tuple[Any, ...]]:
    found = log_of(kafka, topic, partition).records(**options)
    return [(record.key, record.value, list(record.headers)) for record in found]


@pytest.fixture
def topic(apache_kafka: ApacheKafka) -> str:
    return apache_kafka.create_topic(partitions=1)


@pytest.fixture
def produce(apache_kafka: ApacheKafka, topic: str, tmp_path: Path) -> Produce:
    """kcodec produce with these lines in a file, and options."""

    def call(lines: str | bytes, *options: str) -> Ran:
        path = tmp_path / "input"
        path.write_bytes(lines if isinstance(lines, bytes) else lines.encode())
        return run("produce", "-b", apache_kafka.bootstrap_servers, "-t", topic, "-l", path, *options)

    return call


def test_lines_become_values(produce: Produce, apache_kafka: ApacheKafka, topic: str) -> None:
    ran = produce("a\n\nlast without an end")
    assert (ran.status, ran.data, ran.err) == (ExitStatus.OK, b"", "")
    values = [value for _, value, _ in records_of(apache_kafka, topic)]
    assert values == [b"a", b"", b"last without an end"]


def test_keys_headers_nulls_and_delimiters(produce: Produce, apache_kafka: ApacheKafka, topic: str) -> None:
    ran = produce("k::v::w;no key;::;x::", "-K", "::", "-D", ";", "-Z", "-k", "fixed", "-H", "a=1", "-H", "b==", "-T")
    assert ran.status is ExitStatus.OK, ran.err
    headers = [("a", b"1"), ("b", b"=")]
    assert records_of(apache_kafka, topic) == [
        (b"k", b"v::w", headers),
        (b"fixed", b"no key", headers),
        (b"fixed", None, headers),
        (b"x", None, headers),
    ]
    assert ran.data == b"v::w;no key;;;"


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_are_compressed(produce: Produce, apache_kafka: ApacheKafka, topic: str, codec: str) -> None:
    assert produce("text text text text\n" * 50, "-z", codec).status is ExitStatus.OK
    assert all(str(batch.compression) == codec for batch in log_of(apache_kafka, topic).batches)
    assert len(records_of(apache_kafka, topic)) == 50


def test_what_cat_writes_comes_back_the_same(produce: Produce, apache_kafka: ApacheKafka, topic: str) -> None:
    rows: list[dict[str, Any]] = [
        {"timestamp": 1_700_000_000_000, "key": None, "value": None, "headers": []},
        {"timestamp": 1_700_000_000_005, "key": "", "value": "\u2028 naïve\n", "headers": [{"key": "", "value": None}]},
        {
            "timestamp": 0,
            "key": {"base64": base64.b64encode(b"\xff\x00").decode()},
            "value": {"base64": base64.b64encode(bytes(range(256))).decode()},
            "headers": [{"key": "dup", "value": "1"}, {"key": "dup", "value": {"base64": "/w=="}}],
        },
    ]
    assert produce("\n".join(map(json.dumps, rows)), "-J").status is ExitStatus.OK
    first = run("cat", "-J", log_of(apache_kafka, topic).path)
    for line, row in zip(first.out.split("\n"), [*rows, None], strict=True):
        assert line == "" if row is None else {name: json.loads(line)[name] for name in row} == row
    copy = apache_kafka.create_topic(partitions=1)
    process = program(*("produce", "-b", apache_kafka.bootstrap_servers, "-t", copy, "-J"), stdin=subprocess.PIPE)
    _, err = process.communicate(first.data, timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert run("cat", "-J", log_of(apache_kafka, copy).path).out == first.out.replace(topic, copy)


def test_lines_name_their_topic_and_partition(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    one, two = apache_kafka.create_topic(partitions=2), apache_kafka.create_topic(partitions=2)
    lines = [{"topic": name, "partition": part, "value": f"{part}"} for name in (one, two) for part in (1, 0, 1)]
    path = tmp_path / "lines"
    path.write_text("\n".join(map(json.dumps, lines)))
    ran = run("produce", "-b", apache_kafka.bootstrap_servers, "-J", "-l", path, "--keep-partitions")
    assert ran.status is ExitStatus.OK, ran.err
    for name in (one, two):
        assert [[value for _, value, _ in records_of(apache_kafka, name, part)] for part in (0, 1)] == [
            [b"0"],
            [b"1", b"1"],
        ]


def test_files_are_messages(apache_kafka: ApacheKafka, topic: str, tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for number, file in enumerate(files):
        file.write_bytes(b"line\n" * (number + 1))
    ran = run("produce", "-b", apache_kafka.bootstrap_servers, "-t", topic, "-p", "0", *files)
    assert ran.status is ExitStatus.OK, ran.err
    assert [value for _, value, _ in records_of(apache_kafka, topic)] == [b"line\n", b"line\nline\n"]


# ------------------------------------------------------------------------------------------------------- transactions


def test_one_transaction_holds_all_of_the_input(produce: Produce, apache_kafka: ApacheKafka, topic: str) -> None:
    ran = produce("".join(f"{number}\n" for number in range(1000)), "--transactional-id", f"t-{topic}")
    assert ran.status is ExitStatus.OK, ran.err
    committed = wait_for(lambda: records_of(apache_kafka, topic, isolation_level="read_committed"))
    assert [int(value) for _, value, _ in committed] == list(range(1000))
    assert [one.state for one in log_of(apache_kafka, topic).transactions] == ["committed"]


def test_a_bad_line_aborts_everything_before_it(produce: Produce, apache_kafka: ApacheKafka, topic: str) -> None:
    lines = '{"value":"1"}\n{"value":"2"}\n{"value":3}\n'
    ran = produce(lines, "-J", "--transactional-id", f"t-{topic}")
    assert ran.status is ExitStatus.ERROR
    assert ran.err.endswith('line 3: value must be null, a string or {"base64": "..."}, not 3\n')
    assert_nothing_committed(apache_kafka, topic)
    ran = produce(lines, "-J", "--transactional-id", f"t-{topic}", "--commit-every", "2")
    assert ran.status is ExitStatus.ERROR
    committed = wait_for(lambda: records_of(apache_kafka, topic, isolation_level="read_committed"))
    assert [value for _, value, _ in committed] == [b"1", b"2"]
    assert ran.err.endswith("; 2 messages were committed in earlier transactions\n")


def test_a_failed_transaction_reports_the_committed_messages(
    produce: Produce, apache_kafka: ApacheKafka, topic: str
) -> None:
    lines = '{"value":"1"}\n{"value":"2"}\n{"value":"3"}\n{"value":4}\n'
    ran = produce(lines, "-J", "--transactional-id", f"t-{topic}", "--commit-every", "2")
    assert ran.status is ExitStatus.ERROR
    assert "; 2 messages were committed in earlier transactions; the transaction that begins with " in ran.err
    assert ran.err.endswith("line 3 was not committed\n")
    ran = produce(lines, "-J", "--transactional-id", f"t-{topic}")
    assert "committed" not in ran.err


def test_a_commit_without_an_outcome_is_reported_as_unknown(
    kcodec_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kcodec.cli.produce.MAX_BLOCK_MS", 1500)
    lines = tmp_path / "input"
    lines.write_text("1\n2\n3\n")
    kcodec_broker.faults.add("EndTxn", close="before", skip=1)
    options = ("-t", kcodec_broker.create_topic(), "--transactional-id", "nightly", "--commit-every", "2")
    ran = run("produce", "-b", kcodec_broker.bootstrap_servers, *options, "-l", lines)
    assert ran.status is ExitStatus.ERROR
    assert ran.err.endswith(
        "; 2 messages were committed in earlier transactions; the transaction that begins with message 3 may be "
        "committed or not\n"
    )


def assert_nothing_committed(kafka: ApacheKafka, topic: str) -> None:
    with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        assert not admin.find_abandoned_transactions(transactional_ids=[f"t-{topic}"], idle_ms=0).transactions
    assert records_of(kafka, topic, isolation_level="read_committed") == []


def wait_for(answer: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not (found := answer()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_an_interrupt_aborts(apache_kafka: ApacheKafka, topic: str) -> None:
    process = program(
        *("produce", "-b", apache_kafka.bootstrap_servers, "-t", topic, "--transactional-id", f"t-{topic}"),
        stdin=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(b"sent\n")
    process.stdin.flush()
    wait_for(lambda: records_of(apache_kafka, topic))
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (ExitStatus.INTERRUPTED, b"kcodec: interrupted\n")
    assert wait_for(lambda: [one.state for one in log_of(apache_kafka, topic).transactions if one.state != "open"]) == [
        "aborted"
    ]
    assert_nothing_committed(apache_kafka, topic)


# ------------------------------------------------------------------------------------------------------------- errors


def test_a_message_that_is_refused_is_named(produce: Produce, apache_kafka: ApacheKafka, topic: str) -> None:
    ran = produce("small\n" + "x" * 2_000_000 + "\n")
    assert ran.status is ExitStatus.ERROR
    assert "max_request_size" in ran.err
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
        from kcodec.client import ConfigResource

        admin.alter_configs({ConfigResource.topic(topic): {"max.message.bytes": "1000"}})
    wait_for(lambda: "message 2: not delivered: " in (ran := produce("small\n" + "x" * 5000 + "\n")).err and ran)


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ([], "-t TOPIC is missing (see"),
        (["orders"], "-t TOPIC is missing: if orders is the topic, write -t orders"),
        (["-t", "x", "-l"], "-l needs exactly one FILE"),
        (["-t", "x", "-J", "file"], "-J with a FILE needs -l"),
        (["-t", "x", "--commit-every", "5"], "--commit-every needs --transactional-id"),
        (["-t", "x", "--keep-partitions"], "--keep-partitions needs -J"),
        (["-t", "x", "-D", ""], "-D must not be empty"),
        (["-t", "x", "-c", "-1"], "--count must be at least 0, not -1"),
        (["-t", "x", "-z", "brotli"], "invalid choice: 'brotli'"),
        (["-t", "x", "-H", "novalue"], "'novalue' is not NAME=VALUE"),
        (["-t", "x", "-X", "linger.ms"], "-X linger.ms: expected NAME=VALUE"),
        (["-t", "x", "-X", "lingr.ms=5"], "did you mean 'linger_ms'?"),
        (["-t", "x", "-X", "acks=2"], 'acks must be 0, 1 or "all"'),
    ],
)
def test_a_wrong_call_says_what_was_meant(options: list[str], reported: str) -> None:
    ran = run("produce", "-b", "127.0.0.1:1", *options)
    assert (ran.status, ran.data) == (ExitStatus.ERROR, b"")
    assert reported in ran.err
    assert ran.err.count("\n") == 1


def test_a_broker_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "input").write_text("a\n")
    call = ["produce", "-b", "127.0.0.1:1", "-t", "x", "-l", str(tmp_path / "input"), "-X", "max.block.ms=500"]
    ran = run(*call, "-X", "delivery.timeout.ms=800", "-X", "request.timeout.ms=400", "-X", "linger.ms=0")
    assert ran.status is ExitStatus.ERROR
    assert "127.0.0.1:1" in ran.err


@pytest.mark.parametrize("more", [(), ("--transactional-id", "nightly")])
def test_a_message_that_is_too_large_is_named(more: tuple[str, ...], kcodec_broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "input").write_text(f"a\n{'b' * 2000}\nc\n")
    call = ["produce", "-b", kcodec_broker.bootstrap_servers, "-t", "x", "-l", str(tmp_path / "input"), *more]
    ran = run(*call, "-X", "max.request.size=1000")
    assert ran.status is ExitStatus.ERROR
    assert ran.err.startswith("kcodec: message 2: not delivered: topic 'x': the record takes 2097 bytes, above max_req")
    assert ran.err.count("\n") == 1


def test_a_line_with_an_invalid_topic_is_named(kcodec_broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "input").write_text('{"topic": "x", "value": "1"}\n{"topic": "\\ud800", "value": "1"}\n')
    ran = run("produce", "-b", kcodec_broker.bootstrap_servers, "-J", "-l", tmp_path / "input")
    assert ran.status is ExitStatus.ERROR
    assert ran.err.startswith(f"kcodec: {tmp_path / 'input'}: line 2: not delivered: ")


ROWS = 3000


def buffered_input(broker: Broker, tmp_path: Path, last: str, **fields: Any) -> list[str | Path]:
    """Return a call whose messages are still in the buffer of the producer when it reads the last line: a broker that
    handles one request at a time takes more than two seconds to acknowledge them."""
    broker.create_topic("orders", partitions=1)
    broker.faults.add("Produce", delay_ms=400, **fields)
    (tmp_path / "input").write_text("".join(f'{{"value": "{number:0100}"}}\n' for number in range(ROWS)) + last)
    slow = ("-X", "max.in.flight.requests.per.connection=1", "-X", "batch.size=4096", "-X", "linger.ms=0")
    return ["produce", "-b", broker.bootstrap_servers, "-t", "orders", "-J", "-l", tmp_path / "input", *slow]


@pytest.mark.parametrize(
    ("last", "reported"),
    [
        ("{bad\n", "line 3001: expected a JSON object, but the line is not JSON"),
        (json.dumps({"value": "x" * 2_000_000}), "line 3001: not delivered: topic 'orders': the record takes"),
    ],
)
def test_messages_before_an_invalid_one_are_delivered(
    kcodec_broker: Broker, tmp_path: Path, last: str, reported: str
) -> None:
    ran = run(*buffered_input(kcodec_broker, tmp_path, last))
    assert ran.status is ExitStatus.ERROR
    assert reported in ran.err
    assert ran.err.endswith("; 3000 messages before it were acknowledged\n")
    assert ran.err.count("\n") == 1
    assert kcodec_broker.end_offset("orders") == ROWS


def test_messages_before_one_without_a_topic_are_delivered(kcodec_broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "input").write_text('{"topic": "x", "value": "1"}\n{"value": "2"}\n')
    ran = run("produce", "-b", kcodec_broker.bootstrap_servers, "-J", "-l", tmp_path / "input")
    assert ran.status is ExitStatus.ERROR
    assert ran.err.endswith(
        "line 2: the message has no topic; add one, or pass -t; 1 message before it was acknowledged\n"
    )
    assert kcodec_broker.end_offset("x") == 1


def test_messages_before_a_missing_file_are_delivered(kcodec_broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "input").write_text("1")
    ran = run(
        "produce",
        "-b",
        kcodec_broker.bootstrap_servers,
        "-t",
        "x",
        tmp_path / "input",
        tmp_path / "none",
        "-X",
        "linger.ms=3000",
    )
    assert ran.status is ExitStatus.ERROR
    assert ran.err == f"kcodec: {tmp_path / 'none'}: no such file or directory; 1 message was acknowledged\n"


def test_a_failed_message_before_an_invalid_one_is_named(kcodec_broker: Broker, tmp_path: Path) -> None:
    call = buffered_input(kcodec_broker, tmp_path, "{bad\n", error="INVALID_RECORD")
    ran = run(*call)
    assert ran.status is ExitStatus.ERROR
    assert "0 messages were acknowledged" in ran.err
    assert f"{tmp_path / 'input'}: line 1: " in ran.err


def test_an_interrupt_names_the_first_message_without_acknowledgement(kcodec_broker: Broker, tmp_path: Path) -> None:
    call = buffered_input(kcodec_broker, tmp_path, "", count=1)
    kcodec_broker.faults.add("Produce", delay_ms=20_000)
    with program(*call) as started:
        wait_for(lambda: kcodec_broker.end_offset("orders"))
        started.terminate()
        _, err = started.communicate(timeout=30)
    assert started.returncode == ExitStatus.INTERRUPTED
    first, last = err.decode().splitlines()
    match = re.match(r"kcodec: (\d+) messages were acknowledged; the first that was not is .*: line (\d+)", first)
    assert match, first
    assert 0 <= int(match[1]) < ROWS
    assert int(match[2]) == int(match[1]) + 1
    assert last == "kcodec: interrupted"


# -------------------------------------------------------------------------------------------------------------- input


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_delimiters_are_found_across_reads(size: int) -> None:
    data = b"a--b---c--\n--"
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert list(split(iter(pieces), b"--")) == [b"a", b"b", b"-c", b"\n"]
    assert list(split(iter(pieces), b"none")) == [data]
    assert list(split(iter([]), b"-")) == []


def test_a_message_without_end_is_refused_before_memory_is_gone() -> None:
    endless = iter([bytes(1 << 20)] * (MAX_MESSAGE_BYTES // (1 << 20) + 2))
    with pytest.raises(CommandError, match="check the delimiter"):
        list(split(endless, b"\n"))


def test_empty_is_null_only_when_asked_for() -> None:
    for empty_is_null, value in ((True, None), (False, b"")):
        found = list(plain_messages(iter([b":\n"]), b"\n", b":", empty_is_null=empty_is_null))
        assert found == [InputMessage("message 1", value, value)]


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("[]", "expected a JSON object, got []"),
        ("{", "line 1: expected a JSON object, but the line is not JSON: "),
        ("nonsense", "line 1: expected a JSON object, but the line is not JSON: "),
        ('{"vlue":"x"}', "unknown field 'vlue'; possible: topic"),
        ('{"value":{"base64":"?"}}', "value is not valid base64"),
        ('{"value":{"a":1}}', 'value must be null, a string or {"base64": "..."}, not {"a": 1}'),
        ('{"key":5}', "key must be null"),
        ('{"topic":5}', "topic must be a string"),
        ('{"timestamp":"now"}', "timestamp must be an integer"),
        ('{"timestamp":true}', "timestamp must be an integer"),
        ('{"headers":{"a":"b"}}', "headers must be ["),
        ('{"headers":[{"value":"b"}]}', "a header must be"),
        ('{"headers":[{"key":null}]}', "a header's key must not be null"),
        ('{"is_control":true}', "a control record cannot be produced"),
        ("[" * 100_000, "line 1: "),
    ],
)
def test_a_line_that_is_no_message_says_why(line: str, reported: str) -> None:
    with pytest.raises(CommandError) as caught:
        list(json_messages(iter([line.encode()]), keeps_partition=True))
    assert reported in str(caught.value)
    assert str(caught.value).startswith("line 1: ")


def test_an_invalid_line_of_a_file_is_named_with_the_file() -> None:
    with pytest.raises(CommandError, match=r"^rows\.jsonl: line 2: expected a JSON object"):
        list(json_messages(iter([b"{}\nx\n"]), keeps_partition=False, path="rows.jsonl"))


def test_header_names_that_are_no_text_survive() -> None:
    line = b'{"headers":[{"key":{"base64":"/w=="},"value":null}]}'
    (message,) = json_messages(iter([line]), keeps_partition=False)
    batch = kcodec.encode([{"timestamp": 1, "headers": list(message.headers)}])
    (record,) = kcodec.decode(bytes(batch)).records()
    assert record.headers == (("\udcff", None),)


def test_options_of_the_call_override_those_of_a_file(tmp_path: Path) -> None:
    file, lines = tmp_path / "shared.properties", tmp_path / "lines"
    file.write_text("transactional.id=of-the-file\ncompression.type=gzip\n")
    lines.write_text("1\n")
    with Broker() as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        broker.create_topic("orders", partitions=1)
        call: list[str | Path] = ["produce", "-b", broker.bootstrap_servers, "-t", "orders", "-F", file, "-l", lines]
        ran = run(*call, "-z", "lz4", "--transactional-id", "of-the-call")
        assert ran.status is ExitStatus.OK, ran.err
        assert list(admin.list_transactions()) == ["of-the-call"]
        codecs = [batch.compression for batch in broker.batches("orders") if not batch.is_control_batch]
        assert codecs == [kcodec.Compression.LZ4]
