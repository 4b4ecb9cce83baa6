# SPDX-License-Identifier: Apache-2.0
"""Membership by the classic group protocol: JoinGroup, SyncGroup, Heartbeat."""
