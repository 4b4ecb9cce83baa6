# SPDX-License-Identifier: Apache-2.0
"""The flows of a transactional producer: states, transaction manager, requests, shared transactions."""
