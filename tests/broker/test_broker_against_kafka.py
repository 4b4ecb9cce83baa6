# SPDX-License-Identifier: Apache-2.0
"""The embedded broker and Apache Kafka get the same random requests and give the same responses, and the same logs.

tests/prove/prove_broker.py runs more sequences, on more kinds of brokers.
"""

from __future__ import annotations

import socket
from collections import Counter

import pytest
from broker_differences import first_difference
from broker_sequence_runner import run_sequence
from broker_sequences import PROFILES, Sequence
from broker_targets import CoreTarget, SocketTarget

from kcodec.broker import Broker
from kcodec.protocol import messages
from kcodec.protocol.frame import encode_request
from kcodec.testing.kafka import ApacheKafka

FIRST, SEQUENCES = 1000, 50
#: Every tenth sequence goes to the embedded broker over TCP, the others to its core.
OVER_TCP = 10


def test_random_requests_get_the_responses_of_kafka(apache_kafka: ApacheKafka) -> None:
    codes: Counter[tuple[str, str]] = Counter()
    kafka = SocketTarget(apache_kafka.bootstrap_servers)
    with Broker(offsets_topic_partitions=3, transaction_topic_partitions=3) as broker:
        server = SocketTarget(broker.bootstrap_servers)
        core = CoreTarget(offsets_topic_partitions=3, transaction_topic_partitions=3)
        for seed in range(FIRST, FIRST + SEQUENCES):
            expected = run_sequence(Sequence(seed, PROFILES["tv2"], lingers=True), kafka)
            ours = run_sequence(Sequence(seed, PROFILES["tv2"], lingers=True), core if seed % OVER_TCP else server)
            assert first_difference(expected, ours) is None
            codes += expected.codes
        server.close()
    kafka.close()
    assert {code for _, code in codes} >= {"NONE", "INVALID_PRODUCER_EPOCH", "INVALID_TXN_STATE", "PRODUCER_FENCED"}
    assert len(codes) > 100


@pytest.mark.parametrize("is_kafka", [True, False], ids=["Apache Kafka", "embedded"])
def test_bytes_after_a_request_are_ignored(apache_kafka: ApacheKafka, is_kafka: bool) -> None:
    """librdkafka sends such a byte in AlterUserScramCredentials."""
    with Broker() as broker:
        host, _, port = (apache_kafka if is_kafka else broker).bootstrap_servers.rpartition(":")
        request = messages.DescribeUserScramCredentialsRequest(users=[messages.ScramUserName(name="nobody")])
        for message, version in ((messages.MetadataRequest(topics=[]), 1), (request, 0)):
            frame = encode_request(message, version, 7, "test")[4:] + b"\0\1more"
            with socket.create_connection((host, int(port)), 20) as connection:
                connection.sendall(len(frame).to_bytes(4, "big") + frame)
                assert connection.recv(8)[4:8] == (7).to_bytes(4, "big")
