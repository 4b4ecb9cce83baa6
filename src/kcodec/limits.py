# SPDX-License-Identifier: Apache-2.0
"""Limits of decoding, with names and finite defaults. Data above a limit raises ``LimitExceededError``."""

from __future__ import annotations

from kcodec.integers import as_integer, shown

# Kafka's own ceiling for one message is max.message.bytes (1 MiB by default); clusters with large messages raise it to
# tens of MiB. 128 MiB lets all of those through and keeps what one hostile length can cost within a small machine.
DEFAULT_MAX_BATCH_BYTES = 128 << 20
DEFAULT_MAX_DECOMPRESSED_BYTES = 128 << 20

# A binary column of one batch is indexed by int32.
LARGEST_LIMIT = (1 << 31) - (1 << 20)


class DecodeLimits:
    """The limits of one decoding call. Immutable.

    max_batch_bytes:        Largest ``batch_length`` in bytes that is accepted.
    max_decompressed_bytes: Maximum size in bytes of the decompressed records of one batch, enforced during
                            decompression.

    Raise ``ValueError`` for a limit below 61 (a batch header) or above ``LARGEST_LIMIT``.
    """

    __slots__ = ("max_batch_bytes", "max_decompressed_bytes")

    max_batch_bytes: int
    max_decompressed_bytes: int

    def __init__(
        self,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    ) -> None:
        for name, value in (("max_batch_bytes", max_batch_bytes), ("max_decompressed_bytes", max_decompressed_bytes)):
            number = as_integer(value)
            if number is None:
                raise TypeError(f"{name} must be an int, not {type(value).__name__}")
            if not 61 <= number <= LARGEST_LIMIT:
                raise ValueError(f"{name} must be between 61 and {LARGEST_LIMIT}, not {shown(number)}")
            object.__setattr__(self, name, number)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"DecodeLimits is immutable: create another one to change {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"DecodeLimits is immutable: {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DecodeLimits):
            return NotImplemented
        return (self.max_batch_bytes, self.max_decompressed_bytes) == (
            other.max_batch_bytes,
            other.max_decompressed_bytes,
        )

    def __hash__(self) -> int:
        return hash((self.max_batch_bytes, self.max_decompressed_bytes))

    def __repr__(self) -> str:
        return (
            f"DecodeLimits(max_batch_bytes={self.max_batch_bytes}, "
            f"max_decompressed_bytes={self.max_decompressed_bytes})"
        )

    def __reduce__(self) -> tuple[type[DecodeLimits], tuple[int, int]]:
        return DecodeLimits, (self.max_batch_bytes, self.max_decompressed_bytes)


DEFAULT_LIMITS = DecodeLimits()
