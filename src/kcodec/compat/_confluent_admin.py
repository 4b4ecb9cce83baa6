# SPDX-License-Identifier: Apache-2.0
"""The methods of confluent_kafka.admin.AdminClient on kcodec's Admin.

AdminClient of confluent_kafka checks the arguments, makes a future for each item, and calls these methods with one
future for the results of all. A thread makes the requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn, Self

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    Node,
    TopicPartition,
    TopicPartitionInfo,
    cimpl,
)
from confluent_kafka import admin as _admin

from kcodec.admin.values import AlterOperation, BrokerNode, ConfigResourceType
from kcodec.admin.values import ConfigResource as Resource
from kcodec.client import Admin, NewTopic
from kcodec.compat._confluent_cluster import ClusterReader
from kcodec.compat._confluent_errors import (
    as_kafka_exceptions,
    kafka_error,
    local_error,
    not_supported,
    place_of,
    seconds,
)
from kcodec.compat._confluent_events import Events, Observer
from kcodec.compat._confluent_options import settings_of
from kcodec.compat._patches import derived_from
from kcodec.errors import AdminError, KcodecError
from kcodec.offsets import OffsetAndMetadata
from kcodec.offsets import TopicPartition as Partition

# Its stubs do not export all of the names.
admin: Any = _admin
#: Requests of one client under way at a time.
THREADS = 4
SPECS = {
    cimpl.OFFSET_SPEC_LATEST: "latest",
    cimpl.OFFSET_SPEC_EARLIEST: "earliest",
    cimpl.OFFSET_SPEC_MAX_TIMESTAMP: "max_timestamp",
}
SOURCES = {
    "DYNAMIC_TOPIC_CONFIG": admin.ConfigSource.DYNAMIC_TOPIC_CONFIG,
    "DYNAMIC_BROKER_CONFIG": admin.ConfigSource.DYNAMIC_BROKER_CONFIG,
    "DYNAMIC_DEFAULT_BROKER_CONFIG": admin.ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    "STATIC_BROKER_CONFIG": admin.ConfigSource.STATIC_BROKER_CONFIG,
    "DEFAULT_CONFIG": admin.ConfigSource.DEFAULT_CONFIG,
    "DYNAMIC_GROUP_CONFIG": admin.ConfigSource.GROUP_CONFIG,
}
Operation = admin.AlterConfigOpType
OPERATIONS = {
    Operation.SET: AlterOperation.SET,
    Operation.DELETE: AlterOperation.DELETE,
    Operation.APPEND: AlterOperation.APPEND,
    Operation.SUBTRACT: AlterOperation.SUBTRACT,
}
RESOURCES = {
    admin.ResourceType.TOPIC: ConfigResourceType.TOPIC,
    admin.ResourceType.BROKER: ConfigResourceType.BROKER,
    admin.ResourceType.GROUP: ConfigResourceType.GROUP,
}
STATES = {
    "PreparingRebalance": ConsumerGroupState.PREPARING_REBALANCING,
    "CompletingRebalance": ConsumerGroupState.COMPLETING_REBALANCING,
    "Stable": ConsumerGroupState.STABLE,
    "Dead": ConsumerGroupState.DEAD,
    "Empty": ConsumerGroupState.EMPTY,
}
TYPES = {"classic": ConsumerGroupType.CLASSIC, "consumer": ConsumerGroupType.CONSUMER}


@derived_from(cimpl._AdminClientImpl)
class AdminMethods:
    """The methods of an administration client. librdkafka's own handle is never opened."""

    _reader: ClusterReader | None = None

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._reader = None
        settings = settings_of("Admin", arguments, keywords)
        self._events = Events()
        self._observer = Observer(settings, self._events, "producer")
        if self._observer.is_used:
            settings.options["metrics"] = self._observer
        reader = ClusterReader(settings.options)
        with as_kafka_exceptions():
            _ = reader.admin
        self._threads = ThreadPoolExecutor(THREADS, "kcodec.compat.confluent")
        self._reader = reader

    def _open(self, client: str = "AdminClient") -> ClusterReader:
        if self._reader is None:
            raise RuntimeError(f"{client} has been closed")
        return self._reader

    def _admin(self) -> Admin:
        return self._open().admin

    def _start(self, future: Future[Any], work: Callable[[], Any]) -> None:
        """Do the work of a call in a thread; its result or its error is that of the future."""

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
        request_timeout: float = -1,
        operation_timeout: float = -1,
    ) -> None:
        """Create topics; the results are by name."""
        wanted = [_new_topic(one) for one in topics]
        call, names = self._admin().create_topics, [one.name for one in wanted]
        self._start(future, lambda: _errors(call, names, wanted, request_timeout, validate_only))

    def delete_topics(
        self, topics: list[str], future: Future[Any], request_timeout: float = -1, operation_timeout: float = -1
    ) -> None:
        """Delete topics; the results are by name."""
        _check_list("topics", topics)
        if not all(isinstance(one, str) for one in topics):
            raise ValueError("topics must be a list of str")
        call = self._admin().delete_topics
        self._start(future, lambda: _errors(call, topics, topics, request_timeout))

    def create_partitions(
        self,
        topics: list[Any],
        future: Future[Any],
        validate_only: bool = False,
        request_timeout: float = -1,
        operation_timeout: float = -1,
    ) -> None:
        """Increase the number of partitions; the results are by name of the topic."""
        _check_list("topics", topics)
        if any(one.replica_assignment for one in topics):
            raise not_supported("the replica_assignment of NewPartitions", "let the brokers choose the replicas")
        wanted = {one.topic: one.new_total_count for one in topics}
        call = self._admin().create_partitions
        self._start(future, lambda: _errors(call, list(wanted), wanted, request_timeout, validate_only))

    def describe_topics(
        self,
        topic_names: list[str],
        future: Future[Any],
        request_timeout: float = -1,
        include_authorized_operations: bool = False,
    ) -> None:
        """Describe topics; the results are in the order of the names."""
        _refuse_operations(include_authorized_operations)
        client = self._admin()

        def work() -> list[Any]:
            nodes = _nodes(client.describe_cluster(timeout=seconds(request_timeout)).brokers)
            found = _results(client.describe_topics, topic_names, topic_names, request_timeout)
            return [_topic(found[name], nodes) for name in topic_names]

        self._start(future, work)

    def describe_cluster(
        self, future: Future[Any], request_timeout: float = -1, include_authorized_operations: bool = False
    ) -> None:
        """Describe the brokers and the controller."""
        _refuse_operations(include_authorized_operations)
        client = self._admin()

        def work() -> Any:
            found = client.describe_cluster(timeout=seconds(request_timeout))
            nodes = _nodes(found.brokers)
            controller = None if found.controller_id is None else nodes.get(found.controller_id)
            return admin.DescribeClusterResult(controller, list(nodes.values()), found.cluster_id)

        self._start(future, work)

    # Settings

    def describe_configs(
        self, resources: list[Any], future: Future[Any], request_timeout: float = -1, broker: int = -1
    ) -> None:
        """Describe the settings of resources; the results are by resource."""
        _check_list("resources", resources)
        wanted = {_resource(one): one for one in resources}
        call = self._admin().describe_configs

        def work() -> dict[Any, Any]:
            found = _results(call, list(wanted), list(wanted), request_timeout)
            return {_noted(one, found[ours]): _entries(found[ours]) for ours, one in wanted.items()}

        self._start(future, work)

    def incremental_alter_configs(
        self,
        resources: list[Any],
        future: Future[Any],
        validate_only: bool = False,
        request_timeout: float = -1,
        broker: int = -1,
    ) -> None:
        """Change settings; the results are by resource."""
        wanted = {_resource(one): one for one in resources}
        changes = {
            ours: {entry.name: _change(entry) for entry in one.incremental_configs} for ours, one in wanted.items()
        }
        call = self._admin().alter_configs

        def work() -> dict[Any, Any]:
            found = _results(call, list(wanted), changes, request_timeout, validate_only)
            return {_noted(one, found[ours]): None for ours, one in wanted.items()}

        self._start(future, work)

    # Groups

    def list_consumer_groups(
        self,
        future: Future[Any],
        states_int: list[int] | None = None,
        types_int: list[int] | None = None,
        request_timeout: float = -1,
    ) -> None:
        """List the groups of consumers."""
        states = [name for name, one in STATES.items() if one.value in (states_int or [])]
        types = [name for name, one in TYPES.items() if one.value in (types_int or [])]
        client = self._admin()

        def work() -> Any:
            found = client.list_groups(states=states, types=types, timeout=seconds(request_timeout))
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
        request_timeout: float = -1,
        include_authorized_operations: bool = False,
    ) -> None:
        """Describe groups; the results are in the order of the ids. Their coordinator is None."""
        _refuse_operations(include_authorized_operations)
        call = self._admin().describe_groups

        def work() -> list[Any]:
            found = _results(call, group_ids, group_ids, request_timeout)
            return [one if isinstance(one, KafkaError) else _group(one) for one in map(found.__getitem__, group_ids)]

        self._start(future, work)

    def delete_consumer_groups(self, group_ids: list[str], future: Future[Any], request_timeout: float = -1) -> None:
        """Delete groups; the results are in the order of the ids."""
        call = self._admin().delete_groups

        def work() -> list[Any]:
            found = _results(call, group_ids, group_ids, request_timeout)
            return [found[name] for name in group_ids]

        self._start(future, work)

    def list_consumer_group_offsets(
        self, request: list[Any], future: Future[Any], require_stable: bool = False, request_timeout: float = -1
    ) -> None:
        """Return the committed offsets of one group, of all partitions that have one or of those that are named."""
        (wanted,) = request
        named = wanted.topic_partitions
        partitions = None if named is None else [Partition(one.topic, one.partition) for one in named]
        client = self._admin()

        def work() -> list[Any]:
            found = client.list_group_offsets(
                wanted.group_id, partitions, require_stable=require_stable, timeout=seconds(request_timeout)
            )
            return [ConsumerGroupTopicPartitions(wanted.group_id, [place_of(*item) for item in found.items()])]

        self._start(future, work)

    def alter_consumer_group_offsets(
        self, request: list[Any], future: Future[Any], request_timeout: float = -1
    ) -> None:
        """Set committed offsets of one group without members."""
        (wanted,) = request
        offsets = {
            Partition(one.topic, one.partition): OffsetAndMetadata(one.offset, one.metadata or "")
            for one in wanted.topic_partitions
        }
        client = self._admin()

        def work() -> list[Any]:
            client.alter_group_offsets(wanted.group_id, offsets, timeout=seconds(request_timeout))
            return [ConsumerGroupTopicPartitions(wanted.group_id, [place_of(*item) for item in offsets.items()])]

        self._start(future, work)

    # Offsets

    def list_offsets(
        self,
        topic_partitions: list[Any],
        future: Future[Any],
        isolation_level_value: int | None = None,
        request_timeout: float = -1,
    ) -> None:
        """Return the offsets that the specifications or timestamps select; the results are by partition."""
        wanted = {Partition(one.topic, one.partition): one for one in topic_partitions}
        specs = {name: SPECS.get(one.offset, one.offset) for name, one in wanted.items()}
        is_committed = isolation_level_value == cimpl.ISOLATION_LEVEL_READ_COMMITTED
        level = "read_committed" if is_committed else "read_uncommitted"
        client = self._admin()

        def call(specs: Any, timeout: float | None) -> Any:
            return client.list_offsets(specs, isolation_level=level, timeout=timeout)

        def work() -> dict[Any, Any]:
            found = _results(call, list(wanted), specs, request_timeout)
            return {one: _listed(found[name]) for name, one in wanted.items()}

        self._start(future, work)

    def delete_records(
        self,
        topic_partition_offsets: list[Any],
        future: Future[Any],
        request_timeout: float = -1,
        operation_timeout: float = -1,
    ) -> None:
        """Delete the records before offsets; the results are by partition."""
        wanted = {Partition(one.topic, one.partition): one for one in topic_partition_offsets}
        before = {name: one.offset for name, one in wanted.items()}
        call = self._admin().delete_records

        def work() -> dict[Any, Any]:
            found = _results(call, list(wanted), before, request_timeout)
            return {one: _deleted(found[name]) for name, one in wanted.items()}

        self._start(future, work)

    # The cluster

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return a ClusterMetadata of one topic or all. Raise KafkaException."""
        return self._open("Handle").list_topics(topic, timeout)

    def list_groups(self, group: str | None = None, timeout: float = -1) -> NoReturn:
        """Raise KafkaException (_NOT_IMPLEMENTED)."""
        raise not_supported("list_groups()", "call list_consumer_groups() and describe_consumer_groups()")

    def cluster_id(self, timeout: float = -1) -> Any:
        """Return the id of the cluster. Raise KafkaException."""
        return self._open("Handle").cluster_id(timeout)

    def poll(self, timeout: float = -1) -> int:
        """Call the callbacks that wait, and return their number."""
        self._open()
        return self._events.serve_within(timeout, lambda: self._observer.report_statistics(0))

    def __len__(self) -> int:
        return 0 if self._reader is None else len(self._events)

    def __bool__(self) -> bool:
        return True

    def _unsupported(self, *arguments: Any, **keywords: Any) -> NoReturn:
        """Raise KafkaException (_NOT_IMPLEMENTED)."""
        self._open()
        raise not_supported("this method of AdminClient", "use kcodec.client.Admin, which has it")

    alter_configs = alter_user_scram_credentials = create_acls = delete_acls = _unsupported
    describe_acls = describe_user_scram_credentials = elect_leaders = set_sasl_credentials = _unsupported

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


def _check_list(name: str, values: Any) -> None:
    """Raise TypeError unless the value is a list, ValueError if it is empty."""
    if not isinstance(values, list):
        raise TypeError(f"{name} must be a list, not {type(values).__name__}")
    if not values:
        raise ValueError(f"{name} must not be empty")


def _results(
    call: Callable[..., Any], items: list[Any], argument: Any, timeout: float, validate_only: bool = False
) -> dict[Any, Any]:
    """Call a method of Admin; return the result or the KafkaError of each item."""
    options = {"validate_only": True} if validate_only else {}
    try:
        return {**call(argument, timeout=seconds(timeout), **options)}
    except AdminError as error:
        return {**error.results, **{item: kafka_error(one) for item, one in error.errors.items()}}
    except KcodecError as error:
        if len(items) > 1:  # the request itself has failed
            raise KafkaException(kafka_error(error)) from error
        return {item: kafka_error(error) for item in items}


def _errors(
    call: Callable[..., Any], items: list[str], argument: Any, timeout: float, validate_only: bool = False
) -> dict[str, KafkaError | None]:
    """As `_results`, with None for success."""
    found = _results(call, items, argument, timeout, validate_only)
    return {item: found[item] if isinstance(found[item], KafkaError) else None for item in items}


def _refuse_operations(is_wanted: bool) -> None:
    if is_wanted:
        raise not_supported("include_authorized_operations", "leave it out")


def _new_topic(topic: Any) -> NewTopic:
    if topic.replica_assignment:
        assigned = {number: tuple(replicas) for number, replicas in enumerate(topic.replica_assignment)}
        return NewTopic(topic.topic, configs=topic.config or {}, assignments=assigned)
    count = None if topic.num_partitions < 0 else topic.num_partitions
    replicas = None if topic.replication_factor < 0 else topic.replication_factor
    return NewTopic(topic.topic, count, replicas, topic.config or {})


def _nodes(brokers: Iterable[BrokerNode]) -> dict[int, Any]:
    return {one.id: Node(one.id, one.host, one.port, one.rack) for one in brokers}


def _topic(found: Any, nodes: Mapping[int, Any]) -> Any:
    if isinstance(found, KafkaError):
        return found
    partitions = [
        TopicPartitionInfo(
            one.partition,
            nodes.get(-1 if one.leader is None else one.leader),  # type: ignore[arg-type]
            [nodes[replica] for replica in one.replicas if replica in nodes],
            [nodes[replica] for replica in one.isr if replica in nodes],
        )
        for one in found.partitions
    ]
    bits = 0 if found.topic_id is None else found.topic_id.int
    uuid = cimpl.Uuid(_signed(bits >> 64), _signed(bits & (1 << 64) - 1))
    return admin.TopicDescription(found.name, uuid, found.is_internal, partitions)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >= 1 << 63 else bits


def _resource(resource: Any) -> Resource:
    kind = RESOURCES.get(resource.restype)
    if kind is None:
        raise local_error(KafkaError._INVALID_ARG, f"{resource}: expected a topic, a broker or a group")
    return Resource(kind, resource.name)


def _noted(resource: Any, found: Any) -> Any:
    """Return the resource with its error, as AdminClient expects it."""
    resource.error = found if isinstance(found, KafkaError) else None
    return resource


def _entries(found: Any) -> Any:
    if isinstance(found, KafkaError):
        return None
    entries = {}
    for name, one in found.items():
        source = SOURCES.get(one.source, admin.ConfigSource.UNKNOWN_CONFIG).value
        entries[name] = admin.ConfigEntry(
            name, one.value, source, one.is_read_only, one.is_default, one.is_sensitive, False, {}
        )
    return entries


def _change(entry: Any) -> Any:
    operation = entry.incremental_operation
    if operation not in OPERATIONS:
        raise local_error(KafkaError._INVALID_ARG, f"{entry.name}: incremental_operation must be an AlterConfigOpType")
    return None if operation is Operation.DELETE else (OPERATIONS[operation], entry.value)


def _group(found: Any) -> Any:
    members = [
        admin.MemberDescription(
            one.member_id,
            one.client_id,
            one.client_host,
            admin.MemberAssignment([TopicPartition(*partition) for partition in one.partitions]),
            one.group_instance_id,
        )
        for one in found.members
    ]
    is_simple = found.protocol_type == ""
    state = STATES.get(found.state, ConsumerGroupState.UNKNOWN)
    kind = TYPES.get(found.type, ConsumerGroupType.UNKNOWN)
    return admin.ConsumerGroupDescription(found.group_id, is_simple, members, found.protocol, state, None, type=kind)


def _listed(found: Any) -> Any:
    if isinstance(found, KafkaError):
        return found
    epoch = -1 if found.leader_epoch is None else found.leader_epoch
    return admin.ListOffsetsResultInfo(found.offset, found.timestamp, epoch)


def _deleted(found: Any) -> Any:
    return found if isinstance(found, KafkaError) else admin.DeletedRecords(found)


class AdminClient(admin.AdminClient, AdminMethods):  # type: ignore[misc]
    """confluent_kafka.admin.AdminClient on kcodec's Admin."""
