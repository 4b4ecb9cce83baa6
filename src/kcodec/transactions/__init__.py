# SPDX-License-Identifier: Apache-2.0
"""The flows of a transactional producer: state table, manager, requests, shared transactions."""
