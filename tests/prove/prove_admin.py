# SPDX-License-Identifier: Apache-2.0
"""What each call of Admin changes, read back with Kafka's own tools.

    python tests/prove/prove_admin.py [--results FOLDER]

Two brokers with an authorizer run for all calls. IN_TESTS names the tests that compare other methods with the tools.
The proof fails if a method of Admin is in neither part. The result is written to admin.txt in tests/results or FOLDER.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HERE / "support"), str(HERE.parent / "src")]

from kafka_tools import kafka_tool  # noqa: E402
from raw_transactions import RawTransactions  # noqa: E402

from kcodec import TopicPartition  # noqa: E402
from kcodec.client import (  # noqa: E402
    AclBinding,
    AclFilter,
    AclOperation,
    Admin,
    ConfigResource,
    NewTopic,
    Producer,
    ResourceType,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    ScramMechanism,
)
from kcodec.testing.kafka import KAFKA_VERSION, ApacheKafka  # noqa: E402

SECONDS = 30.0
OPERATIONS, CLUSTER = "tests/admin/test_admin_operations.py", "tests/admin/test_admin_cluster.py"
TOKENS, TYPES = "tests/admin/test_delegation_tokens.py", "tests/admin/test_group_types.py"
#: Method -> the file and the test that compare it with a tool of Kafka.
IN_TESTS = {
    "alter_client_quotas": (OPERATIONS, "test_quotas_are_as_kafka_shows_them"),
    "describe_client_quotas": (OPERATIONS, "test_quotas_are_as_kafka_shows_them"),
    "describe_quorum": (OPERATIONS, "test_the_quorum_is_as_kafka_shows_it"),
    "describe_log_dirs": (OPERATIONS, "test_log_directories_are_as_kafka_shows_them"),
    "alter_replica_log_dirs": (OPERATIONS, "test_log_directories_are_as_kafka_shows_them"),
    "list_config_resources": (OPERATIONS, "test_configured_resources_are_as_kafka_shows_them"),
    "alter_partition_reassignments": (CLUSTER, "test_partitions_move_as_kafkas_tool_shows_it"),
    "list_partition_reassignments": (CLUSTER, "test_partitions_move_as_kafkas_tool_shows_it"),
    "unregister_broker": (CLUSTER, "test_partitions_move_as_kafkas_tool_shows_it"),
    "create_delegation_token": (TOKENS, "test_the_life_of_a_token"),
    "renew_delegation_token": (TOKENS, "test_the_life_of_a_token"),
    "expire_delegation_token": (TOKENS, "test_the_life_of_a_token"),
    "describe_delegation_tokens": (TOKENS, "test_the_life_of_a_token"),
    "list_share_group_offsets": (TYPES, "test_a_live_share_group_is_described"),
    "list_groups": (TYPES, "test_a_live_streams_group_is_as_kafka_shows_it"),
    "describe_groups": (TYPES, "test_a_live_streams_group_is_as_kafka_shows_it"),
    "list_group_offsets": (TYPES, "test_a_live_streams_group_is_as_kafka_shows_it"),
    "describe_group_lag": (TYPES, "test_a_live_streams_group_is_as_kafka_shows_it"),
}
#: Methods of Admin that are no requests.
OTHERS = {"close", "from_properties", "find_stray_transactions"}


class ReadBack:
    """Calls of Admin on one cluster, and what Kafka's tools print afterwards."""

    def __init__(self, kafka: ApacheKafka) -> None:
        self.servers = kafka.admin_servers
        self.admin = Admin(bootstrap_servers=self.servers)
        self.lines: list[str] = []
        self.done: set[str] = set()

    def shows(self, methods: str, words: str | None, tool: str, *arguments: str, lacks: str | None = None) -> None:
        """Check that a tool soon prints these words, and no longer those of `lacks`."""
        deadline = time.monotonic() + SECONDS
        while True:
            printed = " ".join(kafka_tool(tool, "--bootstrap-server", self.servers, *arguments).split())
            if (words is None or words in printed) and (lacks is None or lacks not in printed):
                break
            assert time.monotonic() < deadline, f"{methods}: {tool} {' '.join(arguments)} printed: {printed}"
        self.done |= set(methods.split(", "))
        found = " ".join(filter(None, (words and f"shows {words!r}", lacks and f"no longer shows {lacks!r}")))
        self.lines.append(f"{methods}: {tool} {found}")

    def topics(self) -> None:
        """Topics, their partitions, settings, leaders and records."""
        admin = self.admin
        described = ("TopicCommand", "--describe", "--topic", "read-back")
        admin.create_topics([NewTopic("read-back", assignments={0: (1, 2)})])
        self.shows("create_topics", "Topic: read-back Partition: 0 Leader: 1 Replicas: 1,2", *described)
        assert [one.replicas for one in admin.describe_topics("read-back")["read-back"].partitions] == [(1, 2)]
        assert "read-back" in admin.list_topics()
        self.done |= {"describe_topics", "list_topics", "describe_cluster"}
        assert len(admin.describe_cluster().brokers) == 2
        admin.create_partitions({"read-back": 3})
        self.shows("create_partitions", "PartitionCount: 3", *described)
        place = TopicPartition("read-back", 0)
        admin.alter_partition_reassignments({place: [2, 1]})
        self.shows("alter_partition_reassignments", "Partition: 0 Leader: 1 Replicas: 2,1", *described)
        admin.elect_leaders([place])
        self.shows("elect_leaders", "Partition: 0 Leader: 2 Replicas: 2,1", *described)
        resource = ConfigResource.topic("read-back")
        admin.alter_configs({resource: {"retention.ms": "3600000"}})
        self.shows(
            *("alter_configs, describe_configs", "retention.ms=3600000", "ConfigCommand", "--describe"),
            *("--entity-type", "topics", "--entity-name", "read-back"),
        )
        assert admin.describe_configs([resource])[resource]["retention.ms"].value == "3600000"
        with Producer(bootstrap_servers=self.servers) as producer:
            for number in range(5):
                producer.send("read-back", b"%d" % number, partition=0)
        admin.delete_records({place: 3})
        earliest = ("GetOffsetShell", "--topic-partitions", "read-back:0", "--time")
        self.shows("delete_records, list_offsets", "read-back:0:3", *earliest, "earliest")
        ends = admin.list_offsets({place: "earliest"}), admin.list_offsets({place: "latest"})
        assert [one[place].offset for one in ends] == [3, 5]

    def groups(self) -> None:
        """Offsets of groups, and groups."""
        first, second = TopicPartition("read-back", 0), TopicPartition("read-back", 1)
        described = ("ConsumerGroupCommand", "--describe", "--group", "readers")
        self.admin.alter_group_offsets("readers", {first: 4, second: 0})
        self.shows("alter_group_offsets", "readers read-back 0 4 5 1", *described)
        self.admin.delete_group_offsets("readers", [second])
        self.shows("delete_group_offsets", None, *described, lacks="readers read-back 1 0")
        self.admin.delete_groups("readers")
        self.shows("delete_groups", None, "ConsumerGroupCommand", "--list", lacks="readers")

    def security(self) -> None:
        """Permissions and passwords."""
        binding = AclBinding(ResourceType.TOPIC, "read-back", "User:alice", AclOperation.READ)
        listed = ("AclCommand", "--list", "--topic", "read-back")
        self.admin.create_acls([binding])
        words = "principal=User:alice, host=*, operation=READ, permissionType=ALLOW"
        self.shows("create_acls, describe_acls", words, *listed)
        assert self.admin.describe_acls() == [binding]
        self.admin.delete_acls([AclFilter(ResourceType.TOPIC, "read-back")])
        self.shows("delete_acls", None, *listed, lacks="User:alice")
        user = ("ConfigCommand", "--describe", "--entity-type", "users", "--entity-name", "carol")
        self.admin.alter_user_scram_credentials([ScramCredentialUpsertion("carol", "a password", iterations=5000)])
        both = "alter_user_scram_credentials, describe_user_scram_credentials"
        self.shows(both, "SCRAM-SHA-512=iterations=5000", *user)
        assert self.admin.describe_user_scram_credentials("carol")["carol"][0].iterations == 5000
        self.admin.alter_user_scram_credentials([ScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_512)])
        self.shows("alter_user_scram_credentials", None, *user, lacks="SCRAM-SHA-512")

    def transactions(self) -> None:
        """Open and hanging transactions."""
        admin, place = self.admin, TopicPartition("read-back", 2)
        with RawTransactions(self.servers) as raw:
            name, _ = raw.open([place])
            self.shows("list_transactions", f"{name} ", "TransactionsCommand", "list")
            described = ("TransactionsCommand", "describe", "--transactional-id", name)
            self.shows("describe_transactions", "Ongoing", *described)
            assert admin.describe_transactions([name])[name].state == "Ongoing" and name in admin.list_transactions()
            assert name in {one.transactional_id for one in admin.find_abandoned_transactions(idle_ms=0).transactions}
            self.done.add("find_abandoned_transactions")
            admin.fence_producers([name])
            self.shows("fence_producers", None, *described, lacks="Ongoing")
            hung = raw.hang(place, timestamp=0)
            producers = ("TransactionsCommand", "describe-producers", "--topic", "read-back", "--partition", "2")
            self.shows("describe_producers", f" {hung.start_offset}", *producers)
            assert admin.describe_producers([place])[place]
            found = admin.find_hanging_transactions().transactions
            assert [one.start_offset for one in found] == [hung.start_offset]
            hanging = ("TransactionsCommand", "find-hanging", "--broker-id", str(self.leader_of(place)))
            self.shows("find_hanging_transactions", "read-back 2", *hanging)
            admin.abort_transaction(place, *hung.producer, 0)
            self.shows("abort_transaction", None, *hanging, lacks="read-back 2")

    def leader_of(self, place: TopicPartition) -> int:
        return self.admin.describe_topics(place.topic)[place.topic].partitions[place.partition].leader or 0

    def cluster(self) -> None:
        """Features; and the topic is deleted."""
        self.admin.update_features({"transaction.version": 1})
        words = "Feature: transaction.version SupportedMinVersion: 0 SupportedMaxVersion: 2 FinalizedVersionLevel: 1"
        self.shows("update_features, describe_features", words, "FeatureCommand", "describe")
        self.admin.delete_topics("read-back")
        self.shows("delete_topics", None, "TopicCommand", "--list", lacks="read-back")


def missing_methods(done: set[str]) -> set[str]:
    """Return the public methods of Admin in neither part. Raise AssertionError if a test of IN_TESTS does not exist."""
    for path, test in IN_TESTS.values():
        assert f"def {test}(" in (HERE.parent / path).read_text(encoding="utf-8"), f"{path} has no {test}"
    methods = {name for name in dir(Admin) if not name.startswith("_") and callable(getattr(Admin, name))}
    return methods - OTHERS - set(IN_TESTS) - done


def main() -> int:
    """Run all calls and write the result."""
    parser = argparse.ArgumentParser(description="what Admin changes, read back with Kafka's tools")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args()
    began = time.monotonic()
    options: dict[str, Any] = {"transaction_version": 0, "transaction_partition_verification_enable": "false"}
    with ApacheKafka(nodes=2, sasl="PLAIN", authorizer=True, **options) as kafka:
        read_back = ReadBack(kafka)
        steps: list[Callable[[], None]] = [read_back.topics, read_back.groups, read_back.security]
        for step in [*steps, read_back.transactions, read_back.cluster]:
            step()
        read_back.admin.close()
    missing = missing_methods(read_back.done)
    assert not missing, f"no tool of Kafka reads back: {', '.join(sorted(missing))}"
    lines = [f"Kafka {KAFKA_VERSION}, two brokers; {time.monotonic() - began:.0f} s", *read_back.lines]
    lines += [f"{method}: {path}, {test}" for method, (path, test) in IN_TESTS.items()]
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "admin.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
