# SPDX-License-Identifier: Apache-2.0
"""kcodec.testing.kafka: that brokers start, crash, come back with their data, and are gone in the end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kcodec.protocol.error_codes import ErrorCode
from kcodec.testing import bare_admin, command_line
from kcodec.testing.java import MissingTool, cache_directory, find_java
from kcodec.testing.kafka import KAFKA_VERSION, ApacheKafka, Listener
from kcodec.testing.node import KafkaFailed
from kcodec.testing.processes import Process, command_line_of
from kcodec.testing.pytest_plugin import KafkaFactory


def test_the_shared_broker_has_topics_by_name_and_settings(apache_kafka: ApacheKafka) -> None:
    name = apache_kafka.create_topic(partitions=2, segment_ms=60000)
    known = bare_admin.partitions_of(apache_kafka.admin_servers, name)
    assert {number: found.leader_id for number, found in known.items()} == {0: 1, 1: 1}
    assert apache_kafka.leader(name, 1) is apache_kafka.node(1)
    assert (apache_kafka.log_directory / f"{name}-1").is_dir()
    assert apache_kafka.end_offset(name, 1) == 0
    assert apache_kafka.coordinator("transaction", name) is apache_kafka.node(1)


def test_a_refused_topic_says_why(apache_kafka: ApacheKafka) -> None:
    with pytest.raises(bare_admin.BrokerRefused, match="replication") as caught:
        apache_kafka.create_topic(replication_factor=2)
    assert caught.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
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
    kafka.node(1).wait_ready(timeout=20)
    assert "broker.session.timeout.ms=1000\n" in (kafka.node(1).directory / "server.properties").read_text()


def test_a_broker_waits_for_a_port_that_was_taken_while_it_was_down(apache_kafka_factory: KafkaFactory) -> None:
    """The second of two, for which the first one waits."""
    kafka = apache_kafka_factory(nodes=2)
    servers, topic = kafka.bootstrap_servers, kafka.create_topic(partitions=1)
    kafka.kill()
    client = kafka.node(2).listeners["CLIENT"]
    with socket.create_server((client.host, client.port)) as other:

        def close_after_a_failure() -> None:
            deadline = time.monotonic() + 30
            while "Address already in use" not in kafka.node(2).log_tail(5000) and time.monotonic() < deadline:
                time.sleep(0.05)
            other.close()

        thread = threading.Thread(target=close_after_a_failure)
        thread.start()
        kafka.start()
        thread.join()
    assert "Address already in use" in kafka.node(2).log_tail(5000)
    assert kafka.bootstrap_servers == servers
    assert kafka.leader(topic, 0) in kafka.nodes


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


def test_three_nodes_replicate_and_outlive_a_leader(apache_kafka_factory: KafkaFactory) -> None:
    advertised: list[Listener] = []

    def advertise(listener: Listener) -> str | None:
        advertised.append(listener)
        return f"localhost:{listener.port}" if listener.node == 1 else None

    kafka = apache_kafka_factory(nodes=3, advertise=advertise, broker_session_timeout_ms=3000)
    assert {(listener.name, listener.node) for listener in advertised} == {
        (name, node) for name in ("CLIENT", "BROKER") for node in (1, 2, 3)
    }
    assert kafka.bootstrap_servers.split(",")[0] == f"localhost:{kafka.node(1).listeners['CLIENT'].port}"
    brokers = bare_admin.metadata(kafka.node(2).listeners["CLIENT"].address).brokers
    addresses = {broker.node_id: f"{broker.host}:{broker.port}" for broker in brokers}
    assert [address for _, address in sorted(addresses.items())] == kafka.bootstrap_servers.split(",")
    topic = kafka.create_topic(partitions=1)
    kafka.wait_in_sync(topic, 0)
    before = kafka.leader(topic, 0)
    before.kill()
    after = kafka.leader(topic, 0)
    assert after is not before
    assert kafka.coordinator("transaction", topic) is not before
    before.start()
    kafka.wait_in_sync(topic, 0)
    known = bare_admin.partitions_of(after.admin_server, topic)[0]
    assert sorted(known.replica_nodes) == sorted(known.isr_nodes) == [1, 2, 3]


def test_the_older_kafka_starts_with_the_transactions_it_has(apache_kafka_factory: KafkaFactory) -> None:
    kafka = apache_kafka_factory("3.9.1")
    assert kafka.transaction_version == 0
    assert kafka.end_offset(kafka.create_topic(partitions=1), 0) == 0
    assert "Kafka version: 3.9.1" in kafka.log_tail(2000)


def test_transaction_versions_that_a_kafka_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"3\.9\.1 supports transaction versions up to 0, not 2"):
        ApacheKafka("3.9.1", transaction_version=2)
    assert ApacheKafka("3.9.1", transaction_version=2, unstable_feature_versions_enable=True).transaction_version == 2
    assert [ApacheKafka(transaction_version=number).transaction_version for number in (None, 0, 1)] == [2, 0, 1]


def test_arguments_that_cannot_work_are_refused() -> None:
    for arguments, reported in (
        ({"nodes": 0}, "nodes must be at least 1"),
        ({"sasl": "GSSAPI"}, "unknown SASL mechanism 'GSSAPI'"),
        ({"authorizer": True}, "requires authenticated users"),
    ):
        with pytest.raises(ValueError, match=reported):
            ApacheKafka(**arguments)
    with pytest.raises(ValueError, match="does not use TLS: start it with tls=True"):
        _ = ApacheKafka().certificates


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own that has what others take long to make."""
    archives = [path.name for path in cache_directory().glob("*.jsa")]
    for name in ("kafka-libs", "slf4j-simple", "java", *archives):
        (tmp_path / name).symlink_to(cache_directory() / name)
    monkeypatch.setenv("KCODEC_CACHE", str(tmp_path))
    return tmp_path


def check_that_a_cluster_continues(servers: str, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After a crash, with its data, its address and the options of its start."""
    bare_admin.create_topic(servers, "kept", 2, 1, {})
    state = json.loads((cache / "clusters" / "one" / "cluster.json").read_text())
    for pid, path in state["nodes"]:
        Process(pid, path).kill()
    assert command_line.main(["start", "--name", "one"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{servers}\n" and "had ended; it continues with its data" in err
    assert len(bare_admin.partitions_of(servers, "kept")) == 2


def test_the_command_line_starts_lists_and_stops(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "kcodec.testing.kafka", "start", "--name", "one", "--property", "num.partitions=5"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
    servers = done.stdout.strip()
    try:
        assert [broker.node_id for broker in bare_admin.metadata(servers).brokers] == [1]
        assert "stop --name one" in done.stderr and "security_protocol" not in done.stderr
        assert f"log directory: {cache / 'clusters' / 'one' / 'node-1' / 'data'}\n" in done.stderr
        assert command_line.main(["status"]) == 0
        assert capsys.readouterr().out == f"one\t{KAFKA_VERSION}\ttransaction version 2\t1 of 1 nodes run\t{servers}\n"
        assert command_line.main(["start", "--name", "one"]) == 0
        assert capsys.readouterr() == (f"{servers}\n", "the cluster one is already running\n")
        assert command_line.main(["start", "--name", "one", "--nodes", "3", "--tls"]) == 1
        assert "the cluster one was started without --nodes, --tls, or with another" in capsys.readouterr().err
        check_that_a_cluster_continues(servers, cache, capsys)
        assert command_line.main(["stop"]) == 1
        assert capsys.readouterr().err == "kafka: the cluster default does not exist; existing clusters: one\n"
        pid, path = json.loads((cache / "clusters" / "one" / "cluster.json").read_text())["nodes"][0]
        assert "num.partitions=5\n" in Path(path).read_text()
    finally:
        assert command_line.main(["stop", "--all"]) == 0
    assert path not in command_line_of(pid)
    assert list((cache / "clusters").iterdir()) == []


def test_the_command_line_says_what_is_missing(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command_line.main(["start", "--property", "oops"]) == 1
    assert "expected NAME=VALUE" in capsys.readouterr().err
    assert command_line.main(["start", "--name", "../else"]) == 1
    assert "invalid cluster name" in capsys.readouterr().err
    monkeypatch.setattr("kcodec.testing.java.java_candidates", lambda: iter([Path("/nowhere/java")]))
    assert command_line.main(["start"]) == 1
    assert "Java 17 or newer was not found: install it" in capsys.readouterr().err
    assert list((cache / "clusters").iterdir()) == []


def test_an_old_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = []
    for name, version in (("old", '1.8.0_402"'), ("new", '21.0.8" 2025-07-15')):
        candidates.append(tmp_path / name)
        candidates[-1].write_text(f"#!/bin/sh\necho 'openjdk version \"{version}' >&2\n")
        candidates[-1].chmod(0o755)
    monkeypatch.setattr("kcodec.testing.java.java_candidates", lambda: iter(candidates))
    assert find_java() == tmp_path / "new"
    monkeypatch.setattr("kcodec.testing.java.java_candidates", lambda: iter(candidates[:1]))
    with pytest.raises(MissingTool):
        find_java()


def test_the_id_of_a_process_that_ended_is_nothing_elses(tmp_path: Path) -> None:
    """A state file may name an id that another program has by now: that one is left alone."""
    program = "print(flush=True); import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()  # before it runs, the system may not name its arguments yet
        assert Process(other.pid, str(tmp_path)).is_running()
        stranger = Process(other.pid, str(tmp_path / "server.properties"))
        assert not stranger.is_running()
        stranger.kill()
        assert other.poll() is None
        Process(other.pid, str(tmp_path)).kill()
        assert other.wait(10) == -signal.SIGKILL


def test_the_shared_broker_outlives_a_test_that_asks_for_it_late(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a test's body makes the factory start ends with the test, and nothing else does."""
    monkeypatch.setenv("PYTHONPATH", str(Path(command_line.__file__).parents[2]))
    pytester.makeconftest('pytest_plugins = ["kcodec.testing.pytest_plugin"]')
    pytester.makepyfile(
        """
        import pytest
        OWN = []
        class Double:
            def __init__(self, *version, **options):
                self.nodes, self.is_open = [1], False
            def start(self): self.is_open = True
            def close(self): self.is_open = False
            __enter__ = lambda self: self.start() or self
            __exit__ = lambda self, *error: self.close()
            def log_tail(self): return "last words of the broker"
        @pytest.fixture(autouse=True, scope="session")
        def doubles():
            import kcodec.testing.pytest_plugin as plugin
            plugin.ApacheKafka = Double
        @pytest.fixture(scope="module")
        def kept(apache_kafka_factory): return apache_kafka_factory("3.9.1")
        def test_late(request, kept, apache_kafka_factory):
            OWN.extend([request.getfixturevalue("apache_kafka"), apache_kafka_factory(), kept])
            assert all(kafka.is_open for kafka in OWN)
        def test_after(): assert [kafka.is_open for kafka in OWN] == [True, False, True]
        def test_failing(): assert False
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*last words of the broker*"])


def test_a_cluster_that_moves_to_another_port_says_so() -> None:
    assert command_line.moved("127.0.0.1:9092,127.0.0.1:9093", "127.0.0.1:9092,127.0.0.1:9093") == []
    (text,) = command_line.moved("127.0.0.1:9092,127.0.0.1:9093", "127.0.0.1:9092,127.0.0.1:40001")
    assert text.startswith("WARNING: node 2 is now at 127.0.0.1:40001: another process uses 127.0.0.1:9093")


def test_the_state_of_a_cluster_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves the previous state, and no file."""
    state = command_line.RunningCluster("one", KAFKA_VERSION, 2, "127.0.0.1:1", "127.0.0.1:2", [(1, "path")])
    state.write(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(json, "dumps", lambda _: "x" * 10 + "\ud800")
        with pytest.raises(UnicodeEncodeError):
            state.write(tmp_path)
    assert command_line.RunningCluster.read(tmp_path) is not None
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]


def test_the_error_for_a_node_that_has_ended_names_the_first_error_of_its_log(
    apache_kafka_factory: KafkaFactory,
) -> None:
    kafka = apache_kafka_factory()
    pid = kafka.node(1).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    while kafka.node(1).is_running:
        time.sleep(0.05)
    log = kafka.node(1).directory / "server.log"
    with log.open("a") as file:
        file.write("1 [main] ERROR before\n1 [main] INFO Registered signal handlers for TERM\n")
        file.write("2 [main] ERROR the disk is full\n2 [main] ERROR shutting down\n")
    cause = r"the first error in its log: 2 \[main\] ERROR the disk is full$"
    with pytest.raises(KafkaFailed, match=f"node 1 ended.*; {cause}"):
        kafka.create_topic()
