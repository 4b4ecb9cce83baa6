# SPDX-License-Identifier: Apache-2.0
"""Kafka clients: flows carried by a thread here, by asyncio in `kcodec.client.aio`."""
