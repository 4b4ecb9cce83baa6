# SPDX-License-Identifier: Apache-2.0
"""`kcodec broker` as a process: its examples, its only line, SIGTERM, a fault, a trace, a kill and a restart."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from broker_process import BrokerProcess

from kcodec.cli import main
from kcodec.cli.broker import EXAMPLES, users_of_file
from kcodec.client import Producer
from kcodec.errors import AuthorizationError

LINE = "kcodec broker: "


@contextmanager
def process(*arguments: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A broker process, and the address that it printed."""
    command = [sys.executable, "-m", "kcodec", "broker", *arguments]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            line = running.stdout.readline()
            assert line.startswith(LINE), running.stderr.read() if running.stderr else line
            yield running, line.removeprefix(LINE).split()[0]
        finally:
            running.kill()


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.summary)
def test_examples_of_the_broker_run(example: object, tmp_path: Path) -> None:
    words = shlex.split(example.call)[2:]  # type: ignore[attr-defined]
    if "--port" in words:
        words[words.index("--port") + 1] = free_port()
    else:
        words += ["--port", free_port()]
    with process(*words, folder=tmp_path) as (running, address):
        with Producer(bootstrap_servers=address.partition(",")[0].rpartition("/")[2]) as producer:
            producer.send("t", b"v").result(30)
        running.send_signal(signal.SIGTERM)
        assert running.wait(10) == 0
        assert running.stderr is not None
        assert running.stderr.read() == ""


def test_a_paused_broker_ends_on_sigterm(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        for _ in range(5):
            broker.pause()
            broker.resume()
        broker.pause()
        began = time.monotonic()
        broker.stop()
        assert time.monotonic() - began < 5.0


def test_users_of_a_file_log_in(tmp_path: Path) -> None:
    (tmp_path / "users.txt").write_text("alice=alice=secret\n")
    options: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512"}
    options |= {"sasl_plain_username": "alice", "sasl_plain_password": "alice=secret"}
    words = ("--port", "0", "--sasl-mechanism", "SCRAM-SHA-512", "--users", "users.txt")
    with process(*words, folder=tmp_path) as (_, address), Producer(bootstrap_servers=address, **options) as producer:
        producer.send("t", b"v").result(30)


def test_killed_process_recovers_and_traces(tmp_path: Path) -> None:
    port = free_port()
    arguments = ("--port", port, "--data-dir", "logs", "--trace", "trace.jsonl", "--max-version", "Produce=9")
    with Producer(bootstrap_servers=f"127.0.0.1:{port}", transactional_id="a") as producer:
        with process(*arguments, folder=tmp_path) as (running, _):
            with producer.transaction() as txn:
                txn.send("t", b"first")
            running.kill()
            running.wait(10)
        with process(*arguments, folder=tmp_path):
            with producer.transaction() as txn:
                txn.send("t", b"second")
            assert txn.committed
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    versions = {line["version"] for line in lines if line["api"] == "Produce"}
    assert versions == {9}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--fault", "Produce,when=now"), "'when=now'"),
        (("--fault", "Prodduce,drop=after"), "no API 'Prodduce'"),
        (("--fault", "Fetch,delay_ms=soon"), "expected a number, got 'soon'"),
        (("--fault", "Fetch,delay_ms=-1"), "delay_ms must not be negative"),
        (("--port", "99999"), "port must be a number between 0 and 65535"),
        (("--trace", "/nowhere/trace"), "/nowhere/trace"),
        (("--sasl-mechanism", "PLAIN", "--users", "/nowhere/users"), "/nowhere/users: no such file"),
        (("--ssl-certfile", "/nowhere/certificate"), "'/nowhere/certificate' cannot be read"),
        (("--max-version", "Produce"), "expected API=N"),
        (("--fault", "Produce,topic=t"), "'Produce,topic=t' has no effect: add one of delay_ms, error, drop"),
        (("--fault", "Produce,count=0,drop=after"), "a rule with count 0 never applies"),
        (("--users", "/nowhere/users"), "--users requires --sasl-mechanism"),
        (("--sasl-mechanism", "PLAIN"), "--sasl-mechanism requires --users"),
        (("--super-user", "alice"), "super_users has no effect without an authorizer"),
        (("--max-version", "Nothing=3"), "APIs that the broker does not have: Nothing"),
        (("--listener", "SSL=9093"), "--port and --listener exclude each other: omit --port"),
    ],
)
def test_wrong_options_say_what_is_wrong(
    arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["broker", "--port", "0", *arguments]) == 2
    written = capsys.readouterr()
    assert text in written.err
    assert written.out == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--listener", "SSL"), "--listener 'SSL': expected PROTOCOL=PORT, for example SSL=9093"),
        (
            ("--listener", "TLS=0"),
            "listeners: expected one or more of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, got 'TLS'",
        ),
        (("--listener", "SSL=0"), "listeners: SSL requires ssl_certfile"),
        (("--listener", "PLAINTEXT=0", "--listener", "PLAINTEXT=0"), "two listeners have the same protocol"),
    ],
)
def test_wrong_listeners_say_what_is_wrong(
    arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["broker", *arguments]) == 2
    written = capsys.readouterr()
    assert text in written.err
    assert written.out == ""


def test_a_process_has_several_listeners(tmp_path: Path) -> None:
    (tmp_path / "users.txt").write_text("alice=alice-secret\n")
    words = ("--listener", "PLAINTEXT=0", "--listener", "SASL_PLAINTEXT=0", "--sasl-mechanism", "PLAIN")
    with process(*words, "--users", "users.txt", folder=tmp_path) as (_, where):
        match = re.fullmatch(r"PLAINTEXT://(127\.0\.0\.1:\d+),SASL_PLAINTEXT://(127\.0\.0\.1:\d+)", where)
        assert match is not None
        with Producer(bootstrap_servers=match[1]) as producer:
            assert producer.send("t", b"v").result(30).offset == 0
        login: dict[str, Any] = {
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "alice",
            "sasl_plain_password": "alice-secret",
        }
        login |= {"bootstrap_servers": match[2], "security_protocol": "SASL_PLAINTEXT"}
        with Producer(**login) as producer:
            assert producer.send("t", b"v").result(30).offset == 1


def test_a_process_checks_permissions(tmp_path: Path) -> None:
    words = ("--port", "0", "--authorizer", "--super-user")
    for user, is_allowed in (("ANONYMOUS", True), ("alice", False)):
        with process(*words, user, folder=tmp_path) as (_, address), Producer(bootstrap_servers=address) as producer:
            delivery = producer.send("t", b"v")
            if is_allowed:
                delivery.result(30)
            else:
                with pytest.raises(AuthorizationError):
                    delivery.result(30)
    more = (*words, "alice", "--allow-everyone-if-no-acl-found")
    with process(*more, folder=tmp_path) as (_, address), Producer(bootstrap_servers=address) as producer:
        producer.send("t", b"v").result(30)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"alice=a\nbob:b-secret\n", "line 2: expected NAME=PASSWORD"),
        (b"alice=a\nbob=\n", "line 2: expected NAME=PASSWORD"),
        (b"\nal\xffce=b-secret\n", "line 2: byte 3 is not UTF-8"),
        ("alice=b-secret\n".encode("utf-16"), "line 1: byte 1 is not UTF-8"),
        (b"alice =b-secret\n", "line 1: the name begins or ends with a space"),
        (b"alice=a\nalice=b-secret\n", "line 2: user 'alice' is in an earlier line, too"),
        (b"\n\n", "the file has no users"),
    ],
    ids=["no =", "no password", "not UTF-8", "UTF-16", "space", "twice", "empty"],
)
def test_wrong_users_file_is_refused(
    tmp_path: Path, content: bytes, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "users").write_bytes(content)
    words = ["broker", "--port", "0", "--sasl-mechanism", "PLAIN", "--users", str(tmp_path / "users")]
    assert main(words) == 2
    written = capsys.readouterr().err
    assert text in written
    assert "b-secret" not in written


def test_users_file_of_an_editor_is_read(tmp_path: Path) -> None:
    """A byte order mark, lines that end with CR LF, and empty lines."""
    path = tmp_path / "users"
    path.write_bytes("\ufeffalice=a=b \r\n\r\nb\u00f6b=\u2028x\r\n  \n".encode())
    assert users_of_file(str(path)) == {"alice": "a=b ", "b\u00f6b": "\u2028x"}
