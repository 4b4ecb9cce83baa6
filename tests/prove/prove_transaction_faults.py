# SPDX-License-Identifier: Apache-2.0
"""Every fault at every wire step of a transaction, in both flows, blocking and asyncio.

    python tests/prove/prove_transaction_faults.py [--clusters 4.4.0/2 4.4.0/0 ...] [--only TEXT] [--results FOLDER]

What must hold is told in transaction_fault_cases.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from transaction_apis import APIS
from transaction_cluster import PROVED_CLUSTERS
from transaction_fault_cases import cases, run_cases
from transaction_load import add_results

from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.proxy import KafkaProxy


def main() -> int:
    """0 if all held in every case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", nargs="+", default=PROVED_CLUSTERS)
    parser.add_argument("--apis", nargs="+", default=list(APIS), choices=APIS)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--at-once", type=int, default=12, help="cases at the same time")
    parser.add_argument("--results", type=Path, help="folder of transaction-faults-DATE.txt, which is added to")
    arguments = parser.parse_args()
    lines, bad = [], 0
    for cluster in arguments.clusters:
        version, level = cluster.split("/")
        chosen = [case for case in cases(int(level)) if arguments.only in case.name]
        with ApacheKafka(version, transaction_version=int(level)) as kafka:
            for api_name in arguments.apis:
                begin = time.monotonic()
                with KafkaProxy(kafka.bootstrap_servers) as proxy:
                    ended, findings = run_cases(chosen, api_name, kafka, proxy, arguments.at_once)
                faults = [f"{one.case.name}: {fault}" for one in ended for fault in one.faults]
                bad += len(faults) + findings.faults
                slowest = max(
                    seconds for one in ended for reported in one.reported for seconds in reported.seconds.values()
                )
                lines.append(
                    f"{cluster:8} {api_name:9} {len(ended)} faults, {len(faults)} not as they must be; slowest call "
                    f"{slowest:.1f} s; {findings.line()} [{time.monotonic() - begin:.0f} s]"
                )
                print(lines[-1], *faults, *findings.examples, sep="\n    ", flush=True)
    add_results(arguments.results, "transaction-faults", lines)
    print(f"{len(lines)} rounds: {'all held' if not bad else f'{bad} did not hold'}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
