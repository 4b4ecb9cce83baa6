# SPDX-License-Identifier: Apache-2.0
"""Admin for threads: each method runs a flow of `kcodec.admin.flows` and waits for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Concatenate, Never, ParamSpec, Self, TypeVar, Unpack

from kcodec.admin import flows
from kcodec.client.admin_base import asking_of
from kcodec.client.methods import dress
from kcodec.cluster.retry_driver import Asking
from kcodec.flow import Flow
from kcodec.network.option_names import NotPickled, refuse_positional
from kcodec.network.thread_loop import Carrier

if TYPE_CHECKING:
    from kcodec.client.options import ClientOptions

P = ParamSpec("P")
T = TypeVar("T")


def _method(flow: Callable[Concatenate[Asking, P], Flow[T]]) -> Callable[Concatenate[Admin, P], T]:
    def method(self: Admin, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(flow(self._asking, *args, **kwargs))

    dress(method, flow)
    return method


class Admin(NotPickled):
    """Topics, configurations, groups, offsets, transactions and permissions of a cluster, from any thread.

    with Admin(bootstrap_servers="localhost:9092") as admin:
        admin.create_topics([NewTopic("orders", num_partitions=6)])
        admin.find_hanging_transactions().transactions

    Options are those of every client (`kcodec.client.ClientOptions`, TLS and SASL: `kcodec.security`).
    Each method takes `timeout`, seconds for the whole call, else default_api_timeout_ms counts; until then retriable
    errors, moved leaders, coordinators and controllers are asked again. A method on several items gives what became of
    each, by item; where one fails it raises: the item's own error if it was alone, else AdminError, an ExceptionGroup
    with `.errors` and `.results` by item. `except* BrokerError` catches both.
    """

    def __init__(self, *positional: Never, **options: Unpack[ClientOptions]) -> None:
        refuse_positional(positional, "Admin")
        self._client, self._asking = asking_of(options)
        self._carrier = Carrier(self._client)

    def _run(self, flow: Flow[T]) -> T:
        return self._carrier.run(flow)

    def close(self, timeout: float = 5.0) -> None:
        """Close the connections; calls under way end with TransportError. Idempotent."""
        self._carrier.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        carrier = getattr(self, "_carrier", None)
        if carrier is not None and not carrier.is_closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
            carrier.close(0.0)

    def __repr__(self) -> str:
        return f"<Admin {', '.join(map(str, self._client.options.addresses))}>"

    abort_transaction = _method(flows.abort_transaction)
    alter_configs = _method(flows.alter_configs)
    alter_group_offsets = _method(flows.alter_group_offsets)
    alter_user_scram_credentials = _method(flows.alter_user_scram_credentials)
    create_acls = _method(flows.create_acls)
    create_partitions = _method(flows.create_partitions)
    create_topics = _method(flows.create_topics)
    delete_acls = _method(flows.delete_acls)
    delete_group_offsets = _method(flows.delete_group_offsets)
    delete_groups = _method(flows.delete_groups)
    delete_records = _method(flows.delete_records)
    delete_topics = _method(flows.delete_topics)
    describe_acls = _method(flows.describe_acls)
    describe_cluster = _method(flows.describe_cluster)
    describe_configs = _method(flows.describe_configs)
    describe_features = _method(flows.describe_features)
    describe_group_lag = _method(flows.describe_group_lag)
    describe_groups = _method(flows.describe_groups)
    describe_producers = _method(flows.describe_producers)
    describe_topics = _method(flows.describe_topics)
    describe_transactions = _method(flows.describe_transactions)
    describe_user_scram_credentials = _method(flows.describe_user_scram_credentials)
    elect_leaders = _method(flows.elect_leaders)
    fence_producers = _method(flows.fence_producers)
    find_hanging_transactions = _method(flows.find_hanging_transactions)
    find_stray_transactions = _method(flows.find_stray_transactions)
    list_group_offsets = _method(flows.list_group_offsets)
    list_groups = _method(flows.list_groups)
    list_offsets = _method(flows.list_offsets)
    list_topics = _method(flows.list_topics)
    list_transactions = _method(flows.list_transactions)
    update_features = _method(flows.update_features)
