# SPDX-License-Identifier: Apache-2.0
"""Flows of consumers: what is assigned and where it stands, fetching, committed offsets, groups, the transact session.

Pure, as `kcodec.txn`: no sockets, no clock of its own. `consumer_core` puts the parts together; the faces that carry it
are `kcodec.client.consumer` and `kcodec.client.aio.consumer`.
"""
