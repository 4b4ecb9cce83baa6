# SPDX-License-Identifier: Apache-2.0
"""kcodec.testing.kafka: that brokers start, crash, come back with their data, and are gone in the end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kcodec.testing import bare_admin
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.processes import Process
from kcodec.testing.pytest_plugin import KafkaFactory


def test_the_shared_broker_has_topics_by_name_and_settings(apache_kafka: ApacheKafka) -> None:
    name = apache_kafka.create_topic(partitions=2, segment_ms=60000)
    known = bare_admin.metadata(apache_kafka.admin_servers, (name,)).topics[name]
    assert {number: found.leader for number, found in known.items()} == {0: 1, 1: 1}
    assert apache_kafka.leader(name, 1) is apache_kafka.node(1)
    assert (apache_kafka.log_directory / f"{name}-1").is_dir()
    assert apache_kafka.end_offset(name, 1) == 0
    assert apache_kafka.coordinator("transaction", name) is apache_kafka.node(1)


def test_a_refused_topic_says_why(apache_kafka: ApacheKafka) -> None:
    with pytest.raises(bare_admin.BrokerRefused, match="replication") as caught:
        apache_kafka.create_topic(replication_factor=2)
    assert caught.value.code == 38  # INVALID_REPLICATION_FACTOR
    with pytest.raises(bare_admin.BrokerRefused, match="retention"):
        apache_kafka.create_topic(retention_ms="soon")


def test_a_killed_broker_comes_back_with_its_data_on_its_ports(apache_kafka_factory: KafkaFactory) -> None:
    kafka = apache_kafka_factory(broker_session_timeout_ms=1000)
    servers, topic = kafka.bootstrap_servers, kafka.create_topic(partitions=1)
    kafka.kill()
    assert not kafka.node(1).is_running
    with pytest.raises(OSError, match="refused"):
        bare_admin.metadata(servers)
    kafka.start()
    assert kafka.bootstrap_servers == servers
    assert kafka.leader(topic, 0) is kafka.node(1)
    kafka.pause()
    with pytest.raises(TimeoutError):
        bare_admin.metadata(servers, timeout=0.2)
    kafka.resume()
    assert list(bare_admin.metadata(servers).brokers) == [1]
    assert "broker.session.timeout.ms=1000\n" in (kafka.node(1).directory / "server.properties").read_text()


def test_a_broker_that_does_not_start_says_why() -> None:
    kafka = ApacheKafka(num_io_threads=0)
    with pytest.raises(RuntimeError, match=r"num\.io\.threads"):
        kafka.start()
    assert kafka.nodes == []


def test_brokers_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    """SIGKILL leaves it no time to stop anything: the watchdog does, and removes the temporary folder."""
    program = (
        "from kcodec.testing.kafka import ApacheKafka\nimport time\nkafka = ApacheKafka()\nkafka.start()\n"
        "print(kafka.node(1).pid, kafka.directory, flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        pid, folder = child.stdout.readline().split()
        broker = Process(int(pid), folder)
        assert broker.is_running()
        child.send_signal(signal.SIGKILL)
    assert broker.wait(10)
    deadline = time.monotonic() + 10
    while Path(folder).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(folder).exists()
