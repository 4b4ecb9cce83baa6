# SPDX-License-Identifier: Apache-2.0
"""The flows of administrative calls, and the values they take and return."""
