# SPDX-License-Identifier: Apache-2.0
"""The authorizer of the embedded broker: decisions, principals, settings, and what clients notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from broker_acls import SETTINGS, Subject, cases
from broker_core import CoreClient
from hypothesis import given
from hypothesis import strategies as st

from kcodec.admin.security import AclBinding, AclFilter, AclOperation, AclPermission, PatternType, ResourceType
from kcodec.broker import Broker, BrokerSettings
from kcodec.broker.api import ConnectionInfo, Later
from kcodec.broker.authorizer.acls import ANY_PRINCIPAL, Acl, AclTable, Operation, Permission
from kcodec.broker.authorizer.acls import PatternType as Pattern
from kcodec.broker.authorizer.acls import ResourceType as Kind
from kcodec.broker.authorizer.authorizer import Authorizer
from kcodec.broker.authorizer.checked_request import _then
from kcodec.broker.authorizer.checks import CHECKS
from kcodec.broker.listener_tls import distinguished_name
from kcodec.broker.login import Authenticator, Login
from kcodec.client import Admin, Consumer, Producer
from kcodec.errors import AuthorizationError
from kcodec.protocol import messages
from kcodec.testing.certificates import Certificates

USERS = {"admin": "admin-secret", "alice": "alice-secret", "none": "none-secret"}
SASL: dict[str, Any] = {"sasl_mechanisms": ["PLAIN"], "users": USERS, "authorizer": True, "super_users": ["admin"]}


class Client(NamedTuple):
    principal: str = "User:alice"
    address: str = "10.0.0.1"


def table(*acls: Acl) -> AclTable:
    found = AclTable()
    for number, acl in enumerate(acls):
        found.add(messages.AccessControlEntryRecord(id=UUID(int=number), **acl._asdict()))
    return found


# Decisions

NAMES = ("a", "ab", "abc", "b", "*")
PRINCIPALS = ("User:alice", "User:bob", ANY_PRINCIPAL)
HOSTS = ("*", "10.0.0.1", "10.0.0.2", "10.0.0.0/8", "11.0.0.0/8")
OPERATIONS = (*map(Operation, range(2, 12)),)
ACLS = st.builds(
    Acl,
    st.just(Kind.TOPIC) | st.just(Kind.GROUP),
    st.sampled_from(NAMES),
    st.sampled_from((Pattern.LITERAL, Pattern.PREFIXED)),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS),
    st.sampled_from((Permission.DENY, Permission.ALLOW)),
)


def expected(acls: set[Acl], client: Client, operation: Operation, name: str, *, without_acl: bool) -> bool:
    """The decision about a topic, as Kafka's documentation describes it."""
    implied = {Operation.DESCRIBE: {"READ", "WRITE", "DELETE", "ALTER"}, Operation.DESCRIBE_CONFIGS: {"ALTER_CONFIGS"}}
    on_topic = []
    for acl in acls:
        is_named = acl.resource_name in (name, "*")
        if acl.pattern_type == Pattern.PREFIXED:
            is_named = name.startswith(acl.resource_name)
        if acl.resource_type == Kind.TOPIC and is_named:
            on_topic.append(acl)
    if not on_topic:
        return without_acl
    of_client = [
        acl
        for acl in on_topic
        if acl.principal in (client.principal, "User:*")
        and (acl.host in ("*", client.address) or (acl.host == "10.0.0.0/8" and client.address.startswith("10.")))
    ]
    for acl in of_client:
        if acl.permission_type == Permission.DENY and acl.operation in (operation, Operation.ALL):
            return False
    allowed = {Operation(acl.operation).name for acl in of_client if acl.permission_type == Permission.ALLOW}
    return bool(allowed & {"ALL", operation.name, *implied.get(operation, set())})


@given(
    st.sets(ACLS, max_size=6), st.sampled_from(OPERATIONS[1:]), st.sampled_from(("a", "ab", "abcd", "c")), st.booleans()
)
def test_decisions_agree_with_a_plain_reference(
    acls: set[Acl], operation: Operation, name: str, without_acl: bool
) -> None:
    authorizer = Authorizer(table(*acls), (), allows_without_acl=without_acl)
    for client in (Client(), Client("User:bob", "10.0.0.2"), Client("User:carol", "12.0.0.1")):
        found = authorizer.allows(client, operation, Kind.TOPIC, name)
        assert found == expected(acls, client, operation, name, without_acl=without_acl)


@given(st.lists(ACLS, unique=True, max_size=6), st.data())
def test_removed_acls_have_no_effect(acls: list[Acl], data: st.DataObject) -> None:
    found = table(*acls)
    kept = data.draw(st.sets(st.sampled_from(acls))) if acls else set()
    for number, acl in enumerate(acls):
        if acl not in kept:
            found.remove(messages.RemoveAccessControlEntryRecord(id=UUID(int=number)))
    assert set(found.by_id.values()) == kept
    assert all((acl in found) == (acl in kept) for acl in acls)
    assert {acl for name in NAMES for acl in found.of(Kind.TOPIC, name)} <= kept


def write_acl(name: str, permission: Permission = Permission.ALLOW, *, prefix: bool = False) -> Acl:
    pattern = Pattern.PREFIXED if prefix else Pattern.LITERAL
    return Acl(Kind.TOPIC, name, pattern, "User:alice", "*", Operation.WRITE, permission)


@pytest.mark.parametrize(
    ("acls", "is_allowed"),
    [
        ([], False),
        ([write_acl("a")], True),
        ([write_acl("a", prefix=True)], True),
        ([write_acl("*")], True),
        ([write_acl("*"), write_acl("a", Permission.DENY, prefix=True)], True),
        ([write_acl("a"), write_acl("*", Permission.DENY)], False),
        ([write_acl("a"), write_acl("a", Permission.DENY)], False),
        ([write_acl("a"), write_acl("b", Permission.DENY)], True),
        ([write_acl("ab"), write_acl("a", Permission.DENY, prefix=True)], False),
        ([write_acl("ab", prefix=True), write_acl("ab", Permission.DENY)], True),
        ([write_acl("ab", prefix=True), write_acl("abc", Permission.DENY, prefix=True)], True),
        ([write_acl("ab", prefix=True), write_acl("ab", Permission.DENY, prefix=True)], False),
        ([write_acl("a")._replace(principal="User:bob")], False),
        ([write_acl("a")._replace(operation=Operation.READ)], False),
        ([write_acl("a")._replace(operation=Operation.ALL)], True),
        ([write_acl("a")._replace(resource_type=Kind.GROUP)], False),
    ],
)
def test_an_operation_on_any_topic(acls: list[Acl], is_allowed: bool) -> None:
    authorizer = Authorizer(table(*acls), ["User:admin"], allows_without_acl=False)
    assert authorizer.allows_any(Client(), Operation.WRITE, Kind.TOPIC) is is_allowed
    assert authorizer.allows_any(Client("User:admin"), Operation.WRITE, Kind.TOPIC)


# Principals


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ([[("commonName", "alice")]], "CN=alice"),
        (
            [
                [("countryName", "DE")],
                [("stateOrProvinceName", "BE")],
                [("localityName", "Berlin")],
                [("organizationName", "Example, Inc.")],
                [("organizationalUnitName", "Data"), ("userId", "7")],
                [("commonName", 'a+b"c;<d>\\')],
            ],
            'CN=a\\+b\\"c\\;\\<d\\>\\\\,OU=Data+UID=7,O=Example\\, Inc.,L=Berlin,ST=BE,C=DE',
        ),
        ([[("commonName", "#hash ")]], "CN=\\#hash\\ "),
        ([[("commonName", "a=b")], [("emailAddress", "a@b.c")]], "1.2.840.113549.1.9.1=#16056140622e63,CN=a\\=b"),
        ([[("commonName", "x")], [("serialNumber", "12")]], "2.5.4.5=#13023132,CN=x"),
        ([[("commonName", " space")]], "CN=\\ space"),
    ],
)
def test_the_name_of_a_certificate_is_javas(subject: Any, name: str) -> None:
    """The names are those of javax.security.auth.x500.X500Principal.getName()."""
    assert distinguished_name({"subject": subject}) == name


@pytest.mark.parametrize(
    ("host", "address"),
    [("/127.0.0.1", "127.0.0.1"), ("/::1", "0:0:0:0:0:0:0:1"), ("/fe80::1:a0%eth0", "fe80:0:0:0:0:0:1:a0")],
)
def test_addresses_are_written_as_in_java(host: str, address: str) -> None:
    assert ConnectionInfo(host=host).address == address


def test_principals_come_from_login_or_certificate() -> None:
    assert ConnectionInfo().principal == "User:ANONYMOUS"
    assert ConnectionInfo(subject="CN=alice").principal == "User:CN=alice"
    login = Login(Authenticator((), {}, lambda *_: None, None, 0))  # type: ignore[arg-type]
    login.user = "bob"
    assert ConnectionInfo(login=login, subject="CN=alice").principal == "User:bob"


def test_a_client_certificate_gives_the_principal(tmp_path: Path) -> None:
    certificates = Certificates()
    certificates.keep_in(tmp_path)
    pair, client = certificates.broker(), certificates.client("alice")
    settings: dict[str, Any] = {
        "ssl_certfile": pair.certificate,
        "ssl_keyfile": pair.key,
        "ssl_cafile": certificates.authority,
        "ssl_client_auth": "requested",
        "authorizer": True,
    }
    with Broker(**settings, super_users=["User:CN=alice"]) as broker:
        broker.create_topic("t", 1)
        options = broker.client_options()
        with Producer(**options, ssl_certfile=str(client.certificate), ssl_keyfile=str(client.key)) as producer:
            producer.send("t", b"v").result(20)
        with Producer(**options) as producer, pytest.raises(AuthorizationError):
            producer.send("t", b"v").result(20)


# The checks


def test_every_api_has_a_check_or_a_reason() -> None:
    served = {api.name for api in CoreClient().core.apis.values()}
    assert served == CHECKS.keys()
    assert all(entry.strip() if isinstance(entry, str) else entry for entry in CHECKS.values())


def test_an_api_without_an_entry_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(CHECKS, "Heartbeat")
    CoreClient()
    with pytest.raises(KeyError, match="Heartbeat"):
        CoreClient(authorizer=True)


def test_without_an_authorizer_handlers_are_called_directly() -> None:
    plain, checked = CoreClient(), CoreClient(authorizer=True)
    for key, api in plain.core.apis.items():
        assert "with_checks" not in getattr(api.handle, "__qualname__", "")
        assert "_checked" not in getattr(api.handle, "__qualname__", "")
        wrapped = getattr(checked.core.apis[key].handle, "__qualname__", "")
        assert wrapped.startswith("_checked") == (not isinstance(CHECKS[api.name], str))


def has_refusal(shown: Any) -> bool:
    if isinstance(shown, list):
        return any(map(has_refusal, shown))
    return isinstance(shown, str) and shown.endswith("AUTHORIZATION_FAILED")


def test_every_api_refuses_a_client_without_permissions() -> None:
    """What Kafka responds in detail is compared in test_acls_against_kafka.py."""
    with Broker(**SASL, **SETTINGS) as broker:
        found = dict(Subject(broker.bootstrap_servers, ["none"]).observe("none"))
    refused = {name.split()[0] for name, shown in found.items() if has_refusal(shown)}
    hidden = {"ListGroups", "ListTransactions", "DescribeCluster"}
    assert refused | hidden == {name.split()[0] for name in cases("none", {})}
    assert found["ListGroups"][-1] == ["groups", []]
    assert found["ListTransactions"][-1] == ["transaction_states", []]
    assert ["cluster_authorized_operations", 0] in found["DescribeCluster"]


def test_a_change_of_a_later_response_is_applied() -> None:
    ended: list[str] = []
    inner = Later(lambda: ended.append("end"))
    outer = _then(inner, lambda response: response.append(2))
    outer.on_disconnect()
    found: list[Any] = []
    outer.when_done(found.append)
    inner.respond([1])
    assert (ended, found) == (["end"], [[1, 2]])


# Clients


def acl(operation: AclOperation, name: str = "t", kind: ResourceType = ResourceType.TOPIC, **more: Any) -> AclBinding:
    return AclBinding(kind, name, "User:alice", operation, **more)


def test_permissions_take_effect_at_once() -> None:
    with Broker(**SASL) as broker, Admin(**broker.client_options("admin")) as admin:
        broker.create_topic("t", 1)
        options = broker.client_options("alice")
        admin.create_acls([acl(AclOperation.WRITE, "other")])  # without any WRITE, the producer gets no producer id
        with Producer(**options) as producer:
            with pytest.raises(AuthorizationError, match="t"):
                producer.send("t", b"1").result(20)
            admin.create_acls([acl(AclOperation.WRITE)])
            producer.send("t", b"2").result(20)
            admin.create_acls([acl(AclOperation.WRITE, permission=AclPermission.DENY)])
            with pytest.raises(AuthorizationError):
                producer.send("t", b"3").result(20)
            admin.delete_acls([AclFilter(permission=AclPermission.DENY)])
            producer.send("t", b"4").result(20)
        with Consumer(**options, group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(AuthorizationError):
                consumer.poll(20)
            admin.create_acls([acl(AclOperation.READ), acl(AclOperation.READ, "g", ResourceType.GROUP)])
        with Consumer(**options, group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["t"])
            values: list[bytes | None] = []
            while len(values) < 2:
                values += [record.value for record in consumer.poll(20)]
            assert values == [b"2", b"4"]


def test_acls_survive_a_restart_in_kafkas_records(tmp_path: Path) -> None:
    acls = [
        acl(AclOperation.READ),
        acl(AclOperation.ALL, "pre", pattern_type=PatternType.PREFIXED, permission=AclPermission.DENY, host="10.0.0.1"),
    ]
    with Broker(**SASL, data_dir=tmp_path) as broker:
        with Admin(**broker.client_options("admin")) as admin:
            admin.create_acls([*acls, acl(AclOperation.WRITE)])
            admin.create_acls(acls)
            admin.delete_acls([AclFilter(operation=AclOperation.WRITE)])
        broker.crash()
        broker.start()
        with Admin(**broker.client_options("admin")) as admin:
            assert sorted(admin.describe_acls(), key=str) == sorted(acls, key=str)
    with Broker(data_dir=tmp_path) as broker, Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send("t", b"v").result(20)  # without the authorizer, the ACLs have no effect
        log = broker.core.topics._log
        values = [record.value or b"" for batch in log.batches_from(0) for record in batch.records()]
    written = [value for value in values if value[1] in (18, 19)]
    assert [value[:3] for value in written] == [b"\x01\x12\x00"] * 3 + [b"\x01\x13\x00"]
    record = messages.AccessControlEntryRecord.decode(written[1], 0, 3)
    assert record == messages.AccessControlEntryRecord(
        id=record.id,
        resource_type=2,
        resource_name="pre",
        pattern_type=4,
        principal="User:alice",
        host="10.0.0.1",
        operation=2,
        permission_type=2,
    )


def test_everything_is_allowed_without_acls_if_so_configured() -> None:
    with Broker(**SASL, allow_everyone_if_no_acl_found=True) as broker:
        options = broker.client_options("alice")
        with Producer(**options) as producer, Admin(**broker.client_options("admin")) as admin:
            producer.send("t", b"v").result(20)
            admin.create_acls([AclBinding(ResourceType.TOPIC, "t", "User:bob", AclOperation.READ)])
            with pytest.raises(AuthorizationError):
                producer.send("t", b"v").result(20)


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"authorizer": 1}, "authorizer must be True or False, got 1"),
        ({"super_users": ["admin"]}, "super_users has no effect without an authorizer: set authorizer=True"),
        (
            {"allow_everyone_if_no_acl_found": True},
            "allow_everyone_if_no_acl_found has no effect without an authorizer: set authorizer=True",
        ),
        ({"authorizer": True, "super_users": "admin"}, "super_users must be a list of names, got 'admin'"),
        (
            {"authorizer": True, "super_users": ["Group:x"]},
            "super_users: expected the name of a user or a principal User:NAME, got 'Group:x'",
        ),
        (
            {"authorizer": True, "super_users": ["User:"]},
            "super_users: expected the name of a user or a principal User:NAME, got 'User:'",
        ),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        BrokerSettings(**settings)
    assert str(caught.value) == message
