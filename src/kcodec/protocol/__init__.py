# SPDX-License-Identifier: Apache-2.0
"""Kafka's wire protocol without I/O: messages, frames, versions and error codes."""
