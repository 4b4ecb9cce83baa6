# SPDX-License-Identifier: Apache-2.0
"""Before KIP-447 only time protects: why a session's time-out must be above that of its transaction, *and* the interval
in which the coordinator looks for transactions that are over their time, *and* the time a request may take.

    python tests/prove/prove_session_times.py [--trials 6] [--results FOLDER]

The embedded broker, which looks every 4 s and offers what a broker before 2.5 has (OffsetFetch at most 6,
TxnOffsetCommit at most 2). One session polls and commits; a proxy holds its EndTxn and swallows its heartbeats. When
the group has given it up, another one takes its partitions over, reads the committed offsets and copies. Then EndTxn is
let go. With session_timeout_ms above transaction_timeout_ms alone the first one's records come as well: duplicates.
With the sum that kcodec asks for its transaction was aborted before: none. The first setting is only taken because the
sessions are told that the interval is 0; told the truth, they refuse it.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from producer_apis import stored
from session_apis import Threaded
from transaction_load import add_results

from kcodec.broker import Broker
from kcodec.client import Producer
from kcodec.errors import KcodecError
from kcodec.testing.proxy import KafkaProxy

RECORDS = 4
BEFORE_2_5 = {"OffsetFetch": 6, "TxnOffsetCommit": 2}
TRANSACTION_SECONDS, SCAN_SECONDS, REQUEST_SECONDS = 1.0, 4.0, 1.0
SHORT, SAFE = 2.5, TRANSACTION_SECONDS + SCAN_SECONDS + REQUEST_SECONDS + 0.5
LIMIT_SECONDS = 40.0


def options(servers: str, source: str, name: str, session: float, scan: float) -> dict[str, Any]:
    """Of the sessions of a trial."""
    return {
        "bootstrap_servers": servers,
        "client_id": name,
        "group_id": source,
        "transactional_id": name,
        "topics": [source],
        "session_timeout_ms": session * 1000,
        "heartbeat_interval_ms": 300,
        "transaction_timeout_ms": TRANSACTION_SECONDS * 1000,
        "transaction_scan_interval_ms": scan * 1000,
        "request_timeout_ms": REQUEST_SECONDS * 1000,
        "delivery_timeout_ms": 5_000,
        "linger_ms": 0,
    }


def copy_once(given: dict[str, Any], target: str, timeout: float) -> bool | None:
    """Copy what one poll gives; whether it was committed."""
    deadline = time.monotonic() + LIMIT_SECONDS
    with Threaded(**given) as session:
        while time.monotonic() < deadline:
            txn = session.transaction(timeout)
            try:
                with txn:
                    records = txn.poll(0.2)
                    for record in records:
                        txn.send(target, record.value, partition=0)
            except KcodecError:
                return txn.committed  # type: ignore[no-any-return]
            if records:
                return txn.committed  # type: ignore[no-any-return]
    return None


def trial(kafka: Broker, proxy: KafkaProxy, session: float, scan: float) -> tuple[int, int]:
    """Records lost and records twice."""
    source, target = (kafka.create_topic(partitions=1) for _ in range(2))
    with Producer(bootstrap_servers=kafka.admin_servers) as producer:
        for number in range(RECORDS):
            producer.send(source, b"%d" % number, partition=0)
    name = f"{source}-first"
    end = proxy.on_request("EndTxn", count=None, client_id=name).hold()
    given = options(proxy.bootstrap_servers, source, name, session, scan)
    first = threading.Thread(target=copy_once, args=(given, target, 30.0))
    first.start()
    end.wait_hit(LIMIT_SECONDS)
    deaf = proxy.on_request("Heartbeat", count=None, client_id=name).drop()
    other = options(kafka.bootstrap_servers, source, f"{source}-other", session, scan)
    copy_once(other, target, 30.0)
    end.remove()  # what it held goes on its way
    deaf.remove()
    first.join(LIMIT_SECONDS)
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        log = stored(kafka, target)
        if log.last_stable_offset == log.log_end_offset:
            break
        if time.monotonic() > deadline:
            raise TimeoutError(f"{target}: a transaction is still open")
        time.sleep(0.1)
    found = Counter(record.value for record in log.records("read_committed"))
    return RECORDS - len(found), sum(found.values()) - len(found)


def is_refused(kafka: Broker) -> bool:
    """Whether the short time-out is refused by a session that knows the interval."""
    source = kafka.create_topic(partitions=1)
    given = options(kafka.bootstrap_servers, source, f"{source}-honest", SHORT, SCAN_SECONDS)
    with Threaded(**given) as session:
        try:
            with session.transaction():
                return False
        except ValueError as refused:
            return "is not safe with this broker" in str(refused)


def main() -> int:
    """0 if the short time-out shows duplicates, and the sum none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--results", type=Path, help="folder of session-times-DATE.txt, which is added to")
    arguments = parser.parse_args()
    lines = []
    old: dict[str, Any] = {"transaction_timeout_scan_ms": SCAN_SECONDS * 1000, "max_versions": BEFORE_2_5}
    old["group_min_session_timeout_ms"] = 100
    found: dict[float, list[tuple[int, int]]] = {}
    with (
        TemporaryDirectory() as folder,
        Broker(data_dir=folder, **old) as kafka,
        KafkaProxy(kafka.bootstrap_servers) as proxy,
    ):
        for session, reported in ((SHORT, 0.0), (SAFE, SCAN_SECONDS)):

            def one(number: int, session: float = session, reported: float = reported) -> tuple[int, int]:
                time.sleep(number * SCAN_SECONDS / arguments.trials)  # at every phase of the coordinator's clock
                return trial(kafka, proxy, session, reported)

            with ThreadPoolExecutor(arguments.trials) as pool:
                found[session] = list(pool.map(one, range(arguments.trials)))
            lost, twice = (sum(row[at] for row in found[session]) for at in (0, 1))
            lines.append(
                f"a broker before 2.5, transaction {TRANSACTION_SECONDS:g} s, scan {SCAN_SECONDS:g} s, request "
                f"{REQUEST_SECONDS:g} s; session {session:g} s: {arguments.trials} commits held back until another "
                f"member had taken over: {lost} records lost, {twice} twice"
            )
            print(lines[-1], flush=True)
        refused = is_refused(kafka)
        lines.append(f"a session that knows the interval {'refuses' if refused else 'DOES NOT REFUSE'} {SHORT:g} s")
        print(lines[-1])
    add_results(arguments.results, "session-times", lines)
    held = sum(twice for _, twice in found[SHORT]) > 0 and not any(map(any, found[SAFE])) and refused
    print("all held" if held else "did not hold")
    return not held


if __name__ == "__main__":
    sys.exit(main())
