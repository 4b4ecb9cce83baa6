# SPDX-License-Identifier: Apache-2.0
"""list_topics() and cluster_id() of confluent_kafka's clients, which return its ClusterMetadata."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka import admin as _admin

from kcodec.admin.values import TopicDescription
from kcodec.client import Admin
from kcodec.client.properties import options_from_properties
from kcodec.compat._confluent_errors import as_kafka_exceptions, kafka_error, seconds
from kcodec.compat._confluent_events import Observer
from kcodec.errors import BrokerError, KcodecError

log = logging.getLogger("kcodec.compat")
#: Mechanisms with a user name and a password.
PASSWORD_MECHANISMS = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})
#: Maximum time of the attempts to make the first connection.
CONNECT_SECONDS = 60.0

# The stubs of confluent_kafka do not export all of the names.
admin: Any = _admin


class ClusterReader:
    """An Admin with the connection options of another client. It is created when it is first needed."""

    def __init__(self, options: dict[str, Any], observer: Observer) -> None:
        self.options = _of_every_client(options)
        if observer.is_used:
            self.options["metrics"] = observer
        self._admin: Admin | None = None
        self._lock = threading.Lock()

    def connect(self) -> None:
        """Connect in the background, as librdkafka does when a client is created, so that failures are reported."""
        _ = self.admin  # created here, so that the constructor of the client raises its errors
        threading.Thread(target=self._connect, name="kcodec.compat.confluent", daemon=True).start()

    def _connect(self) -> None:
        try:
            self.admin.describe_cluster(timeout=CONNECT_SECONDS)
        except (KcodecError, RuntimeError) as error:
            log.debug("the first connection failed: %s", error)  # the observer has reported it

    def set_credentials(self, username: str, password: str, *clients: Any) -> None:
        """Authenticate later connections of these clients with other credentials. Raise TypeError unless both are str,
        and KafkaException if they are invalid. Without a password mechanism of SASL, this has no effect."""
        for name, value in (("username", username), ("password", password)):
            if not isinstance(value, str):
                raise TypeError(f"{name} must be str, not {type(value).__name__}")
        if self.options.get("sasl_mechanism") not in PASSWORD_MECHANISMS:
            return
        changed = {**self.options, "sasl_plain_username": username, "sasl_plain_password": password}
        with as_kafka_exceptions():
            for one in (self.admin, *clients):
                one._client.options.security.change_credentials(changed)
        self.options = changed

    @property
    def admin(self) -> Admin:
        """The Admin, which is created with the first use."""
        with self._lock:
            if self._admin is None:
                self._admin = Admin(**self.options)
            return self._admin

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._admin is not None:
                self._admin.close()

    def cluster_id(self, timeout: float) -> str | None:
        """Return the id of the cluster. Raise KafkaException if it cannot be read."""
        with as_kafka_exceptions():
            return self.admin.describe_cluster(timeout=seconds(timeout)).cluster_id

    def list_topics(self, topic: str | None, timeout: float) -> Any:
        """Return the brokers, and one topic or all topics. An unknown topic is in the result, with its error.

        Raise KafkaException if they cannot be read.
        """
        found: Any = admin.ClusterMetadata()
        limit = seconds(timeout)
        deadline = None if limit is None else time.monotonic() + limit

        def left() -> float | None:
            return None if deadline is None else max(deadline - time.monotonic(), 0.0)

        with as_kafka_exceptions():
            cluster = self.admin.describe_cluster(timeout=left())
            found.cluster_id = cluster.cluster_id
            found.controller_id = -1 if cluster.controller_id is None else cluster.controller_id
            for node in cluster.brokers:
                broker: Any = admin.BrokerMetadata()
                broker.id, broker.host, broker.port = node.id, node.host, node.port
                found.brokers[node.id] = broker
            found.topics = self._topics(topic, left())
        first = min(found.brokers.values(), key=lambda one: one.id, default=None)
        if first is not None:
            found.orig_broker_id, found.orig_broker_name = first.id, f"{first.host}:{first.port}/{first.id}"
        return found

    def _topics(self, topic: str | None, timeout: float | None) -> dict[str, Any]:
        try:
            described = self.admin.describe_topics(None if topic is None else [topic], timeout=timeout)
        except BrokerError as error:
            if topic is None:
                raise
            failed: Any = admin.TopicMetadata()
            failed.topic, failed.error = topic, kafka_error(error)
            return {topic: failed}
        return {name: _topic(one) for name, one in described.items()}


def _topic(described: TopicDescription) -> Any:
    """Return a topic as a TopicMetadata of confluent_kafka."""
    topic: Any = admin.TopicMetadata()
    topic.topic = described.name
    for one in described.partitions:
        partition: Any = admin.PartitionMetadata()
        partition.id, partition.replicas, partition.isrs = one.partition, list(one.replicas), list(one.isr)
        partition.leader = -1 if one.leader is None else one.leader
        if one.leader is None:
            partition.error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
        topic.partitions[one.partition] = partition
    return topic


def _of_every_client(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that an Admin has."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        try:
            options_from_properties({name: value}, "Admin")
        except TypeError:
            continue  # an option of producers or consumers
        if name != "metrics":
            found[name] = value
    return found
