# SPDX-License-Identifier: Apache-2.0
"""The embedded broker in place of ApacheKafka, for all tests of a run: KCODEC_TEST_BROKER=embedded.

    KCODEC_TEST_BROKER=embedded python -m pytest tests/producer tests/consumer

Only the tests that use a broker are run. A test that needs more than a single node in this process (several nodes, a
process to kill, TLS) fails with NeedsApacheKafka, whose text is the reason.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.broker.settings import BrokerSettings
from kcodec.testing import kafka, pytest_plugin
from kcodec.testing.jars import KAFKA_VERSION

IS_EMBEDDED = os.environ.get("KCODEC_TEST_BROKER", "kafka") == "embedded"
#: Fixtures that start or use a broker.
FIXTURES = {"apache_kafka", "apache_kafka_factory", "transaction_cluster", "guarded_kafka"}
#: Settings of server.properties that have other names in BrokerSettings.
NAMES = {
    "num_partitions": "default_partitions",
    "auto_create_topics_enable": "auto_create_topics",
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": "transaction_timeout_scan_ms",
    "transaction_remove_expired_transaction_cleanup_interval_ms": "transactional_id_scan_ms",
    "transaction_max_timeout_ms": "max_transaction_timeout_ms",
    "transaction_partition_verification_enable": "verifies_transactions",
    "transaction_state_log_num_partitions": "transaction_topic_partitions",
    "offsets_topic_num_partitions": "offsets_topic_partitions",
    "socket_request_max_bytes": "max_request_bytes",
    "log_retention_check_interval_ms": "retention_check_interval_ms",
}
#: Settings of server.properties that are defaults of topics.
TOPIC_NAMES = {
    "message_max_bytes": "max.message.bytes",
    "log_retention_ms": "retention.ms",
    "log_message_timestamp_type": "message.timestamp.type",
    "log_segment_bytes": "segment.bytes",
}


class NeedsApacheKafka(Exception):
    """The test needs something that the embedded broker does not have."""


class EmbeddedKafka(Broker):
    """The embedded broker, with the arguments and methods of ApacheKafka that make sense for it."""

    def __init__(self, version: str = KAFKA_VERSION, **options: Any) -> None:
        if version != KAFKA_VERSION:
            raise NeedsApacheKafka(f"Kafka {version}")
        if options.pop("nodes", 1) != 1:
            raise NeedsApacheKafka("several nodes")
        for name in ("tls", "sasl", "users", "token_server", "authorizer", "advertise", "jvm_options", "directory"):
            if options.pop(name, None):
                raise NeedsApacheKafka(f"ApacheKafka({name}=...)")
        options.pop("heap", None)
        settings: dict[str, Any] = {}
        for name, value in options.items():
            known = NAMES.get(name, name)
            value = {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
            if known in BrokerSettings.__dataclass_fields__:
                settings[known] = value
            elif name in TOPIC_NAMES:
                settings.setdefault("topic_defaults", {})[TOPIC_NAMES[name]] = str(value)
            elif value is not None:
                raise NeedsApacheKafka(f"setting {name.replace('_', '.')}")
        settings = {name: value for name, value in settings.items() if value is not None}
        settings.setdefault("auto_create_topics", False)
        settings.setdefault("group_min_session_timeout_ms", 1000)
        settings.setdefault("offsets_topic_partitions", 5)
        settings.setdefault("transaction_topic_partitions", 5)
        self.version = version
        self.transaction_version = settings.get("transaction_version", 2)
        self._temporary = tempfile.TemporaryDirectory()
        super().__init__(data_dir=Path(self._temporary.name), **settings)

    @property
    def nodes(self) -> list[Any]:
        """Return the processes, of which there are none."""
        return []

    def log_tail(self, lines: int = 60) -> str:
        """Return the latest requests."""
        return "\n".join(str(entry) for entry in list(self.wire_log)[-lines:])

    def kill(self) -> None:
        """Stop without a clean end."""
        self.crash()

    def stop(self) -> None:
        """Stop; the data stays."""
        super().close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NeedsApacheKafka(f"ApacheKafka.{name}")


if IS_EMBEDDED:
    kafka.ApacheKafka = EmbeddedKafka  # type: ignore[misc, assignment]
    vars(pytest_plugin)["ApacheKafka"] = EmbeddedKafka


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that use a broker, if it is the embedded one."""
    if IS_EMBEDDED:
        kept = [item for item in items if FIXTURES & set(getattr(item, "fixturenames", ()))]
        left = set(items) - set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = kept
