# SPDX-License-Identifier: Apache-2.0
"""Membership in a consumer group: the common part of both group protocols."""
