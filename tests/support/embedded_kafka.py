# SPDX-License-Identifier: Apache-2.0
"""The embedded broker in place of ApacheKafka, for all tests of a run: KCODEC_TEST_BROKER=embedded.

    KCODEC_TEST_BROKER=embedded python -m pytest tests/producer tests/consumer

Only the tests that use a broker are run. A test that needs more than a single node in this process (several nodes, a
process to kill, TLS) fails with NeedsApacheKafka, whose text is the reason. Users log in with PLAIN or SCRAM, and the
listener for requests of the test itself has no login, as in ApacheKafka.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Self

import pytest

from kcodec.admin.security import AclBinding
from kcodec.arguments import names_of
from kcodec.broker import Broker
from kcodec.broker.settings import BrokerSettings
from kcodec.testing import bare_admin, kafka, pytest_plugin
from kcodec.testing.cluster_admin import _acl
from kcodec.testing.jars import KAFKA_VERSION
from kcodec.testing.security import USERS

IS_EMBEDDED = os.environ.get("KCODEC_TEST_BROKER", "kafka") == "embedded"
#: Fixtures that start or use a broker.
FIXTURES = {"apache_kafka", "apache_kafka_factory", "transaction_cluster", "guarded_kafka", "guarded"}
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

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class NeedsApacheKafka(Exception):
    """The test needs something that the embedded broker does not have."""


class EmbeddedKafka(Broker):
    """The embedded broker, with the arguments and methods of ApacheKafka that make sense for it."""

    def __init__(self, version: str = KAFKA_VERSION, **options: Any) -> None:
        if version != KAFKA_VERSION:
            raise NeedsApacheKafka(f"Kafka {version}")
        if options.pop("nodes", 1) != 1:
            raise NeedsApacheKafka("several nodes")
        for name in ("tls", "token_server", "advertise", "jvm_options", "directory"):
            if options.pop(name, None):
                raise NeedsApacheKafka(f"ApacheKafka({name}=...)")
        options.pop("heap", None)
        settings: dict[str, Any] = _security(options)
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

    def __enter__(self) -> Self:
        if self._thread is None:  # otherwise, the factory has started it
            self.start()
        return self

    @property
    def admin_servers(self) -> str:
        """The address of the listener without a login."""
        return self.listeners["PLAINTEXT"]

    def client_options(
        self, user: str | None = "alice", mechanism: str | None = None, *, protocol: str | None = None
    ) -> dict[str, Any]:
        """Return the options with which a client connects."""
        return super().client_options(user, mechanism, protocol=protocol)

    def allow(self, user: str, operation: str, **resource: Any) -> None:
        """Permit a user an operation, as ApacheKafka does."""
        bare_admin.create_acl(self.admin_servers, acl_of(user, operation, **resource))

    def revoke(self, user: str, operation: str, **resource: Any) -> None:
        """Revoke what `allow` permitted."""
        bare_admin.delete_acl(self.admin_servers, acl_of(user, operation, **resource))

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


def _security(options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings for the options sasl, users and authorizer, which are removed."""
    sasl, users, authorizer = (options.pop(name, None) for name in ("sasl", "users", "authorizer"))
    if not sasl:
        return {}
    mechanisms = MECHANISMS if sasl is True else names_of(sasl, "sasl")
    if not set(mechanisms) <= set(MECHANISMS):
        raise NeedsApacheKafka(f"ApacheKafka(sasl={sasl!r})")
    settings = {
        "listeners": {"SASL_PLAINTEXT": 0, "PLAINTEXT": 0},
        "sasl_mechanisms": list(mechanisms),
        "users": dict(users or USERS),
    }
    return settings | ({"authorizer": True, "super_users": ["admin", "ANONYMOUS"]} if authorizer else {})


def acl_of(user: str, operation: str, **resource: Any) -> AclBinding:
    """Return the permission that the arguments of `allow` describe."""
    named = {"topic": None, "group": None, "transactional_id": None, "is_prefix": False, **resource}
    return _acl(user, operation, **named)


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
