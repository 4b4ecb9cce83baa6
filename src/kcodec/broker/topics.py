# SPDX-License-Identifier: Apache-2.0
"""Topics, their partitions and settings, in the records of ``__cluster_metadata`` as Kafka's controller writes them.

Every change is first appended to the metadata log. After a restart, a replay of this log restores the topics, settings,
leader epochs and blocks of producer ids. A restart increases every leader epoch by 2, as on a Kafka cluster of one
node: when the broker registers, each partition first has no leader, and then this leader again.
"""

from __future__ import annotations

import logging
import random
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from uuid import UUID

from kcodec.broker import topic_configs
from kcodec.broker.api import ApiError
from kcodec.broker.authorizer.acls import AclTable
from kcodec.broker.clock import Clock
from kcodec.broker.derived_file import try_write_small, write_checkpoint
from kcodec.broker.partition_log import LogSettings, PartitionLog
from kcodec.broker.scram_credentials import MECHANISM_NAMES, ScramCredential, credential_of_record
from kcodec.broker.settings import BrokerSettings
from kcodec.constants import CLUSTER_METADATA_TOPIC, CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TimestampType
from kcodec.errors import UnsupportedError
from kcodec.log import read_offsets
from kcodec.log.checkpoints import LOG_START_OFFSETS, PARTITION_METADATA
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.schema import MetadataRecord

_log = logging.getLogger(__name__)
INTERNAL_TOPICS = (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)
LONGEST_NAME = 249
MOST_PARTITIONS = 10_000
PRODUCER_ID_BLOCK = 1000
#: Number of producer ids that are reserved for each start of a broker in memory.
PRODUCER_IDS_OF_START = 1_000_000
# ConfigResource.Type: what a configuration belongs to.
TOPIC, GROUP = 2, 32
_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_FRAME_VERSION, _FRAME_BYTES = 1, 3


@dataclass(slots=True, eq=False)
class Partition:
    """A partition: its number, leader epoch and log."""

    number: int
    leader_epoch: int
    log: PartitionLog

    def check_leader_epoch(self, epoch: int) -> None:
        """Raise ApiError if a client names another leader epoch. With -1, the client names none."""
        if 0 <= epoch < self.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {epoch} is behind {self.leader_epoch}")
        if epoch > self.leader_epoch:
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {epoch} is ahead of {self.leader_epoch}")


class Topic:
    """A topic. `configs` contains only the settings of the topic itself; `config` returns any setting."""

    def __init__(self, name: str, topic_id: UUID, defaults: Mapping[str, str]) -> None:
        self.name = name
        self.id = topic_id
        self.configs: dict[str, str] = {}
        self.partitions: list[Partition] = []
        self._defaults = defaults
        self._log_settings: LogSettings | None = None

    @property
    def is_internal(self) -> bool:
        """Whether only the broker writes to the topic."""
        return self.name in INTERNAL_TOPICS

    def config(self, name: str) -> str:
        """Return a setting: the value of the topic, the value of the broker, or the default. A list may be empty."""
        for configs in (self.configs, self._defaults):
            if name in configs:
                return configs[name]
        return topic_configs.CONFIGS[name].default

    def log_settings(self) -> LogSettings:
        """Return the settings of the topic's logs."""
        if self._log_settings is None:
            self._log_settings = LogSettings.of(self.config)
        return self._log_settings

    def forget_settings(self) -> None:
        """Discard cached settings, so that they are computed again."""
        self._log_settings = None

    def partition(self, number: int) -> Partition | None:
        """Return a partition; None if it does not exist."""
        return self.partitions[number] if 0 <= number < len(self.partitions) else None


class Topics:
    """All topics of the broker.

    directory: Directory of the logs. None keeps them in memory.
    earlier_starts: Number of earlier starts of a broker in memory. Each start allocates other ids, so that the broker
               does not mistake a client of an earlier start for a new one.
    """

    def __init__(
        self, settings: BrokerSettings, clock: Clock, directory: Path | None, *, earlier_starts: int = 0
    ) -> None:
        self._settings = settings
        self._clock = clock
        self.directory = directory
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._by_unified: dict[str, str] = {}
        self._registrations = 0 if directory is not None else earlier_starts
        self._next_producer_id = self._end_of_block = self._registrations * PRODUCER_IDS_OF_START
        self._starts: dict[tuple[str, int], int] = {}
        self._are_starts_kept = True
        #: Partitions of topics that were deleted: their files may have stayed.
        self._removed: set[tuple[str, int]] = set()
        #: The configurations of groups, which need not exist.
        self.group_configs: dict[str, dict[str, str]] = {}
        #: (user, mechanism) -> what is stored of the password.
        self.scram_credentials: dict[tuple[str, str], ScramCredential] = {}
        #: As far as the passwords come from the setting `users`; they may have been altered since.
        self.configured_credentials: dict[tuple[str, str], ScramCredential] = {}
        self.acls = AclTable()
        #: Called with the name of a deleted topic.
        self.on_deleted: Callable[[str], None] = lambda name: None
        home = None if directory is None else directory / f"{CLUSTER_METADATA_TOPIC}-0"
        own = Topic(CLUSTER_METADATA_TOPIC, UUID(int=1), {})
        self._log = PartitionLog(home, clock, own.log_settings)
        try:
            if home is not None:
                self._load()
                self._continue_time()
            self.random = random.Random(f"{settings.seed}/{self._registrations}")
            self._register()
        except BaseException:  # the files are closed here, because the caller gets no object to close
            self.close(is_clean=False)
            raise

    @property
    def metadata_end_offset(self) -> int:
        """The end of the log of metadata."""
        return self._log.log_end_offset

    def now_ms(self) -> int:
        """Return the broker's time in ms."""
        return self._clock.now_ms()

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._by_name.values()))

    def partitions(self) -> Iterator[tuple[Topic, Partition]]:
        """Iterate over all partitions, with their topics."""
        return ((topic, partition) for topic in self for partition in topic.partitions)

    def get(self, name: str) -> Topic | None:
        """Return a topic; None if it does not exist."""
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        """Return a topic; None if it does not exist."""
        return self._by_id.get(topic_id)

    def names(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(self._by_name)

    def partition(self, name: str, number: int) -> Partition | None:
        """Return a partition; None if the partition or its topic does not exist."""
        topic = self._by_name.get(name)
        return None if topic is None else topic.partition(number)

    def new_uuid(self) -> UUID:
        """Return a random UUID of version 4."""
        return UUID(int=self.random.getrandbits(128), version=4)

    # Changes

    def check_new_name(self, name: str) -> None:
        """Raise ApiError if a topic of this name cannot be created."""
        check_name(name)
        if name == CLUSTER_METADATA_TOPIC:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
        if name in self._by_name:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        clash = self._by_unified.get(_unified(name))
        if clash is not None:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {clash}")

    def check_new(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Raise ApiError if a topic cannot be created."""
        self.check_new_name(name)
        if not 1 <= partitions <= MOST_PARTITIONS:
            reason = f"Number of partitions was set to {partitions}; expected 1 to {MOST_PARTITIONS}"
            raise ApiError(ErrorCode.INVALID_PARTITIONS, reason)
        for key, value in configs.items():
            topic_configs.check(key, value)

    def create(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> Topic:
        """Create a topic. Raise ApiError."""
        configs = dict(configs or {})
        self.check_new(name, partitions, configs)
        if not self._are_starts_kept and not self.keep_starts():  # the file may name a deleted topic
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{LOG_START_OFFSETS} cannot be written")
        self._remove_files(name, range(partitions))
        topic_id = self.new_uuid()
        self._write(
            messages.TopicRecord(name=name, topic_id=topic_id),
            *(_config(name, key, value) for key, value in configs.items()),
            *(self._partition_record(topic_id, number) for number in range(partitions)),
        )
        return self._by_name[name]

    def create_internal(self, name: str) -> Topic:
        """Return an internal topic. Create it if it does not exist."""
        found = self._by_name.get(name)
        if found is not None:
            return found
        configs = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}
        partitions = self._settings.offsets_topic_partitions
        if name == TRANSACTION_STATE_TOPIC:
            configs["compression.type"] = "uncompressed"
            partitions = self._settings.transaction_topic_partitions
        return self.create(name, partitions, configs)

    def delete(self, topic: Topic) -> None:
        """Delete a topic and its files. Raise ApiError if the deletion cannot be written."""
        self._write(messages.RemoveTopicRecord(topic_id=topic.id))
        for partition in topic.partitions:
            partition.log.delete()
        self.keep_starts()  # a topic of the same name begins at offset 0
        self.on_deleted(topic.name)

    def add_partitions(self, topic: Topic, total: int) -> None:
        """Add partitions until the topic has `total`, which the caller has checked. Raise ApiError."""
        added = range(len(topic.partitions), total)
        self._remove_files(topic.name, added)
        self._write(*(self._partition_record(topic.id, number) for number in added))

    def set_configs(self, topic: Topic, configs: Mapping[str, str]) -> None:
        """Replace the settings of the topic itself, which the caller has checked."""
        changed = [_config(topic.name, name, value) for name, value in configs.items()]
        self._write(*changed, *(_config(topic.name, name, None) for name in topic.configs if name not in configs))

    def set_group_configs(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Replace the configurations of a group."""
        names = dict.fromkeys((*configs, *self.group_configs.get(group_id, {})))
        self._write(*(_config(group_id, name, configs.get(name), GROUP) for name in names))

    def change_users(self, records: Iterable[MetadataRecord]) -> None:
        """Write and apply records of SCRAM credentials."""
        self._write(*records)

    def change_acls(self, records: Iterable[MetadataRecord]) -> None:
        """Write and apply records of ACLs."""
        self._write(*records)

    def change_leader_epoch(self, topic: Topic, partition: Partition) -> None:
        """Elect the leader of a partition again, which raises its leader epoch by 1."""
        node = self._settings.node_id
        self._write(messages.PartitionChangeRecord(partition_id=partition.number, topic_id=topic.id, leader=node))

    def next_producer_id(self) -> int:
        """Return a producer id that was never allocated before. Blocks of 1000 ids are written to the log."""
        if self._next_producer_id == self._end_of_block:
            record = messages.ProducerIdsRecord(
                broker_id=self._settings.node_id,
                broker_epoch=self._registrations,
                next_producer_id=self._end_of_block + PRODUCER_ID_BLOCK,
            )
            self._write(record)
        self._next_producer_id += 1
        return self._next_producer_id - 1

    # The metadata log

    def _partition_record(self, topic_id: UUID, number: int) -> MetadataRecord:
        node = self._settings.node_id
        return messages.PartitionRecord(
            partition_id=number,
            topic_id=topic_id,
            replicas=[node],
            isr=[node],
            leader=node,
            leader_epoch=0,
            partition_epoch=0,
        )

    def _register(self) -> None:
        """Write the registration of the broker."""
        node = self._settings.node_id
        record = messages.RegisterBrokerRecord(
            broker_id=node, incarnation_id=self.new_uuid(), broker_epoch=self._log.log_end_offset, fenced=False
        )
        feature = messages.FeatureLevelRecord(
            name="transaction.version", feature_level=self._settings.transaction_version
        )
        self._append(record, feature)

    def _write(self, *records: MetadataRecord) -> None:
        """Append records as one batch, then apply them. Raise ApiError (KAFKA_STORAGE_ERROR) after a failed write."""
        try:
            self._append(*records)
        except OSError as error:
            _log.error("%s: %s; the request is refused", CLUSTER_METADATA_TOPIC, error)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def _append(self, *records: MetadataRecord) -> None:
        if records:
            self._log.append_records([(None, _framed(record)) for record in records])
        for record in records:
            self._apply(record, is_new=True)

    def _load(self) -> None:
        self._log.load(0)
        starts = (self.directory or Path()) / LOG_START_OFFSETS
        self._starts = read_offsets(starts) if starts.exists() else {}
        for batch in self._log.batches_from(0):
            for record in batch.records():
                try:
                    found = _unframed(record.value or b"")
                except UnsupportedError as error:
                    reason = f"{error.reason} at offset {record.offset} of {CLUSTER_METADATA_TOPIC}-0 is not supported"
                    remedy = "use the version of kcodec that has written it, or name another data_dir"
                    text = f"{self.directory}: {reason}; {remedy}"
                    raise UnsupportedError(text) from None
                self._apply(found, is_new=False)
        self._next_producer_id = self._end_of_block
        for name, number in self._removed:
            if self.partition(name, number) is None:
                rmtree(self._home(name, number) or "", ignore_errors=True)
        for topic, partition in self.partitions():
            partition.log.load(self._starts.get((topic.name, partition.number), 0))
        if self._starts.keys() - {(topic.name, one.number) for topic, one in self.partitions()}:
            self.keep_starts()  # the broker may have been killed before it wrote this file

    def _apply(self, record: MetadataRecord, *, is_new: bool) -> None:
        match record:
            case messages.TopicRecord():
                topic = Topic(record.name, record.topic_id, self._settings.topic_defaults)
                self._by_name[topic.name] = self._by_id[topic.id] = topic
                self._by_unified[_unified(topic.name)] = topic.name
            case messages.PartitionRecord():
                self._add_partition(self._by_id[record.topic_id], record, is_new=is_new)
            case messages.RemoveTopicRecord():
                topic = self._by_id.pop(record.topic_id)
                del self._by_name[topic.name], self._by_unified[_unified(topic.name)]
                self._removed.update((topic.name, partition.number) for partition in topic.partitions)
            case messages.ConfigRecord() if record.resource_type == TOPIC:
                topic = self._by_name[record.resource_name]
                _set(topic.configs, record)
                topic.forget_settings()
            case messages.ConfigRecord() if record.resource_type == GROUP:
                _set(self.group_configs.setdefault(record.resource_name, {}), record)
            case messages.PartitionChangeRecord():
                self._raise_epoch(self._by_id[record.topic_id].partitions[record.partition_id], 1, begins=is_new)
            case messages.UserScramCredentialRecord():
                key = (record.name, MECHANISM_NAMES[record.mechanism])
                self.scram_credentials[key] = credential = credential_of_record(record)
                if credential.is_from_settings:
                    self.configured_credentials[key] = credential
            case messages.RemoveUserScramCredentialRecord():
                key = (record.name, MECHANISM_NAMES[record.mechanism])
                for credentials in (self.scram_credentials, self.configured_credentials):
                    credentials.pop(key, None)
            case messages.AccessControlEntryRecord():
                self.acls.add(record)
            case messages.RemoveAccessControlEntryRecord():
                self.acls.remove(record)
            case messages.ProducerIdsRecord():
                self._end_of_block = record.next_producer_id
            case messages.RegisterBrokerRecord():
                self._registrations += 1
                for _, partition in self.partitions():
                    self._raise_epoch(partition, 2, begins=is_new)

    def _add_partition(self, topic: Topic, record: messages.PartitionRecord, *, is_new: bool) -> None:
        home = self._home(topic.name, record.partition_id)
        log = PartitionLog(home, self._clock, topic.log_settings)
        partition = Partition(record.partition_id, record.leader_epoch, log)
        topic.partitions.append(partition)
        if is_new:
            log.begin_epoch(record.leader_epoch)
        if home is not None and not (home / PARTITION_METADATA).exists():
            try_write_small(home / PARTITION_METADATA, f"version: 0\ntopic_id: {short_id(topic.id)}\n".encode())

    def _raise_epoch(self, partition: Partition, by: int, *, begins: bool) -> None:
        partition.leader_epoch += by
        if begins:
            partition.log.begin_epoch(partition.leader_epoch)

    # The directory

    def _home(self, topic: str, partition: int) -> Path | None:
        return None if self.directory is None else self.directory / f"{topic}-{partition}"

    def _remove_files(self, topic: str, partitions: Iterable[int]) -> None:
        """Remove the remaining files of a deleted topic. Raise ApiError if this fails, or if the directory has other
        files, because a new topic must not write to them."""
        for number in partitions:
            home, reason = self._home(topic, number), "was not written by this broker; move it away"
            if home is not None and (topic, number) in self._removed:
                rmtree(home, ignore_errors=True)
                reason = "belongs to a deleted topic, and cannot be removed; check its permissions"
            if home is not None and home.exists():
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{home} {reason}")

    def _continue_time(self) -> None:
        """Move the clock to the latest time that a broker has written to the directory. Otherwise, the start of a
        transaction, for example, could be later than the present. Timestamps of clients do not count."""
        written = [self._log.latest_timestamp]
        for topic, partition in self.partitions():
            if topic.is_internal or topic.log_settings().message_timestamp_type == TimestampType.LOG_APPEND_TIME:
                written.append(partition.log.latest_timestamp)
        if self._clock.not_before(max(written)):
            _log.info("%s: the clock starts at %d ms, the latest time in the logs", self.directory, max(written))

    def keep_starts(self) -> bool:
        """Write log-start-offset-checkpoint, after a log start offset has moved. Return False if that has failed.

        A failed write does not fail the request, as its change has already been made. The next call writes the file.
        """
        if self.directory is None:
            return True
        moved = [
            f"{topic.name} {partition.number} {partition.log.log_start_offset}"
            for topic, partition in self.partitions()
            if partition.log.log_start_offset > 0
        ]
        try:
            write_checkpoint(self.directory / LOG_START_OFFSETS, moved)
            self._are_starts_kept = True
        except OSError as error:
            self._are_starts_kept = False
            _log.warning("%s: %s; it is written again later", self.directory / LOG_START_OFFSETS, error.strerror)
        return self._are_starts_kept

    def apply_retention(self) -> None:
        """Delete segments according to the settings of the topics, and forget idle producers."""
        before = self._clock.now_ms() - self._settings.producer_id_expiration_ms
        for topic, partition in self.partitions():
            try:
                partition.log.apply_retention()
            except OSError as error:
                _log.error("retention of %s-%d: %s; trying again later", topic.name, partition.number, error)
            partition.log.producers.expire(before)
        self.keep_starts()

    def close(self, *, is_clean: bool) -> None:
        """Close all files."""
        self._log.close(is_clean=is_clean)
        for _, partition in self.partitions():
            partition.log.close(is_clean=is_clean)


def check_name(name: str) -> None:
    """Raise ApiError for a name that no topic can have (Topic.validate)."""
    reason = None
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = "'.' or '..' is not allowed"
    elif len(name) > LONGEST_NAME:
        reason = f"the length of '{name}' is longer than the max allowed length {LONGEST_NAME}"
    elif not _NAME.fullmatch(name):
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    if reason is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def _unified(name: str) -> str:
    """Return the name as it appears in metrics. Two names collide if they are equal in this form."""
    return name.replace(".", "_")


def short_id(value: UUID) -> str:
    """Return an id as Kafka prints it."""
    return urlsafe_b64encode(value.bytes).decode().rstrip("=")


def _config(owner: str, name: str, value: str | None, kind: int = TOPIC) -> MetadataRecord:
    return messages.ConfigRecord(resource_type=kind, resource_name=owner, name=name, value=value)


def _set(configs: dict[str, str], record: messages.ConfigRecord) -> None:
    configs.pop(record.name, None)
    if record.value is not None:
        configs[record.name] = record.value


def _framed(record: MetadataRecord) -> bytes:
    """Return a record of the metadata log: frame version, type and version as varints, then the message."""
    version = 1 if isinstance(record, messages.RegisterBrokerRecord) else 0
    return bytes((_FRAME_VERSION, record.api_key, version)) + record.encode(version)


def _unframed(value: bytes) -> MetadataRecord:
    """Return a record of the metadata log. Raise UnsupportedError for a format that this version does not know."""
    version, number, record_version = value[:_FRAME_BYTES] if len(value) >= _FRAME_BYTES else (0, 0, 0)
    kind = next((kind for kind in _RECORDS if kind.api_key == number), None)
    if version != _FRAME_VERSION or kind is None or not kind.versions.hold(record_version):
        raise UnsupportedError(f"frame version {version}, record type {number}, record version {record_version}")
    return kind.decode(value, record_version, _FRAME_BYTES)


_RECORDS: tuple[type[MetadataRecord], ...] = (
    messages.TopicRecord,
    messages.PartitionRecord,
    messages.RemoveTopicRecord,
    messages.ConfigRecord,
    messages.PartitionChangeRecord,
    messages.ProducerIdsRecord,
    messages.RegisterBrokerRecord,
    messages.FeatureLevelRecord,
    messages.UserScramCredentialRecord,
    messages.RemoveUserScramCredentialRecord,
    messages.AccessControlEntryRecord,
    messages.RemoveAccessControlEntryRecord,
)
