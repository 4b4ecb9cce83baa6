# SPDX-License-Identifier: Apache-2.0
"""The admin client of the asyncio API. Each method runs a flow of `kcodec.admin.flows`."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Never, ParamSpec, Self, TypeVar, Unpack

from kcodec.arguments import check_seconds
from kcodec.client.aio.waiting import ClientBase, IoLoop
from kcodec.client.flows import Client, FlowMethod, LateFlows
from kcodec.cluster.broker_report import reported

if TYPE_CHECKING:
    from kcodec.admin import flows
    from kcodec.client.options import ClientOptions
    from kcodec.cluster.retry_driver import CallContext
    from kcodec.flow import Flow
else:
    flows = LateFlows("kcodec.admin.flows")

P = ParamSpec("P")
T = TypeVar("T")


def _run_of(
    flow: Callable[Concatenate[CallContext, P], Flow[T]],
) -> Callable[Concatenate[Admin, P], Coroutine[Any, Any, T]]:
    async def method(self: Admin, /, *args: P.args, **kwargs: P.kwargs) -> T:
        timeout: Any = kwargs.get("timeout")
        check_seconds(timeout, f"{flow.__name__}()")
        limit = self._context.api_timeout if timeout is None else timeout
        called = flow(self._context, *args, **kwargs)
        cluster = self._context.cluster
        return await self._run(reported(called, cluster, f"Admin.{flow.__name__}", limit, "kcodec.client"))

    return method


def _method(
    flow: Callable[Concatenate[CallContext, P], Flow[T]],
) -> Callable[Concatenate[Admin, P], Coroutine[Any, Any, T]]:
    late: Any = flow
    return FlowMethod(late, _run_of)


class Admin(ClientBase):
    # SYNC: "Use it only in the event loop of its first call." -> "It is thread-safe."
    """A client that manages the topics, configurations, groups, offsets, transactions and permissions of a cluster.
    Use it only in the event loop of its first call.

    async with Admin(bootstrap_servers="localhost:9092") as admin:
        await admin.create_topics([NewTopic("orders", num_partitions=6)])
        (await admin.find_hanging_transactions()).transactions

    The options are those of every client (`kcodec.client.ClientOptions`). `kcodec.security` describes the options of
    TLS and SASL. Each method has a `timeout` in seconds for the whole call. The default is default_api_timeout_ms.
    Within this time, a request that fails with a retriable error is repeated, for example if a leader, coordinator or
    controller has moved.

    A method for several items returns a result for each item. If the call has only one item and this item fails, the
    method raises the error of the item. If the call has several items and some of them fail, the method raises
    AdminError, an ExceptionGroup. Its attributes `errors` and `results` contain the errors and the results by item.
    `except* BrokerError` catches the error of a single item as well as those in an AdminError.
    """

    def __init__(self, *positional: Never, **options: Unpack[ClientOptions]) -> None:
        from kcodec.cluster.retry_driver import CallContext
        from kcodec.network.option_names import refuse_positional
        from kcodec.network.options import ClientConfig, refuse_unknown
        from kcodec.security import SECURITY_OPTIONS

        refuse_positional(positional, "Admin")
        left = dict(options)
        taken = ClientConfig.take(left)
        refuse_unknown(left, {*ClientConfig.names(), *SECURITY_OPTIONS}, "Admin")
        self._client = Client(taken)
        self._io_loop = IoLoop(self._client)
        cluster = self._client.cluster
        cluster.allow_auto_topic_creation = False
        self._context = CallContext(cluster, taken.default_api_timeout_ms / 1000, lambda: time.time_ns() // 1_000_000)

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, Any] | str | PathLike[str], **options: Unpack[ClientOptions]
    ) -> Self:
        """Create a client from properties with the names of Java's clients or of librdkafka.

        properties: A mapping, or the path of a file in the format of java.util.Properties. Text values are converted to
                    the types of the options.
        options: Options of kcodec. They override the properties.

        A file may also contain options that only other clients have. They have no effect and are logged as a WARNING.

        Raise TypeError if Admin does not have some of the names. The error lists all of them, each with a suggestion
        where there is one. Raise ValueError if a value is invalid, and OSError if the file cannot be read. Errors never
        show the values of secrets.
        """
        from kcodec.client.properties import options_from_properties

        taken: Any = {**options_from_properties(properties, "Admin"), **options}
        return cls(**taken)

    async def close(self, timeout: float = 5.0) -> None:
        # SYNC: "timeout: Has no effect." -> "timeout: Maximum time to wait for the end of the I/O thread, in seconds."
        # SYNC: "other tasks" -> "other threads"
        """Close the connections. Calls of other tasks that are still in progress fail. Closing again has no effect.

        timeout: Has no effect.
        """
        await self._io_loop.close(timeout)

    async def __aenter__(self) -> Self:
        return self  # the first call connects to the brokers

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Admin {', '.join(map(str, self._client.options.addresses))}>"

    abort_transaction = _method(flows.abort_transaction)
    alter_client_quotas = _method(flows.alter_client_quotas)
    alter_configs = _method(flows.alter_configs)
    alter_group_offsets = _method(flows.alter_group_offsets)
    alter_partition_reassignments = _method(flows.alter_partition_reassignments)
    alter_replica_log_dirs = _method(flows.alter_replica_log_dirs)
    alter_user_scram_credentials = _method(flows.alter_user_scram_credentials)
    create_acls = _method(flows.create_acls)
    create_delegation_token = _method(flows.create_delegation_token)
    create_partitions = _method(flows.create_partitions)
    create_topics = _method(flows.create_topics)
    delete_acls = _method(flows.delete_acls)
    delete_group_offsets = _method(flows.delete_group_offsets)
    delete_groups = _method(flows.delete_groups)
    delete_records = _method(flows.delete_records)
    delete_topics = _method(flows.delete_topics)
    describe_acls = _method(flows.describe_acls)
    describe_client_quotas = _method(flows.describe_client_quotas)
    describe_cluster = _method(flows.describe_cluster)
    describe_configs = _method(flows.describe_configs)
    describe_delegation_tokens = _method(flows.describe_delegation_tokens)
    describe_features = _method(flows.describe_features)
    describe_group_lag = _method(flows.describe_group_lag)
    describe_groups = _method(flows.describe_groups)
    describe_log_dirs = _method(flows.describe_log_dirs)
    describe_producers = _method(flows.describe_producers)
    describe_quorum = _method(flows.describe_quorum)
    describe_topics = _method(flows.describe_topics)
    describe_transactions = _method(flows.describe_transactions)
    describe_user_scram_credentials = _method(flows.describe_user_scram_credentials)
    elect_leaders = _method(flows.elect_leaders)
    expire_delegation_token = _method(flows.expire_delegation_token)
    fence_producers = _method(flows.fence_producers)
    find_abandoned_transactions = _method(flows.find_abandoned_transactions)
    find_hanging_transactions = _method(flows.find_hanging_transactions)
    find_stray_transactions = _method(flows.find_stray_transactions)
    list_config_resources = _method(flows.list_config_resources)
    list_group_offsets = _method(flows.list_group_offsets)
    list_groups = _method(flows.list_groups)
    list_offsets = _method(flows.list_offsets)
    list_partition_reassignments = _method(flows.list_partition_reassignments)
    list_share_group_offsets = _method(flows.list_share_group_offsets)
    list_topics = _method(flows.list_topics)
    list_transactions = _method(flows.list_transactions)
    renew_delegation_token = _method(flows.renew_delegation_token)
    unregister_broker = _method(flows.unregister_broker)
    update_features = _method(flows.update_features)
