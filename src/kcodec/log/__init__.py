# SPDX-License-Identifier: Apache-2.0
"""One log on disk: segments and partition directories, read at constant memory.

``kcodec.open(path)`` gives a Log; the other names are what it gives and what reads a part of it elsewhere:

    log = kcodec.open("orders-0")
    splits, verdict = log.splits(), log.verdict("read_committed")      # headers only; both pickle
    for decoded in read_split(splits[0], verdict, isolation_level="read_committed"): ...

storage.py and remote.py say where files lie, windows.py reads them, segment.py tells a torn tail from damage,
salvage.py finds where reading continues behind damage, timeline.py settles transactions, chunks.py streams records,
splits.py cuts ranges, partition.py puts them together, opening.py finds what lies at a path, siblings.py which files
count where a cleaner was at work, directory.py is a broker's whole log directory, growth.py and follow.py read a log
while it grows. Beside the records: indexes.py, snapshots.py and checkpoints.py read the other files of a partition and
of a log directory, seek.py begins at an index entry, producers.py knows producers, and check.py (check_*.py,
findings.py) looks at everything. internal_records.py reads the records that Kafka writes for itself: *_records.py has a
table of each topic's record types, and kcodec.protocol.messages declares the messages in them. coordinator_states.py
and committed_offsets.py derive from these records what the coordinators know.
"""

from kcodec._lazy import lazy_exports
from kcodec.log.batches import Batches
from kcodec.log.chunks import Chunks, RecordsStream
from kcodec.log.opening import open, open_partition, open_segment  # noqa: A004  kcodec.open is the public name
from kcodec.log.partition import Log
from kcodec.log.segment import Segment, Tail
from kcodec.log.splits import Split, read_split
from kcodec.log.timeline import Transaction, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
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
    from kcodec.log.committed_offsets import CommittedOffset, GroupOffsets, PendingOffset, group_offsets
    from kcodec.log.coordinator_states import TransactionState, transaction_states
    from kcodec.log.directory import LogDirectory, OtherEntry, open_log_directory
    from kcodec.log.findings import Finding
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
    from kcodec.log.record_kinds import InternalRecord
    from kcodec.log.snapshots import ProducerSnapshot, ProducerState, pack_snapshot, read_snapshot, write_snapshot
    from kcodec.log.topic_names import cluster_topics
    from kcodec.log.transaction_holders import PartitionTransaction, partition_transactions
del TYPE_CHECKING

# Imported when first asked for: opening and reading a log needs none of them. No module may be called like what it
# gives, or importing it would put itself in the place of that.
_EXPORTS = {
    "CommittedOffset": "kcodec.log.committed_offsets",
    "Finding": "kcodec.log.findings",
    "GroupOffsets": "kcodec.log.committed_offsets",
    "InternalRecord": "kcodec.log.record_kinds",
    "LeaderEpoch": "kcodec.log.checkpoints",
    "LogDirectory": "kcodec.log.directory",
    "MetaProperties": "kcodec.log.checkpoints",
    "OffsetIndex": "kcodec.log.indexes",
    "OffsetIndexEntry": "kcodec.log.indexes",
    "OtherEntry": "kcodec.log.directory",
    "PartitionMetadata": "kcodec.log.checkpoints",
    "PartitionTransaction": "kcodec.log.transaction_holders",
    "PendingOffset": "kcodec.log.committed_offsets",
    "ProducerSnapshot": "kcodec.log.snapshots",
    "ProducerState": "kcodec.log.snapshots",
    "TimeIndex": "kcodec.log.indexes",
    "TimeIndexEntry": "kcodec.log.indexes",
    "TransactionIndex": "kcodec.log.indexes",
    "TransactionIndexEntry": "kcodec.log.indexes",
    "TransactionState": "kcodec.log.coordinator_states",
    "check_file": "kcodec.log.check",
    "cluster_topics": "kcodec.log.topic_names",
    "decode_internal_record": "kcodec.log.internal_records",
    "group_offsets": "kcodec.log.committed_offsets",
    "internal_record": "kcodec.log.internal_records",
    "open_log_directory": "kcodec.log.directory",
    "pack_snapshot": "kcodec.log.snapshots",
    "partition_transactions": "kcodec.log.transaction_holders",
    "read_leader_epochs": "kcodec.log.checkpoints",
    "read_meta_properties": "kcodec.log.checkpoints",
    "read_offset_index": "kcodec.log.indexes",
    "read_offsets": "kcodec.log.checkpoints",
    "read_partition_metadata": "kcodec.log.checkpoints",
    "read_snapshot": "kcodec.log.snapshots",
    "read_time_index": "kcodec.log.indexes",
    "read_transaction_index": "kcodec.log.indexes",
    "transaction_states": "kcodec.log.coordinator_states",
    "write_snapshot": "kcodec.log.snapshots",
}

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

__getattr__, __dir__ = lazy_exports("kcodec.log", _EXPORTS)
