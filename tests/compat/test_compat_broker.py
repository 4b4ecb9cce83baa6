# SPDX-License-Identifier: Apache-2.0
"""aiokafka and kafka-python against a real broker, with kcodec behind them and without: transactions in every codec,
aborted ones, headers, seek. Both ways each record is the same, and the same as Java's consumer delivers. Where the
clients' own code fails on what a broker serves, ours goes on (reference: what docs/compat.md says).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from batch_writer import fix_crc
from compat_cases import damaged
from compat_peers import REPEATS, Aiokafka, KafkaPython, Read, Records, Row
from java_clients import consume
from opened_logs import open_log

import kcodec
from kcodec import TopicPartition
from kcodec.client import Admin, Producer
from kcodec.testing.kafka import ApacheKafka

CODECS = (None, "gzip", "snappy", "lz4", "zstd")
BEGAN = time.time_ns() // 1_000_000  # old timestamps would make a segment of each transaction
Peer = Aiokafka | KafkaPython


@pytest.fixture(params=[Aiokafka, KafkaPython], ids=lambda kind: kind.name)
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    found: Peer = request.param()
    assert not found.adapter.installed()
    yield found
    assert not found.adapter.installed()


@contextmanager
def with_kcodec(peer: Peer) -> Iterator[None]:
    peer.adapter.install()
    try:
        yield
    finally:
        peer.adapter.uninstall()


@contextmanager
def as_it_is(peer: Peer) -> Iterator[None]:
    assert not peer.adapter.installed()
    yield


WAYS: dict[str, Callable[[Peer], AbstractContextManager[None]]] = {"its own": as_it_is, "kcodec": with_kcodec}


def transactions(codec: str | None) -> list[tuple[str, list[Row]]]:
    """Three of a codec, the middle one aborted: keys and values that are null or empty, header names that repeat."""
    name = str(codec).encode()
    plain = [
        Row(at % 2, b"%s-%d" % (name, at), b"v" * at, [("name", name), ("name", b"")], BEGAN + at) for at in range(40)
    ]
    odd = [
        Row(0, None, name, [], BEGAN - 1),
        Row(0, name, None, [("\u00e4", b"\xff")], BEGAN + 7),
        Row(1, b"", b"", [("", b"x")], BEGAN),
    ]
    return [("commit", plain), ("abort", [*odd, *plain]), ("commit", odd)]


def wait_until_settled(kafka: ApacheKafka, topic: str) -> None:
    """A commit is answered before the markers are in all partitions."""
    latest = {TopicPartition(topic, number): "latest" for number in range(2)}
    with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        deadline = time.monotonic() + 20
        while admin.list_offsets(latest, isolation_level="read_committed") != admin.list_offsets(latest):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def stored_codecs(kafka: ApacheKafka, topic: str) -> set[str]:
    """What the broker has on its disk."""
    batches = open_log(kafka.log_directory / f"{topic}-0").batches
    return {str(batch.compression) for batch in batches if not batch.is_control_batch}


def java_reads(kafka: ApacheKafka, topic: str, isolation_level: str) -> Records:
    found: Records = {0: [], 1: []}
    for one in consume(kafka.bootstrap_servers, topic, isolation_level):
        found[one.partition].append(Read(one.offset, one.timestamp, 0, one.key, one.value, one.headers))
    return found


def test_both_ways_write_and_read_the_same_and_what_java_reads(peer: Peer, apache_kafka: ApacheKafka) -> None:
    servers = apache_kafka.bootstrap_servers
    codecs = [codec for codec in CODECS if peer.has_package_for(codec)]
    topics = {}
    for way, behind in WAYS.items():
        topics[way] = apache_kafka.create_topic(partitions=2, retention_ms=-1)
        with behind(peer):
            for codec in codecs:
                peer.write(servers, topics[way], codec, transactions(codec))
        wait_until_settled(apache_kafka, topics[way])
    told = {
        level: java_reads(apache_kafka, topics["its own"], level) for level in ("read_committed", "read_uncommitted")
    }
    # 20 and 20 of the first, 2 and 1 of the last; uncommitted those of the second, too
    assert [len(told["read_committed"][number]) for number in (0, 1)] == [len(codecs) * 22, len(codecs) * 21]
    assert [len(told["read_uncommitted"][number]) for number in (0, 1)] == [len(codecs) * 44, len(codecs) * 42]
    for way, topic in topics.items():
        assert stored_codecs(apache_kafka, topic) >= {codec or "none" for codec in codecs}
        for level, records in told.items():
            for behind in WAYS.values():
                with behind(peer):
                    assert peer.read(servers, topic, level) == records, way
                    if level == "read_uncommitted":
                        continue
                    middle = {0: records[0][60].offset, 1: records[1][31].offset + 1}
                    tail = {0: records[0][60:], 1: records[1][32:]}
                    assert peer.read(servers, topic, level, middle) == tail, way


def test_with_kcodec_every_codec_is_there_without_any_package(
    peer: Peer, apache_kafka: ApacheKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in peer.packages:
        monkeypatch.setattr(module, name, None)
    servers, topic = apache_kafka.bootstrap_servers, apache_kafka.create_topic(partitions=2)
    with pytest.raises(RuntimeError, match="zstd"):
        peer.write(servers, topic, "zstd", [])
    with with_kcodec(peer):
        for codec in CODECS:
            peer.write(servers, topic, codec, transactions(codec)[:1])
        wait_until_settled(apache_kafka, topic)
        records = peer.read(servers, topic)
    assert stored_codecs(apache_kafka, topic) == {codec or "none" for codec in CODECS}
    assert [len(records[number]) for number in (0, 1)] == [5 * 20, 5 * 20]
    assert records == java_reads(apache_kafka, topic, "read_committed")


# ------------------------------------------------------------------------------------- what their own code trips over


def send_batches(kafka: ApacheKafka, topic: str, *batches: list[dict[str, Any]]) -> None:
    """Each list of records, as `send` takes them, is one batch."""
    with Producer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=1000) as producer:
        for batch in batches:
            for record in batch:
                producer.send(topic, **{"partition": 0, **record})
            producer.flush()


def edit_stored(kafka: ApacheKafka, topic: str, number: int, edit: Callable[[bytes], bytes]) -> None:
    """Change a batch in partition 0 where the broker keeps it; it sends what lies there and looks at nothing."""
    (path,) = (kafka.log_directory / f"{topic}-0").glob("*.log")
    batch = kcodec.batches(path.read_bytes())[number]
    edited = edit(bytes(batch.data))
    assert len(edited) == batch.size_in_bytes
    with path.open("r+b") as file:
        file.seek(batch.position)
        file.write(edited)


def of_unknown_attributes(batch: bytes) -> bytes:
    """Its first record's attribute byte, which no Kafka uses, is 0x80."""
    return fix_crc(batch[:62] + b"\x80" + batch[63:])


@pytest.fixture
def damaged_topic(apache_kafka: ApacheKafka) -> str:
    """Three batches in partition 0, of which the second has a wrong CRC; one in partition 1."""
    topic = apache_kafka.create_topic(partitions=2)
    batches = [[{"value": b"%c%d" % (letter, number)} for number in range(2)] for letter in b"abc"]
    send_batches(apache_kafka, topic, *batches, [{"value": b"other", "partition": 1}])
    edit_stored(apache_kafka, topic, 1, damaged)
    return topic


def values_of(records: Records) -> dict[int, list[bytes | None]]:
    return {partition: [record.value for record in of_it] for partition, of_it in records.items()}


def test_with_kcodec_good_records_come_first_then_each_call_raises_and_seek_goes_on(
    peer: Peer, apache_kafka: ApacheKafka, damaged_topic: str
) -> None:
    with with_kcodec(peer):
        records, errors = peer.read_past_damage(apache_kafka.bootstrap_servers, damaged_topic)
    assert values_of(records) == {0: [b"a0", b"a1", b"c0", b"c1"], 1: [b"other"]}
    assert len(errors) == REPEATS
    for error in errors:
        assert isinstance(error.__cause__, kcodec.CorruptBatchError)
        assert (error.__cause__.base_offset, error.__cause__.next_offset) == (2, 4)


def test_without_it_aiokafka_drops_the_good_records_before_corruption(
    apache_kafka: ApacheKafka, damaged_topic: str
) -> None:
    records, errors = Aiokafka().read_past_damage(apache_kafka.bootstrap_servers, damaged_topic)
    assert values_of(records)[0] == []
    assert len(errors) == REPEATS


def test_without_it_kafka_python_raises_once_and_never_comes_back(
    apache_kafka: ApacheKafka, damaged_topic: str
) -> None:
    peers = Path(__file__).parent.parent / "support" / "compat_peers.py"
    program = [sys.executable, str(peers), apache_kafka.bootstrap_servers, damaged_topic]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"raised\n"
        time.sleep(0.5)  # its next poll was to take 0.1 s
        assert process.poll() is None
        process.kill()
        assert process.stdout.read() == b""


def test_odd_records_that_a_broker_takes_are_read_as_java_reads_them(peer: Peer, apache_kafka: ApacheKafka) -> None:
    """A header name that is not UTF-8, and an attribute byte that says nothing: their own code raises forever at the
    one and gives another record away for the other."""
    topic = apache_kafka.create_topic(partitions=2)
    send_batches(
        apache_kafka,
        topic,
        [{"value": b"attributes", "key": b"k", "headers": [("name", b"x")]}],
        [{"value": b"header", "headers": [("\udcff\udcfe", b"x")]}],
    )
    edit_stored(apache_kafka, topic, 0, of_unknown_attributes)
    with with_kcodec(peer):
        first, second = peer.read(apache_kafka.bootstrap_servers, topic)[0]
    assert (first.key, first.value, first.headers) == (b"k", b"attributes", (("name", b"x"),))
    assert (second.value, second.headers) == (b"header", (("\udcff\udcfe", b"x"),))
    told = java_reads(apache_kafka, topic, "read_committed")[0]
    assert told == [first, second._replace(headers=(("\ufffd\ufffd", b"x"),))]
