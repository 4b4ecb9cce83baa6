# SPDX-License-Identifier: Apache-2.0
"""Run Apache Kafka's command-line tools, test programs and clients, and Spark's connector, on the embedded broker.

    python tests/prove/prove_broker_tools.py [--only NAME ...] [--write FILE]

VerifiableProducer, VerifiableConsumer and TransactionalMessageCopier are the programs of Kafka's own system tests. Each
case has a broker of its own. Exits with 1 if a case fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))

from java_clients import JavaProducer, consume
from java_members import JavaMember
from kafka_tools import JVM_OPTIONS, TOOLS, VERSION
from peer_reports import command_line, write_report

from kcodec import TopicPartition
from kcodec.broker import Broker
from kcodec.client import Consumer, Producer
from kcodec.testing.jars import KAFKA_VERSION, broker_jars
from kcodec.testing.java import find_java

SECONDS = 60.0
PACKAGE = "org.apache.kafka.tools."


def tool(name: str, *arguments: str, text: str = "", seconds: float = SECONDS, is_refused: bool = False) -> str:
    """Run a tool and return its standard output. Raise AssertionError if it fails."""
    paths = [f"{TOOLS}/*", *(map(str, broker_jars(VERSION)) if name.startswith("kafka.") else ())]
    command = [str(find_java()), *JVM_OPTIONS, "-cp", os.pathsep.join(paths), name, *arguments]
    ran = subprocess.run(command, input=text, capture_output=True, text=True, timeout=seconds, check=False)
    assert bool(ran.returncode) is is_refused, f"exit status {ran.returncode}: {ran.stdout[-1500:]}{ran.stderr[-1500:]}"
    return ran.stdout


def check(condition: object, shown: str) -> None:
    """Raise AssertionError with what was printed unless the condition is true."""
    assert condition, shown[-2000:]


def at(broker: Broker) -> tuple[str, str]:
    """Return the option with the address."""
    return "--bootstrap-server", broker.bootstrap_servers


def fill(broker: Broker, topic: str, count: int, partitions: int = 1) -> None:
    """Create a topic with records "0", "1", ... in its partitions by turns."""
    broker.create_topic(topic, partitions=partitions)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, key=b"%d" % number, partition=number % partitions)


def committed_values(broker: Broker, topic: str) -> list[str]:
    """Return the values that a read_committed consumer sees."""
    return [bytes(record.value).decode() for record in broker.committed(topic)]


# ------------------------------------------------------------------------------------------------------- administration


def topics(broker: Broker) -> None:
    """TopicCommand creates, alters, describes, lists and deletes."""
    name = PACKAGE + "TopicCommand"
    tool(name, *at(broker), "--create", "--topic", "t", "--partitions", "2", "--config", "retention.ms=1000")
    tool(name, *at(broker), "--alter", "--topic", "t", "--partitions", "4")
    shown = tool(name, *at(broker), "--describe", "--topic", "t")
    check("PartitionCount: 4" in shown and "retention.ms=1000" in shown and "Partition: 3" in shown, shown)
    check("t" in tool(name, *at(broker), "--list").split(), "t is not listed")
    tool(name, *at(broker), "--create", "--topic", "t", is_refused=True)
    tool(name, *at(broker), "--delete", "--topic", "t")
    shown = tool(name, *at(broker), "--list")
    check("t" not in shown.split(), shown)


def configs(broker: Broker) -> None:
    """ConfigCommand describes and alters configurations of topics and brokers."""
    broker.create_topic("t")
    name, entity = "kafka.admin.ConfigCommand", ("--entity-type", "topics", "--entity-name", "t")
    tool(name, *at(broker), "--alter", *entity, "--add-config", "retention.ms=5000,cleanup.policy=compact")
    shown = tool(name, *at(broker), "--describe", *entity)
    check("retention.ms=5000" in shown and "cleanup.policy=compact" in shown, shown)
    tool(name, *at(broker), "--alter", *entity, "--delete-config", "retention.ms")
    shown = tool(name, *at(broker), "--describe", *entity)
    check("retention.ms" not in shown, shown)
    shown = tool(name, *at(broker), "--describe", "--entity-type", "brokers", "--entity-name", "1", "--all")
    check("num.partitions=1" in shown, shown)


def offsets_and_records(broker: Broker) -> None:
    """GetOffsetShell reads offsets, DeleteRecordsCommand removes the beginning, LogDirsCommand shows sizes."""
    fill(broker, "t", 20, 2)
    shown = tool(PACKAGE + "GetOffsetShell", *at(broker), "--topic", "t")
    check(shown.split() == ["t:0:10", "t:1:10"], shown)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"version": 1, "partitions": [{"topic": "t", "partition": 0, "offset": 4}]}, file)
        file.flush()
        shown = tool(PACKAGE + "DeleteRecordsCommand", *at(broker), "--offset-json-file", file.name)
    check("low_watermark: 4" in shown, shown)
    shown = tool(PACKAGE + "GetOffsetShell", *at(broker), "--topic", "t", "--time", "earliest")
    check(shown.split() == ["t:0:4", "t:1:0"], shown)
    shown = tool(PACKAGE + "LogDirsCommand", *at(broker), "--describe", "--topic-list", "t")
    check('"partition":"t-1"' in shown and '"error":null' in shown, shown)


def cluster(broker: Broker) -> None:
    """ClusterTool, BrokerApiVersionsCommand, FeatureCommand and MetadataQuorumCommand describe the cluster."""
    shown = tool(PACKAGE + "ClusterTool", "cluster-id", *at(broker))
    check(broker.core.settings.cluster_id in shown, shown)
    shown = tool(PACKAGE + "ClusterTool", "list-endpoints", *at(broker))
    check(broker.bootstrap_servers.rpartition(":")[2] in shown, shown)
    shown = tool(PACKAGE + "BrokerApiVersionsCommand", *at(broker))
    check("Produce(0): 0 to 13" in shown, shown)
    shown = tool(PACKAGE + "FeatureCommand", *at(broker), "describe")
    check("transaction.version" in shown and "FinalizedVersionLevel: 2" in shown, shown)
    shown = tool(PACKAGE + "MetadataQuorumCommand", *at(broker), "describe", "--status")
    check("LeaderId:" in shown and "CurrentVoters:" in shown, shown)
    shown = tool(PACKAGE + "MetadataQuorumCommand", *at(broker), "describe", "--replication")
    check("Leader" in shown, shown)


def leaders_and_replicas(broker: Broker) -> None:
    """LeaderElectionCommand finds nothing to elect, ReassignPartitionsCommand nothing to move."""
    fill(broker, "t", 10, 2)
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        plan.write_text(json.dumps({"partitions": [{"topic": "t", "partition": 0}]}))
        election = ("--election-type", "preferred", "--path-to-json-file", str(plan))
        shown = tool(PACKAGE + "LeaderElectionCommand", *at(broker), *election)
        check("not needed" in shown or "Valid replica already elected" in shown, shown)
        moved = {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}
        plan.write_text(json.dumps(moved))
        name, file = PACKAGE + "reassign.ReassignPartitionsCommand", ("--reassignment-json-file", str(plan))
        shown = tool(name, *at(broker), *file, "--execute")
        check("Successfully started" in shown, shown)
        shown = tool(name, *at(broker), *file, "--verify")
        check("is completed" in shown, shown)
        shown = tool(name, *at(broker), "--list")
        check("No partition reassignments found" in shown, shown)


# -------------------------------------------------------------------------------------------------------------- clients


def console(broker: Broker) -> None:
    """ConsoleProducer writes, ConsoleConsumer reads in a group of each protocol, ConsumerGroupCommand shows them."""
    broker.create_topic("t", partitions=2)
    lines = "".join(f"key-{number}:value-{number}\n" for number in range(100))
    keys = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    tool(PACKAGE + "ConsoleProducer", *at(broker), "--topic", "t", *keys, text=lines)
    check(broker.end_offset("t", 0) + broker.end_offset("t", 1) == 100, str(broker.end_offset("t")))
    for protocol in ("classic", "consumer"):
        properties = ("--command-property", f"group.protocol={protocol}")
        reading = ("--topic", "t", "--group", protocol, "--from-beginning", "--max-messages", "100")
        limit = ("--timeout-ms", "20000")
        shown = tool(PACKAGE + "consumer.ConsoleConsumer", *at(broker), *reading, *limit, *properties)
        check(sorted(shown.split()) == sorted(f"value-{number}" for number in range(100)), shown)
    name = PACKAGE + "consumer.group.ConsumerGroupCommand"
    check({"classic", "consumer"} <= set(tool(name, *at(broker), "--list").split()), "groups are missing")
    shown = tool(name, *at(broker), "--describe", "--group", "consumer")
    lags = [line.split()[5] for line in shown.splitlines() if line.startswith("consumer ")]
    check(lags == ["0", "0"], shown)
    shown = tool(name, *at(broker), "--describe", "--all-groups", "--state")
    check("Empty" in shown, shown)
    offsets = ("--topic", "t", "--reset-offsets", "--to-earliest", "--execute")
    tool(name, *at(broker), "--group", "classic", *offsets)
    shown = tool(name, *at(broker), "--describe", "--group", "classic")
    lags = [line.split()[5] for line in shown.splitlines() if line.startswith("classic ")]
    check(sum(map(int, lags)) == 100, shown)
    tool(name, *at(broker), "--group", "classic", "--delete-offsets", "--topic", "t")
    tool(name, *at(broker), "--group", "consumer", "--delete")
    shown = tool(PACKAGE + "GroupsCommand", *at(broker), "--list")
    check("consumer" not in shown.split("\n", 1)[-1].split()[:1], shown)


def verifiable_clients(broker: Broker) -> None:
    """VerifiableProducer's acknowledged values arrive once at VerifiableConsumers of each protocol."""
    broker.create_topic("t", partitions=3)
    shown = tool(
        PACKAGE + "VerifiableProducer", *at(broker), "--topic", "t", "--max-messages", "3000", "--throughput", "-1"
    )
    events = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    acknowledged = [int(event["value"]) for event in events if event["name"] == "producer_send_success"]
    check(sorted(acknowledged) == list(range(3000)), shown)
    for protocol in ("classic", "consumer"):
        options = ("--topic", "t", "--group-id", protocol, "--group-protocol", protocol, "--max-messages", "3000")
        reset = ("--reset-policy", "earliest", "--verbose")
        assignor = ("--session-timeout", "10000") if protocol == "classic" else ()
        shown = tool(PACKAGE + "VerifiableConsumer", *at(broker), *options, *reset, *assignor)
        events = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
        values = [int(event["value"]) for event in events if event["name"] == "record_data"]
        check(sorted(values) == list(range(3000)), shown)
        done = [event for event in events if event["name"] == "offsets_committed"]
        check(done and all(event["success"] for event in done), shown)


def message_copier(broker: Broker) -> None:
    """TransactionalMessageCopier copies each record once, with random aborts, in one run and in a second one."""
    fill(broker, "in", 2000, 1)
    broker.create_topic("out", partitions=1)
    for group in ("assigned", "subscribed"):
        arguments = ["--broker-list", broker.bootstrap_servers, "--input-topic", "in", "--input-partition", "0"]
        arguments += ["--output-topic", "out", "--consumer-group", group, "--transactional-id", group]
        arguments += ["--transaction-size", "150", "--max-messages", "2000", "--enable-random-aborts"]
        arguments += ["--group-mode"] if group == "subscribed" else []
        tool(PACKAGE + "TransactionalMessageCopier", *arguments)
        values = committed_values(broker, "out")
        expected = [str(number) for number in range(2000)]
        check(values[-2000:] == expected, f"{len(values)} values: {values[:20]} ... {values[-20:]}")
        check(broker.end_offset("out") > len(values), "no transaction was aborted")
    check(len(committed_values(broker, "out")) == 4000, "the copies are not complete")


def transactions(broker: Broker) -> None:
    """TransactionsCommand lists and describes transactions, finds a hanging one, and ends an open one."""
    broker.create_topic("t", partitions=1)
    name = PACKAGE + "TransactionsCommand"
    producer = Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="tid")
    with producer:
        producer.begin_transaction()
        producer.send("t", b"open")
        producer.flush()
        shown = tool(name, *at(broker), "list")
        check("tid" in shown and "Ongoing" in shown, shown)
        shown = tool(name, *at(broker), "describe", "--transactional-id", "tid")
        check("t-0" in shown, shown)
        shown = tool(name, *at(broker), "describe-producers", "--topic", "t", "--partition", "0")
        check(len(shown.splitlines()) == 2, shown)
        start = shown.splitlines()[1].split()[-1]
        shown = tool(name, *at(broker), "find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0")
        check("tid" not in shown, shown)
        where = ("--topic", "t", "--partition", "0", "--start-offset", start)
        tool(name, *at(broker), "abort", *where)
        check(not committed_values(broker, "t"), "the record of the aborted transaction is visible")
        shown = tool(name, *at(broker), "describe-producers", "--topic", "t", "--partition", "0")
        check(shown.splitlines()[1].split()[-1] == "None", shown)


def performance_tools(broker: Broker) -> None:
    """ProducerPerformance and ConsumerPerformance move 20,000 records, in transactions too."""
    broker.create_topic("t", partitions=3)
    load = ["--topic", "t", "--num-records", "20000", "--record-size", "100", "--throughput", "-1"]
    server = f"bootstrap.servers={broker.bootstrap_servers}"
    shown = tool(PACKAGE + "ProducerPerformance", *load, "--command-property", server)
    check("20000 records sent" in shown, shown)
    shown = tool(
        PACKAGE + "ProducerPerformance", *load, "--command-property", server, "--transaction-duration-ms", "100"
    )
    check("20000 records sent" in shown, shown)
    check(len(broker.committed("t")) == 40000, str(len(broker.committed("t"))))
    shown = tool(PACKAGE + "ConsumerPerformance", *at(broker), "--topic", "t", "--num-records", "40000")
    check("40000" in shown or "40" in shown.splitlines()[-1], shown)


def client_of_kcodec_reads(broker: Broker) -> None:
    """What the Java producer wrote with each compression is what kcodec's consumer reads."""
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        broker.create_topic(codec, partitions=1)
        lines = "".join(f"{number}\n" for number in range(500))
        tool(PACKAGE + "ConsoleProducer", *at(broker), "--topic", codec, "--compression-codec", codec, text=lines)
        options: dict[str, Any] = {"group_id": codec, "auto_offset_reset": "earliest"}
        with Consumer(bootstrap_servers=broker.bootstrap_servers, **options) as consumer:
            consumer.subscribe([codec])
            values: list[str] = []
            deadline = time.monotonic() + 10
            while len(values) < 500 and time.monotonic() < deadline:
                values += [(record.value or b"").decode() for record in consumer.poll(timeout=0.2)]
        check(values == [str(number) for number in range(500)], f"{codec}: {len(values)} values")


def java_clients(broker: Broker) -> None:
    """The Java producer commits and aborts, offsets in a transaction too; the Java consumer reads what is committed."""
    broker.create_topic("in", partitions=2)
    broker.create_topic("out", partitions=2)
    servers = broker.bootstrap_servers
    with JavaProducer(servers, **{"transactional.id": "java"}) as producer:
        producer.call("init")
        for number in range(20):
            producer.call("begin")
            producer.send([("out", number % 2, b"k", b"%d-%d" % (number, place)) for place in range(10)])
            producer.send_offsets("copy", {("in", 0): number})
            producer.call("commit" if number % 4 else "abort")
    expected = sorted(b"%d-%d" % (number, place) for number in range(20) if number % 4 for place in range(10))
    check(sorted(record.value or b"" for record in consume(servers, "out")) == expected, "other records are visible")
    with Consumer(bootstrap_servers=servers, group_id="copy") as consumer:
        found = consumer.committed([TopicPartition("in", 0)])[TopicPartition("in", 0)]
    check(found is not None and found.offset == 19, str(found))


def java_groups(broker: Broker) -> None:
    """Java consumers of both protocols share the partitions, also after a member has left."""
    fill(broker, "t", 600, 6)
    for protocol in ("classic", "consumer"):
        options = {"group.protocol": protocol, "auto.offset.reset": "earliest"}
        with JavaMember(broker.bootstrap_servers, protocol, ["t"], **options) as first:
            with JavaMember(broker.bootstrap_servers, protocol, ["t"], **options) as second:
                wait_until(lambda: (len(first.owned()), len(second.owned())) == (3, 3), f"{protocol}: no equal shares")
            wait_until(lambda: len(first.owned()) == 6, f"{protocol}: the partitions of the other member")
            read = {partition: runs for partition, runs in first.state().records.items() if runs}
            check(all(run.start >= 0 for runs in read.values() for run in runs), str(read))


def spark_connector(broker: Broker) -> None:
    """Spark's connector writes a batch, reads it with batch and stream, and sees only committed records."""
    from pyspark.sql import SparkSession

    libraries = Path(__file__).resolve().parent.parent.parent / ".cache" / "spark-kafka"
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.extraClassPath", f"{libraries}/*").config("spark.sql.shuffle.partitions", 2)
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    try:
        broker.create_topic("t", partitions=3)
        options = {"kafka.bootstrap.servers": broker.bootstrap_servers}
        rows = spark.range(5000).selectExpr("cast(id as string) as key", "cast(id * 2 as string) as value")
        rows.write.format("kafka").options(**options, topic="t").save()
        with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="open") as producer:
            producer.begin_transaction()
            producer.send("t", b"aborted")
            producer.flush()
            producer.abort_transaction()
        reading = {**options, "subscribe": "t", "startingOffsets": "earliest"}
        reading["kafka.isolation.level"] = "read_committed"
        strings = "cast(key as string) as key", "cast(value as string) as value"
        found = spark.read.format("kafka").options(**reading).load().selectExpr(*strings)
        check(found.exceptAll(rows).count() == 0 and rows.exceptAll(found).count() == 0, "the rows differ")
        stream = spark.readStream.format("kafka").options(**reading).load().selectExpr(*strings)
        query = stream.writeStream.format("memory").queryName("copied").trigger(availableNow=True).start()
        query.awaitTermination(60)
        copied = spark.table("copied")
        check(copied.count() == 5000 and copied.exceptAll(rows).count() == 0, "the stream's rows differ")
    finally:
        spark.stop()


def wait_until(condition: Callable[[], bool], text: str) -> None:
    """Wait until a condition is true. Raise AssertionError with the text after 30 s."""
    deadline = time.monotonic() + 30
    while not condition():
        check(time.monotonic() < deadline, text)
        time.sleep(0.1)


CASES: dict[str, tuple[Callable[[Broker], None], str]] = {
    "topics": (topics, "kafka-topics"),
    "configs": (configs, "kafka-configs"),
    "offsets-and-records": (offsets_and_records, "kafka-get-offsets, kafka-delete-records, kafka-log-dirs"),
    "cluster": (cluster, "kafka-cluster, kafka-broker-api-versions, kafka-features, kafka-metadata-quorum"),
    "leaders-and-replicas": (leaders_and_replicas, "kafka-leader-election, kafka-reassign-partitions"),
    "console": (console, "kafka-console-producer, kafka-console-consumer, kafka-consumer-groups, kafka-groups"),
    "verifiable-clients": (verifiable_clients, "VerifiableProducer, VerifiableConsumer"),
    "message-copier": (message_copier, "TransactionalMessageCopier"),
    "transactions": (transactions, "kafka-transactions"),
    "performance": (performance_tools, "kafka-producer-perf-test, kafka-consumer-perf-test"),
    "java-clients": (java_clients, "Java's transactional producer, consumer and offsets in transactions"),
    "java-groups": (java_groups, "Java's consumers in groups of the classic and the consumer protocol"),
    "spark": (spark_connector, "Spark's connector, batch and stream, read_committed"),
    "codecs": (client_of_kcodec_reads, "the Java producer's compression types, read by kcodec"),
}


def main() -> int:
    """Run the cases. Return 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES), metavar="NAME")
    parser.add_argument("--write", type=Path, help="put the report into a file, too")
    options = parser.parse_args()
    failed = 0
    lines = [f"Apache Kafka's tools {VERSION}, Java clients {KAFKA_VERSION}, Spark's connector (embedded broker):"]
    only = [] if options.only == list(CASES) else ["--only", *options.only]
    lines.append(command_line("tests/prove/prove_broker_tools.py", only))
    for name in options.only:
        function, tools = CASES[name]
        begun = time.monotonic()
        try:
            with Broker() as broker:
                function(broker)
            outcome = "passed"
        except Exception:  # noqa: BLE001  the other cases go on
            traceback.print_exc()
            failed += 1
            outcome = "FAILED"
        lines.append(f"  {outcome}, {name}: {tools}, {time.monotonic() - begun:.0f} s")
        print(lines[-1], flush=True)
    if options.write:
        write_report(options.write, lines)
    print(f"{len(options.only) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
