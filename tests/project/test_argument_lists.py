# SPDX-License-Identifier: Apache-2.0
"""Where a list of names, numbers or partitions is expected, one of them stands for itself and bytes are refused.

The parameters are enumerated by their annotations, so that a call that is added later is tested as well: one whose
elements are unknown here fails until it is listed in SAMPLES, PROBES or NOT_NAMES.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import golden_data
import pytest
from admin_script import AdminScript

import kcodec
from kcodec import KcodecError, TopicPartition, log, text
from kcodec.admin.delegation_tokens import KafkaPrincipal
from kcodec.admin.security import (
    AclBinding,
    AclFilter,
    AclOperation,
    ResourceType,
    ScramCredentialDeletion,
    ScramMechanism,
)
from kcodec.admin.values import ConfigResource, ConfigResourceType
from kcodec.client import (
    Admin,
    Consumer,
    GroupTransactSession,
    Producer,
    SharedTransactions,
    TransactionHandle,
    TransactionWriter,
    aio,
    begin_transaction,
)
from kcodec.errors import UnsupportedError
from kcodec.flow import Flow
from kcodec.testing.kafka import ApacheKafka

MODULES = ("kcodec", "kcodec.client", "kcodec.client.aio", "kcodec.log", "kcodec.testing.kafka", "kcodec.text")
LIST = re.compile(r"\b(?:Iterable|Collection|Sequence)\[|\bPartitions\b")
ORDERS = TopicPartition("orders", 0)
NOWHERE: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1"}

#: One element of each kind that an Admin call takes a list of, by its annotation.
SAMPLES: dict[str, Any] = {
    "str": "mm",
    "int": 7,
    "TopicPartition": ORDERS,
    "NewTopic | str": "mm",
    "ConfigResource": ConfigResource.topic("mm"),
    "ConfigResourceType": ConfigResourceType.TOPIC,
    "KafkaPrincipal": KafkaPrincipal("mm"),
    "AclBinding": AclBinding(ResourceType.TOPIC, "mm", "User:alice", AclOperation.READ),
    "AclFilter": AclFilter(),
    "ScramCredentialUpsertion | ScramCredentialDeletion": ScramCredentialDeletion("mm", ScramMechanism.SCRAM_SHA_256),
}
NAMES = {"list_transactions.states": "Ongoing", "list_groups.states": "Stable", "list_groups.types": "share"}
OTHERS: dict[str, dict[str, Any]] = {
    "describe_configs.names": {"resources": [ConfigResource.topic("mm")]},
    "delete_group_offsets.partitions": {"group_id": "g"},
    "describe_group_lag.partitions": {"group_id": "g"},
    "list_group_offsets.partitions": {"group_id": "g"},
    "list_share_group_offsets.partitions": {"group_id": "g"},
    "describe_log_dirs.partitions": {"brokers": 1},
    "find_hanging_transactions.topics": {"max_transaction_timeout_ms": 1},
    "find_hanging_transactions.partitions": {"max_transaction_timeout_ms": 1},
}


def admin_parameters() -> Iterator[tuple[str, str, str]]:
    """(method, parameter, annotation of an element) of each list that an Admin call takes."""
    for name, method in inspect.getmembers(Admin, callable):
        if not name.startswith("_"):
            for parameter in inspect.signature(method).parameters.values():
                if found := re.fullmatch(
                    r"(?:Iterable|Collection|Sequence)\[(.+)\](?: \| None)?", str(parameter.annotation)
                ):
                    yield name, parameter.name, found[1]


ADMIN_PARAMETERS = list(admin_parameters())


def requests_of(method: str, given: dict[str, Any], *, is_async: bool) -> list[Any]:
    """The requests that an Admin call makes of brokers that refuse every one."""
    script = AdminScript()
    script.topics = {"mm": {0: 1}, "orders": {0: 1}}

    def refuse(node: int, request: Any) -> Any:
        return UnsupportedError("refused by the test")

    class Answers(dict[str, Any]):
        def __missing__(self, api: str) -> Any:
            return refuse

        def __contains__(self, api: object) -> bool:
            return True

    script.answers = Answers(Metadata=lambda node, request: script._metadata(request))
    kind: Any = aio.Admin if is_async else Admin
    admin = kind.__new__(kind)
    admin._context = script.context

    async def run(flow: Any) -> Any:
        return script.run(flow)

    admin._run = run if is_async else script.run
    try:
        called = getattr(admin, method)(**given)
        if is_async:
            asyncio.run(called)
    except KcodecError:
        pass
    return script.requests


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(("method", "parameter", "element"), ADMIN_PARAMETERS)
def test_admin_reads_one_item_as_a_list_of_it(method: str, parameter: str, element: str, is_async: bool) -> None:
    where = f"{method}.{parameter}"
    one = 1 if parameter == "brokers" else NAMES.get(where, SAMPLES[element])
    others = OTHERS.get(where, {})
    requests = requests_of(method, {parameter: one, **others}, is_async=is_async)
    assert requests == requests_of(method, {parameter: [one], **others}, is_async=is_async)
    assert requests != requests_of(method, {parameter: [one, *_another(one)], **others}, is_async=is_async)
    for wrong in (b"mm", [b"mm"], 1.5, [None]):
        with pytest.raises(TypeError, match=f"^{parameter}: expected "):
            requests_of(method, {parameter: wrong, **others}, is_async=is_async)


def _another(one: Any) -> list[Any]:
    """A second element, which the brokers must see: the comparison above would hold for a call that sends nothing."""
    changes: dict[type, Callable[[], Any]] = {
        str: lambda: {"Ongoing": "Empty", "Stable": "Dead", "share": "streams"}.get(one, "nn"),
        int: lambda: one + 1,
        TopicPartition: lambda: TopicPartition("mm", 0),
        ConfigResource: lambda: ConfigResource.topic("nn"),
        ConfigResourceType: lambda: ConfigResourceType.GROUP,
        KafkaPrincipal: lambda: KafkaPrincipal("nn"),
        AclBinding: lambda: AclBinding(ResourceType.TOPIC, "nn", "User:alice", AclOperation.READ),
        AclFilter: lambda: AclFilter(resource_name="nn"),
        ScramCredentialDeletion: lambda: ScramCredentialDeletion("nn", ScramMechanism.SCRAM_SHA_256),
    }
    return [changes[type(one)]()]


def test_admin_has_many_calls_that_take_lists() -> None:
    """The enumeration by annotations finds them: it would be empty if they were written otherwise."""
    assert len(ADMIN_PARAMETERS) >= 24
    assert {name for name, _, _ in ADMIN_PARAMETERS} >= {"delete_topics", "fence_producers", "describe_groups"}


# --------------------------------------------------------------------------------------------------- all other calls


ASSIGNS = ("assign", "incremental_assign", "incremental_unassign")


def consumer_flow(name: str) -> Callable[[Any], Any]:
    """What a call of Consumer makes of its partitions, before it waits for a broker."""

    def probe(given: Any) -> Any:
        options: dict[str, Any] = {"default_api_timeout_ms": 1, "request_timeout_ms": 1, "fetch_max_wait_ms": 0}
        with Consumer(**NOWHERE, group_id="g", **options) as consumer:
            if name in ASSIGNS:
                getattr(consumer, name.replace("unassign", "assign"))(given)
                assigned = consumer.assignment()
                if name == "incremental_unassign":
                    consumer.incremental_unassign(given)
                return assigned, consumer.assignment()
            with pytest.raises(KcodecError) as caught:
                getattr(consumer, name)(given, timeout=0.001)
            return type(caught.value), re.findall(r"orders-\d+", str(caught.value))

    return probe


def aio_consumer_flow(name: str) -> Callable[[Any], Any]:
    def probe(given: Any) -> Any:
        async def run() -> Any:
            options: dict[str, Any] = {"default_api_timeout_ms": 1, "request_timeout_ms": 1, "fetch_max_wait_ms": 0}
            async with aio.Consumer(**NOWHERE, group_id="g", **options) as consumer:
                if name in ASSIGNS:
                    await getattr(consumer, name.replace("unassign", "assign"))(given)
                    assigned = consumer.assignment()
                    if name == "incremental_unassign":
                        await consumer.incremental_unassign(given)
                    return assigned, consumer.assignment()
                with pytest.raises(KcodecError) as caught:
                    await getattr(consumer, name)(given, timeout=0.001)
                return type(caught.value), re.findall(r"orders-\d+", str(caught.value))

        return asyncio.run(run())

    return probe


def chosen(name: str) -> Callable[[Any], Any]:
    """What a call of Consumer on assigned partitions does."""

    def probe(given: Any) -> Any:
        with Consumer(**NOWHERE) as consumer:
            consumer.assign([ORDERS])
            getattr(consumer, name)(given)
            return consumer.paused(), consumer._core.assignment.partitions[ORDERS].reset_to

    return probe


def aio_chosen(name: str) -> Callable[[Any], Any]:
    def probe(given: Any) -> Any:
        async def run() -> Any:
            async with aio.Consumer(**NOWHERE) as consumer:
                await consumer.assign([ORDERS])
                await getattr(consumer, name)(given)
                return consumer.paused(), consumer._core.assignment.partitions[ORDERS].reset_to

        return asyncio.run(run())

    return probe


def subscribed(given: Any) -> Any:
    with Consumer(**NOWHERE, group_id="g") as consumer:
        consumer.subscribe(given)
        return consumer.subscription()


def aio_subscribed(given: Any) -> Any:
    async def run() -> Any:
        async with aio.Consumer(**NOWHERE, group_id="g") as consumer:
            await consumer.subscribe(given)
            return consumer.subscription()

    return asyncio.run(run())


def session(kind: Any) -> Callable[[Any], Any]:
    """The names that a session subscribes to."""

    def probe(given: Any) -> Any:
        async def run() -> Any:
            made = kind(**NOWHERE, group_id="g", transactional_id="t", topics=given)
            closed = made.close(timeout=0)
            if inspect.isawaitable(closed):
                await closed
            return made._subscription

        return asyncio.run(run())

    return probe


def _kept(made: Callable[..., Any], found: list[Any]) -> Callable[..., Any]:
    """Calls it, and keeps in `found` what it returns."""

    def call(*args: Any) -> Any:
        found.append(made(*args))
        return found[-1]

    return call


def range_of(read: Callable[..., Any]) -> Callable[[Any], Any]:
    """The partitions that a reading is for; scan_topic and read_topic make the reading, which is not opened here."""

    def probe(given: Any) -> Any:
        found: list[Any] = []
        with pytest.MonkeyPatch.context() as patched:
            for home in ("topic_records", "polars_scan"):
                module = importlib.import_module(f"kcodec.client.{home}")
                patched.setattr(module, "TopicReading", _kept(module.TopicReading, found))
            patched.setattr("kcodec.client.topic_records.TopicRecords.of", lambda reading: reading)
            opened = read("mm", partitions=given, **NOWHERE)
        return (found[0] if found else opened._reading).range.partitions

    return probe


def ranges_of(read: Callable[..., Any], home: str) -> Callable[[Any], Any]:
    """The ranges that a reading is for, which is not opened here."""

    def probe(given: Any) -> Any:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(f"{home}.RangeRecords.of", lambda reading: reading, raising=False)
            opened = read(given, **NOWHERE)
        return getattr(opened, "_reading", opened).ranges

    return probe


def in_transaction(given: Any) -> Any:
    with Producer(**NOWHERE, transactional_id="t") as producer:
        return producer.transaction(given)._partitions


def aio_in_transaction(given: Any) -> Any:
    async def run() -> Any:
        async with aio.Producer(**NOWHERE, transactional_id="t") as producer:
            return producer.transaction(given)._partitions

    return asyncio.run(run())


def writer(given: Any) -> Any:
    with TransactionWriter(HANDLE, given, **NOWHERE) as made:
        return made._producer.partitions


def aio_writer(given: Any) -> Any:
    async def run() -> Any:
        async with aio.TransactionWriter(HANDLE, given, **NOWHERE) as made:
            return made._producer.partitions

    return asyncio.run(run())


def returned(partitions: Any) -> Flow[Any]:
    """In place of a flow that begins a transaction: it sends nothing."""
    yield from ()
    return partitions


def shared_begin(given: Any) -> Any:
    with SharedTransactions("t", "g", **NOWHERE) as made:
        made._flows.begin = lambda partitions, timeout: returned(partitions)  # type: ignore[method-assign]
        return made.begin(given)


def aio_shared_begin(given: Any) -> Any:
    async def run() -> Any:
        async with aio.SharedTransactions("t", "g", **NOWHERE) as made:
            made._flows.begin = lambda partitions, timeout: returned(partitions)  # type: ignore[method-assign]
            return await made.begin(given)

    return asyncio.run(run())


def begin(given: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kcodec.client.shared.begin_shared", lambda cluster, name, given, *others: returned(given))
        return begin_transaction("t", partitions=given, **NOWHERE)


def aio_begin(given: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kcodec.client.aio.shared.begin_shared", lambda cluster, name, given, *others: returned(given))
        return asyncio.run(aio.begin_transaction("t", partitions=given, **NOWHERE))


def log_directory(given: Any) -> Any:
    return log.open_log_directory(golden_data.root() / "tv2" / "logs").transactions(given, on_error="stop")


def partition_log(given: Any) -> Any:
    directory = log.open_log_directory(golden_data.root() / "tv2" / "logs")
    return [log.partition_transactions(one, states=given, on_error="stop") for one in directory.values()]


RANGE = kcodec.OffsetRange("mm", 7, 0, 5)
HANDLE = TransactionHandle("orders", 7, 3, 2)
#: (call, parameter) -> (one element, what the call makes of it).
PROBES: dict[tuple[str, str], tuple[Any, Callable[[Any], Any]]] = {
    ("kcodec.read_topic", "partitions"): (7, range_of(kcodec.read_topic)),
    ("kcodec.read_ranges", "ranges"): (RANGE, ranges_of(kcodec.read_ranges, "kcodec.client.range_records")),
    ("kcodec.client.aio.read_ranges", "ranges"): (
        RANGE,
        ranges_of(aio.read_ranges, "kcodec.client.aio.range_records"),
    ),
    ("kcodec.scan_topic", "partitions"): (7, range_of(kcodec.scan_topic)),
    ("kcodec.client.aio.read_topic", "partitions"): (7, range_of(aio.read_topic)),
    ("kcodec.text.csv_lines", "fields"): ("key", lambda given: text.csv_lines(given).columns),
    ("kcodec.text.json_lines", "fields"): ("key", lambda given: text.json_lines(given).columns),
    ("kcodec.testing.kafka.ApacheKafka", "jvm_options"): (
        "-Xss1m",
        lambda given: ApacheKafka(jvm_options=given)._jvm_options,
    ),
    ("kcodec.testing.kafka.ApacheKafka", "sasl"): ("PLAIN", lambda given: repr(ApacheKafka(sasl=given)._security)),
    ("kcodec.client.Consumer.subscribe", "topics"): ("mm", subscribed),
    ("kcodec.client.aio.Consumer.subscribe", "topics"): ("mm", aio_subscribed),
    ("kcodec.client.GroupTransactSession", "topics"): ("mm", session(GroupTransactSession)),
    ("kcodec.client.aio.GroupTransactSession", "topics"): ("mm", session(aio.GroupTransactSession)),
    ("kcodec.client.GroupTransactSession.from_properties", "topics"): (
        "mm",
        session(lambda **options: GroupTransactSession.from_properties({}, **options)),
    ),
    ("kcodec.client.aio.GroupTransactSession.from_properties", "topics"): (
        "mm",
        session(lambda **options: aio.GroupTransactSession.from_properties({}, **options)),
    ),
    ("kcodec.client.Producer.transaction", "partitions"): (ORDERS, in_transaction),
    ("kcodec.client.aio.Producer.transaction", "partitions"): (ORDERS, aio_in_transaction),
    ("kcodec.client.TransactionWriter", "partitions"): (ORDERS, writer),
    ("kcodec.client.aio.TransactionWriter", "partitions"): (ORDERS, aio_writer),
    ("kcodec.client.SharedTransactions.begin", "partitions"): (ORDERS, shared_begin),
    ("kcodec.client.aio.SharedTransactions.begin", "partitions"): (ORDERS, aio_shared_begin),
    ("kcodec.client.begin_transaction", "partitions"): (ORDERS, begin),
    ("kcodec.client.aio.begin_transaction", "partitions"): (ORDERS, aio_begin),
    ("kcodec.log.LogDirectory.transactions", "states"): ("open", log_directory),
    ("kcodec.log.partition_transactions", "states"): ("open", partition_log),
}
for _call in (("read_topic", "partitions"), ("read_ranges", "ranges")):
    PROBES["kcodec.client." + _call[0], _call[1]] = PROBES["kcodec." + _call[0], _call[1]]
for _name in (
    *ASSIGNS,
    *("beginning_offsets", "committed", "end_offsets", "positions"),
):
    PROBES["kcodec.client.Consumer." + _name, "partitions"] = ORDERS, consumer_flow(_name)
    PROBES["kcodec.client.aio.Consumer." + _name, "partitions"] = ORDERS, aio_consumer_flow(_name)
for _name in ("pause", "resume", "seek_to_beginning", "seek_to_end"):
    PROBES["kcodec.client.Consumer." + _name, "partitions"] = ORDERS, chosen(_name)
    PROBES["kcodec.client.aio.Consumer." + _name, "partitions"] = ORDERS, aio_chosen(_name)
#: Lists of other things, where text is refused as its letters are none of them; columns refuse text by themselves.
NOT_NAMES = {
    ("kcodec.AdminError.derive", "exceptions"),
    ("kcodec.client.AdminError.derive", "exceptions"),
    ("kcodec.client.aio.AdminError.derive", "exceptions"),
    ("kcodec.DeliveryErrors.derive", "members"),
    ("kcodec.client.DeliveryErrors.derive", "members"),
    ("kcodec.client.aio.DeliveryErrors.derive", "members"),
    ("kcodec.client.TableDelivery.replace", "pieces"),
    ("kcodec.client.aio.TableDelivery.replace", "pieces"),
    ("kcodec.testing.kafka.Node.format", "options"),  # from ApacheKafka itself
    ("kcodec.client.Transaction", "partitions"),  # made by Producer.transaction
    ("kcodec.client.aio.Transaction", "partitions"),
    ("kcodec.log.Verdict.of_aborted", "aborted"),
    ("kcodec.client.SharedTransactions.commit", "receipts"),
    ("kcodec.client.aio.SharedTransactions.commit", "receipts"),
    ("kcodec.client.commit_transaction", "receipts"),
    ("kcodec.client.aio.commit_transaction", "receipts"),
    ("kcodec.log.Batches", "segments"),
    ("kcodec.log.Chunks", "ranges"),
    ("kcodec.log.Log", "segments"),
    ("kcodec.log.Log.to_arrow", "columns"),
    ("kcodec.log.LogDirectory", "entries"),
    ("kcodec.log.group_offsets", "logs"),
    ("kcodec.log.pack_snapshot", "producers"),
    ("kcodec.log.partition_transactions", "noted"),
    ("kcodec.log.transaction_states", "logs"),
    ("kcodec.log.write_snapshot", "producers"),
}


def list_parameters() -> Iterator[tuple[str, str]]:
    """(call, parameter) of every list that a public function, class or method but those of Admin takes."""
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in getattr(module, "__all__", None) or [name for name in vars(module) if name[0] != "_"]:
            found = getattr(module, name)
            if not callable(found) or not str(getattr(found, "__module__", "")).startswith("kcodec"):
                continue
            named = [(f"{module_name}.{name}", found)]
            if inspect.isclass(found) and found not in (Admin, aio.Admin):
                named += [(f"{module_name}.{name}.{one}", getattr(found, one)) for one in dir(found) if one[0] != "_"]
            for called, each in named:
                try:
                    parameters = inspect.signature(each).parameters.values()
                except (TypeError, ValueError):
                    continue
                yield from ((called, one.name) for one in parameters if LIST.search(str(one.annotation)))


def test_every_public_list_parameter_is_listed_here() -> None:
    """A new one belongs into PROBES if it is a list of names, numbers or partitions."""
    assert {*list_parameters()} == {*PROBES, *NOT_NAMES}


@pytest.mark.parametrize("call", PROBES, ids=".".join)
def test_a_call_reads_one_item_as_a_list_of_it(call: tuple[str, str]) -> None:
    one, probe = PROBES[call]
    assert probe(one) == probe([one])
    for wrong in (b"mm", [b"mm"]):
        with pytest.raises(TypeError, match=f"{call[1]}: expected "):
            probe(wrong)


@pytest.mark.parametrize("name", ["Admin", "Consumer"])
def test_help_shows_what_a_list_holds(name: str) -> None:
    """The enumeration above reads annotations; those of both APIs are alike."""
    for sync_name, method in inspect.getmembers(getattr(kcodec.client, name), inspect.isfunction):
        other = getattr(getattr(aio, name), sync_name, None)
        if sync_name[0] != "_" and other is not None:
            lists = [
                {one.name for one in inspect.signature(each).parameters.values() if LIST.search(str(one.annotation))}
                for each in (method, other)
            ]
            assert lists[0] == lists[1], sync_name


def test_columns_refuse_a_string() -> None:
    with pytest.raises(TypeError, match="not the string 'value'"):
        kcodec.decode(b"", columns="value")
