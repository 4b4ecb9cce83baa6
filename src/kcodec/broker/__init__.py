# SPDX-License-Identifier: Apache-2.0
"""A broker in one process, for development and tests."""
