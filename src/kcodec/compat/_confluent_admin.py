# SPDX-License-Identifier: Apache-2.0
"""The methods of confluent_kafka.admin.AdminClient on kcodec's Admin.

AdminClient of confluent_kafka checks the arguments and creates a future for each item. It calls these methods with one
future for the results of all items. A thread sends the requests.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Self

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
    cimpl,
)
from confluent_kafka import admin as _admin

from kcodec.client import Admin
from kcodec.compat._confluent_admin_values import (
    STATES,
    TYPES,
    deleted_records,
    described_group,
    described_topic,
    election_error,
    entries_of,
    group_metadata,
    incremental_changes,
    listed_offset,
    missing_group,
    new_partitions,
    new_topic,
    nodes_of,
    noted,
    operations,
    replaced,
    resource_of,
)
from kcodec.compat._confluent_checks import (
    UNSET,
    check_flag,
    check_list,
    check_names,
    check_offsets,
    check_partitions,
    limit_of,
)
from kcodec.compat._confluent_cluster import ClusterReader
from kcodec.compat._confluent_errors import (
    as_kafka_exceptions,
    kafka_error,
    local_error,
    place_of,
    seconds,
    written_metadata,
)
from kcodec.compat._confluent_events import Events, Observer
from kcodec.compat._confluent_options import settings_of
from kcodec.compat._confluent_permissions import (
    acl_filter_of,
    acl_of,
    alteration_of,
    confluent_acls,
    confluent_credentials,
)
from kcodec.compat._patches import derived_from
from kcodec.errors import AdminError, BrokerError, KcodecError
from kcodec.offsets import OffsetAndMetadata
from kcodec.offsets import TopicPartition as Partition

# The stubs of confluent_kafka do not export all of the names.
admin: Any = _admin
#: Maximum number of calls of one client that run at the same time.
THREADS = 4
SPECS = {
    cimpl.OFFSET_SPEC_LATEST: "latest",
    cimpl.OFFSET_SPEC_EARLIEST: "earliest",
    cimpl.OFFSET_SPEC_MAX_TIMESTAMP: "max_timestamp",
}


@derived_from(cimpl._AdminClientImpl)
class AdminMethods:
    """The methods of an administration client. librdkafka's own handle is never opened."""

    _reader: ClusterReader | None = None

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._reader = None
        self._settings = settings = settings_of(
            "Admin", arguments, keywords
        )  # keeps the settings alive, because the observer has only a weak reference
        self._events = Events()
        self._observer = Observer(settings, self._events, "producer")
        reader = ClusterReader(settings.options, self._observer)
        with as_kafka_exceptions(), settings.naming():
            _ = reader.admin
        self._threads = ThreadPoolExecutor(THREADS, "kcodec.compat.confluent")
        self._reader = reader
        if settings.error_cb is not None:
            reader.connect()

    def _open(self, client: str = "AdminClient") -> ClusterReader:
        if self._reader is None:
            raise RuntimeError(f"{client} has been closed")
        return self._reader

    def _admin(self) -> Admin:
        return self._open().admin

    def _limit(self, *timeouts: float) -> float | None:
        return limit_of(self._open().options, *timeouts)

    def _start(self, future: Future[Any], work: Callable[[], Any]) -> None:
        """Run a call in a thread. The future gets its result or its error."""

        def run() -> None:
            try:
                with as_kafka_exceptions():
                    result = work()
            except BaseException as error:  # noqa: BLE001  the future raises it
                future.set_exception(error)
            else:
                future.set_result(result)

        self._threads.submit(run)

    # Topics

    def create_topics(
        self,
        topics: list[Any],
        future: Future[Any],
        validate_only: bool = False,
        request_timeout: float = UNSET,
        operation_timeout: float = UNSET,
    ) -> None:
        """Create topics. The results are by name."""
        limit = self._limit(request_timeout, operation_timeout)
        check_flag("validate_only", validate_only)
        wanted = [new_topic(one) for one in topics]
        call, names = self._admin().create_topics, [one.name for one in wanted]
        self._start(future, lambda: _errors(call, names, wanted, limit, validate_only))

    def delete_topics(
        self, topics: list[str], future: Future[Any], request_timeout: float = UNSET, operation_timeout: float = UNSET
    ) -> None:
        """Delete topics. The results are by name."""
        limit = self._limit(request_timeout, operation_timeout)
        check_list("topics", topics, str)
        call = self._admin().delete_topics
        self._start(future, lambda: _errors(call, topics, topics, limit))

    def create_partitions(
        self,
        topics: list[Any],
        future: Future[Any],
        validate_only: bool = False,
        request_timeout: float = UNSET,
        operation_timeout: float = UNSET,
    ) -> None:
        """Increase the number of partitions. The results are by topic name."""
        limit = self._limit(request_timeout, operation_timeout)
        check_list("topics", topics)
        check_flag("validate_only", validate_only)
        wanted = {one.topic: new_partitions(one) for one in topics}
        call = self._admin().create_partitions
        self._start(future, lambda: _errors(call, list(wanted), wanted, limit, validate_only))

    def describe_topics(
        self,
        topic_names: list[str],
        future: Future[Any],
        request_timeout: float = UNSET,
        include_authorized_operations: bool = False,
    ) -> None:
        """Describe topics. The results are in the order of the names."""
        limit = self._limit(request_timeout)
        check_names("topics", topic_names)
        check_flag("include_authorized_operations", include_authorized_operations)
        client = self._admin()

        def work() -> list[Any]:
            nodes = nodes_of(client.describe_cluster(timeout=limit).brokers)
            call = partial(client.describe_topics, include_authorized_operations=include_authorized_operations)
            found = _results(call, topic_names, topic_names, limit)
            return [described_topic(found[name], nodes) for name in topic_names]

        self._start(future, work)

    def describe_cluster(
        self, future: Future[Any], request_timeout: float = UNSET, include_authorized_operations: bool = False
    ) -> None:
        """Describe the brokers and the controller."""
        limit = self._limit(request_timeout)
        check_flag("include_authorized_operations", include_authorized_operations)
        client = self._admin()

        def work() -> Any:
            found = client.describe_cluster(include_authorized_operations=include_authorized_operations, timeout=limit)
            nodes = nodes_of(found.brokers)
            controller = None if found.controller_id is None else nodes.get(found.controller_id)
            return admin.DescribeClusterResult(controller, list(nodes.values()), found.cluster_id, operations(found))

        self._start(future, work)

    # Settings

    def describe_configs(
        self, resources: list[Any], future: Future[Any], request_timeout: float = UNSET, broker: int = -1
    ) -> None:
        """Describe the settings of resources. The results are by resource."""
        limit = self._limit(request_timeout)
        check_list("resources", resources)
        wanted = {resource_of(one): one for one in resources}
        call = self._admin().describe_configs

        def work() -> dict[Any, Any]:
            found = _results(call, list(wanted), list(wanted), limit)
            return {noted(one, found[ours]): entries_of(found[ours]) for ours, one in wanted.items()}

        self._start(future, work)

    def incremental_alter_configs(
        self,
        resources: list[Any],
        future: Future[Any],
        validate_only: bool = False,
        request_timeout: float = UNSET,
        broker: int = -1,
    ) -> None:
        """Change settings. The results are by resource."""
        check_list("resources", resources)
        limit = self._limit(request_timeout)
        wanted = {resource_of(one): one for one in resources}
        changes = {ours: incremental_changes(one) for ours, one in wanted.items()}
        call = self._admin().alter_configs

        def work() -> dict[Any, Any]:
            found = _results(call, list(wanted), changes, limit, validate_only)
            return {noted(one, found[ours]): None for ours, one in wanted.items()}

        self._start(future, work)

    def alter_configs(
        self,
        resources: list[Any],
        future: Future[Any],
        validate_only: bool = False,
        request_timeout: float = UNSET,
        broker: int = -1,
    ) -> None:
        """Replace the settings of resources. The results are by resource.

        The current settings are read first. The request also deletes the current settings that are not named.
        """
        limit = self._limit(request_timeout)
        check_list("resources", resources)
        wanted = {resource_of(one): one for one in resources}
        client = self._admin()

        def work() -> dict[Any, Any]:
            now = _results(client.describe_configs, list(wanted), list(wanted), limit)
            changes = {ours: replaced(ours, now[ours], one.set_config_dict) for ours, one in wanted.items()}
            valid = {ours: one for ours, one in changes.items() if not isinstance(one, KafkaError)}
            found = _results(client.alter_configs, list(valid), valid, limit, validate_only) if valid else {}
            return {noted(one, {**changes, **found}[ours]): None for ours, one in wanted.items()}

        self._start(future, work)

    # Permissions

    def create_acls(self, acls: list[Any], future: Future[Any], request_timeout: float = UNSET) -> None:
        """Add permissions. The results are in the order of the permissions."""
        limit = self._limit(request_timeout)
        check_list("acls", acls, admin.AclBinding)
        wanted, call = [acl_of(one) for one in acls], self._admin().create_acls

        def work() -> list[KafkaError | None]:
            found = _results(call, wanted, wanted, limit)
            return [found[one] for one in wanted]

        self._start(future, work)

    def describe_acls(self, acl_binding_filter: Any, future: Future[Any], request_timeout: float = UNSET) -> None:
        """Return the permissions that a filter selects."""
        limit = self._limit(request_timeout)
        if not isinstance(acl_binding_filter, admin.AclBindingFilter):
            raise TypeError(f"expected an AclBindingFilter, not {type(acl_binding_filter).__name__}")
        chosen, call = acl_filter_of(acl_binding_filter), self._admin().describe_acls
        self._start(future, lambda: confluent_acls(call(chosen, timeout=limit)))

    def delete_acls(self, filters: list[Any], future: Future[Any], request_timeout: float = UNSET) -> None:
        """Delete the permissions that filters select. The results are in the order of the filters."""
        limit = self._limit(request_timeout)
        check_list("acls", filters, admin.AclBindingFilter)
        chosen, call = [acl_filter_of(one) for one in filters], self._admin().delete_acls

        def work() -> list[Any]:
            found = _results(call, chosen, chosen, limit)
            return [confluent_acls(found[one]) for one in chosen]

        self._start(future, work)

    def describe_user_scram_credentials(
        self, users: list[str] | None, future: Future[Any], request_timeout: float = UNSET
    ) -> None:
        """Describe the SCRAM credentials of users, or of all users if `users` is None. The results are by user."""
        limit, client = self._limit(request_timeout), self._admin()
        if users is not None:
            check_names("users", users)
            if len(set(users)) < len(users):
                raise local_error(KafkaError._INVALID_ARG, "Duplicate users aren't allowed in users")

        def work() -> dict[str, Any]:
            found = client.describe_user_scram_credentials(users, timeout=limit)
            return {user: confluent_credentials(user, one) for user, one in found.items()}

        self._start(future, work)

    def alter_user_scram_credentials(
        self, alterations: list[Any], future: Future[Any], request_timeout: float = UNSET
    ) -> None:
        """Set passwords and delete credentials. The results are by user."""
        limit, call = self._limit(request_timeout), self._admin().alter_user_scram_credentials
        changes = [alteration_of(one) for one in alterations]
        users = list(dict.fromkeys(one.user for one in changes))
        self._start(future, lambda: _results(call, users, changes, limit))

    # Groups

    def list_consumer_groups(
        self,
        future: Future[Any],
        states_int: list[int] | None = None,
        types_int: list[int] | None = None,
        request_timeout: float = UNSET,
    ) -> None:
        """List the groups of consumers. Raise ValueError for the type UNKNOWN."""
        limit = self._limit(request_timeout)
        if ConsumerGroupType.UNKNOWN.value in (types_int or ()):
            raise ValueError("UNKNOWN type is not allowed")
        states = [name for name, one in STATES.items() if one.value in (states_int or [])]
        types = [name for name, one in TYPES.items() if one.value in (types_int or [])]
        client = self._admin()

        def work() -> Any:
            found = client.list_groups(states=states, types=types, timeout=limit)
            valid = [
                admin.ConsumerGroupListing(
                    one.group_id,
                    one.protocol_type == "",
                    STATES.get(one.state or "", ConsumerGroupState.UNKNOWN),
                    TYPES.get(one.type or "", ConsumerGroupType.UNKNOWN),
                )
                for one in found.values()
                if one.protocol_type in {"", "consumer"} and one.type in {None, *TYPES}
            ]
            return admin.ListConsumerGroupsResult(valid, [])

        self._start(future, work)

    def describe_consumer_groups(
        self,
        group_ids: list[str],
        future: Future[Any],
        request_timeout: float = UNSET,
        include_authorized_operations: bool = False,
    ) -> None:
        """Describe groups. The results are in the order of the ids. Their coordinator is None."""
        limit = self._limit(request_timeout)
        check_flag("include_authorized_operations", include_authorized_operations)
        call = partial(self._admin().describe_groups, include_authorized_operations=include_authorized_operations)

        def work() -> list[Any]:
            found = _results(call, group_ids, group_ids, limit)

            def described(name: str) -> Any:
                one = found[name]
                if isinstance(one, KafkaError) and one.code() == KafkaError.GROUP_ID_NOT_FOUND:
                    return missing_group(name)
                return described_group(one)

            return [described(name) for name in group_ids]

        self._start(future, work)

    def delete_consumer_groups(self, group_ids: list[str], future: Future[Any], request_timeout: float = UNSET) -> None:
        """Delete groups. The results are in the order of the ids."""
        limit = self._limit(request_timeout)
        call = self._admin().delete_groups

        def work() -> list[Any]:
            found = _results(call, group_ids, group_ids, limit)
            return [found[name] for name in group_ids]

        self._start(future, work)

    def list_consumer_group_offsets(
        self, request: list[Any], future: Future[Any], require_stable: bool = False, request_timeout: float = UNSET
    ) -> None:
        """Return the committed offsets of one group, for the named partitions or for all partitions with an offset."""
        limit = self._limit(request_timeout)
        (wanted,) = request
        named = wanted.topic_partitions
        partitions = None if named is None else [Partition(one.topic, one.partition) for one in named]
        client = self._admin()

        def work() -> list[Any]:
            found = client.list_group_offsets(wanted.group_id, partitions, require_stable=require_stable, timeout=limit)
            return [ConsumerGroupTopicPartitions(wanted.group_id, [place_of(*item) for item in found.items()])]

        self._start(future, work)

    def alter_consumer_group_offsets(
        self, request: list[Any], future: Future[Any], request_timeout: float = UNSET
    ) -> None:
        """Set committed offsets of one group without members."""
        limit = self._limit(request_timeout)
        check_offsets(request)
        (wanted,) = request
        offsets = {
            Partition(one.topic, one.partition): OffsetAndMetadata(one.offset, written_metadata(one.metadata))
            for one in wanted.topic_partitions
        }
        client = self._admin()

        def work() -> list[Any]:
            client.alter_group_offsets(wanted.group_id, offsets, timeout=limit)
            return [ConsumerGroupTopicPartitions(wanted.group_id, [place_of(*item) for item in offsets.items()])]

        self._start(future, work)

    # Offsets

    def list_offsets(
        self,
        topic_partitions: list[Any],
        future: Future[Any],
        isolation_level_value: int | None = None,
        request_timeout: float = UNSET,
    ) -> None:
        """Return the offsets that the specifications or timestamps select. The results are by partition."""
        limit = self._limit(request_timeout)
        check_partitions(topic_partitions)
        wanted = {Partition(one.topic, one.partition): one for one in topic_partitions}
        specs = {name: SPECS.get(one.offset, one.offset) for name, one in wanted.items()}
        is_committed = isolation_level_value == cimpl.ISOLATION_LEVEL_READ_COMMITTED
        level = "read_committed" if is_committed else "read_uncommitted"
        client = self._admin()

        def call(specs: Any, timeout: float | None) -> Any:
            return client.list_offsets(specs, isolation_level=level, timeout=timeout)

        def work() -> dict[Any, Any]:
            found = _results(call, list(wanted), specs, limit)
            return {one: listed_offset(found[name]) for name, one in wanted.items()}

        self._start(future, work)

    def delete_records(
        self,
        topic_partition_offsets: list[Any],
        future: Future[Any],
        request_timeout: float = UNSET,
        operation_timeout: float = UNSET,
    ) -> None:
        """Delete the records before offsets. The results are by partition."""
        limit = self._limit(request_timeout, operation_timeout)
        wanted = {Partition(one.topic, one.partition): one for one in topic_partition_offsets}
        before = {name: one.offset for name, one in wanted.items()}
        call = self._admin().delete_records

        def work() -> dict[Any, Any]:
            found = _results(call, list(wanted), before, limit)
            return {one: deleted_records(found[name]) for name, one in wanted.items()}

        self._start(future, work)

    # The cluster

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return a ClusterMetadata of one topic or of all topics. Raise KafkaException if it cannot be read."""
        return self._open("Handle").list_topics(topic, timeout)

    def list_groups(self, group: str | None = None, timeout: float = -1) -> list[Any]:
        """Return the GroupMetadata of one group or of all groups, without their brokers. Raise KafkaException if they
        cannot be read."""
        client, limit = self._open("Handle").admin, seconds(timeout)
        with as_kafka_exceptions():
            names = list(client.list_groups(timeout=limit)) if group is None else [group]
            found = _results(client.describe_groups, names, names, limit) if names else {}
        return [group_metadata(name, found[name]) for name in names]

    def elect_leaders(
        self,
        election_type: int,
        partitions: list[Any] | None,
        future: Future[Any],
        request_timeout: float = UNSET,
        operation_timeout: float = UNSET,
    ) -> None:
        """Elect leaders of partitions, or of all partitions that need an election if `partitions` is None. The results
        are by partition."""
        limit, client = self._limit(request_timeout, operation_timeout), self._admin()
        if partitions is not None:
            check_partitions(partitions)
        kind = "preferred" if election_type == cimpl.ELECTION_TYPE_PREFERRED else "unclean"

        def call(wanted: Any, timeout: float | None) -> Any:
            return client.elect_leaders(wanted, election=kind, timeout=timeout)

        def work() -> dict[Any, KafkaException | None]:
            wanted = [Partition(one.topic, one.partition) for one in partitions or ()]
            if partitions is None:
                topics = client.describe_topics(timeout=limit).values()
                wanted = [Partition(one.name, each.partition) for one in topics for each in one.partitions]
            found = {one: election_error(result) for one, result in _results(call, wanted, wanted, limit).items()}
            return {
                TopicPartition(*one): None if error is None else KafkaException(error)
                for one, error in found.items()
                if partitions is not None or error is None or error.code() != KafkaError.ELECTION_NOT_NEEDED
            }

        self._start(future, work)

    def cluster_id(self, timeout: float = -1) -> Any:
        """Return the id of the cluster. Raise KafkaException if it cannot be read."""
        return self._open("Handle").cluster_id(timeout)

    def poll(self, timeout: float = -1) -> int:
        """Call the queued callbacks, and return their number."""
        self._open()
        return self._events.serve_within(timeout, lambda: self._observer.report_statistics(0))

    def __len__(self) -> int:
        return 0 if self._reader is None else len(self._events)

    def __bool__(self) -> bool:
        return True

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Authenticate later connections with this user name and password. Raise TypeError unless both are str."""
        self._open().set_credentials(username, password)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            self._threads.shutdown()
            reader.close()

    def __del__(self) -> None:
        reader = getattr(self, "_reader", None)
        if reader is not None:
            self._threads.shutdown(wait=False)
            reader.close()


def _results(
    call: Callable[..., Any], items: list[Any], argument: Any, timeout: float | None, validate_only: bool = False
) -> dict[Any, Any]:
    """Call a method of Admin. Return the result or the KafkaError of each item."""
    options = {"validate_only": True} if validate_only else {}
    try:
        return {**call(argument, timeout=timeout, **options)}
    except AdminError as error:
        return {**error.results, **{item: kafka_error(one) for item, one in error.errors.items()}}
    except KcodecError as error:
        if len(items) > 1 or not isinstance(error, BrokerError):  # the request itself has failed
            raise KafkaException(kafka_error(error)) from error
        return {item: kafka_error(error) for item in items}


def _errors(
    call: Callable[..., Any], items: list[str], argument: Any, timeout: float | None, validate_only: bool = False
) -> dict[str, KafkaError | None]:
    """Call a method of Admin. Return None or the KafkaError of each item."""
    found = _results(call, items, argument, timeout, validate_only)
    return {item: found[item] if isinstance(found[item], KafkaError) else None for item in items}


class AdminClient(admin.AdminClient, AdminMethods):  # type: ignore[misc]
    """confluent_kafka.admin.AdminClient on kcodec's Admin."""
