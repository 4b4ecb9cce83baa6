# SPDX-License-Identifier: Apache-2.0
"""The most used methods of aiokafka.admin.AIOKafkaAdminClient, on kcodec's asyncio Admin."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Self

import aiokafka
from aiokafka.protocol.admin import CreatePartitionsResponse_v1, CreateTopicsResponse_v1, DeleteTopicsResponse_v1
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from kcodec import errors
from kcodec.admin.values import NewTopic
from kcodec.client.aio import Admin
from kcodec.compat._aiokafka_cluster import connect
from kcodec.compat._aiokafka_errors import as_aiokafka_errors, not_supported
from kcodec.compat._aiokafka_options import client_options
from kcodec.offsets import TopicPartition as Place


class AIOKafkaAdminClient:
    """aiokafka.admin.AIOKafkaAdminClient on kcodec, with the methods for topics, groups, their offsets and the
    cluster."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        bootstrap_servers: str | list[str] = "localhost",
        client_id: str = "aiokafka-" + aiokafka.__version__,
        request_timeout_ms: float = 40000,
        connections_max_idle_ms: float | None = 540000,
        retry_backoff_ms: float = 100,
        metadata_max_age_ms: float = 300000,
        security_protocol: str = "PLAINTEXT",
        ssl_context: Any = None,
        api_version: Any = None,
        sasl_mechanism: str = "PLAIN",
        sasl_plain_username: str | None = None,
        sasl_plain_password: str | None = None,
        sasl_kerberos_service_name: str = "kafka",
        sasl_kerberos_domain_name: str | None = None,
        sasl_oauth_token_provider: Any = None,
    ) -> None:
        self._request_seconds = request_timeout_ms / 1000
        self._settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap_servers,
            "client_id": client_id,
            "metadata_max_age_ms": metadata_max_age_ms,
            "request_timeout_ms": request_timeout_ms,
            "retry_backoff_ms": retry_backoff_ms,
            "connections_max_idle_ms": connections_max_idle_ms,
            "security_protocol": security_protocol,
            "ssl_context": ssl_context,
            "sasl_mechanism": sasl_mechanism,
            "sasl_plain_username": sasl_plain_username,
            "sasl_plain_password": sasl_plain_password,
            "sasl_kerberos_service_name": sasl_kerberos_service_name,
            "sasl_kerberos_domain_name": sasl_kerberos_domain_name,
            "sasl_oauth_token_provider": sasl_oauth_token_provider,
        }
        self._kcodec: Admin | None = None

    async def start(self) -> None:
        """Connect. Raise KafkaConnectionError if no broker can be reached."""
        if self._kcodec is not None:
            return
        admin = Admin(**client_options(loop=asyncio.get_running_loop(), **self._settings))
        with as_aiokafka_errors():
            try:
                await connect(admin, self._request_seconds)
            except BaseException:
                await admin.close()
                raise
        self._kcodec = admin

    async def close(self) -> None:
        """Close the connections."""
        admin, self._kcodec = self._kcodec, None
        if admin is not None:
            await admin.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def _admin(self) -> Admin:
        assert self._kcodec is not None, "call start() first"
        return self._kcodec

    def _seconds(self, timeout_ms: float | None) -> float:
        return timeout_ms / 1000 if timeout_ms else self._request_seconds

    # Topics

    async def create_topics(
        self, new_topics: list[Any], timeout_ms: int | None = None, validate_only: bool = False
    ) -> Any:
        """Create topics, and return the response, which has the error code of each topic."""
        wanted = []
        for one in new_topics:
            placed = {number: tuple(brokers) for number, brokers in one.replica_assignments.items()}
            numbers = {} if placed else {"replication_factor": _unless_default(one.replication_factor)}
            if not placed:
                numbers["num_partitions"] = _unless_default(one.num_partitions)
            wanted.append(NewTopic(one.name, configs=one.topic_configs, assignments=placed or None, **numbers))
        seconds = self._seconds(timeout_ms)
        call = self._admin.create_topics(wanted, validate_only=validate_only, timeout=seconds)
        failed = await _item_errors(call, [one.name for one in wanted])
        return CreateTopicsResponse_v1([(one.name, *_code_of(failed.get(one.name))) for one in wanted])

    async def delete_topics(self, topics: list[str], timeout_ms: int | None = None) -> Any:
        """Delete topics, and return the response, which has the error code of each topic."""
        failed = await _item_errors(self._admin.delete_topics(topics, timeout=self._seconds(timeout_ms)), topics)
        return DeleteTopicsResponse_v1(0, [(one, _code_of(failed.get(one))[0]) for one in topics])

    async def create_partitions(
        self, topic_partitions: Mapping[str, Any], timeout_ms: int | None = None, validate_only: bool = False
    ) -> Any:
        """Increase the number of partitions of topics. Raise the first error of a topic."""
        if any(one.new_assignments for one in topic_partitions.values()):
            raise not_supported("new_assignments", "let the brokers choose the replicas")
        counts = {name: one.total_count for name, one in topic_partitions.items()}
        with as_aiokafka_errors():
            await self._admin.create_partitions(counts, validate_only=validate_only, timeout=self._seconds(timeout_ms))
        return CreatePartitionsResponse_v1(0, [(name, 0, None) for name in counts])

    async def list_topics(self) -> list[str]:
        """Return the names of all topics."""
        with as_aiokafka_errors():
            return list(await self._admin.list_topics(include_internal=True))

    async def describe_topics(self, topics: list[str] | None = None) -> list[dict[str, Any]]:
        """Return topics and their partitions, with the error code of a topic that cannot be described."""
        found: dict[str, Any] = {}
        failed: dict[str, Any] = {}
        if topics is None or topics:
            with as_aiokafka_errors():
                try:
                    found = dict(await self._admin.describe_topics(topics))
                except errors.AdminError as error:
                    found, failed = dict(error.results), dict(error.errors)
                except errors.BrokerError as error:
                    if not topics:
                        raise
                    failed = {topics[0]: error}
        return [_topic(name, found.get(name), failed.get(name)) for name in (found if topics is None else topics)]

    # The cluster and its groups

    async def describe_cluster(self) -> dict[str, Any]:
        """Return the brokers, the controller and the id of the cluster."""
        with as_aiokafka_errors():
            found = await self._admin.describe_cluster()
        nodes = found.brokers
        brokers = [{"node_id": one.id, "host": one.host, "port": one.port, "rack": one.rack} for one in nodes]
        controller = -1 if found.controller_id is None else found.controller_id
        return {
            "throttle_time_ms": 0,
            "brokers": brokers,
            "cluster_id": found.cluster_id,
            "controller_id": controller,
        }

    async def list_consumer_groups(self, broker_ids: list[int] | None = None) -> list[tuple[Any, ...]]:
        """Return the names of all groups and their protocol types."""
        if broker_ids is not None:
            raise not_supported("broker_ids", "omit it to list the groups of all brokers")
        with as_aiokafka_errors():
            return [(one.group_id, one.protocol_type) for one in (await self._admin.list_groups()).values()]

    async def list_consumer_group_offsets(
        self,
        group_id: str,
        group_coordinator_id: int | None = None,
        partitions: list[TopicPartition] | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group. The offset is -1 for a partition in `partitions` that has none."""
        wanted = None if partitions is None else [Place(*one) for one in partitions]
        with as_aiokafka_errors():
            found = await self._admin.list_group_offsets(group_id, wanted)
        offsets = {
            TopicPartition(*one): OffsetAndMetadata(*((-1, "") if value is None else (value.offset, value.metadata)))
            for one, value in found.items()
        }
        return {**dict.fromkeys(partitions or (), OffsetAndMetadata(-1, "")), **offsets}

    async def delete_records(
        self, records_to_delete: Mapping[TopicPartition, Any], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records before an offset in each partition, and return the first remaining offsets."""
        wanted = {Place(*one): value.before_offset for one, value in records_to_delete.items()}
        with as_aiokafka_errors():
            found = await self._admin.delete_records(wanted, timeout=self._seconds(timeout_ms))
        return {TopicPartition(*one): offset for one, offset in found.items()}

    def __getattr__(self, name: str) -> Any:
        if name in {"describe_configs", "alter_configs", "describe_consumer_groups", "find_coordinator"}:
            raise not_supported(f"AIOKafkaAdminClient.{name}()", "use kcodec.client.aio.Admin")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _unless_default(count: int) -> int | None:
    return None if count == -1 else count


async def _item_errors(call: Any, names: list[str]) -> dict[str, Any]:
    """Return the errors of a call by item."""
    with as_aiokafka_errors():
        try:
            await call
        except errors.AdminError as error:
            return dict(error.errors)
        except errors.BrokerError as error:
            return {names[0]: error}
    return {}


def _code_of(error: Any) -> tuple[int, str | None]:
    return (0, None) if error is None else (getattr(error, "code", -1), str(error))


def _topic(name: str, found: Any, error: Any) -> dict[str, Any]:
    partitions = () if found is None else found.partitions
    return {
        "error_code": _code_of(error)[0],
        "topic": name,
        "is_internal": found is not None and found.is_internal,
        "partitions": [
            {
                "error_code": 0,
                "partition": one.partition,
                "leader": -1 if one.leader is None else one.leader,
                "replicas": list(one.replicas),
                "isr": list(one.isr),
                "offline_replicas": list(one.offline_replicas),
            }
            for one in partitions
        ],
    }
