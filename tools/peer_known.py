# SPDX-License-Identifier: Apache-2.0
"""Tests of other clients that are known to fail or to be skipped on one node, and the reason of each."""

from __future__ import annotations

import fnmatch

from peer_clients import Result

TLS = "needs a listener with TLS"
SASL = "needs a listener with SASL"
AUTHORIZER = "needs an authorizer"
KERBEROS = "needs a Kerberos server"
CODEC = "the package for the codec is not installed"

#: Client -> pattern of a test's name -> reason. The first pattern that matches counts.
KNOWN: dict[str, dict[str, str]] = {
    "aiokafka": {
        "*ssl*": TLS,
        "*gssapi*": KERBEROS,
        "*test_sasl_deny*": AUTHORIZER,
        "*test_sasl_unknown_topic_describe": AUTHORIZER,
        "*TestKafkaSASL*": SASL,
        "*test_producer_transactional_send_batch_outside_txn": "expects that a commit takes longer than 1 ms",
    },
    "kafka-python": {
        "*TestSSLConnection*": TLS,
        "*test_sasl_integration*": SASL,
        "*test_create_describe_delete_acls": AUTHORIZER,
        "*snappy*": CODEC,
        "*offsets_for_time_old": "is for Kafka before 0.10.1",
    },
    "franz-go": {},
    "confluent-kafka": {
        "*test_describe_operations*": "needs a cluster with SASL, which the package trivup starts",
        "*admin.test_basic_operations*": AUTHORIZER,
        "*test_incremental_alter_configs": "expects a setting that the controller of Kafka makes when it starts",
    },
}
#: The same for runs with the facade of kcodec in place of the client.
KNOWN_WITH_FACADE: dict[str, dict[str, str]] = {
    "confluent-kafka": {
        "*test_cooperative_rebalance_*": "a late poll returns no message _MAX_POLL_EXCEEDED; docs/compat.md",
        "*test_Consumer::test_basic_api": "seek() of a partition that was just assigned succeeds; docs/compat.md",
        "*topicpartition_metadata": "commits empty metadata where librdkafka commits none",
        "*test_Consumer::test_*callback_exception_*": "expects an error within 100 ms; fails on a busy machine",
        "*test_log::test_consumer_logger*": "expects lines that librdkafka logs",
    },
}


def known_reason(client: str, result: Result, kind: str) -> str | None:
    """Return why a test is known not to pass; None if it should. kind: "own" or "kcodec"."""
    patterns = {**KNOWN.get(client, {}), **(KNOWN_WITH_FACADE.get(client, {}) if kind == "kcodec" else {})}
    return next((reason for pattern, reason in patterns.items() if fnmatch.fnmatchcase(result.test, pattern)), None)
