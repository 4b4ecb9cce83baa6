# SPDX-License-Identifier: Apache-2.0
"""Membership in a consumer group: what both group protocols share."""
