# SPDX-License-Identifier: Apache-2.0
"""The id and the epoch of a producer."""

from __future__ import annotations

from typing import NamedTuple


class ProducerIdAndEpoch(NamedTuple):
    """A producer id and its epoch, as in the header of a batch (Kafka: ProducerIdAndEpoch).

    producer_id: Id of the producer.
    producer_epoch: Epoch of the producer; a producer with a lower epoch is fenced.
    """

    producer_id: int
    producer_epoch: int
