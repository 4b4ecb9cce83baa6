# SPDX-License-Identifier: Apache-2.0
"""The outbox for minutes: eight writers, a relay killed -9 at random, brokers and PostgreSQL killed -9 under load.

    python tests/prove/prove_outbox.py [--kills 40] [--results FOLDER]

Of three brokers one is killed at a time. A Java read_committed consumer must get each committed row once, rows of a
writer in their order. The control is a relay that asks for rows "greater than the last", on the same load: it must lose
some, or the load proves nothing.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HERE / "support"), str(HERE.parent / "examples"), str(HERE.parent / "src")]

import psycopg  # noqa: E402
from broker_kills import OPTIONS, BrokerKills  # noqa: E402
from outbox import GroupProgress, PostgresOutbox, Relay  # noqa: E402
from outbox_rows import GreaterThanTheLast, by_key, delivered  # noqa: E402
from postgres_server import PostgresServer  # noqa: E402

from kcodec import TopicPartition  # noqa: E402
from kcodec.testing.kafka import ApacheKafka  # noqa: E402

WRITERS = 8
COUNT = "SELECT count(*) FROM outbox"


class Writers:
    """Transactions that commit out of order, some rolled back; what a killed database left unsaid is looked up."""

    def __init__(self, conninfo: str, topic: str) -> None:
        self._conninfo, self._topic = conninfo, topic
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,), daemon=True) for number in range(WRITERS)]
        self.unknown = 0

    def start(self) -> None:
        with psycopg.connect(self._conninfo) as connection:
            connection.execute("CREATE TABLE business (writer int, number int, PRIMARY KEY (writer, number))")
        for thread in self._threads:
            thread.start()

    def stop(self) -> dict[bytes, list[int]]:
        """writer -> the numbers that it committed, from its business rows."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        with psycopg.connect(self._conninfo) as connection:
            rows = connection.execute("SELECT writer, number FROM business ORDER BY number").fetchall()
        found: dict[bytes, list[int]] = {}
        for writer, number in rows:
            found.setdefault(str(writer).encode(), []).append(number)
        return found

    def _write(self, writer: int) -> None:
        rng, number = random.Random(writer), 0
        while not self._is_over.is_set():
            try:
                with closing(psycopg.connect(self._conninfo)) as connection:
                    while not self._is_over.wait(rng.uniform(0, 0.01)):
                        number += 1
                        connection.execute("INSERT INTO business VALUES (%s, %s)", (writer, number))
                        key, value = str(writer).encode(), str(number).encode()
                        PostgresOutbox.add(connection, self._topic, key=key, value=value)
                        time.sleep(rng.uniform(0, 0.02))
                        connection.rollback() if rng.random() < 0.2 else connection.commit()
            except psycopg.OperationalError:
                self.unknown += 1
                self._is_over.wait(0.2)


def relay_process(kafka: ApacheKafka, conninfo: str, topic: str) -> subprocess.Popen[bytes]:
    program = [sys.executable, str(HERE / "support" / "outbox_relay.py"), "never", "--postgres", conninfo]
    names = ["-b", kafka.bootstrap_servers, "--name", f"relay-{topic}", "--progress", topic, "--limit", "50"]
    return subprocess.Popen([*program, *names], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def drain(kafka: ApacheKafka, source: Any, topic: str) -> None:
    options: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers}
    with (
        closing(source),
        closing(Relay(source, f"relay-{topic}", GroupProgress(TopicPartition(topic, 0)), **options)) as relay,
    ):
        while relay.publish():
            pass


def judge(kafka: ApacheKafka, topic: str, committed: dict[bytes, list[int]]) -> tuple[int, int, int, int]:
    """(rows, lost, more than once, out of order)."""
    got = by_key(delivered(kafka, topic))
    lost = twice = disorder = 0
    for writer, numbers in committed.items():
        counts = Counter(got.get(writer, []))
        lost += sum(1 for number in numbers if number not in counts)
        twice += sum(counts.values()) - len(counts) + sum(1 for number in counts if number not in set(numbers))
        disorder += got.get(writer, []) != sorted(got.get(writer, []))
    return sum(map(len, committed.values())), lost, twice, disorder


def control(kafka: ApacheKafka, server: PostgresServer) -> tuple[int, int, int, int]:
    """The same load, and the query that everybody would write, undisturbed."""
    topic = kafka.create_topic(partitions=3)
    writers = Writers(database(server, "control"), topic)
    source = GreaterThanTheLast(writers._conninfo)
    options: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers}
    with (
        closing(source),
        closing(Relay(source, f"relay-{topic}", GroupProgress(TopicPartition(topic, 0)), **options)) as relay,
    ):
        writers.start()
        until = time.monotonic() + 10
        relay.run(lambda: time.monotonic() > until, pause=0.01)
        committed = writers.stop()
        while relay.publish():
            pass
    return judge(kafka, topic, committed)


def database(server: PostgresServer, name: str) -> str:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.conninfo.replace("dbname=postgres", f"dbname={name}")


def storm(kafka: ApacheKafka, server: PostgresServer, turns: int) -> tuple[tuple[int, int, int, int], str]:
    topic = kafka.create_topic(partitions=3)
    conninfo = database(server, "storm")
    PostgresOutbox(conninfo).close()
    writers = Writers(conninfo, topic)
    writers.start()
    rng, done = random.Random(turns), Counter[str]()
    kills = BrokerKills(kafka, {topic: 3})
    for turn in range(turns):
        relay = relay_process(kafka, conninfo, topic)
        what, disturb = _disturbance(turn, kills, server)
        time.sleep(rng.uniform(0.5, 2.5))
        disturb()
        done[what] += 1
        if relay.poll() is None:
            relay.kill()
            done["relay killed"] += 1
        else:
            done["relay had ended"] += 1
        relay.wait()
    committed = writers.stop()
    drain(kafka, PostgresOutbox(conninfo), topic)
    reported = ", ".join(f"{count} x {what}" for what, count in sorted(done.items()) if what)
    return judge(kafka, topic, committed), reported


def _disturbance(turn: int, kills: BrokerKills, server: PostgresServer) -> tuple[str, Callable[[], None]]:
    """What happens in this turn in addition to the kill of the relay."""

    def restart_broker() -> None:
        kills.kill_one()
        time.sleep(1.0)

    def restart_postgres() -> None:
        server.crash()
        time.sleep(1.0)

    if turn % 8 == 3:
        return "broker killed", restart_broker
    if turn % 8 == 6:
        return "PostgreSQL killed", restart_postgres
    return "", lambda: None


def main() -> int:
    parser = argparse.ArgumentParser(description="the outbox under kills")
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args()
    began = time.monotonic()
    with ApacheKafka(**OPTIONS) as kafka, PostgresServer() as server:
        (rows, lost, twice, disorder), reported = storm(kafka, server, given.kills)
        of_control = control(kafka, server)
    lines = [
        f"rows committed {rows}, lost {lost}, more than once {twice}, writers out of order {disorder}; {reported}",
        f"control (id greater than the last, nobody killed): rows {of_control[0]}, lost {of_control[1]}",
        f"{WRITERS} writers, a fifth of the transactions rolled back, {time.monotonic() - began:.0f} s",
    ]
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "outbox.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    is_good = rows > 10 * given.kills and (lost, twice, disorder) == (0, 0, 0) and of_control[1] > 0
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
