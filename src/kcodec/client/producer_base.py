# SPDX-License-Identifier: Apache-2.0
"""What the sync and the async producer share: the identity that a producer's options ask for."""

from __future__ import annotations

from kcodec.network.client import Client
from kcodec.producer.idempotent import IdempotentProducerId, WithoutProducerId
from kcodec.producer.identity import ProducerIdSource
from kcodec.producer.options import ProducerConfig
from kcodec.transactions.manager import TransactionManager


def make_source(own: ProducerConfig, client: Client) -> ProducerIdSource:
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
