# SPDX-License-Identifier: Apache-2.0
"""Tests of other clients that are known to fail or to be skipped on one node, and the reason of each."""

from __future__ import annotations

import fnmatch

from peer_clients import Result

TLS = "needs a listener with TLS, which the run does not start"
SASL = "needs a listener with SASL, which the run does not start"
AUTHORIZER = "needs an authorizer"
KERBEROS = "needs a Kerberos server"
CODEC = "the package for the codec is not installed"

#: Begins the message of an error of tests/support/embedded_kafka.py, whose text is the reason.
NEEDS = "NeedsApacheKafka: "
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
    "kcodec": {
        "*quotas*": "needs quotas",
        "*test_the_same_calls_work_in_asyncio": "needs quotas",
        "*test_without_authentication_tokens_are_refused": "needs delegation tokens",
        "*test_the_cluster_and_its_features": "needs features that can be changed",
        "*test_configured_resources_are_as_kafka_shows_them": "needs configurations of client metrics",
        "*test_settings_are_changed_one_by_one": "needs the documentation of settings",
        "*share*": "needs share groups",
        "*streams*": "needs Streams groups",
        "*test_the_finalized_feature_decides_the_flow_not_versions": "needs TxnOffsetCommit version 6",
        "*test_copy*": "needs a process that can be killed",
        "*transaction_chaos*": "needs a process that can be killed",
        "*test_after_a_restart_a_broker_remembers_one_batch_of_five": "needs a process that can be killed",
    },
}
#: The same for runs with the facade of kcodec in place of the client.
KNOWN_WITH_FACADE: dict[str, dict[str, str]] = {}


def known_reason(client: str, result: Result, kind: str) -> str | None:
    """Return why a test is known not to pass; None if it should. kind: "own" or "kcodec"."""
    if NEEDS in result.message:
        return "needs " + result.message.partition(NEEDS)[2]
    patterns = {**KNOWN.get(client, {}), **(KNOWN_WITH_FACADE.get(client, {}) if kind == "kcodec" else {})}
    return next((reason for pattern, reason in patterns.items() if fnmatch.fnmatchcase(result.test, pattern)), None)
