# SPDX-License-Identifier: Apache-2.0
"""The class tables of all messages against Kafka's definitions, and that what is altered in them is found."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

from kcodec.protocol import messages
from kcodec.protocol.schema import Message, Request, Response

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
check_messages = importlib.import_module("check_messages")
sys.path.remove(str(ROOT / "tools"))

TABLES = ROOT / "src" / "kcodec" / "protocol" / "messages"
# All APIs that clients, group members and tools call, and those of kcodec's coordinator, with their highest versions.
WANTED = """
    Produce 13  Fetch 18  ListOffsets 11  OffsetForLeaderEpoch 4  Metadata 13  FindCoordinator 6  DescribeCluster 2
    ApiVersions 5  SaslHandshake 1  SaslAuthenticate 2  OffsetCommit 10  OffsetFetch 10  OffsetDelete 0
    JoinGroup 9  SyncGroup 5  Heartbeat 4  LeaveGroup 5  DescribeGroups 6  ListGroups 5  DeleteGroups 3
    ConsumerGroupHeartbeat 1  ConsumerGroupDescribe 1  ShareGroupDescribe 1  StreamsGroupDescribe 1
    InitProducerId 5  AddPartitionsToTxn 5  AddOffsetsToTxn 4  EndTxn 5  TxnOffsetCommit 6  WriteTxnMarkers 2
    DescribeProducers 0  DescribeTransactions 0  ListTransactions 2
    CreateTopics 7  DeleteTopics 6  CreatePartitions 3  DescribeTopicPartitions 0  DeleteRecords 2
    DescribeConfigs 4  IncrementalAlterConfigs 1  AlterConfigs 2  DescribeAcls 3  CreateAcls 3  DeleteAcls 3
    AlterPartitionReassignments 1  ListPartitionReassignments 0  ElectLeaders 2  DescribeLogDirs 5  UpdateFeatures 2
    AlterUserScramCredentials 0  DescribeUserScramCredentials 0
    DescribeClientQuotas 1  AlterClientQuotas 1  DescribeQuorum 2  UnregisterBroker 0  ListConfigResources 1
    CreateDelegationToken 3  RenewDelegationToken 2  ExpireDelegationToken 2  DescribeDelegationToken 3
    AlterReplicaLogDirs 2  DescribeShareGroupOffsets 1  AlterShareGroupOffsets 0  DeleteShareGroupOffsets 0
    ShareGroupHeartbeat 1  ShareFetch 2  ShareAcknowledge 2
    StreamsGroupHeartbeat 1  StreamsGroupTopologyDescriptionUpdate 0
    GetTelemetrySubscriptions 0  PushTelemetry 0  AddRaftVoter 1  RemoveRaftVoter 0  UnregisterController 0
"""


def test_the_tables_are_kafkas() -> None:
    assert check_messages.differences() == []


def test_every_api_is_there_both_ways() -> None:
    requests = messages.all_requests()
    found = {request.__name__.removesuffix("Request"): request.versions.last for request in requests.values()}
    words = WANTED.split()
    assert found == dict(zip(words[::2], map(int, words[1::2]), strict=True))
    for key, request in requests.items():
        assert request.response.__name__ == request.__name__.removesuffix("Request") + "Response"
        assert (request.api_key, request.response.api_key, request.response.request) == (key, key, request)
        assert request.response.versions == request.versions
    for name in ("TransactionLog", "OffsetCommit", "GroupMetadata"):
        assert issubclass(getattr(messages, f"{name}Key"), Message)
        assert issubclass(getattr(messages, f"{name}Value"), Message)
    pairs = [kind for kind in messages.all_messages() if issubclass(kind, Request | Response)]
    assert len(pairs) == 2 * len(requests)


def test_a_name_means_one_class() -> None:
    modules = [path.stem for path in TABLES.glob("*.py") if path.stem != "__init__"]
    names = [set(messages._classes(module)) for module in modules]
    assert set(modules) == set(messages._MODULES)
    assert [one & other for one, other in itertools.combinations(names, 2) if one & other] == []
    assert set().union(*names) <= set(dir(messages))
    with pytest.raises(AttributeError, match="no attribute 'NoSuchRequest'"):
        _ = messages.NoSuchRequest  # type: ignore[attr-defined]


def altered(table: str, old: str, new: str) -> type[Message]:
    """A class ("auth.ApiVersionsRequest") of a module in which one place is written otherwise."""
    module, _, name = table.partition(".")
    text = (TABLES / f"{module}.py").read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {module}.py"
    space: dict[str, Any] = {"__name__": "altered"}
    exec(text.replace(old, new), space)
    found: type[Message] = space[name]
    return found


INIT = "transactions.InitProducerIdRequest"
END = "transactions.EndTxnRequest"
ID, EPOCH = 'producer_id: int = int64("3+", default=-1)', 'producer_epoch: int = int16("3+", default=-1)'
PAIR, TURNED = f"{ID}\n    {EPOCH}", f"{EPOCH}\n    {ID}"
END_HEAD = 'class EndTxnRequest(Request, key=26, versions="0-5", flexible="3+"):'
NODES = 'array(ProduceNodeEndpoint, "10+", tag=0)'
OLD_FIELD = 'int32("0", default=1)'
GROUP_VALUE = 'class ConsumerGroupMetadataValue(CoordinatorValue, key=3, versions="0", flexible="0+"):'
TOPIC_HEAD = 'class TopicRecord(MetadataRecord, key=2, versions="0", flexible="0+"):'


@pytest.mark.parametrize(
    ("table", "old", "new", "line"),
    [
        # A field: its versions, presence, place, kind, default, null, tag, ignorable, name, Python type.
        (INIT, PAIR, PAIR.replace("3+", "2+", 1), "version 2 (4.4.0): producer_id is not in Kafka"),
        (INIT, PAIR, PAIR.replace("3+", "4+", 1), "version 3 (4.4.0): producer_id is missing"),
        (INIT, PAIR, ID, "version 3 (3.9.1): producer_epoch is missing"),
        (INIT, PAIR, TURNED, "producer_epoch stands where Kafka has producer_id"),
        (INIT, PAIR, PAIR.replace("int64", "int32"), "kind is 'int32', Kafka has 'int64'"),
        (INIT, PAIR, PAIR.replace("=-1", "=0", 1), "default is 0, Kafka has -1"),
        ("metadata.MetadataRequest", '"0+", nullable="1+"', '"0+", nullable="2+"', "topics: nullable is False"),
        ("produce.ProduceResponse", NODES, NODES.replace("tag=0", "tag=1"), "tag is 1, Kafka has 0"),
        ("produce.ProduceResponse", NODES, NODES.replace(", tag=0", ""), "tag is None, Kafka has 0"),
        ("auth.ApiVersionsResponse", ", tag=3, ignorable=True", ", tag=3", "ignorable is False, Kafka has True"),
        ("topics.CreatePartitionsRequest", "count: int", "number: int", "topics.count is missing"),
        ("auth.SaslHandshakeResponse", "array(string,", "array(int16,", "kind is 'int16'"),
        ("auth.SaslHandshakeResponse", "mechanisms: list[str]", "mechanisms: list[int]", "is annotated list[int]"),
        # Inside structs, and the oldest versions, which only 3.9.1 has.
        ("fetch.FetchResponse", 'first_offset: int = int64("4+")', 'first_offset: int = int32("4+")', "first_offset:"),
        ("fetch.ListOffsetsRequest", OLD_FIELD, OLD_FIELD.replace('"0"', '"0-1"'), "max_num_offsets is not in Kafka"),
        ("fetch.ListOffsetsRequest", OLD_FIELD, OLD_FIELD.replace("=1", "=2"), "0 (3.9.1): topics.partitions.max_num"),
        # The message itself.
        (END, END_HEAD, END_HEAD.replace("0-5", "0-4"), "versions are 0-4, Kafka has 0-5"),
        (END, END_HEAD, END_HEAD.replace("26", "27"), "the api key is 27, Kafka has 26"),
        (END, END_HEAD, END_HEAD.replace("3+", "2+"), "version 2 (4.4.0): flexible is True, Kafka has False"),
        ("group_records.ConsumerGroupMetadataValue", GROUP_VALUE, GROUP_VALUE.replace("3", "4"), "is 4, Kafka has 3"),
        (
            "group_records.ConsumerGroupMetadataValue",
            GROUP_VALUE,
            GROUP_VALUE.replace("CoordinatorValue", "CoordinatorKey"),
            "the type is coordinator-key, Kafka has coordinator-value",
        ),
        ("metadata_records.TopicRecord", TOPIC_HEAD, TOPIC_HEAD.replace("key=2, ", ""), "is None, Kafka has 2"),
        (
            "group_records.ConsumerGroupMetadataKey",
            'group_id: str = string("0+")\n\n\nclass GroupM',
            'group_id: str = data("0+")\n\n\nclass GroupM',
            "group_id: kind is 'bytes'",
        ),
        (
            "control_records.LeaderChangeMessage",
            'uuid("1+")',
            'uuid("0+")',
            "voters.voter_directory_id is not in Kafka",
        ),
        ("transactions.EndTxnAsk", END_HEAD, END_HEAD.replace("EndTxnRequest", "EndTxnAsk"), "neither release has it"),
    ],
)
def test_an_altered_table_is_found(table: str, old: str, new: str, line: str) -> None:
    found = check_messages.differences([altered(table, old, new)])
    assert any(line in difference for difference in found), found
    assert all(difference.startswith(table.partition(".")[2]) for difference in found)


def test_a_record_without_a_class_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is a record that is read by a class with other fields."""
    monkeypatch.setattr(check_messages, "READ_AS", {"LegacyOffsetCommitKey": "GroupMetadataKey"})
    assert sorted(check_messages.differences()) == [
        "GroupMetadataKey as LegacyOffsetCommitKey: version 0: partition is missing",
        "GroupMetadataKey as LegacyOffsetCommitKey: version 0: topic is missing",
        "LegacyOffsetCommitValue: no class is declared",
    ]


def test_a_table_that_is_only_written_otherwise_is_not_found() -> None:
    same = altered(INIT, "fence its previous producer", "fence him who had it")
    assert check_messages.differences([same]) == []
