# SPDX-License-Identifier: Apache-2.0
"""The same requests of users with different ACLs to Apache Kafka and to the embedded broker: equal responses.

tests/prove/prove_broker_acls.py has more users.
"""

from __future__ import annotations

from broker_acls import KAFKA_SETTINGS, SETTINGS, SHORT, cases, compare

from kcodec.broker import Broker
from kcodec.broker.authorizer.checks import CHECKS
from kcodec.testing.kafka import ApacheKafka

USERS = {user: f"{user}-secret" for user in ("admin", *SHORT)}


def test_every_check_is_compared() -> None:
    """The cases have requests of every API with a check, and of Fetch."""
    compared = {name.split()[0] for name in cases("none", {})}
    assert compared == {name for name, steps in CHECKS.items() if not isinstance(steps, str)} | {"Fetch"}


def test_users_get_the_responses_of_kafka() -> None:
    with (
        ApacheKafka(authorizer=True, sasl="PLAIN", users=USERS, **KAFKA_SETTINGS) as kafka,
        Broker(authorizer=True, super_users=["admin"], sasl_mechanisms=["PLAIN"], users=USERS, **SETTINGS) as broker,
    ):
        found = list(compare(kafka.bootstrap_servers, broker.bootstrap_servers, SHORT))
    assert len(found) > len(SHORT) * 90
    different = [f"{user}, {name}:\n  {theirs}\n  {ours}" for user, name, theirs, ours in found if theirs != ours]
    assert not different, "\n".join(different)
