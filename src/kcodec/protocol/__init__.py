# SPDX-License-Identifier: Apache-2.0
"""Kafka's wire protocol without a wire: messages, frames, versions, error codes, and the effects that flows ask for."""
