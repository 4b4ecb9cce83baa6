# SPDX-License-Identifier: Apache-2.0
"""The flows of administrative calls, with their arguments and results."""
