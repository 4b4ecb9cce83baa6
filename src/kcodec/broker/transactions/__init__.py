# SPDX-License-Identifier: Apache-2.0
"""The transaction coordinator: the state of transactional ids, its log, and the markers that end transactions."""
