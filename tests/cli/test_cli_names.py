# SPDX-License-Identifier: Apache-2.0
"""Broker commands with names that are repeated, unknown or without effect, and with files that cannot be decoded."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from cli_runner import rows, run
from log_files import partition, plain

from kcodec.broker import Broker
from kcodec.cli import ExitStatus
from kcodec.cli.brokers import broker_options
from kcodec.client import Admin, ClientQuotaEntity
from kcodec.client.properties import properties_of_file


def test_topics_list_prints_the_named_topics(kcodec_broker: Broker) -> None:
    servers = kcodec_broker.bootstrap_servers
    for name in ("named-a", "named-b"):
        kcodec_broker.create_topic(name, partitions=1)
    found = rows(run("topics", "list", "-b", servers, "-J", "named-b", "named-b"))
    assert [row["topic"] for row in found] == ["named-b"]
    ran = run("topics", "list", "-b", servers, "named-a", "named-c")
    assert (ran.status, len(ran.out.splitlines())) == (ExitStatus.ERROR, 2)
    assert ran.err.startswith("kcodec: unknown topic 'named-c'; did you mean 'named-")


def test_partitions_of_a_topic_that_is_named_twice_are_all_moved(kcodec_broker: Broker) -> None:
    servers = kcodec_broker.bootstrap_servers
    topic = kcodec_broker.create_topic(partitions=4)
    for names, expected in (
        ([f"{topic}:0", f"{topic}:2,1"], [0, 1, 2]),
        ([topic, f"{topic}:2"], [0, 1, 2, 3]),
        ([f"{topic}:2", topic], [0, 1, 2, 3]),
    ):
        found = rows(run("topics", "reassign", "-b", servers, *names, "--to", "77", "-J"))
        assert [row["partition"] for row in found] == expected


def test_a_reset_reports_a_group_that_does_not_exist(kcodec_broker: Broker) -> None:
    servers = kcodec_broker.bootstrap_servers
    topic = kcodec_broker.create_topic(partitions=1)
    call = ["offsets", "reset", "-b", servers, "new-group", topic, f"{topic}:0", "--to", "earliest"]
    ran = run(*call)
    assert (ran.status, len(ran.out.splitlines())) == (ExitStatus.OK, 2)
    assert ran.err == (
        "nothing was changed; --execute makes the changes, and creates the group 'new-group', which does not exist\n"
    )
    assert run(*call, "--execute").err == "new-group: 1 of 1 offsets set; the group did not exist before\n"
    assert run(*call).err == "nothing was changed; --execute makes the changes\n"


def test_a_setting_that_topics_do_not_have_is_not_unset(kcodec_broker: Broker) -> None:
    servers = kcodec_broker.bootstrap_servers
    topic = kcodec_broker.create_topic(partitions=1)
    assert run("topics", "config", "-b", servers, topic, "--set", "retention.ms=5000000").status is ExitStatus.OK
    ran = run("topics", "config", "-b", servers, topic, "--unset", "retention.msx")
    assert (ran.status, ran.err) == (
        ExitStatus.ERROR,
        "kcodec: --unset retention.msx: topics have no setting of this name; did you mean 'retention.ms'?\n",
    )
    assert "5000000" in run("topics", "config", "-b", servers, topic).out
    assert run("topics", "config", "-b", servers, topic, "--unset", "retention.ms").err == f"{topic}: changed\n"
    assert "5000000" not in run("topics", "config", "-b", servers, topic).out
    assert run("topics", "config", "-b", servers, "nosuch", "--unset", "retention.ms").status is ExitStatus.ERROR


def test_a_quota_that_a_broker_does_not_have_yet_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata of a broker can be behind that of the controller."""
    alice, changes = ClientQuotaEntity(user="alice"), []
    responses: list[Any] = [{alice: {"producer_byte_rate": 5.0}}, {}, {}]
    monkeypatch.setattr(Admin, "describe_client_quotas", lambda self, **options: responses.pop() if responses else {})
    monkeypatch.setattr(Admin, "alter_client_quotas", lambda self, given, **options: changes.append(given))
    call = ("quotas", "alter", "-b", "127.0.0.1:1", "--user", "alice", "--unset", "producer_byte_rate")
    assert run(*call).status is ExitStatus.OK
    assert (changes, responses) == ([{alice: {"producer_byte_rate": None}}], [])
    ran = run(*call)
    assert (ran.status, "has no quota of this name" in ran.err, len(changes)) == (ExitStatus.ERROR, True, 1)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_a_file_of_properties_in_each_encoding(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes("client.id=café\n".encode(encoding))
    given = argparse.Namespace(bootstrap_server="b:1", properties=[], properties_file=str(file))
    assert broker_options(given)["client_id"] == "café"
    assert properties_of_file(file) == {"client.id": "café"}


def test_a_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    file = tmp_path / "offsets.csv"
    file.write_bytes(b"orders,0,5\n\xff")
    for words in (["offsets", "reset", "g", "--from-file"], ["txn", "strays", "--handles"]):
        ran = run(words[0], words[1], "-b", "127.0.0.1:1", *words[2:], file, "-X", "default.api.timeout.ms=300")
        assert ran.status is ExitStatus.ERROR
        assert f"{file}: byte 12 is not UTF-8" in ran.err or "127.0.0.1:1" in ran.err
    assert ran.err == f"kcodec: {file}: byte 12 is not UTF-8; save the file as UTF-8\n"


def test_a_group_without_commits_is_reported(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    call = ["consume", "-b", kcodec_broker.bootstrap_servers, "-G", "g", topic, "-e"]
    off = ["-X", "enable.auto.commit=false"]
    assert run(*call, *off).err == "kcodec: enable.auto.commit is false, so no offsets are committed\n"
    assert run(*call, *off, "-q").err == ""


def test_two_targets_of_a_topic_are_refused(tmp_path: Path) -> None:
    ran = run("restore", partition(tmp_path, [plain(0)]), "-b", "127.0.0.1:1", "--map", "orders=a", "--map", "orders=b")
    assert (ran.status, ran.err) == (
        ExitStatus.ERROR,
        "kcodec: --map orders=...: the topic orders has two targets, a and b; pass one\n",
    )


def test_a_topic_is_restored_next_to_a_partition_without_a_segment(tmp_path: Path, kcodec_broker: Broker) -> None:
    partition(tmp_path, [plain(0)])
    (tmp_path / "gone-0").mkdir()
    call = ["restore", str(tmp_path), "-b", kcodec_broker.bootstrap_servers, "--create", "--dry-run"]
    assert "gone-0: the directory has no segment" in run(*call).err
    assert run(*call, "-t", "orders").out.splitlines()[1].split()[:2] == ["orders-0", "3"]
    assert "unknown topic 'order'; did you mean 'orders'?" in run(*call, "-t", "order").err
