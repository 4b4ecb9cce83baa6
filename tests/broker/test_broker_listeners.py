# SPDX-License-Identifier: Apache-2.0
"""Several listeners of the embedded broker: each has its security protocol, and clients stay on the one they chose."""

from __future__ import annotations

import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from kcodec.admin.security import ScramCredentialUpsertion, ScramMechanism
from kcodec.admin.values import ConfigResource, ConfigResourceType
from kcodec.broker import Broker, EmbeddedBrokerError
from kcodec.broker.server import Server
from kcodec.client import Admin, Consumer, Producer
from kcodec.errors import AuthenticationError, KcodecError
from kcodec.testing.certificates import Certificates

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found = Certificates()
    found.keep_in(tmp_path_factory.mktemp("certificates"))
    pair = found.broker()
    return {"ssl_certfile": pair.certificate, "ssl_keyfile": pair.key, "ssl_cafile": found.authority}


def secured(tls: dict[str, Any], protocols: tuple[str, ...] = PROTOCOLS, **options: Any) -> Broker:
    """Return a broker with a listener for each protocol, on free ports."""
    settings: dict[str, Any] = {"sasl_mechanisms": MECHANISMS, "users": {"alice": "alice-secret"}, **tls, **options}
    return Broker(listeners=dict.fromkeys(protocols, 0), **settings)


def test_clients_stay_on_the_listener_of_their_bootstrap_servers(tls: dict[str, Any]) -> None:
    """Metadata, FindCoordinator and DescribeCluster have the address of the listener with the client's connection."""
    with secured(tls) as broker:
        assert list(broker.listeners) == list(PROTOCOLS)
        assert len(set(broker.listeners.values())) == len(PROTOCOLS)
        assert broker.bootstrap_servers == broker.listeners["PLAINTEXT"]
        for number, protocol in enumerate(PROTOCOLS):
            options = broker.client_options(protocol=protocol)
            broker.wire_log.clear()
            with Producer(**options, transactional_id=protocol) as producer, producer.transaction() as txn:
                txn.send("t", protocol.encode())
            with Consumer(**options, group_id=protocol, auto_offset_reset="earliest") as consumer:
                consumer.subscribe(["t"])
                found: list[Any] = []
                while len(found) <= number:
                    found += consumer.poll(1)
            assert [one.value for one in found] == [one.encode() for one in PROTOCOLS[: number + 1]]
            with Admin(**options) as admin:
                nodes = admin.describe_cluster().brokers
            addresses = {f"{one.host}:{one.port}" for one in nodes}
            for entry in broker.wire_log.requests("Metadata"):
                addresses |= {f"{one.host}:{one.port}" for one in entry.response.brokers}
            for entry in broker.wire_log.requests("FindCoordinator"):
                addresses |= {f"{one.host}:{one.port}" for one in entry.response.coordinators}
            assert addresses == {broker.listeners[protocol]}


def test_only_listeners_with_sasl_need_a_login(tls: dict[str, Any]) -> None:
    with secured(tls) as broker:
        wrong = broker.client_options(protocol="SASL_PLAINTEXT") | {"sasl_plain_password": "wrong"}
        with pytest.raises(AuthenticationError), Admin(**wrong) as admin:
            admin.describe_cluster()
        login = {**broker.client_options(protocol="SASL_PLAINTEXT"), "bootstrap_servers": broker.bootstrap_servers}
        with pytest.raises(KcodecError, match=r"ILLEGAL_SASL_STATE|Sasl"), Admin(**login) as admin:
            admin.describe_cluster()


def test_a_user_is_added_on_the_listener_without_a_login(tls: dict[str, Any]) -> None:
    with secured(tls, ("PLAINTEXT", "SASL_SSL"), sasl_mechanisms=["SCRAM-SHA-512"], users={}) as broker:
        change = ScramCredentialUpsertion("carol", "carol-secret", ScramMechanism.SCRAM_SHA_512)
        with Admin(**broker.client_options()) as admin:
            admin.alter_user_scram_credentials([change])
        login: dict[str, Any] = {
            "bootstrap_servers": broker.listeners["SASL_SSL"],
            "security_protocol": "SASL_SSL",
            "ssl_cafile": str(tls["ssl_cafile"]),
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": "carol",
            "sasl_plain_password": "carol-secret",
        }
        with Admin(**login) as admin:
            assert len(admin.describe_cluster().brokers) == 1


def test_listeners_keep_their_ports_over_a_restart(tls: dict[str, Any]) -> None:
    with secured(tls) as broker:
        before = broker.listeners
        broker.restart()
        assert broker.listeners == before
        assert all(port != "0" for port in (address.rpartition(":")[2] for address in before.values()))


def test_a_port_in_use_closes_the_other_listeners(tls: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start takes another free port, as the first one may be in use then."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        broker = Broker(listeners={"PLAINTEXT": 0, "SSL": taken}, **tls)
        ports: list[int] = []
        really = Server.close

        def close(self: Server) -> None:
            ports.append(self.core.listeners[0].port)
            really(self)

        with monkeypatch.context() as patch, pytest.raises(OSError, match="address already in use"):
            patch.setattr(Server, "close", close)
            broker.start()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", ports[0]), 5)
    with socket.create_server(("127.0.0.1", ports[0])), broker, Admin(**broker.client_options(protocol="SSL")) as admin:
        assert broker.listeners["SSL"] == f"127.0.0.1:{taken}"
        assert len(admin.describe_cluster().brokers) == 1


def test_the_broker_describes_all_listeners(tls: dict[str, Any]) -> None:
    with secured(tls) as broker, Admin(**broker.client_options()) as admin:
        found = admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, "1")])
        values = {name: one.value for (configs,) in [list(found.values())] for name, one in configs.items()}
        expected = ",".join(f"{protocol}://{address}" for protocol, address in broker.listeners.items())
        assert values["advertised.listeners"] == values["listeners"] == expected


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"listeners": {"TLS": 0}},
            "listeners: expected one or more of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, got 'TLS'",
        ),
        ({"listeners": {"PLAINTEXT": 70_000}}, "the port of PLAINTEXT must be between 0 and 65535, got 70000"),
        ({"listeners": {"SSL": 0}}, "listeners: SSL requires ssl_certfile"),
        ({"listeners": {"SASL_PLAINTEXT": 0}}, "listeners: SASL_PLAINTEXT requires sasl_mechanisms"),
        ({"listeners": {"PLAINTEXT": 0}, "ssl_certfile": "a.pem"}, "ssl_certfile has no effect: listeners has no"),
        (
            {"listeners": {"PLAINTEXT": 0}, "sasl_mechanisms": ["PLAIN"], "users": {"a": "b"}},
            "sasl_mechanisms has no effect: listeners has no protocol with SASL",
        ),
        ({"listeners": {"PLAINTEXT": 0}, "port": 9092}, "port 9092 has no effect: the ports are in listeners"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Broker(**settings)


def test_listeners_of_a_wrong_type_are_refused() -> None:
    with pytest.raises(TypeError, match="listeners must be a dict of names and values"):
        Broker(listeners=["PLAINTEXT"])


def test_options_of_a_listener_that_does_not_exist_are_refused() -> None:
    with pytest.raises(EmbeddedBrokerError, match="no listener has the protocol 'SSL'"):
        Broker().client_options(protocol="SSL")


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        ({"sasl_mechanisms": ["PLAIN"]}, True),
        ({"sasl_mechanisms": ["SCRAM-SHA-512"]}, True),
        ({"sasl_mechanisms": ["PLAIN"], "listeners": {"PLAINTEXT": 0, "SASL_PLAINTEXT": 0}}, True),
        ({"sasl_mechanisms": ["SCRAM-SHA-512"], "listeners": {"PLAINTEXT": 0, "SASL_PLAINTEXT": 0}}, False),
        ({"sasl_mechanisms": ["SCRAM-SHA-512"], "listeners": {"SASL_PLAINTEXT": 0}}, True),
    ],
)
def test_mechanisms_without_a_user_are_refused(settings: dict[str, Any], is_refused: bool) -> None:
    """With SCRAM, a listener without a login is enough: an Admin can add users there."""
    if not is_refused:
        Broker(**settings)
        return
    with pytest.raises(ValueError, match="sasl_mechanisms require users: without users, no client can log in"):
        Broker(**settings)


def test_a_data_dir_without_credentials_needs_users(tmp_path: Path) -> None:
    """Only the start can know whether there are credentials in the metadata log."""
    settings: dict[str, Any] = {"data_dir": tmp_path, "sasl_mechanisms": ["SCRAM-SHA-512"]}
    with pytest.raises(ValueError, match="sasl_mechanisms require users"):
        Broker(**settings).start()
    with Broker(**settings, users={"alice": "alice-secret"}):
        pass
    with Broker(**settings):
        pass


@pytest.mark.parametrize(("host", "address"), [("0.0.0.0", "127.0.0.1"), ("::", "::1")])
def test_a_client_stays_on_the_address_that_it_has_connected_to(host: str, address: str) -> None:
    """A client on another machine cannot connect to 0.0.0.0."""
    with Broker(host=host) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        server = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        with Admin(bootstrap_servers=server) as admin:
            assert [(node.host, node.port) for node in admin.describe_cluster().brokers] == [(address, port)]
        with Producer(bootstrap_servers=server) as producer:
            producer.send("t", b"v").result(20)
        assert broker.end_offset("t") == 1
    with pytest.raises(ValueError, match="host must not be empty"):
        Broker(host="")


@pytest.mark.parametrize(("protocol", "words"), [("SSL", "requires TLS"), ("SASL_PLAINTEXT", "requires SASL")])
def test_a_listener_that_changes_its_protocol_is_hinted_at(tls: dict[str, Any], protocol: str, words: str) -> None:
    """A client that was connected before cannot continue. Its error says what to change."""
    with Broker() as broker:
        servers = broker.bootstrap_servers
        admin = Admin(bootstrap_servers=servers, default_api_timeout_ms=3000)
        assert admin.describe_cluster().brokers
    login: dict[str, Any] = {"sasl_mechanisms": MECHANISMS, "users": {"alice": "alice-secret"}}
    settings = tls if protocol == "SSL" else login
    with (
        admin,
        Broker(listeners={protocol: int(servers.rpartition(":")[2])}, **settings),
        pytest.raises(KcodecError, match=f"if this listener {words}, set security_protocol to"),
    ):
        admin.describe_cluster()


def test_connections_that_are_reset_count_for_the_hint(caplog: pytest.LogCaptureFixture) -> None:
    """A listener that requires TLS can also reset a connection, or not respond, before it ends one without an error."""
    caplog.set_level("INFO", logger="kcodec.client")
    with Broker() as broker:
        admin = Admin(**broker.client_options(), default_api_timeout_ms=3000)
        assert admin.describe_cluster().brokers
        port = int(broker.bootstrap_servers.rpartition(":")[2])
    with admin, socket.create_server(("127.0.0.1", port)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            for number in range(3):
                connection, _ = listener.accept()
                connection.settimeout(10)
                connection.recv(1 << 16)
                if number < 2:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 16):  # data that was not read would also reset the connection
                        pass
                connection.close()

        serving = threading.Thread(target=serve)
        serving.start()
        with pytest.raises(KcodecError):
            admin.describe_cluster()
        serving.join(10)
        assert not serving.is_alive()
    ends = [one.getMessage() for one in caplog.records if "the connection ended during" in one.getMessage()]
    assert "if this listener requires TLS" not in ends[0]
    assert any("if this listener requires TLS" in one for one in ends), ends


def test_a_broker_that_restarts_is_no_reason_for_a_hint(caplog: pytest.LogCaptureFixture) -> None:
    """For a client that was connected before, a connection that ends without a response has other causes."""
    caplog.set_level("INFO", logger="kcodec.client")
    with Broker() as broker, Admin(**broker.client_options(), default_api_timeout_ms=10_000) as admin:
        assert admin.describe_cluster().brokers
        for _ in range(3):
            broker.faults.add("ApiVersions", count=1, close="before")
            broker.restart()
            assert admin.describe_cluster().brokers
    assert "the connection ended during the negotiation" in caplog.text
    assert "if this listener" not in caplog.text
