# SPDX-License-Identifier: Apache-2.0
"""The flows of a producer: accumulator, sender, produce responses, deliveries."""
