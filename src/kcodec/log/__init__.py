# SPDX-License-Identifier: Apache-2.0
"""A log on disk: segments and partition directories, read with constant memory.

``kcodec.open(path)`` returns a Log. The other public names are the values it returns, and functions that read a range
of it in another process:

    log = kcodec.open("orders-0")
    splits, verdict = log.splits(), log.verdict("read_committed")      # headers only; both pickle
    for decoded in read_split(splits[0], verdict, isolation_level="read_committed"): ...

Modules: storage.py and remote.py find files, windows.py reads them. segment.py distinguishes a torn tail from
corruption, and salvage.py finds where reading continues after corruption. timeline.py finds the outcome of
transactions, chunks.py streams records, splits.py cuts ranges, and partition.py combines them. opening.py finds the
segments at a path, directory.py reads a broker's whole log directory, growth.py and follow.py read a log while it
grows. indexes.py, snapshots.py and checkpoints.py read the other files of a partition and of a log directory. seek.py
begins at an index entry, producers.py finds the state of producers, and check/ verifies everything. internal/ reads the
records of Kafka's internal topics and derives the coordinators' state from them.
"""

from kcodec._lazy import lazy_exports
from kcodec.log.batches import Batches
from kcodec.log.chunks import Chunks, RecordsStream
from kcodec.log.directory import (
    LogDirectory,
    OtherEntry,
    open,  # noqa: A004  kcodec.open is the public name
    open_log_directory,
)
from kcodec.log.opening import open_partition, open_segment
from kcodec.log.partition import Log
from kcodec.log.segment import Segment, Tail
from kcodec.log.splits import Split, read_split
from kcodec.log.timeline import Transaction, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kcodec.log.check import check_file
    from kcodec.log.check.findings import Finding
    from kcodec.log.checkpoints import (
        LeaderEpoch,
        MetaProperties,
        PartitionMetadata,
        read_leader_epochs,
        read_meta_properties,
        read_offsets,
        read_partition_metadata,
    )
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
    from kcodec.log.internal.offsets import CommittedOffset, GroupOffsets, PendingOffset, group_offsets
    from kcodec.log.internal.records import InternalRecord, decode_internal_record, internal_record
    from kcodec.log.internal.topics import cluster_topics
    from kcodec.log.internal.transactions import (
        PartitionTransaction,
        TransactionState,
        partition_transactions,
        transaction_states,
    )
    from kcodec.log.snapshots import ProducerSnapshot, ProducerState, pack_snapshot, read_snapshot, write_snapshot
del TYPE_CHECKING

# Imported when first requested: opening and reading a log needs none of them. No module may have the name of a public
# function, because importing the module would replace the function.
_MODULES = {
    "check": "check_file",
    "check.findings": "Finding",
    "checkpoints": (
        "LeaderEpoch MetaProperties PartitionMetadata read_leader_epochs read_meta_properties read_offsets "
        "read_partition_metadata"
    ),
    "indexes": (
        "OffsetIndex OffsetIndexEntry TimeIndex TimeIndexEntry TransactionIndex TransactionIndexEntry "
        "read_offset_index read_time_index read_transaction_index"
    ),
    "internal.offsets": "CommittedOffset GroupOffsets PendingOffset group_offsets",
    "internal.records": "InternalRecord decode_internal_record internal_record",
    "internal.topics": "cluster_topics",
    "internal.transactions": "PartitionTransaction TransactionState partition_transactions transaction_states",
    "snapshots": "ProducerSnapshot ProducerState pack_snapshot read_snapshot write_snapshot",
}
_EXPORTS = {name: f"kcodec.log.{module}" for module, names in _MODULES.items() for name in names.split()}

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
