# SPDX-License-Identifier: Apache-2.0
"""Commits in the background under faults: lost requests and responses, errors of the coordinator, killed brokers.

    python tests/prove/prove_background_commits.py [--clusters 4.4.0/2 4.4.0/0 ...] [--transactions 150] [--kills 3]
        [--seed N] [--results FOLDER]

Each transaction is filled while the one before is committed. A read_committed reader must get every record once, in
order, although the wire loses what it can and the broker, which is also the coordinator, is killed and started again.

One error is allowed below transaction version 2: a killed coordinator forgets that it has bumped an epoch for this
producer, so the repeated InitProducerId looks like that of a former producer (docs/design/transactions.md). The error
has the remedy "recreate", and the reader must get the first transactions completely, and nothing of the others.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from pipelined_commits import aio_pipeline, expected, pipeline
from transaction_cluster import PROVED_CLUSTERS, TransactionCluster
from transaction_load import add_results

from kcodec.errors import ProducerFencedError
from kcodec.protocol.error_codes import ErrorCode

RECORDS = 100
PASSING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
OPTIONS: dict[str, Any] = {"request_timeout_ms": 2_000, "max_block_ms": 60_000, "delivery_timeout_ms": 60_000}


def disturb(cluster: TransactionCluster, chosen: random.Random, transactions: int) -> int:
    """Put faults on the wire, about one for every three transactions; return their number."""
    proxy, count = cluster.quiet_proxy(), transactions // 3
    for _ in range(count):
        api, nth = chosen.choice(("EndTxn", "EndTxn", "Produce")), chosen.randrange(2, transactions)
        kind = chosen.randrange(5)
        if kind == 0:
            proxy.on_response(api, nth=nth).cut()
        elif kind == 1:
            proxy.on_request(api, nth=nth).cut()
        elif kind == 2:
            proxy.on_request(api, nth=nth).hold(chosen.uniform(0.01, 0.3))
        elif kind == 3 or api == "Produce":
            proxy.on_response(api, nth=nth).deliver_and_cut()
        else:
            proxy.on_request(api, nth=nth).answer(error=chosen.choice(PASSING))
    return count


def kill_now_and_then(cluster: TransactionCluster, kills: int, done: threading.Event) -> int:
    """Kill the broker and start it again, until all kills are made or the producer is done; return their number."""
    for number in range(kills):
        if done.wait(1.0):
            return number
        cluster.kafka.kill()
        cluster.kafka.start()
    return kills


def prove(cluster: TransactionCluster, api: str, transactions: int, kills: int, seed: int) -> tuple[str, bool]:
    """One run: a line about it, and whether all held."""
    topic = cluster.kafka.create_topic(partitions=2)
    faults = disturb(cluster, random.Random(seed), transactions)
    begin, done, killed = time.monotonic(), threading.Event(), [0]
    killer = threading.Thread(target=lambda: killed.append(kill_now_and_then(cluster, kills, done)))
    killer.start()

    async def work() -> None:
        async with cluster.aio_producer(**OPTIONS) as producer:
            await aio_pipeline(producer, topic, transactions, RECORDS)

    error: BaseException | None = None
    try:
        if api == "asyncio":
            asyncio.run(work())
        else:
            with cluster.producer(**OPTIONS) as producer:
                pipeline(producer, topic, transactions, RECORDS, lambda _: time.sleep(0.02))
    except Exception as failed:  # noqa: BLE001  reported
        error = failed
    finally:
        done.set()
        killer.join()
    found, wanted = cluster.committed(topic), expected(transactions, RECORDS)
    seen = [value for values in found for value in values]
    lost = transactions * RECORDS - len(set(seen))
    is_forgotten = not cluster.is_new_flow and isinstance(error, ProducerFencedError) and error.remedy == "recreate"
    if is_forgotten:  # the producer ended, so only the transactions before can be there
        wanted = expected(len(seen) // RECORDS, RECORDS)
    line = (
        f"{transactions} transactions of {RECORDS} records, {faults} faults, {killed[-1]} kills: {lost} lost, "
        f"{len(seen) - len(set(seen))} duplicates, order {'kept' if found == wanted else 'NOT kept'}, "
        f"error: {'the killed coordinator forgot an epoch' if is_forgotten else repr(error)} "
        f"[{time.monotonic() - begin:.0f} s, seed {seed}]"
    )
    return line, (error is None or is_forgotten) and found == wanted


def main() -> int:
    """0 if all held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", nargs="+", default=PROVED_CLUSTERS)
    parser.add_argument("--transactions", type=int, default=150)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--results", type=Path, help="folder of background-commits-DATE.txt, which is added to")
    arguments = parser.parse_args()
    lines, bad = [], 0
    for name in arguments.clusters:
        version, level = name.split("/")
        with TransactionCluster(version, int(level)) as cluster:
            for api in ("blocking", "asyncio"):
                line, held = prove(cluster, api, arguments.transactions, arguments.kills, arguments.seed)
                lines.append(f"{name:8} {api:9} {line}")
                bad += not held
                print(lines[-1], flush=True)
    add_results(arguments.results, "background-commits", lines)
    print(f"{len(lines)} rounds: {'all held' if not bad else f'{bad} did not hold'}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
