# SPDX-License-Identifier: Apache-2.0
"""Properties of clients on the command line and in files: read as Java reads them, and no value is ever shown."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from cli_runner import run

from kcodec.cli import ExitStatus
from kcodec.cli.brokers import broker_options

SECRET = "hunter2"
TAKEN = [
    "sasl.password=hunter2",
    "sasl.password: hunter2",
    "sasl.password hunter2",
    "  sasl.password\t:\thunter2",
    "sasl.password = hun\\\n    ter2",
    "# a comment\n! another\n\nsasl.password=hunter2",
    "sasl.password=h\\u0075nter2",
    "sasl.password=first\nsasl.password=hunter2",
]
REFUSED = [
    SECRET,
    f"= {SECRET}",
    f": {SECRET}",
    f"my\\ password={SECRET}",
    f"enable.idempotence={SECRET}",
    f"linger.ms: {SECRET}",
    f"ssl.keystore.type {SECRET}",
    f"sasl.jaas.config=required password={SECRET}",
    f"sasl.pasword={SECRET}",
    f"sasl.pasword {SECRET}",
    f"Ünknown: {SECRET}",
]


def options(path: Path | None, *properties: str) -> argparse.Namespace:
    return argparse.Namespace(
        bootstrap_server="127.0.0.1:1", properties=list(properties), properties_file=None if path is None else str(path)
    )


@pytest.mark.parametrize("text", TAKEN)
def test_a_properties_file_is_read_as_java_reads_it(text: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(text)
    assert broker_options(options(file)) == {"bootstrap_servers": "127.0.0.1:1", "sasl_plain_password": SECRET}


@pytest.mark.parametrize("text", REFUSED)
@pytest.mark.parametrize("command", ["topics list", "consume -t x", "produce -t x"])
def test_a_wrong_line_of_a_file_is_named_and_not_shown(text: str, command: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"# one\nclient.id=me\n{text}\n")
    ran = run(*command.split(), "-b", "127.0.0.1:1", "-F", file)
    assert ran.status is ExitStatus.ERROR
    assert SECRET not in ran.out + ran.err
    assert ran.err.count("\n") <= 2
    if "pasword" not in text and "jaas" not in text:
        assert f"{file}, line 3: " in ran.err


@pytest.mark.parametrize(
    "given", [f"sasl.password:{SECRET}", f"sasl.password {SECRET}", f"={SECRET}", f"linger.ms={SECRET}"]
)
def test_a_wrong_argument_is_named_and_its_value_not_shown(given: str) -> None:
    ran = run("topics", "list", "-b", "127.0.0.1:1", "-X", given)
    assert ran.status is ExitStatus.ERROR
    assert "-X" in ran.err
    assert SECRET not in ran.out + ran.err


def test_arguments_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("client.id: file\nlinger.ms 5")
    found = broker_options(options(file, "client.id=argument"))
    assert (found["client_id"], found["linger_ms"]) == ("argument", 5)


CALLS = ("topics list", "consume -t x", "consume -t x -e", "cat -t x", "produce -t x")


@pytest.mark.parametrize("command", CALLS)
def test_a_file_may_have_properties_of_other_commands(
    command: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are reported once by name, file and line, and have no effect; with -X they are errors."""
    file = tmp_path / "shared.properties"
    text = "default.api.timeout.ms=300\nmax.block.ms=300\ngroup.id=billing\nacks=all\nsession.timeout.ms=6000\n"
    file.write_text(text)
    lines = {"max.block.ms": (2, "producer"), "group.id": (3, "consumer"), "acks": (4, "producer")}
    lines["session.timeout.ms"] = (5, "consumer")
    unused = {
        name: place
        for name, place in lines.items()
        if place[1] != {"consume -t x": "consumer", "produce -t x": "producer"}.get(command)
    }
    (tmp_path / "input").write_text("1\n")
    more = ["-l", str(tmp_path / "input")] if "produce" in command else []
    ran = run(*command.split(), "-b", "127.0.0.1:1", "-F", file, *more)
    assert ran.status is ExitStatus.ERROR and "no option" not in ran.err and "127.0.0.1:1" in ran.err
    assert [record.getMessage() for record in caplog.records if "to avoid" in record.getMessage()] == [
        f"{file}, line {line}: {name} has no effect on this command, as it is an option of a {owner}; to avoid this "
        "warning, use a file without it"
        for name, (line, owner) in unused.items()
    ]
    for name, (_, owner) in unused.items():
        ran = run(*command.split(), "-b", "127.0.0.1:1", "-X", f"{name}={SECRET if name == 'group.id' else 1}", *more)
        assert (ran.status, ran.err) == (
            ExitStatus.ERROR,
            f"kcodec: -X {name} is an option of a {owner}, which this command does not use; omit it\n",
        )


@pytest.mark.parametrize("command", CALLS)
def test_an_unknown_property_is_named_as_it_is_written(command: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"client.id=me\nno.such.thing={SECRET}\n")
    ran = run(*command.split(), "-b", "127.0.0.1:1", "-F", file)
    assert ran.err == f"kcodec: {file}, line 2: no property is called 'no.such.thing'; remove it\n"
    ran = run(*command.split(), "-b", "127.0.0.1:1", "-X", "request.timeout=5")
    assert ran.err == "kcodec: -X no property is called 'request.timeout'; did you mean 'request_timeout_ms'?\n"


def test_each_client_of_a_command_gets_its_own_properties() -> None:
    """restore has three clients, and each has options that the others do not have."""
    given = options(None, "linger.ms=5", "fetch.max.wait.ms=7", "client.id=me")
    given.clients = ("Admin", "producer", "read_topic")
    own = {"linger_ms", "fetch_max_wait_ms", "client_id"}
    found = {client: own & broker_options(given, client).keys() for client in given.clients}
    assert found == {
        "Admin": {"client_id"},
        "producer": {"client_id", "linger_ms"},
        "read_topic": {"client_id", "fetch_max_wait_ms"},
    }
