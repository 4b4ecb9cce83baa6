# SPDX-License-Identifier: Apache-2.0
"""What becomes of a member that loses its partitions in the middle of a transaction, as KIP-447 has it, and markers
that are late: tests/support/kip447.py on every kind of broker and in both protocols of groups.

    python tests/prove/prove_kip447.py [--clusters 4.4.0/2 4.4.0/0 ...] [--only CASE ...] [--results FOLDER]

a: A's TxnOffsetCommit comes when its partitions are another's: refused. b: A dies between EndTxn and the markers: B is
answered 88 until they are there, and begins behind. c: A dies before EndTxn: B waits until fencing or time-out aborted
it, and begins before it. d: A's EndTxn comes after the time-out: fenced. Markers held back for 5 s between brokers: B
is answered 88 until they land. Nothing may be lost or come twice; the controls, without generation and without
RequireStable, must show duplicates. The exit status is 0 if all is as it should be.

Written to kip447.txt in tests/results (or FOLDER).
"""

from __future__ import annotations

import argparse
import datetime
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from kip447 import CASES, Outcome, Stage
from transaction_cluster import PROVED_CLUSTERS

ROOT = Path(__file__).resolve().parent.parent.parent
# Kafka 3.9 has KIP-848 as a preview only.
PROTOCOLS = {"4.4.0": ("classic", "consumer"), "4.3.1": ("classic", "consumer"), "3.9.1": ("classic",)}


def run_cluster(cluster: str, names: list[str]) -> list[Outcome]:
    """All cases on one broker, two at the same time."""
    version, level = cluster.split("/")
    with Stage(version, int(level)) as stage, ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(CASES[name], stage, protocol) for protocol in PROTOCOLS[version] for name in names]
        return [job.result() for job in jobs]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clusters", nargs="+", default=PROVED_CLUSTERS, metavar="VERSION/LEVEL")
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="CASE", help=f"of: {', '.join(CASES)}")
    parser.add_argument("--results", type=Path, default=ROOT / "tests" / "results")
    arguments = parser.parse_args()
    columns = f"{'':<44}{'lost':>6}{'duplicates':>12}{'88 to B':>10}{'seconds':>9}"
    lines, failed = [f"tests/prove/prove_kip447.py, {datetime.date.today()}"], 0
    for cluster in arguments.clusters:
        outcomes = run_cluster(cluster, arguments.only or list(CASES))
        failed += sum(bool(outcome.faults()) for outcome in outcomes)
        lines += ["", f"Kafka {cluster.replace('/', ', transaction version ')}", columns]
        lines += [outcome.line() for outcome in outcomes]
        print("\n".join(lines[-len(outcomes) - 2 :]), flush=True)
        (arguments.results / "kip447.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{failed} cases failed" if failed else "all cases as they should be")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
