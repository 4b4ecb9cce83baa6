# SPDX-License-Identifier: Apache-2.0
"""What can be done to record batches besides decoding and encoding: validate, compact, rewrite header fields."""
