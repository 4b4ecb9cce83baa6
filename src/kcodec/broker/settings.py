# SPDX-License-Identifier: Apache-2.0
"""The settings of the broker. A comment gives the name of the setting in Kafka, and Kafka's default if it differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

from kcodec.arguments import check_kind
from kcodec.broker import topic_configs
from kcodec.broker.api import ApiError, Listener

MIB = 1 << 20
_HIGHEST = (1 << 31) - 1
#: The smallest and the largest value of settings that are not times. A time is between 0 and the largest int64.
_RANGES: dict[str, tuple[int, int]] = {
    "node_id": (0, _HIGHEST),
    "seed": (-(1 << 63), (1 << 63) - 1),
    "transaction_version": (0, 2),
    "group_version": (0, 1),
    "default_partitions": (1, 10_000),
    "transaction_topic_partitions": (1, 10_000),
    "offsets_topic_partitions": (1, 10_000),
    "offset_metadata_max_bytes": (0, _HIGHEST),
    "group_max_size": (1, _HIGHEST),
    "group_consumer_max_size": (1, _HIGHEST),
    "max_request_bytes": (1024, _HIGHEST),
    "max_connections": (1, _HIGHEST),
    "max_bytes_without_records": (1024, _HIGHEST),
    "max_partitions_per_request": (1, _HIGHEST),
    "max_incomplete_bytes": (1024, (1 << 63) - 1),
    "max_unsent_bytes": (1024, (1 << 63) - 1),
    "fetch_max_bytes": (1024, _HIGHEST),
    "max_fetch_sessions": (0, _HIGHEST),
}
#: The types of the other settings, by the annotation in the class, and their names in errors.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "True or False"),
    "str": ((str,), "a string"),
    "str | None": ((str, type(None)), "a string or None"),
    "str | Path | None": ((str, PathLike, type(None)), "a path or None"),
}
#: Lowest versions of the APIs that clients need for transaction version 2.
_NEW_FLOW = {"Produce": 12, "EndTxn": 5, "TxnOffsetCommit": 5}
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_CLIENT_AUTH = ("none", "requested", "required")
_MIGRATION_POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_USER = "User:"
HIGHEST_PORT = 65_535
# Intervals that must not be 0, because the same work would then run again and again.
_PERIODS = (
    "retention_check_interval_ms",
    "transaction_timeout_scan_ms",
    "transactional_id_scan_ms",
    "offsets_retention_check_interval_ms",
)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The settings of a broker, which are keyword arguments of Broker. Times are in milliseconds, sizes in bytes.

    node_id:             Id of the only node.
    cluster_id:          Id of the cluster.
    transaction_version: Level of the feature transaction.version: 0, 1 or 2 (KIP-890).
    seed:                Seed of all random numbers: member ids, topic ids, probabilities of fault rules.
    group_version:       1: consumer protocol (KIP-848) and classic protocol; 0: only the classic protocol.
    max_versions:        Highest versions of APIs, to imitate an older broker: {"Produce": 8}. -1 removes the API. If
                         Produce is below 12, EndTxn below 5 or TxnOffsetCommit below 5, transaction_version is at most
                         1.

    auto_create_topics:  Whether a Metadata request creates the topics that it names.
    default_partitions:  Number of partitions of a topic that is created without this number.
    topic_defaults:      Defaults of topic settings, with Kafka's names: {"max.message.bytes": "2000000"}.
    retention_check_interval_ms: Interval between two checks for segments that retention removes.

    transaction_topic_partitions: Number of partitions of `__transaction_state`.
    max_transaction_timeout_ms:   Maximum transaction timeout in an InitProducerId request.
    transaction_timeout_scan_ms:  Interval between two checks for transactions that have timed out.
    transactional_id_expiration_ms: The broker removes a transactional id that is not used for this time.
    transactional_id_scan_ms:     Interval between two checks for such ids.
    marker_delay_ms:              Time between the decision about a transaction (EndTxn) and its markers.
    producer_id_expiration_ms:    A partition forgets a producer that has written nothing for this time.
    verifies_transactions:        Whether a leader verifies the transactions of older clients with the coordinator.

    offsets_topic_partitions:  Number of partitions of `__consumer_offsets`.
    offset_metadata_max_bytes: Maximum size of the metadata of a committed offset.
    offsets_retention_ms:      The broker removes committed offsets of a group without members after this time.
    offsets_retention_check_interval_ms: Interval between two checks for such offsets.
    group_initial_rebalance_delay_ms: Time for which the first rebalance of a classic group waits for more members.
    group_min_session_timeout_ms: Minimum session timeout of a member of a classic group.
    group_max_session_timeout_ms: Maximum session timeout of a member of a classic group.
    group_max_size:            Maximum number of members of a classic group.
    group_consumer_max_size:   Maximum number of members of a group of the consumer protocol (KIP-848).
    group_consumer_session_timeout_ms:     Session timeout of members of the consumer protocol.
    group_consumer_heartbeat_interval_ms:  Heartbeat interval of members of the consumer protocol.
    group_consumer_assignment_interval_ms: Minimum time between two assignments of a group of the consumer protocol.
    group_consumer_migration_policy: Which groups with members change their protocol: "bidirectional" (both), "upgrade"
                               (a classic group that a member of the consumer protocol joins), "downgrade" (a group that
                               the last member of the consumer protocol leaves) or "disabled". A group without members
                               can always change its protocol. Unless "disabled", members of both protocols can be in
                               one group.

    listeners:       Ports by security protocol; port 0 takes a free port: {"PLAINTEXT": 0, "SASL_SSL": 9093}.
                     If empty, there is one listener: with TLS if ssl_certfile is set, with SASL if sasl_mechanisms is
                     set.
    ssl_certfile:    PEM file with the certificate of the broker, and its key if ssl_keyfile is not set. None: no TLS.
    ssl_keyfile:     PEM file with the key of the certificate.
    ssl_password:    Password of the key.
    ssl_cafile:      PEM file with the authority that signs the certificates of clients.
    ssl_client_auth: Whether the broker requests client certificates: "none", "requested" or "required".
    sasl_mechanisms: Login mechanisms: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512. If empty, clients do not log in.
    users:           Names and passwords of the users. Their SCRAM credentials are written to the metadata log, where
                     AlterUserScramCredentials changes them: an altered password stays in effect at the next start,
                     unless the password here has changed. A deleted credential is written again. A user that is
                     removed here loses its credential, unless it has been altered. PLAIN uses only the passwords here.
    sasl_session_ms: Time after which a client must log in again (KIP-368). 0: never.
    authorizer:      Whether clients need permissions (ACLs), as with Kafka's StandardAuthorizer.
    super_users:     Users that may do everything: their names, or their principals, such as "User:CN=alice".
    allow_everyone_if_no_acl_found: Whether everything is allowed on a resource for which there is no ACL.

    max_request_bytes:  Maximum size of a request. The broker closes a connection that announces a larger one.
    max_bytes_without_records: Maximum size of a request that is not a Produce request. Decoding then takes little time.
    max_partitions_per_request: Maximum number of partitions of a Produce request.
    max_incomplete_bytes: Maximum size of all requests that have arrived only in part, or wait for an earlier request.
                        Above it, the broker closes the connections that have been sending for the longest time.
    max_connections:    Maximum number of connections. The broker closes further ones. The limit is lower if the process
                        may open few files, so that enough files remain for the logs.
    max_unsent_bytes:   Maximum size of all responses that clients have not read. Above it, the broker closes the
                        connections that have waited for the longest time.
    fetch_max_bytes:    Maximum size of a response to a Fetch request, unless its first batch is larger.
    max_fetch_sessions: Maximum number of fetch sessions (KIP-227). Further clients fetch without a session.

    Raise TypeError or ValueError if a value is invalid.
    """

    node_id: int = 1
    cluster_id: str = "kcodec-broker-cluster1"
    transaction_version: int = 2
    seed: int = 0
    group_version: int = 1
    max_versions: dict[str, int] = field(default_factory=dict)

    # Topics
    auto_create_topics: bool = True  # auto.create.topics.enable
    default_partitions: int = 1  # num.partitions
    topic_defaults: dict[str, str] = field(default_factory=dict)
    retention_check_interval_ms: int = 300_000  # log.retention.check.interval.ms

    # Transactions
    transaction_topic_partitions: int = 50  # transaction.state.log.num.partitions
    max_transaction_timeout_ms: int = 900_000  # transaction.max.timeout.ms
    transaction_timeout_scan_ms: int = 10_000  # transaction.abort.timed.out.transaction.cleanup.interval.ms
    transactional_id_expiration_ms: int = 604_800_000  # transactional.id.expiration.ms
    transactional_id_scan_ms: int = 3_600_000  # transaction.remove.expired.transaction.cleanup.interval.ms
    marker_delay_ms: int = 0
    producer_id_expiration_ms: int = 86_400_000  # producer.id.expiration.ms
    verifies_transactions: bool = True  # transaction.partition.verification.enable

    # Groups
    offsets_topic_partitions: int = 50  # offsets.topic.num.partitions
    offset_metadata_max_bytes: int = 4096  # offset.metadata.max.bytes
    offsets_retention_ms: int = 604_800_000  # offsets.retention.minutes
    group_initial_rebalance_delay_ms: int = 0  # group.initial.rebalance.delay.ms; Kafka: 3000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 1_000  # Kafka: unlimited
    group_consumer_max_size: int = 1_000  # Kafka: unlimited
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_assignment_interval_ms: int = 0  # group.consumer.assignment.interval.ms; Kafka: 1000
    group_consumer_migration_policy: str = "bidirectional"
    offsets_retention_check_interval_ms: int = 600_000

    # Security
    listeners: dict[str, int] = field(default_factory=dict)
    ssl_certfile: str | Path | None = None  # ssl.keystore.location
    ssl_keyfile: str | Path | None = None
    ssl_password: str | None = field(default=None, repr=False)  # ssl.key.password
    ssl_cafile: str | Path | None = None  # ssl.truststore.location
    ssl_client_auth: str = "none"  # ssl.client.auth
    sasl_mechanisms: Sequence[str] = ()  # sasl.enabled.mechanisms
    users: dict[str, str] = field(default_factory=dict, repr=False)
    sasl_session_ms: int = 0  # connections.max.reauth.ms
    authorizer: bool = False  # authorizer.class.name
    super_users: Sequence[str] = ()  # super.users
    allow_everyone_if_no_acl_found: bool = False  # allow.everyone.if.no.acl.found

    # Limits
    max_request_bytes: int = 100 * MIB  # socket.request.max.bytes
    max_bytes_without_records: int = MIB
    max_partitions_per_request: int = 20_000
    max_incomplete_bytes: int = 256 * MIB
    max_connections: int = 10_000  # max.connections
    max_unsent_bytes: int = 256 * MIB
    fetch_max_bytes: int = 55 * MIB  # fetch.max.bytes
    max_fetch_sessions: int = 1000  # max.incremental.fetch.session.cache.slots

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name.endswith("_ms") or one.name in _RANGES:
                _check_number(one.name, value)
            elif one.name in ("max_versions", "topic_defaults", "listeners"):
                _check_dict(one.name, value, str if one.name == "topic_defaults" else int)
            elif one.type in _KINDS:
                kinds, text = _KINDS[str(one.type)]
                if not isinstance(value, kinds):
                    shown = repr(value) if one.repr else f"a value of type {type(value).__name__}"
                    raise TypeError(f"{one.name} must be {text}, got {shown}")
                if value == "" and PathLike in kinds:
                    raise ValueError(f"{one.name} must be {text}, got an empty string")
        if self.group_consumer_migration_policy not in _MIGRATION_POLICIES:
            policies, found = ", ".join(_MIGRATION_POLICIES), self.group_consumer_migration_policy
            raise ValueError(f"group_consumer_migration_policy must be one of {policies}, got {found!r}")
        _check_security(self)
        _check_listeners(self)
        _check_authorizer(self)
        for name, value in self.topic_defaults.items():
            try:
                topic_configs.check(name, value)
            except ApiError as error:
                raise ValueError(f"topic_defaults: {error}") from None


def as_older_broker(settings: BrokerSettings) -> BrokerSettings:
    """Return the settings. If max_versions excludes a version that transaction version 2 needs, the transaction version
    is at most 1, as in a broker without this version."""
    is_older = any(settings.max_versions.get(name, least) < least for name, least in _NEW_FLOW.items())
    return replace(settings, transaction_version=1) if is_older and settings.transaction_version > 1 else settings


def listeners_at(settings: BrokerSettings, host: str, port: int) -> list[Listener]:
    """Return the listeners. If `listeners` is empty, the only listener has `port`."""
    protocol = ("SASL_" if settings.sasl_mechanisms else "") + ("SSL" if settings.ssl_certfile else "PLAINTEXT")
    return [Listener(name, host, one) for name, one in (settings.listeners or {protocol: port}).items()]


def check_logins(settings: BrokerSettings, *, has_credentials: bool) -> None:
    """Raise ValueError if no client can ever log in.

    has_credentials: Whether the metadata log may contain SCRAM credentials.
    """
    has_scram = any(name != "PLAIN" for name in settings.sasl_mechanisms)
    is_open = any(not protocol.startswith("SASL") for protocol in settings.listeners)
    if settings.sasl_mechanisms and not settings.users and not (has_scram and (has_credentials or is_open)):
        raise ValueError("sasl_mechanisms require users: without users, no client can log in")


def _check_security(settings: BrokerSettings) -> None:
    if not isinstance(settings.sasl_mechanisms, list | tuple):
        raise TypeError(f"sasl_mechanisms must be a list of names, got {settings.sasl_mechanisms!r}")
    wrong = [name for name in settings.sasl_mechanisms if name not in _MECHANISMS]
    if wrong:
        raise ValueError(f"sasl_mechanisms: expected one or more of {', '.join(_MECHANISMS)}, got {wrong[0]!r}")
    if settings.ssl_client_auth not in _CLIENT_AUTH:
        raise ValueError(f"ssl_client_auth must be one of {', '.join(_CLIENT_AUTH)}, got {settings.ssl_client_auth!r}")
    if settings.ssl_certfile is None and (
        settings.ssl_keyfile or settings.ssl_cafile or settings.ssl_client_auth != "none"
    ):
        raise ValueError("ssl_keyfile, ssl_cafile and ssl_client_auth require ssl_certfile, the broker's certificate")
    users = settings.users
    if not isinstance(users, dict) or not all(
        isinstance(text, str) and text for pair in users.items() for text in pair
    ):
        raise TypeError("users must be a dict of names and passwords, none of them empty")  # without secrets
    if users and not settings.sasl_mechanisms:
        raise ValueError("users require sasl_mechanisms: without one, no client logs in")


def _check_listeners(settings: BrokerSettings) -> None:
    for protocol, port in settings.listeners.items():
        if protocol not in _PROTOCOLS:
            raise ValueError(f"listeners: expected one or more of {', '.join(_PROTOCOLS)}, got {protocol!r}")
        if not 0 <= port <= HIGHEST_PORT:
            raise ValueError(f"listeners: the port of {protocol} must be between 0 and {HIGHEST_PORT}, got {port}")
    for part, option in (("SSL", "ssl_certfile"), ("SASL", "sasl_mechanisms")) if settings.listeners else ():
        named = [protocol for protocol in settings.listeners if part in protocol]
        if named and not getattr(settings, option):
            raise ValueError(f"listeners: {named[0]} requires {option}")
        if getattr(settings, option) and not named:
            raise ValueError(f"{option} has no effect: listeners has no protocol with {part}")


def _check_authorizer(settings: BrokerSettings) -> None:
    users = settings.super_users
    if not isinstance(users, list | tuple) or not all(isinstance(name, str) for name in users):
        raise TypeError(f"super_users must be a list of names, got {users!r}")
    for name in users:
        if not name.removeprefix(_USER) or (":" in name and not name.startswith(_USER)):
            raise ValueError(f"super_users: expected the name of a user or a principal {_USER}NAME, got {name!r}")
    for option in ("super_users", "allow_everyone_if_no_acl_found"):
        if getattr(settings, option) and not settings.authorizer:
            raise ValueError(f"{option} has no effect without an authorizer: set authorizer=True")


def principal_of(user: str) -> str:
    """Return the principal of a super user."""
    return user if user.startswith(_USER) else _USER + user


def _check_dict(name: str, value: object, kind: type) -> None:
    if not isinstance(value, dict) or not all(
        isinstance(key, str) and isinstance(found, kind) and not isinstance(found, bool) for key, found in value.items()
    ):
        raise TypeError(f"{name} must be a dict of names and values ({kind.__name__}), got {value!r}")


def _check_number(name: str, value: Any) -> None:
    least, most = _RANGES.get(name, (1 if name in _PERIODS else 0, (1 << 63) - 1))
    check_kind(name, value, (int, float) if name.endswith("_ms") else (int,), "a number")
    if not least <= value <= most:
        raise ValueError(f"{name} must be between {least} and {most}, got {value}")
