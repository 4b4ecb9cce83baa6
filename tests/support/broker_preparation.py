# SPDX-License-Identifier: Apache-2.0
"""The brokers that a profile of sequences needs, and the transactional ids that exist before a sequence.

Those have epochs that no test could use up request by request. Their records are written to ``__transaction_state`` as
the coordinator would write them, by a client that may write to internal topics. The coordinator has them after it has
read its log again.
"""

from __future__ import annotations

from typing import Any

from broker_sequences import EXPIRATION_MS, Profile, Sequence
from broker_targets import ADMIN_CLIENT, CoreTarget, Identity, Target

import kcodec
from kcodec.broker.internal_topics import coordinator_record, partition_for_key
from kcodec.broker.transactions.state import State
from kcodec.constants import TRANSACTION_STATE_TOPIC
from kcodec.protocol import messages

#: Long enough that no prepared transaction times out before its sequence begins.
TIMEOUT_MS = 900_000
LEADER_MS = 10_000


PARTITIONS = 3
# Kafka waits up to this time for what it looks for in sequences with a clock.
_SCAN_MS = 50


def kafka_properties(profile: Profile) -> dict[str, Any]:
    """Return the settings of an Apache Kafka for this profile."""
    properties: dict[str, Any] = {
        # A group's requests are written one by one also if they come from many connections.
        "group_coordinator_append_linger_ms": 0,
        # In a run of more than ten minutes, Kafka would remove the empty groups of the sequence at that moment.
        "offsets_retention_check_interval_ms": 86_400_000,
        # On a slow machine the controller receives the broker's heartbeats late, and would reject new topics.
        "broker_session_timeout_ms": 120_000,
    }
    if profile.has_clock:
        properties |= {
            "transaction_abort_timed_out_transaction_cleanup_interval_ms": _SCAN_MS,
            "transaction_remove_expired_transaction_cleanup_interval_ms": _SCAN_MS,
            "transactional_id_expiration_ms": EXPIRATION_MS,
            "producer_id_expiration_ms": EXPIRATION_MS,
            "producer_id_expiration_check_interval_ms": _SCAN_MS,
        }
    return properties


def core_target(profile: Profile) -> CoreTarget:
    """Return the embedded broker for this profile."""
    settings: dict[str, Any] = {
        "transaction_version": profile.transaction_version,
        "offsets_topic_partitions": PARTITIONS,
        "transaction_topic_partitions": PARTITIONS,
    }
    if profile.has_clock:
        settings |= {
            "transaction_timeout_scan_ms": _SCAN_MS,
            "transactional_id_scan_ms": _SCAN_MS,
            "transactional_id_expiration_ms": EXPIRATION_MS,
            "producer_id_expiration_ms": EXPIRATION_MS,
            "retention_check_interval_ms": _SCAN_MS,
        }
    return CoreTarget(**settings)


def prepare(target: Target, sequences: list[Sequence]) -> None:
    """Write the records of all sequences. The coordinator does not know them yet."""
    find = messages.FindCoordinatorRequest(key="prepared", key_type=1)
    target.ask(find, 3, lambda response: [response.error_code])
    named = messages.MetadataRequest(topics=[messages.MetadataRequestTopic(name=TRANSACTION_STATE_TOPIC)])
    count = len(target.send(named, 12).topics[0].partitions)
    records: dict[int, list[tuple[bytes, bytes | None]]] = {number: [] for number in range(count)}
    for sequence in sequences:
        for name, prepared in zip(sequence.ids, sequence.prepared, strict=False):
            init = messages.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            given = target.ask(init, 5, lambda response: [response.error_code])
            target.prepared[name] = Identity(given.producer_id, prepared.epoch)
            state = State[prepared.state]
            is_open = state is State.ONGOING
            partitions = [messages.TransactionLogPartitions(topic=sequence.name, partition_ids=[0])] if is_open else []
            version = min(sequence.profile.transaction_version, 1)
            tagged = {"client_transaction_version": prepared.client_version} if version else {}
            value = messages.TransactionLogValue(
                producer_id=given.producer_id,
                producer_epoch=prepared.epoch,
                transaction_timeout_ms=TIMEOUT_MS,
                transaction_status=int(state),
                transaction_partitions=None if state is State.EMPTY else partitions,
                transaction_last_update_timestamp_ms=target.now_ms(),
                transaction_start_timestamp_ms=target.now_ms(),
                **tagged,
            )
            key = messages.TransactionLogKey(transactional_id=name)
            records[partition_for_key(name, count)].append(coordinator_record(key, value, version))
    for number, found in records.items():
        if found:
            _write(target, number, found)


def _write(target: Target, partition: int, records: list[tuple[bytes, bytes | None]]) -> None:
    batch = bytes(kcodec.encode(records, timestamp=target.now_ms()))
    data = messages.PartitionProduceData(index=partition, records=batch)
    topic = messages.TopicProduceData(name=TRANSACTION_STATE_TOPIC, partition_data=[data])
    request = messages.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])
    deadline = target.now_ms() + LEADER_MS
    while (written := target.send(request, 9, ADMIN_CLIENT).responses[0].partition_responses[0]).error_code != 0:
        assert target.now_ms() < deadline, written  # the topic is new: its partitions get their leaders
        target.wait(10)
