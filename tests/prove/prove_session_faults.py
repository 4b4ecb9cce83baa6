# SPDX-License-Identifier: Apache-2.0
"""A proxy cuts, delays and swallows every request and answer of a group transact session, at every step, both ways.

    python prove_session_faults.py [--rounds 4.4.0/2/classic ...] [--apis ...] [--only TEXT] [--results FOLDER]

What must hold is told in session_fault_cases.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from session_apis import APIS
from session_fault_cases import cases, run_cases
from transaction_load import add_results

from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.proxy import KafkaProxy

ROUNDS = ("4.4.0/2/classic", "4.4.0/2/consumer", "4.4.0/0/classic", "4.3.1/2/consumer", "3.9.1/0/classic")


def main() -> int:
    """0 if all held in every case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", nargs="+", default=ROUNDS, help="Kafka / transaction.version / group protocol")
    parser.add_argument("--apis", nargs="+", default=list(APIS), choices=APIS)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--at-once", type=int, default=8, help="cases at the same time")
    parser.add_argument("--results", type=Path, help="folder of session-faults-DATE.txt, which is added to")
    arguments = parser.parse_args()
    lines, bad = [], 0
    for row in arguments.rounds:
        version, level, protocol = row.split("/")
        chosen = [case for case in cases(int(level), protocol) if arguments.only in case.name]
        with ApacheKafka(version, transaction_version=int(level)) as kafka:
            for api_name in arguments.apis:
                begin = time.monotonic()
                with KafkaProxy(kafka.bootstrap_servers) as proxy:
                    ended = run_cases(chosen, api_name, protocol, kafka, proxy, arguments.at_once)
                faults = [f"{one.case.name}: {fault}" for one in ended for fault in one.faults]
                bad += len(faults)
                reported = Counter(outcome for one in ended for outcome in one.outcomes)
                restarted = sum(one.sessions - 1 for one in ended)
                lines.append(
                    f"{row:17} {api_name:8} {len(ended)} faults: every record once and in order, every call in time "
                    f"but for {len(faults)}; transactions {reported['True']} committed, {reported['False']} aborted, "
                    f"{reported['None']} unknown or not begun; {restarted} new sessions "
                    f"[{time.monotonic() - begin:.0f} s]"
                )
                print(lines[-1], *faults, sep="\n    ", flush=True)
                add_results(arguments.results, "session-faults", lines[-1:])
    print(f"{len(lines)} rounds: {'all held' if not bad else f'{bad} did not hold'}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
