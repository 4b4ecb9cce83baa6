# SPDX-License-Identifier: Apache-2.0
"""Names on the command line of the broker commands: named twice, unknown, or of a group that does not exist."""

from __future__ import annotations

from cli_runner import rows, run

from kcodec.broker import Broker
from kcodec.cli import ExitStatus


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
    assert run(*call, "--execute").err == "new-group: 1 of 1 offsets set\n"
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
