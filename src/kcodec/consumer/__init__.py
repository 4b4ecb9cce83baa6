# SPDX-License-Identifier: Apache-2.0
"""The flows of a consumer: assignment, positions, fetching, committed offsets and group membership.

They import no socket and no clock. `core` combines them; `kcodec.client.consumer` and `kcodec.client.aio.consumer` are
the public classes that run them.
"""
