# SPDX-License-Identifier: Apache-2.0
"""Logins to the embedded broker compared with logins to Apache Kafka, and by the clients of Apache Kafka.

    python tests/prove/prove_broker_security.py [--results FOLDER]

The same requests go to both brokers on raw connections: before, during and after a login, with wrong passwords, tokens
and mechanisms, and to change SCRAM credentials. The responses must be equal, and both must close the same connections.
Then Kafka's Java producer and consumer log in to the embedded broker with every mechanism over TLS. The exit status is
0 if everything is equal. Written to broker_security.txt in tests/results (or FOLDER).
"""

from __future__ import annotations

import argparse
import datetime
import socket
import ssl
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from java_clients import JavaProducer, consume, java_security

from kcodec.broker import Broker
from kcodec.protocol import messages
from kcodec.protocol.frame import encode_request
from kcodec.security.scram import Scram
from kcodec.security.secret import Secret
from kcodec.testing.certificates import Certificates
from kcodec.testing.kafka import ApacheKafka

ROOT = Path(__file__).resolve().parent.parent.parent
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
USERS = {"admin": "admin-secret", "alice": "alice-secret", "bob": "bob-secret"}

VERSIONS = messages.ApiVersionsRequest()
METADATA = messages.MetadataRequest(topics=[])
DESCRIBE = messages.DescribeUserScramCredentialsRequest


class Raw:
    """A connection with TLS that sends requests in any order."""

    def __init__(self, address: str, authority: Path) -> None:
        host, _, port = address.rpartition(":")
        context = ssl.create_default_context(cafile=str(authority))
        self._socket = context.wrap_socket(socket.create_connection((host, int(port)), 20), server_hostname=host)

    def ask(self, request: Any, version: int) -> Any:
        """The response as comparable text, or "closed"."""
        try:
            self._socket.sendall(encode_request(request, version, 1, "raw"))
        except OSError:
            return "closed"
        frame = self._frame()
        if frame is None:
            return "closed"
        start = 5 if request.is_flexible(version) and request.api_key != VERSIONS.api_key else 4
        return type(request).response.decode(frame, version, start)

    def token(self, token: bytes) -> bytes | str:
        self._socket.sendall(len(token).to_bytes(4, "big") + token)
        frame = self._frame()
        return "closed" if frame is None else frame

    def _frame(self) -> bytes | None:
        size = self._read(4)
        return None if size is None else self._read(int.from_bytes(size, "big"))

    def _read(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            try:
                more = self._socket.recv(count - len(data))
            except OSError:
                return None
            if not more:
                return None
            data += more
        return data


def hello(mechanism: str) -> messages.SaslHandshakeRequest:
    return messages.SaslHandshakeRequest(mechanism=mechanism)


def token(text: bytes) -> messages.SaslAuthenticateRequest:
    return messages.SaslAuthenticateRequest(auth_bytes=text)


def shown(response: Any) -> str:
    """A response without what differs between any two brokers."""
    if isinstance(response, messages.ApiVersionsResponse | messages.MetadataResponse):
        return f"{type(response).__name__} {getattr(response, 'error_code', 0)}"
    if isinstance(response, messages.SaslHandshakeResponse):
        return f"{response.error_code} {sorted(response.mechanisms)}"
    if isinstance(response, messages.SaslAuthenticateResponse):
        return f"{response.error_code} {response.error_message}"
    if isinstance(response, messages.DescribeUserScramCredentialsResponse):
        for one in response.results:  # Kafka's order is that of a hash map
            one.credential_infos.sort(key=lambda info: info.mechanism)
    if hasattr(response, "results"):
        return repr(sorted(map(repr, response.results)))
    return repr(response)


def plain_cases() -> dict[str, list[tuple[Any, int]]]:
    """Name -> requests of one connection, with their versions."""
    good, wrong = token(b"\0alice\0alice-secret"), token(b"\0alice\0wrong")
    plain = (hello("PLAIN"), 1)
    return {
        "a request before the handshake": [(METADATA, 1)],
        "a token before the handshake": [(good, 1)],
        "a request before the token": [plain, (METADATA, 1)],
        "ApiVersions twice": [(VERSIONS, 0), (VERSIONS, 0)],
        "ApiVersions after the handshake": [plain, (VERSIONS, 0)],
        "a mechanism that does not exist": [(hello("GSSAPI"), 1), plain],
        "two handshakes": [plain, plain],
        "a login, and requests": [(VERSIONS, 0), plain, (good, 1), (METADATA, 1), (VERSIONS, 0)],
        "a token after the login": [plain, (good, 1), (good, 1), (METADATA, 1)],
        "a handshake at once after the login": [plain, (good, 2), plain, (good, 2), plain, (METADATA, 1)],
        "another user the second time": [plain, (good, 2), plain, (token(b"\0bob\0bob-secret"), 2)],
        "a wrong password": [plain, (wrong, 1), (METADATA, 1)],
        "a user that does not exist": [plain, (token(b"\0mallory\0x"), 2)],
        "no password": [plain, (token(b"\0alice\0"), 2)],
        "no name": [plain, (token(b"\0\0x"), 2)],
        "two parts": [plain, (token(b"\0alice"), 2)],
        "four parts": [plain, (token(b"\0alice\0x\0y"), 2)],
        "another identity": [plain, (token(b"bob\0alice\0alice-secret"), 2)],
        "the same identity": [plain, (token(b"alice\0alice\0alice-secret"), 2), (METADATA, 1)],
        "a token that is not UTF-8": [plain, (token(b"\0\xff\0\xfe"), 2)],
        "SCRAM with a user that does not exist": [(hello("SCRAM-SHA-256"), 1), (token(b"n,,n=mallory,r=abc"), 2)],
        "SCRAM with nonsense": [(hello("SCRAM-SHA-512"), 1), (token(b"nonsense"), 2)],
        "SCRAM with another identity": [(hello("SCRAM-SHA-256"), 1), (token(b"n,a=bob,n=alice,r=abc"), 2)],
        "SCRAM with a wrong last message": [
            (hello("SCRAM-SHA-256"), 1),
            (token(b"n,,n=alice,r=abc"), 2),
            (token(b"c=biws,r=abc,p=AAAA"), 2),
        ],
    }


def change(**fields: Any) -> messages.AlterUserScramCredentialsRequest:
    values: dict[str, Any] = {"name": "new", "mechanism": 1, "iterations": 4096, "salt": b"salt"}
    values["salted_password"] = bytes(32)
    one = messages.ScramCredentialUpsertion(**{**values, **fields})
    return messages.AlterUserScramCredentialsRequest(upsertions=[one])


def deletion(*pairs: tuple[str, int]) -> messages.AlterUserScramCredentialsRequest:
    found = [messages.ScramCredentialDeletion(name=name, mechanism=mechanism) for name, mechanism in pairs]
    return messages.AlterUserScramCredentialsRequest(deletions=found)


def described(*names: str) -> Any:
    return DESCRIBE(users=[messages.ScramUserName(name=name) for name in names])


CREDENTIALS: dict[str, Any] = {
    "few iterations": change(iterations=4095),
    "many iterations": change(iterations=16_385),
    "no name": change(name=""),
    "an unknown mechanism": change(mechanism=3),
    "a new user": change(),
    "the new user": described("new"),
    "a user that does not exist": described("nobody"),
    "a user twice": described("new", "new"),
    "all users": DESCRIBE(users=None),
    "deletion of what does not exist": deletion(("nobody", 1)),
    "deletion twice": deletion(("new", 1), ("new", 1)),
    "two users, one of them wrong": deletion(("new", 1), ("nobody", 2)),
    "the user after it": described("new"),
}


def scram(raw: Raw, mechanism: str, password: str, *, version: int) -> list[Any]:
    """Log in by SCRAM, and request metadata."""
    exchange = Scram(mechanism, "alice", Secret(password)).exchange("a" * 24)
    found = [shown(raw.ask(hello(mechanism), version))]
    said = next(exchange)
    for _ in range(2):
        if version == 0:
            reply: Any = raw.token(said)
            found.append(reply if isinstance(reply, str) else "token")
        else:
            response = raw.ask(token(said), 2)
            reply = getattr(response, "auth_bytes", b"")
            found.append(shown(response) if isinstance(response, str) or response.error_code else "token")
        if found[-1] != "token":
            return found
        try:
            said = exchange.send(bytes(reply))
        except StopIteration:
            break
    return [*found, shown(raw.ask(METADATA, 1))]


def observed(address: str, authority: Path) -> dict[str, list[Any]]:
    """What a broker does in every case."""
    found: dict[str, list[Any]] = {}
    for name, requests in plain_cases().items():
        raw = Raw(address, authority)
        found[name] = [shown(raw.ask(request, version)) for request, version in requests]
    for mechanism in MECHANISMS[1:]:
        for password in ("alice-secret", "wrong"):
            for version in (0, 1):
                name = f"{mechanism}, handshake version {version}, password {password!r}"
                found[name] = scram(Raw(address, authority), mechanism, password, version=version)
    raw = Raw(address, authority)
    raw.ask(hello("PLAIN"), 1)
    raw.ask(token(b"\0admin\0admin-secret"), 1)
    for name, request in CREDENTIALS.items():
        found[f"credentials: {name}"] = [shown(raw.ask(request, 0))]
    return found


def java_logs_in(broker: Broker) -> list[str]:
    lines = []
    for mechanism in MECHANISMS:
        topic = broker.create_topic(partitions=1)
        security = java_security(broker, "alice", mechanism)  # type: ignore[arg-type]
        with JavaProducer(broker.bootstrap_servers, **{"transactional.id": "a", **security}) as producer:
            producer.call("init")
            producer.call("begin")
            producer.send([(topic, 0, b"key", b"value")])
            producer.call("commit")
        count = len(consume(broker.bootstrap_servers, topic, properties=security))
        lines.append(f"Java's producer and consumer, SASL_SSL, {mechanism}: {count} record of 1")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "tests" / "results")
    arguments = parser.parse_args()
    lines, failed = [f"tests/prove/prove_broker_security.py, {datetime.date.today()}", ""], 0
    certificates = Certificates()
    with tempfile.TemporaryDirectory() as folder:
        certificates.keep_in(Path(folder))
        pair = certificates.broker()
        files: dict[str, Any] = {
            "ssl_certfile": pair.certificate,
            "ssl_keyfile": pair.key,
            "ssl_cafile": certificates.authority,
        }
        with (
            ApacheKafka(tls=True, sasl=MECHANISMS, users=USERS) as kafka,
            Broker(sasl_mechanisms=MECHANISMS, users=USERS, **files) as broker,
        ):
            options = kafka.client_options("alice")
            theirs = observed(options["bootstrap_servers"], Path(options["ssl_cafile"]))
            ours = observed(broker.bootstrap_servers, certificates.authority)
            for name, expected in theirs.items():
                is_equal = ours[name] == expected
                failed += not is_equal
                lines.append(f"{'equal    ' if is_equal else 'DIFFERENT'}  {name}")
                if not is_equal:
                    lines += [f"    Kafka:  {expected}", f"    kcodec: {ours[name]}"]
        with Broker(sasl_mechanisms=MECHANISMS, users=USERS, **files) as broker:
            lines += ["", *java_logs_in(broker)]
            failed += sum(not line.endswith("1 record of 1") for line in lines[-len(MECHANISMS) :])
    lines.append(f"\n{len(theirs)} cases, {failed} failed")
    text = "\n".join(lines) + "\n"
    print(text)
    (arguments.results / "broker_security.txt").write_text(text, encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
