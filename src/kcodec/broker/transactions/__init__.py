# SPDX-License-Identifier: Apache-2.0
"""The transaction coordinator: the states of transactional ids, the log of these states, and the markers."""
