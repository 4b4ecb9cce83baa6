# SPDX-License-Identifier: Apache-2.0
"""Membership by the consumer group protocol (KIP-848): ConsumerGroupHeartbeat."""
