# SPDX-License-Identifier: Apache-2.0
"""Kafka's own clients for tests, in one long-lived Java (tests/java/JavaClients.java) started at the first call.

    consume(kafka.bootstrap_servers, topic)                       # all records of a read_committed consumer
    with JavaProducer(servers, **{"transactional.id": "a"}) as producer:
        producer.call("init")                                     # or begin, commit, abort, flush
        producer.send([(topic, 0, b"key", b"value")])             # their offsets
    move_leader(servers, topic, 0, [2, 3, 1])                     # in an orderly way
    security = java_security(kafka, "alice", "PLAIN")             # properties to log in with

A Java exception becomes a JavaError with Java's class name. `properties` are those of Kafka's clients.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import itertools
import json
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, NamedTuple

from java_judge import JVM_OPTIONS, class_path, compile_judge, java_and_jars

from kcodec.testing.kafka import ApacheKafka

MAIN = "kcodec.clients.JavaClients"
TIMEOUT_SECONDS = 120.0
# Short enough that a broken cluster is an error within the limit above.
CLIENT_PROPERTIES = {"default.api.timeout.ms": "30000", "request.timeout.ms": "10000"}


class JavaError(RuntimeError):
    """An exception of Kafka's client. .name is its class, such as ProducerFencedException."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class ConsumedRecord(NamedTuple):
    """A record as the Java consumer delivered it; the timestamp in ms."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class PartitionDigest(NamedTuple):
    """How many records a partition has, and the SHA-256 of their keys and values, each after its int32 length."""

    topic: str
    partition: int
    count: int  # type: ignore[assignment]  # in place of tuple.count
    sha256: str


class JavaProgram:
    """One Java process with Kafka's clients. Calls from several threads run one after the other."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[bytes] | None = None
        self._lock = threading.Lock()

    def ask(self, command: str, **arguments: object) -> dict[str, Any]:
        """Return the result of one command. Raise JavaError, or RuntimeError if the program ends or the time is up."""
        with self._lock:
            process = self._process or self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            watchdog = threading.Timer(TIMEOUT_SECONDS, process.kill)
            watchdog.start()
            try:
                process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = ""
            finally:
                watchdog.cancel()
            if not line:
                raise RuntimeError(self._obituary())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise JavaError(answer["error"], answer["message"])
        return answer

    def close(self) -> None:
        """End the program."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self) -> subprocess.Popen[str]:
        java, libs = java_and_jars()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the program runs)
        command = [str(java), *JVM_OPTIONS, "-cp", f"{compile_judge()}:{class_path(libs)}", MAIN]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._log, text=True)
        return self._process

    def _obituary(self) -> str:
        assert self._process is not None
        assert self._log is not None
        code = self._process.wait()
        self._process = None
        self._log.seek(0)
        return f"the Java clients ended with code {code} (-9: killed after {TIMEOUT_SECONDS} s):\n{self._log.read()!r}"


PROGRAM = JavaProgram()
atexit.register(PROGRAM.close)


def consume(
    bootstrap_servers: str,
    topics: str | Iterable[str],
    isolation_level: str = "read_committed",
    *,
    timeout: float = 60.0,
    properties: Mapping[str, str] | None = None,
) -> list[ConsumedRecord]:
    """Return all records of the topics, in the order of each partition, up to the current end; timeout in seconds."""
    answer = _consume(bootstrap_servers, topics, isolation_level, timeout, properties, digest=False)
    return [
        ConsumedRecord(
            *(topic, partition, offset, timestamp, _bytes(key), _bytes(value)),
            tuple((name, _bytes(content)) for name, content in headers),
        )
        for topic, partition, offset, timestamp, key, value, headers in answer["records"]
    ]


def digests(
    bootstrap_servers: str,
    topics: str | Iterable[str],
    isolation_level: str = "read_committed",
    *,
    timeout: float = 60.0,
    properties: Mapping[str, str] | None = None,
) -> list[PartitionDigest]:
    """Return counts and digests instead of the records, if there are many of them."""
    answer = _consume(bootstrap_servers, topics, isolation_level, timeout, properties, digest=True)
    return sorted(PartitionDigest(*row) for row in answer["digests"])


def end_offsets(
    bootstrap_servers: str,
    topics: str | Iterable[str],
    isolation_level: str = "read_committed",
    *,
    properties: Mapping[str, str] | None = None,
) -> dict[tuple[str, int], int]:
    """(topic, partition) -> the end for a consumer: the last stable offset under read_committed."""
    answer = _consume(bootstrap_servers, topics, isolation_level, 60.0, properties, digest=True)
    return {(topic, partition): end for topic, partition, end in answer["ends"]}


def _consume(
    servers: str,
    topics: str | Iterable[str],
    isolation_level: str,
    timeout: float,
    properties: Mapping[str, str] | None,
    *,
    digest: bool,
) -> dict[str, Any]:
    settings = {"isolation.level": isolation_level, "enable.auto.commit": "false", "auto.offset.reset": "earliest"}
    return PROGRAM.ask(
        "consume",
        properties=_properties(servers, {**settings, **(properties or {})}),
        topics=[topics] if isinstance(topics, str) else list(topics),
        digest=digest,
        timeout_ms=int(timeout * 1000),
    )


class JavaProducer:
    """A KafkaProducer; `properties` in addition to its defaults, as **{"transactional.id": "a"}."""

    _numbers = itertools.count()

    def __init__(self, bootstrap_servers: str, **properties: str) -> None:
        self._name = f"producer-{next(self._numbers)}"
        PROGRAM.ask("producer", name=self._name, properties=_properties(bootstrap_servers, properties, consumer=False))

    def __enter__(self) -> JavaProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.call("close")

    def call(self, method: str) -> None:
        """One of init, begin, commit, abort, flush, close. Raises JavaError."""
        PROGRAM.ask("call", name=self._name, method=method)

    def send(self, records: Sequence[tuple[str, int | None, bytes | None, bytes | None]]) -> list[int]:
        """Send (topic, partition, key, value) records and return their offsets. Raise JavaError."""
        rows = [(topic, partition, _base64(key), _base64(value)) for topic, partition, key, value in records]
        offsets: list[int] = PROGRAM.ask("send", name=self._name, records=rows)["offsets"]
        return offsets

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """sendOffsetsToTransaction with nothing but the group's name. Raises JavaError."""
        rows = [(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        PROGRAM.ask("send_offsets", name=self._name, group=group, offsets=rows)


def move_leader(bootstrap_servers: str, topic: str, partition: int, replicas: Sequence[int]) -> None:
    """Set the order of a partition's replicas and elect the first as leader, which must be in sync."""
    properties = _properties(bootstrap_servers, {})
    PROGRAM.ask("move_leader", properties=properties, topic=topic, partition=partition, replicas=list(replicas))


def cluster_nodes(bootstrap_servers: str, **properties: str) -> list[int]:
    """Return the ids of the cluster's nodes, as a client with these properties sees them."""
    nodes: list[int] = PROGRAM.ask("cluster", properties=_properties(bootstrap_servers, properties))["nodes"]
    return nodes


def java_security(kafka: ApacheKafka, user: str = "alice", mechanism: str | None = None) -> dict[str, str]:
    """The properties with which Kafka's clients log in to this Kafka as this user."""
    options = kafka.client_options(user, mechanism)
    found = {"security.protocol": options["security_protocol"]}
    if "ssl_cafile" in options:
        found.update({"ssl.truststore.type": "PEM", "ssl.truststore.location": options["ssl_cafile"]})
    mechanism = options.get("sasl_mechanism")
    if mechanism is None:
        return found
    package = "org.apache.kafka.common.security"
    if mechanism == "OAUTHBEARER":
        module = f'{package}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="{user}";'
    else:
        kind = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        module = f'{package}.{kind} required username="{user}" password="{options["sasl_plain_password"]}";'
    return {**found, "sasl.mechanism": mechanism, "sasl.jaas.config": module}


def _properties(servers: str, properties: Mapping[str, str], *, consumer: bool = True) -> dict[str, str]:
    defaults = CLIENT_PROPERTIES if consumer else {}
    return {"bootstrap.servers": servers, **defaults, **properties}


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
