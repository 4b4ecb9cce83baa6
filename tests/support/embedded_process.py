# SPDX-License-Identifier: Apache-2.0
"""The embedded broker as a process, with the methods of ApacheKafka that stories of kills use, so that they run on
either.

    with EmbeddedKafka(folder, transaction_version=2, group_consumer_session_timeout_ms=6000) as kafka:
        kafka.node(1).kill()
        kafka.node(1).start()
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

from broker_process import BrokerProcess

from kcodec.client import Admin, NewTopic

#: `kcodec broker` has no option for each setting.
PROGRAM = """
import json, signal, sys
from kcodec.broker import Broker

with Broker(port=int(sys.argv[1]), data_dir=sys.argv[2], **json.loads(sys.argv[3])) as broker:
    print("kcodec broker:", broker.bootstrap_servers, "accepts requests", flush=True)
    signal.pause()
"""


class EmbeddedKafka(BrokerProcess):
    """A broker process with any settings of the broker; it is its own only node."""

    id = 1

    def __init__(self, directory: Path, **settings: Any) -> None:
        super().__init__(directory)
        self._settings = settings
        self.nodes = [self]

    def command(self, port: str) -> list[str]:
        return [sys.executable, "-c", PROGRAM, port, str(self.directory / "logs"), json.dumps(self._settings)]

    @property
    def admin_servers(self) -> str:
        return self.bootstrap_servers

    def node(self, number: int) -> EmbeddedKafka:
        """Return the only node."""
        assert number == 1
        return self

    def leader(self, topic: str, partition: int) -> EmbeddedKafka:
        """Return the only node, which leads all partitions."""
        return self

    def coordinator(self, kind: str, key: str) -> EmbeddedKafka:
        """Return the only node, which coordinates everything."""
        return self

    def create_topic(self, partitions: int) -> str:
        """Create a topic with a unique name."""
        name = f"topic-{uuid.uuid4().hex[:12]}"
        with Admin(bootstrap_servers=self.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name, partitions)])
        return name

    def wait_in_sync(self, topic: str, partition: int) -> None:
        """Return at once: there is one replica."""

    def log_tail(self, lines: int = 60) -> str:
        """Return nothing: what the process logs is on the stderr of the tests."""
        return ""
