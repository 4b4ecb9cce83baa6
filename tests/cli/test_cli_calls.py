# SPDX-License-Identifier: Apache-2.0
"""What all commands share: help whose examples run, suggestions, exit statuses, pipes, colour, the progress bar."""

from __future__ import annotations

import importlib
import io
import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
import uuid
from pathlib import Path

import pytest
from cli_runner import long_partition, orders, partition, program, run
from log_files import partition as write_partition
from log_files import plain

import kcodec.cli
from kcodec import TopicPartition
from kcodec.cli import COMMANDS, ExitStatus
from kcodec.cli.output import Output, Progress
from kcodec.cli.parser import Example
from kcodec.cli.render import duration_text, time_text, write_table
from kcodec.client import Admin, Producer
from kcodec.testing.kafka import ApacheKafka

BROKER = "localhost:9092"


def examples() -> list[tuple[str, Example]]:
    found = []
    for name in COMMANDS:
        found += [(name, example) for example in importlib.import_module(f"kcodec.cli.{name}").EXAMPLES]
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_three_examples(name: str) -> None:
    ran = run(name, "--help")
    assert (ran.status, ran.err) == (ExitStatus.OK, "")
    lines = ran.out.splitlines()
    at = lines.index("examples:")
    calls = [line.strip() for line in lines[at + 1 :]]
    assert len(calls) == 3
    assert all(call.startswith(f"kcodec {name} ") and "  # " in call for call in calls)
    assert max(map(len, lines)) <= 140
    assert run("help", name).out == ran.out


# `kcodec broker` runs until a signal: tests/broker/test_broker_process.py runs its examples.
OF_FILES = [(name, example) for name, example in examples() if BROKER not in example.call and name != "broker"]
# Delegation tokens need a broker that authenticates its clients: tests/admin/test_delegation_tokens.py.
OF_BROKERS = [(name, example) for name, example in examples() if BROKER in example.call and name != "tokens"]


@pytest.mark.parametrize(("name", "example"), OF_FILES, ids=lambda value: getattr(value, "call", value))
def test_examples_run(name: str, example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    orders(tmp_path)
    words = shlex.split(example.call)
    assert words[:2] == ["kcodec", name]
    ran = run(*words[1:])
    assert ran.status is ExitStatus.OK, ran.err
    written = [tmp_path / words[words.index(option) + 1] for option in ("-o", "--svg") if option in words]
    assert ran.data or name == "check" or written
    assert all(path.stat().st_size for path in written)


@pytest.mark.parametrize(("name", "example"), OF_BROKERS, ids=lambda value: getattr(value, "call", value))
def test_examples_of_brokers_run(
    name: str, example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apache_kafka: ApacheKafka
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(example.call)
    assert words[:2] == ["kcodec", name]
    ran = run(*on_broker(words, apache_kafka, tmp_path)[1:])
    assert ran.status is ExitStatus.OK, ran.err
    assert ran.data or ran.err or name == "produce"


def on_broker(words: list[str], kafka: ApacheKafka, folder: Path) -> list[str]:
    """The example on a real broker, with a topic of its own in place of orders."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    if "create" not in words:
        kafka.create_topic(topic)
    group = f"billing-{topic}"
    if "billing" in words:
        with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
    (folder / "orders.txt").write_text("key:value\n")
    (folder / "orders.jsonl").write_text('{"key":"a","value":null,"timestamp":5,"headers":[]}\n')
    names = {BROKER: kafka.bootstrap_servers, "orders": topic, "billing": group}
    if words[1] in ("cat", "consume"):
        with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            producer.send(topic, b"value", key=b"key")
    if words[1] == "consume" and "-e" not in words:
        words += ["-c", "1"]
    if words[1] == "restore":
        folder = folder if "orders-0" in words else folder / "backup"
        shutil.copytree(orders(folder), folder / f"{topic}-0")
        shutil.rmtree(folder / "orders-0")
        names |= {"orders-0": f"{topic}-0", "orders=copy": f"{topic}=copy-{topic}"}
    return [names.get(word, word) for word in words]


def test_the_overview_names_every_command() -> None:
    for arguments in (["--help"], ["-h"], ["help"]):
        ran = run(*arguments)
        assert ran.status is ExitStatus.OK
        assert all(f"  {name} " in ran.out for name in COMMANDS)
    assert run().status is ExitStatus.ERROR
    assert run("--version").out.startswith("kcodec ")


@pytest.mark.parametrize(
    ("call", "reported"),
    [
        ("dmp x", "unknown command 'dmp'; did you mean 'dump'?"),
        ("konvert x", "unknown command 'konvert'; did you mean 'convert'?"),
        ("xyzzy", "unknown command 'xyzzy'; possible: dump"),
        ("dump --recrods x", "unknown option '--recrods'; did you mean '--records'?"),
        ("dump --record x", "unknown option '--record'; did you mean '--records'?"),
        ("cat --read-commited x", "unknown option '--read-commited'; did you mean '--read-committed'?"),
        ("cat -q x", "unknown option '-q'"),
        ("offsets reset -b x:1 g --to-earliest", "unknown option '--to-earliest'; write --to earliest (see"),
        ("offsets reset -b x:1 g --to-datetime=0", "unknown option '--to-datetime'; write --to s@TIME (see"),
        ("offsets reset -b x:1 g --topic t", "unknown option '--topic'; write the topic without --topic, as in"),
        ("offsets reset -b x:1 --group=g t", "unknown option '--group'; write the group without --group, as in"),
        ("dump --to-earliest x", "unknown option '--to-earliest'; "),
        ("topics create -b x:1 t --dry-run", "--dry-run is an option of delete, not of create (see "),
        ("topics delete -b x:1 t --validate-only", "--validate-only is an option of create and config, not of delete"),
        ("txn list FILE --longer-than 0", "--longer-than needs a broker: pass -b HOST:PORT"),
        ("txn list FILE --pattern a.*", "--pattern needs a broker: pass -b HOST:PORT"),
        ("txn list FILE --pattern=", "--pattern needs a broker: pass -b HOST:PORT"),
        ("txn timeline FILE -X client.id=a", "-X needs a broker: pass -b HOST:PORT, or omit -X for files"),
        ("cat FILE -X client.id=a", "-X needs a broker: pass -b HOST:PORT, or omit -X for files"),
        ("cat FILE -F client.properties", "-F needs a broker: pass -b HOST:PORT, or omit -F for files"),
        ("offsets list -b x:1 t --execute", "--execute is an option of reset, not of list"),
        ("groups list -b x:1 billing", "list takes no names, got 'billing'; to show one group, use kcodec groups desc"),
        ("txn list -b x:1 nightly", "list takes no names, got 'nightly'; to show one transactional id, use kcodec txn"),
        ("txn find-hanging -b x:1 orders", "find-hanging takes no names, got 'orders'; to search one topic, pass -t"),
        ("txn strays -b x:1 nightly", "strays takes no names, got 'nightly'"),
        ("txn abort -b x:1 nightly --start-offset 3", "--start-offset needs --topic and --partition; omit it to abort"),
        ("txn abort -b x:1 nightly --producer-id 3", "--producer-id needs --topic and --partition"),
        ("txn strays -b x:1 --idle nan", "--idle: 'nan' is not a number between 0 and 1,000,000,000,000"),
        ("txn strays -b x:1 --idle=-5", "--idle: '-5' is not a number between 0"),
        ("txn strays -b x:1 --idle 1e300", "--idle: '1e300' is not a number between 0"),
        ("txn list -b x:1 --longer-than inf", "--longer-than: 'inf' is not a number between 0"),
        ("txn find-hanging -b x:1 --max-transaction-timeout nan", "--max-transaction-timeout: 'nan' is not a number"),
        ("txn find-hanging -b x:1 --max-transaction-timeout=-1", "--max-transaction-timeout: '-1' is not a number"),
        ("tokens create -b x:1 alice", "create takes no names, got 'alice'; to create a token for another user, pass"),
        ("cluster describe -b x:1 5", "describe takes no names, got '5'"),
        ("cluster quorum -b x:1 5", "quorum takes no names, got '5'"),
        ("topics config -b x:1 t --set a=1 --unset a", "a: --set and --unset exclude each other"),
        ("consume -b x:1 -t t -o stored -o 5 -X group.id=g", "-o stored excludes another offset to begin at"),
        ("dump", "the following arguments are required: FILE"),
        ("dump --offsets 5:3 x", "'5:3' ends before it begins"),
        ("dump --offsets a:b x", "'a:b' is not a range of offsets"),
        ("dump --offsets=-3: x", "offsets cannot be negative"),
        ("dump --threads 0 x", "--threads must be at least 1"),
        ("convert x -o y.csv --columns ,", "expected at least one name"),
    ],
)
def test_a_wrong_call_says_what_was_meant(call: str, reported: str) -> None:
    ran = run(*call.split())
    assert (ran.status, ran.data) == (ExitStatus.ERROR, b"")
    assert ran.err.startswith("kcodec: ")
    assert reported in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("command", ["dump", "cat"])
def test_what_is_not_there_or_no_log_cannot_be_read(command: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("no log")
    for name in ("nothing", "empty", "notes.txt"):
        ran = run(command, tmp_path / name)
        assert (ran.status, ran.data) == (ExitStatus.ERROR, b"")
        assert str(tmp_path / name) in ran.err
        assert ran.err.count("\n") == 1


# -------------------------------------------------------------------------------------------------- pipes and terminals


def test_a_pipe_that_closes_ends_the_program_quietly(tmp_path: Path) -> None:
    directory = long_partition(tmp_path, 500)
    for call in (["dump", "--records"], ["cat"], ["dump", "--json"]):
        process = program(*call, directory)
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        err = process.stderr.read()
        process.stderr.close()
        assert process.wait(timeout=30) == ExitStatus.BROKEN_PIPE
        assert err == b""


def test_statuses_of_the_program(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, [plain(0), plain(3)[:50]])
    for call, status in ((["dump", str(directory)], 1), (["dump", "nothing"], 2), (["--version"], 0)):
        process = program(*call)
        process.communicate(timeout=30)
        assert process.returncode == status


def on_terminal(*arguments: str | Path, **environment: str) -> str:
    """What a terminal shows of stdout."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "kcodec", *map(str, arguments)]
    plain_environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    with subprocess.Popen(command, stdout=follower, env={**plain_environment, "TERM": "xterm", **environment}):
        os.close(follower)
        shown = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:
                break
            if not piece:
                break
            shown += piece
    os.close(leader)
    return shown.decode()


def test_colour_only_on_a_terminal_and_never_alone() -> None:
    path = partition("txn-java-0") / f"{7:020}.log"
    piped = run("dump", path).out
    coloured = on_terminal("dump", path)
    assert "\x1b[" not in piped
    assert "\x1b[32mCOMMIT" in coloured
    without = on_terminal("dump", path, NO_COLOR="1")
    assert without.replace("\r\n", "\n") == piped
    assert on_terminal("dump", path, TERM="dumb") == without


def test_a_progress_bar_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for stderr, is_shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stderr)
        progress = Progress(Output(stdout=io.BytesIO()), "reading")
        progress(0, 100)
        now[0] += 2.0
        progress(50_000_000, 100_000_000)
        assert (stderr.getvalue() == "\rreading [###############...............]  50% 25 MB/s\x1b[K") == is_shown
        progress.end()
        assert stderr.getvalue().endswith("\r\x1b[K") == is_shown


@pytest.mark.parametrize("has_data", [True, False])
def test_a_progress_bar_is_not_mixed_into_data(monkeypatch: pytest.MonkeyPatch, has_data: bool) -> None:
    monkeypatch.setattr(Output, "is_terminal", True)
    monkeypatch.setattr(Output, "can_show_progress", True)
    assert Progress(Output(), "reading", has_data=has_data).is_shown is not has_data


# ------------------------------------------------------------------------------------------------------------ rendering


def test_times_and_durations() -> None:
    assert [time_text(time) for time in (0, -1, -2, None, 1 << 60)] == [
        *("1970-01-01T00:00:00.000Z", "-1", "1969-12-31T23:59:59.998Z", "-", str(1 << 60))
    ]
    assert [duration_text(ms) for ms in (250, 42_000, 840_000, 12_000_000, 443_000_000)] == [
        *("0.250 s", "42 s", "14 min", "3 h 20 min", "5 d 3 h")
    ]


def test_a_table_takes_its_widths_from_its_first_rows() -> None:
    stdout = io.BytesIO()
    output = Output(stdout)
    rows: list[list[object]] = [["a", 1, None], ["longer", 100, True]]
    assert write_table(output, ["name", "n", "x"], rows) == 2
    output.flush()
    assert stdout.getvalue() == b"name      n  x\na         1  -\nlonger  100  yes\n"


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_stdout_without_a_descriptor_has_no_reader_to_check(monkeypatch: pytest.MonkeyPatch, is_closed: bool) -> None:
    """For example the stdout of a notebook: `kcodec consume` failed when it had waited for the first records."""
    stdout = io.StringIO()
    if is_closed:
        stdout.close()
    monkeypatch.setattr(sys, "stdout", stdout)
    Output().check_reader()


def test_a_pipe_without_a_reader_is_noticed_before_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        Output().check_reader()
        os.close(reader)
        with pytest.raises(BrokenPipeError):
            Output().check_reader()
        monkeypatch.undo()


def test_the_script_that_an_installation_makes_is_the_program() -> None:
    pyproject = tomllib.loads((Path(__file__).parent.parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
    module, _, function = pyproject["project"]["scripts"]["kcodec"].partition(":")
    assert getattr(importlib.import_module(module), function) is kcodec.cli.run


@pytest.mark.parametrize(
    ("closed", "status", "reported"),
    [
        (">&-", ExitStatus.ERROR, "kcodec: stdout is closed, so nothing can be written to it\n"),
        ("2>&-", ExitStatus.OK, ""),
        ("-o 0 2>/dev/full", ExitStatus.OK, ""),
    ],
)
def test_a_closed_stream_causes_no_traceback(tmp_path: Path, closed: str, status: ExitStatus, reported: str) -> None:
    folder = write_partition(tmp_path, [plain(0)])
    command = f"{shlex.quote(sys.executable)} -m kcodec cat {shlex.quote(str(folder))} {closed}"
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stderr) == (status, reported)


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full"])
def test_an_error_keeps_its_exit_status_without_stderr(tmp_path: Path, closed: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m kcodec cat {shlex.quote(str(tmp_path / 'missing'))} {closed}"
    ran = subprocess.run(["sh", "-c", command], capture_output=True, check=False, timeout=60)
    assert ran.returncode == ExitStatus.ERROR


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("produce -t orders", "redirect a file to it, or name a FILE"),
        ("produce -t orders -J", "redirect a file to it, or name a FILE"),
        ("txn strays --handles -", "redirect a file to it, or name a file with --handles"),
    ],
)
def test_a_closed_stdin_causes_no_traceback(command: str, remedy: str) -> None:
    ran = subprocess.run(
        ["sh", "-c", f"{shlex.quote(sys.executable)} -m kcodec {command} -b 127.0.0.1:1 <&-"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    reported = f"kcodec: stdin is closed, so nothing can be read from it; {remedy}\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (ExitStatus.ERROR, "", reported)


def test_a_pipe_that_does_not_block_gets_all_output(tmp_path: Path) -> None:
    """Another program with the same terminal or pipe may have set O_NONBLOCK."""
    directory = long_partition(tmp_path, 30)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with program("cat", directory, stdout=writer) as process, os.fdopen(reader, "rb") as output:
        os.close(writer)
        assert process.stderr is not None
        select.select([reader], [], [])
        time.sleep(0.3)  # until the pipe is full
        assert output.read().count(b"\n") == 30_000
        assert (process.wait(30), process.stderr.read()) == (ExitStatus.OK, b"")
