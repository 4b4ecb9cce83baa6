# SPDX-License-Identifier: Apache-2.0
"""The end of a program that did not close its clients: it ends soon, and their threads never held an import lock."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
from sasl_responses import AUTHENTICATE, HANDSHAKE, welcome
from sasl_responses import usual as usual_with_sasl
from scripted_peer import Peer, Request
from usual_responses import free_port, usual

from kcodec.broker import Broker
from kcodec.client import Admin, waiting
from kcodec.network import thread_loop
from kcodec.offsets import TopicPartition
from kcodec.testing.kafka import ApacheKafka

TESTS = Path(__file__).resolve().parent.parent
PACKAGE = TESTS.parent / "src" / "kcodec"
RUNS = 20
#: A program that hangs at its end would hang forever; on a busy machine it takes seconds to start.
SECONDS = 60
#: Packages that flows on a client's thread import. The other packages run on the thread of the caller.
FLOW_PACKAGES = (
    *("protocol", "security", "network", "cluster", "producer", "transactions", "consumer", "session", "reading"),
    *("admin", "client"),
)
#: Imported by code that runs on the caller's thread: Arrow and Polars input, the lazy names of a package, and the
#: constructors and methods of public classes, and of messages.
ON_THE_CALLERS_THREAD = {
    *("producer/tables.py", "client/polars_scan.py", "reading/predicate.py", "client/__init__.py"),
    *("client/admin.py", "client/consumer.py", "client/producer.py", "client/flows.py", "client/waiting.py"),
    *("client/aio/admin.py", "client/aio/consumer.py", "client/aio/producer.py", "client/aio/waiting.py"),
    *(
        "client/transaction.py",
        "client/aio/transaction.py",
        "client/aio/__init__.py",
        "protocol/schema.py",
        "security/options.py",
        "producer/options.py",
    ),
}
#: Imported when a client with these options is made; test_client_threads_import_nothing covers all but Kerberos.
WITH_OPTIONS = {
    *("asyncio", "botocore.exceptions", "botocore.session"),
    *("kcodec.security.kerberos", "kcodec.security.oidc"),
}
#: Imported while a client is made, on the caller's thread: properties of other clients, and the error for a wrong name.
WHEN_MADE = {"kcodec.client.properties", "kcodec.network.foreign_options", "kcodec.reading.options"}

# The last lines make __del__ warn at the interpreter's exit, where warnings.warn imports modules.
UNCLOSED = {
    "producer": "client = kcodec.client.Producer(bootstrap_servers=servers)",
    "sending producer": """
        client = kcodec.client.Producer(bootstrap_servers=servers, max_block_ms=300, compression_type="gzip")
        client.send("t", b"value")
        """,
    "consumer": "client = kcodec.client.Consumer(bootstrap_servers=servers, group_id='g')",
    "polling consumer": """
        client = kcodec.client.Consumer(bootstrap_servers=servers, group_id="g")
        client.subscribe(["t"])
        client.poll(0.05)
        """,
    "session": """
        client = kcodec.client.GroupTransactSession(
            topics=["t"], bootstrap_servers=servers, group_id="g", transactional_id="x"
        )
        """,
    "admin": """
        client = kcodec.client.Admin(bootstrap_servers=servers, request_timeout_ms=200, default_api_timeout_ms=200)
        try:
            client.list_topics()
        except kcodec.KcodecError:
            pass
        """,
    "topic": """
        try:
            client = kcodec.read_topic("t", bootstrap_servers=servers, default_api_timeout_ms=300)
        except kcodec.KcodecError:
            pass
        """,
}

# Records every module that a thread of a client imports first, and prints them at the end.
RECORDER = """
import atexit, sys, threading

class Recorder:
    def find_spec(self, name, path=None, target=None):
        thread = threading.current_thread().name
        if thread.startswith("kcodec-"):
            print("imported:", thread, name)

sys.meta_path.insert(0, Recorder())
"""


def run_python(program: str, *arguments: str, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """A program in a new interpreter in development mode; fails if it does not end within `seconds`."""
    paths = os.pathsep.join([str(TESTS / "support"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-X", "dev", "-c", program, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, env={**os.environ, "PYTHONPATH": paths}
    )


def unclosed(kind: str) -> str:
    return "import sys, kcodec, kcodec.client\nservers = sys.argv[1]\n" + textwrap.dedent(UNCLOSED[kind])


def ends(program: str, servers: str, runs: int = 2) -> None:
    """Each of several runs ends, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(lambda _: run_python(program, servers), range(runs)):
            assert done.returncode == 0, done.stderr
            assert "Fatal Python error" not in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("kind", UNCLOSED)
def test_a_program_ends_with_an_unclosed_client(kind: str) -> None:
    """Nothing listens on the port, as after a mistake in the configuration."""
    with free_port() as port:
        ends(unclosed(kind), f"127.0.0.1:{port}", RUNS if kind == "producer" else 4)


@pytest.mark.parametrize("kind", ["producer", "consumer", "session"])
def test_a_program_ends_with_a_client_that_connects(kind: str) -> None:
    with Peer(usual) as peer:
        ends(unclosed(kind), peer.address, RUNS if kind == "producer" else 4)


def test_a_handler_of_the_application_can_close_its_producer(kcodec_broker: Broker) -> None:
    """It was registered after the import of the client and before the first client, whose I/O thread ended first."""
    topic = kcodec_broker.create_topic(partitions=1)
    program = """
        import atexit, sys
        from kcodec.client import Producer
        atexit.register(lambda: producer.close())
        producer = Producer(bootstrap_servers=sys.argv[1], linger_ms=500)
        delivery = producer.send(TOPIC, b"value")
        atexit.register(lambda: print(delivery.done()))
    """
    done = run_python(textwrap.dedent(program).replace("TOPIC", repr(topic)), kcodec_broker.bootstrap_servers)
    assert (done.returncode, done.stderr) == (0, "")
    with Admin(bootstrap_servers=kcodec_broker.bootstrap_servers) as admin:
        assert admin.list_offsets({TopicPartition(topic, 0): "latest"})[TopicPartition(topic, 0)].offset == 1


def test_an_unclosed_client_still_warns_at_exit() -> None:
    with free_port() as port:
        done = run_python(unclosed("producer"), f"127.0.0.1:{port}")
    assert "ResourceWarning: <Producer 'kcodec' open> was not closed" in done.stderr


@pytest.mark.parametrize("api", ["kcodec.client", "kcodec.client.aio"])
def test_lost_records_are_logged_once_at_exit(api: str) -> None:
    """After the last wait for a broker; later the threads end, all records fail, and the producer is finalized."""
    program = f"""
        import asyncio, sys
        from {api} import Producer

        async def send():
            global producer
            producer = Producer(bootstrap_servers=sys.argv[1])
            sent = producer.send("orders", b"value")
            if "aio" in "{api}":
                await sent

        asyncio.run(send())
    """
    with free_port() as port:
        done = run_python(textwrap.dedent(program), f"127.0.0.1:{port}")
    assert done.stderr.count("may be lost: 1 record of topic 'orders'") == 1, done.stderr


def test_an_error_of_one_log_line_at_exit_stops_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of a handler of logging. The other lines are logged, and the threads end."""
    calls: list[int] = []

    class Unclosed:
        def __init__(self, number: int) -> None:
            self.number = number
            self._io_loop = mock.Mock(is_closed=False)

        def _log_dropped(self) -> None:
            calls.append(self.number)
            if self.number == 1:
                raise OSError("no space left on device")

    producers = [Unclosed(number) for number in range(3)]
    monkeypatch.setattr(waiting.ProducerBase, "_open", weakref.WeakSet(producers))
    monkeypatch.setattr(thread_loop, "finish_at_exit", lambda: None)
    monkeypatch.setattr(thread_loop, "end_at_exit", lambda: calls.append(3))
    with pytest.raises(OSError, match="no space left"):
        waiting._at_exit()
    assert sorted(calls[:3]) == [0, 1, 2] and calls[3:] == [3]


def test_a_lookup_that_hangs_delays_the_exit_by_two_seconds() -> None:
    """A name lookup cannot be interrupted; the thread that it runs on is left behind."""
    program = """
        import socket, sys, time
        socket.getaddrinfo = lambda *arguments, **options: time.sleep(60)
        import kcodec.client
        client = kcodec.client.Producer(bootstrap_servers="somewhere:9092")
        time.sleep(0.3)
        """
    done = run_python(textwrap.dedent(program), seconds=40)  # less than the lookup takes
    assert done.returncode == 0, done.stderr
    assert "did not end within 2 s of the interpreter's exit" in done.stderr


def test_an_exit_handler_may_still_close_its_producer() -> None:
    """Handlers of the application run before the one that ends the threads."""
    program = """
        import atexit, sys, kcodec.client
        producer = kcodec.client.Producer(bootstrap_servers=sys.argv[1])
        atexit.register(lambda: print("topics", producer.partitions_for("t")))
        """
    with Peer(metadata_of_t) as peer:
        done = run_python(textwrap.dedent(program), peer.address)
    assert done.stdout.strip() == "topics 1", done.stderr


def test_a_call_after_the_exit_handler_says_why_it_fails() -> None:
    program = """
        import atexit, sys

        def late():
            try:
                producer.close()
            except Exception as error:
                print(type(error).__name__, error)

        atexit.register(late)
        import kcodec.client
        producer = kcodec.client.Producer(bootstrap_servers=sys.argv[1])
        """
    with free_port() as port:
        done = run_python(textwrap.dedent(program), f"127.0.0.1:{port}")
    assert done.stdout.startswith("TransportError the interpreter is exiting"), (done.stdout, done.stderr)


def metadata_of_t(peer: Peer, request: Request) -> bytes | None:
    from kcodec.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic

    if request.api_key == 3:
        partition = MetadataResponsePartition(partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1])
        return peer.metadata_reply(request, topics=[MetadataResponseTopic(name="t", partitions=[partition])])
    return usual(peer, request)


# Imports on threads


def late_imports() -> Iterator[tuple[str, str]]:
    """(file, module) of each import inside a function of the packages that flows run in."""
    for package in FLOW_PACKAGES:
        for path in sorted((PACKAGE / package).rglob("*.py")):
            name = str(path.relative_to(PACKAGE))
            if name in ON_THE_CALLERS_THREAD:
                continue
            for function in ast.walk(ast.parse(path.read_text())):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    for node in ast.walk(function):
                        if isinstance(node, ast.ImportFrom) and node.module:
                            yield name, node.module
                        elif isinstance(node, ast.Import):
                            yield from ((name, alias.name) for alias in node.names)


def test_flows_find_what_they_import_loaded() -> None:
    """A new interpreter that made one client, with TLS, has loaded each module that a function of a flow imports."""
    program = """
        import sys, kcodec.client
        from kcodec.network.client import Client
        from kcodec.network.options import ClientConfig
        kcodec.client.Producer, kcodec.client.Consumer, kcodec.client.GroupTransactSession, kcodec.client.Admin
        before = set(sys.modules)
        Client(ClientConfig.take({"bootstrap_servers": "127.0.0.1:1", "security_protocol": "SSL"}))
        print(*sys.modules)
        """
    loaded = set(run_python(textwrap.dedent(program)).stdout.split())
    found = sorted(late_imports())
    assert len(found) >= 10
    assert [(file, module) for file, module in found if module not in loaded | WITH_OPTIONS | WHEN_MADE] == []


def imported_on_threads(program: str, *arguments: str, seconds: float = 60) -> list[str]:
    done = run_python(RECORDER + textwrap.dedent(program), *arguments, seconds=seconds)
    assert done.returncode == 0, done.stderr
    assert "scenario ended" in done.stdout
    return [line for line in done.stdout.splitlines() if line.startswith("imported:")]


def test_client_threads_import_nothing() -> None:
    """Producers with each codec, both group protocols, a session, an Admin and read_topic, against a real broker."""
    program = """
        import sys, time, kcodec, kcodec.client as clients
        common = {"bootstrap_servers": sys.argv[1].replace("127.0.0.1", "localhost")}
        with clients.Admin(**common) as admin:
            admin.create_topics(["in", "out"])
            admin.list_topics(), admin.describe_cluster(), admin.list_groups(), admin.describe_topics(["in"])
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            with clients.Producer(compression_type=codec, **common) as producer:
                producer.send("in", b"value" * 100).result(20)
        with clients.Producer(transactional_id="t", **common) as producer, producer.transaction() as transaction:
            transaction.send("in", b"value")
        for protocol in ("classic", "consumer"):
            reading = {"auto_offset_reset": "earliest", "group_protocol": protocol, "group_id": protocol}
            with clients.Consumer(**reading, **common) as consumer:
                consumer.subscribe(["in"])
                until = time.monotonic() + 30
                while not consumer.poll(1.0):
                    assert time.monotonic() < until
                consumer.commit()
        with clients.GroupTransactSession(
            topics=["in"], group_id="s", transactional_id="s", auto_offset_reset="earliest", **common
        ) as session:
            sent = False
            while not sent:
                assert time.monotonic() < until + 30
                with session.transaction() as transaction:
                    for record in transaction.poll(1.0):
                        transaction.send("out", record.value)
                        sent = True
        assert sum(len(batch) for batch in kcodec.read_topic("in", **common)) == 6
        print("scenario ended")
        """
    with ApacheKafka() as kafka:
        assert imported_on_threads(program, kafka.bootstrap_servers) == []


def test_threads_of_a_client_with_sasl_import_nothing() -> None:
    """PLAIN without TLS warns on the client's thread; an async token provider runs an event loop on another."""

    def answer(peer: Peer, request: Request) -> bytes | None:
        return welcome(request) if request.api_key == AUTHENTICATE else usual_with_sasl(peer, request)

    program = """
        import sys, kcodec.client
        sasl = {"bootstrap_servers": sys.argv[1], "security_protocol": "SASL_PLAINTEXT", "request_timeout_ms": 5000}

        async def token():
            return "token", 60.0

        plain = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "u", "sasl_plain_password": "p"}
        for mechanism in (plain, {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": token}):
            with kcodec.client.Admin(**sasl, **mechanism) as admin:
                admin.list_topics()
        print("scenario ended")
        """
    with Peer(answer) as peer:
        assert imported_on_threads(program, peer.address.replace("127.0.0.1", "localhost")) == []
        assert {request.api_key for request in peer.requests} >= {HANDSHAKE, AUTHENTICATE}
