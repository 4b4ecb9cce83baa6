# SPDX-License-Identifier: Apache-2.0
"""Requests of users with different ACLs to the embedded broker compared with the same requests to Apache Kafka.

    python tests/prove/prove_broker_acls.py [--results FOLDER]

Both brokers have an authorizer, and users that log in with PLAIN. One user has only one operation, another one has all
others, and so for each operation; further users have ACLs with hosts and prefixes (tests/support/broker_acls.py). Every
user sends the same requests of every API. The administrator sends valid and invalid requests for ACLs. The responses
must be equal. The exit status is 0 if everything is equal. Written to broker-acls.txt in tests/results (or FOLDER).
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from broker_acls import KAFKA_SETTINGS, SETTINGS, compare, profiles

from kcodec.broker import Broker
from kcodec.testing.kafka import KAFKA_VERSION, ApacheKafka

ROOT = Path(__file__).resolve().parent.parent.parent


def codes_of(value: object) -> set[str]:
    """The names of the error codes in what is compared of a response."""
    if not isinstance(value, list):
        return set()
    if len(value) == 2 and isinstance(value[0], str) and value[0].endswith("error_code"):
        return {value[1]}
    return set().union(*map(codes_of, value))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "tests" / "results")
    arguments = parser.parse_args()
    names = list(profiles())
    users = {user: f"{user}-secret" for user in ("admin", *names)}
    lines: list[str] = []
    total: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    with (
        ApacheKafka(authorizer=True, sasl="PLAIN", users=users, **KAFKA_SETTINGS) as kafka,
        Broker(authorizer=True, super_users=["admin"], sasl_mechanisms=["PLAIN"], users=users, **SETTINGS) as broker,
    ):
        for user, name, theirs, ours in compare(kafka.bootstrap_servers, broker.bootstrap_servers, names):
            total[user] += 1
            codes.update(code for code in codes_of(theirs) if code.endswith("AUTHORIZATION_FAILED"))
            if theirs != ours:
                failed[user] += 1
                lines += [f"DIFFERENT: {user}, {name}", f"    Kafka:  {theirs}", f"    kcodec: {ours}"]
    head = [f"tests/prove/prove_broker_acls.py, {datetime.date.today()}, Apache Kafka {KAFKA_VERSION}", ""]
    head += [f"{user:32} {count:4} requests, {failed[user]} different" for user, count in total.items()]
    head += ["", *(f"{code:40} in {count} responses of Kafka" for code, count in sorted(codes.items()))]
    head += ["", f"{len(total)} users, {total.total()} requests, {failed.total()} different", *lines]
    text = "\n".join(head) + "\n"
    print(text)
    (arguments.results / "broker-acls.txt").write_text(text, encoding="utf-8")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
