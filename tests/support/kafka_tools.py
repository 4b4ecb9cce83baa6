# SPDX-License-Identifier: Apache-2.0
"""Kafka's own command line tools, for tests that read back what a call has done.

kafka_tool("LogDirsCommand", "--bootstrap-server", servers, "--describe") -> what it prints
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from kcodec.testing.jars import broker_jars
from kcodec.testing.java import find_java

TOOLS = Path(__file__).resolve().parent.parent.parent / ".cache" / "kafka-tools"
#: The release of the tools. In later ones ConfigCommand is in kafka-tools, which is not published for them.
VERSION = "4.3.1"
CLASSES = {
    "AclCommand": "org.apache.kafka.tools.AclCommand",
    "ClientMetricsCommand": "org.apache.kafka.tools.ClientMetricsCommand",
    "ClusterTool": "org.apache.kafka.tools.ClusterTool",
    "ConfigCommand": "kafka.admin.ConfigCommand",
    "ConsumerGroupCommand": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "DelegationTokenCommand": "org.apache.kafka.tools.DelegationTokenCommand",
    "FeatureCommand": "org.apache.kafka.tools.FeatureCommand",
    "GetOffsetShell": "org.apache.kafka.tools.GetOffsetShell",
    "LogDirsCommand": "org.apache.kafka.tools.LogDirsCommand",
    "MetadataQuorumCommand": "org.apache.kafka.tools.MetadataQuorumCommand",
    "ReassignPartitionsCommand": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "ShareGroupCommand": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "StreamsGroupCommand": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "TopicCommand": "org.apache.kafka.tools.TopicCommand",
    "TransactionsCommand": "org.apache.kafka.tools.TransactionsCommand",
}
#: Small and quick to start: each runs for a second.
JVM_OPTIONS = ("-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def kafka_tool(name: str, *arguments: str, is_refused: bool = False) -> str:
    """Run a tool of Kafka and return its output. It must fail if, and only if, `is_refused` is true."""
    paths = os.pathsep.join([f"{TOOLS}/*", *map(str, broker_jars(VERSION) if name == "ConfigCommand" else ())])
    command = [str(find_java()), *JVM_OPTIONS, "-cp", paths, CLASSES[name], *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert bool(ran.returncode) is is_refused, f"{name} ended with {ran.returncode}: {ran.stdout}{ran.stderr}"
    return ran.stdout + (ran.stderr if is_refused else "")
