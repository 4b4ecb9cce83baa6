# SPDX-License-Identifier: Apache-2.0
"""Bounded reads of topics, without a group: ranges, fetching, decoding, predicates."""
