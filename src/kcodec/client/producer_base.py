# SPDX-License-Identifier: Apache-2.0
"""What the sync and the async producer share: the identity that a producer's options ask for."""

from __future__ import annotations

from kcodec.network.client import Client
from kcodec.producer.identity import IdempotentProducerId, ProducerIdSource, WithoutProducerId
from kcodec.producer.options import ProducerOptions
from kcodec.transactions.manager import TransactionManager


def make_source(own: ProducerOptions, client: Client) -> ProducerIdSource:
    """Return the identity that the producer writes under."""
    if own.transactional_id is not None:
        return TransactionManager(
            client.cluster, own.transactional_id, int(own.transaction_timeout_ms), own.max_block_ms / 1000
        )
    if own.enable_idempotence:
        seconds = client.options.request_timeout_ms / 1000
        return IdempotentProducerId(
            request_timeout=seconds, backoff=client.options.retry_backoff, random=client.random.random
        )
    return WithoutProducerId()
