# SPDX-License-Identifier: Apache-2.0
"""The names of the option `partitioner`: librdkafka's, with its rules (rdkafka_msg.c).

    name                 hash                     a record without a key        an empty key
    murmur2_random       murmur2, as Java's       as partitioner.py says        is hashed
    murmur2              murmur2                  is hashed as an empty one     is hashed
    consistent_random    CRC-32                   as partitioner.py says        as a record without a key
    consistent           CRC-32                   is hashed as an empty one     is hashed
    fnv1a_random         FNV-1a                   as partitioner.py says        is hashed
    fnv1a                FNV-1a                   is hashed as an empty one     is hashed
    random               none                     as partitioner.py says        as a record without a key

murmur2_random is the default, which the compiled core has. `partitioner_option.py` computes the others before a record
is appended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from zlib import crc32

from kcodec._fast import partition_for

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Returns the partition of a key, given their number; None for one that is chosen as for a record without a key.
KeyPartition = Callable[["Buffer | None", int], "int | None"]


def _murmur2(key: Buffer | None, count: int) -> int | None:
    return partition_for((b"" if key is None else key,), count)[0]


def _consistent(key: Buffer | None, count: int) -> int | None:
    return crc32(b"" if key is None else key) % count


def _consistent_random(key: Buffer | None, count: int) -> int | None:
    return crc32(key) % count if key is not None and memoryview(key).nbytes else None


def _fnv1a(key: Buffer | None, count: int) -> int | None:
    found = 0x811C9DC5
    for byte in memoryview(b"" if key is None else key).cast("B"):
        found = (found ^ byte) * 0x01000193 & 0xFFFFFFFF
    # The absolute value of a signed number, as librdkafka takes it to agree with Sarama.
    return (found if found < 0x80000000 else 0x100000000 - found) % count


def _fnv1a_random(key: Buffer | None, count: int) -> int | None:
    return None if key is None else _fnv1a(key, count)


def _random(key: Buffer | None, count: int) -> int | None:
    return None


#: The names that compiled code does not have. Those in HASHES_NO_KEY hash a record without a key, too.
KEY_PARTITIONS: dict[str, KeyPartition] = {
    "consistent": _consistent,
    "consistent_random": _consistent_random,
    "fnv1a": _fnv1a,
    "fnv1a_random": _fnv1a_random,
    "murmur2": _murmur2,
    "random": _random,
}
HASHES_NO_KEY = frozenset({"consistent", "fnv1a", "murmur2"})


def key_partition_of(partitioner: object) -> KeyPartition | None:
    """Return the function for a name. Return None for the hash of the compiled core, and for functions of the
    application."""
    found = KEY_PARTITIONS.get(partitioner) if isinstance(partitioner, str) else None
    if found is None:
        return None

    def valid_or_none(key: Any, count: int) -> int | None:
        try:
            return found(key, count)
        except (TypeError, ValueError, BufferError):
            return None  # the encoder raises the error of an invalid key

    return valid_or_none
