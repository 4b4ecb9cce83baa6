# SPDX-License-Identifier: Apache-2.0
"""One log on disk: segments and partition directories, read at constant memory.

``kcodec.open(path)`` gives a Log; the other names are what it gives and what reads a part of it elsewhere:

    log = kcodec.open("orders-0")
    splits, verdict = log.splits(), log.verdict("read_committed")      # headers only; both pickle
    for decoded in read_split(splits[0], verdict, isolation_level="read_committed"): ...

storage.py and remote.py say where files lie, windows.py reads them, segment.py tells a torn tail from damage,
timeline.py settles transactions, chunks.py streams records, splits.py cuts ranges, partition.py puts them together,
opening.py finds what lies at a path, siblings.py which files count where a cleaner was at work, directory.py is a
broker's whole log directory, growth.py and follow.py read a log while it grows. Beside the records: indexes.py,
snapshots.py and checkpoints.py read the other files of a partition and of a log directory, seek.py begins at an index
entry, producers.py knows producers, and check.py (check_*.py, findings.py) looks at everything. internal_records.py
tells what Kafka's own records say, by the tables of *_records.py, which message_schema.py reads; transaction_states.py
and group_offsets.py make of them what the coordinators know.
"""

from kcodec.log.batches import Batches
from kcodec.log.check import check_file
from kcodec.log.checkpoints import (
    LeaderEpoch,
    MetaProperties,
    PartitionMetadata,
    read_leader_epochs,
    read_meta_properties,
    read_offsets,
    read_partition_metadata,
)
from kcodec.log.chunks import Chunks, RecordsStream
from kcodec.log.cluster_topics import cluster_topics
from kcodec.log.directory import LogDirectory, OtherEntry, open_log_directory
from kcodec.log.findings import Finding
from kcodec.log.group_offsets import CommittedOffset, GroupOffsets, PendingOffset, group_offsets
from kcodec.log.indexes import (
    OffsetIndex,
    OffsetIndexEntry,
    TimeIndex,
    TimeIndexEntry,
    TransactionIndex,
    TransactionIndexEntry,
    read_offset_index,
    read_time_index,
    read_transaction_index,
)
from kcodec.log.internal_records import decode_internal_record, internal_record
from kcodec.log.opening import open, open_partition, open_segment  # noqa: A004  kcodec.open is the public name
from kcodec.log.partition import Log
from kcodec.log.partition_transactions import PartitionTransaction, partition_transactions
from kcodec.log.record_kinds import InternalRecord
from kcodec.log.segment import Segment, Tail
from kcodec.log.snapshots import ProducerSnapshot, ProducerState, pack_snapshot, read_snapshot, write_snapshot
from kcodec.log.splits import Split, read_split
from kcodec.log.timeline import Transaction, Verdict
from kcodec.log.transaction_states import TransactionState, transaction_states

__all__ = [
    "Batches",
    "Chunks",
    "CommittedOffset",
    "Finding",
    "GroupOffsets",
    "InternalRecord",
    "LeaderEpoch",
    "Log",
    "LogDirectory",
    "MetaProperties",
    "OffsetIndex",
    "OffsetIndexEntry",
    "OtherEntry",
    "PartitionMetadata",
    "PartitionTransaction",
    "PendingOffset",
    "ProducerSnapshot",
    "ProducerState",
    "RecordsStream",
    "Segment",
    "Split",
    "Tail",
    "TimeIndex",
    "TimeIndexEntry",
    "Transaction",
    "TransactionIndex",
    "TransactionIndexEntry",
    "TransactionState",
    "Verdict",
    "check_file",
    "cluster_topics",
    "decode_internal_record",
    "group_offsets",
    "internal_record",
    "open",
    "open_log_directory",
    "open_partition",
    "open_segment",
    "pack_snapshot",
    "partition_transactions",
    "read_leader_epochs",
    "read_meta_properties",
    "read_offset_index",
    "read_offsets",
    "read_partition_metadata",
    "read_snapshot",
    "read_split",
    "read_time_index",
    "read_transaction_index",
    "transaction_states",
    "write_snapshot",
]
