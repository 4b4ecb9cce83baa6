# SPDX-License-Identifier: Apache-2.0
"""Operations on record batches other than decoding and encoding: validate, compact, rewrite header fields."""
