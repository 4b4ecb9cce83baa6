# SPDX-License-Identifier: Apache-2.0
"""The option `partitioner`: the hashes of `key_hashes.py`, and functions of the application.

The compiled core has the default hash; `partitioner.py` has the choice for records without a key.

A hash is computed before the compiled core appends the record. A function of the application is called by `send`,
before it takes the lock of the buffer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kcodec.errors import EncodeError
from kcodec.integers import as_integer, shown
from kcodec.producer.accumulator import Accumulator
from kcodec.producer.key_hashes import HASHES_NO_KEY, key_partition_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kcodec.options import PartitionFunction
    from kcodec.producer.delivery import Delivery
    from kcodec.producer.options import ProducerSettings


class HashingAccumulator(Accumulator):
    """The buffer of a producer whose option `partitioner` names a hash that the compiled core does not have."""

    def __init__(self, settings: ProducerSettings, **others: Any) -> None:
        # The compiled core must not choose a partition by the key: see `_chosen`.
        super().__init__(dataclasses.replace(settings, ignore_keys=True), **others)
        found = key_partition_of(settings.partitioner)
        assert found is not None
        self._key_partition = found
        self._hashes_no_key = settings.partitioner in HASHES_NO_KEY

    def _chosen(self, topic: str, key: Buffer | None) -> int | None:
        """Return the partition of a key. Return None if the topic is not known yet, if the key is invalid, or if the
        record goes to the partition for records without a key."""
        buffer = self.topics.get(topic)
        return self._key_partition(key, len(buffer.queues)) if buffer is not None and buffer.queues else None

    def append(self, topic: Any, key: Any, value: Any, headers: Any, partition: Any, timestamp: Any) -> Delivery | None:
        """See `Accumulator.append`."""
        if partition is None and (key is not None or self._hashes_no_key):
            partition = self._chosen(topic, key)
        found: Delivery | None = super().append(topic, key, value, headers, partition, timestamp)
        return found

    def send(self, topic: Any, key: Any, value: Any, headers: Any, partition: Any, timestamp: Any) -> Delivery | None:
        """See `Accumulator.send`."""
        if partition is None and (key is not None or self._hashes_no_key):
            partition = self._chosen(topic, key)
            if partition is None:
                with self.lock:  # the metadata of the topic must not arrive meanwhile
                    return self.append(topic, key, value, headers, None, timestamp)
        found: Delivery | None = super().send(topic, key, value, headers, partition, timestamp)
        return found


def accumulator_of(settings: ProducerSettings) -> type[Accumulator]:
    """Return the class of the buffer for the option `partitioner`."""
    return HashingAccumulator if key_partition_of(settings.partitioner) is not None else Accumulator


def called_partition(function: PartitionFunction, topic: str, key: Any, count: int, available: Sequence[int]) -> int:
    """Return the partition that a function of the application chooses. Raise EncodeError if the topic does not have
    it."""
    chosen = function(key, list(range(count)), list(available))
    number = as_integer(chosen)
    if number is None or not 0 <= number < count:
        raise EncodeError(
            f"topic {topic!r}: partitioner must return a number between 0 and {count - 1}, not {shown(chosen)}",
            field="partition",
            value=chosen,
        )
    return number


def partitions_of_keys(
    settings: ProducerSettings, topic: str, keys: Iterable[Any], count: int, available: Sequence[int], default: int
) -> list[int]:
    """Return the partition of each key of a table. Return `default` for keys that are treated as records without a
    key."""
    if callable(settings.partitioner):
        return [called_partition(settings.partitioner, topic, key, count, available) for key in keys]
    key_partition = key_partition_of(settings.partitioner)
    assert key_partition is not None
    found = (key_partition(key, count) for key in keys)
    return [default if partition is None else partition for partition in found]
