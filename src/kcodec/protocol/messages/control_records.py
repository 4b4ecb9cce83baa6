# SPDX-License-Identifier: Apache-2.0
"""Control records: end-transaction markers of any topic, and the KRaft quorum's records in ``__cluster_metadata``.

`kcodec.constants.ControlType` has their types, which are in the records' keys.
"""

from __future__ import annotations

from uuid import UUID

from kcodec.protocol.schema import Message, Struct, array, int16, int32, int64, string, struct, uint16, uuid


class EndTxnMarker(Message, versions="0", flexible="none"):
    """The value of an end-transaction marker, without its version. Commit or abort is in the record's key."""

    coordinator_epoch: int = int32("0+")


class LeaderVoter(Struct):
    """A voter of the quorum at the time of the election."""

    voter_id: int = int32("0+")
    voter_directory_id: UUID = uuid("1+")


class LeaderChangeMessage(Message, versions="0-1", flexible="0+"):
    """The quorum elected a leader."""

    version: int = int16("0+")
    leader_id: int = int32("0+")
    voters: list[LeaderVoter] = array(LeaderVoter, "0+")
    granting_voters: list[LeaderVoter] = array(LeaderVoter, "0+")


class SnapshotHeaderRecord(Message, versions="0", flexible="0+"):
    """The first record of a snapshot. last_contained_log_timestamp: ms."""

    version: int = int16("0+")
    last_contained_log_timestamp: int = int64("0+")


class SnapshotFooterRecord(Message, versions="0", flexible="0+"):
    """The last record of a snapshot."""

    version: int = int16("0+")


class KRaftVersionRecord(Message, versions="0", flexible="0+"):
    """The version of the quorum's protocol."""

    version: int = int16("0+")
    kraft_version: int = int16("0+")


class VoterEndpoint(Struct):
    """Where a voter listens."""

    name: str = string("0+")
    host: str = string("0+")
    port: int = uint16("0+")


class KRaftVersionFeature(Struct):
    """The versions of the quorum's protocol that a voter supports."""

    min_supported_version: int = int16("0+")
    max_supported_version: int = int16("0+")


class QuorumVoter(Struct):
    """A voter, its log directory and its endpoints."""

    voter_id: int = int32("0+")
    voter_directory_id: UUID = uuid("0+")
    endpoints: list[VoterEndpoint] = array(VoterEndpoint, "0+")
    kraft_version_feature: KRaftVersionFeature = struct(KRaftVersionFeature, "0+")


class VotersRecord(Message, versions="0", flexible="0+"):
    """The voters of the quorum."""

    version: int = int16("0+")
    voters: list[QuorumVoter] = array(QuorumVoter, "0+")
