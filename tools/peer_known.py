# SPDX-License-Identifier: Apache-2.0
"""Tests of other clients that are known to fail or to be skipped on one node, and the reason of each."""

from __future__ import annotations

import fnmatch
import re

from peer_clients import Result

TLS = "needs a listener with TLS, which the run does not start"
SASL = "needs a listener with SASL, which the run does not start"
AUTHORIZER = "needs an authorizer, which the run does not start"
KERBEROS = "needs a Kerberos server"
CODEC = "the package for the codec is not installed"

#: Beginning of the message of an error of tests/support/embedded_kafka.py, whose text is the reason.
NEEDS = "NeedsApacheKafka: "
#: Client -> pattern of a test's name -> reason. The first pattern that matches counts.
KNOWN: dict[str, dict[str, str]] = {
    "aiokafka": {
        "*gssapi*": KERBEROS,
        "*test_sasl_unknown_topic_describe": "is for Kafka before 1.0",
        "*test_producer_transactional_send_batch_outside_txn": "expects that a commit takes longer than 1 ms",
        "*test_kip_345_enabled": (
            "expects that the listener of a member was called when start() of another one returns; may fail on a busy"
            " machine"
        ),
    },
    "kafka-python": {
        "*snappy*": CODEC,
        "*offsets_for_time_old": "is for Kafka before 0.10.1",
    },
    "franz-go": {},
    "kcodec": {
        "*quota*": "needs quotas",
        "*test_what_the_broker_itself_cannot_walk_over_is_no_stall": (
            "corrupts a file of a running broker; the embedded broker finds later batches by its own index"
        ),
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
    "confluent-kafka": {},
    "librdkafka": {
        "0055_producer_latency": "expects latencies of at most 15 ms; may fail on a busy machine",
    },
}
#: Tests of aiokafka that use attributes of its clients that the facade does not have. Each must fail for this reason.
AIOKAFKA_ATTRIBUTES = (
    *("consumer_cleanup_unassigned_data_getmany", "consumer_cleanup_unassigned_data_getone"),
    *("consumer_context_manager", "consumer_position", "consumer_propagates_coordinator_errors", "kip_345_enabled"),
    *("kip_345_disabled", "consumer_compressed_returns_older_msgs", "consumer_invalid_crc_in_records"),
    *("rebalance_listener_with_coroutines", "kafka_consumer_sets_coordinator_values"),
    *("consumer_propagates_commit_refresh_errors", "consumer_propagates_heartbeat_errors"),
    *("producer_invalid_leader_retry_metadata", "producer_leader_change_preserves_order"),
    *("producer_context_manager", "producer_idempotence_configuration", "producer_send_empty_batch"),
    *("producer_sender_errors_propagate_to_producer", "producer_transactional_aborting_previous_failure"),
    *("producer_transactional_cancel_txn_methods", "producer_transactional_raise_out_of_sequence"),
    *("producer_transactional_restart_reaquire_pid", "producer_indempotence_no_duplicates"),
    *("producer_send_timeout", "producer_send_reenque_resets_waiters", "producer_send_error"),
    "producer_correct_time_returned",
)
#: Message of the error of such a test.
NO_ATTRIBUTE = re.compile(r"has no attribute '(\w+)'|does not have the attribute '(\w+)'")
#: The same for runs with the facade of kcodec in place of the client.
KNOWN_WITH_FACADE: dict[str, dict[str, str]] = {
    "aiokafka": {
        "*test_consumer_compacted_topic": "replaces PartitionRecords.__next__ of aiokafka",
        "*test_consumer_seek_forward_get*": "counts Fetch requests of aiokafka's fetcher",
        "*test_producer_notopic": "replaces AIOKafkaClient._metadata_update",
        "*test_producer_send_leader_notfound": "replaces ClusterMetadata.leader_for_partition of aiokafka",
        "*test_kafka_consumer_offsets_errors": "expects a timeout; the facade reports an unknown partition at once",
        "*test_max_poll_interval_ms": (
            "expects that an automatic commit includes the record that is being processed; the facade reads it again"
        ),
        "*test_consumer_seek_backward": (
            "counts Fetch requests of aiokafka's fetcher, or expects records within 500 ms after a seek; the Fetch"
            " request that is under way takes as long"
        ),
        "*test_large_messages_getmany": (
            "expects that getmany() returns the records of one Fetch response; the facade may return those of two"
        ),
        "*test_consumer_rebalance_on_new_topic": (
            "expects that two members see a new topic in one rebalance; the members of the facade may need two"
        ),
    },
    "confluent-kafka": {
        "*test_Consumer::test_basic_api": (
            "expects that seek() of a partition that was just assigned fails; the facade performs it"
        ),
        "*test_Consumer::test_*callback_exception_*": "expects an error within 100 ms; fails on a busy machine",
        "*test_Wakeable::test_can_be_interrupted[[]producer-flush]": (
            "expects that a message with message.timeout.ms=10 has not timed out after 100 ms; the facade reports it"
            " in time, and flush() returns"
        ),
        "*test_log::test_consumer_logger*": "expects lines that librdkafka logs",
    },
}


#: The same for runs on Apache Kafka, whose only node has the id 1.
KNOWN_ON_KAFKA: dict[str, dict[str, str]] = {
    "aiokafka": {"*ssl*": TLS, "*TestKafkaSASL*": SASL},
    "kafka-python": {
        "*test_create_describe_delete_acls": AUTHORIZER,
        "*test_create_partitions": "assigns a replica to a node with the id 0",
        "*TestSSLConnection*": TLS,
        "*test_sasl_integration*": SASL,
    },
    "confluent-kafka": {"*test_describe_operations*": SASL, "*admin.test_basic_operations*": AUTHORIZER},
}


def known_reason(client: str, result: Result, kind: str, broker: str) -> str | None:
    """Return why a test is known not to pass; None if it should. kind: "own" or "kcodec"."""
    if NEEDS in result.message:
        return "needs " + result.message.partition(NEEDS)[2]
    patterns = dict(KNOWN.get(client, {}))
    if kind == "kcodec":
        patterns |= KNOWN_WITH_FACADE.get(client, {})
    if broker == "kafka":
        patterns |= KNOWN_ON_KAFKA.get(client, {})
    if kind == "kcodec" and client == "aiokafka" and result.test.partition("::test_")[2] in AIOKAFKA_ATTRIBUTES:
        missing = NO_ATTRIBUTE.search(result.message)
        return missing and f"uses the attribute {missing[1] or missing[2]} of a client of aiokafka"
    return next((reason for pattern, reason in patterns.items() if fnmatch.fnmatchcase(result.test, pattern)), None)
