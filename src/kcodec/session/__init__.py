# SPDX-License-Identifier: Apache-2.0
"""The group transact session: consume, transform and produce in one transaction (KIP-447)."""
