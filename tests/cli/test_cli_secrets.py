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
